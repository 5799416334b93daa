"""Cases of reductions and their kin."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.arrays import histogram as h
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.reduce import CumProd, Det
from bolt_numba.ops.registry import Op
from bolt_numba.types import BOOL, F32, F64, I8, I16, I32, I64, U8, U32, U64
from tests.cases import Case, cases
from tests.cases.draw import Draw, axis_of, flags, ints, pick, real, shapes, some_axes, whole

EXACT = (r.ReduceSum, r.ReduceMax, r.ReduceMin, r.ReduceL1, r.ReduceSumSquare)
INEXACT = (r.ReduceMean, r.ReduceProd, r.ReduceL2, r.ReduceLogSum, r.ReduceLogSumExp)


def reduction(draw: Draw, op: type[r.Reduction]) -> Case:
    dims = shapes(draw, 1, 4)
    axes = pick(draw, None, (), some_axes(draw, len(dims)), (-1,), (0,))
    made: Any = op(keepdims=draw(flags), noop_with_empty_axes=draw(flags))
    plain = pick(draw, F32, F32, I32, I64, F64, *([I8, U8] if op in (r.ReduceMax, r.ReduceMin) else []))
    if op in (r.ReduceMax, r.ReduceMin) and draw(flags):
        x = whole(draw, dims, 0, 1, dtype=BOOL)
    elif op in EXACT:
        x = whole(draw, dims, 0 if plain.kind == "u" else -4, dtype=plain)
    elif op is r.ReduceMean and draw(flags):
        x = whole(draw, dims, -9, 60, dtype=pick(draw, I32, I64, F64))
    elif op is r.ReduceL2 and draw(flags):  # squares of shorter integers wrap around in the oracle
        x = whole(draw, dims, 0, 60, dtype=pick(draw, I32, I64, U64, F64))
    elif op is r.ReduceProd and draw(flags):
        x = whole(draw, dims, -1, 1, dtype=pick(draw, I32, I64))
    elif op is r.ReduceProd:
        x = np.exp(real(draw, dims, -0.1, 0.1))
    else:
        x = real(draw, dims, 0.1 if op is r.ReduceLogSum else -3.0)
    return Case(made, (x,) if axes is None else (x, ints(axes)), exact=op in EXACT)


for _op in EXACT + INEXACT:
    cases(_op)(reduction)


def arg(draw: Draw, op: type[r.ArgMax | r.ArgMin]) -> Case:
    dims = shapes(draw, 1, 4)
    x = whole(draw, dims, 0, 7, dtype=pick(draw, F32, F32, I32, U8, I8, I64, F64))
    return Case(op(axis_of(draw, len(dims)), draw(flags), draw(flags)), (x,))


cases(r.ArgMax)(arg)
cases(r.ArgMin)(arg)


def along_axis(draw: Draw, op: Any) -> Case:
    dims = shapes(draw, 1, 4)
    x = real(draw, dims, -20, 20)
    return Case(op(pick(draw, -1, -1, axis_of(draw, len(dims)))), (x,), exact=op is r.Hardmax)


for _kind in (r.Softmax, r.LogSoftmax, r.Hardmax):
    cases(_kind)(along_axis)


@cases(r.CumSum)
def cumsum(draw: Draw, op: type[r.CumSum]) -> Case:
    dims = shapes(draw, 1, 3)
    x = whole(draw, dims, dtype=pick(draw, F32, F32, I64, I8, F64))
    axis = np.array(axis_of(draw, len(dims)), dtype=pick(draw, I64, I32))
    return Case(op(draw(flags), draw(flags)), (x, axis))


@cases(r.TopK)
def topk(draw: Draw, op: type[r.TopK]) -> Case:
    dims = shapes(draw, 1, 3)
    axis = axis_of(draw, len(dims))
    x = whole(draw, dims, -20, 20, dtype=pick(draw, F32, F32, I64, F64, U8, I16, U32))
    k = pick(draw, 1, dims[axis], min(3, dims[axis]))
    made: Op = op(axis, draw(flags), True)
    return Case(made, (x, ints([k])))


@cases(CumProd)
def cum_prod(draw: Draw, op: type[CumProd]) -> Case:
    x = whole(draw, shapes(draw, 1, 3, 60), -2, 2, pick(draw, F32, I64))
    return Case(op(draw(flags), draw(flags)), (x, np.array(axis_of(draw, x.ndim), pick(draw, I64, I32))))


@cases(Det)
def det(draw: Draw, op: type[Det]) -> Case:
    m = pick(draw, 1, 2, 3, 4)
    return Case(op(), (real(draw, (*shapes(draw, 0, 2, 20), m, m)),), exact=False, rtol=1e-3)


@cases(h.Histogram)
def histogram(draw: Draw, op: type[h.Histogram]) -> Case:
    low, high = pick(draw, (-3.0, 4.0), (0.0, 2.0), (-5.0, -1.0), (-1e-30, 1e-31), (-1e30, 3e38), (0.0, 0.0))
    x = real(draw, shapes(draw, 1, 4), low, high)
    limits = np.asarray(np.min(x, initial=0), F32), np.asarray(np.max(x, initial=0), F32)
    return Case(op(), (x, *limits))
