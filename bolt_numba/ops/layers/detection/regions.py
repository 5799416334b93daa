"""Sampling at places that the data decide: regions of interest and deformable convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from bolt_numba.base.budget import CALL, ask, spend
from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import FLOATS, INDICES, same_dtype, widened
from bolt_numba.ops.layers.products.conv import Convolution, along_channels
from bolt_numba.ops.registry import Op, op, want_among, want_dtype
from bolt_numba.ops.shapes import product, shape_of, want_dims, want_elements

MAX_SAMPLES = 1 << 20
"""Samples along one side of a bin that a region of any size gets at most."""
MAX_RATIO = 1 << 6


@op("RoiAlign")
class RoiAlign(Op):
    """y = each region of x, resampled to one size by bilinear samples whose mean (or maximum) is taken.

    x: [n, c, h, w] float · rois: [r, 4] x1 y1 x2 y2 in units of 1 / spatial_scale pixels · batch_indices: [r] i64 ->
    y: [r, c, output_height, output_width].  sampling_ratio 0: as many samples as the region has pixels
    (at most `MAX_SAMPLES` along one side of a bin; those outside of the image are zero and take no time), none and so 0
    for a region that ends where it begins or before.
    Source: ONNX RoiAlign-22; mode max takes the greatest weighted corner, as onnxruntime does.
    """

    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0
    coordinate_transformation_mode: str = "half_pixel"
    data_bounds = bounded(
        rois="where samples lie; coordinates are brought inside the image before they become offsets",
        batch_indices="which image is read; tested on a copy that the kernel reads, else refused",
    )

    def infer(self, x: TensorType, rois: TensorType, batch_indices: TensorType) -> TensorType:
        dtype = same_dtype(self, x, rois)
        want_dtype(self, "x", dtype, *FLOATS)
        want_dtype(self, "batch_indices", batch_indices.dtype, *INDICES)
        shape, regions = shape_of(self, "x", x, 4), shape_of(self, "rois", rois, 2)
        want_among(self, ("avg", "max"), mode=self.mode)
        if min(self.output_height, self.output_width) < 1 or not 0 <= self.sampling_ratio <= MAX_RATIO:
            sizes = (self.output_height, self.output_width, self.sampling_ratio)
            raise self.fail("sizes", sizes, f"at least 1, 1, 0, and a sampling_ratio of at most {MAX_RATIO}")
        coordinates = self.coordinate_transformation_mode
        want_among(self, ("half_pixel", "output_half_pixel"), coordinate_transformation_mode=coordinates)
        if shape is None or regions is None:
            return TensorType(dtype, None)
        want_dims(self, "rois", rois, None, 4)
        want_dims(self, "batch_indices", batch_indices, regions[0])
        if isinstance(regions[0], int) and regions[0]:
            want_elements(self, "x", shape[0], *shape[2:])
        return TensorType(dtype, (regions[0], shape[1], self.output_height, self.output_width))

    def reference(self, x: Array, rois: Array, batch_indices: Array) -> Array:
        want_between(self, "batch_indices", batch_indices, 0, len(x) - 1)
        data, regions = widened(x), widened(rois)
        y = np.zeros((len(rois), x.shape[1], self.output_height, self.output_width), data.dtype)
        shift = 0.5 if self.coordinate_transformation_mode == "half_pixel" else 0.0
        for out, region, image in zip(y, regions, batch_indices, strict=True):
            x1, y1, x2, y2 = region * data.dtype.type(self.spatial_scale) - data.dtype.type(shift)
            sizes = [y2 - y1, x2 - x1] if shift else [max(y2 - y1, 1.0), max(x2 - x1, 1.0)]
            places = self._places(y1, sizes[0], self.output_height), self._places(x1, sizes[1], self.output_width)
            rows, columns = (_inside(p, size) for p, size in zip(places, x.shape[2:], strict=True))
            samples = places[0].shape[1] * places[1].shape[1]
            for i, j in np.ndindex(self.output_height, self.output_width):
                out[:, i, j] = self._pooled(data[image], rows[i], columns[j], samples)
        return y.astype(x.dtype, copy=False)

    def _places(self, start: float, size: float, count: int) -> Array:
        """Coordinates of the samples of each of ``count`` bins."""
        each = self.sampling_ratio or int(np.clip(np.ceil(size / count), 1, MAX_SAMPLES) if size > 0 else 0)
        ask(32 * count * each, f"{self.name}: places of {each} samples")
        with np.errstate(invalid="ignore"):  # an infinite region has no samples inside
            bins = np.arange(count)[:, None] + (np.arange(each) + 0.5) / max(each, 1)
            return np.asarray(start + size / count * bins)

    def _pooled(self, plane: Array, rows: Array, columns: Array, samples: int) -> Array:
        if not samples:
            return np.zeros(len(plane), plane.dtype)
        spend(len(rows) * len(columns) * (CALL + plane.size), self.name)
        corners = [_corners(plane, v, u) for v, u in itertools.product(rows, columns)]
        if len(corners) < samples:  # those that are not listed lie outside and count as zero
            corners.append(np.zeros((4, len(plane)), plane.dtype))
        if self.mode == "max":
            return np.asarray(np.max([np.max(c, axis=0) for c in corners], axis=0))
        return np.asarray(np.sum([np.sum(c, axis=0) for c in corners], axis=0) / samples)


def _inside(places: Array, size: int) -> list[Array]:
    """The samples of each bin that are less than a pixel outside of 0…size; others are zero, however many there are."""
    return [row[(row >= -1) & (row <= size)] for row in places]


def _corners(plane: Array, v: float, u: float) -> Array:
    """The four neighbours of (v, u) in [c, h, w], weighted; zeros more than one pixel outside: [4, c]."""
    h, w = plane.shape[1:]
    if not (-1 <= v <= h and -1 <= u <= w):  # NaN is outside
        return np.zeros((4, len(plane)), plane.dtype)
    v, u = min(max(v, 0.0), h - 1.0), min(max(u, 0.0), w - 1.0)
    top, left = int(v), int(u)
    down, right = min(top + 1, h - 1), min(left + 1, w - 1)
    b, r = v - top, u - left
    pairs = ((top, left, (1 - b) * (1 - r)), (top, right, (1 - b) * r), (down, left, b * (1 - r)), (down, right, b * r))
    return np.array([plane[:, i, j] * weight for i, j, weight in pairs], plane.dtype)


GREATEST_COORDINATE = 1 << 24
"""The greatest coordinate of a region that f32 tells from its neighbours."""


def _pooled_type(op: MaxRoiPool | PSRoiPool, x: TensorType, rois: TensorType, parts: int) -> TensorType:
    """Regions [r, 5] of images [n, c, h, w], pooled: [r, c // parts, *pooled_shape]."""
    dtype = same_dtype(op, x, rois)
    want_dtype(op, "x", dtype, *FLOATS)
    shape, regions = shape_of(op, "x", x, 4), shape_of(op, "rois", rois, 2)
    op.fail_if(not math.isfinite(op.spatial_scale), "spatial_scale", op.spatial_scale, "a finite number")
    if len(op.pooled_shape) != 2 or min(op.pooled_shape) < 1:
        raise op.fail("pooled_shape", op.pooled_shape, "two numbers, at least 1")
    want_dims(op, "rois", rois, None, 5)
    if shape is None or regions is None:
        return TensorType(dtype, None)
    if isinstance(shape[1], int) and shape[1] % parts:
        raise op.fail("channels of x", shape[1], f"a multiple of {parts}")
    if isinstance(regions[0], int) and regions[0]:
        want_elements(op, "x", shape[0])
    return TensorType(dtype, (regions[0], shape[1] if parts == 1 else shape[1] // parts, *op.pooled_shape))


def _want_regions(op: Op, x: Array, rois: Array) -> None:
    """Images that there are, and corners that an image may have."""
    limits = np.array([len(x) - 1, *(GREATEST_COORDINATE,) * 4])
    want_between(op, "rois", widened(rois), np.where(np.arange(5) == 0, 0, -limits), limits)


@op("MaxRoiPool")
class MaxRoiPool(Op):
    """y = the greatest element in each bin of each region; 0 where a bin has none.

    x: [n, c, h, w] float · rois: [r, 5] image, x1, y1, x2, y2 in units of 1 / spatial_scale pixels, the last pixels
    included -> y: [r, c, *pooled_shape].  Source: ONNX MaxRoiPool-22.
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0
    data_bounds = bounded(
        rois="which image and pixels are read; the image is tested, else refused, corners are clipped",
    )

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        return _pooled_type(self, x, rois, 1)

    def reference(self, x: Array, rois: Array) -> Array:
        _want_regions(self, x, rois)
        sizes, scale = x.shape[2:], F32.type(self.spatial_scale)
        y = np.zeros((len(rois), x.shape[1], *self.pooled_shape), x.dtype)
        for out, (image, *corners) in zip(y, widened(rois), strict=True):
            ends = [_half_away(c * scale) for c in corners]
            bins = [_bins(ends[1 - axis], ends[3 - axis], self.pooled_shape[axis], sizes[axis]) for axis in range(2)]
            for i, j in np.ndindex(*self.pooled_shape):
                part = x[int(image), :, slice(*bins[0][i]), slice(*bins[1][j])]
                if part.size:
                    out[:, i, j] = part.max((1, 2))
        return y


def _half_away(value: float) -> int:
    """Rounded to the nearest integer, halves away from zero."""
    return int(np.sign(value) * np.floor(np.abs(value) + 0.5))


def _bins(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    """Begin and end of each bin of pixels first…last, inside 0…size."""
    each = F32.type(max(last - first + 1, 1)) / F32.type(count)
    edges = [(int(np.floor(k * each)) + first, int(np.ceil((k + 1) * each)) + first) for k in range(count)]
    return [(min(max(low, 0), size), min(max(high, 0), size)) for low, high in edges]


@op("PSRoiPool")
class PSRoiPool(Op):
    """y = the mean of each bin of each region, of the channels that belong to the bin; 0 where a bin has no element.

    x: [n, output_channels * oh * ow, h, w] float · rois: [r, 5] image, x1, y1, x2, y2 in units of 1 / spatial_scale
    pixels, the last pixels included -> y: [r, output_channels, oh, ow] for pooled_shape (oh, ow).
    Source: Dai et al., R-FCN (2016), as `psroi_pool` of Paddle 3 has it.
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0
    data_bounds = bounded(
        rois="which image and pixels are read; the image is tested, else refused, corners are clipped",
    )

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        return _pooled_type(self, x, rois, math.prod(self.pooled_shape))

    def reference(self, x: Array, rois: Array) -> Array:
        _want_regions(self, x, rois)
        oh, ow = self.pooled_shape
        data = widened(x)
        groups = data.reshape(len(x), x.shape[1] // (oh * ow), oh, ow, *x.shape[2:])
        y = np.zeros((len(rois), x.shape[1] // (oh * ow), oh, ow), data.dtype)
        for out, (image, *corners) in zip(y, widened(rois), strict=True):
            rows, columns = (self._edges(corners[1 - axis], corners[3 - axis], axis, x.shape[2:]) for axis in range(2))
            for i, j in np.ndindex(oh, ow):
                part = groups[int(image), :, i, j, slice(*rows[i]), slice(*columns[j])]
                if part.size:
                    out[:, i, j] = part.mean((1, 2))
        return y.astype(x.dtype, copy=False)

    def _edges(self, first: float, last: float, axis: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Begin and end of each bin along an axis, inside the image."""
        scale, count = F32.type(self.spatial_scale), self.pooled_shape[axis]
        begin, end = _half_away(first) * scale, (_half_away(last) + 1) * scale
        each = max(F32.type(end - begin), F32.type(0.1)) / F32.type(count)
        edges = [(int(np.floor(k * each + begin)), int(np.ceil((k + 1) * each + begin))) for k in range(count)]
        return [(min(max(low, 0), sizes[axis]), min(max(high, 0), sizes[axis])) for low, high in edges]


@op("DeformConv")
class DeformConv(Convolution):
    """y = convolution whose kernel positions are moved by offsets and weighted by a mask.

    x: [n, c, spatial...] float · w: [k, c/g, kernel...] · offset: [n, og * taps * axes, outs...] in pixels ·
    bias: [k] · mask: [n, og * taps, outs...] -> y: [n, k, outs...].  Samples are linear, and 0 outside of x.
    Source: ONNX DeformConv-22.
    """

    offset_group: int = 1
    data_bounds = bounded(offset="where samples lie; coordinates are clipped to the image")

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        offset: TensorType,
        bias: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        dtype = same_dtype(self, x, w, offset, bias, mask)
        want_dtype(self, "x", dtype, *FLOATS)
        self.fail_if(self.layout != "NCHW", "layout", self.layout, "NCHW")
        shape = self.output_shape(x, w, bias)
        if shape is not None and x.shape is not None and w.shape is not None:
            c, og = x.shape[1], self.offset_group
            if og < 1 or (isinstance(c, int) and c % og):
                raise self.fail("offset_group", og, f"a divisor of {c}, the channels of x")
            taps = product(w.shape[2:]) * og
            want_dims(self, "offset", offset, shape[0], taps * (len(shape) - 2), *shape[2:])
            want_dims(self, "mask", mask, shape[0], taps, *shape[2:])
        return TensorType(dtype, shape)

    def reference(
        self, x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None
    ) -> Array:
        data, kernel = widened(x), w.shape[2:]
        n, c = data.shape[:2]
        windows = self.windows(kernel).resolved(data.shape[2:])
        outs, og, taps, axes = offset.shape[2:], self.offset_group, int(np.prod(kernel)), len(kernel)
        moved = widened(offset).reshape(n, og, taps, axes, *outs)
        weight = np.ones((n, og, taps, *outs), data.dtype) if mask is None else widened(mask)
        weight = weight.reshape(n, og, taps, *outs)
        grid = np.indices(outs).reshape(axes, *outs)
        columns = np.zeros((n, og, c // og, taps, *outs), data.dtype)
        for t, tap in enumerate(np.ndindex(*kernel)):
            base = [grid[a] * windows.strides[a] - windows.pads[a] + tap[a] * windows.dilations[a] for a in range(axes)]
            for i, g in np.ndindex(n, og):
                planes = data[i].reshape(og, c // og, *data.shape[2:])[g]
                columns[i, g, :, t] = _sampled(planes, np.stack(base) + moved[i, g, t]) * weight[i, g, t]
        products = math.prod(w.shape[1:])
        by_group = columns.reshape(n, self.group, products, math.prod(outs))
        filters = widened(w).reshape(self.group, w.shape[0] // self.group, products)
        y = np.matmul(filters, by_group).reshape(n, w.shape[0], *outs)
        y = y if bias is None else y + along_channels(widened(bias), y.ndim)
        return np.asarray(y).astype(x.dtype, copy=False)


def _sampled(planes: Array, places: Array) -> Array:
    """[c, spatial...] at real coordinates [axes, outs...], linearly between elements: [c, outs...]."""
    sizes = planes.shape[1:]
    low = np.floor(places).astype(int)
    total: Array = np.zeros((len(planes), *places.shape[1:]), planes.dtype)
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        index = low + np.array(corner).reshape(-1, *(1,) * (low.ndim - 1))
        share = np.prod(1 - np.abs(places - index), axis=0)
        inside = np.all([(i >= 0) & (i < s) for i, s in zip(index, sizes, strict=True)], axis=0)
        clipped = tuple(np.clip(i, 0, s - 1) for i, s in zip(index, sizes, strict=True))
        total += planes[(slice(None), *clipped)] * (share * inside).astype(planes.dtype)
    return total
