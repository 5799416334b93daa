"""Sums of `strassen`: of rows S1…S4, made while running, and of panels T1…T4, made once."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    all_lanes,
    fma,
    load_f32,
    load_i64,
    splat,
    split,
    vload,
    vload_n,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.pack import PANEL, aligned_empty, run_shares
from bolt_numba.kernels.cpu.products.sweep import MR
from bolt_numba.kernels.jit import I64, PTR, inline, native

LARGE_SQUARE = 2.0**120
"""Square from which a sum is large: with weights up to `error.RANGE`, products of lesser ones are finite."""


@inline
def add_columns(top, bottom, half, scales, to, step, q, n, seen):
    """S1…S4, ``step`` bytes apart, of n columns from column q of two rows; ``seen`` plus their squares."""
    right = 4 * half
    scale, inverse = vload(scales + q), vload(scales + right + q)
    if n >= LANES:
        a11, a12, a21, a22 = vload(top + q), vload(top + right + q), vload(bottom + q), vload(bottom + right + q)
    else:
        a11, a12 = vload_n(top + q, n), vload_n(top + right + q, n)
        a21, a22 = vload_n(bottom + q, n), vload_n(bottom + right + q, n)
    s1 = fma(a22, scale, a21)
    s2, s3 = s1 - a11, a11 - a21
    s4 = a12 - s2 * inverse
    vstore(to + q, s1)
    vstore(to + step + q, s2)
    vstore(to + 2 * step + q, s3)
    vstore(to + 3 * step + q, s4)
    x1, x2, x3, x4 = seen
    return fma(s1, s1, x1), fma(s2, s2, x2), fma(s3, s3, x3), fma(s4, s4, x4)


@inline
def add_rows(rows, half, scales, to, ld):
    """S1…S4 of a pair of tiles, MR rows of ``ld`` bytes each; whether one is large, which NaN and infinities are, too.

    ld leaves room for whole vectors.
    """
    zero = splat(np.float32(0))
    seen = zero, zero, zero, zero
    for r in range(MR):
        top, bottom = load_i64(rows + 8 * r), load_i64(rows + 8 * (MR + r))
        for q in range(0, half, LANES):
            seen = add_columns(top, bottom, half, scales, to + ld * r, MR * ld, 4 * q, half - q, seen)
    x1, x2, x3, x4 = seen
    return 0 if all_lanes(x1 + x2 + (x3 + x4) < np.float32(LARGE_SQUARE)) else 1


@native(
    b=PTR, sums=I64, scales=PTR, pairs=I64, half=I64,
    extents=lambda a: {
        "b": a.sums + 8 * BYTES * a.half * a.pairs if a.pairs * a.half else 0,
        "scales": 8 * a.half if a.pairs * a.half else 0,
    },
)  # fmt: skip
def sum_panels(p, tid, nthreads):
    """T2, T3, T4, T1, [half][PANEL] each, of every pair of panels at b; they begin ``sums`` bytes behind it.

    scales: see `error.balance`.
    """
    half = p.half
    part = 2 * BYTES * half
    lo, hi = split(p.pairs * 2 * half, tid, nthreads)
    for unit in range(lo, hi):
        j, at = unit // (2 * half), unit % (2 * half) * BYTES
        b = p.b + 4 * part * j + at
        to, scales = b + p.sums, p.scales + 4 * (unit // 2 % half)
        scale, inverse = load_f32(scales), load_f32(scales + 4 * half)
        b11, b21, b12, b22 = vload(b), vload(b + part), vload(b + 2 * part), vload(b + 3 * part)
        t1, b22 = b12 - b11, b22 * inverse
        t2 = b22 - t1
        vstore(to, t2)
        vstore(to + part, b22 - b12)
        vstore(to + 2 * part, b21 - t2 * scale)
        vstore(to + 3 * part, t1)


def count_pairs(n: int) -> int:
    """Pairs of panels that are stored with their full width."""
    return (n + PANEL - LANES - 1) // (2 * PANEL)


def with_sums(panels: Array, scales: Array, n: int, k: int, threads: int) -> Array:
    """Packed panels with their sums behind them."""
    pairs = count_pairs(n)
    out = aligned_empty((panels.size + 2 * pairs * PANEL * k,))
    out[: panels.size] = panels.reshape(-1)
    run_shares(sum_panels, threads, out.nbytes, b=out, sums=panels.nbytes, scales=scales, pairs=pairs, half=k // 2)
    return out
