"""Finds normalisations that are spelled out, and gives them the scales and biases that follow.  All change rounding.

recognise_rms_norm(x / sqrt(mean(x x) + e))            -> RMSNormalization(x, 1)
recognise_layer_norm(RMSNormalization(x - mean(x)))    -> LayerNormalization(x)
norm_scale(LayerNormalization(x, s) * c)               -> LayerNormalization(x, s * c)      also RMSNormalization
norm_bias(LayerNormalization(x, s) + c)                -> LayerNormalization(x, s, c)
recognise_group_norm(view(InstanceNormalization(view)))-> GroupNormalization(x)             groups as channels
channel_norm_scale(GroupNormalization(x, s, t) * c)    -> GroupNormalization(x, s * c, t * c)  also Instance-
channel_norm_bias(GroupNormalization(x, s, t) + c)     -> GroupNormalization(x, s, t + c)
drop_stats(LayerNormalization(x, stats))               -> LayerNormalization(x)             statistics unread
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.ir.build import Builder
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.layers.norm import GroupNormalization, InstanceNormalization, LayerNormalization, RMSNormalization
from bolt_numba.ops.pointwise import Add, Div, Mul, Reciprocal, Sqrt, Sub
from bolt_numba.passes.canonical.arithmetic import reduced_axes
from bolt_numba.passes.constants import joined_sum, scaled_weight
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar_of

_SQUARE = Pat(Mul, (Pat(name="x"), Pat(name="x")))
_ROOT = Pat(Sqrt, (Pat(Add, (Pat(ReduceMean, (_SQUARE,), name="mean"), const("epsilon"))),))
_RMS = (Pat(Div, (Pat(name="x"), _ROOT)), Pat(Mul, (Pat(name="x"), Pat(Reciprocal, (_ROOT,))), commutative=True))


def _rms_norm(m: Match, b: Builder) -> Result:
    x, epsilon = m["x"].type, scalar_of(m["epsilon"])
    mean = m.node("mean")
    axes = reduced_axes(mean.op, mean.inputs)
    if epsilon is None or x.shape is None or not mean.op.keepdims:  # type: ignore[attr-defined]
        return m.refuse("epsilon is no number or the mean drops its axes")
    rank = len(x.shape)
    if not axes or axes != list(range(axes[0], rank)):
        return m.refuse("the axes are not the last ones")
    normalised = x.with_shape(x.shape[axes[0] :])
    if not normalised.is_static:
        return m.refuse("the normalised sizes are not known")
    return b(RMSNormalization(axes[0] - rank, epsilon), m["x"], np.ones(normalised.dims, x.dtype))


_CENTRED = Pat(Sub, (Pat(name="x"), Pat(ReduceMean, (Pat(name="x"),), name="mean")))


@rule(Pat(RMSNormalization, (_CENTRED, const("scale"))))
def recognise_layer_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    mean = m.node("mean")
    shape = m["x"].type.shape
    axes = reduced_axes(mean.op, mean.inputs)
    keepdims = mean.op.keepdims  # type: ignore[attr-defined]
    if shape is None or axes != list(range(op.axis % len(shape), len(shape))) or not keepdims:
        return m.refuse("the mean is over other axes than the norm")
    return b(LayerNormalization(op.axis, op.epsilon), m["x"], m["scale"])


def _normalised(m: Match, name: str) -> Array | None:
    """The constant bound to ``name``, broadcast to the shape of the norm's scale; None when it does not fit."""
    wanted, got = m["scale"].const, m[name].const
    if wanted is None or got is None or got.dtype != wanted.dtype:
        return None
    extra = got.ndim - wanted.ndim
    if extra > 0 and got.shape[:extra] != (1,) * extra:
        return None
    try:
        return np.ascontiguousarray(np.broadcast_to(got.reshape(got.shape[max(extra, 0) :]), wanted.shape))
    except ValueError:
        return None


NORMS = (LayerNormalization, RMSNormalization)


@rule(Pat(Mul, (Pat(NORMS, (Pat(name="x"), const("scale")), name="norm", sole_use=True), const("c"))))
def norm_scale(m: Match, b: Builder) -> Result:
    norm = m.node("norm")
    c, scale = _normalised(m, "c"), m["scale"].const
    if c is None or scale is None or len(norm.inputs) > 2 or getattr(norm.op, "stats", False):
        return m.refuse("the factor does not fit the scale")
    made = scaled_weight(scale, c)
    return m.refuse("the numbers lose something") if made is None else b(norm.op, m["x"], made)


@rule(Pat(Add, (Pat(LayerNormalization, (Pat(name="x"), const("scale")), name="norm", sole_use=True), const("c"))))
def norm_bias(m: Match, b: Builder) -> Result:
    norm = m.node("norm")
    c = _normalised(m, "c")
    if c is None or len(norm.inputs) > 2 or getattr(norm.op, "stats", False):
        return m.refuse("the term does not fit the bias")
    return b(norm.op, m["x"], m["scale"], c)


_GROUPED = Pat(Reshape, (Pat(name="x"),), name="grouped")
_STANDARD = Pat(InstanceNormalization, (_GROUPED, const("scale"), const("bias")), name="norm", sole_use=True)


@rule(Pat(Reshape, (_STANDARD,)))
def recognise_group_norm(m: Match, b: Builder) -> Result:
    """[n, c, ...] seen as [n, groups, ...]: an instance norm of that view normalises groups of channels."""
    x, grouped = m["x"].type.shape, m["grouped"].type.shape
    op, scale, bias = m.op("norm"), m["scale"].const, m["bias"].const
    if x is None or grouped is None or scale is None or bias is None or m.root.output.type.shape != x:
        return m.refuse("the result has not the shape of the operand")
    channels, groups = x[1], grouped[1]
    whole = isinstance(channels, int) and isinstance(groups, int) and channels % groups == 0
    if not whole or grouped[0] != x[0] or op.layout != "NCHW" or len(x) < 3:
        return m.refuse("the view does not join channels of one image")
    each = int(channels) // int(groups)  # type: ignore[arg-type]
    made = GroupNormalization(int(groups), op.epsilon)  # type: ignore[arg-type]
    return b(made, m["x"], np.repeat(scale, each), np.repeat(bias, each))


def _for_channels(m: Match) -> Array | None:
    """The constant ``c`` as one number per channel of ``norm``; None when it varies along another axis."""
    c, norm, shape = m["c"].const, m.op("norm"), m["norm"].type.shape
    channels = m["scale"].type.dims[0]
    if c is None or shape is None or c.ndim > len(shape) or m.root.output.type.shape != shape:
        return None
    axis = 1 if norm.layout == "NCHW" else len(shape) - 1
    full = (1,) * (len(shape) - c.ndim) + c.shape
    if any(d != 1 for i, d in enumerate(full) if i != axis) or full[axis] not in (1, channels):
        return None
    return np.broadcast_to(c.reshape(-1), (channels,))


CHANNEL_NORMS = (InstanceNormalization, GroupNormalization)
_CHANNEL_NORM = Pat(CHANNEL_NORMS, (Pat(name="x"), const("scale"), const("bias")), name="norm", sole_use=True)


@rule(Pat(Mul, (_CHANNEL_NORM, const("c"))))
def channel_norm_scale(m: Match, b: Builder) -> Result:
    c, scale, bias = _for_channels(m), m["scale"].const, m["bias"].const
    if c is None or scale is None or bias is None:
        return m.refuse("the factor is not per channel")
    made = [scaled_weight(v, c) for v in (scale, bias)]
    return m.refuse("the numbers lose something") if any(v is None for v in made) else b(m.op("norm"), m["x"], *made)


@rule(Pat(Add, (_CHANNEL_NORM, const("c"))))
def channel_norm_bias(m: Match, b: Builder) -> Result:
    c, bias = _for_channels(m), m["bias"].const
    if c is None or bias is None:
        return m.refuse("the term is not per channel")
    made = joined_sum(bias, c)
    return m.refuse("the numbers lose something") if made is None else b(m.op("norm"), m["x"], m["scale"], made)


@rule(Pat(LayerNormalization, (Pat(name="x"),), where=lambda op: op.stats))
def drop_stats(m: Match, b: Builder) -> Result:
    """Statistics that nobody reads are not computed."""
    op: Any = m.root.op
    if any(v.uses or m.graph.is_output(v) for v in m.root.outputs[1:]):
        return m.refuse("the statistics are read")
    return b(dataclasses.replace(op, stats=False), *m.root.inputs), None, None


RULES: tuple[Rule, ...] = (
    *(Rule(f"recognise_rms_norm_{name}", p, _rms_norm) for name, p in zip(("div", "mul"), _RMS, strict=True)),
    recognise_layer_norm,
    norm_scale,
    norm_bias,
    recognise_group_norm,
    channel_norm_scale,
    channel_norm_bias,
    drop_stats,
)
