"""How far Winograd's algorithm may be from the exact sum, from the filters that it transforms.  No kernels here.

For one channel, with D the largest magnitude in a tile of inputs and g the filter, the transforms leave in result i
roundings of standard size u D sqrt(sum over planes p of (A_ip |B_p| (G g)_p)^2) times what one product goes through,
B_p being a row of B'.  Roundings are taken for independent and inputs of a tile for independent of B', which gives
2-norms; the bound that holds without is proportional to the number of roundings instead of its root, as that of a
direct sum is.  In the unit D |g| the root is at most the greatest eigenvalue of a 3x3 matrix: 4, 23 or 148 for tiles of
2, 4 or 6 by 6.  Channels differ in D by any factor, so the worst channel counts, with its largest filter as the unit.
Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019; Barabasz et al., "Error
analysis and improving the accuracy of Winograd convolution", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.convolution.winograd_transforms import POINTS
from bolt_numba.kernels.cpu.products.pack import TERMS

UNIT = 2.0**-24
WORST = 0.75
"""The largest error of a tile over its standard size: measured, with inputs and filters of all kinds, up to 0.7."""
TRANSFORMED = 10
"""Variance of what the transforms round, in that of a product: measured."""

LOST_SQUARE = 1e-20
"""A square of a norm under which terms of it may be lost."""


@cache
def sensitivity(size: int) -> Array:
    """[3, 3] lower triangle L: ``|g L|`` is the root above for a filter g along one axis, of the worst result."""
    points = POINTS[size]
    total = np.zeros((3, 3))
    for x in points:
        others = [p for p in points if p != x]
        g = np.array([1, x, x * x]) / math.prod(x - p for p in others)
        part = np.linalg.norm(np.poly(others)) * max(1.0, abs(x)) ** (size - 1) * g
        total += np.outer(part, part)
    total[2, 2] += np.linalg.norm(np.poly(points)) ** 2  # the point at infinity
    return np.linalg.cholesky(total)


def roundings(channels: int) -> float:
    """Standard size of the roundings that a product goes through, over that of one."""
    return math.sqrt((min(channels, TERMS) + channels / TERMS) / 2 + TRANSFORMED)


def greatest_error(size: int, filters: Sequence[int]) -> float:
    """The bound that holds for all filters of a shape [k, c, taps...], over the largest value."""
    axes = sum(count == 3 for count in filters[2:])
    worst = float(np.linalg.norm(sensitivity(size), 2)) ** axes
    return WORST * UNIT * roundings(filters[1]) * worst


def error_of(w: Array, size: int) -> Array:
    """[1]: the bound for filters [k, c, taps...]; NaN where a filter is not finite."""
    k, c, *taps = w.shape
    left = sensitivity(size)
    whole = (np.kron(left, left) if taps == [3, 3] else left).astype(np.float32)
    g = w.reshape(k, c, -1).astype(np.float32, copy=False)
    rounded, largest = _greatest_squares(g, whole)
    far = (largest < LOST_SQUARE) | (largest > 1 / LOST_SQUARE)
    if far.any():  # they say little of filters whose squares leave f32
        part = g[:, far]
        top = np.abs(part).max((0, 2), keepdims=True)
        with np.errstate(invalid="ignore"):
            part = np.divide(part, top, out=np.zeros_like(part), where=top != 0)
        rounded[far], largest[far] = _greatest_squares(part, whole)
    worst = np.divide(rounded, largest, out=np.zeros(c, np.float32), where=rounded != 0).max()
    return np.array([WORST * UNIT * roundings(c) * math.sqrt(worst)], np.float32)


def _greatest_squares(g: Array, whole: Array) -> tuple[Array, Array]:
    """For each channel of filters [k, c, taps] the greatest ``|g whole|^2`` and ``|g|^2``."""
    k, c, taps = g.shape
    flat = g.reshape(k * c, taps)
    with np.errstate(all="ignore"):
        rounded, largest = (np.square(a).sum(1, dtype=np.float32).reshape(k, c).max(0) for a in (flat @ whole, flat))
    return rounded, largest
