"""What kernels of attention share: fields, extents, and the helpers that look at one row of scores.

A *unit* is a row of the table of heads (`kernels.geometry.heads.ENTRY` numbers): ``group`` heads of queries that read
the same keys.  Its rows of scores are those of its first head, then those of the next: row r is query r % m of head
r // m.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import F32, I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, ex2, max_f32
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import KEPT, Reach
from bolt_numba.kernels.geometry.heads import ENTRY

LOG2_E = math.log2(math.e)
"""Scores are multiplied by this, so that powers of two serve."""

LEAST_SCORE = np.float32(-(2.0**100))
"""Finite scores are no less, so that no factor makes them -inf: masks may be the least finite number of a dtype."""

EXTRA = 8
"""Numbers behind the columns of a partial result, of which two are used: rows begin with a sector of 32 bytes."""

FIELDS: dict[str, Any] = {
    "q": PTR, "k": PTR, "v": PTR, "mask": PTR_OR_0, "sink": PTR_OR_0, "y": PTR, "table": PTR,
    **dict.fromkeys(
        ("units", "group", "m", "d", "width", "q_step", "k_step", "v_step", "y_step", "mask_step", "q_head", "y_head",
         "mask_head", "window"), I64,
    ),
    "scale": F32, "cap": F32,
}  # fmt: skip
"""Of each head, where the table says: q [m][d], k [keys][d], v [keys][width], y [m][width], mask [m][keys].

Steps are bytes from one position to the next, ``_head`` bytes from one head of a unit to the next (sinks are next to
each other).  d, width: elements of a key and of a value.  window: keys that a query sees, the last ones.  cap: c of
c * tanh(scores / c), or 0."""


def results_reach(size: int) -> Callable[[Any], dict[str, Reach]]:
    """Extents of results, sinks and table for elements of ``size`` bytes."""

    def reach(a: Any) -> dict[str, Reach]:
        table: dict[str, Reach] = {"table": 8 * ENTRY * a.units}
        if not isinstance(a.table, np.ndarray):  # as `cache_table` makes it: heads lie side by side
            return {"y": size * a.units * a.group * a.m * a.width, "sink": a.y_step // a.width} | table
        y, sinks = a.table.reshape(-1, ENTRY).max(axis=0)[[4, 7]].tolist()
        end = y + (a.m - 1) * a.y_step + (a.group - 1) * a.y_head + size * a.width
        return {"y": end, "sink": sinks + size * a.group} | table

    return reach


def reach_of(size: int) -> Callable[[Any], dict[str, Reach]]:
    """Extents of `FIELDS` for elements of ``size`` bytes."""
    results = results_reach(size)

    def reach(a: Any) -> dict[str, Reach]:
        if not isinstance(a.table, np.ndarray):
            found: dict[str, Reach] = {"q": size * a.units * a.group * a.m * a.d, "k": KEPT, "v": KEPT, "mask": KEPT}
            return found | results(a)
        q, k, v, mask, _, keys, _, _ = a.table.reshape(-1, ENTRY).max(axis=0).tolist()
        more = a.group - 1
        return {
            "q": q + (a.m - 1) * a.q_step + more * a.q_head + size * a.d,
            "k": k + (keys - 1) * a.k_step + size * a.d if keys > 0 else 0,
            "v": v + (keys - 1) * a.v_step + size * a.width if keys > 0 else 0,
            "mask": mask + (a.m - 1) * a.mask_step + more * a.mask_head + size * keys if keys > 0 else 0,
            **results(a),
        }

    return reach


@inline
def place(row, m, head, step):
    """Bytes from the beginning of a unit to a row of it."""
    over = np.uint32(row) // np.uint32(m)
    return np.int64(over) * head + np.int64(np.uint32(row) - over * np.uint32(m)) * step


@inline
def seen(query, before, window, keys):
    """First key that a query sees, and the one behind the last."""
    limit = before + np.int64(query) + 1
    return max(np.int64(0), limit - window), min(limit, keys)


@inline
def block_keys(first, count, group, m, before, window, keys):
    """First key, and the one behind the last, that any of ``count`` rows sees."""
    low, high = first, first + count - 1
    if group > 1:
        low, high = np.int64(0), m - 1
    end = min(keys, before + min(high, m - 1) + 1)
    return min(max(np.int64(0), before + low + 1 - window), end), end


@inline
def capped(score, cap):
    """C * tanh(score / c), by powers of two; cap: c above 0."""
    e = ex2(abs(score) / cap * np.float32(-2 * LOG2_E))
    t = cap * ((np.float32(1) - e) / (np.float32(1) + e))
    return -t if score < np.float32(0) else t


def score_of(dtype: str) -> Inline:
    """Helper: a product with a key as a power of two's exponent, with cap and mask; mask: address of the row, or 0."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def scored(product, key, mask, scale, cap):
        s = product * scale
        if cap > np.float32(0):
            s = capped(s, cap)
        if mask != 0:
            s += load(mask + size * key)
            s = LEAST_SCORE if s < LEAST_SCORE and s != np.float32(-np.inf) else s
        return s * np.float32(LOG2_E)

    return scored


@inline
def lanes_max(value, lanes):
    """Of ``lanes`` lanes next to each other."""
    while lanes > 1:
        lanes >>= 1
        value = max_f32(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, lanes))
    return value


@inline
def lanes_sum(value, lanes):
    while lanes > 1:
        lanes >>= 1
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, lanes)
    return value


@inline
def shifted(top):
    """What scores of a row are taken from: its maximum, or 0 where it sees nothing."""
    return np.float32(0) if top == np.float32(-np.inf) else top


@inline
def inverse(total):
    """Of a row's sum of powers; 0 for a row that sees nothing."""
    return np.float32(0) if total == np.float32(0) else np.float32(1) / total
