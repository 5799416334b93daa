"""Tiles of Winograd's algorithm in which something is not finite, computed again as direct sums.

The transforms would spread a NaN or an infinity over its tile (inf - inf).  `winograd` finds such tiles by their
results and calls this on its own parameters.  Filters are taken back out of their transforms, which costs many times
the arithmetic; where an input that a result needs is NaN, so is the result, and nothing is computed.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache, partial

import numpy as np

from bolt_numba.kernels.cpu.convolution.winograd_transforms import FIELDS, reach, recovery, sides
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    all_lanes,
    fma,
    load_f32,
    load_i32,
    splat,
    vload,
    vload_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.epilogue import put
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.jit import Native, inline, native_source


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


_BODY = """
def {name}(p, tile, panel):
    h, wd, c, oh, ow, k, xp, yp, rp = p.h, p.wd, p.c, p.oh, p.ow, p.k, 4 * p.xp, 4 * p.yp, 4 * p.rp
    down, across, deep = p.down, p.across, p.deep
    image, ty, tx = tile // (down * across), tile // across % down * ROWS, tile % across * COLUMNS
    slices, filters = p.slices + 4 * deep * image, p.u + panel * PLANES * deep * c * PANEL * 4
    area, plane = h * wd * xp, deep * c * PANEL * 4
    seen = 0
    for t in range(deep):
        at = load_i32(slices + 4 * t)
        if at >= 0:
            for a in range(HIGH):
                for b in range(WIDE):
                    row, col = ty + a - p.top, tx + b - p.left
                    if (row >= 0) & (row < h) & (col >= 0) & (col < wd):
                        seen |= has_nan(p.x + at * area + (row * wd + col) * xp, c) << (WIDE * a + b)
    window = {window}
    for out in range(min(oh - ty, ROWS) * min(ow - tx, COLUMNS)):
        a, b = out // min(ow - tx, COLUMNS), out % min(ow - tx, COLUMNS)
        spoilt = (seen >> (WIDE * a + b)) & window
        pixel, first = (image * oh + ty + a) * ow + tx + b, PANEL * panel
        for lane in range(0, min(k - first, PANEL), LANES):
            acc = splat(np.float32(math.nan)) if spoilt != 0 else splat(np.float32(0))
            row, col = ty + a - p.top, tx + b - p.left
            for t in range(deep):
                x, u = p.x + load_i32(slices + 4 * t) * area, filters + 4 * PANEL * c * t + 4 * lane
                if (x >= p.x) & (spoilt == 0):
{taps}
            channel = first + lane
            y, res = p.y + pixel * yp + 4 * channel, p.res + pixel * rp + 4 * channel
            put(acc + vload(p.bias + 4 * channel), y, res, p.res, k - channel, p.lo, p.hi)
"""


def _tap(r: int, s: int, parts: list[tuple[int, float]]) -> list[str]:
    """The sum over channels of one tap, whose filters are the sum of planes times factors."""
    terms = " + ".join(f"vload(at + {plane} * plane) * np.float32({factor!r})" for plane, factor in parts)
    return [
        f"inside = (row + {r} >= 0) & (row + {r} < h) & (col + {s} >= 0) & (col + {s} < wd)",
        "if inside:",
        f"    source = x + ((row + {r}) * wd + col + {s}) * xp",
        "    for q in range(c):",
        "        at = u + 4 * PANEL * q",
        f"        acc = fma(splat(load_f32(source + 4 * q)), {terms}, acc)",
    ]


@cache
def winograd_repair(sizes: tuple[int, int]) -> Native:
    """f(parameters of `winograd`, tile, panel): the results of one tile for one panel of filters."""
    name, (high, wide) = f"winograd_repair_{sizes[0]}x{sizes[1]}", sides(sizes)
    rows, columns = (recovery(max(sizes)) if size > 1 else [[(0, 1.0)]] for size in sizes)
    lines, window = [], 0
    for r, upright in enumerate(rows):
        for s, level in enumerate(columns):
            window |= 1 << (wide * r + s)
            lines += _tap(r, s, [(wide * a + b, f * g) for a, f in upright for b, g in level])
    body = _BODY.format(name=name, window=window, taps="\n".join(" " * 20 + line for line in lines))
    return native_source(
        body, name, FIELDS, extents=partial(reach, high * wide),
        ROWS=sizes[0], COLUMNS=sizes[1], HIGH=high, WIDE=wide, PLANES=high * wide, LANES=LANES,
        PANEL=PANEL, has_nan=has_nan, put=put, fma=fma, load_f32=load_f32, load_i32=load_i32, splat=splat,
        vload=vload, math=math, np=np,
    )  # fmt: skip
