"""From the histogram of a tensor to the range that its integers span, and from that to scale and zero point."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import OptionError
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I8, I16, I32, U8, U16, AnyDType, Array
from bolt_numba.ops.arrays.histogram import HALF
from bolt_numba.ops.arrays.quantize import limits

KINDS: dict[str, AnyDType] = {"u8": U8, "s8": I8, "u16": U16, "s16": I16}
"""Names of what activations are stored as."""
WEIGHT_KINDS: dict[str, AnyDType] = {"s8": I8, "s4": np.dtype(ml_dtypes.int4)}
"""Names of what weights are stored as: symmetric, zero is 0."""
LEAST_SCALE = 2.0**-100
"""Smaller steps would make products of scales denormal."""
EMPTY_SCALE = 2.0**-16
"""Of a weight of zeros."""
KL_BINS = 128
"""Levels of the distribution that entropy compares with, as TensorRT has them."""
LEAST_INSIDE = 0.999
"""Of the values that are not zero, what entropy's range holds at the least."""
LEAST_FILL = 8
"""Values that a bin of entropy's distribution has at the least, on average."""
CANDIDATES = 64
"""Bounds tried on each side by the least mean squared error."""


@record()
class TensorStats:
    """What is known of the values of one tensor over all runs.

    counts: [2 * HALF] i64 over [-2 ** exponent, 2 ** exponent); low, high: exact limits; average_low, average_high:
    moving averages of the limits of each run.
    """

    counts: Array
    exponent: int
    low: float
    high: float
    average_low: float
    average_high: float

    @property
    def width(self) -> float:
        """Of a bin."""
        return math.ldexp(1.0, self.exponent) / HALF

    @property
    def centres(self) -> Array:
        """Of all bins; those of values that are all on one side are no further out than they are."""
        middles = (np.arange(2 * HALF) - HALF + 0.5) * self.width
        return np.asarray(np.clip(middles, self.low, self.high))


@record(frozen=True)
class Affine:
    """How a tensor is stored: real = scale * (stored - zero_point), over [low, high]."""

    scale: float
    zero_point: int
    dtype: AnyDType
    low: float
    high: float

    @property
    def scale_array(self) -> Array:
        return np.asarray(self.scale, F32)

    @property
    def zero_array(self) -> Array:
        return np.asarray(self.zero_point).astype(self.dtype)


def affine(low: float, high: float, dtype: AnyDType, symmetric: bool = False) -> Affine:
    """Scale and zero point for the range, which is widened to hold zero; of an empty one the scale is 1.

    Both ends stay within the levels, but for one that is less than half a step from zero.
    symmetric: zero is in the middle of the levels, or at their end for unsigned ones of values that are all positive.
    """
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        reach = max(-low, high)
        if least == 0 and low == 0:
            low, zero, levels = 0.0, 0, most
        else:
            low, zero, levels = -reach, (least + most + 1) // 2, (most - least) // 2
        high = reach
        scale = _step(reach / levels)
    else:
        scale = _step((high - low) / (most - least))
        zero = int(np.clip(np.rint(least - low / scale), least, most))
        # The nearest zero point moves the ends by half a step.  One is often a value of its own, as a background of -1.
        below, above = (low / (least - zero) if zero > least else 0.0), (high / (most - zero) if zero < most else 0.0)
        scale = _step(max(below, above))
    return Affine(scale, zero, dtype, scale * (least - zero), scale * (most - zero))


def _step(wanted: float) -> float:
    """A scale that f32 holds: 1 for nothing, never so small that products of scales vanish."""
    return float(F32.type(max(wanted, LEAST_SCALE))) if wanted > 0 else 1.0


# --- ranges ----------------------------------------------------------------------------------------------------------


def min_max(stats: TensorStats, levels: int, number: float) -> tuple[float, float]:
    """Everything that was seen."""
    return stats.low, stats.high


def moving_average(stats: TensorStats, levels: int, number: float) -> tuple[float, float]:
    """The average limits of the runs, later ones counting more."""
    return stats.average_low, stats.average_high


def percentile(stats: TensorStats, levels: int, number: float) -> tuple[float, float]:
    """All but ``100 - number`` percent on each side."""
    total = stats.counts.sum()
    if not total:
        return stats.low, stats.high
    beyond = (1 - number / 100) * total
    sums = np.cumsum(stats.counts)
    first = int(np.searchsorted(sums, beyond, side="right"))
    last = int(np.searchsorted(sums, total - beyond, side="left"))
    edges = (np.array([first, last + 1]) - HALF) * stats.width
    low, high = max(float(edges[0]), stats.low), min(float(edges[1]), stats.high)
    return low, max(high, low)


def entropy(stats: TensorStats, levels: int, number: float) -> tuple[float, float]:
    """The magnitude whose 128 levels lose the least information (Kullback-Leibler), as TensorRT has it.

    Zeros are left out, which any range holds exactly.  Bins that hold few values say nothing of a distribution: they
    are joined.  Where too few are left, the range is all that was seen.  A thousandth is cut off at most: where many
    values are alike, levels of any width tell them from their neighbours too badly for this measure.
    """
    folded = stats.counts[HALF:].astype(np.float64)
    folded += stats.counts[:HALF][::-1]
    folded[0] = min(folded[0], folded[1])
    used = int(np.flatnonzero(folded).max(initial=0)) + 1
    joined = 1
    while folded.sum() < LEAST_FILL * used and used > KL_BINS:
        folded, joined, used = folded.reshape(-1, 2).sum(axis=1), 2 * joined, (used + 1) // 2
    if used <= KL_BINS:
        return stats.low, stats.high
    best, place = math.inf, used
    first = int(np.searchsorted(np.cumsum(folded), LEAST_INSIDE * folded.sum())) + 1
    for bins in range(max(KL_BINS, first), used + 1):
        found = _divergence(folded, bins)
        if found < best:
            best, place = found, bins
    reach = place * joined * stats.width
    return max(stats.low, -reach), min(stats.high, reach)


def _divergence(counts: Array, bins: int) -> float:
    """Of the first bins, what is beyond added to the last, from the same in at most `KL_BINS` levels."""
    inside = counts[:bins]
    p = inside.copy()
    p[-1] += counts[bins:].sum()
    level = np.arange(bins) * min(KL_BINS, bins) // bins
    some = inside > 0
    sums, filled = np.bincount(level, inside), np.bincount(level, some)
    q = np.where(some, (sums / np.maximum(filled, 1))[level], 0.0)
    total_p, total_q = p.sum(), q.sum()
    if not total_p or not total_q or np.any((p > 0) & (q == 0)):
        return math.inf
    p, q = p[some] / total_p, q[some] / total_q
    return float(np.sum(p * np.log(p / q)))


def least_error(stats: TensorStats, levels: int, number: float) -> tuple[float, float]:
    """The range whose rounding and clipping together make the least mean squared error."""
    counts, centres = stats.counts.astype(np.float64), stats.centres
    low, high = min(stats.low, 0.0), max(stats.high, 0.0)
    if low == high:
        return low, high
    shares = np.linspace(1.0, 0.1, CANDIDATES)
    lows = low * (shares if low < 0 else shares[:1])
    highs = high * (shares if high > 0 else shares[:1])
    above = _clipped(counts, centres, highs)
    below = _clipped(counts[::-1], -centres[::-1], -lows)
    rounded = counts.sum() - counts[HALF if low == 0 else HALF - 1 if high == 0 else slice(0)].sum()
    steps = (highs[None, :] - lows[:, None]) / (levels - 1)
    errors = rounded * steps * steps / 12 + below[:, None] + above[None, :]
    i, j = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return float(lows[i]), float(highs[j])


def _clipped(counts: Array, centres: Array, bounds: Array) -> Array:
    """Sum of the squares of what is cut off above each bound."""
    tails = [np.append(np.cumsum((counts * centres**k)[::-1])[::-1], 0.0) for k in range(3)]
    at = np.searchsorted(centres, bounds, side="right")
    s0, s1, s2 = (tail[at] for tail in tails)
    return np.asarray(np.maximum(s2 - 2 * bounds * s1 + bounds * bounds * s0, 0.0))


Method = Callable[[TensorStats, int, float], tuple[float, float]]
METHODS: dict[str, Method] = {
    "min-max": min_max,
    "moving-average": moving_average,
    "percentile": percentile,
    "entropy": entropy,
    "mse": least_error,
}
"""How the range of a tensor follows from what was seen; ``percentile:99.9`` says which."""
USUAL_PERCENTILE = 99.99


def method_of(text: Any) -> tuple[Method, float]:
    """A method by its name, with its number; raises OptionError."""
    name, colon, number = str(text).partition(":")
    try:
        value = float(number) if colon else USUAL_PERCENTILE
    except ValueError:
        value = math.nan
    if name not in METHODS or (colon and name != "percentile") or not 50 < value <= 100:
        raise OptionError(f"method: got {text!r}, wanted one of {', '.join(METHODS)} (percentile:99.9)")
    return METHODS[name], value


def range_of(stats: TensorStats, method: str, dtype: AnyDType) -> tuple[float, float]:
    """The range of a tensor by the method of this name."""
    chosen, number = method_of(method)
    return chosen(stats, 1 << (8 * dtype.itemsize), number)


# --- weights ---------------------------------------------------------------------------------------------------------


@record(frozen=True)
class StoredWeight:
    """A weight in integers, with its scales: [] or one for each index of the axis, f32."""

    data: Array
    scale: Array
    axis: int

    @property
    def real(self) -> Array:
        """What it stands for, f32."""
        shape = [1] * self.data.ndim
        if self.scale.size > 1:
            shape[self.axis] = -1
        return self.data.astype(F32) * self.scale.reshape(shape)


def stored_weight(weight: Array, axis: int | None, kind: str) -> StoredWeight:
    """A weight rounded to symmetric integers.  axis: None for one scale; int4 have 7 levels on each side."""
    dtype = WEIGHT_KINDS[kind]
    levels = int(limits(dtype)[1])
    axes = tuple(i for i in range(weight.ndim) if axis is None or i != axis % weight.ndim)
    reach = np.max(np.abs(weight), axis=axes, keepdims=True, initial=0.0)
    usual = reach.max(initial=0.0) / levels or EMPTY_SCALE  # of a channel of zeros: its bias is rounded to it
    scale = np.where(reach > 0, np.maximum(reach / levels, LEAST_SCALE), usual).astype(F32)
    data = np.clip(np.rint(weight / scale), -levels, levels).astype(I8).astype(dtype)
    flat = scale.reshape(()) if axis is None else scale.reshape(-1)
    return StoredWeight(data, flat, 0 if axis is None else axis % weight.ndim)


def stored_bias(bias: Array, x_scale: float, w_scale: Array) -> tuple[Array, Array] | None:
    """A bias as i32 in steps of x_scale * w_scale, with these; None where it does not fit."""
    scale = (F32.type(x_scale) * w_scale).astype(F32)
    with np.errstate(all="ignore"):
        steps = np.rint(bias.astype(np.float64) / scale)
    if not np.all(np.abs(steps) < 2.0**31) or not np.all(scale > 0):
        return None
    return steps.astype(I32), np.broadcast_to(scale, bias.shape).copy() if scale.ndim else scale
