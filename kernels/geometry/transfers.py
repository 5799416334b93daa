"""Which strided moves carry out an operator: the same for every device, which has kernels for moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import STRING, Array
from bolt_numba.kernels.geometry.strides import (
    Move,
    broadcast_move,
    dense,
    move,
    place_move,
    slice_move,
    tile_move,
    transpose_move,
)
from bolt_numba.kernels.registry import Accepts, In, Out, Outs, Types
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.arrays.gather import Compress, Gather
from bolt_numba.ops.arrays.shape import Concat, DepthToSpace, SpaceToDepth, Split
from bolt_numba.ops.arrays.slicing import Pad, Slice, slice_bounds
from bolt_numba.ops.content import want_index
from bolt_numba.ops.registry import Op, normalise_axis


@record(frozen=True, eq=False)
class Transfer:
    """A move from an operand, or an array of the plan, to a result."""

    move: Move
    src: In | Array
    dst: Out


def has_fixed_size(op: Op, ins: Types) -> bool:
    """The elements of the first operand are plain bytes."""
    return ins[0].dtype != STRING


def plan_ints(ins: Types, index: int, default: Sequence[int]) -> list[int]:
    """Content of a plan-time operand, or the default when it is omitted."""
    given = ins[index] if index < len(ins) else None
    if given is None:
        return list(default)
    return content(given.known).reshape(-1).tolist()  # type: ignore[no-any-return]


def knows(*indices: int) -> Accepts:
    """Predicate: elements of fixed size, and the operands at ``indices`` omitted or known when planning."""

    def accepts(op: Op, ins: Types) -> bool:
        fine = (t is None or i not in indices or t.known is not None for i, t in enumerate(ins))
        return has_fixed_size(op, ins) and all(fine)

    return accepts


def whole(nbytes: int) -> Move:
    """All bytes as they are."""
    return move((nbytes,), (1,), (1,), 1)


def stored(array: Array) -> list[Transfer]:
    """A copy of what was computed when planning."""
    return [Transfer(whole(array.nbytes), np.ascontiguousarray(array), Out(0))]


def fill(value: In | Array, shape: Sequence[int], unit: int) -> list[Transfer]:
    """Fill Out(0) with the first element of ``value``."""
    return [Transfer(broadcast_move((), shape, unit), value, Out(0))]


def concat_transfers(op: Concat, ins: Types, outs: Outs) -> list[Transfer]:
    """One for each operand."""
    dims = outs[0].dims
    axis = normalise_axis(op, op.axis, len(dims))
    made, at = [], 0
    for i in range(len(ins)):
        t = ins[i]
        made.append(Transfer(place_move(t.dims, axis, at, dims[axis], t.dtype.itemsize), In(i), Out(0)))
        at += t.dims[axis]
    return made


def split_transfers(op: Split, ins: Types, outs: Outs) -> list[Transfer]:
    """One for each part."""
    x = ins[0]
    axis = normalise_axis(op, op.axis, len(x.dims))
    made, at = [], 0
    for i, t in enumerate(outs):
        starts = [at if a == axis else 0 for a in range(len(x.dims))]
        part = slice_move(x.dims, starts, [1] * len(starts), t.dims, x.dtype.itemsize)
        made.append(Transfer(part, In(0), Out(i)))
        at += t.dims[axis]
    return made


def slice_transfers(op: Slice, ins: Types, outs: Outs) -> list[Transfer]:
    """Negative steps are negative strides."""
    x = ins[0]
    starts, ends = plan_ints(ins, 1, ()), plan_ints(ins, 2, ())
    axes, by = plan_ints(ins, 3, range(len(starts))), plan_ints(ins, 4, [1] * len(starts))
    first, step = [0] * len(x.dims), [1] * len(x.dims)
    for a, start, end, k in zip(axes, starts, ends, by, strict=True):
        axis = normalise_axis(op, a, len(x.dims))
        first[axis], step[axis] = slice_bounds(x.dims[axis], start, end, k)[0], k
    return [Transfer(slice_move(x.dims, first, step, outs[0].dims, x.dtype.itemsize), In(0), Out(0))]


def expand_transfers(op: Op, ins: Types, outs: Outs) -> list[Transfer]:
    x = ins[0]
    return [Transfer(broadcast_move(x.dims, outs[0].dims, x.dtype.itemsize), In(0), Out(0))]


def tile_transfers(op: Op, ins: Types, outs: Outs) -> list[Transfer]:
    x = ins[0]
    return [Transfer(tile_move(x.dims, plan_ints(ins, 1, ()), x.dtype.itemsize), In(0), Out(0))]


def transpose_transfers(op: Op, ins: Types, outs: Outs) -> list[Transfer]:
    """Of Transpose, DepthToSpace and SpaceToDepth.  Source: ONNX DepthToSpace-13, SpaceToDepth-13."""
    x = ins[0]
    box, perm = x.dims, getattr(op, "perm", ())
    if isinstance(op, (DepthToSpace, SpaceToDepth)):
        (n, c, h, w), b = x.dims, op.blocksize
        if isinstance(op, SpaceToDepth):
            box, perm = (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4)
        elif op.mode == "DCR":
            box, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
        else:
            box, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    return [Transfer(transpose_move(box, perm, x.dtype.itemsize), In(0), Out(0))]


# ----------------------------------------------------------------------------------------------------------------- pad


def pad_widths(op: Pad, ins: Types) -> tuple[list[int], list[int]]:
    """Elements added at the begin and at the end of every axis of x; negative ones are cut off."""
    rank = len(ins[0].dims)
    pads, axes = plan_ints(ins, 1, ()), plan_ints(ins, 3, range(rank))
    begins, ends = [0] * rank, [0] * rank
    for i, a in enumerate(axes):
        axis = normalise_axis(op, a, rank)
        begins[axis], ends[axis] = pads[i], pads[len(axes) + i]
    return begins, ends


def pad_tables(op: Pad, ins: Types) -> list[Array]:
    """Source indices of each axis, for modes other than constant."""
    tables = []
    for size, begin, end in zip(ins[0].dims, *pad_widths(op, ins), strict=True):
        kept = np.arange(max(-begin, 0), size - max(-end, 0), dtype=np.int64)
        added = (max(begin, 0), max(end, 0))
        tables.append(np.pad(kept, added, mode=op.mode) if any(added) else kept)  # type: ignore[call-overload]
    return tables


def pad_transfers(op: Pad, ins: Types, outs: Outs) -> list[Transfer]:
    """Of mode constant: fills around, and a move of what is kept."""
    x, out = ins[0], outs[0]
    begins, _ = pad_widths(op, ins)
    unit, strides = x.dtype.itemsize, dense(out.dims, x.dtype.itemsize)
    if not out.size:
        return []
    first = [min(max(b, 0), n) for b, n in zip(begins, out.dims, strict=True)]
    start = [max(-b, 0) for b in begins]
    kept = [max(min(d - s, n - f), 0) for d, s, n, f in zip(x.dims, start, out.dims, first, strict=True)]
    value: In | Array = In(2) if len(ins) > 2 and ins[2] is not None else np.zeros(1, x.dtype)
    made, box = [], list(out.dims)
    corner = [0] * len(box)
    for axis, n in enumerate(out.dims):
        for low, high in ((0, first[axis]), (first[axis] + kept[axis], n)):
            shape, at = list(box), list(corner)
            shape[axis], at[axis] = high - low, low
            made.append(Transfer(move(shape, [0] * len(shape), strides, unit, 0, _offset(at, strides)), value, Out(0)))
        box[axis], corner[axis] = kept[axis], first[axis]
    source = dense(x.dims, unit)
    inside = move(kept, source, strides, unit, _offset(start, source), _offset(first, strides))
    return [*made, Transfer(inside, In(0), Out(0))]


def _offset(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * s for i, s in zip(index, strides, strict=True))


# -------------------------------------------------------------------------------------------------------------- tables


def knows_condition(op: Op, ins: Types) -> bool:
    """Of Compress."""
    return has_fixed_size(op, ins) and ins[1].known is not None


def compress_tables(op: Compress, ins: Types) -> tuple[tuple[int, ...], list[Array]]:
    """Dimensions of x as it is read, and the indices of each axis that a known condition keeps."""
    x, condition = ins[0], ins[1]
    dims = (x.size,) if op.axis is None else x.dims
    axis = 0 if op.axis is None else normalise_axis(op, op.axis, len(dims))
    kept = np.flatnonzero(content(condition.known)[: dims[axis]])
    return dims, [kept if i == axis else np.arange(n) for i, n in enumerate(dims)]


MAX_TABLE = 1 << 16
"""Constant indices up to which a Gather is planned as a table."""


def gather_tables(op: Gather, ins: Types) -> tuple[tuple[int, ...], list[Array]]:
    """Dimensions of x, and the indices of each axis; raises DataError."""
    x, known = ins[0], content(ins[1].known)
    axis = normalise_axis(op, op.axis, len(x.dims))
    want_index(op, "indices", known, x.dims[axis])
    places = known.reshape(-1).astype(np.int64)
    places = np.where(places < 0, places + x.dims[axis], places)
    return x.dims, [places if i == axis else np.arange(n) for i, n in enumerate(x.dims)]
