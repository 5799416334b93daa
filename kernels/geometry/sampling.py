"""Where GridSample and RoiAlign read: formulas of one point, for kernels of every device.

Helpers are made for what a device gives to bodies (`kernels.geometry.elements.DeviceParts`).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache

import numpy as np

from bolt_numba.kernels.declare import Inline, inline
from bolt_numba.kernels.geometry.elements import DeviceParts
from bolt_numba.ops.layers.detection.regions import MAX_SAMPLES
from bolt_numba.ops.layers.resize import GREATEST_POINT

MODES = {"nearest": 1, "linear": 2, "cubic": 4}
"""Taps along one axis."""
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
FEW_SAMPLES = 64
"""Samples along one side of a bin up to which all are taken."""
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)


@inline
def clamped(at, top, low):
    """A coordinate brought to low…top; NaN stays."""
    at = top if at > top else at
    return low if at < low else at


@inline
def reflected(at, size, align):
    """A coordinate mirrored at the borders until it is inside, in f64."""
    low = 0.0 if align else -0.5
    high = np.float64(size) - 1.0 - low
    if high <= low:
        return _ZERO
    if at >= low and at <= high:
        return np.float32(at)
    period = 2.0 * (high - low)
    wide = at - low
    folded = min(max(wide - math.floor(wide / period) * period, 0.0), period)
    return np.float32(low + min(folded, period - folded))


@inline
def weight_of(distance, taps):
    """Of a tap: a triangle, or the cubic kernel with a = -0.75."""
    d = abs(distance)
    if taps == 1:
        return _ONE
    if taps == 2:
        left = _ONE - d
        return _ZERO if left < _ZERO else left  # NaN stays
    a = np.float32(-0.75)
    if d <= _ONE:
        return ((a + _TWO) * d - (a + np.float32(3))) * d * d + _ONE
    return ((a * d - np.float32(5) * a) * d + np.float32(8) * a) * d - np.float32(4) * a if d < _TWO else _ZERO


@cache
def grid_taps(on: DeviceParts) -> tuple[Inline, Inline]:
    """Helpers ``(point, size, align, taps, padding)`` and ``(at, t, size, align, taps, padding)``.

    The first one brings a point of -1…1 to elements and inside, as the padding says: 0 for one to be reflected that is
    further outside than its digits tell, or no number.  The second one gives element and weight of tap t there.
    """
    rint, floor = on.rint, on.floor

    @inline
    def pixel_of(given, size, align, taps, padding):
        if padding == 2:
            if not abs(given) <= np.float32(GREATEST_POINT):
                return _ZERO
            point, length = np.float64(given), np.float64(size)
            far = (point + 1.0) / 2.0 * (length - 1.0) if align else ((point + 1.0) * length - 1.0) / 2.0
            return reflected(np.float64(rint(far)) if taps == 1 else far, size, align)
        count = np.float32(size)
        at = (given + _ONE) / _TWO * (count - _ONE) if align else ((given + _ONE) * count - _ONE) / _TWO
        if taps == 1:
            at = np.float32(rint(at))
        room = _TWO if taps == 4 else _ZERO
        return clamped(at, count - _ONE + room, -room) if padding == 1 else at

    @inline
    def tap_of(at, t, size, align, taps, padding):
        base = np.float32(rint(at)) if taps == 1 else floor(at) - (_ONE if taps == 4 else _ZERO)
        tap, top = base + np.float32(t), np.float32(size) - _ONE
        w = weight_of(tap - at, taps)
        if padding == 0 and not (tap >= _ZERO and tap <= top):
            w = _ZERO
        if padding == 2:
            tap = reflected(np.float64(tap), size, align)
        tap = clamped(tap, top, _ZERO)
        return np.int64(tap) if tap == tap else np.int64(0), w

    return pixel_of, tap_of


@inline
def neighbours(at, size):
    """The elements before and behind a coordinate inside, and the share of the second."""
    at = min(max(at, _ZERO), np.float32(size) - _ONE)
    first = np.int64(at)
    return first, min(first + 1, size - 1), at - np.float32(first)


@inline
def is_near(v, u, h, w):
    """Whether a point is not more than a pixel outside; NaN is."""
    return v >= -_ONE and v <= np.float32(h) and u >= -_ONE and u <= np.float32(w)


@inline
def side_of(low, high, scale, half_pixel):
    """Where a side of a region begins in pixels, and its length."""
    first = low * scale - (np.float32(0.5) if half_pixel else _ZERO)
    size = high * scale - (np.float32(0.5) if half_pixel else _ZERO) - first
    return first, size if half_pixel else max(size, _ONE)


@cache
def region_samples(on: DeviceParts) -> tuple[Inline, Inline]:
    """Helpers ``samples_of(size, count, ratio)`` and ``near(start, each, count, size)``."""
    divide = on.divide

    @inline
    def samples_of(size, count, ratio):
        """Samples along one side of a bin; none of a region that ends where it begins."""
        if ratio > 0:
            return np.int64(ratio)
        each = divide(size, np.float32(count))
        if not each > _ONE:
            return np.int64(1) if size > _ZERO else np.int64(0)  # 0 for NaN, too
        return np.int64(math.ceil(each)) if each < np.float32(MAX_SAMPLES) else np.int64(MAX_SAMPLES)

    @inline
    def near(start, each, count, size):
        """First and end of the ``count`` samples ``each`` apart that are less than a pixel outside of 0…size.

        A few more for rounding; all where they are few.  A region far larger than the image takes no longer than one of
        its size.
        """
        if count <= FEW_SAMPLES:
            return np.int64(0), np.int64(count)
        low = divide(-_ONE - start, each) - np.float32(3)
        high = divide(np.float32(size) - start, each) + np.float32(3)
        if not low < high:  # NaN, too
            return np.int64(0), np.int64(0)
        most = np.float32(count)
        return np.int64(min(max(low, _ZERO), most)), np.int64(min(max(high, _ZERO), most))

    return samples_of, near
