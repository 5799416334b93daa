"""Readers of operators that take parts, add margins, turn around or block axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import I64, Array, Dim
from bolt_numba.converters.builder import END, Ints, ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, by_parts, stored
from bolt_numba.converters.tflite.reading.shapes import part_of, times
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Reshape, Transpose
from bolt_numba.ops.arrays.slicing import Pad, ReverseSequence, Slice
from bolt_numba.ops.pointwise import Add, And, Equal, GreaterOrEqual, Less, Where

BEGIN = -END - 1
"""Before the first element of any axis."""


@TFLITE.reader("SLICE")
@stored
def slice_(b: TfliteBuilder, x: Value, begin: Value, size: Value) -> Value:
    """A size of -1 means all that is left."""
    starts, lengths = as_i64(b, begin), as_i64(b, size)
    ends = b(Add(), starts, lengths)
    if lengths.type.value is None:
        ends = b(Where(), b(Less(), lengths, 0), b.const(ints([END])), ends)
    else:
        rest = np.array([isinstance(v, (int, np.integer)) and v < 0 for v in lengths.type.value.reshape(-1)])
        ends = b(Where(), b.const(rest), b.const(ints([END])), ends) if rest.any() else ends
    return b(Slice(), x, starts, ends)


@record(frozen=True)
class Masks:
    """Bits of a strided slice, by places in its operands."""

    begin: int
    end: int
    ellipsis: int
    new_axis: int
    shrink_axis: int

    def has(self, what: str, place: int) -> bool:
        """Whether a bit is set; only the first ellipsis counts."""
        return bool(getattr(self, what) >> place & 1)


def _places(b: TfliteBuilder, masks: Masks, count: int, rank: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Places in the operands that cut an axis, these axes, axes of x to take away, and axes to put in after that."""
    used = sum(not masks.has("new_axis", i) and not masks.has("ellipsis", i) for i in range(count))
    b.invalid_if(used > rank, "number of axes", used, f"at most {rank}")
    places, axes, gone, new = [], [], [], []
    axis = out = 0
    seen = False
    for i in range(count):
        if masks.has("ellipsis", i) and not seen:
            seen = True
            axis, out = axis + rank - used, out + rank - used
        elif masks.has("new_axis", i):
            new.append(out)
            out += 1
        else:
            places.append(i)
            axes.append(axis)
            if masks.has("shrink_axis", i):
                gone.append(axis)
            else:
                out += 1
            axis += 1
    return places, axes, gone, new


def _bounds(
    masks: Masks, places: Sequence[int], dims: Sequence[Dim], begin: Array, end: Array, step: Array, offset: bool
) -> Any:
    """Starts, ends and steps of the axes that are cut, all numbers.

    A start before the first element leaves nothing to walk back from; ONNX would begin with the first element.
    """
    starts, ends, steps = [], [], []
    for i, dim in zip(places, dims, strict=True):
        first, last, by = int(begin[i]), int(end[i]), int(step[i])
        if masks.has("shrink_axis", i):
            if masks.has("begin", i):
                first = 0 if by > 0 else -1
            last, by = first + 1 or END, 1
        else:
            if offset:
                last = first + last if first >= 0 or first + last < 0 else END
            if masks.has("end", i):
                last = END if by > 0 else BEGIN
            if masks.has("begin", i):
                first = 0 if by > 0 else END
            elif by < 0 and isinstance(dim, int) and first < -dim:
                first, last = 0, END
        starts.append(first)
        ends.append(last)
        steps.append(by)
    return ints(starts), ints(ends), ints(steps)


def _bounds_at_run_time(
    b: TfliteBuilder, masks: Masks, places: Sequence[int], begin: Value, end: Value, steps: Array, offset: bool
) -> Any:
    """`_bounds` of operands that only the run tells; the steps are known."""

    def bits(what: str) -> Any:
        return b.const(np.array([masks.has(what, i) for i in places]))

    first, last = (b(Gather(), as_i64(b, v), ints(places)) for v in (begin, end))
    asked = steps[list(places)]
    by = np.where([masks.has("shrink_axis", i) for i in places], 1, asked)
    if offset:
        total = b(Add(), first, last)
        wraps = b(And(), b(Less(), first, 0), b(GreaterOrEqual(), total, 0))
        last = b(Where(), wraps, b.const(ints([END])), total)
    if any(masks.has("end", i) for i in places):
        last = b(Where(), bits("end"), b.const(np.where(by > 0, END, BEGIN)), last)
    if any(masks.has("begin", i) for i in places):
        ends = [-1 if masks.has("shrink_axis", i) else END for i in places]
        first = b(Where(), bits("begin"), b.const(np.where(asked > 0, 0, np.array(ends, np.int64))), first)
    if any(masks.has("shrink_axis", i) for i in places):
        one = b(Add(), first, 1)
        one = b(Where(), b(Equal(), first, -1), b.const(ints([END])), one)
        last = b(Where(), bits("shrink_axis"), one, last)
    return first, last, by


@TFLITE.reader("STRIDED_SLICE")
@stored
def strided_slice(
    b: TfliteBuilder,
    x: Value,
    begin: Value,
    end: Value,
    strides: Value,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    offset: bool = False,
) -> Value:
    """As NumPy's indexing by a tuple of slices, numbers, ellipsis and new axes."""
    masks = Masks(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    steps = np.array(b.known_ints(strides, "strides"), I64)
    for what, operand in (("begin", begin), ("end", end)):
        if b.static_dim(operand, 0) != len(steps):
            raise b.invalid(f"length of {what}", b.static_dim(operand, 0), f"{len(steps)}, that of strides")
    places, axes, gone, new = _places(b, masks, len(steps), b.rank_of(x))
    first, last = begin.type.known, end.type.known
    if first is not None and last is not None:
        dims = [(x.type.shape or ())[axis] for axis in axes]
        bounds = _bounds(masks, places, dims, first, last, steps, offset)
    else:
        bounds = _bounds_at_run_time(b, masks, places, begin, end, steps, offset)
    if places:
        x = b(Slice(), x, bounds[0], bounds[1], ints(axes), bounds[2])
    return b.unsqueezed(b.squeezed(x, *gone), *new) if new else b.squeezed(x, *gone)


def _pads(b: TfliteBuilder, paddings: Value) -> Any:
    """[rank, 2] begins and ends beside each other -> [2 rank], begins before ends."""
    if paddings.type.known is not None:
        return ints(int(v) for v in paddings.type.known.T.reshape(-1))
    return b(Reshape(), b(Transpose((1, 0)), as_i64(b, paddings)), ints([-1]))


@TFLITE.reader("PAD")
@by_parts
def pad(b: TfliteBuilder, x: Value, paddings: Value) -> Value:
    return b(Pad(), x, _pads(b, paddings))


TFLITE.reader("PADV2")(lambda b, x, paddings, value: b(Pad(), x, _pads(b, paddings), value))


@TFLITE.reader("MIRROR_PAD")
@stored
def mirror_pad(b: TfliteBuilder, x: Value, paddings: Value, *, mode: str = "REFLECT") -> Value:
    """REFLECT leaves out the edge, SYMMETRIC repeats it."""
    if mode == "REFLECT":
        return b(Pad("reflect"), x, _pads(b, paddings))
    widths = np.reshape(b.known_ints(paddings, "paddings"), (-1, 2))
    for axis, (before, after) in enumerate(widths.tolist()):
        parts = [x]
        if before:
            parts.insert(0, b.sliced(x, axis, before - 1, BEGIN, -1))
        if after:
            parts.append(b.sliced(x, axis, END, -after - 1, -1))
        x = b(Concat(axis), *parts) if len(parts) > 1 else x
    return x


@TFLITE.reader("REVERSE_V2")
@stored
def reverse_v2(b: TfliteBuilder, x: Value, axes: Value) -> Value:
    turned = b.known_ints(axes, "axes")
    count = len(turned)
    return b(Slice(), x, ints([END] * count), ints([BEGIN] * count), ints(turned), ints([-1] * count)) if count else x


@TFLITE.reader("REVERSE_SEQUENCE")
@stored
def reverse_sequence(b: TfliteBuilder, x: Value, lengths: Value, *, seq_dim: int = 0, batch_dim: int = 0) -> Value:
    rank = b.rank_of(x)
    time, batch = seq_dim % rank, batch_dim % rank
    if {time, batch} == {0, 1}:
        return b(ReverseSequence(batch, time), x, as_i64(b, lengths))
    order = [batch, time, *(a for a in range(rank) if a not in (batch, time))]
    made = b(ReverseSequence(0, 1), b(Transpose(tuple(order)), x), as_i64(b, lengths))
    return b(Transpose(tuple(int(i) for i in np.argsort(order))), made)


@TFLITE.reader("DEPTH_TO_SPACE")
@stored
def depth_to_space(b: TfliteBuilder, x: Value, *, block_size: int = 0) -> Value:
    """[n, h, w, k k c] -> [n, h k, w k, c]."""
    n, h, w = b.sizes_of(x, range(3))
    k = block_size
    depth = b.static_dim(x, 3)
    b.invalid_if(k < 1 or depth % (k * k), "channels of x", depth, f"a multiple of {k} * {k}")
    parts = b(Transpose((0, 1, 3, 2, 4, 5)), b.reshaped(x, [n, h, w, k, k, depth // (k * k)]))
    return b.reshaped(parts, [n, times(b, h, k), times(b, w, k), depth // (k * k)])


@TFLITE.reader("SPACE_TO_DEPTH")
@stored
def space_to_depth(b: TfliteBuilder, x: Value, *, block_size: int = 0) -> Value:
    """[n, h k, w k, c] -> [n, h, w, k k c]."""
    n, h, w = b.sizes_of(x, range(3))
    k, c = block_size, b.static_dim(x, 3)
    rows, columns = (part_of(b, d, k, "height and width of x") for d in (h, w))
    parts = b(Transpose((0, 1, 3, 2, 4, 5)), b.reshaped(x, [n, rows, k, columns, k, c]))
    return b.reshaped(parts, [n, rows, columns, k * k * c])


def _blocks(b: TfliteBuilder, x: Value, shape: Value, other: Value) -> tuple[Ints, Array]:
    """Lengths of blocks and pads or crops [m, 2] of the axes after the first."""
    blocks = b.known_ints(shape, "block_shape")
    around = b.known_ints(other, "paddings or crops")
    if len(around) != 2 * len(blocks) or len(blocks) >= b.rank_of(x) or any(k < 1 for k in blocks):
        raise b.invalid(
            "block_shape and pads", (blocks, around), f"one and two numbers for less than {b.rank_of(x)} axes"
        )
    return blocks, np.reshape(around, (-1, 2))


@TFLITE.reader("SPACE_TO_BATCH_ND")
def space_to_batch_nd(b: TfliteBuilder, x: Value, block_shape: Value, paddings: Value) -> Value:
    """[n, s k..., rest] -> [k... n, s..., rest], after x was padded with zeros."""
    blocks, pads = _blocks(b, x, block_shape, paddings)
    count, rank = len(blocks), b.rank_of(x)
    if pads.any():
        x = b(Pad(), x, ints(pads.T.reshape(-1)), None, ints(range(1, count + 1)))
    sizes = b.sizes_of(x, range(rank))
    parts = [part_of(b, sizes[i + 1], k, f"padded dimension {i + 1} of x") for i, k in enumerate(blocks)]
    split = [sizes[0], *(s for i, k in enumerate(blocks) for s in (parts[i], k)), *sizes[count + 1 :]]
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, rank + count)]
    batch = times(b, sizes[0], int(np.prod(blocks)))
    return b.reshaped(b(Transpose(tuple(order)), b.reshaped(x, split)), [batch, *parts, *sizes[count + 1 :]])


@TFLITE.reader("BATCH_TO_SPACE_ND")
@stored
def batch_to_space_nd(b: TfliteBuilder, x: Value, block_shape: Value, crops: Value) -> Value:
    """[k... n, s..., rest] -> [n, s k..., rest], less what is cropped."""
    blocks, cut = _blocks(b, x, block_shape, crops)
    count, rank = len(blocks), b.rank_of(x)
    sizes = b.sizes_of(x, range(rank))
    batch = part_of(b, sizes[0], int(np.prod(blocks)), "first dimension of x")
    order = [count, *(a for i in range(count) for a in (count + 1 + i, i)), *range(2 * count + 1, rank + count)]
    wide = b(Transpose(tuple(order)), b.reshaped(x, [*blocks, batch, *sizes[1:]]))
    spatial = [times(b, sizes[i + 1], k) for i, k in enumerate(blocks)]
    made = b.reshaped(wide, [batch, *spatial, *sizes[count + 1 :]])
    if not cut.any():
        return made
    ends = [-int(after) if after else END for after in cut[:, 1]]
    return b(Slice(), made, ints(cut[:, 0]), ints(ends), ints(range(1, count + 1)))
