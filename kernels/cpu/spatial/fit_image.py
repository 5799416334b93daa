"""FitImage in one step: from images of bytes to what a network takes, line by line in cache.

A line of the image is blended along its columns once, for all rows of the result that read it.  The lines that a row
reads stay in a ring.  Where lines are blended first, that is done to bytes, and the ring is one line.  Sums are whole
numbers, so no order of them changes a bit.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    copy_bytes,
    fma,
    load_f32,
    load_i32,
    load_i64,
    permute,
    select,
    shift_right_logical,
    splat,
    split,
    store_i64,
    to_f32,
    to_i32,
    vload,
    vload_i32,
    vload_u8,
    vload_u8_n,
    vmax,
    vmin,
    vround,
    vstore,
    vstore_n,
    vstore_u8,
    vstore_u8_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.data.fit_image import BITS, FitImage, SeenAxis

KINDS = {"float32": 0, "uint8": 1, "int8": 2}
"""How results are stored, by their dtype."""
HALF = np.int32(1 << (BITS - 1))
MOST_LINE = 1 << 24
"""Bytes of a line and pixels of a side that offsets are sure to hold."""


@inline
def gather_pixels(x, offsets, packed, n):
    """Four bytes from each offset on, one after another."""
    for j in range(n):
        copy_bytes(packed + 4 * j, x + load_i32(offsets + 4 * j), 4)


@inline
def levels(total):
    """Sums without the bits behind the point, halves up, limited."""
    return vmin(vmax((total + HALF) >> BITS, splat(np.int32(0))), splat(np.int32(255)))


@inline
def blend_bytes(x, line_bytes, lines, weights, taps, to):
    """Levels of a line from lines of x; up to a vector more is written."""
    for j in range(0, line_bytes, LANES):
        total, left = splat(np.int32(0)), line_bytes - j
        for t in range(taps):
            at = x + load_i64(lines + 8 * t) * line_bytes + j
            v = vload_u8(at) if left >= LANES else vload_u8_n(at, left)
            total = total + v * splat(load_i32(weights + 4 * t))
        vstore_u8(to + j, levels(total))


@inline
def blend_three(packed, weights, taps, blocks, to, plane, shifts, rounds):
    """Three channels of gathered pixels, each blended to a plane of i32: sums, or levels if it ``rounds``."""
    r, g, b = (splat(load_i32(shifts)), splat(load_i32(shifts + 4)), splat(load_i32(shifts + 8)))
    zero = splat(np.int32(0))
    for j in range(0, blocks * BYTES, BYTES):
        one, two, three, at = zero, zero, zero, j
        for _ in range(taps):
            v, w = vload_i32(packed + at), vload_i32(weights + at)
            one = one + (shift_right_logical(v, r) & 255) * w
            two = two + (shift_right_logical(v, g) & 255) * w
            three = three + (shift_right_logical(v, b) & 255) * w
            at += blocks * BYTES
        if rounds:
            one, two, three = levels(one), levels(two), levels(three)
        vstore(to + j, one)
        vstore(to + plane + j, two)
        vstore(to + 2 * plane + j, three)


@inline
def blend_one(packed, weights, taps, blocks, to, shift, rounds):
    """`blend_three` of one channel."""
    by = splat(shift)
    for j in range(0, blocks * BYTES, BYTES):
        total, at = splat(np.int32(0)), j
        for _ in range(taps):
            total = total + (shift_right_logical(vload_i32(packed + at), by) & 255) * vload_i32(weights + at)
            at += blocks * BYTES
        vstore(to + j, levels(total) if rounds else total)


@inline
def blend_down(ring, slots, weights, taps, to, n, scale, offset):
    """``n`` levels from the lines at ``slots``, times a scale plus an offset."""
    v, w = splat(scale), splat(offset)
    for j in range(0, n, LANES):
        total = splat(np.int32(0))
        for t in range(taps):
            total = total + vload_i32(ring + load_i64(slots + 8 * t) + 4 * j) * splat(load_i32(weights + 4 * t))
        a = fma(to_f32(levels(total)), v, w)
        if n - j >= LANES:
            vstore(to + 4 * j, a)
        else:
            vstore_n(to + 4 * j, a, n - j)


@inline
def store_codes(to, v, n, kind):
    """Up to `LANES` numbers as they are, or as unsigned or signed bytes."""
    if kind == 0 and n >= LANES:
        vstore(to, v)
    elif kind == 0:
        vstore_n(to, v, n)
    else:
        low = np.float32(0) if kind == 1 else np.float32(-128)
        v = vmin(vmax(vround(v), splat(low)), splat(low + np.float32(255)))
        vstore_u8_n(to, to_i32(v), n)


@inline
def store_line(line, plane, y, step, n, channels, kind, order, which):
    """``n`` pixels from planes of f32: to planes ``step`` bytes apart, or with their channels together (step 0).

    order, which: for each vector of a block of pixels, the pixel and the channel of each lane.
    """
    size = 4 if kind == 0 else 1
    if step:
        for k in range(channels):
            for j in range(0, n, LANES):
                store_codes(y + k * step + size * j, vload(line + k * plane + 4 * j), n - j, kind)
        return
    for j in range(0, n, LANES):
        for m in range(channels):
            places, of = vload_i32(order + m * BYTES), vload_i32(which + m * BYTES)
            v = permute(vload(line + 4 * j), places)
            for k in range(1, channels):
                v = select(of == splat(np.int32(k)), permute(vload(line + k * plane + 4 * j), places), v)
            first = j * channels + m * LANES
            if n * channels > first:
                store_codes(y + size * first, v, n * channels - first, kind)


def _reached(a: Any) -> dict[str, Reach]:
    rows, blocks = a.lines.shape[0], a.column_taps * a.blocks * BYTES
    size = 4 if a.kind == 0 else 1
    return {
        "x": a.images * a.h * a.line_bytes,
        "y": size * a.images * a.channels * a.high * a.wide,
        "scale": 4 * a.channels,
        "offset": 4 * a.channels,
        "columns": blocks,
        "column_weights": blocks,
        **dict.fromkeys(("lines", "slots"), 8 * rows * a.row_taps),
        "row_weights": 4 * rows * a.row_taps,
        "down_lines": 8 * rows * a.down_taps,
        "down_weights": 4 * rows * a.down_taps,
        "shifts": 4 * a.channels,
        **dict.fromkeys(("order", "which"), BYTES * a.channels),
        "room": a.threads * a.room_step,
    }


_TABLES = ("columns", "column_weights", "lines", "slots", "row_weights", "shifts", "order", "which")
_DOWN = ("down_lines", "down_weights")
_SIZES = (
    "images", "h", "line_bytes", "channels", "high", "wide", "top", "rows", "left", "seen", "blocks", "column_taps",
    "row_taps", "down_taps", "depth", "rounds", "kind", "last_channels", "lines_at", "packed_at", "edge_at",
    "planes_at", "room_step",
)  # fmt: skip


@inline
def hold_lines(p, x, first, is_last, room):
    """Put the lines that a row reads into the ring, where they are not there already; x: the row's image."""
    blocks, taps, channels = p.blocks, p.column_taps, p.channels
    plane, packed = blocks * BYTES, room + p.packed_at
    for t in range(first, first + p.row_taps):
        source, slot = load_i64(p.lines + 8 * t), load_i64(p.slots + 8 * t)
        tag, to = room + 8 * (slot // (channels * plane)), room + p.lines_at + slot
        if load_i64(tag) == source:
            continue
        store_i64(tag, source)
        pixels = x + source * p.line_bytes
        if p.down_taps:
            pixels, down = room + p.edge_at, source * p.down_taps
            blend_bytes(x, p.line_bytes, p.down_lines + 8 * down, p.down_weights + 4 * down, p.down_taps, pixels)
        elif p.line_bytes < 4 or (is_last and source == p.h - 1):  # four bytes from the last pixel on may end beyond it
            copy_bytes(room + p.edge_at, pixels, p.line_bytes)
            pixels = room + p.edge_at
        gather_pixels(pixels, p.columns, packed, taps * blocks * LANES)
        if channels == 3 and taps == 2:
            blend_three(packed, p.column_weights, 2, blocks, to, plane, p.shifts, p.rounds)
        elif channels == 3:
            blend_three(packed, p.column_weights, taps, blocks, to, plane, p.shifts, p.rounds)
        else:
            for k in range(channels):
                shift = load_i32(p.shifts + 4 * k)
                blend_one(packed, p.column_weights, taps, blocks, to + k * plane, shift, p.rounds)


@inline
def make_row(p, first, ring, to, step, blank, across):
    """Planes of a row of the result, ``step`` bytes apart; blank: planes of a row outside of the image."""
    for k in range(p.channels):
        lines, slots, weights = ring + k * p.blocks * BYTES, p.slots + 8 * first, p.row_weights + 4 * first
        scale, offset = load_f32(p.scale + 4 * k), load_f32(p.offset + 4 * k)
        y, fill = to + k * step, blank + k * across
        behind = 4 * (p.left + p.seen)
        copy_bytes(y, fill, 4 * p.left)
        copy_bytes(y + behind, fill + behind, 4 * p.wide - behind)
        if p.row_taps == 2:
            blend_down(lines, slots, weights, 2, y + 4 * p.left, p.seen, scale, offset)
        else:
            blend_down(lines, slots, weights, p.row_taps, y + 4 * p.left, p.seen, scale, offset)


@inline
def fill_planes(p, to, across):
    for k in range(p.channels):
        outside = splat(p.fill * load_f32(p.scale + 4 * k) + load_f32(p.offset + 4 * k))
        for j in range(0, 4 * p.wide, BYTES):
            vstore(to + k * across + j, outside)


@native(
    fastmath=None, extents=_reached, **dict.fromkeys(("x", "y", "scale", "offset", *_TABLES, "room"), PTR),
    **dict.fromkeys(_DOWN, PTR_OR_0), **dict.fromkeys(_SIZES, I64), fill=F32,
)  # fmt: skip
def fit_image(p, tid, nthreads):
    """Rows of all results, one after another; see `FitTables` for what columns and rows are made of.

    room: for each thread the numbers of the lines in the ring, the ring, gathered pixels, a copy of the last line, and
    planes of a row of the result and of a row outside of the image.
    x: bytes [images][h][line_bytes] · y: f32 or u8 [images][channels][high][wide] · scale, offset, shifts: [channels].
    """
    channels, wide, high, kind = p.channels, p.wide, p.high, p.kind
    room, across, size = p.room + tid * p.room_step, 4 * (wide + LANES), 4 if kind == 0 else 1
    ring, line = room + p.lines_at, room + p.planes_at
    blank = line + channels * across
    step = 0 if p.last_channels else size * high * wide
    fill_planes(p, blank, across)
    before = -1
    lo, hi = split(p.images * high, tid, nthreads)
    for at in range(lo, hi):
        image = at // high
        row = at - image * high - p.top
        y = p.y + (at + image * (channels - 1) * high if step else at * channels) * wide * size
        if row < 0 or row >= p.rows:
            store_line(blank, across, y, step, wide, channels, kind, p.order, p.which)
            continue
        if image != before:
            before = image
            for s in range(p.depth):
                store_i64(room + 8 * s, -1)
        hold_lines(p, p.x + image * p.h * p.line_bytes, row * p.row_taps, image == p.images - 1, room)
        if kind == 0 and step:
            make_row(p, row * p.row_taps, ring, y, step, blank, across)
        else:
            make_row(p, row * p.row_taps, ring, line, across, blank, across)
            store_line(line, across, y, step, wide, channels, kind, p.order, p.which)


@record(frozen=True)
class FitTables:
    """What `fit_image` reads for images of one size.

    columns: bytes from the begin of a line to each pixel, i32 [taps, blocks of LANES]; column_weights: i32, alike.
    lines, slots, row_weights: for each row and tap the line of the image, its bytes in the ring, and its weight.
    down_lines, down_weights: the same where lines are blended first; the line that is left is then numbered as the row.
    depth: lines of the ring.  top, left: where the image begins in the result; seen: columns of it.
    """

    columns: Array
    column_weights: Array
    lines: Array
    slots: Array
    row_weights: Array
    down_lines: Array | None
    down_weights: Array | None
    down_taps: int
    depth: int
    top: int
    left: int
    seen: int


def _useful(axis: SeenAxis) -> tuple[Array, Array]:
    """Without taps that weigh nothing anywhere; others that weigh nothing look where the heaviest does."""
    kept = (axis.weights != 0).any(axis=0)
    index, weights = axis.index[:, kept], axis.weights[:, kept]
    heaviest = np.take_along_axis(index, weights.argmax(axis=1)[:, None], axis=1)
    return np.where(weights == 0, heaviest, index), weights


@pure
@lru_cache(maxsize=64)
def tables(op: FitImage, h: int, w: int, c: int) -> FitTables:
    """FitTables for images [h, w, c]."""
    rows, columns = op.axes(h, w)
    at, weights = _useful(columns)
    pad = ((0, 0), (0, -len(at) % LANES))
    lines, row_weights = (np.ascontiguousarray(a) for a in _useful(rows))
    row_weights = row_weights.astype(np.int32)
    down: tuple[Array | None, Array | None, int] = (None, None, 0)
    if op.is_down_first(h, w):
        down = (lines, row_weights, lines.shape[1])
        lines, row_weights = np.arange(len(lines))[:, None], np.full((len(lines), 1), 1 << BITS, np.int32)
    depth = 1 if down[2] else int((lines.max(axis=1) - lines.min(axis=1)).max()) + 1
    slots = lines % depth * (4 * len(op.channels) * (len(at) + pad[1][1]))
    return FitTables(
        np.pad((at.T * c).astype(np.int32), pad), np.pad(weights.T.astype(np.int32), pad), lines, slots, row_weights,
        *down, depth, rows.first, columns.first, len(at),
    )  # fmt: skip


@lru_cache(maxsize=16)
def _interleaved(channels: int) -> tuple[Array, Array]:
    """Pixel and channel of each element of a block of `LANES` pixels."""
    element = np.arange(channels * LANES, dtype=np.int32)
    return element // np.int32(channels), element % np.int32(channels)


def _accepts(op: FitImage, ins: Types) -> bool:
    x = ins[0]
    return x.is_static and x.size > 0 and max(x.dims[-3], x.dims[-2] * x.dims[-1]) <= MOST_LINE


@kernel(FitImage, accepts=_accepts)
def fit(op: FitImage, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Images of any size, all modes and dtypes."""
    x = ins[0]
    h, w, c = x.dims[-3:]
    t = tables(op, h, w, c)
    channels, (high, wide) = len(op.channels), op.size
    (column_taps, padded), (rows, row_taps) = t.columns.shape, t.lines.shape
    ring, packed = 4 * padded * channels * t.depth, 4 * padded * column_taps
    sizes = [("lines_at", 8 * t.depth), ("packed_at", ring), ("edge_at", packed), ("planes_at", w * c + LANES)]
    args: dict[str, Argument] = {}
    room = 0
    for name, nbytes in sizes:
        room += -(-nbytes // 64) * 64
        args[name] = room
    room += -(-8 * channels * (wide + LANES) // 64) * 64
    order, which = _interleaved(channels)
    args |= {"x": In(0), "scale": In(1), "offset": In(2), "y": Out(0), "room": Scratch(room * context.threads)}
    args |= {"columns": t.columns, "column_weights": t.column_weights, "lines": t.lines, "slots": t.slots}
    args |= {"row_weights": t.row_weights, "order": order, "which": which, "room_step": room}
    args |= {"shifts": np.array([8 * k for k in op.channels], np.int32), "images": outs[0].dims[0], "h": h}
    args |= {"line_bytes": w * c, "channels": channels, "high": high, "wide": wide, "top": t.top, "rows": rows}
    args |= {"left": t.left, "seen": t.seen, "blocks": padded // LANES, "column_taps": column_taps}
    args |= {"row_taps": row_taps, "depth": t.depth, "kind": KINDS[op.dtype.name]}
    args |= {"down_lines": t.down_lines, "down_weights": t.down_weights, "down_taps": t.down_taps}
    args |= {"last_channels": int(op.channels_last), "rounds": int(op.rounds_lines), "fill": float(op.fill)}
    work = channels * high * wide * 2 + channels * row_taps * rows * t.seen + t.depth * column_taps * t.seen
    return [Step(fit_image, args, outs[0].dims[0] * work >= 2 * PAYS_ELEMENTS)]
