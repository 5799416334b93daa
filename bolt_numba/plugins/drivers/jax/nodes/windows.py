"""Pools, resampling, regions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I64
from bolt_numba.ops.layers.detection.regions import RoiAlign
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool, Pool
from bolt_numba.ops.layers.resize import GridSample, Resize
from bolt_numba.plugins.drivers.jax.table import DATA, FLOATS, INTS, NUMBERS, WIDE, JaxSite, builds


def _pooled(s: JaxSite, op: Pool, x: Any, start: Any, combine: Any) -> tuple[Any, Any, list[int]]:
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
def max_pool(s: JaxSite, op: MaxPool, x: Any) -> Any:
    s.want(not op.indices, "where the greatest was")
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _pooled(s, op, x, np.array(low, x.dtype), s.lax.max)[0]


@builds("AveragePool", dtypes=FLOATS)
def average_pool(s: JaxSite, op: AveragePool, x: Any) -> Any:
    """Over the elements that count, whose number is known."""
    total, windows, outs = _pooled(s, op, x, np.zeros((), x.dtype), s.lax.add)
    return total / op.counts(windows, x, outs)


@builds("LpPool", dtypes=FLOATS)
def lp_pool(s: JaxSite, op: LpPool, x: Any) -> Any:
    powers = s.np.abs(x) ** op.p
    return _pooled(s, op, powers, np.zeros((), x.dtype), s.lax.add)[0] ** (1 / op.p)


@builds("Resize", dtypes=DATA)
def resize(s: JaxSite, op: Resize, x: Any, *operands: Any) -> Any:
    roi, scales, sizes = (s.known(i, "sizes") if s.given(i) else None for i in (1, 2, 3))
    return op.resampled(s.np, s.np.asarray(x), op.plan(s.dims(), roi, scales, sizes))


@builds("GridSample", dtypes=NUMBERS, others={1: FLOATS})
def grid_sample(s: JaxSite, op: GridSample, x: Any, grid: Any) -> Any:
    data = s.np.asarray(x if x.dtype in WIDE else x.astype(F32))
    return op.sampled(s.np, data, s.np.asarray(grid)).astype(x.dtype)


@builds("RoiAlign", dtypes=FLOATS, indices=(2,))
def roi_align(s: JaxSite, op: RoiAlign, x: Any, rois: Any, batch: Any) -> Any:
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
