"""Rotary position embedding: pairs of a head in vectors, one read and one write."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    even_lanes,
    interleave_high,
    interleave_low,
    load_f32,
    odd_lanes,
    store_f32,
    vload,
    vload_n,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.declare import Inline, inline


@inline
def turn_halves(x, y, cos, sin, half):
    """Elements i and i + half are a pair."""
    for i in range(0, half, LANES):
        left = half - i
        a, b = vload_n(x + 4 * i, left), vload_n(x + 4 * (half + i), left)
        c, s = vload_n(cos + 4 * i, left), vload_n(sin + 4 * i, left)
        vstore_n(y + 4 * i, a * c - b * s, left)
        vstore_n(y + 4 * (half + i), a * s + b * c, left)


@inline
def turn_neighbours(x, y, cos, sin, half):
    """Elements 2 i and 2 i + 1 are a pair."""
    i = 0
    while i + LANES <= half:
        u, v = vload(x + 8 * i), vload(x + 8 * i + BYTES)
        a, b = even_lanes(u, v), odd_lanes(u, v)
        c, s = vload(cos + 4 * i), vload(sin + 4 * i)
        first, second = a * c - b * s, a * s + b * c
        vstore(y + 8 * i, interleave_low(first, second))
        vstore(y + 8 * i + BYTES, interleave_high(first, second))
        i += LANES
    while i < half:
        one, two = load_f32(x + 8 * i), load_f32(x + 8 * i + 4)
        cosine, sine = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
        store_f32(y + 8 * i, one * cosine - two * sine)
        store_f32(y + 8 * i + 4, one * sine + two * cosine)
        i += 1


def turns(dtype: str, neighbours: bool) -> Inline:
    """Helper that turns all pairs of a head of f32 and copies what is behind them."""
    pairs = turn_neighbours if neighbours else turn_halves

    @inline
    def turn(x, y, cos, sin, c, half, d):
        pairs(x, y, cos, sin, half)
        for i in range(2 * half, d, LANES):
            vstore_n(y + 4 * i, vload_n(x + 4 * i, d - i), d - i)

    made: Inline = turn
    return made
