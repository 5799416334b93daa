"""WarpImage: coordinates of a row one by one in f64, then its pixels blended a vector at a time, as whole numbers."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    copy_bytes,
    load_f64,
    load_i32,
    load_u32,
    shift_right_logical,
    splat,
    split,
    store_i32,
    store_u32,
    vload_i32,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.data.camera import FAR, HALF, PARTS, WarpImage
from bolt_numba.types import TensorType

FAREST, PIECES, SLACK = np.float64(FAR), np.float64(PARTS), np.float64(HALF)
TAPS = 4


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
def find_pixels(p, packed, across):
    """The four neighbours of each pixel to four rows; behind them are the places, of which the parts are left."""
    below, beside = p.w * p.c, p.c
    safe = p.h * below - below - beside - 4  # from there on a neighbour's four bytes may end behind the picture
    for j in range(p.wide):
        to = packed + 4 * j
        row, column = load_i32(to + 4 * across), load_i32(to + 5 * across)
        store_i32(to + 4 * across, row & (PARTS - 1))
        store_i32(to + 5 * across, column & (PARTS - 1))
        row, column = np.int64(row >> 5), np.int64(column >> 5)
        at = row * below + column * beside
        if row >= 0 and row < p.h - 1 and column >= 0 and column < p.w - 1 and at <= safe:
            copy_bytes(to, p.x + at, 4)
            copy_bytes(to + across, p.x + at + beside, 4)
            copy_bytes(to + 2 * across, p.x + at + below, 4)
            copy_bytes(to + 3 * across, p.x + at + below + beside, 4)
        else:
            take(p, row, column, to)
            take(p, row, column + 1, to + across)
            take(p, row + 1, column, to + 2 * across)
            take(p, row + 1, column + 1, to + 3 * across)


@inline
def blend_pixels(packed, across, channels, j):
    """`LANES` pixels of four bytes."""
    at, whole = packed + 4 * j, splat(np.int32(PARTS))
    down, right = vload_i32(at + 4 * across), vload_i32(at + 5 * across)
    up, left = whole - down, whole - right
    made = splat(np.int32(0))
    for k in range(channels):
        by = splat(np.int32(8 * k))
        total = (shift_right_logical(vload_i32(at), by) & 255) * (up * left)
        total = total + (shift_right_logical(vload_i32(at + across), by) & 255) * (up * right)
        total = total + (shift_right_logical(vload_i32(at + 2 * across), by) & 255) * (down * left)
        total = total + (shift_right_logical(vload_i32(at + 3 * across), by) & 255) * (down * right)
        made = made | (((total + PARTS * PARTS // 2) >> 10) << by)
    return made


def _reached(a: Any) -> dict[str, Reach]:
    return {
        "x": a.h * a.w * a.c,
        "matrix": 72 * a.views,
        "y": a.views * a.high * a.wide * a.c,
        "room": a.threads * (TAPS + 3) * a.across,
    }


@native(
    fastmath=None, extents=_reached, **dict.fromkeys(("x", "matrix", "y", "room"), PTR),
    **dict.fromkeys(("h", "w", "c", "views", "high", "wide", "across", "repeats", "fill"), I64),
)  # fmt: skip
def warp_rows(p, tid, nthreads):
    """Rows of all views.  room: for each thread rows of ``across`` bytes: neighbours, parts of a pixel, the result."""
    across, c, wide = p.across, p.c, p.wide
    packed = p.room + tid * (TAPS + 3) * across
    made = packed + (TAPS + 2) * across
    lo, hi = split(p.views * p.high, tid, nthreads)
    for at in range(lo, hi):
        view = at // p.high
        find_places(p, p.matrix + 72 * view, at - view * p.high, packed + 4 * across, packed + 5 * across)
        find_pixels(p, packed, across)
        for j in range(0, wide, LANES):
            vstore(made + 4 * j, blend_pixels(packed, across, c, j))
        y = p.y + at * wide * c
        for j in range(wide - 4):
            copy_bytes(y + j * c, made + 4 * j, 4)  # what is beyond a pixel is overwritten by the next ones
        for j in range(max(wide - 4, 0), wide):
            copy_bytes(y + j * c, made + 4 * j, c)


def _accepts(op: Any, ins: Types) -> bool:
    x, matrix = ins[0], ins[1]
    return x is not None and matrix is not None and x.is_static and matrix.is_static and x.size >= 4


@kernel(WarpImage, accepts=_accepts)
def warp(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Pictures of at least four bytes."""
    x, matrix = ins[0], ins[1]
    assert x is not None
    assert matrix is not None
    (h, w, c), views, (high, wide) = x.dims, matrix.dims[0], op.size
    across = -(-4 * wide // BYTES) * BYTES
    room = Scratch(context.threads * (TAPS + 3) * across)
    sizes = {"h": h, "w": w, "c": c, "views": views, "high": high, "wide": wide, "across": across}
    args = {**sizes, "repeats": int(op.edge == "repeat"), "fill": op.fill * 0x01010101}
    return [
        Step(
            warp_rows, {"x": In(0), "matrix": In(1), "y": Out(0), "room": room, **args},
            views * high * wide * TAPS >= PAYS_ELEMENTS,
        )
    ]  # fmt: skip
