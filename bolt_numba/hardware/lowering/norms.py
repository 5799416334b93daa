"""Normalisations in means, products and sums.

scale_and_shift(BatchNormalization(x))  -> x * a + b, with a and b computed once where the statistics are constants
layer_norm(LayerNormalization(x))       -> d / Sqrt(ReduceMean(d * d) + e) * scale + bias, d = x - ReduceMean(x)
rms_norm(RMSNormalization(x))           -> x / Sqrt(ReduceMean(x * x) + e) * scale
instance_norm(InstanceNormalization(x)) -> as layer_norm, over the spatial axes
group_norm(GroupNormalization(x))       -> as layer_norm, over each group: Reshape there and back
lp_norm(LpNormalization(x))             -> x / ReduceL2(x), or ReduceL1; 0 where that is 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceL1, ReduceL2, ReduceMean
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.layers.norm import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from bolt_numba.ops.pointwise import Add, Div, Equal, Mul, Sqrt, Sub, Where
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule
from bolt_numba.passes.views import reshaped
from bolt_numba.types import F32, F64

_X = Pat(name="x")


def _rank(value: Value) -> int:
    """Of a value in wide floats; 0 where it is not known, or the floats are narrow and would be widened first."""
    return len(value.type.shape or ()) if value.type.dtype in (F32, F64) else 0


def _standardised(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    places = b.const(np.array(axes, np.int64))
    centred = b(Sub(), x, b(ReduceMean(keepdims=True), x, places))
    return _scaled(b, centred, places, epsilon)


def _scaled(b: Builder, x: Value, places: Value, epsilon: float) -> Value:
    """X through the root of the mean of its squares."""
    mean = b(ReduceMean(keepdims=True), b(Mul(), x, x), places)
    made: Value = b(Div(), x, b(Sqrt(), b(Add(), mean, epsilon)))
    return made


def _along_channels(b: Builder, v: Value, rank: int, layout: str) -> Value:
    """One number for each channel, shaped to broadcast against an image."""
    behind = rank - 2 if layout == "NCHW" else 0
    made: Value = b(Reshape(), v, np.array([-1, *[1] * behind], np.int64))
    return made


def _affine(m: Match, b: Builder, y: Value, rank: int) -> Value:
    op: Any = m.root.op
    scale, bias = (_along_channels(b, v, rank, op.layout) for v in m.root.inputs[1:3] if v is not None)
    made: Value = b(Add(), b(Mul(), y, scale), bias)
    return made


@rule(Pat(BatchNormalization, (_X,)))
def scale_and_shift(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = _rank(m["x"])
    given = [v for v in m.root.inputs[1:] if v is not None]
    if not rank or any(v.type.dtype != m["x"].type.dtype for v in given):
        return m.refuse("narrow floats, or a rank that is not known")
    scale, bias, mean, var = given
    if all(v.const is not None for v in given):
        s, t, c, r = (v.const.astype(np.float64) for v in given if v.const is not None)
        factor = s / np.sqrt(r + op.epsilon)
        dtype = m["x"].type.dtype
        scale, bias = b.const(factor.astype(dtype)), b.const((t - c * factor).astype(dtype))
    else:
        scale = b(Div(), scale, b(Sqrt(), b(Add(), var, op.epsilon)))
        bias = b(Sub(), bias, b(Mul(), mean, scale))
    scale, bias = (_along_channels(b, v, rank, op.layout) for v in (scale, bias))
    return b(Add(), b(Mul(), m["x"], scale), bias)


@rule(Pat(LayerNormalization, (_X,)))
def layer_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = _rank(m["x"])
    if op.stats or not rank:
        return m.refuse("the statistics are wanted, narrow floats, or a rank that is not known")
    y = b(Mul(), _standardised(b, m["x"], range(op.axis % rank, rank), op.epsilon), m.root.inputs[1])
    bias = m.root.inputs[2] if len(m.root.inputs) > 2 else None
    return y if bias is None else b(Add(), y, bias)


@rule(Pat(RMSNormalization, (_X,)))
def rms_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank, scale = _rank(m["x"]), m.root.inputs[1]
    if not rank or scale is None or scale.type.dtype != m["x"].type.dtype:
        return m.refuse("narrow floats, or a rank that is not known")
    places = b.const(np.arange(op.axis % rank, rank))
    return b(Mul(), _scaled(b, m["x"], places, op.epsilon), scale)


@rule(Pat(InstanceNormalization, (_X,)))
def instance_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = _rank(m["x"])
    if rank < 3:
        return m.refuse("narrow floats, or no spatial axes")
    axes = range(2, rank) if op.layout == "NCHW" else range(1, rank - 1)
    return _affine(m, b, _standardised(b, m["x"], axes, op.epsilon), rank)


@rule(Pat(GroupNormalization, (_X,)))
def group_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = _rank(m["x"])
    if not rank or op.layout != "NCHW":
        return m.refuse("narrow floats, or channels that are last")
    grouped = b(Reshape(), m["x"], np.array([0, op.num_groups, -1], np.int64))
    back = reshaped(b, _standardised(b, grouped, (2,), op.epsilon), m["x"].type.shape)
    return m.refuse("sizes that no constant tells") if back is None else _affine(m, b, back, rank)


@rule(Pat(LpNormalization, (_X,)))
def lp_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = _rank(m["x"])
    if not rank:
        return m.refuse("narrow floats, or a rank that is not known")
    axes = np.array([op.axis % rank], np.int64)
    length = b((ReduceL1 if op.p == 1 else ReduceL2)(keepdims=True), m["x"], axes)
    one = b.const(m["x"].type.dtype.type(1))
    return b(Div(), m["x"], b(Where(), b(Equal(), length, 0.0), one, length))


RULES: tuple[Rule, ...] = (scale_and_shift, layer_norm, rms_norm, instance_norm, group_norm, lp_norm)
