"""Where filters look: rows of a product are output pixels, its terms are taps times channels, and nothing is copied.

A block of threads reads its rows straight from the image.  A thread knows of each of its rows the pixel that the first
tap would meet and, as a mask of bits, which taps are inside the image.  The rest of a tap is one number of a table.

The same tables serve transposed convolutions: output pixels that leave the same remainders by the strides are a phase,
which meets the same taps at input pixels that are one apart.  Each phase is a convolution with results that are apart.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.convolution.axes import ConvAxis
from bolt_numba.kernels.cuda.declare import I32, I64, PTR, inline
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import (
    cp_async16_zfill,
    load4_i32_nc,
    load_i32_nc,
    load_shared_i32,
    mad_wide_i32,
    shift_right_u32,
    store_shared_i32,
)
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.registry import Argument

u32, i32, i64 = np.uint32, np.int32, np.int64
MOST_TAPS = 63
"""A mask has 64 bits, and the last one stays 0."""
TABLE = 4 * (MOST_TAPS + 1)
_AXES, _NAMES = "dhw", ("many", "by", "step", "begin", "size")

READING: dict[str, Any] = {
    "x": PTR, "w": PTR, "table": PTR, "m": I32, "n": I32, "k": I32, "taps": I32, "cg": I32, "pitch": I32,
    "groups": I32,
    **{f"{name}{axis}": I64 if name == "by" else I32 for axis in _AXES for name in _NAMES},
    "yn": I32, "yd": I32, "yh": I32, "yw": I32, "splits": I32, "split_bytes": I64,
}  # fmt: skip
"""Fields of the kernels.

x: [images, sized, sizeh, sizew, pitch] · w: packed filters · table: i32 [64, 4], of each tap its offsets on three axes
and in pixels · m: rows, images * manyd * manyh * manyw · n: filters of a group · k: terms, taps * cg · cg: channels of
a group · by: see `packed_divider` · step, begin: row q looks from q * step + begin on · yn, yd, yh, yw: pixels of the
result from one index of a row to the next · splits: parts of the sums, whose results are split_bytes apart.
"""


def packed_divider(divisor: int) -> int:
    """Magic number and shift of `fast_divide` in one field."""
    magic, shift = divider(divisor)
    return magic | shift << 32


@inline
def place_of(row, manyd, byd, manyh, byh, manyw, byw):
    """Image and position of a row."""
    rest = fast_divide(row, u32(byw), u32(byw >> 32))
    w = u32(u32(row) - rest * u32(manyw))
    image_rows = fast_divide(rest, u32(byh), u32(byh >> 32))
    h = u32(rest - image_rows * u32(manyh))
    image = fast_divide(image_rows, u32(byd), u32(byd >> 32))
    return image, u32(image_rows - image * u32(manyd)), h, w


def word_of_bits(wide: bool) -> Any:
    """What holds the bits of taps."""
    return np.uint64 if wide else np.uint32


@functools.cache
def looking(wide: bool) -> Inline:
    """``(pixel, mask) = look(row, m, table, taps, place, steps)`` of one row; wide: masks of 64 bits, else 32.

    place: as `place_of` takes it; steps: step, begin and size of each axis.
    """
    mask_of = word_of_bits(wide)

    @inline
    def look(row, m, table, taps, place, steps):
        image, qd, qh, qw = place_of(row, place[0], place[1], place[2], place[3], place[4], place[5])
        d, h, w = (
            i32(i32(qd) * steps[0] + steps[1]),
            i32(i32(qh) * steps[3] + steps[4]),
            i32(i32(qw) * steps[6] + steps[7]),
        )
        mask = mask_of(0)
        if row < m:
            for t in range(taps):
                tap = load4_i32_nc(table + 16 * t)
                inside = u32(d + tap[0]) < u32(steps[2]) and u32(h + tap[1]) < u32(steps[5])
                if inside and u32(w + tap[2]) < u32(steps[8]):
                    mask = mask_of(mask | mask_of(mask_of(1) << mask_of(t)))
        return i32(((i32(image) * steps[2] + d) * steps[5] + h) * steps[8] + w), mask

    return look


@inline
def share_offsets(table, offsets, thread):
    """Puts the offsets of taps in pixels into shared memory, where they take `TABLE` bytes."""
    if thread < u32(MOST_TAPS + 1):
        store_shared_i32(u32(offsets + thread * u32(4)), load_i32_nc(table + 16 * i64(thread) + 12))


@inline
def share_of(z, splits, tiles):
    """Group and part of a block, and the part's first of ``tiles`` tiles of terms, and how many it has."""
    group = u32(u32(z) // u32(splits))
    part = u32(u32(z) - group * u32(splits))
    each = i32(u32(u32(tiles) + u32(splits) - u32(1)) // u32(splits))
    first = i32(min(i32(part * each), tiles))
    return i64(group), i64(part), first, i32(min(each, i32(tiles - first)))


@inline
def bit_of_32(seen, bit):
    return u32(shift_right_u32(seen, bit) & u32(1))


@inline
def bit_of_64(seen, bit):
    return u32(u32(seen >> np.uint64(bit)) & u32(1))


@functools.cache
def image_copies(count: int, apart: int, size: int, copy: Any, wide: bool) -> Inline:
    """``copy_pixels(to, at, first, seen, offsets, tap, bytes_apart, outside)``: what a tap meets.

    count: rows, ``apart`` bytes of shared memory from one to the next · copy: ``(to, from, bytes, outside)``, with
    ``size`` bytes, or 0 outside the image · at: address of the channel in the image's first pixel.
    """
    COUNT, APART, SIZE = count, apart, size
    bit_of, LAST = (bit_of_64, 63) if wide else (bit_of_32, 31)

    @inline
    def copy_pixels(to, at, first, seen, offsets, tap, bytes_apart, outside):
        bit = u32(min(tap, i32(LAST)))
        offset = load_shared_i32(u32(offsets + (bit << u32(2))))
        for i in range(COUNT):
            pixel = mad_wide_i32(u32(first[i] + offset), bytes_apart, at)
            copy(u32(to + u32(i * APART)), pixel, u32(bit_of(seen[i], bit) * u32(SIZE)), outside)

    return copy_pixels


@functools.cache
def filter_copies(count: int, apart: int, ahead: int) -> Inline:
    """``copy(to, source, step, left)``: so many copies of 16 bytes of filters, ``apart`` bytes of shared memory.

    step: bytes of the filters from one to the next · ahead: lines from one to the next, of which ``left`` are there.
    """
    COUNT, APART, AHEAD = count, apart, ahead

    @inline
    def copy_filters(to, source, step, left):
        for i in range(COUNT):
            cp_async16_zfill(u32(to + u32(i * APART)), source + step * i, u32(16) if left > i * AHEAD else u32(0))

    return copy_filters


@inline
def next_stage(at, stage, last):
    """Bytes into shared memory of the stage behind ``at``."""
    return u32(0) if at == u32(last) else u32(at + u32(stage))


@inline
def walked(tap, channel, step, cg):
    """The tap and channel of a term ``step`` terms further on."""
    channel = i32(channel + step)
    while channel >= cg:
        channel = i32(channel - cg)
        tap = i32(tap + 1)
    return tap, channel


@record(frozen=True)
class Phase:
    """A part of the output that one step computes: rows by axis, where they look, their taps, where they are stored.

    taps: of each, its place in the filter and its offset in the input, by axis · first, apart: output indices, by axis.
    """

    many: tuple[int, ...]
    step: tuple[int, ...]
    begin: tuple[int, ...]
    taps: tuple[tuple[tuple[int, int], ...], ...]
    first: tuple[int, ...]
    apart: tuple[int, ...]


def window_phase(axes: Sequence[ConvAxis]) -> Phase:
    """A convolution is one phase."""
    return Phase(
        tuple(a.out for a in axes), tuple(a.stride for a in axes), tuple(-a.pad for a in axes),
        tuple(tuple((t, t * a.dilation) for t in range(a.kernel)) for a in axes), (0,) * len(axes), (1,) * len(axes),
    )  # fmt: skip


def transposed_phases(axes: Sequence[ConvAxis]) -> list[Phase]:
    """Output o = stride * q + p meets tap t at input q + (p + pad - t * dilation) / stride, where this is whole."""
    found = []
    for place in itertools.product(*(range(min(a.stride, a.out)) for a in axes)):
        taps = []
        for a, p in zip(axes, place, strict=True):
            reach = [(t, p + a.pad - t * a.dilation) for t in range(a.kernel)]
            taps.append(tuple((t, at // a.stride) for t, at in reach if at % a.stride == 0))
        many = tuple(-(-(a.out - p) // a.stride) for a, p in zip(axes, place, strict=True))
        ones = (1,) * len(axes)
        found.append(Phase(many, ones, (0,) * len(axes), tuple(taps), place, tuple(a.stride for a in axes)))
    return found


def tap_table(phase: Phase, sizes: Sequence[int], repeat: int = 1) -> Array:
    """``table`` of the fields; repeat: how often all taps are met, one time after the other."""
    offsets = list(itertools.product(*(tuple(o for _, o in axis) for axis in phase.taps))) * repeat
    table = np.zeros((MOST_TAPS + 1, 4), np.int32)
    _, h, w = sizes
    for i, (a, b, c) in enumerate(offsets):
        table[i] = a, b, c, (a * h + b) * w + c
    return table


def count_taps(phase: Phase) -> int:
    return math.prod(len(axis) for axis in phase.taps)


def reading_args(
    phase: Phase, axes: Sequence[ConvAxis], images: int, cg: int, kg: int, groups: int, repeat: int = 1
) -> dict[str, Argument]:
    """Arguments for `READING` but x and w."""
    sizes, outs = [a.size for a in axes], [a.out for a in axes]
    taps = repeat * count_taps(phase)
    args: dict[str, Argument] = {
        "table": tap_table(phase, sizes, repeat), "m": images * math.prod(phase.many), "n": kg, "k": taps * cg,
        "taps": taps, "cg": cg, "pitch": cg * groups, "groups": groups, "yn": math.prod(outs), "splits": 1,
        "split_bytes": 0,
    }  # fmt: skip
    for i, axis in enumerate(_AXES):
        numbers = phase.many[i], packed_divider(phase.many[i]), phase.step[i], phase.begin[i], sizes[i]
        args |= {f"{name}{axis}": v for name, v in zip(_NAMES, numbers, strict=True)}
        args[f"y{axis}"] = phase.apart[i] * math.prod(outs[i + 1 :])
    return args


def first_pixel(phase: Phase, axes: Sequence[ConvAxis]) -> int:
    """The pixel of the result that the first row of a phase is stored at."""
    return sum(p * math.prod([a.out for a in axes[i + 1 :]]) for i, p in enumerate(phase.first))


def pixels(a: Numbers) -> int:
    """Of the images that a step reads: for extents."""
    images = a.m // (a.manyd * a.manyh * a.manyw)
    return int(images * a.sized * a.sizeh * a.sizew)


def last_pixel(a: Numbers) -> int:
    """The last pixel of the result that a step stores, from its first one: for extents."""
    images = a.m // (a.manyd * a.manyh * a.manyw)
    return int((images - 1) * a.yn + (a.manyd - 1) * a.yd + (a.manyh - 1) * a.yh + (a.manyw - 1) * a.yw)
