"""Readers of pads, of rolls and flips, and of what moves data between channels and space."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.types import I64
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import END, Ints, constant, ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, DepthToSpace, Shape, SpaceToDepth
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.pointwise import Add, Div, Mod, Sub

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}


def padded(b: PaddleBuilder, x: Value, pads: Value, mode: str, value: Any = None) -> Value:
    """X with pads (begins, then ends) around all of its axes."""
    b.invalid_if(mode not in _MODES, "mode", repr(mode), f"one of {sorted(_MODES)}")
    fill = None
    if mode == "constant" and value is not None and value != 0:
        fill = b.to(b.as_scalar(value), x.type.dtype) if isinstance(value, Value) else value
    return b(Pad(_MODES[mode]), x, pads, fill)


@PADDLE.reader("pad")
def pad(b: PaddleBuilder, x: Value, pad_value: Value, *, paddings: Ints, pad_from_left_axis: bool = True) -> Value:
    """paddings: before and after each axis."""
    fill = b.number(pad_value, x.type.dtype)
    pads = list(paddings)
    if not pad_from_left_axis:
        pads = [p for pair in zip(pads[-2::-2], pads[::-2], strict=True) for p in pair]
    return padded(b, x, b.const(ints([*pads[::2], *pads[1::2]])), "constant", fill)


def _spatial_pad(*order: int) -> Any:
    """A reader of a pad along spatial axes.  order: which of the numbers is the begin of each, then the end of each."""

    def read(
        b: PaddleBuilder,
        x: Value,
        paddings: Value,
        *,
        mode: str = "constant",
        pad_value: float = 0.0,
        data_format: str = "NCHW",
    ) -> Value:
        before, after = ([0], [0]) if b.is_last(data_format) else ([0, 0], [])
        pads, count = b(Gather(0), b.to(b.flat(paddings), I64), ints(order)), len(order) // 2
        begins, ends = b.sliced(pads, 0, 0, count), b.sliced(pads, 0, count)
        return padded(b, x, b.joined(before, begins, after, before, ends, after), mode, pad_value)

    return read


PADDLE.reader("pad3d", slots={"value": "pad_value"})(_spatial_pad(4, 2, 0, 5, 3, 1))
PADDLE.reader("pad2d", slots={"pad_value": "pad_value"})(_spatial_pad(0, 2, 1, 3))


@PADDLE.reader("pad_constant_like")
def pad_constant_like(b: PaddleBuilder, x: Value, y: Value, *, pad_value: float = 0.0) -> Value:
    """y, padded behind to the shape of x."""
    more = b(Sub(), b(Shape(), x), b(Shape(), y))
    return padded(b, y, b.joined([0] * b.rank_of(y), more), "constant", pad_value)


@PADDLE.reader("flip", "reverse")
def flip(b: PaddleBuilder, x: Value, axis: Value) -> Value:
    axes = b.axes_of(x, b.known_ints(axis, "axis"))
    n = len(axes)
    return b(Slice(), x, ints([-1] * n), ints([-END] * n), ints(axes), ints([-1] * n)) if n else x


@PADDLE.reader("roll", slots={"ShiftsTensor": "shifts"})
def roll(b: PaddleBuilder, x: Value, shifts: Value, *, axis: Ints = ()) -> Value:
    """Elements moved on along axes, those beyond the end to the beginning; along the flattened x without axes."""
    if not axis:
        return b.shaped(_rolled(b, b.flat(x), b.as_scalar(b.to(shifts, I64)), 0), b(Shape(), x))
    for i, a in enumerate(axis):
        x = _rolled(b, x, b.column(b.to(b.flat(shifts), I64), 0, i), b.axis_of(x, a))
    return x


def _rolled(b: PaddleBuilder, x: Value, shift: Value, axis: int) -> Value:
    """X rolled along one axis."""
    size, by = b.known_dim(x, axis), constant(shift)
    if size and by is not None:
        cut = int(-by.item()) % size
        made: Value = b(Concat(axis), b.sliced(x, axis, cut), b.sliced(x, axis, 0, cut)) if cut else x
    else:
        length = b.as_scalar(b.length(x, axis))
        made = b(Gather(axis), x, b(Mod(), b(Sub(), b.counted(length), shift), length))
    return made


@PADDLE.reader("pixel_shuffle")
def pixel_shuffle(b: PaddleBuilder, x: Value, *, upscale_factor: int = 1, data_format: str = "NCHW") -> Value:
    return _as_given(b, b(DepthToSpace(upscale_factor, "CRD"), _first(b, x, data_format)), data_format)


def _first(b: PaddleBuilder, x: Value, data_format: str) -> Value:
    return b.transposed(x, 0, 3, 1, 2) if b.is_last(data_format) else x


def _as_given(b: PaddleBuilder, x: Value, data_format: str) -> Value:
    return b.transposed(x, 0, 2, 3, 1) if b.is_last(data_format) else x


@PADDLE.reader("pixel_unshuffle")
def pixel_unshuffle(b: PaddleBuilder, x: Value, *, downscale_factor: int = 1, data_format: str = "NCHW") -> Value:
    """Blocks of pixels as channels: (channel, row, column)."""
    r, y = downscale_factor, _first(b, x, data_format)
    spread = b.shaped(y, [0, 0], *_halved(b, y, 2, r), *_halved(b, y, 3, r))
    moved = b.transposed(spread, 0, 1, 3, 5, 2, 4)
    heights, widths = (_halved(b, y, axis, r)[0] for axis in (2, 3))
    return _as_given(b, b.shaped(moved, [0, _times(b, y, r * r)], heights, widths), data_format)


def _times(b: PaddleBuilder, x: Value, factor: int) -> int:
    channels = b.known_dim(x, 1)
    return -1 if channels is None else channels * factor


def _halved(b: PaddleBuilder, x: Value, axis: int, by: int) -> tuple[Value, list[int]]:
    """An axis as two, the second of length ``by``."""
    return b(Div(), b.length(x, axis), by), [by]


PADDLE.reader("space_to_depth")(AsIs(SpaceToDepth))


@PADDLE.reader("shuffle_channel", "channel_shuffle", slots={"group": "groups"})
def channel_shuffle(b: PaddleBuilder, x: Value, *, groups: int = 1, data_format: str = "NCHW") -> Value:
    """Channels as a matrix of groups and members, transposed."""
    if b.is_last(data_format):
        return b.shaped(b.transposed(b.shaped(x, [0, 0, 0, groups, -1]), 0, 1, 2, 4, 3), b(Shape(), x))
    tail = b.lengths(x, (2, 3))
    return b.shaped(b.transposed(b.shaped(x, [0, groups, -1], tail), 0, 2, 1, 3, 4), b(Shape(), x))


@PADDLE.reader("temporal_shift")
def temporal_shift(
    b: PaddleBuilder, x: Value, *, seg_num: int, shift_ratio: float = 0.25, data_format: str = "NCHW"
) -> Value:
    """Some channels of each frame come from the next frame, as many from the one before; 0 beyond the ends."""
    y = _first(b, x, data_format)
    channels = b.known_dim(y, 1)
    if channels is None:
        raise b.unsupported("an unknown number of channels")
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    frames = b.shaped(y, [-1, seg_num], b.lengths(y, (1, 2, 3)))
    past = b(Pad(), b.sliced(b.sliced(frames, 2, 0, first), 1, 0, -1), ints([0, 1] + [0] * 8))
    future = b(Pad(), b.sliced(b.sliced(frames, 2, first, second), 1, 1), ints([0] * 6 + [1] + [0] * 3))
    moved = b(Concat(2), past, future, b.sliced(frames, 2, second))
    return _as_given(b, b.shaped(moved, b(Shape(), y)), data_format)


@PADDLE.reader("partial_concat")
def partial_concat(b: PaddleBuilder, x: Values, *, start_index: int = 0, length: int = -1) -> Value:
    return b(Concat(1), *_columns(b, x, start_index, length))


@PADDLE.reader("partial_sum")
def partial_sum(b: PaddleBuilder, x: Values, *, start_index: int = 0, length: int = -1) -> Value:
    first, *others = _columns(b, x, start_index, length)
    for other in others:
        first = b(Add(), first, other)
    return first


def _columns(b: PaddleBuilder, x: Values, start: int, length: int) -> list[Value]:
    return [b.sliced(v, 1, start, END if length < 0 else start + length) for v in x]
