"""Pools, resampling, regions."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32
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
