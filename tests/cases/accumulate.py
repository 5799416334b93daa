"""Cases of what runs along an axis, and of places in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.arrays import accumulate as a
from bolt_numba.types import F32, F64, I32, I64
from tests.cases import Case, cases
from tests.cases.draw import Draw, axis_of, flags, pick, real, shapes, whole


def extreme(draw: Draw, op: Any) -> Case:
    dims = shapes(draw, 1, 4)
    x = whole(draw, dims, -3, 3, dtype=pick(draw, F32, F64, I32, I64))
    if x.dtype == F32 and draw(flags) and x.size:
        x.reshape(-1)[x.size // 2] = np.nan
    return Case(op(axis_of(draw, len(dims))), (x,), exact=True)


cases(a.CumMax)(extreme)
cases(a.CumMin)(extreme)


@cases(a.LogCumSumExp)
def log_cum_sum_exp(draw: Draw, op: type[a.LogCumSumExp]) -> Case:
    dims = shapes(draw, 1, 4)
    return Case(op(axis_of(draw, len(dims)), draw(flags), draw(flags)), (real(draw, dims, -30, 30),))


@cases(a.SearchSorted)
def search_sorted(draw: Draw, op: type[a.SearchSorted]) -> Case:
    dims = shapes(draw, 1, 3)
    dtype = pick(draw, F32, I32, I64)
    values = whole(draw, (*dims[:-1], pick(draw, 1, 3)), -4, 4, dtype=dtype)
    return Case(op(draw(flags)), (np.sort(whole(draw, dims, -3, 3, dtype=dtype), axis=-1), values), exact=True)


@cases(a.GatherTree)
def gather_tree(draw: Draw, op: type[a.GatherTree]) -> Case:
    dims = shapes(draw, 3, 3)
    dtype = pick(draw, I32, I64)
    beams = max(dims[2], 1)
    return Case(op(), (whole(draw, dims, 0, 9, dtype=dtype), whole(draw, dims, 0, beams - 1, dtype=dtype)), exact=True)


@cases(a.Inverse)
def inverse(draw: Draw, op: type[a.Inverse]) -> Case:
    size = pick(draw, 1, 2, 4)
    x = real(draw, (*shapes(draw, 0, 2), size, size), -1, 1) + np.float32(4) * np.eye(size, dtype=F32)
    return Case(op(), (x,), rtol=1e-4)
