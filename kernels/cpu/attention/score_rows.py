"""What the attention kernels are made of: packing of keys and values, rows of scores, their softmax, weighted sums."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    ceil_div,
    fill_bytes,
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
    store_f32,
    to_f32,
    vload,
    vload_f16_n,
    vload_i8_n,
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


UNITS = {"f32": 4, "f16": 2, "i8": 1}
"""Bytes of an element of keys and values as caches hold them.  A row of i8 may have a scale behind it."""


@inline
def _half_row(row, step, size, i):
    return vload_f16_n(row + 2 * i, size - i)


@inline
def _byte_row(row, step, size, i):
    scale = load_f32(row + size) if step > size else np.float32(1.0)
    return to_f32(vload_i8_n(row + i, size - i)) * scale


@cache
def pack_narrow(held: str) -> tuple[Inline, Inline]:
    """`pack_keys` and `pack_values` of rows that are no f32.  wide: memory for `PANEL` keys."""
    load = _byte_row if held == "i8" else _half_row

    @inline
    def pack_narrow_keys(k, step, panels, n, d, scale, order, wide):
        for first in range(0, n, PANEL):
            some = min(PANEL, n - first)
            for i in range(some):
                for j in range(0, d, LANES):
                    vstore_n(wide + 4 * (i * d + j), load(k + step * (first + i), step, d, j), d - j)
            pack_keys(wide, 4 * d, panels + 4 * first * d, some, d, scale, order)

    @inline
    def pack_narrow_values(v, step, panels, n, width):
        for column in range(0, width, LANES):
            at = panels + 4 * ((column // PANEL) * n * PANEL + column % PANEL)
            for i in range(n):
                vstore(at + 4 * i * PANEL, load(v + i * step, step, width, column))
        for column in range(ceil_div(width, LANES) * LANES, ceil_div(width, PANEL) * PANEL, LANES):
            at = panels + 4 * ((column // PANEL) * n * PANEL + column % PANEL)
            for i in range(n):
                vstore(at + 4 * i * PANEL, splat(0.0))

    return pack_narrow_keys, pack_narrow_values


@inline
def weigh_rows(held, step, size, scales, scores, pitch, rows, low, seen):
    """Rows of scores times the scales behind rows of ``size`` bytes, if these have any.  scales: memory for a row."""
    if step > size:
        for j in range(low, seen):
            store_f32(scales + 4 * j, load_f32(held + j * step + size))
        for r in range(rows):
            row = scores + r * pitch
            for j in range(low, seen, LANES):
                vstore_n(row + 4 * j, vload_n(row + 4 * j, seen - j) * vload_n(scales + 4 * j, seen - j), seen - j)


def _loading(held: str, tail: str) -> str:
    """Text for a vector of what is held, with the place of its address."""
    name = {"f32": "vload", "f16": "vload_f16", "i8": "vload_i8"}[held]
    return f"to_f32({name}{tail}({{}}))" if held == "i8" else f"{name}{tail}({{}})"


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


def keys_of(rows: int) -> int:
    """Keys whose products with so many queries are a vector."""
    return LANES // rows


def _score_source(held: str, rows: int) -> str:
    """Products of queries with keys, LANES pairs: a sum of vectors for each pair, then a tree that adds across lanes.

    A round adds the halves of two interleaved vectors; after log2(LANES) rounds lane i holds the sum of pair i.
    """
    unit, keys = UNITS[held], keys_of(rows)
    lines = ["def score_keys(q, r, m, q_head, q_step, k, step, d, left):"]
    for i in range(rows):  # to divide takes as long as several keys
        other = f"(r + {i}) // m * q_head + (r + {i}) % m * q_step"
        lines.append(f"    q{i} = q + ((r + {i}) * q_head if m == 1 else {other})")
    lines += [f"    last = min(left, {keys}) - 1", *(f"    k{i} = k + step * min({i}, last)" for i in range(keys))]
    lines += [f"    v{i} = splat(0.0)" for i in range(LANES)]

    def add(tail: str, count: str) -> list[str]:
        made = [f"        x{r} = vload{tail}(q{r} + 4 * i{count})" for r in range(rows)]
        for i in range(keys):
            made.append("        w = " + _loading(held, tail).format(f"k{i} + {unit} * i{count}"))
            made += [f"        v{r * keys + i} = fma(x{r}, w, v{r * keys + i})" for r in range(rows)]
        return made

    lines += ["    i = 0", "    while i + LANES <= d:", *add("", ""), "        i += LANES"]
    lines += ["    if i < d:", *add("_n", ", d - i")]
    left = LANES // 2
    while left:
        pairs = [f"(v{i}, v{i + left})" for i in range(left)]
        lines += [f"    v{i} = interleave_low{pair} + interleave_high{pair}" for i, pair in enumerate(pairs)]
        left //= 2
    return "\n".join([*lines, "    return v0"]) + "\n"


@cache
def score_keys(held: str, rows: int) -> Inline:
    """``f(q, r, m, q_head, q_step, k, step, d, left)``: products of ``rows`` queries with `keys_of` keys, as a vector.

    Those of a query lie side by side.  q: m queries of each head, of which r is the first that is taken.  k: keys,
    ``step`` bytes apart, ``left`` of them.  held: of `UNITS`; scales are left out.
    """
    text = _score_source(held, rows)
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


def _value_source(held: str, rows: int) -> str:
    unit, vectors = UNITS[held], WEIGHED if rows < WEIGHED else WIDE
    each = [(r, c) for r in range(rows) for c in range(vectors)]
    lines = ["def add_values(scores, pitch, v, step, y, r, m, y_head, y_step, n, width):"]
    lines += [f"    s{i} = scores + (r + {i}) * pitch" for i in range(rows)]
    lines += [f"    y{i} = y + (r + {i}) // m * y_head + (r + {i}) % m * y_step" for i in range(rows)]
    lines += [f"    for column in range(0, width, {vectors} * LANES):"]
    lines += ["        left = width - column", f"        at = v + {unit} * column"]
    spot = "y{r} + 4 * column + {c} * BYTES"
    lines += [f"        a{r}{c} = vload_n({spot.format(r=r, c=c)}, left - {c} * LANES)" for r, c in each]

    def add(tail: bool) -> list[str]:
        made = ["            for j in range(n):"]
        made += [f"                x{r} = splat(load_f32(s{r} + 4 * j))" for r in range(rows)]
        for c in range(vectors):
            place = f"at + {unit * c} * LANES" + (f", left - {c} * LANES" if tail else "")
            made.append("                w = " + _loading(held, "_n" if tail else "").format(place))
            made += [f"                a{r}{c} = fma(x{r}, w, a{r}{c})" for r in range(rows)]
        return [*made, "                at += step"]

    lines += [f"        if left >= {vectors} * LANES:", *add(False), "        else:", *add(True)]
    lines += [f"        vstore_n({spot.format(r=r, c=c)}, a{r}{c}, left - {c} * LANES)" for r, c in each]
    return "\n".join(lines) + "\n"


@cache
def add_values(held: str, rows: int) -> Inline:
    """``f(scores, pitch, v, step, y, r, m, y_head, y_step, n, width)``: ``y += sum of scores[j] * v[j]`` for n values.

    For ``rows`` rows, of which r is the first; those of y are m for each head.  held: as of `score_keys`.
    """
    text = _value_source(held, rows)
    return inline_source(text, "add_values", **scope_of(text))


WEIGHED, WIDE = 4, 4 if target().registers >= 32 else 2
"""Vectors of values that are weighed at once, for fewer rows than there are such vectors and for as many."""


@inline
def scale_rows(y, n, factor):
    f = splat(factor)
    for j in range(0, n, LANES):
        vstore_n(y + 4 * j, vload_n(y + 4 * j, n - j) * f, n - j)


__all__ = [
    "KEYS_AT_ONCE", "PANEL", "UNITS", "VECTORS", "add_values", "copy_queries", "exp_at", "exp_scores", "find_top",
    "inverse", "keys_of", "pack_keys", "pack_narrow", "pack_values", "prefetch_rows", "scale_rows", "score_keys",
    "sum_scores", "weigh_rows", "write_block",
]  # fmt: skip
