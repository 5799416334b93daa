"""The transforms of Winograd's algorithm: of inputs (B'), products (A') and filters (G), for one axis of three taps.

F(m, 3) makes m results of m + 2 products.  Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
2015; points 0, 1, -1, infinity for m = 2, also 2, -2, 1/2, -1/2 for m = 6.  Those of m = 4 are 0, 11/16, -11/16, 23/16,
-23/16, infinity: of all pairs of sixteenths they round least, a quarter as much as the usual 1 and 2.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES, fma, splat
from bolt_numba.kernels.cpu.products.pack import FILTER_SCALE, HIGH, LOW, PANEL, aligned_empty, pack_taps, pack_winograd
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0, inline

FIELDS = {
    "x": PTR, "u": PTR, "bias": PTR, "res": PTR_OR_0, "y": PTR, "zeros": PTR, "xp": I64, "rp": I64, "yp": I64,
    "slices": PTR, "deep": I64,
    "h": I64, "wd": I64, "c": I64, "oh": I64, "ow": I64, "k": I64, "top": I64, "left": I64, "dy": I64, "dx": I64,
    "across": I64, "down": I64, "tiles": I64, "blocks": I64,
    "work": PTR, "work_step": I64, "v": PTR, "v_step": I64, "v_row": I64, "v_plane": I64, "m_plane": I64,
    "phase": I64, "shared": I64, "repair": CODE, "rows": I64, "columns": I64, "recovery": PTR,
    "lo": F32, "hi": F32, "act": CODE,
}  # fmt: skip
"""Parameters.  x: [images, h, wd, c], pixels ``xp`` elements apart · u: see `pack.winograd_filters` ·
bias: [panels * PANEL] · res, y: [images, oh, ow, k], pixels ``rp`` and ``yp`` apart (res may be 0) ·
zeros: c elements, read outside the image · slices, deep: see `winograd_layers.slice_table`; an image of results is the
sum over ``deep`` images of x, and a transformed tile has ``deep * c`` channels ·
top, left: begin pads · dy, dx: rows and columns from one to the next of a tile · across, down: tiles of an image ·
tiles: of all images, in ``blocks`` even blocks.
work, v: workspace, ``work_step`` and ``v_step`` bytes to the next thread's · v_row, v_plane: bytes between tiles and
between the planes of transformed inputs · m_plane: the same of products.
phase: 1 transforms inputs, 2 multiplies and transforms back, 3 both · shared: 0 if threads divide the blocks, 1 if they
divide the work of each · repair: see `winograd_repair`, which reads rows, columns (of a tile's results) and recovery ·
act: see `epilogue.Finish`."""


def reach(a: Any) -> dict[str, Reach]:
    """Extents of a kernel with these fields."""
    planes = math.prod(sides((a.rows, a.columns)))
    images, most = a.tiles // (a.down * a.across), -(-a.tiles // a.blocks)
    last, panels = images * a.oh * a.ow - 1, -(-a.k // PANEL)
    return {
        "x": 4 * (((a.slices.max().item() + 1) * a.h * a.wd - 1) * a.xp + a.c),
        "slices": 4 * images * a.deep,
        "u": 4 * PANEL * planes * a.deep * a.c * panels,
        "bias": BYTES * -(-a.k // LANES),
        "res": 4 * (last * a.rp + a.k),
        "y": 4 * (last * a.yp + a.k),
        "zeros": 4 * a.c,
        "recovery": 96,
        "work": (a.threads - 1) * a.work_step + planes * (8 + BYTES) + (planes - 1) * a.m_plane + 4 * most * PANEL,
        "v": (a.threads - 1) * a.v_step + (planes - 1) * a.v_plane + (most - 1) * a.v_row + 4 * a.deep * a.c,
    }


@inline
def first_of(tile, size, step):
    """The first row or column of a tile whose ``size`` ones are ``step`` apart; neighbours of it begin other tiles."""
    return tile // step * (size * step) + tile % step


LOW2, HIGH2 = LOW**2, HIGH**2
POINTS = {2: (0, 1, -1), 4: (0, LOW, -LOW, HIGH, -HIGH), 6: (0, 1, -1, 2, -2, 0.5, -0.5)}
"""By m, without infinity, in the order of the planes."""


@inline
def before6(d0, d1, d2, d3, d4, d5, d6, d7):
    """B' d."""
    first = fma(d4 - d2, splat(np.float32(5.25)), d0 - d6)
    last = fma(d3 - d5, splat(np.float32(5.25)), d7 - d1)
    s, t = fma(d4, splat(np.float32(-4.25)), d2 + d6), fma(d3, splat(np.float32(-4.25)), d1 + d5)
    p = fma(d2, splat(np.float32(0.25)), fma(d4, splat(np.float32(-1.25)), d6))
    q = fma(d5, splat(np.float32(4)), fma(d3, splat(np.float32(-5)), d1))
    u = fma(d2, splat(np.float32(4)), fma(d4, splat(np.float32(-5)), d6))
    v = fma(d1, splat(np.float32(4)), fma(d3, splat(np.float32(-5)), d5))
    half = splat(np.float32(0.5))
    return first, s + t, s - t, fma(q, half, p), p - q * half, fma(v, half, u), u - v * half, last


@inline
def after6(m0, m1, m2, m3, m4, m5, m6, m7):
    """A' m."""
    s, d, t, e, u, v = m1 + m2, m1 - m2, m3 + m4, m3 - m4, m5 + m6, m5 - m6
    return (
        m0 + s + (t + u),
        fma(v, splat(np.float32(0.5)), fma(e, splat(np.float32(2)), d)),
        fma(u, splat(np.float32(0.25)), fma(t, splat(np.float32(4)), s)),
        fma(v, splat(np.float32(0.125)), fma(e, splat(np.float32(8)), d)),
        fma(u, splat(np.float32(0.0625)), fma(t, splat(np.float32(16)), s)),
        fma(v, splat(np.float32(0.03125)), fma(e, splat(np.float32(32)), d + m7)),
    )


@inline
def before4(d0, d1, d2, d3, d4, d5):
    """B' d."""
    low, high, both = splat(np.float32(-LOW2)), splat(np.float32(-HIGH2)), splat(np.float32(-LOW2 - HIGH2))
    s, t, one = fma(d2, high, d4), fma(d1, high, d3), splat(np.float32(LOW))
    p, q, two = fma(d2, low, d4), fma(d1, low, d3), splat(np.float32(HIGH))
    first = fma(d0, splat(np.float32(LOW2 * HIGH2)), fma(d2, both, d4))
    last = fma(d1, splat(np.float32(LOW2 * HIGH2)), fma(d3, both, d5))
    return first, fma(t, one, s), s - t * one, fma(q, two, p), p - q * two, last


@inline
def after4(m0, m1, m2, m3, m4, m5):
    """A' m."""
    s, d, t, e = m1 + m2, m1 - m2, m3 + m4, m3 - m4
    return (
        m0 + s + t,
        fma(e, splat(np.float32(HIGH)), d * np.float32(LOW)),
        fma(t, splat(np.float32(HIGH2)), s * np.float32(LOW2)),
        fma(e, splat(np.float32(HIGH * HIGH2)), fma(d, splat(np.float32(LOW * LOW2)), m5)),
    )


@inline
def before2(d0, d1, d2, d3):
    """B' d."""
    return d0 - d2, d1 + d2, d2 - d1, d3 - d1


@inline
def after2(m0, m1, m2, m3):
    """A' m."""
    return m0 + m1 + m2, m1 - m2 + m3


TRANSFORMS = {6: (before6, after6), 4: (before4, after4), 2: (before2, after2)}
"""B' and A' by m."""

G: dict[int, tuple[Sequence[float], Sequence[Sequence[float]]]] = {
    2: (FILTER_SCALE[2], [[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]),
    4: (FILTER_SCALE[4], [[1, 0, 0], *([1, x, x * x] for x in (LOW, -LOW, HIGH, -HIGH)), [0, 0, 1]]),
    6: (
        (90,) * 8,
        [[90, 0, 0], [-20] * 3, [-20, 20, -20], [1, 2, 4], [1, -2, 4], [64, 32, 16], [64, -32, 16], [0, 0, 90]],
    ),
}
"""Denominators of the rows of G, and the rows times these, by m: no numerator is rounded."""


@cache
def recovery(sizes: tuple[int, int]) -> Array:
    """The taps of a filter as sums of planes of its transform: [axis][tap] of plane, factor, plane, factor.

    A tap that is one plane has it twice, with halves of its factor.
    """
    table = np.zeros((2, 3, 4), np.float32)
    table[:] = (0, 0.5, 0, 0.5)
    for axis, size in enumerate(sizes):
        if size > 1:
            scales, rows = G[size]
            first, last = scales[0] / rows[0][0] / 2, scales[-1] / rows[-1][2] / 2
            middle = scales[1] / (2 * rows[1][1])
            table[axis] = (0, first, 0, first), (1, middle, 2, -middle), (size + 1, last, size + 1, last)
    return table


def sides(sizes: tuple[int, int]) -> tuple[int, int]:
    """Inputs of a tile of ``sizes`` outputs along both axes; an axis without taps has tiles of 1."""
    high, wide = sizes
    return (high + 2 if high > 1 else 1), (wide + 2 if wide > 1 else 1)


def keep_apart(w: Array, size: int, packed: Array) -> None:
    """Pack filters that are not finite so that `winograd_repair` finds each tap: its planes hold none but that.

    All tiles of theirs are repaired: the planes that it does not read are NaN, and of 2x2 any plane reaches an end.
    """
    k, c, *taps = w.shape
    high, wide = (1, *taps)[-2:]
    sizes = (size if high == 3 else 1, size if wide == 3 else 1)
    up, across = sides(sizes)
    ways: list[list[list[tuple[int, float]]]] = [[[(0, 1.0)]], [[(0, 1.0)]]]
    for axis, table in enumerate(recovery(sizes)):
        if sizes[axis] > 1:
            ways[axis] = [sorted({(int(at), 1 / (2 * f)) for at, f in row}) for row in table.reshape(3, 2, 2).tolist()]
    for row, q in np.argwhere(~np.isfinite(w.reshape(k, c, -1)).all(2)).tolist():
        planes = np.full((up, across), np.nan, np.float32)
        for (r, upright), (s, level) in product(enumerate(ways[0]), enumerate(ways[1])):
            for (a, f), (b, g) in product(upright, level):
                planes[a, b] = w.reshape(k, c, high, wide)[row, q, r, s] * np.float32(f * g)
        packed[row // PANEL, :, q, row % PANEL] = planes.reshape(-1)


_COLUMNS = 448
"""Columns of a product of 64 planes and 9 taps that NumPy's library does not share among threads of its own, which
wait for processors that others use."""


def pack_filters(w: Array, size: int, threads: int = 1) -> Array:
    """Filters [k, c, taps] or [k, c, 3, 3] as the kernels multiply them: [panels][planes][c][PANEL]."""
    if w.shape[2:] == (3, 3) and size < 6:
        return pack_winograd(w, size, threads)
    k, c, *taps = w.shape
    scales, whole = map(np.array, G[size])
    if taps == [3, 3]:
        scales, whole = np.kron(scales, scales), np.kron(whole, whole)
    scales, whole = scales.astype(np.float32), whole.astype(np.float32)
    panels = -(-k // PANEL)
    out = aligned_empty((panels, len(whole), c, PANEL))
    room = np.empty(len(whole) * c * PANEL, np.float32)
    for j in range(panels):  # each a product of planes and taps
        part = pack_taps(w[j * PANEL : (j + 1) * PANEL], 1, threads).reshape(whole.shape[1], -1)
        width = part.shape[1] // c
        at_once = width * max(d for d in range(1, c + 1) if c % d == 0 and (d == 1 or d * width <= _COLUMNS))
        made = room[: len(whole) * c * width].reshape(len(whole), -1, at_once)
        np.matmul(whole, part.reshape(len(part), -1, at_once).swapaxes(0, 1), out=made.swapaxes(0, 1))
        np.divide(made.reshape(-1, c, width), scales[:, None, None], out=out[j, :, :, :width])
        out[j, :, :, width:] = 0
    return out


def _names(prefix: str, count: int) -> str:
    return ", ".join(f"{prefix}{i}" for i in range(count))


def before_text(sizes: tuple[int, int]) -> list[str]:
    """Load and transform a tile and store it: its columns, then its rows, where it has both."""
    size = max(sizes)
    side = size + 2
    if min(sizes) == 1:
        lines = [f"d{a} = vload(load_i64(table + {8 * a}) + skip)" for a in range(side)]
    else:
        lines = ["for b in range(WIDE):"]
        lines += [f"    d{a} = vload(load_i64(table + 8 * b + {8 * side * a}) + skip)" for a in range(side)]
        lines.append(f"    {_names('e', side)} = before({_names('d', side)})")
        lines += [f"    vstore(half + BYTES * b + {side * a} * BYTES, e{a})" for a in range(side)]
        lines.append("for a in range(HIGH):")
        lines += [f"    d{b} = vload(half + WIDE * BYTES * a + {b} * BYTES)" for b in range(side)]
    inner = "" if min(sizes) == 1 else "    "
    lines.append(f"{inner}{_names('e', side)} = before({_names('d', side)})")
    for b in range(side):
        lines += [f"{inner}vstore(v, e{b})", f"{inner}v += v_plane"]
    return lines


def after_text(sizes: tuple[int, int]) -> list[str]:
    """Load products and transform their columns, then their rows; bias, residual, clamp; store what is inside.

    odd: becomes NaN where results at both ends of a row are not finite, one of which every input of the tile reaches.
    """
    size = max(sizes)
    side = size + 2
    if min(sizes) == 1:
        lines = [f"d{a} = vload(m + {a} * m_plane)" for a in range(side)]
        lines.append(f"{_names('r', size)} = after({_names('d', side)})")
        count, step = ("width", "pixel") if sizes[0] == 1 else ("height", "row")
        lines.append(f"odd = fma(r0 + r{size - 1}, zero, odd)")
        for b in range(size):
            guard = f"if {b} < {count}: " if b else ""
            lines.append(f"{guard}put(r{b} + add, y + {b} * y_{step}, res + {b} * res_{step}, res_all, n, lo, hi)")
        return lines
    lines = ["for b in range(WIDE):"]
    lines += [f"    d{a} = vload(m + m_plane * b + {side * a} * m_plane)" for a in range(side)]
    lines.append(f"    {_names('r', size)} = after({_names('d', side)})")
    lines += [f"    vstore(half + BYTES * b + {side * a} * BYTES, r{a})" for a in range(size)]
    lines.append("for a in range(height):")
    lines += [f"    d{b} = vload(half + WIDE * BYTES * a + {b} * BYTES)" for b in range(side)]
    lines.append(f"    {_names('r', size)} = after({_names('d', side)})")
    lines.append(f"    odd = fma(r0 + r{size - 1}, zero, odd)")
    for b in range(size):
        guard = f"if {b} < width: " if b else ""
        lines.append(f"    {guard}put(r{b} + add, y + {b} * y_pixel, res + {b} * res_pixel, res_all, n, lo, hi)")
    lines += ["    y += y_row", "    res += res_row"]
    return lines
