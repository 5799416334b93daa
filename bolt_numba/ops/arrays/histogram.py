"""How often values fall into bins of equal width, for calibration: what quantised models are made from."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import F32, I32, Array, TensorType
from bolt_numba.ops.registry import Op, op, want_dtypes
from bolt_numba.ops.shapes import want_one

HALF = 2048
"""Bins on each side of zero."""
LEAST_EXPONENT = -100
"""Of the narrowest histogram: smaller numbers are as good as zero."""


def exponent_of(low: float, high: float) -> int:
    """The least power of two that all magnitudes are below, from `LEAST_EXPONENT` on."""
    return max(math.frexp(max(-low, high, 0.0))[1], LEAST_EXPONENT)


@op("Histogram")
class Histogram(Op):
    """counts[i] = how many elements of x fall into bin i of ``2 * HALF`` bins over [-bound, bound).

    x: [...] f32 · low, high: f32 [], least and greatest element of x -> counts: [2 * HALF] i32.  bound is the least
    power of two above all magnitudes (`exponent_of`), so that histograms of several runs have bins that fit into each
    other.  The bin is ``floor(x * HALF / bound + HALF)`` in f32.  Without finite limits the counts mean nothing.
    """

    def infer(self, x: TensorType, low: TensorType, high: TensorType) -> TensorType:
        want_dtypes(self, (F32,), x=x, low=low, high=high)
        want_one(self, low=low, high=high)
        return TensorType(I32, (2 * HALF,))

    def reference(self, x: Array, low: Array, high: Array) -> Array:
        limits = float(low.reshape(())), float(high.reshape(()))
        exponent = exponent_of(*limits) if x.size and np.all(np.isfinite(limits)) else 128
        with np.errstate(all="ignore"):
            places = x.reshape(-1) * F32.type(math.ldexp(HALF, -exponent)) + F32.type(HALF)
            places = np.where(np.isnan(places), F32.type(0), np.clip(places, 0, 2 * HALF - 1))
        return np.bincount(places.astype(I32), minlength=2 * HALF).astype(I32)
