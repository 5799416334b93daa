"""WarpImage: coordinates of a vector of pixels, their neighbours, then all of them blended at once, as whole numbers.

Where a row's third number does not change, coordinates are first + j * step: the first of a vector is found in f64, and
what its lanes add has `FINE` bits behind the point.  Other rows divide for each pixel.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    all_lanes,
    copy_bytes,
    even_lanes,
    iota,
    lanes_below,
    load_f64,
    load_i32,
    load_u32,
    odd_lanes,
    select,
    shift_right_logical,
    splat,
    split,
    store_i32,
    store_u32,
    vload_i32,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.data.camera import FAR, HALF, PARTS, WarpImage

FAREST, PIECES, SLACK = np.float64(FAR), np.float64(PARTS), np.float64(HALF)
TAPS = 4
FINE, HALF_FINE = 30, 15
FINE_STEPS = np.float64(1 << FINE)
TWO, LOW = np.int32(0x00FF00FF), np.int32(0xFFFF)
"""Every other byte, of which products with parts of a pixel have 16 bits, and the lower one of such."""
ROOM = 6 * BYTES
"""For each thread bytes of two rows of neighbours and of where they lie, beside three rows of ``across`` bytes."""


@inline
def rounded(v):
    """A whole number of parts of a pixel; what is far away, or no number, is at one place."""
    return np.int32(math.floor((v if v > -FAREST and v < FAREST else -FAREST) + SLACK))


@inline
def find_places(p, m, i, rows, columns):
    """Where the pixels of row ``i`` lie, in parts of a pixel, as i32."""
    at = np.float64(i)
    x0, y0 = load_f64(m + 8) * at + load_f64(m + 16), load_f64(m + 32) * at + load_f64(m + 40)
    w0, dx, dy, dw = load_f64(m + 56) * at + load_f64(m + 64), load_f64(m), load_f64(m + 24), load_f64(m + 48)
    times = PIECES / w0 if w0 != 0 else np.float64(0)
    if dw == 0:
        for j in range(p.wide):
            step = np.float64(j)
            store_i32(rows + 4 * j, rounded((dy * step + y0) * times))
            store_i32(columns + 4 * j, rounded((dx * step + x0) * times))
        return
    for j in range(p.wide):
        step = np.float64(j)
        third = dw * step + w0
        times = PIECES / (third if third != 0 else np.float64(np.inf))
        store_i32(rows + 4 * j, rounded((dy * step + y0) * times))
        store_i32(columns + 4 * j, rounded((dx * step + x0) * times))


@inline
def take(p, row, column, to):
    """Four bytes from a pixel on: of the fill outside of the picture, unless its edge is repeated."""
    if row < 0 or row >= p.h or column < 0 or column >= p.w:
        if not p.repeats:
            store_u32(to, np.uint32(p.fill))
            return
        row, column = min(max(row, 0), p.h - 1), min(max(column, 0), p.w - 1)
    at, last = (row * p.w + column) * p.c, p.h * p.w * p.c - 4
    if at <= last:
        copy_bytes(to, p.x + at, 4)
    else:
        copy_bytes(to, p.x + last, 4)
        store_u32(to, load_u32(to) >> np.uint32(8 * (at - last)))


@inline
def start_and_step(p, m, i, axis):
    """The first coordinate of row ``i``, in parts of a pixel, and what the next one adds; axis: 0 columns, 1 rows."""
    at, m0 = np.float64(i), m + 24 * axis
    third = load_f64(m + 56) * at + load_f64(m + 64)
    times = PIECES / third if third != 0 else np.float64(0)
    return (load_f64(m0 + 8) * at + load_f64(m0 + 16)) * times, load_f64(m0) * times


@inline
def is_near(first, step, wide):
    """Whether all coordinates of a row are less than `FAR`: they lie between the first and the last."""
    last = first + step * np.float64(wide)
    return abs(first) < FAREST and abs(last) < FAREST and abs(step) < FAREST


@inline
def steps_of_lanes(step):
    """Whole parts that each lane of a vector is beyond its first, and the rest in ``2 ** FINE`` of one."""
    whole = math.floor(step)
    rest, half = np.int32((step - whole) * FINE_STEPS), np.int32(HALF_FINE)
    mask = np.int32((1 << HALF_FINE) - 1)
    low = iota() * splat(np.int32(rest & mask))
    high = iota() * splat(np.int32(rest >> half)) + (low >> half)
    return iota() * splat(np.int32(whole)) + (high >> half), ((high & mask) << half) | (low & mask)


@inline
def places_from(first, whole, rest):
    """Coordinates of a vector, rounded to whole parts."""
    at = first + SLACK
    start = math.floor(at)
    parts = splat(np.int32((at - start) * FINE_STEPS)) + rest
    return splat(np.int32(start)) + whole + (parts >> np.int32(FINE))


@inline
def find_pixels(p, rows, columns, left, to):
    """Bytes of two neighbours of each pixel in the upper row, then in the lower one, as i64 [2][`LANES`]; `ROOM`.

    left: how many pixels there are.
    """
    below, beside, five = p.w * p.c, p.c, np.int32(5)
    last = p.h * below - below - 8  # from there on a neighbour's eight bytes may end behind the picture
    row, column = rows >> five, columns >> five
    at = row * splat(np.int32(below)) + column * splat(np.int32(beside))
    inside = (row > splat(np.int32(-1))) & (row < splat(np.int32(p.h - 1))) & (column > splat(np.int32(-1)))
    inside = inside & (column < splat(np.int32(p.w - 1))) & (at < splat(np.int32(last + 1)))
    if p.is_plain and all_lanes(inside | ~lanes_below(left)):
        vstore(to + 4 * BYTES, select(inside, at, splat(np.int32(0))))
        for k in range(LANES):
            place = p.x + load_i32(to + 4 * BYTES + 4 * k)
            copy_bytes(to + 8 * k, place, 8)
            copy_bytes(to + 2 * BYTES + 8 * k, place + below, 8)
        return
    vstore(to + 4 * BYTES, row)
    vstore(to + 5 * BYTES, column)
    for k in range(min(LANES, left)):
        y, x = np.int64(load_i32(to + 4 * BYTES + 4 * k)), np.int64(load_i32(to + 5 * BYTES + 4 * k))
        take(p, y, x, to + 8 * k)
        take(p, y, x + 1, to + 8 * k + beside)
        take(p, y + 1, x, to + 2 * BYTES + 8 * k)
        take(p, y + 1, x + 1, to + 2 * BYTES + 8 * k + beside)


@inline
def beside_each(low, high, channels):
    """Four bytes from the second neighbour on, of two in eight bytes."""
    if channels == 4:
        return high
    by = np.int32(8 * channels)
    return shift_right_logical(low, splat(by)) | (high << splat(np.int32(32) - by))


@inline
def blended(top, bottom, up, down):
    """Levels of sums of two neighbours, in 1024ths."""
    return (top * up + bottom * down + PARTS * PARTS // 2) >> 10


@inline
def blend_pixels(packed, rows, columns, channels):
    """`LANES` pixels of four bytes."""
    mask, eight, half = splat(np.int32(PARTS - 1)), np.int32(8), np.int32(16)
    down, right = rows & mask, columns & mask
    up, left = splat(np.int32(PARTS)) - down, splat(np.int32(PARTS)) - right
    u, v = vload_i32(packed), vload_i32(packed + BYTES)
    top, high = even_lanes(u, v), odd_lanes(u, v)
    beside = beside_each(top, high, channels)
    u, v = vload_i32(packed + 2 * BYTES), vload_i32(packed + 3 * BYTES)
    bottom, high = even_lanes(u, v), odd_lanes(u, v)
    under = beside_each(bottom, high, channels)
    upper, lower = (top & TWO) * left + (beside & TWO) * right, (bottom & TWO) * left + (under & TWO) * right
    made = blended(upper & LOW, lower & LOW, up, down)
    if channels > 1:
        third = blended(upper >> half, lower >> half, up, down)
        upper = ((top >> eight) & TWO) * left + ((beside >> eight) & TWO) * right
        lower = ((bottom >> eight) & TWO) * left + ((under >> eight) & TWO) * right
        made = made | (blended(upper & LOW, lower & LOW, up, down) << eight) | (third << half)
        if channels == 4:
            made = made | (blended(upper >> half, lower >> half, up, down) << np.int32(24))
    return made


def _reached(a: Numbers) -> dict[str, Reach]:
    return {
        "x": a.h * a.w * a.c,
        "matrix": 72 * a.views,
        "y": a.views * a.high * a.wide * a.c,
        "room": a.threads * (ROOM + 3 * a.across),
    }


@native(
    fastmath=None, extents=_reached, **dict.fromkeys(("x", "matrix", "y", "room"), PTR),
    **dict.fromkeys(("h", "w", "c", "views", "high", "wide", "across", "repeats", "fill", "is_plain"), I64),
)  # fmt: skip
def warp_rows(p, tid, nthreads):
    """Rows of all views.  room: for each thread neighbours, then rows of ``across`` bytes: places, the result.

    is_plain: places of pixels are i32.  x: u8 [h][w][c] · matrix: f64 [views][9] · y: u8 [views][high][wide][c].
    """
    across, c, wide = p.across, p.c, p.wide
    packed = p.room + tid * (ROOM + 3 * across)
    rows = packed + ROOM
    columns, made = rows + across, rows + 2 * across
    lo, hi = split(p.views * p.high, tid, nthreads)
    for at in range(lo, hi):
        view = at // p.high
        m = p.matrix + 72 * view
        x0, dx = start_and_step(p, m, at - view * p.high, 0)
        y0, dy = start_and_step(p, m, at - view * p.high, 1)
        steps = load_f64(m + 48) == 0 and is_near(x0, dx, wide) and is_near(y0, dy, wide)
        if not steps:
            dx, dy = np.float64(0), np.float64(0)
            find_places(p, m, at - view * p.high, rows, columns)
        x_whole, x_rest = steps_of_lanes(dx)
        y_whole, y_rest = steps_of_lanes(dy)
        for j in range(0, wide, LANES):
            if steps:
                row = places_from(y0 + dy * np.float64(j), y_whole, y_rest)
                column = places_from(x0 + dx * np.float64(j), x_whole, x_rest)
            else:
                row, column = vload_i32(rows + 4 * j), vload_i32(columns + 4 * j)
            find_pixels(p, row, column, wide - j, packed)
            vstore(made + 4 * j, blend_pixels(packed, row, column, c))
        y = p.y + at * wide * c
        for j in range(wide - 4):
            copy_bytes(y + j * c, made + 4 * j, 4)  # what is beyond a pixel is overwritten by the next ones
        for j in range(max(wide - 4, 0), wide):
            copy_bytes(y + j * c, made + 4 * j, c)


def _accepts(op: WarpImage, ins: Types) -> bool:
    x, matrix = ins[0], ins[1]
    return x.is_static and matrix.is_static and x.size >= 4


@kernel(WarpImage, accepts=_accepts)
def warp(op: WarpImage, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Pictures of at least four bytes."""
    x, matrix = ins[0], ins[1]
    (h, w, c), views, (high, wide) = x.dims, matrix.dims[0], op.size
    across = -(-4 * wide // BYTES) * BYTES
    room = Scratch(context.threads * (ROOM + 3 * across))
    sizes = {"h": h, "w": w, "c": c, "views": views, "high": high, "wide": wide, "across": across}
    args = {**sizes, "repeats": int(op.edge == "repeat"), "fill": op.fill * 0x01010101}
    args["is_plain"] = int(x.size < 1 << 31)
    return [
        Step(
            warp_rows, {"x": In(0), "matrix": In(1), "y": Out(0), "room": room, **args},
            views * high * wide * TAPS >= PAYS_ELEMENTS,
        )
    ]  # fmt: skip
