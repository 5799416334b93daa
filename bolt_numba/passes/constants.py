"""When constants may be joined into one: where nothing is lost that the separate steps would have kept.

A sum is joined where that rounds little more and takes back no large term; a product where neither it nor what it
stands for can leave the range of the dtype; a weight takes a factor where its numbers stay normal.  docs/numerics.md
has the rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, AnyDType, Array

EXPONENT = 16
"""Factors between 2^-16 and 2^16 may change places with other operations on f32: what is between them then leaves the
range only where it was within 2^16 of its ends."""
LARGEST_FACTOR = 2.0**24
"""Of a weight: sums that stay under 2^104 stay finite."""
NOTHING = 2.0**-100
"""A factor below, beside one of 1, leaves nothing of a weight that could be lost."""
GROWTH = 4.0
"""Of a rounding, by joining sums."""
LARGE_TERM, CANCELLED = 2.0**10, 2.0**-8
"""A term so large is kept apart from one that leaves less than this part of it: models round by such pairs."""


def joined_sum(a: Array, c: Array) -> Array | None:
    """Their sum where (x + a) + c loses nothing by it: integers, or floats whose sum is exact or little more than c.

    c is at most the two sums that (x + a) + c rounds, so with ``GROWTH`` times c the error stays within as many times
    the bound of the two steps.
    """
    with np.errstate(all="ignore"):
        total = np.asarray(a + c)
        if a.dtype.kind != "f":
            return total
        part = total - a
        lost = (a - (total - part)) + (c - part)  # exact: Knuth, "The Art of Computer Programming", section 4.2.2
        near = (lost == 0) | (np.abs(total) <= GROWTH * np.abs(c))
        kept = np.abs(total) >= CANCELLED * np.abs(a)
    return total if np.all(np.isfinite(total) & near & kept) else None


def joined_product(a: Array, c: Array) -> Array | None:
    """Their product where (x * a) * c loses nothing by it: integers, or floats that leave no range on the way."""
    with np.errstate(all="ignore"):
        total = np.asarray(a * c)
        if a.dtype.kind != "f":
            return total
        larger, smaller = (np.abs(a) >= 1) & (np.abs(c) >= 1), (np.abs(a) <= 1) & (np.abs(c) <= 1)
        kept = (larger | smaller | (is_mild(a) & is_mild(c))) & (np.abs(total) >= np.finfo(a.dtype).tiny)
        zero = (a == 0) | (c == 0)
    return total if np.all(np.isfinite(total) & (kept | zero)) else None


def is_mild(c: Array | float, dtype: AnyDType | None = None) -> Array:
    """Where numbers of the dtype (None: their own) are so near to 1 that they may be applied earlier or later."""
    array = np.asarray(c)
    bits = limits(array.dtype if dtype is None else dtype).maxexp * EXPONENT // 128
    size = np.abs(array)
    return np.asarray((size >= 2.0**-bits) & (size <= 2.0**bits))


def scaled_weight(w: Array, factor: Array) -> Array | None:
    """``w * factor`` (which broadcasts to w) in w's dtype; None where that loses numbers or digits of w.

    NumPy reads the processor's flags, so a weight that loses nothing is not looked at twice.
    """
    if not np.all(np.abs(factor) <= LARGEST_FACTOR):
        return None
    with np.errstate(all="ignore"):
        narrow = factor.astype(w.dtype)
    made = np.array(w)  # weights in a file are not aligned, which makes a product in one go three times as slow
    try:
        with np.errstate(over="raise", under="raise", invalid="raise"):
            made *= narrow
    except FloatingPointError:
        with np.errstate(all="ignore"):
            made = np.asarray(w * narrow)
        return None if _loses(w, factor, made) else made
    return made if np.all((narrow != 0) | ~_counts(factor)) else None


def _counts(factor: Array) -> Array:
    size = np.abs(factor)
    return np.asarray((size > 0) & (size >= NOTHING * min(1.0, float(np.max(size, initial=0.0)))))


def _loses(w: Array, factor: Array, made: Array) -> bool:
    """Whether a number of w was normal, has a factor that counts, and is not normal or not finite any more."""
    tiny = limits(w.dtype).tiny
    counts = (np.abs(w) >= tiny) & _counts(factor)
    with np.errstate(all="ignore"):
        return bool(np.any((counts & (np.abs(made) < tiny)) | (np.isfinite(w) & ~np.isfinite(made))))


def cancels(before: Array, after: Array) -> bool:
    """Whether a large term is mostly taken back: ``before`` a step that adds, ``after`` it (f64)."""
    size = np.abs(before)
    return bool(np.any((size >= LARGE_TERM) & (np.abs(after) < CANCELLED * size)))


def fits(array: Array, dtype: AnyDType) -> bool:
    """Whether f64 numbers stay finite in the dtype."""
    return bool(np.all(np.abs(np.asarray(array, F64)) <= float(limits(dtype).max)))


def limits(dtype: AnyDType) -> np.finfo[Any]:
    """Of a float; bfloat16, which NumPy does not know, ends where f32 does."""
    return np.finfo(dtype if dtype.kind == "f" else F32)
