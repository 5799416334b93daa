"""Readers of orders: sorting, extremes by rank, running ones, counts, different elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F64, I32, I64, AnyDType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.operands import as_scalar, ints, rank_of, sliced, unsqueezed
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.parts import (
    Ints,
    axis_of,
    chosen,
    column,
    flat,
    moved_last,
    reshaped,
    size_of,
    to,
    transposed,
)
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.binary import any_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.accumulate import CumMax, CumMin, GatherTree, LogCumSumExp, SearchSorted
from bolt_numba.ops.arrays.gather import Compress, Gather, GatherElements, ScatterElements, Unique
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ArgMax, CumSum, ReduceMax, ReduceMin, ReduceSum, TopK
from bolt_numba.ops.arrays.shape import Concat, Shape, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.pointwise import (
    Add,
    And,
    Div,
    Equal,
    Floor,
    GreaterOrEqual,
    IsNaN,
    LessOrEqual,
    Max,
    Min,
    Mul,
    Not,
    Sub,
)

PADDLE.reader("gather_tree")(AsIs(GatherTree()))


def _best(b: PaddleBuilder, x: Value, count: Value, axis: int, largest: bool) -> tuple[Value, Value]:
    """The ``count`` greatest or least along an axis, and their places."""
    values, places = b(TopK(axis, largest), x, reshaped(b, to(b, count, I64), [1]))
    return values, places


@PADDLE.reader("argsort", results=("Out", "Indices"))
def argsort(b: PaddleBuilder, x: Value, *, axis: int = -1, descending: bool = False, stable: bool = False) -> Any:
    if not rank_of(b, x):
        return x, b.const(np.array(0, np.int64))
    at = axis_of(b, x, axis)
    return _best(b, x, size_of(b, x, at), at, descending)


@PADDLE.reader("top_k_v2", pir=("topk",), results=("Out", "Indices"))
def top_k(b: PaddleBuilder, x: Value, k: Value, *, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not rank_of(b, x):
        return x, b.const(np.array(0, np.int64))
    return _best(b, x, k, axis_of(b, x, axis), largest)


@PADDLE.reader(legacy=("top_k",), results=("Out", "Indices"))
def top_k_v1(b: PaddleBuilder, x: Value, k: Value) -> Any:
    return top_k(b, x, k)


@PADDLE.reader("kthvalue", results=("Out", "Indices"))
def kthvalue(b: PaddleBuilder, x: Value, *, k: int = 1, axis: int = -1, keepdim: bool = False) -> tuple[Value, ...]:
    """The k-th least along an axis."""
    at = axis_of(b, x, axis)
    made = _best(b, x, b.const(ints([k])), at, False)
    return tuple(_kept(b, sliced(b, v, at, k - 1, k), at, keepdim) for v in made)


def _kept(b: PaddleBuilder, x: Value, axis: int, keepdim: bool) -> Value:
    return x if keepdim else column(b, x, axis, 0)


@PADDLE.reader("mode", results=("Out", "Indices"))
def mode(b: PaddleBuilder, x: Value, *, axis: int = -1, keepdim: bool = False) -> tuple[Value, ...]:
    """The most frequent element along an axis, the least of several, and where it is last."""
    at = axis_of(b, x, axis)
    x, order = moved_last(b, x, at)
    rank = rank_of(b, x)
    ascending, _ = _best(b, x, size_of(b, x, -1), rank - 1, False)
    same = b(Equal(), unsqueezed(b, ascending, rank), unsqueezed(b, ascending, rank - 1))
    often = b(ArgMax(-1, True), b(ReduceSum(False), to(b, same, I64), ints([-1])))
    value = b(GatherElements(rank - 1), ascending, often)
    place = b(ArgMax(-1, True, True), to(b, b(Equal(), x, value), I32))
    made = (transposed(b, v, *order) for v in (value, place))
    return tuple(_kept(b, v, at, keepdim) for v in made)


@PADDLE.reader("median", results=("Out", "MedianIndex"))
def median(b: PaddleBuilder, x: Value, *, axis: Ints = (), keepdim: bool = False, mode: str = "avg") -> Any:
    """The middle of the ordered elements, of two of them the mean or the lesser; NaN where there is one."""
    if len(axis) > 1:
        raise b.unsupported("several axes")
    rank = rank_of(b, x)
    row, at = (x, axis_of(b, x, axis[0])) if axis else (flat(b, x), 0)
    count = size_of(b, row, at)
    ordered, places = _best(b, row, count, at, False)
    low, high = b(Div(), b(Sub(), count, 1), 2), b(Div(), count, 2)
    first, second = (b(Gather(at), ordered, as_scalar(b, v)) for v in (low, high))
    middle = b(Div(), b(Add(), first, second), 2) if mode == "avg" else first
    if x.type.dtype.kind not in "iu":
        middle = chosen(b, any_of(b, b(IsNaN(), row), at), np.nan, middle, x.type.dtype)
    found = b(Gather(at), places, as_scalar(b, low))
    if not keepdim:
        return middle, found
    return tuple(unsqueezed(b, v, at) if axis else reshaped(b, v, [1] * rank) for v in (middle, found))


@PADDLE.reader("searchsorted", slots={"SortedSequence": "row"})
def searchsorted(b: PaddleBuilder, row: Value, values: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    """Where values would stand in ascending rows."""
    made = b(SearchSorted(right), row, to(b, values, row.type.dtype))
    return to(b, made, I32) if out_int32 else made


@PADDLE.reader("bucketize")
def bucketize(b: PaddleBuilder, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return searchsorted(b, boundaries, x, out_int32=out_int32, right=right)


@PADDLE.reader("bincount")
def bincount(b: PaddleBuilder, x: Value, weights: Value | None = None, minlength: Value | None = None) -> Value:
    """How often each number occurs, or the sums of its weights."""
    least = b.const(np.array(0)) if minlength is None else as_scalar(b, to(b, minlength, I64))
    x = to(b, x, I64)
    length = b(Max(), b(Add(), b(ReduceMax(False), b(Concat(0), x, ints([-1]))), 1), least)
    added = b(Add(), b(Mul(), x, 0), 1) if weights is None else weights
    zeros = b(ConstantOfShape(0, added.type.dtype), b(Unsqueeze(), length, ints([0])))
    return b(ScatterElements(0, "add"), zeros, x, added)


@PADDLE.reader(legacy=("unique",), results=("Out", "Indices", "Index", "Counts"))
def unique_legacy(
    b: PaddleBuilder,
    x: Value,
    *,
    dtype: AnyDType = I64,
    axis: Ints = (),
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    is_sorted: bool = False,
) -> Any:
    return unique(b, x, dtype=dtype, axis=axis, is_sorted=is_sorted)


@PADDLE.reader(pir=("unique",))
def unique(
    b: PaddleBuilder,
    x: Value,
    *,
    dtype: AnyDType = I64,
    axis: Ints = (),
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    is_sorted: bool = True,
) -> Any:
    """The different elements (slices), first places, where each of x went, and how often each occurs."""
    values, *others = b(Unique(axis_of(b, x, axis[0]) if axis else None, is_sorted), x)
    return values, *(to(b, v, dtype) for v in others)


@PADDLE.reader(legacy=("unique_with_counts",), results=("Out", "Index", "Count"))
def unique_with_counts(b: PaddleBuilder, x: Value, *, dtype: AnyDType = I64) -> Any:
    values, _, inverse, counts = unique(b, x, dtype=dtype, is_sorted=False)
    return values, inverse, counts


@PADDLE.reader("unique_consecutive", results=("Out", "Index", "Counts"))
def unique_consecutive(
    b: PaddleBuilder,
    x: Value,
    *,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Ints = (),
    dtype: AnyDType = I64,
) -> tuple[Value, Value, Value]:
    """The elements that differ from the one before, the run of each of x, and how long the runs are."""
    if axis:
        raise b.unsupported("slices along an axis")
    row = flat(b, x)
    differs = b(Not(), b(Equal(), sliced(b, row, 0, 1), sliced(b, row, 0, 0, -1)))
    begins = b(Concat(0), b.const(np.array([True])), differs)
    begins = b(Slice(), begins, ints([0]), size_of(b, row, 0), ints([0]))
    inverse = b(Sub(), b(CumSum(), to(b, begins, I64), b.const(np.array(0))), 1)
    values = b(Compress(None), row, begins)
    zeros = b(ConstantOfShape(0, I64), b(Shape(), values))
    counts = b(ScatterElements(0, "add"), zeros, inverse, b(Add(), b(Mul(), inverse, 0), 1))
    return values, to(b, inverse, dtype), to(b, counts, dtype)


def _running(operator: Any) -> Any:
    def read(b: PaddleBuilder, x: Value, *, axis: int = -1, dtype: AnyDType = I64) -> Any:
        if not rank_of(b, x):
            return x, b.const(np.array(0, dtype))
        values, where = b(operator(axis_of(b, x, axis)), x)
        return values, to(b, where, dtype)

    return read


PADDLE.reader("cummax", results=("out", "indices"))(_running(CumMax))
PADDLE.reader("cummin", results=("out", "indices"))(_running(CumMin))


@PADDLE.reader("logcumsumexp")
def logcumsumexp(
    b: PaddleBuilder,
    x: Value,
    *,
    axis: int = -1,
    flatten: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
) -> Value:
    if flatten:
        return b(LogCumSumExp(0, exclusive, reverse), flat(b, x))
    return b(LogCumSumExp(axis_of(b, x, axis), exclusive, reverse), x) if rank_of(b, x) else x


@PADDLE.reader("nanmedian", results=("Out", "MedianIndex"))
def nanmedian(b: PaddleBuilder, x: Value, *, axis: Ints = (), keepdim: bool = False, mode: str = "avg") -> Any:
    """The middle of the ordered elements that are not NaN, of two of them the mean or the lesser."""
    if len(axis) > 1:
        raise b.unsupported("several axes")
    rank = rank_of(b, x)
    row, at = (x, axis_of(b, x, axis[0])) if axis else (flat(b, x), 0)
    nothing = b(IsNaN(), row)
    count = b(ReduceSum(True), to(b, b(Not(), nothing), I64), ints([at]))
    kept = chosen(b, nothing, np.inf, row, x.type.dtype)
    ordered, places = _best(b, kept, size_of(b, row, at), at, False)
    low, high = b(Max(), b(Div(), b(Sub(), count, 1), 2), 0), b(Div(), count, 2)
    high = b(Min(), high, b(Sub(), size_of(b, row, at), 1))
    first, second = (b(GatherElements(at), ordered, v) for v in (low, high))
    middle = b(Div(), b(Add(), first, second), 2) if mode == "avg" else first
    middle = chosen(b, b(Equal(), count, 0), np.nan, middle, x.type.dtype)
    found = b(GatherElements(at), places, low)
    if keepdim:
        return tuple(v if axis else reshaped(b, v, [1] * rank) for v in (middle, found))
    return tuple(column(b, v, at, 0) for v in (middle, found))


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
    if density or weight is not None:
        raise b.unsupported("weights and densities")
    row = to(b, flat(b, input), F64)
    if min == max:
        low, high = b(ReduceMin(False), row), b(ReduceMax(False), row)
        is_one = to(b, b(Equal(), low, high), F64)
        low, high = b(Sub(), low, is_one), b(Add(), high, is_one)
    else:
        low, high = b.const(np.array(min, np.float64)), b.const(np.array(max, np.float64))
    places = b(Floor(), b(Div(), b(Mul(), b(Sub(), row, low), float(bins)), b(Sub(), high, low)))
    inside = b(And(), b(GreaterOrEqual(), row, low), b(LessOrEqual(), row, high))
    last = b(Min(), b(Max(), places, 0.0), float(bins - 1))
    zeros = b(ConstantOfShape(0, I64), ints([bins]))
    return b(ScatterElements(0, "add"), zeros, to(b, last, I64), to(b, inside, I64))
