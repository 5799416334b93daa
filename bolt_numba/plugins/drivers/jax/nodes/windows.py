"""Pools, resampling, regions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, I32, I64
from bolt_numba.ops.layers.resize import EXACT, GREATEST_POINT
from bolt_numba.plugins.drivers.jax.table import DATA, FLOATS, INTS, NUMBERS, WIDE, JaxSite, builds

CUBIC = -0.75
"""The coefficient of cubic samples at points."""


def _pooled(s: JaxSite, op: Any, x: Any, start: Any, combine: Any) -> tuple[Any, Any, list[int]]:
    """Combined elements of each window, the windows with their pads, and how many there are along each axis."""
    windows, rank = op.windows.resolved(s.dims()[2:]), s.rank() - 2
    outs = windows.static_dims(op, s.dims()[2:])
    pads = [(0, 0), (0, 0)]
    for i, size in enumerate(s.dims()[2:]):
        reach = (outs[i] - 1) * windows.strides[i] + windows.spans[i] - size - windows.pads[i]
        pads.append((windows.pads[i], reach))  # a pad that no window reaches is cut off, and what is in front of it
    ones = (1, 1)
    x = s.lax.pad(x, start, [(0, min(behind, 0), 0) for _, behind in pads])
    made = s.lax.reduce_window(
        x, start, combine, (*ones, *windows.kernel), (*ones, *windows.strides),
        [(before, max(behind, 0)) for before, behind in pads], window_dilation=(*ones, *windows.dilations),
    )  # fmt: skip
    assert made.shape[2:] == tuple(outs[:rank])
    return made, windows, outs


@builds("MaxPool", dtypes=(*FLOATS, *INTS))
def max_pool(s: JaxSite, op: Any, x: Any) -> Any:
    s.want(not op.indices, "where the greatest was")
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _pooled(s, op, x, np.array(low, x.dtype), s.lax.max)[0]


@builds("AveragePool", dtypes=FLOATS)
def average_pool(s: JaxSite, op: Any, x: Any) -> Any:
    """Over the elements that count, whose number is known."""
    total, windows, outs = _pooled(s, op, x, np.zeros((), x.dtype), s.lax.add)
    rank = len(outs)
    inside = np.ones((1, 1, *s.dims()[2:]), x.dtype)
    if op.count_include_pad:
        pads = [(windows.pads[i], windows.pads[rank + i]) for i in range(rank)]
        inside = np.pad(inside, [(0, 0), (0, 0), *pads], constant_values=1)
        windows = replace(windows, pads=(0,) * (2 * rank))
    count: Any = sum(windows.taps(windows.padded(inside, 0, outs), outs))
    return total / np.maximum(count, 1)


@builds("LpPool", dtypes=FLOATS)
def lp_pool(s: JaxSite, op: Any, x: Any) -> Any:
    powers = s.np.abs(x) ** op.p
    return _pooled(s, op, powers, np.zeros((), x.dtype), s.lax.add)[0] ** (1 / op.p)


@builds("Resize", dtypes=DATA)
def resize(s: JaxSite, op: Any, x: Any, *operands: Any) -> Any:
    """Along one axis after the other, by places and weights that are known."""
    roi, scales, sizes = (s.known(i, "sizes") if s.given(i) else None for i in (1, 2, 3))
    source, y = s.type(0).dtype, x
    if op.mode != "nearest":
        y = x if source == F64 else x.astype(F32)
    outside: Any = None
    for row in op.plan(s.dims(), roi, scales, sizes):
        index, weights = op.taps(row)
        if op.coordinate_transformation_mode == "tf_crop_and_resize":
            at = op.coordinates(row)
            beyond = ((at < 0) | (at > row.size - 1)).reshape(-1, *(1,) * (s.rank() - 1 - row.axis))
            outside = beyond if outside is None else outside | beyond
        y = _sampled(s, y, row.axis, index, weights if op.mode != "nearest" else None)
    if source.kind in "iu" and op.mode != "nearest":
        info = np.iinfo(source)
        cut = op.mode == "linear" and not op.antialias
        y = s.np.clip(s.np.trunc(y) if cut else s.np.rint(y), info.min, info.max)
    if outside is not None:
        y = s.np.where(outside, np.asarray(op.extrapolation_value, y.dtype), y)
    return y.astype(source)


def _sampled(s: JaxSite, x: Any, axis: int, index: Any, weights: Any) -> Any:
    """Elements along an axis at the places of an index [out, taps], weighted."""
    count = index.shape[0]
    if count == x.shape[axis] and index.shape[1] == 1 and np.array_equal(index[:, 0], np.arange(count)):
        return x
    if weights is None:
        return s.np.take(x, index[:, 0].astype(np.int32), axis=axis, mode="clip")
    total: Any = None
    for t in range(index.shape[1]):
        w = weights[:, t].reshape(-1, *(1,) * (x.ndim - 1 - axis)).astype(x.dtype)
        if w.any():
            part = s.np.take(x, index[:, t].astype(np.int32), axis=axis, mode="clip") * w
            total = part if total is None else total + part
    return s.np.zeros_like(x, shape=(*x.shape[:axis], count, *x.shape[axis + 1 :])) if total is None else total


class _Points:
    """Points of a `GridSample` along one axis, as its reference places them."""

    def __init__(self, s: JaxSite, op: Any, size: int) -> None:
        self.np, self.op, self.size = s.np, op, size

    def placed(self, at: Any) -> Any:
        """Coordinates in elements, brought inside as the padding mode says."""
        v, op = self.np, self.op
        at = at if self.size <= EXACT else at.astype(F64)
        if op.padding_mode == "reflection":
            near = v.abs(at) <= GREATEST_POINT
            inside = self.reflected(self._in_elements(v.where(near, at, 0).astype(F64)))
            return v.where(near, inside, 0).astype(at.dtype)
        at = self._in_elements(at)
        room = 2 if op.mode == "cubic" else 0
        return v.clip(at, -room, self.size - 1 + room) if op.padding_mode == "border" else at

    def _in_elements(self, at: Any) -> Any:
        size = self.size
        at = (at + 1) / 2 * (size - 1) if self.op.align_corners else ((at + 1) * size - 1) / 2
        return self.np.rint(at) if self.op.mode == "nearest" else at

    def reflected(self, at: Any) -> Any:
        v, size = self.np, self.size
        low, high = (0.0, size - 1.0) if self.op.align_corners else (-0.5, size - 0.5)
        if high <= low:
            return v.zeros_like(at)
        period = 2 * (high - low)
        folded = v.mod(at.astype(F64) - low, period)
        mirrored = (low + v.minimum(folded, period - folded)).astype(at.dtype)
        return v.where((at < low) | (at > high), mirrored, at)

    def taps(self, at: Any) -> list[tuple[Any, Any]]:
        """Places and weights of the elements that a point is made of."""
        v = self.np
        if self.op.mode == "nearest":
            return [(v.rint(at), v.ones_like(at))]
        base = v.floor(at)
        offsets = (0, 1) if self.op.mode == "linear" else (-1, 0, 1, 2)
        return [(base + o, self._weight(base + o - at)) for o in offsets]

    def _weight(self, distance: Any) -> Any:
        d = self.np.abs(distance)
        if self.op.mode == "linear":
            return self.np.maximum(1 - d, 0)
        near = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1
        far = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
        return self.np.where(d <= 1, near, self.np.where(d < 2, far, 0))


@builds("GridSample", dtypes=NUMBERS, others={1: FLOATS})
def grid_sample(s: JaxSite, op: Any, x: Any, grid: Any) -> Any:
    sizes, rank = s.dims()[2:], s.rank() - 2
    data = x if x.dtype in WIDE else x.astype(F32)
    axes = [_Points(s, op, size) for size in sizes]
    by_axis = [p.taps(p.placed(grid[..., rank - 1 - i])) for i, p in enumerate(axes)]
    batch = np.arange(s.dims()[0]).reshape(-1, *(1,) * rank)
    last = s.np.moveaxis(data, 1, -1)
    y: Any = 0
    for combination in itertools.product(*by_axis):
        weight: Any = s.np.ones(grid.shape[:-1], data.dtype)
        index = []
        for (at, w), p in zip(combination, axes, strict=True):
            inside = (at >= 0) & (at <= p.size - 1)
            if op.padding_mode == "reflection":
                at = p.reflected(at)
            index.append(s.np.where(s.np.isnan(at), 0, s.np.clip(at, 0, p.size - 1)).astype(I32))
            weight = weight * (s.np.where(inside, w, 0) if op.padding_mode == "zeros" else w).astype(data.dtype)
        part = last.at[(batch, *index)].get(mode="clip") * weight[..., None]
        y = y + s.np.where(weight[..., None] == 0, 0, part)
    return s.np.moveaxis(y, -1, 1).astype(x.dtype)


@builds("RoiAlign", dtypes=FLOATS, indices=(2,))
def roi_align(s: JaxSite, op: Any, x: Any, rois: Any, batch: Any) -> Any:
    """By samples of a number that is given."""
    s.want(op.sampling_ratio > 0, "as many samples as the region has pixels")
    shift = 0.5 if op.coordinate_transformation_mode == "half_pixel" else 0.0
    corners = rois * op.spatial_scale - shift
    planes = s.np.take(x, batch, axis=0, mode="clip")
    sides = []
    for first, count, size in ((1, op.output_height, s.dims()[2]), (0, op.output_width, s.dims()[3])):
        start, length = corners[:, first], corners[:, first + 2] - corners[:, first]
        length = length if shift else s.np.maximum(length, 1.0)
        bins = np.arange(count)[:, None] + (np.arange(op.sampling_ratio) + 0.5) / op.sampling_ratio
        at = start[:, None] + (length / count)[:, None] * bins.reshape(1, -1).astype(x.dtype)
        inside = (at >= -1) & (at <= size)
        at = s.np.where(inside, s.np.clip(at, 0, size - 1), 0)
        low = s.np.floor(at).astype(I64)
        high = s.np.minimum(low + 1, size - 1)
        share = at - low
        sides.append([(low, s.np.where(inside, 1 - share, 0)), (high, s.np.where(inside, share, 0))])
    rows = np.arange(s.dims(1)[0])[:, None, None]
    parts = []
    for (i, wi), (j, wj) in itertools.product(*sides):
        found = s.np.moveaxis(planes, 1, -1).at[(rows, i[:, :, None], j[:, None, :])].get(mode="clip")
        weight = (wi[:, :, None] * wj[:, None, :])[..., None]
        parts.append(s.np.where(weight == 0, 0, found * weight))
    n, each = s.dims(1)[0], op.sampling_ratio
    combined = s.np.stack(parts).max(0) if op.mode == "max" else sum(parts)
    bins = combined.reshape(n, op.output_height, each, op.output_width, each, s.dims()[1])
    y = bins.max((2, 4)) if op.mode == "max" else bins.mean((2, 4))
    return s.np.moveaxis(y, -1, 1).astype(x.dtype)
