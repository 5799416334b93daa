"""The transforms of Winograd's algorithm: of inputs (B'), products (A') and filters (G), for one axis of three taps.

F(m, 3) makes m results of m + 2 products.  Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
2015; points 0, 1, -1, infinity for m = 2, also 2, -2 for m = 4, also 1/2, -1/2 for m = 6.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.lang import fma, splat
from bolt_numba.kernels.cpu.pack import PANEL, aligned_empty, pack_taps, pack_winograd
from bolt_numba.kernels.jit import inline
from bolt_numba.types import Array


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
    s, t = fma(d2, splat(np.float32(-4)), d4), fma(d1, splat(np.float32(-4)), d3)
    p, q = d4 - d2, d3 - d1
    first = fma(d0, splat(np.float32(4)), fma(d2, splat(np.float32(-5)), d4))
    last = fma(d1, splat(np.float32(4)), fma(d3, splat(np.float32(-5)), d5))
    two = q + q
    return first, s + t, s - t, p + two, p - two, last


@inline
def after4(m0, m1, m2, m3, m4, m5):
    """A' m."""
    s, d, t, e = m1 + m2, m1 - m2, m3 + m4, m3 - m4
    last = fma(e, splat(np.float32(8)), d + m5)
    return m0 + s + t, fma(e, splat(np.float32(2)), d), fma(t, splat(np.float32(4)), s), last


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

G = {
    2: (2, [[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]),
    4: (24, [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]),
    6: (90, [[90, 0, 0], [-20] * 3, [-20, 20, -20], [1, 2, 4], [1, -2, 4], [64, 32, 16], [64, -32, 16], [0, 0, 90]]),
}
"""A denominator, and G times it, by m: integers, so that filters whose transforms are whole numbers have exact ones."""


def sides(sizes: tuple[int, int]) -> tuple[int, int]:
    """Inputs of a tile of ``sizes`` outputs along both axes; an axis without taps has tiles of 1."""
    high, wide = sizes
    return (high + 2 if high > 1 else 1), (wide + 2 if wide > 1 else 1)


_COLUMNS = 448
"""Columns of a product of 64 planes and 9 taps that NumPy's library does not share among threads of its own, which
wait for processors that others use."""


def pack_filters(w: Array, size: int, threads: int = 1) -> Array:
    """Filters [k, c, taps] or [k, c, 3, 3] as the kernels multiply them: [panels][planes][c][PANEL]."""
    if w.shape[2:] == (3, 3) and size < 6:
        return pack_winograd(w, size, threads)
    k, c, *taps = w.shape
    scale, rows = G[size]
    whole = np.array(rows, np.float32)
    if taps == [3, 3]:
        scale, whole = scale**2, np.kron(whole, whole)
    panels = -(-k // PANEL)
    out = aligned_empty((panels, len(whole), c, PANEL))
    room = np.empty(len(whole) * c * PANEL, np.float32)
    for j in range(panels):  # each a product of planes and taps
        part = pack_taps(w[j * PANEL : (j + 1) * PANEL], 1, threads).reshape(whole.shape[1], -1)
        width = part.shape[1] // c
        at_once = width * max(d for d in range(1, c + 1) if c % d == 0 and (d == 1 or d * width <= _COLUMNS))
        made = room[: len(whole) * c * width].reshape(len(whole), -1, at_once)
        np.matmul(whole, part.reshape(len(part), -1, at_once).swapaxes(0, 1), out=made.swapaxes(0, 1))
        np.divide(made.reshape(-1, c, width), np.float32(scale), out=out[j, :, :, :width])
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
    """Load products and transform their columns, then their rows; bias, residual, clamp; store what is inside."""
    size = max(sizes)
    side = size + 2
    if min(sizes) == 1:
        lines = [f"d{a} = vload(m + {a} * m_plane)" for a in range(side)]
        lines.append(f"{_names('r', size)} = after({_names('d', side)})")
        count, step = ("width", "") if sizes[0] == 1 else ("height", "ow * ")
        for b in range(size):
            guard = f"if {b} < {count}: " if b else ""
            lines.append(f"{guard}put(r{b} + add, y + {b} * {step}yp, res + {b} * {step}rp, res_all, n, lo, hi)")
        return lines
    lines = ["for b in range(WIDE):"]
    lines += [f"    d{a} = vload(m + m_plane * b + {side * a} * m_plane)" for a in range(side)]
    lines.append(f"    {_names('r', size)} = after({_names('d', side)})")
    lines += [f"    vstore(half + BYTES * b + {side * a} * BYTES, r{a})" for a in range(size)]
    lines.append("for a in range(height):")
    lines += [f"    d{b} = vload(half + WIDE * BYTES * a + {b} * BYTES)" for b in range(side)]
    lines.append(f"    {_names('r', size)} = after({_names('d', side)})")
    for b in range(size):
        guard = f"if {b} < width: " if b else ""
        lines.append(f"    {guard}put(r{b} + add, y + {b} * yp, res + {b} * rp, res_all, n, lo, hi)")
    lines += ["    y += ow * yp", "    res += ow * rp"]
    return lines
