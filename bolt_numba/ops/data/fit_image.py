"""Images of bytes brought to the size, the order of channels and the numbers that a network takes (FitImage).

All sums are of whole numbers of 32 bits: levels times weights in fixed point.  So a result has the same bits on every
processor, and those of Pillow where that is followed.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import ask, spend
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, F64, I8, I64, U8, AnyDType, Array, Dim, TensorType
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.registry import Op, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import MAX_ELEMENTS, want_dims, want_elements

MODES = ("stretch", "letterbox", "crop")
FILTERS = ("nearest", "box", "bilinear", "bicubic", "lanczos", "area")
BITS = 22
"""Bits behind the point of the weight of a pixel, or of a line that is rounded to levels before the next axis."""


@record(frozen=True)
class Placed:
    """The size that a whole image is resized to, and where the result begins in it: before it where negative."""

    height: int
    width: int
    top: int
    left: int


@record(frozen=True)
class SeenAxis:
    """One axis of what is seen of an image: ``first`` place of the result, then index and weights, [places, taps].

    weights: whole numbers; those of both axes together have `BITS` behind the point, or each has as many.
    """

    first: int
    index: Array
    weights: Array


@op("FitImage")
class FitImage(Op):
    """y = images resized into ``size`` (h, w), then each channel times its scale plus its offset.

    x: [h, w, c] or [n, h, w, c] u8 · scale, offset: [k] f32 for the k ``channels``, numbers of channels of x ->
    y: [n, k, h, w] or, with channels_last, [n, h, w, k] of ``dtype``: f32, or u8 or i8, rounded to even and limited.
    stretch: whatever the aspect.  letterbox: the whole image, centred, ``fill`` around it.  crop: its centre, of the
    image resized so that its shorter side is ``shorter`` (0: as small as covers the result).
    Without ``antialias`` as OpenCV resizes (bicubic with a = -0.75), with it as Pillow does (a = -0.5): filters grow
    with the scale, and lines are rounded to levels between the axes; area is OpenCV's.  Results of both are levels.
    """

    size: tuple[int, ...] = (224, 224)
    mode: str = "stretch"
    shorter: int = 0
    resize: str = "bilinear"
    antialias: bool = False
    fill: int = 114
    channels: tuple[int, ...] = (0, 1, 2)
    channels_last: bool = False
    dtype: AnyDType = F32
    data_bounds = bounded(x=VALUES)

    def infer(self, x: TensorType, scale: TensorType, offset: TensorType) -> TensorType:
        self._check_attributes()
        want_dtype(self, "x", x.dtype, U8)
        count = len(self.channels)
        want_dtypes(self, (F32,), scale=scale, offset=offset)
        want_dims(self, "scale", scale, count)
        want_dims(self, "offset", offset, count)
        images: Dim = 1
        if x.shape is not None:
            self.fail_if(len(x.shape) not in (3, 4), "rank of x", x, "3 or 4")
            images = x.shape[0] if len(x.shape) == 4 else 1
            want_elements(self, "x", *x.shape[-3:-1])
            if isinstance(x.shape[-1], int) and max(self.channels) >= x.shape[-1]:
                raise self.fail("channels of x", x.shape[-1], f"at least {max(self.channels) + 1}")
        elif scale.shape is not None:
            return TensorType(self.dtype, None)
        h, w = self.size
        return TensorType(self.dtype, (images, h, w, count) if self.channels_last else (images, count, h, w))

    def _check_attributes(self) -> None:
        want_among(self, MODES, mode=self.mode)
        want_among(self, FILTERS, resize=self.resize)
        want_dtype(self, "dtype", self.dtype, F32, U8, I8)
        if len(self.size) != 2 or not all(1 <= n < MAX_ELEMENTS for n in self.size):
            raise self.fail("size", self.size, "two numbers of at least 1")
        if not 0 <= self.shorter < MAX_ELEMENTS or (self.shorter and self.mode != "crop"):
            raise self.fail("shorter", self.shorter, "at least 0, and 0 unless the mode is crop")
        self.fail_if(not 0 <= self.fill <= 255, "fill", self.fill, "0 to 255")
        if not self.channels or not all(0 <= c < 4 for c in self.channels):
            raise self.fail("channels", self.channels, "numbers from 0 to 3")
        if self.resize in ("box", "lanczos") and not self.antialias:
            raise self.fail("resize", f"{self.resize} without antialias", "it with antialias")

    @property
    def rounds_lines(self) -> bool:
        """Whether a line is rounded to levels between the axes."""
        return self.antialias or self.resize in ("nearest", "area")

    def is_down_first(self, h: int, w: int) -> bool:
        """Whether lines are blended before pixels are, as Pillow 13 does where it saves lines."""
        at = self.placed(h, w)
        return self.antialias and h > at.height and h - at.height > 2 * (w - at.width)

    def placed(self, h: int, w: int) -> Placed:
        """Where an image of this size goes."""
        high, wide = self.size
        if self.mode == "stretch":
            return Placed(high, wide, 0, 0)
        if self.mode == "letterbox":
            ratio = min(high / h, wide / w)
            made = [min(max(1, round(n * ratio)), most) for n, most in ((h, high), (w, wide))]
        elif self.shorter:
            short = min(h, w)
            made = [self.shorter if n == short else self.shorter * n // short for n in (h, w)]
        else:
            ratio = max(high / h, wide / w)
            made = [max(round(n * ratio), least) for n, least in ((h, high), (w, wide))]
        top, left = (-((to - n) // 2) if n < to else round((n - to) / 2) for n, to in zip(made, self.size, strict=True))
        return Placed(made[0], made[1], top, left)

    def axes(self, h: int, w: int) -> tuple[SeenAxis, SeenAxis]:
        """What rows and columns of the result are made of, for images of this size."""
        at = self.placed(h, w)
        parts = ((h, at.height, at.top, self.size[0]), (w, at.width, at.left, self.size[1]))
        rows, columns = (self._axis(*part) for part in parts)
        return rows, columns

    def _axis(self, size: int, whole: int, begin: int, out: int) -> SeenAxis:
        """An axis of ``size`` resized to ``whole``, of which ``out`` places from ``begin`` on are the result."""
        first, end = max(0, -begin), min(out, whole - begin)
        places = np.arange(first + begin, end + begin)
        index, weights = self._taps(size, whole, places)
        exact = weights / weights.sum(axis=1, keepdims=True) * (1 << (BITS if self.rounds_lines else BITS // 2))
        rounded = np.trunc(exact + np.copysign(0.5, exact)).astype(I64)
        return SeenAxis(first, np.clip(index, 0, size - 1), rounded)

    def _taps(self, size: int, whole: int, places: Array) -> tuple[Array, Array]:
        """Index and weights of each place, [places, taps]; index may lie outside, and then means the edge."""
        scale = size / whole
        if self.resize == "nearest":
            at = _accumulated(scale, places) if self.antialias else places * (1 / (whole / size))
            return np.floor(at).astype(I64)[:, None], np.ones((len(places), 1))
        if self.resize == "area":
            low = (places * scale)[:, None]
            index = self._window(np.floor(low).astype(I64), int(np.ceil(scale)) + 1)
            covered = np.minimum(low + scale, index + 1) - np.maximum(low, index)
            return index, np.where(index < size, np.maximum(covered, 0), 0)
        reach = {"box": 0.5, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}[self.resize]
        if not self.antialias:
            at = ((places + 0.5) * scale - 0.5)[:, None]
            index = self._window(np.floor(at).astype(I64) - int(reach) + 1, 2 * int(reach))
            return index, self._curve(index - at)
        wider = max(scale, 1.0)
        centre, reach = ((places + 0.5) * scale)[:, None], reach * wider
        begin = np.maximum((centre - reach + 0.5).astype(I64), 0)
        end = np.minimum((centre + reach + 0.5).astype(I64), size)
        index = self._window(begin, int(np.ceil(reach)) * 2 + 1)
        return index, np.where(index < end, self._curve((index - centre + 0.5) / wider), 0)

    def _window(self, first: Array, taps: int) -> Array:
        ask(40 * len(first) * taps, f"{self.name}: weights of {taps} taps at {len(first)} places")
        return np.asarray(first + np.arange(taps))

    def _curve(self, distance: Array) -> Array:
        """Weight at a distance in pixels.  Source: Keys 1981 for bicubic; Turkowski 1990 for lanczos."""
        d = np.abs(distance)
        if self.resize == "box":
            return np.asarray(np.where((distance > -0.5) & (distance <= 0.5), 1.0, 0.0))
        if self.resize == "bilinear":
            return np.asarray(np.maximum(1 - d, 0))
        if self.resize == "lanczos":
            return np.asarray(np.where(d < 3, np.sinc(d) * np.sinc(d / 3), 0))
        a = -0.5 if self.antialias else -0.75
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, a * (((d - 5) * d + 8) * d - 4)
        return np.asarray(np.where(d < 1, near, np.where(d < 2, far, 0)))

    def reference(self, x: Array, scale: Array, offset: Array) -> Array:
        x = x if x.ndim == 4 else x[None]
        rows, columns = self.axes(*x.shape[1:3])
        levels = np.full((len(x), *self.size, len(self.channels)), self.fill, I64)
        seen = x[..., list(self.channels)].astype(I64)
        work = seen.size // seen.shape[2] * columns.index.size + levels.size * rows.index.shape[1]
        spend(work, self.name)
        ask(32 * work, self.name)
        if not self.rounds_lines:
            made = _levels(_blended(_blended(seen, 2, columns), 1, rows))
        elif self.is_down_first(*x.shape[1:3]):
            made = _levels(_blended(_levels(_blended(seen, 1, rows)), 2, columns))
        else:
            made = _levels(_blended(_levels(_blended(seen, 2, columns)), 1, rows))
        high, wide = made.shape[1:3]
        levels[:, rows.first : rows.first + high, columns.first : columns.first + wide] = made
        y = levels.astype(F64) * scale.astype(F64) + offset.astype(F64)
        y = y if self.channels_last else np.moveaxis(y, -1, 1)
        if self.dtype != F32:
            info = np.iinfo(self.dtype)
            y = np.clip(np.rint(y), info.min, info.max)
        return np.ascontiguousarray(y.astype(self.dtype))


def _accumulated(scale: float, places: Array) -> Array:
    """Middles of pixels as Pillow finds them: each is that before plus the scale, which decides between neighbours."""
    steps = np.full(places.max(initial=0) + 1, scale)
    steps[0] = scale / 2
    return np.asarray(np.add.accumulate(steps)[places])


def _blended(x: Array, axis: int, made: SeenAxis) -> Array:
    """Sums of whole numbers along an axis."""
    total = np.zeros((), I64)
    for t in range(made.index.shape[1]):
        weight = made.weights[:, t].reshape(-1, *(1,) * (x.ndim - 1 - axis))
        total = total + x.take(made.index[:, t], axis=axis) * weight
    return np.asarray(total)


def _levels(total: Array) -> Array:
    """Sums without the bits behind the point, halves up, limited to levels."""
    return np.asarray(np.clip((total + (1 << (BITS - 1))) >> BITS, 0, 255))
