"""Softmax and reductions in sums, powers and maxima; normalisations in means, products and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import Sym
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.shape import Reshape, Shape
from bolt_numba.ops.decomposed.decompose import Terms, WholeError, decomposes
from bolt_numba.ops.layers import norm as n
from bolt_numba.ops.pointwise import Abs, Add, Cast, Div, Equal, Exp, Log, Mul, Sqrt, Sub, Where


def _rank(x: Any) -> int:
    if not x.type.shape:
        raise WholeError("the rank is not known")
    return len(x.type.shape)


def _behind_greatest(op: Any, b: Terms, x: Any) -> tuple[Any, Any]:
    """X less the greatest of its line, and the axis as a constant."""
    axes = b.const(np.array([op.axis % _rank(x)], np.int64))
    return b(Sub(), x, b(r.ReduceMax(keepdims=True), x, axes)), axes


@decomposes(r.Softmax)
def softmax(op: Any, b: Terms, x: Any) -> Any:
    """``e / ReduceSum(e), e = Exp(x - ReduceMax(x))``."""
    below, axes = _behind_greatest(op, b, x)
    powers = b(Exp(), below)
    return b(Div(), powers, b(r.ReduceSum(keepdims=True), powers, axes))


@decomposes(r.LogSoftmax)
def log_softmax(op: Any, b: Terms, x: Any) -> Any:
    """``d - Log(ReduceSum(Exp(d))), d = x - ReduceMax(x)``."""
    below, axes = _behind_greatest(op, b, x)
    return b(Sub(), below, b(Log(), b(r.ReduceSum(keepdims=True), b(Exp(), below), axes)))


def _reduced(op: Any, b: Terms, kind: Any, x: Any, axes: Sequence[Any]) -> Any:
    """A reduction of other numbers along the same axes."""
    if x.type.dtype.kind in "iu" or op.noop_with_empty_axes:
        raise WholeError("roots and logarithms of integers are cut, and without axes nothing is reduced")
    return b(kind(op.keepdims, op.noop_with_empty_axes), x, *axes)


@decomposes(r.ReduceL1)
def absolute_sum(op: Any, b: Terms, x: Any, *axes: Any) -> Any:
    """``ReduceSum(Abs(x))``."""
    return _reduced(op, b, r.ReduceSum, b(Abs(), x), axes)


@decomposes(r.ReduceL2)
def length(op: Any, b: Terms, x: Any, *axes: Any) -> Any:
    """``Sqrt(ReduceSumSquare(x))``."""
    return b(Sqrt(), _reduced(op, b, r.ReduceSumSquare, x, axes))


@decomposes(r.ReduceSumSquare)
def sum_of_squares(op: Any, b: Terms, x: Any, *axes: Any) -> Any:
    """``ReduceSum(x * x)``."""
    return _reduced(op, b, r.ReduceSum, b(Mul(), x, x), axes)


@decomposes(r.ReduceLogSum)
def log_of_sum(op: Any, b: Terms, x: Any, *axes: Any) -> Any:
    """``Log(ReduceSum(x))``."""
    return b(Log(), _reduced(op, b, r.ReduceSum, x, axes))


def _scaled(b: Terms, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """X through the root of the mean of its squares."""
    mean = b(r.ReduceMean(keepdims=True), b(Mul(), x, x), np.array(axes, np.int64))
    return b(Div(), x, b(Sqrt(), b(Add(), mean, epsilon)))


def _standardised(b: Terms, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    centred = b(Sub(), x, b(r.ReduceMean(keepdims=True), x, np.array(axes, np.int64)))
    return _scaled(b, centred, axes, epsilon)


def _by_channel(b: Terms, v: Any, rank: int, layout: str) -> Any:
    """One number for each channel, shaped to broadcast against an image."""
    return b(Reshape(), v, np.array([-1, *[1] * (rank - 2 if layout == "NCHW" else 0)], np.int64))


def _affine(op: Any, b: Terms, y: Any, rank: int, scale: Any, bias: Any) -> Any:
    return b(Add(), b(Mul(), y, _by_channel(b, scale, rank, op.layout)), _by_channel(b, bias, rank, op.layout))


@decomposes(n.BatchNormalization)
def batch_norm(op: Any, b: Terms, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """``(x - mean) * (scale / Sqrt(var + e)) + bias``."""
    rank = _rank(x)
    if any(v.type.dtype != x.type.dtype for v in (scale, bias, mean, var)):
        raise WholeError("statistics of another dtype")
    factor = b(Div(), scale, b(Sqrt(), b(Add(), var, op.epsilon)))
    return _affine(op, b, b(Sub(), x, _by_channel(b, mean, rank, op.layout)), rank, factor, bias)


@decomposes(n.LayerNormalization)
def layer_norm(op: Any, b: Terms, x: Any, scale: Any, bias: Any = None) -> Any:
    """``d / Sqrt(ReduceMean(d * d) + e) * scale + bias, d = x - ReduceMean(x)``."""
    if op.stats:
        raise WholeError("the statistics are wanted")
    rank = _rank(x)
    y = b(Mul(), _standardised(b, x, range(op.axis % rank, rank), op.epsilon), scale)
    return y if bias is None else b(Add(), y, bias)


@decomposes(n.RMSNormalization)
def rms_norm(op: Any, b: Terms, x: Any, scale: Any) -> Any:
    """``x / Sqrt(ReduceMean(x * x) + e) * scale``."""
    y, to = _scaled(b, x, range(op.axis % _rank(x), _rank(x)), op.epsilon), scale.type.dtype
    return b(Mul(), y if x.type.dtype == to else b(Cast(to), y), scale)


@decomposes(n.InstanceNormalization)
def instance_norm(op: Any, b: Terms, x: Any, scale: Any, bias: Any) -> Any:
    """As LayerNormalization, over the spatial axes."""
    if (rank := _rank(x)) < 3:
        raise WholeError("no spatial axes")
    axes = range(2, rank) if op.layout == "NCHW" else range(1, rank - 1)
    return _affine(op, b, _standardised(b, x, axes, op.epsilon), rank, scale, bias)


@decomposes(n.GroupNormalization)
def group_norm(op: Any, b: Terms, x: Any, scale: Any, bias: Any) -> Any:
    """As LayerNormalization, over each group: Reshape there and back."""
    rank = _rank(x)
    if op.layout != "NCHW":
        raise WholeError("channels that are last")
    y = _standardised(b, b(Reshape(), x, np.array([0, op.num_groups, -1], np.int64)), (2,), op.epsilon)
    symbols = [d for d in x.type.shape if isinstance(d, Sym)]
    shape = b(Shape(), x) if len(symbols) > 1 else np.array([-1 if d in symbols else d for d in x.type.shape], np.int64)
    return _affine(op, b, b(Reshape(), y, shape), rank, scale, bias)


@decomposes(n.LpNormalization)
def lp_norm(op: Any, b: Terms, x: Any) -> Any:
    """``x / ReduceL2(x)``, or ReduceL1; 0 where that is 0."""
    axes = np.array([op.axis % _rank(x)], np.int64)
    total = b((r.ReduceL1 if op.p == 1 else r.ReduceL2)(keepdims=True), x, axes)
    return b(Div(), x, b(Where(), b(Equal(), total, 0.0), np.ones((), x.type.dtype), total))
