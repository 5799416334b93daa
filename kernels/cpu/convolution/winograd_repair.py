"""Tiles of Winograd's algorithm in which something is not finite, computed again as direct sums.

The transforms would spread a NaN or an infinity over its tile (inf - inf).  `winograd` finds such tiles by their
results and calls this on its own parameters.  Filters are taken back out of their transforms, which costs many times
the arithmetic; where an input that a result needs is NaN, so is the result, and nothing is computed.
"""

# mypy: disable-error-code="no-untyped-def"
import math

import numpy as np

from bolt_numba.kernels.cpu.convolution.winograd_transforms import FIELDS, first_of, reach
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    all_lanes,
    ceil_div,
    fma,
    load_f32,
    load_i32,
    splat,
    vload,
    vload_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.epilogue import put
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.jit import inline, native


@inline
def has_nan(at, c):
    """Whether any of c channels is NaN."""
    q = 0
    while q + LANES <= c:
        v = vload(at + 4 * q)
        if not all_lanes(v == v):
            return True
        q += LANES
    v = vload_n(at + 4 * q, c - q)
    return not all_lanes(v == v)


@inline
def inputs_with_nan(p, slices, top, left, high, wide):
    """Bit ``wide * a + b`` for each input of a tile in which any image of ``slices`` has a NaN."""
    seen, pitch = 0, 4 * p.xp
    for t in range(p.deep):
        at = load_i32(slices + 4 * t)
        for i in range(high * wide if at >= 0 else 0):
            row, col = top + i // wide * p.dy, left + i % wide * p.dx
            if (row >= 0) & (row < p.h) & (col >= 0) & (col < p.wd):
                seen |= has_nan(p.x + ((at * p.h + row) * p.wd + col) * pitch, p.c) << i
    return seen


@inline
def tap(source, filters, c, wide, plane, upright, level, acc):
    """``acc`` and one tap's sum over channels; its filters are two planes of each axis times factors (`recovery`)."""
    first, second = np.int64(load_f32(upright)) * wide, np.int64(load_f32(upright + 8)) * wide
    left, right = np.int64(load_f32(level)), np.int64(load_f32(level + 8))
    a, b, f, g = load_f32(upright + 4), load_f32(upright + 12), load_f32(level + 4), load_f32(level + 12)
    for q in range(c):
        at = filters + 4 * PANEL * q
        over = vload(at + (first + left) * plane) * f + vload(at + (first + right) * plane) * g
        under = vload(at + (second + left) * plane) * f + vload(at + (second + right) * plane) * g
        acc = fma(splat(load_f32(source + 4 * q)), over * a + under * b, acc)
    return acc


@native(fastmath=None, extents=reach, **FIELDS)
def winograd_repair(p, tile, panel):
    """The results of one tile for one panel of filters, from the parameters of `winograd`."""
    h, wd, c, oh, ow, k, xp, yp, rp = p.h, p.wd, p.c, p.oh, p.ow, p.k, 4 * p.xp, 4 * p.yp, 4 * p.rp
    across, deep, rows, columns, dy, dx = p.across, p.deep, p.rows, p.columns, p.dy, p.dx
    down_taps, across_taps = 3 if rows > 1 else 1, 3 if columns > 1 else 1
    high, wide = rows + down_taps - 1, columns + across_taps - 1
    image, ty = tile // (p.down * across), first_of(tile // across % p.down, rows, dy)
    tx = first_of(tile % across, columns, dx)
    width = min(ceil_div(ow - tx, dx), columns)
    area, plane = h * wd * xp, deep * c * PANEL * 4
    slices, filters = p.slices + 4 * deep * image, p.u + panel * high * wide * plane
    seen, window = inputs_with_nan(p, slices, ty - p.top, tx - p.left, high, wide), 0
    for tap_at in range(down_taps * across_taps):
        window |= 1 << (wide * (tap_at // across_taps) + tap_at % across_taps)
    for out in range(min(ceil_div(oh - ty, dy), rows) * width):
        a, b = out // width, out % width
        spoilt = (seen >> (wide * a + b)) & window
        pixel, first = (image * oh + ty + a * dy) * ow + tx + b * dx, PANEL * panel
        for lane in range(0, min(k - first, PANEL), LANES):
            acc = splat(np.float32(math.nan)) if spoilt != 0 else splat(np.float32(0))
            for t in range(deep if spoilt == 0 else 0):
                image_at, u = load_i32(slices + 4 * t), filters + 4 * PANEL * c * t + 4 * lane
                for r in range(down_taps):
                    row, upright = ty + (a + r) * dy - p.top, p.recovery + 16 * r
                    for s in range(across_taps):
                        col, level = tx + (b + s) * dx - p.left, p.recovery + 48 + 16 * s
                        is_inside = (image_at >= 0) & (row >= 0) & (row < h) & (col >= 0) & (col < wd)
                        source = p.x + image_at * area + (row * wd + col) * xp if is_inside else p.zeros
                        acc = tap(source, u, c, wide, plane, upright, level, acc)
            channel = first + lane
            y, res = p.y + pixel * yp + 4 * channel, p.res + pixel * rp + 4 * channel
            put(acc + vload(p.bias + 4 * channel), y, res, p.res, k - channel, p.lo, p.hi)
