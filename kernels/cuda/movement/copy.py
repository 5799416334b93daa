"""Operators that join, cut, turn, repeat, surround or fill arrays: strided moves of any rank and element size."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, load_i64
from bolt_numba.kernels.cuda.movement.index import MOST
from bolt_numba.kernels.cuda.movement.moves import THREADS, carried
from bolt_numba.kernels.cuda.movement.table_gather import table_gather_steps
from bolt_numba.kernels.geometry import transfers as plans
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, knows, typed
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import Compress
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.shape import (
    Concat,
    DepthToSpace,
    Expand,
    Flatten,
    Identity,
    Reshape,
    SpaceToDepth,
    Split,
    Squeeze,
    Tile,
    Transpose,
    Unsqueeze,
)
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.types import BOOL, STRING, TensorType


@kernel(Identity, Reshape, Flatten, Squeeze, Unsqueeze, device="cuda", accepts=has_fixed_size)
def copy(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Views are copied only where the planner cannot make them an alias."""
    return carried([Transfer(plans.whole(outs[0].nbytes), In(0), Out(0))])


def _keeps_bits(op: Any, ins: Types) -> bool:
    """Not to bool, which has bits that are none."""
    return has_fixed_size(op, ins) and op.to != BOOL


@kernel(BitCast, device="cuda", accepts=_keeps_bits, inplace=(0,))
def bit_cast(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy, or nothing where the result takes over the operand's memory."""
    return copy(op, ins, outs, context)


@kernel(Transpose, DepthToSpace, SpaceToDepth, device="cuda", accepts=has_fixed_size, by_types=True)
def transpose(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """By tiles in shared memory where neighbours come apart, else by runs."""
    return carried(plans.transpose_transfers(op, ins, outs))


@kernel(Concat, device="cuda", accepts=has_fixed_size, by_types=True)
def concat(op: Concat, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move per operand."""
    return carried(plans.concat_transfers(op, ins, outs))


@kernel(Split, device="cuda", accepts=has_fixed_size, by_types=True)
def split_axis(op: Split, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move per part."""
    return carried(plans.split_transfers(op, ins, outs))


@kernel(Slice, device="cuda", accepts=knows(1, 2, 3, 4), by_types=True)
def slice_axes(op: Slice, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move; negative steps are negative strides."""
    return carried(plans.slice_transfers(op, ins, outs))


@kernel(Expand, device="cuda", accepts=has_fixed_size, by_types=True)
def expand(op: Expand, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return carried(plans.expand_transfers(op, ins, outs))


@kernel(Tile, device="cuda", accepts=knows(1), by_types=True)
def tile(op: Tile, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return carried(plans.tile_transfers(op, ins, outs))


@kernel(ConstantOfShape, device="cuda", accepts=lambda op, ins: op.dtype != STRING)
def constant_of_shape(op: ConstantOfShape, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return carried(plans.fill(np.full(1, op.value, dtype=op.dtype), outs[0].dims, op.dtype.itemsize))


@kernel(Range, device="cuda", accepts=lambda op, ins: all(t is not None and t.known is not None for t in ins))
def arange(op: Range, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the numbers, computed when planning."""
    return carried(plans.stored(op.reference(*(t.known for t in ins if t is not None))))  # type: ignore[arg-type]


@kernel(EyeLike, device="cuda", accepts=has_fixed_size)
def eye_like(op: EyeLike, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the matrix, computed when planning."""
    x = typed(ins)
    return carried(plans.stored(op.reference(np.broadcast_to(np.zeros((), x.dtype), x.dims))))


@kernel(Pad, device="cuda", accepts=knows(1, 3), by_types=True)
def pad(op: Pad, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Constant: a move of what is kept and fills around it; other modes: tables of source indices."""
    if op.mode == "constant":
        return carried(plans.pad_transfers(op, ins, outs))
    x = typed(ins)
    return table_gather_steps(x.dims, plans.pad_tables(op, ins), x.dtype.itemsize)


@kernel(Compress, device="cuda", accepts=plans.knows_condition)
def compress_known(op: Compress, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """What is kept as a table."""
    return table_gather_steps(*plans.compress_tables(op, ins), typed(ins).dtype.itemsize)


# --------------------------------------------------------------------------------------------------------------- trilu


@cache
def triangle(unit: int) -> CudaKernel:
    """Kernel of Trilu for elements of ``unit`` bytes: x, y [.., height, width]; k: [1] i64, the diagonal."""
    load, store = getattr(lang, f"load_u{8 * unit}"), getattr(lang, f"store_u{8 * unit}")
    numbers: dict[str, Any] = dict.fromkeys(("count", "height", "width", "mw", "hw", "mh", "hh", "upper"), I64)

    @cuda_kernel(
        threads=THREADS, blocks=lambda a: ceil_div(a.count, THREADS), x=PTR, y=PTR, k=PTR, **numbers,
        extents=lambda a: {"x": unit * a.count, "y": unit * a.count, "k": 8},
    )  # fmt: skip
    def keep_triangle(x, y, k, count, height, width, mw, hw, mh, hh, upper):
        at = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if at < count:
            line = fast_divide(at, mw, hw)
            column = np.int64(np.uint32(at - line * np.uint32(width)))
            row = np.int64(np.uint32(line - fast_divide(line, mh, hh) * np.uint32(height)))
            # A diagonal beyond the corners is like the corners'.
            edge = row + min(max(load_i64(k), -height), width)
            if (column >= edge) if upper else (column <= edge):
                store(y + unit * np.int64(at), load(x + unit * np.int64(at)))
            else:
                store(y + unit * np.int64(at), 0)

    return keep_triangle


def _triangular(op: Any, ins: Types) -> bool:
    x = ins[0]
    if x is None or not has_fixed_size(op, ins) or not x.is_static or x.size > MOST or x.dtype.itemsize > 8:
        return False
    return len(ins) < 2 or ins[1] is None or ins[1].dtype.itemsize == 8


@kernel(Trilu, device="cuda", accepts=_triangular, by_types=True)
def trilu(op: Trilu, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A thread for each element."""
    x = typed(ins)
    if not x.size:
        return []
    (height, width), given = x.dims[-2:], len(ins) > 1 and ins[1] is not None
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "k": In(1) if given else np.zeros(1, np.int64)}
    args |= {"count": x.size, "height": height, "width": width, "upper": int(op.upper)}
    args["mw"], args["hw"] = divider(width)
    args["mh"], args["hh"] = divider(height)
    return [Step(triangle(x.dtype.itemsize), args)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    return [triangle(4)]
