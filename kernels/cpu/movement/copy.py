"""Operators that join, cut, repeat, surround or fill arrays: plans of strided moves, any rank and element size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.kernels.cpu.language.lang import copy_bytes, fill_bytes, load_i64, split
from bolt_numba.kernels.cpu.movement.move import PARALLEL_BYTES, carried
from bolt_numba.kernels.cpu.movement.table_gather import table_gather_steps
from bolt_numba.kernels.geometry.transfers import (
    Transfer,
    concat_transfers,
    expand_transfers,
    fill,
    has_fixed_size,
    knows,
    pad_tables,
    pad_transfers,
    slice_transfers,
    split_transfers,
    stored,
    tile_transfers,
    typed,
    whole,
)
from bolt_numba.kernels.jit import I64, PTR, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.shape import Concat, Expand, Flatten, Identity, Reshape, Split, Squeeze, Tile, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.types import STRING, AnyDType, Array, TensorType


@kernel(Identity, Reshape, Flatten, Squeeze, Unsqueeze, accepts=has_fixed_size)
def copy(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Views are copied only where the planner cannot make them an alias."""
    return carried([Transfer(whole(outs[0].nbytes), In(0), Out(0))])


@kernel(Concat, accepts=has_fixed_size, by_types=True)
def concat(op: Concat, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move per operand."""
    return carried(concat_transfers(op, ins, outs))


@kernel(Split, accepts=has_fixed_size, by_types=True)
def split_axis(op: Split, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move per part."""
    return carried(split_transfers(op, ins, outs))


@kernel(Slice, accepts=knows(1, 2, 3, 4), by_types=True)
def slice_axes(op: Slice, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move; negative steps are negative strides."""
    return carried(slice_transfers(op, ins, outs))


@kernel(Expand, accepts=has_fixed_size, by_types=True)
def expand(op: Expand, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return carried(expand_transfers(op, ins, outs))


@kernel(Tile, accepts=knows(1), by_types=True)
def tile(op: Tile, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return carried(tile_transfers(op, ins, outs))


@kernel(ConstantOfShape, accepts=lambda op, ins: op.dtype != STRING)
def constant_of_shape(op: ConstantOfShape, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return carried(fill(np.full(1, op.value, dtype=op.dtype), outs[0].dims, op.dtype.itemsize))


@kernel(Range, accepts=lambda op, ins: all(t is not None and t.known is not None for t in ins))
def arange(op: Range, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the numbers, computed when planning."""
    numbers = _numbers(op, typed(ins).dtype, *(t.known.item() for t in ins if t is not None))  # type: ignore[union-attr]
    return carried([Transfer(whole(outs[0].nbytes), numbers, Out(0))])


@pure
def _numbers(op: Range, dtype: AnyDType, *bounds: int | float) -> Array:
    return np.ascontiguousarray(op.reference(*(np.array(n, dtype) for n in bounds)))


@kernel(EyeLike, accepts=has_fixed_size)
def eye_like(op: EyeLike, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the matrix, computed when planning."""
    x = typed(ins)
    return carried(stored(op.reference(np.broadcast_to(np.zeros((), x.dtype), x.dims))))


@kernel(Pad, accepts=knows(1, 3), by_types=True)
def pad(op: Pad, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Constant: a move of what is kept and fills around it; other modes: tables of source indices."""
    if op.mode == "constant":
        return carried(pad_transfers(op, ins, outs))
    x = typed(ins)
    return table_gather_steps(x.dims, pad_tables(op, ins), x.dtype.itemsize)


# --------------------------------------------------------------------------------------------------------------- trilu


@native(
    x=PTR, y=PTR, k=PTR, rows=I64, height=I64, row_bytes=I64, unit=I64, upper=I64,
    extents=lambda a: {"x": a.rows * a.row_bytes, "y": a.rows * a.row_bytes, "k": 8},
)  # fmt: skip
def triangle(p: Any, tid: int, nthreads: int) -> None:
    """Rows with a zeroed part; ``k`` holds the diagonal, of which those beyond the corners are like the corners'."""
    lo, hi = split(p.rows, tid, nthreads)
    height, unit, nbytes, upper = p.height, p.unit, p.row_bytes, p.upper
    k = min(max(load_i64(p.k), -height), nbytes // unit)
    for at in range(lo, hi):
        x, y = p.x + at * nbytes, p.y + at * nbytes
        column = at % height + k + (0 if upper else 1)  # where the zeros end (upper) or begin (lower)
        edge = min(max(column, 0) * unit, nbytes)
        if upper:
            fill_bytes(y, np.uint8(0), edge)
            copy_bytes(y + edge, x + edge, nbytes - edge)
        else:
            copy_bytes(y, x, edge)
            fill_bytes(y + edge, np.uint8(0), nbytes - edge)


def _triangular(op: Any, ins: Types) -> bool:
    return has_fixed_size(op, ins) and (len(ins) < 2 or ins[1] is None or ins[1].dtype.itemsize == 8)


@kernel(Trilu, accepts=_triangular, by_types=True)
def trilu(op: Trilu, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x = typed(ins)
    if not x.size:
        return []
    height, width = x.dims[-2:]
    given = len(ins) > 1 and ins[1] is not None
    args: dict[str, Argument] = {
        "x": In(0),
        "y": Out(0),
        "k": In(1) if given else np.zeros(1, np.int64),
        "rows": x.size // width,
        "height": height,
        "row_bytes": width * x.dtype.itemsize,
        "unit": x.dtype.itemsize,
        "upper": int(op.upper),
    }
    return [Step(triangle, args, x.nbytes >= PARALLEL_BYTES)]
