"""Plan-time geometry of Resize: which elements are blended along each axis, and by what weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.types import Array
from bolt_numba.kernels.registry import Types
from bolt_numba.ops.layers.resize import AxisPlan, Resize

Pass: TypeAlias = tuple[int, Array, Array]
"""Axis, index [out, taps], weights [out, taps]."""
MOST_REPEATED = 1 << 20
"""Elements of an axis of which f32 has the coordinates exactly."""


def own_axis(op: Resize, axis: int, rank: int) -> int:
    """Axis of the array for an axis counted as [n, c, spatial...]."""
    if op.layout == "NCHW" or axis == 0:
        return axis
    return rank - 1 if axis == 1 else axis - 1


def _known(ins: Types, index: int) -> Array | None:
    given = ins[index] if index < len(ins) else None
    return None if given is None else given.known


def plans_of(op: Resize, ins: Types) -> list[AxisPlan]:
    x = ins[0]
    dims = x.dims if op.layout == "NCHW" else (x.dims[0], x.dims[-1], *x.dims[1:-1])
    return op.plan(dims, _known(ins, 1), _known(ins, 2), _known(ins, 3))


def is_inside(op: Resize, plans: Sequence[AxisPlan]) -> bool:
    """No output lies outside the input, where it would get the extrapolation value."""
    if op.coordinate_transformation_mode != "tf_crop_and_resize":
        return True
    at = [op.coordinates(p) for p in plans]
    return all(((c >= 0) & (c <= p.size - 1)).all() for c, p in zip(at, plans, strict=True))


def is_untouched(index: Array, weights: Array, size: int) -> bool:
    return index.shape == (size, 1) and (index[:, 0] == np.arange(size)).all() and bool((weights == 1).all())


def useful(index: Array, weights: Array) -> tuple[Array, Array]:
    """Without the taps that weigh nothing anywhere."""
    kept = (weights != 0).any(axis=0)
    return index[:, kept], weights[:, kept]


def nearest_tables(op: Resize, ins: Types) -> list[Array]:
    """Source indices of each axis of x."""
    dims = ins[0].dims
    tables = [np.arange(n) for n in dims]
    for p in plans_of(op, ins):
        tables[own_axis(op, p.axis, len(dims))] = op.taps(p)[0][:, 0]
    return tables


def repeated_tables(op: Resize, ins: Types, outs: Sequence[int]) -> list[Array | int | None] | None:
    """`nearest_tables` of what is enlarged by constant factors, None for axes that stay; None for all else.

    A number says that each element comes so many times.
    """
    x, scales = ins[0], _known(ins, 2)
    if scales is None or scales.dtype == object or op.coordinate_transformation_mode == "tf_crop_and_resize":
        return None
    factors = [float(s) for s in scales.reshape(-1)]
    if min(factors) < 1 or max(factors) == 1:
        return None
    tables: list[Array | int | None] = [None] * len(x.dims)
    for axis, factor in zip(op.resized_axes(len(x.dims)), factors, strict=True):
        own = own_axis(op, axis, len(x.dims))
        if factor > 1:
            is_repeat = repeats(op, factor) and outs[own] < MOST_REPEATED
            tables[own] = int(factor) if is_repeat else _nearest_table(op, x.dims[own], outs[own], factor)
    return tables


def repeats(op: Resize, factor: float) -> bool:
    """Whether the nearest neighbour of an index is ``index // factor``, of a few of them exactly."""
    modes = {"asymmetric": ("floor",), "half_pixel": ("round_prefer_floor", "round_prefer_ceil")}
    return math.frexp(factor)[0] == 0.5 and op.nearest_mode in modes.get(op.coordinate_transformation_mode, ())


@pure
@lru_cache(maxsize=256)
def _nearest_table(op: Resize, size: int, out: int, factor: float) -> Array:
    return np.ascontiguousarray(op.taps(AxisPlan(0, size, out, factor))[0][:, 0], np.int64)


def passes_of(op: Resize, ins: Types) -> list[Pass]:
    """What is blended, axis after axis; nothing along those that stay as they are."""
    passes: list[Pass] = []
    for p in plans_of(op, ins):
        index, weights = useful(*op.taps(p))
        if not is_untouched(index, weights, p.size):
            passes.append((own_axis(op, p.axis, len(ins[0].dims)), index, weights))
    return passes
