"""Readers of orders: sorting, extremes by rank, running ones, counts, different elements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import F64, I32, I64, AnyDType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.binary import any_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.accumulate import CumMax, CumMin, GatherTree, LogCumSumExp, SearchSorted
from bolt_numba.ops.arrays.gather import Compress, Gather, GatherElements, ScatterElements, Unique
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ArgMax, CumSum, ReduceMax, ReduceMin, ReduceSum, TopK
from bolt_numba.ops.arrays.shape import Concat, Shape, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice

PADDLE.reader("gather_tree")(AsIs(GatherTree()))


def _best(b: PaddleBuilder, x: Value, count: Value, axis: int, largest: bool) -> tuple[Value, Value]:
    """The ``count`` greatest or least along an axis, and their places."""
    values, places = b(TopK(axis, largest), x, b.shaped(b.to(count, I64), [1]))
    return values, places


@PADDLE.reader("argsort", results=("Out", "Indices"))
def argsort(b: PaddleBuilder, x: Value, *, axis: int = -1, descending: bool = False) -> Any:
    if not b.rank_of(x):
        return x, b.const(np.array(0, np.int64))
    at = b.axis_of(x, axis)
    return _best(b, x, b.length(x, at), at, descending)


@PADDLE.reader("top_k_v2", legacy=("top_k",), pir=("topk",), results=("Out", "Indices"))
def top_k(b: PaddleBuilder, x: Value, k: Value, *, axis: int = -1, largest: bool = True) -> Any:
    if not b.rank_of(x):
        return x, b.const(np.array(0, np.int64))
    return _best(b, x, k, b.axis_of(x, axis), largest)


@PADDLE.reader("kthvalue", results=("Out", "Indices"))
def kthvalue(b: PaddleBuilder, x: Value, *, k: int = 1, axis: int = -1, keepdim: bool = False) -> tuple[Value, ...]:
    """The k-th least along an axis."""
    at = b.axis_of(x, axis)
    made = _best(b, x, b.const(ints([k])), at, False)
    return tuple(_kept(b, b.sliced(v, at, k - 1, k), at, keepdim) for v in made)


def _kept(b: PaddleBuilder, x: Value, axis: int, keepdim: bool) -> Value:
    return x if keepdim else b.column(x, axis, 0)


@PADDLE.reader("mode", results=("Out", "Indices"))
def mode(b: PaddleBuilder, x: Value, *, axis: int = -1, keepdim: bool = False) -> tuple[Value, ...]:
    """The most frequent element along an axis, the least of several, and where it is last."""
    at = b.axis_of(x, axis)
    x, order = b.moved_last(x, at)
    rank = b.rank_of(x)
    ascending, _ = _best(b, x, b.length(x, -1), rank - 1, False)
    same = b(p.Equal(), b.unsqueezed(ascending, rank), b.unsqueezed(ascending, rank - 1))
    often = b(ArgMax(-1, True), b(ReduceSum(False), b.to(same, I64), ints([-1])))
    value = b(GatherElements(rank - 1), ascending, often)
    place = b(ArgMax(-1, True, True), b.to(b(p.Equal(), x, value), I32))
    made = (b.transposed(v, *order) for v in (value, place))
    return tuple(_kept(b, v, at, keepdim) for v in made)


@PADDLE.reader("median", results=("Out", "MedianIndex"))
def median(b: PaddleBuilder, x: Value, *, axis: Ints = (), keepdim: bool = False, mode: str = "avg") -> Any:
    """The middle of the ordered elements, of two of them the mean or the lesser; NaN where there is one."""
    b.unsupported_if(len(axis) > 1, "several axes")
    rank = b.rank_of(x)
    row, at = (x, b.axis_of(x, axis[0])) if axis else (b.flat(x), 0)
    count = b.length(row, at)
    ordered, places = _best(b, row, count, at, False)
    low, high = b(p.Div(), b(p.Sub(), count, 1), 2), b(p.Div(), count, 2)
    first, second = (b(Gather(at), ordered, b.as_scalar(v)) for v in (low, high))
    middle = b(p.Div(), b(p.Add(), first, second), 2) if mode == "avg" else first
    if x.type.dtype.kind not in "iu":
        middle = b.chosen(any_of(b, b(p.IsNaN(), row), at), np.nan, middle, x.type.dtype)
    found = b(Gather(at), places, b.as_scalar(low))
    if not keepdim:
        return middle, found
    return tuple(b.unsqueezed(v, at) if axis else b.shaped(v, [1] * rank) for v in (middle, found))


@PADDLE.reader("searchsorted", slots={"SortedSequence": "row"})
def searchsorted(b: PaddleBuilder, row: Value, values: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    """Where values would stand in ascending rows."""
    made = b(SearchSorted(right), row, b.to(values, row.type.dtype))
    return b.to(made, I32) if out_int32 else made


@PADDLE.reader("bucketize")
def bucketize(b: PaddleBuilder, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return searchsorted(b, boundaries, x, out_int32=out_int32, right=right)


@PADDLE.reader("bincount")
def bincount(b: PaddleBuilder, x: Value, weights: Value | None = None, minlength: Value | None = None) -> Value:
    """How often each number occurs, or the sums of its weights."""
    least = b.const(np.array(0)) if minlength is None else b.as_scalar(b.to(minlength, I64))
    x = b.to(x, I64)
    length = b(p.Max(), b(p.Add(), b(ReduceMax(False), b(Concat(0), x, ints([-1]))), 1), least)
    added = b(p.Add(), b(p.Mul(), x, 0), 1) if weights is None else weights
    zeros = b(ConstantOfShape(0, added.type.dtype), b(Unsqueeze(), length, ints([0])))
    return b(ScatterElements(0, "add"), zeros, x, added)


@PADDLE.reader("unique", results=("Out", "Indices", "Index", "Counts"))
def unique(b: PaddleBuilder, x: Value, *, dtype: AnyDType = I64, axis: Ints = (), is_sorted: bool | None = None) -> Any:
    """The different elements (slices), first places, where each of x went, and how often each occurs."""
    in_order = not b.is_legacy if is_sorted is None else is_sorted
    values, *others = b(Unique(b.axis_of(x, axis[0]) if axis else None, in_order), x)
    return values, *(b.to(v, dtype) for v in others)


@PADDLE.reader(legacy=("unique_with_counts",), results=("Out", "Index", "Count"))
def unique_with_counts(b: PaddleBuilder, x: Value, *, dtype: AnyDType = I64) -> Any:
    values, _, inverse, counts = unique(b, x, dtype=dtype, is_sorted=False)
    return values, inverse, counts


@PADDLE.reader("unique_consecutive", results=("Out", "Index", "Counts"))
def unique_consecutive(
    b: PaddleBuilder, x: Value, *, axis: Ints = (), dtype: AnyDType = I64
) -> tuple[Value, Value, Value]:
    """The elements that differ from the one before, the run of each of x, and how long the runs are."""
    b.unsupported_if(axis, "slices along an axis")
    row = b.flat(x)
    differs = b(p.Not(), b(p.Equal(), b.sliced(row, 0, 1), b.sliced(row, 0, 0, -1)))
    begins = b(Concat(0), b.const(np.array([True])), differs)
    begins = b(Slice(), begins, ints([0]), b.length(row, 0), ints([0]))
    inverse = b(p.Sub(), b(CumSum(), b.to(begins, I64), b.const(np.array(0))), 1)
    values = b(Compress(None), row, begins)
    zeros = b(ConstantOfShape(0, I64), b(Shape(), values))
    counts = b(ScatterElements(0, "add"), zeros, inverse, b(p.Add(), b(p.Mul(), inverse, 0), 1))
    return values, b.to(inverse, dtype), b.to(counts, dtype)


def _running(operator: Any) -> Any:
    def read(b: PaddleBuilder, x: Value, *, axis: int = -1, dtype: AnyDType = I64) -> Any:
        if not b.rank_of(x):
            return x, b.const(np.array(0, dtype))
        values, where = b(operator(b.axis_of(x, axis)), x)
        return values, b.to(where, dtype)

    return read


PADDLE.reader("cummax", results=("out", "indices"))(_running(CumMax))
PADDLE.reader("cummin", results=("out", "indices"))(_running(CumMin))


def _log_sums(b: PaddleBuilder, made: LogCumSumExp, x: Value, *, flatten: bool = False) -> Value:
    if flatten:
        return b(replace(made, axis=0), b.flat(x))
    return b(replace(made, axis=b.axis_of(x, made.axis)), x) if b.rank_of(x) else x


PADDLE.reader("logcumsumexp")(AsIs(LogCumSumExp, "x", then=_log_sums, axis=-1, exclusive=False, reverse=False))


@PADDLE.reader("nanmedian", results=("Out", "MedianIndex"))
def nanmedian(b: PaddleBuilder, x: Value, *, axis: Ints = (), keepdim: bool = False, mode: str = "avg") -> Any:
    """The middle of the ordered elements that are not NaN, of two of them the mean or the lesser."""
    b.unsupported_if(len(axis) > 1, "several axes")
    rank = b.rank_of(x)
    row, at = (x, b.axis_of(x, axis[0])) if axis else (b.flat(x), 0)
    nothing = b(p.IsNaN(), row)
    count = b(ReduceSum(True), b.to(b(p.Not(), nothing), I64), ints([at]))
    kept = b.chosen(nothing, np.inf, row, x.type.dtype)
    ordered, places = _best(b, kept, b.length(row, at), at, False)
    low, high = b(p.Max(), b(p.Div(), b(p.Sub(), count, 1), 2), 0), b(p.Div(), count, 2)
    high = b(p.Min(), high, b(p.Sub(), b.length(row, at), 1))
    first, second = (b(GatherElements(at), ordered, v) for v in (low, high))
    middle = b(p.Div(), b(p.Add(), first, second), 2) if mode == "avg" else first
    middle = b.chosen(b(p.Equal(), count, 0), np.nan, middle, x.type.dtype)
    found = b(GatherElements(at), places, low)
    if keepdim:
        return tuple(v if axis else b.shaped(v, [1] * rank) for v in (middle, found))
    return tuple(b.column(v, at, 0) for v in (middle, found))


@PADDLE.reader("histogram", slots={"X": "input"})
def histogram(
    b: PaddleBuilder,
    input: Value,
    weight: Value | None = None,
    *,
    bins: int = 100,
    min: float = 0.0,
    max: float = 0.0,
    density: bool = False,
) -> Value:
    """How many elements fall into each of equal bins; between the least and the greatest where no limits are given."""
    b.unsupported_if(density or weight is not None, "weights and densities")
    row = b.to(b.flat(input), F64)
    if min == max:
        low, high = b(ReduceMin(False), row), b(ReduceMax(False), row)
        is_one = b.to(b(p.Equal(), low, high), F64)
        low, high = b(p.Sub(), low, is_one), b(p.Add(), high, is_one)
    else:
        low, high = b.const(np.array(min, np.float64)), b.const(np.array(max, np.float64))
    places = b(p.Floor(), b(p.Div(), b(p.Mul(), b(p.Sub(), row, low), float(bins)), b(p.Sub(), high, low)))
    inside = b(p.And(), b(p.GreaterOrEqual(), row, low), b(p.LessOrEqual(), row, high))
    last = b(p.Min(), b(p.Max(), places, 0.0), float(bins - 1))
    zeros = b(ConstantOfShape(0, I64), ints([bins]))
    return b(ScatterElements(0, "add"), zeros, b.to(last, I64), b.to(inside, I64))
