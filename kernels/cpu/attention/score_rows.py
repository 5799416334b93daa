"""What the attention kernels are made of: packing of keys and values, rows of scores, their softmax, weighted sums."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    fill_bytes,
    fma,
    inline,
    inline_source,
    lane,
    lanes_below,
    load_f32,
    prefetch,
    reduce_max,
    select,
    splat,
    split,
    vload,
    vload_f16,
    vload_f16_n,
    vload_n,
    vmax,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.language.vmath import exp_negative, vtanh
from bolt_numba.kernels.cpu.products.pack import transpose
from bolt_numba.kernels.cpu.reductions.softmax import exp_row, finite_or_zero, row_max
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.instructions.isa import target

VECTORS = target().vectors
PANEL = VECTORS * LANES
"""Columns of a register tile."""


@inline
def pack_keys(k, step, panels, n, d, scale, order):
    """``panels [n / PANEL][d][PANEL]`` of ``scale * k [n, d]``, rows ``step`` bytes apart; keys beyond n are 0.

    order: i32 0, 1, …, d - 1.
    """
    for vector in range(ceil_div(n, PANEL) * VECTORS):
        at = panels + 4 * ((vector // VECTORS) * d * PANEL + (vector % VECTORS) * LANES)
        row = vector * LANES
        for i in range(0, d, LANES):
            transpose(k + step * row + 4 * i, step, n - row, d - i, scale, at, order + 4 * i, 4 * PANEL)


@inline
def pack_values(v, step, panels, n, width):
    """``panels [width / PANEL][n][PANEL]`` of ``v [n, width]``, rows ``step`` bytes apart; further columns are 0."""
    for column in range(0, ceil_div(width, PANEL) * PANEL, LANES):
        at = panels + 4 * ((column // PANEL) * n * PANEL + column % PANEL)
        source = v + 4 * column
        if column + LANES <= width:
            for i in range(n):
                vstore(at + 4 * i * PANEL, vload(source + i * step))
        else:
            for i in range(n):
                vstore(at + 4 * i * PANEL, vload_n(source + i * step, width - column))


@inline
def copy_queries(q, step, rows, count, mr, d):
    """``rows [mr, d]``: ``count`` rows that lie ``step`` bytes apart, then zeros."""
    for i in range(count):
        source, to = q + i * step, rows + 4 * i * d
        for j in range(0, d, LANES):
            vstore_n(to + 4 * j, vload_n(source + 4 * j, d - j), d - j)
    fill_bytes(rows + 4 * count * d, np.uint8(0), 4 * (mr - count) * d)


@inline
def cap_row(scores, n, cap):
    """``scores = cap * tanh(scores / cap)`` for a row."""
    c, inverse = splat(cap), splat(np.float32(1.0) / cap)
    for i in range(0, n, LANES):
        vstore_n(scores + 4 * i, vtanh(vload_n(scores + 4 * i, n - i) * inverse) * c, n - i)


@inline
def mask_row(scores, mask, n):
    """``scores = scores + mask`` for a row; the greatest."""
    low = splat(-math.inf)
    top = low
    i = 0
    while i + LANES <= n:
        s = vload(scores + 4 * i) + vload(mask + 4 * i)
        vstore(scores + 4 * i, s)
        top = vmax(s, top)
        i += LANES
    if i < n:
        s = vload_n(scores + 4 * i, n - i) + vload_n(mask + 4 * i, n - i)
        vstore_n(scores + 4 * i, s, n - i)
        top = vmax(select(lanes_below(n - i), s, low), top)
    return reduce_max(top)


@inline
def find_top(scores, low, keys, mask, cap, sink):
    """Cap and mask scores ``low`` to ``keys`` in place; the greatest, 0 where all are -inf.

    mask: address of what is added to score 0, or 0.  cap: see `cap_row`, 0 for none.  sink: address of the score of a
    further key that has no value, or 0.
    """
    row, n = scores + 4 * low, keys - low
    if cap != np.float32(0.0):
        cap_row(row, n, cap)
    top = mask_row(row, mask + 4 * low, n) if mask else row_max(row, n)
    if sink:
        top = max(top, load_f32(sink))
    return finite_or_zero(top)


@inline
def exp_scores(scores, low, keys, seen, top, sink):
    """Exponentials of scores ``low`` to ``keys`` less ``top``, 0 around them up to ``seen``; `inverse` of their sum.

    This and `find_top` run over all rows of a block before the other does: within a row each number waits for the one
    before.
    """
    return inverse(sum_scores(scores, low, keys, seen, top, sink))


@inline
def inverse(total):
    """One over a sum; that of nothing counts as 1."""
    return np.float32(1.0) / (np.float32(1.0) if total == np.float32(0.0) else total)


@inline
def exp_at(x):
    """The exponential of one number that is at most 0."""
    return lane(exp_negative(splat(x)), 0)


@inline
def sum_scores(scores, low, keys, seen, top, sink):
    """As `exp_scores`; the sum."""
    total = exp_at(load_f32(sink) - top) if sink else np.float32(0.0)
    total += exp_row(scores + 4 * low, scores + 4 * low, keys - low, top)
    if low > 0:
        fill_bytes(scores, np.uint8(0), 4 * min(low, seen))
    if keys < seen:
        fill_bytes(scores + 4 * keys, np.uint8(0), 4 * (seen - keys))
    return total


@inline
def write_block(source, pitch, y, step, n, count, factors):
    """``y[i] = source[i] * factors[i]`` for rows of ``n``, those of y ``step`` bytes apart."""
    for i in range(count):
        f, to = splat(load_f32(factors + 4 * i)), y + i * step
        for j in range(0, n, LANES):
            vstore_n(to + 4 * j, vload(source + i * pitch + 4 * j) * f, n - j)


def _score_source(half: bool) -> str:
    """Products of one query with LANES keys: a sum of vectors for each key, then a tree that adds across lanes.

    A round adds the halves of two interleaved vectors; after log2(LANES) rounds lane i holds the sum of key i.
    """
    load, unit, names = "vload_f16" if half else "vload", 2 if half else 4, [f"v{i}" for i in range(LANES)]
    lines = ["def score_keys(q, k, step, d, left):", "    last = min(left, LANES) - 1"]
    lines += [f"    k{i} = k + step * min({i}, last)" for i in range(LANES)]
    lines += [f"    {name} = splat(0.0)" for name in names]
    lines += ["    i = 0", "    while i + LANES <= d:", "        x = vload(q + 4 * i)"]
    lines += [f"        v{i} = fma(x, {load}(k{i} + {unit} * i), v{i})" for i in range(LANES)]
    lines += ["        i += LANES", "    if i < d:", "        x = vload_n(q + 4 * i, d - i)"]
    lines += [f"        v{i} = fma(x, {load}_n(k{i} + {unit} * i, d - i), v{i})" for i in range(LANES)]
    left = LANES // 2
    while left:
        pairs = [f"(v{i}, v{i + left})" for i in range(left)]
        lines += [f"    v{i} = interleave_low{pair} + interleave_high{pair}" for i, pair in enumerate(pairs)]
        left //= 2
    return "\n".join([*lines, "    return v0"]) + "\n"


@cache
def score_keys(half: bool) -> Inline:
    """``f(q, k, step, d, left)``: products of a query with up to LANES keys ``step`` bytes apart, as a vector.

    half: keys are f16.
    """
    text = _score_source(half)
    return inline_source(text, "score_keys", **scope_of(text))


@inline
def prefetch_rows(at, step, n, size, part, parts):
    """Ask for one of ``parts`` of ``n`` rows of ``size`` bytes; a whole block at once would stop the arithmetic.

    Products with many rows at a time hide from the processor what comes next.
    """
    first, last = split(max(n, 0), part, parts)
    for row in range(first, last):
        for column in range(0, size, 64):
            prefetch(at + row * step + column)


KEYS_AT_ONCE = 32
"""Keys whose values are read for one query after the other."""


@cache
def add_values(half: bool) -> Inline:
    """``f(scores, v, step, y, n, width)``: ``y += sum of scores[j] * v[j]`` over n rows, four vectors at a time.

    half: values are f16.
    """
    load, load_n, unit = (vload_f16, vload_f16_n, 2) if half else (vload, vload_n, 4)
    vector = unit * LANES

    @inline
    def add(scores, v, step, y, n, width):
        for column in range(0, width, 4 * LANES):
            left, at, to = width - column, v + unit * column, y + 4 * column
            a, b = vload_n(to, left), vload_n(to + BYTES, left - LANES)
            c, e = vload_n(to + 2 * BYTES, left - 2 * LANES), vload_n(to + 3 * BYTES, left - 3 * LANES)
            if left >= 4 * LANES:
                for j in range(n):
                    x = splat(load_f32(scores + 4 * j))
                    a, b = fma(x, load(at), a), fma(x, load(at + vector), b)
                    c, e = fma(x, load(at + 2 * vector), c), fma(x, load(at + 3 * vector), e)
                    at += step
            else:
                for j in range(n):
                    x = splat(load_f32(scores + 4 * j))
                    a, b = fma(x, load_n(at, left), a), fma(x, load_n(at + vector, left - LANES), b)
                    c = fma(x, load_n(at + 2 * vector, left - 2 * LANES), c)
                    e = fma(x, load_n(at + 3 * vector, left - 3 * LANES), e)
                    at += step
            vstore_n(to, a, left)
            vstore_n(to + BYTES, b, left - LANES)
            vstore_n(to + 2 * BYTES, c, left - 2 * LANES)
            vstore_n(to + 3 * BYTES, e, left - 3 * LANES)

    return add


@inline
def scale_rows(y, n, factor):
    f = splat(factor)
    for j in range(0, n, LANES):
        vstore_n(y + 4 * j, vload_n(y + 4 * j, n - j) * f, n - j)


__all__ = [
    "KEYS_AT_ONCE", "PANEL", "VECTORS", "add_values", "copy_queries", "exp_at", "exp_scores", "find_top", "inverse",
    "pack_keys", "pack_values", "prefetch_rows", "scale_rows", "score_keys", "sum_scores", "write_block",
]  # fmt: skip
