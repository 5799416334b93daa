"""Resampling on regular grids (Resize) and at given points (GridSample)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask, spend
from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F32, F64, Array, Dim, Shape, Sym, TensorType
from bolt_numba.ops.content import PLANNED, bounded
from bolt_numba.ops.dtypes import FLOATS, INDICES, NUMBERS, widened
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import (
    MAX_ELEMENTS,
    distinct_axes,
    known_dims,
    shape_of,
    unknown_shape,
    want_dim,
    want_dims,
    want_elements,
)
from bolt_numba.ops.windows import LAYOUTS

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize", "edge_half_pixel",
)  # fmt: skip
"""Those of ONNX; the last one is Paddle's, for which a single element lies half a pixel before the first one."""
POLICIES = ("stretch", "not_larger", "not_smaller")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@record(frozen=True)
class AxisPlan:
    """How one axis is resized: input and output size, scale, and the region of interest in 0…1."""

    axis: int
    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def cubic(distance: Any, a: float, v: Any = np) -> Any:
    """Keys' cubic convolution kernel.  v: NumPy, or a module like it.  Source: ONNX Resize-19, Keys 1981."""
    d = v.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return v.asarray(v.where(d <= 1, near, v.where(d < 2, far, 0)), dtype=F32)


def _hat(distance: Any, v: Any = np) -> Any:
    return v.maximum(1 - v.abs(distance), 0).astype(F32)


def floored(size: int, scale: Any) -> int | None:
    """Size times scale, rounded down; None where that is no size."""
    if is_followed(size) and float(scale).is_integer() and 0 <= size * int(scale) < EXACT_BELOW:
        return size * int(scale)
    return _floored(size, scale)


EXACT_BELOW = 1 << 24
"""What f32 has every integer below."""


@pure
def _floored(size: int, scale: Any) -> int | None:
    with np.errstate(over="ignore"):
        made = F32.type(size) * F32.type(scale)
    return int(made) if 0 <= made < MAX_ELEMENTS else None


@op("Resize")
class Resize(Op):
    """y = x resampled along some axes to ``sizes``, or to its size times ``scales``.

    x: [...] number or bool · roi: [2 m] float, begins then ends, for tf_crop_and_resize only · scales: [m] f32 or
    sizes: [m] i64, one of them, for the m ``axes`` (all when empty) -> y: x's dtype.  Whatever the layout, the axes
    are counted, and roi, scales and sizes are given, in the order [n, c, spatial...].  Coordinates are f32.
    Source: ONNX Resize-19.
    """

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    axes: tuple[int, ...] = ()
    layout: str = "NCHW"
    value_inputs = (1, 2, 3)
    data_bounds = bounded(roi=PLANNED, scales=PLANNED, sizes=PLANNED)

    def _check_attributes(self) -> None:
        want_among(self, ("nearest", "linear", "cubic"), mode=self.mode)
        want_among(self, COORDINATES, coordinate_transformation_mode=self.coordinate_transformation_mode)
        want_among(self, ROUNDINGS, nearest_mode=self.nearest_mode)
        want_among(self, POLICIES, keep_aspect_ratio_policy=self.keep_aspect_ratio_policy)
        want_among(self, LAYOUTS, layout=self.layout)

    def infer(
        self,
        x: TensorType,
        roi: TensorType | None = None,
        scales: TensorType | None = None,
        sizes: TensorType | None = None,
    ) -> TensorType:
        self._check_attributes()
        want_dtype(self, "x", x.dtype, *NUMBERS, BOOL)
        if (scales is None) == (sizes is None):
            raise self.fail("operands", f"scales {scales} and sizes {sizes}", "exactly one of them")
        if x.shape is None:
            return TensorType(x.dtype, None)
        self.fail_if(self.layout != "NCHW" and len(x.shape) < 3, "rank of x", x, f"at least 3 for layout {self.layout}")
        shape = self._first(x.shape)
        axes = self.resized_axes(len(shape))
        self._check_operands(len(axes), roi, scales, sizes)
        found = self._scaled(shape, axes, roi, scales) if scales is not None else self._sized(shape, axes, sizes)
        if found is None:
            return TensorType(x.dtype, unknown_shape(len(shape)))
        out = list(shape)
        for a, d in zip(axes, found, strict=True):
            if shape[a] == 0 and isinstance(d, int) and d > 0:
                raise self.fail(f"dimension {a} of x", 0, f"at least 1, to make {d}")
            out[a] = d
        return TensorType(x.dtype, self._own(out))

    def _check_operands(
        self, count: int, roi: TensorType | None, scales: TensorType | None, sizes: TensorType | None
    ) -> None:
        want_dtypes(self, (F32,), scales=scales)
        want_dtypes(self, INDICES, sizes=sizes)
        want_dims(self, "scales", scales, count)
        want_dims(self, "sizes", sizes, count)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":  # else it is not read, whatever it is
            if roi is None:
                raise self.fail("roi", "none", f"[{2 * count}]")
            want_dtype(self, "roi", roi.dtype, *FLOATS)
            want_dims(self, "roi", roi, 2 * count)

    def _first(self, shape: Shape) -> Shape:
        return shape if self.layout == "NCHW" else (shape[0], shape[-1], *shape[1:-1])

    def _own(self, shape: Sequence[Dim]) -> Shape:
        return tuple(shape) if self.layout == "NCHW" else (shape[0], *shape[2:], shape[1])

    def resized_axes(self, rank: int) -> tuple[int, ...]:
        """Axes that scales and sizes speak of, in 0…rank-1."""
        return distinct_axes(self, self.axes or range(rank), rank)

    def _scaled(
        self, shape: Shape, axes: Sequence[int], roi: TensorType | None, scales: TensorType
    ) -> list[Dim] | None:
        if scales.known is None:
            return None
        crop = self.coordinate_transformation_mode == "tf_crop_and_resize"
        if crop and (roi is None or roi.known is None):
            return None
        out: list[Dim] = []
        for i, (a, scale) in enumerate(zip(axes, scales.known, strict=True)):
            if not scale > 0:
                raise self.fail("scales", scales.known.tolist(), "above 0")
            size = shape[a]
            if crop and roi is not None and roi.known is not None:
                scale = scale * F32.type(roi.known[len(axes) + i] - roi.known[i])
            if isinstance(size, Sym):
                out.append(self._scaled_symbol(size, float(scale)))
            else:
                out.append(self._floored(size, scale))
        return out

    def _floored(self, size: int, scale: Any) -> int:
        made = floored(size, scale)
        if made is None:
            raise self.fail("size times scale", f"{size} * {scale}", "a possible size")
        return made

    @staticmethod
    def _scaled_symbol(size: Sym, scale: float) -> Dim:
        if scale.is_integer():
            return size * int(scale)
        inverse = 1 / scale if abs(scale) > 1e-9 else 0.5
        return size // int(inverse) if inverse.is_integer() else fresh_dim("resized")

    def _sized(self, shape: Shape, axes: Sequence[int], sizes: TensorType | None) -> list[Dim] | None:
        wanted = None if sizes is None else known_dims(sizes)
        if wanted is None or self.keep_aspect_ratio_policy == "stretch":
            return wanted
        numbers = [d for d in (*wanted, *(shape[a] for a in axes)) if isinstance(d, int)]
        if len(numbers) < 2 * len(axes):
            return None
        want_elements(self, "x", *numbers[len(axes) :])
        return list(self._kept_aspect(numbers[: len(axes)], numbers[len(axes) :])[0])

    def _kept_aspect(self, wanted: Sequence[int], given: Sequence[int]) -> tuple[list[int], list[float]]:
        """Sizes and scales for ``sizes`` under the policy."""
        scales = [float(F32.type(w) / F32.type(d)) for w, d in zip(wanted, given, strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return list(wanted), scales
        common = (min if self.keep_aspect_ratio_policy == "not_larger" else max)(scales)
        return [int(np.floor(common * d + 0.5)) for d in given], [common] * len(scales)

    def plan(
        self, shape: Sequence[int], roi: Array | None, scales: Array | None, sizes: Array | None
    ) -> list[AxisPlan]:
        """One row per resized axis; ``shape`` and ``axis`` in the order [n, c, spatial...]."""
        axes = self.resized_axes(len(shape))
        given = [shape[a] for a in axes]
        m = len(axes)
        crop = self.coordinate_transformation_mode == "tf_crop_and_resize"
        ends = [(float(roi[i]), float(roi[m + i])) for i in range(m)] if crop and roi is not None else [(0.0, 1.0)] * m
        if sizes is not None:
            outs, factors = self._kept_aspect([int(s) for s in sizes], given)
        else:
            assert scales is not None
            factors = [float(s) for s in scales]
            parts = [F32.type(s * F32.type(e - b)) for s, (b, e) in zip(scales, ends, strict=True)]
            outs = [self._floored(d, part) for d, part in zip(given, parts, strict=True)]
        return [AxisPlan(a, shape[a], outs[i], factors[i], *ends[i]) for i, a in enumerate(axes)]

    def coordinates(self, p: AxisPlan) -> Array:
        """Where in the input each output position lies, [p.out] f32.  Source: ONNX Resize-19."""
        x, one, half = np.arange(p.out, dtype=F32), F32.type(1), F32.type(0.5)
        scale, size, out = F32.type(p.scale), F32.type(p.size), F32.type(p.out)
        mode = self.coordinate_transformation_mode
        if mode == "asymmetric":
            y = x / scale
        elif mode == "align_corners":
            exact = scale * size  # the length before it is rounded down, as the standard's own tests have it
            length = out if abs(exact - out) < 1e-4 * out else exact
            y = x * (size - one) / (length - one) if p.out > 1 else x * 0
        elif mode == "pytorch_half_pixel":
            y = (x + half) / scale - half if p.out > 1 else x * 0
        elif mode == "edge_half_pixel":
            y = (x + half) / scale - half if p.out > 1 else x * 0 - half
        elif mode == "tf_half_pixel_for_nn":
            y = (x + half) / scale if p.scale != 1 else x  # an axis that keeps its size is not resized
        elif mode == "half_pixel_symmetric":
            adjustment = out / (scale * size)
            y = size / 2 * (one - adjustment) + (x + half) / scale - half
        elif mode == "tf_crop_and_resize":
            start, end = F32.type(p.start), F32.type(p.end)
            inside = start * (size - one) + x * ((end - start) * (size - one) / max(out - one, one))
            y = inside if p.out > 1 else half * (start + end) * (size - one) + x * 0
        else:
            y = (x + half) / scale - half
        return y.astype(F32)

    def taps(self, p: AxisPlan) -> tuple[Array, Array]:
        """Input indices and weights of each output position, both [p.out, taps]; indices lie inside the input."""
        at = self.coordinates(p)
        if self.mode == "nearest":
            rounded = {
                "round_prefer_floor": lambda: np.ceil(at - F32.type(0.5)),
                "round_prefer_ceil": lambda: np.floor(at + F32.type(0.5)),
                "floor": lambda: np.floor(at),
                "ceil": lambda: np.ceil(at),
            }[self.nearest_mode]()
            index = np.clip(rounded, 0, max(p.size - 1, 0)).astype(np.int64)[:, None]
            return index, np.ones(index.shape, dtype=F32)
        stretch = min(p.scale, 1.0) if self.antialias else 1.0
        reach = (1 if self.mode == "linear" else 2) / stretch
        low, high = int(np.floor(-reach)) + 1, int(np.ceil(reach)) + 1
        ask(40 * p.out * (high - low), f"{self.name}: weights of {high - low} taps at {p.out} places")
        offsets = np.arange(low, high)
        index = np.floor(at).astype(np.int64)[:, None] + offsets
        distance = (index - at[:, None].astype(np.float64)) * stretch
        weights = _hat(distance) if self.mode == "linear" else cubic(distance, self.cubic_coeff_a)
        if self.exclude_outside:
            weights = np.where((index < 0) | (index >= p.size), F32.type(0), weights)
        if self.exclude_outside or self.antialias:
            weights = weights / weights.sum(axis=1, keepdims=True)
        return np.clip(index, 0, max(p.size - 1, 0)), weights.astype(F32)

    def _ask_for(self, y: Array, p: AxisPlan, index: Array) -> None:
        """Memory and work of one axis; the result of an axis may be larger than that of all."""
        size = y.size // max(p.size, 1) * p.out
        ask(3 * size * y.itemsize, f"{self.name}: axis {p.axis} at {p.out} elements")
        spend(size * index.shape[1], self.name)

    def reference(
        self, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
    ) -> Array:
        y = np.asarray(x if self.layout == "NCHW" else np.moveaxis(x, -1, 1))
        made = self.resampled(np, y, self.plan(y.shape, roi, scales, sizes))
        return np.ascontiguousarray(made if self.layout == "NCHW" else np.moveaxis(made, 1, -1))

    def resampled(self, v: Any, x: Any, rows: Sequence[AxisPlan]) -> Any:
        """``x`` [n, c, spatial...] along one axis after the other.  v: NumPy, or a module of arrays that is like it."""
        y, blends = x, self.mode != "nearest"
        if blends:
            y = widened(y) if x.dtype.kind in "fV" else y.astype(F32)
        outside: Any = None
        for p in rows:
            index, weights = self.taps(p)
            if self.coordinate_transformation_mode == "tf_crop_and_resize":
                at = self.coordinates(p)
                beyond = ((at < 0) | (at > p.size - 1)).reshape(-1, *(1,) * (y.ndim - 1 - p.axis))
                outside = beyond if outside is None else outside | beyond
            if v is np:
                self._ask_for(y, p, index)
            y = _weighted(y, p.axis, index, weights) if blends else y.take(index[:, 0], axis=p.axis, mode="clip")
        if x.dtype.kind in "iu" and blends:
            info = np.iinfo(x.dtype)
            cut = self.mode == "linear" and not self.antialias  # the standard is silent; this is what onnxruntime does
            y = v.clip(v.trunc(y) if cut else v.rint(y), info.min, info.max)
        if outside is not None:
            y = v.where(outside, np.asarray(self.extrapolation_value, dtype=y.dtype), y)
        return y.astype(x.dtype, copy=False)


def _weighted(x: Any, axis: int, index: Array, weights: Array) -> Any:
    rows = np.arange(index.shape[0])
    heaviest = weights.argmax(axis=1)
    unmoved = index.shape[0] == x.shape[axis] and np.array_equal(index[rows, heaviest], rows)
    if unmoved and (weights[rows, heaviest] == 1).all():
        return x
    total: Any = None
    for t in range(index.shape[1]):
        w = weights[:, t].reshape(-1, *(1,) * (x.ndim - 1 - axis)).astype(x.dtype)
        if w.any():
            part = x.take(index[:, t], axis=axis, mode="clip") * w
            total = part if total is None else total + part
    return x.take(index[:, 0], axis=axis, mode="clip") * 0 if total is None else total


GREATEST_POINT = 2.0**24
"""Of a point in -1…1: the digits of f32 do not tell where between two borders a point beyond lies."""


EXACT = 1 << 24
"""Elements of an axis up to which f32 tells coordinates of neighbours apart."""


@op("GridSample")
class GridSample(Op):
    """y = x sampled at points given in -1…1, first coordinate along the last axis.

    x: [n, c, h, w] (or more spatial axes) number · grid: [n, oh, ow, 2] float -> y: [n, c, oh, ow] of x's dtype.
    mode: linear, nearest (half to even), cubic (a = -0.75); outside: zeros, border, reflection; align_corners: -1 and 1
    are the centres of the outer elements, not their edges.  What has weight 0 adds nothing, NaN neither.  With a border
    each neighbour of a point is brought inside by itself, which matters to cubic samples alone.  Reflection takes a
    point beyond `GREATEST_POINT`, and one that is not finite, for element 0.  Coordinates along an axis longer than
    `EXACT` are f64.  Source: ONNX GridSample-22; onnxruntime.
    """

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    data_bounds = bounded(
        grid="where samples lie; coordinates are brought inside the image before they become offsets, NaN becomes 0",
    )

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        want_among(self, ("linear", "nearest", "cubic"), mode=self.mode)
        want_among(self, ("zeros", "border", "reflection"), padding_mode=self.padding_mode)
        want_dtype(self, "grid", grid.dtype, *FLOATS)
        want_dtype(self, "x", x.dtype, *NUMBERS)
        if x.shape is None:
            return TensorType(x.dtype, None)
        self.fail_if(len(x.shape) < 3, "rank of x", x, "at least 3")
        shape = shape_of(self, "grid", grid, len(x.shape))
        if shape is None:
            return TensorType(x.dtype, (*x.shape[:2], *(fresh_dim() for _ in x.shape[2:])))
        want_dim(self, "last dimension of grid", shape[-1], len(x.shape) - 2)
        want_dim(self, "batch of grid", shape[0], x.shape[0])
        want_elements(self, "x", *x.shape[2:])
        return TensorType(x.dtype, (x.shape[0], x.shape[1], *shape[1:-1]))

    def _placed(self, v: Any, at: Any, size: int) -> Any:
        """Coordinates in elements, brought inside as the padding mode says."""
        at = at if size <= EXACT else at.astype(F64)
        if self.padding_mode == "reflection":
            near = v.abs(at) <= GREATEST_POINT
            inside = self._reflected(v, self._in_elements(v, v.where(near, at, 0).astype(F64), size), size)
            return v.where(near, inside, 0).astype(at.dtype)
        at = self._in_elements(v, at, size)
        room = 2 if self.mode == "cubic" else 0  # from there on all neighbours are the outer element
        return v.clip(at, -room, size - 1 + room) if self.padding_mode == "border" else at

    def _in_elements(self, v: Any, at: Any, size: int) -> Any:
        at = (at + 1) / 2 * (size - 1) if self.align_corners else ((at + 1) * size - 1) / 2
        return v.rint(at) if self.mode == "nearest" else at

    def _reflected(self, v: Any, at: Any, size: int) -> Any:
        low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
        if high <= low:
            return v.zeros_like(at)
        period = 2 * (high - low)
        folded = v.mod(at.astype(F64) - low, period)
        mirrored = (low + v.minimum(folded, period - folded)).astype(at.dtype)
        return v.where((at < low) | (at > high), mirrored, at)

    def _taps(self, v: Any, at: Any) -> list[tuple[Any, Any]]:
        if self.mode == "nearest":
            return [(v.rint(at), v.ones_like(at))]
        base = v.floor(at)
        offsets = (0, 1) if self.mode == "linear" else (-1, 0, 1, 2)
        kernel: Any = _hat if self.mode == "linear" else lambda d, v: cubic(d, -0.75, v)
        return [(base + o, kernel(base + o - at, v).astype(at.dtype)) for o in offsets]

    def sampled(self, v: Any, data: Any, points: Any) -> Any:
        """The samples of ``data``, of its dtype.  v: NumPy, or a module of arrays that is like it."""
        sizes = data.shape[2:]
        rank = len(sizes)
        by_axis = [self._taps(v, self._placed(v, points[..., rank - 1 - i], sizes[i])) for i in range(rank)]
        batch = np.arange(data.shape[0]).reshape(-1, *(1,) * rank)
        channels_last = v.moveaxis(data, 1, -1)
        y = v.zeros((*points.shape[:-1], data.shape[1]), dtype=data.dtype)
        for combination in itertools.product(*by_axis):
            weight = v.ones(points.shape[:-1], dtype=data.dtype)
            index = []
            for (at, w), size in zip(combination, sizes, strict=True):
                inside = (at >= 0) & (at <= size - 1)
                if self.padding_mode == "reflection":
                    at = self._reflected(v, at, size)
                index.append(v.where(v.isnan(at), 0, v.clip(at, 0, size - 1)).astype(np.int64))
                weight = weight * (v.where(inside, w, 0) if self.padding_mode == "zeros" else w).astype(data.dtype)
            y += v.where(weight[..., None] == 0, 0, channels_last[(batch, *index)] * weight[..., None])
        return v.moveaxis(y, -1, 1)

    def reference(self, x: Array, grid: Array) -> Array:
        data = widened(x) if x.dtype.kind in "fV" else x.astype(F32)
        return np.ascontiguousarray(self.sampled(np, data, widened(grid))).astype(x.dtype, copy=False)
