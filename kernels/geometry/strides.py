"""Plan-time geometry of data movement: strided moves, collapsed to the fewest axes.  No kernels, nothing runs here.

Every regular data movement (transpose, slice, concat, expand, tile, ...) is one or several moves
``dst[dst_offset + sum(i * dst)] = src[src_offset + sum(i * src)]`` over a box of indices; strides are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bolt_numba.base.records import record


@record(frozen=True)
class Axis:
    """One axis of a move: how many indices, and the bytes from one to the next on both sides."""

    size: int
    src: int
    dst: int


@record(frozen=True)
class Move:
    """A box of elements of ``unit`` bytes; axes from the outermost in."""

    axes: tuple[Axis, ...]
    unit: int
    src_offset: int = 0
    dst_offset: int = 0

    @property
    def nbytes(self) -> int:
        return self.unit * math.prod(a.size for a in self.axes)


def dense(shape: Sequence[int], unit: int) -> tuple[int, ...]:
    """Byte strides of a row-major array."""
    strides = [unit] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def move(
    shape: Sequence[int], src: Sequence[int], dst: Sequence[int], unit: int, src_offset: int = 0, dst_offset: int = 0
) -> Move:
    """A collapsed move.

    Axes come in the order of the destination, so writes go forward; neighbours that are one axis on both sides are
    merged; an innermost axis that is contiguous on both sides becomes part of the unit, so ``unit`` is the largest run
    of bytes that moves as one.
    """
    axes = [Axis(n, s, d) for n, s, d in zip(shape, src, dst, strict=True) if n != 1]
    axes.sort(key=lambda a: (-abs(a.dst), -abs(a.src)))
    merged: list[Axis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if last is not None and last.src == axis.src * axis.size and last.dst == axis.dst * axis.size:
            merged[-1] = Axis(last.size * axis.size, axis.src, axis.dst)
        else:
            merged.append(axis)
    while merged and merged[-1].src == unit and merged[-1].dst == unit:
        unit *= merged.pop().size
    return Move(tuple(merged), unit, src_offset, dst_offset)


def transpose_move(shape: Sequence[int], perm: Sequence[int], unit: int) -> Move:
    """Move of ``transpose(x, perm)`` for a dense ``x`` of ``shape``."""
    out = [shape[p] for p in perm]
    strides = dense(shape, unit)
    return move(out, [strides[p] for p in perm], dense(out, unit), unit)


def broadcast_move(shape: Sequence[int], out: Sequence[int], unit: int) -> Move:
    """Move of ``broadcast_to(x, out)``: repeated axes have source stride 0."""
    lead = len(out) - len(shape)
    strides = [0 if n == 1 else s for n, s in zip(shape, dense(shape, unit), strict=True)]
    return move(out, [0] * lead + strides, dense(out, unit), unit)


def tile_move(shape: Sequence[int], repeats: Sequence[int], unit: int) -> Move:
    """Move of ``tile(x, repeats)``: every axis becomes (repeat, axis), the repeat with source stride 0."""
    box = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    strides = dense(shape, unit)
    src = [s for stride in strides for s in (0, stride)]
    return move(box, src, dense(box, unit), unit)


def slice_move(
    shape: Sequence[int], starts: Sequence[int], steps: Sequence[int], out: Sequence[int], unit: int
) -> Move:
    """Move of ``x[starts[0]::steps[0], ...]`` cut to ``out``; steps may be negative."""
    strides = dense(shape, unit)
    offset = sum(a * s for a, s in zip(starts, strides, strict=True))
    return move(out, [s * k for s, k in zip(strides, steps, strict=True)], dense(out, unit), unit, offset)


def place_move(shape: Sequence[int], axis: int, start: int, whole: int, unit: int) -> Move:
    """Move of a dense array of ``shape`` into ``[start, start + n)`` of an axis of length ``whole``."""
    target = [whole if i == axis else n for i, n in enumerate(shape)]
    strides = dense(target, unit)
    return move(shape, dense(shape, unit), strides, unit, 0, start * strides[axis])
