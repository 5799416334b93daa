"""Softmax and reductions in sums, powers and maxima.

softmax(Softmax(x))             -> e / ReduceSum(e), e = Exp(x - ReduceMax(x))
log_softmax(LogSoftmax(x))      -> d - Log(ReduceSum(Exp(d))), d = x - ReduceMax(x)
absolute_sum(ReduceL1(x))       -> ReduceSum(Abs(x))
norm(ReduceL2(x))               -> Sqrt(ReduceSumSquare(x))
sum_of_squares(ReduceSumSquare) -> ReduceSum(x * x)
log_of_sum(ReduceLogSum(x))     -> Log(ReduceSum(x))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import (
    LogSoftmax,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceMax,
    ReduceSum,
    ReduceSumSquare,
    Softmax,
)
from bolt_numba.ops.pointwise import Abs, Div, Exp, Log, Mul, Sqrt, Sub
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule
from bolt_numba.types import F32, F64


def _behind_greatest(m: Match, b: Builder, axis: int) -> tuple[Value, Value] | None:
    """X less the greatest of its line, and the axis as a constant."""
    x = m["x"]
    if x.type.dtype not in (F32, F64) or not x.type.shape:
        return None
    axes = b.const(np.array([axis % len(x.type.shape)], np.int64))
    return b(Sub(), x, b(ReduceMax(keepdims=True), x, axes)), axes


@rule(Pat(Softmax, (Pat(name="x"),)))
def softmax(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    found = _behind_greatest(m, b, op.axis)
    if found is None:
        return m.refuse("narrow floats, or a rank that is not known")
    powers = b(Exp(), found[0])
    return b(Div(), powers, b(ReduceSum(keepdims=True), powers, found[1]))


@rule(Pat(LogSoftmax, (Pat(name="x"),)))
def log_softmax(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    found = _behind_greatest(m, b, op.axis)
    if found is None:
        return m.refuse("narrow floats, or a rank that is not known")
    below, axes = found
    return b(Sub(), below, b(Log(), b(ReduceSum(keepdims=True), b(Exp(), below), axes)))


def _reduced(m: Match, b: Builder, kind: Any, x: Value) -> Value:
    """A reduction of other numbers along the same axes."""
    op: Any = m.root.op
    made: Value = b(kind(op.keepdims, op.noop_with_empty_axes), x, *m.root.inputs[1:])
    return made


def _is_wide(m: Match) -> bool:
    op: Any = m.root.op
    return m["x"].type.dtype in (F32, F64) and not op.noop_with_empty_axes


@rule(Pat(ReduceL1, (Pat(name="x"),)))
def absolute_sum(m: Match, b: Builder) -> Result:
    return _reduced(m, b, ReduceSum, b(Abs(), m["x"])) if _is_wide(m) else None


@rule(Pat(ReduceL2, (Pat(name="x"),)))
def norm(m: Match, b: Builder) -> Result:
    return b(Sqrt(), _reduced(m, b, ReduceSumSquare, m["x"])) if _is_wide(m) else None


@rule(Pat(ReduceSumSquare, (Pat(name="x"),)))
def sum_of_squares(m: Match, b: Builder) -> Result:
    return _reduced(m, b, ReduceSum, b(Mul(), m["x"], m["x"])) if _is_wide(m) else None


@rule(Pat(ReduceLogSum, (Pat(name="x"),)))
def log_of_sum(m: Match, b: Builder) -> Result:
    return b(Log(), _reduced(m, b, ReduceSum, m["x"])) if _is_wide(m) else None


RULES: tuple[Rule, ...] = (softmax, log_softmax, absolute_sum, norm, sum_of_squares, log_of_sum)
