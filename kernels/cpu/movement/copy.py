"""Operators that join, cut, repeat, surround or fill arrays: plans of strided moves, any rank and element size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import copy_bytes, fill_bytes, load_i64, split
from bolt_numba.kernels.cpu.movement.move import PARALLEL_BYTES, steps
from bolt_numba.kernels.cpu.movement.strides import broadcast_move, dense, move, place_move, slice_move, tile_move
from bolt_numba.kernels.cpu.movement.table_gather import table_gather_steps
from bolt_numba.kernels.cpu.movement.transpose import has_fixed_size, typed
from bolt_numba.kernels.jit import I64, PTR, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.shape import Concat, Expand, Flatten, Identity, Reshape, Split, Squeeze, Tile, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad, Slice, slice_bounds
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import STRING, Array, TensorType


def _ints(ins: Types, index: int, default: Sequence[int]) -> list[int]:
    """Content of a plan-time operand, or the default when it is omitted."""
    given = ins[index] if index < len(ins) else None
    if given is None:
        return list(default)
    assert given.known is not None
    return [int(v) for v in given.known.reshape(-1)]


def _knows(*indices: int) -> Any:
    """Predicate: elements of fixed size, and the operands at ``indices`` omitted or known when planning."""

    def accepts(op: Any, ins: Types) -> bool:
        operands = [ins[i] for i in indices if i < len(ins)]
        return has_fixed_size(op, ins) and all(t is None or t.known is not None for t in operands)

    return accepts


@kernel(Identity, Reshape, Flatten, Squeeze, Unsqueeze, accepts=has_fixed_size)
def copy(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Views are copied only where the planner cannot make them an alias."""
    return steps([move((outs[0].nbytes,), (1,), (1,), 1)], In(0), Out(0))


@kernel(Concat, accepts=has_fixed_size, by_types=True)
def concat(op: Concat, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move per operand."""
    whole = outs[0].dims
    axis = normalise_axis(op, op.axis, len(whole))
    made: list[Step] = []
    at = 0
    for i, t in enumerate(ins):
        assert t is not None
        made += steps([place_move(t.dims, axis, at, whole[axis], t.dtype.itemsize)], In(i), Out(0))
        at += t.dims[axis]
    return made


@kernel(Split, accepts=has_fixed_size, by_types=True)
def split_axis(op: Split, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move per part."""
    x = typed(ins)
    axis = normalise_axis(op, op.axis, len(x.dims))
    made: list[Step] = []
    at = 0
    for i, t in enumerate(outs):
        starts = [at if a == axis else 0 for a in range(len(x.dims))]
        part = slice_move(x.dims, starts, [1] * len(starts), t.dims, x.dtype.itemsize)
        made += steps([part], In(0), Out(i))
        at += t.dims[axis]
    return made


@kernel(Slice, accepts=_knows(1, 2, 3, 4), by_types=True)
def slice_axes(op: Slice, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One move; negative steps are negative strides."""
    x = typed(ins)
    starts, ends = _ints(ins, 1, ()), _ints(ins, 2, ())
    axes, by = _ints(ins, 3, range(len(starts))), _ints(ins, 4, [1] * len(starts))
    first, step = [0] * len(x.dims), [1] * len(x.dims)
    for a, start, end, k in zip(axes, starts, ends, by, strict=True):
        axis = normalise_axis(op, a, len(x.dims))
        first[axis], step[axis] = slice_bounds(x.dims[axis], start, end, k)[0], k
    return steps([slice_move(x.dims, first, step, outs[0].dims, x.dtype.itemsize)], In(0), Out(0))


@kernel(Expand, accepts=has_fixed_size, by_types=True)
def expand(op: Expand, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x = typed(ins)
    return steps([broadcast_move(x.dims, outs[0].dims, x.dtype.itemsize)], In(0), Out(0))


@kernel(Tile, accepts=_knows(1), by_types=True)
def tile(op: Tile, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x = typed(ins)
    return steps([tile_move(x.dims, _ints(ins, 1, ()), x.dtype.itemsize)], In(0), Out(0))


def _fill(value: Argument, shape: Sequence[int], unit: int) -> list[Step]:
    """Fill Out(0) with the first element of ``value``."""
    return steps([broadcast_move((), shape, unit)], value, Out(0))  # type: ignore[arg-type]


@kernel(ConstantOfShape, accepts=lambda op, ins: op.dtype != STRING)
def constant_of_shape(op: ConstantOfShape, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return _fill(np.full(1, op.value, dtype=op.dtype), outs[0].dims, op.dtype.itemsize)


@kernel(Range, accepts=lambda op, ins: all(t is not None and t.known is not None for t in ins))
def arange(op: Range, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the numbers, computed when planning."""
    return _stored(op.reference(*(t.known for t in ins if t is not None)))  # type: ignore[arg-type]


@kernel(EyeLike, accepts=has_fixed_size)
def eye_like(op: EyeLike, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the matrix, computed when planning."""
    x = typed(ins)
    return _stored(op.reference(np.broadcast_to(np.zeros((), x.dtype), x.dims)))


def _stored(array: Array) -> list[Step]:
    return steps([move((array.nbytes,), (1,), (1,), 1)], np.ascontiguousarray(array), Out(0))


# ----------------------------------------------------------------------------------------------------------------- pad


def _pad_widths(op: Pad, ins: Types) -> tuple[list[int], list[int]]:
    """Elements added at the begin and at the end of every axis of x; negative ones are cut off."""
    rank = len(typed(ins).dims)
    pads, axes = _ints(ins, 1, ()), _ints(ins, 3, range(rank))
    begins, ends = [0] * rank, [0] * rank
    for i, a in enumerate(axes):
        axis = normalise_axis(op, a, rank)
        begins[axis], ends[axis] = pads[i], pads[len(axes) + i]
    return begins, ends


@kernel(Pad, accepts=_knows(1, 3), by_types=True)
def pad(op: Pad, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Constant: a move of what is kept and fills around it; other modes: tables of source indices."""
    x = typed(ins)
    begins, ends = _pad_widths(op, ins)
    if op.mode == "constant":
        return _pad_constant(x, begins, outs[0], In(2) if len(ins) > 2 and ins[2] is not None else None)
    tables = []
    for size, begin, end in zip(x.dims, begins, ends, strict=True):
        kept = np.arange(max(-begin, 0), size - max(-end, 0), dtype=np.int64)
        added = (max(begin, 0), max(end, 0))
        tables.append(np.pad(kept, added, mode=op.mode) if any(added) else kept)  # type: ignore[call-overload]
    return table_gather_steps(x.dims, tables, x.dtype.itemsize)


def _pad_constant(x: TensorType, begins: Sequence[int], out: TensorType, value: In | None) -> list[Step]:
    unit, strides = x.dtype.itemsize, dense(out.dims, x.dtype.itemsize)
    if not out.size:
        return []
    first = [min(max(b, 0), n) for b, n in zip(begins, out.dims, strict=True)]
    start = [max(-b, 0) for b in begins]
    kept = [max(min(d - s, n - f), 0) for d, s, n, f in zip(x.dims, start, out.dims, first, strict=True)]
    fills, box = [], list(out.dims)
    corner = [0] * len(box)
    for axis, n in enumerate(out.dims):
        for low, high in ((0, first[axis]), (first[axis] + kept[axis], n)):
            shape, at = list(box), list(corner)
            shape[axis], at[axis] = high - low, low
            fills.append(move(shape, [0] * len(shape), strides, unit, 0, _offset(at, strides)))
        box[axis], corner[axis] = kept[axis], first[axis]
    source = dense(x.dims, unit)
    inside = move(kept, source, strides, unit, _offset(start, source), _offset(first, strides))
    constant: In | Array = np.zeros(1, x.dtype) if value is None else value
    return steps(fills, constant, Out(0)) + steps([inside], In(0), Out(0))


def _offset(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * s for i, s in zip(index, strides, strict=True))


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
