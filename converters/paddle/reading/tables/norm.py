"""Readers of normalisations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.converters.as_is import REQUIRED, AsIs
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.conv import activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceL2
from bolt_numba.ops.layers.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Div, Mul, Sqrt, Sub

_BATCH = ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace")


@PADDLE.reader("batch_norm", "sync_batch_norm", legacy=("inplace_abn",), results=_BATCH)
def batch_norm(
    b: PaddleBuilder,
    x: Value,
    mean: Value,
    variance: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    momentum: Value | None = None,
    *,
    epsilon: float = 1e-5,
    data_format: str = "NCHW",
    is_test: bool = False,
    use_global_stats: bool = False,
    activation: str = "",
    alpha: float = 0.1,
    fuse_with_relu: bool = False,
) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with the statistics of training."""
    b.unsupported_if(not (is_test or use_global_stats), "statistics of the batch")
    ones, zeros = _affine(b, mean, scale, bias)
    layout = b.layout_of(data_format) if b.rank_of(x) > 2 else "NCHW"
    made = b(BatchNormalization(epsilon, layout), x, ones, zeros, mean, variance)
    slope = {"leaky_relu": {"negative_slope": alpha}, "elu": {"alpha": alpha}}.get(activation, {})
    made = activated(b, made, "relu") if fuse_with_relu else activated(b, made, activation, **slope)
    return made, mean, variance


def _affine(b: PaddleBuilder, like: Value, scale: Value | None, bias: Value | None) -> tuple[Value, Value]:
    """Scale and bias, ones and zeros where there are none."""
    made = [
        v if v is not None else b.const(np.full(b.static_dim(like, 0), fill, like.type.dtype))
        for v, fill in ((scale, 1), (bias, 0))
    ]
    return made[0], made[1]


def _channels(b: PaddleBuilder, x: Value, data_format: str) -> int:
    return b.static_dim(x, -1 if b.is_last(data_format) else 1)


@PADDLE.reader("instance_norm", results=("Y", "SavedMean", "SavedVariance"))
def instance_norm(
    b: PaddleBuilder, x: Value, scale: Value | None = None, bias: Value | None = None, *, epsilon: float = 1e-5
) -> tuple[Value, None, None]:
    ones, zeros = _given(b, x, scale, bias, 1)
    return b(InstanceNormalization(epsilon), x, ones, zeros), None, None


def _given(b: PaddleBuilder, x: Value, scale: Value | None, bias: Value | None, axis: int) -> tuple[Value, Value]:
    """Scale and bias of the channels of x."""
    count = b.static_dim(x, axis)
    made = [
        b.to(v, x.type.dtype) if v is not None else b.const(np.full(count, fill, x.type.dtype))
        for v, fill in ((scale, 1), (bias, 0))
    ]
    return made[0], made[1]


def _group_norm(
    b: PaddleBuilder,
    made: GroupNormalization,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    *,
    data_format: str = "NCHW",
) -> tuple[Value, None, None]:
    ones, zeros = _given(b, x, scale, bias, -1 if b.is_last(data_format) else 1)
    return b(replace(made, layout=b.layout_of(data_format)), x, ones, zeros), None, None


_GROUPS = AsIs(GroupNormalization, "x scale? bias?", then=_group_norm, groups=REQUIRED, epsilon=1e-5)
PADDLE.reader("group_norm", results=("Y", "Mean", "Variance"))(_GROUPS)


@PADDLE.reader("layer_norm", results=("Y", "Mean", "Variance"))
def layer_norm(
    b: PaddleBuilder,
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-5,
    begin_norm_axis: int = 1,
) -> Any:
    """X standardised over the axes from ``begin_norm_axis`` on; mean and variance are rows."""
    axis = b.axis_of(x, begin_norm_axis)
    shape = b.lengths(x, range(axis, b.rank_of(x)))
    one = b.rank_of(x) - axis == 1
    operands = [v if v is None or one else b.shaped(v, shape) for v in (scale, bias)]
    if operands[0] is None:
        operands[0] = b.const(np.ones(1, x.type.dtype))
    operands = [v if v is None else b.to(v, x.type.dtype) for v in operands]
    if not (b.wants(1) or b.wants(2)):
        return b(LayerNormalization(axis, epsilon), x, *operands), None, None
    made, mean, inverse = b(LayerNormalization(axis, epsilon, stats=True), x, *operands)
    variance = b(Sub(), b(Div(), b.const(np.array(1, F32)), b(Mul(), inverse, inverse)), epsilon)
    return made, b.shaped(mean, [-1]), b.shaped(variance, [-1])


@PADDLE.reader("rms_norm", "fused_rms_norm_quant")
def rms_norm(
    b: PaddleBuilder,
    x: Value,
    bias: Value | None = None,
    residual: Value | None = None,
    norm_weight: Value | None = None,
    norm_bias: Value | None = None,
    *,
    epsilon: float = 1e-5,
    begin_norm_axis: int = -1,
    quant_scale: float = -1.0,
) -> tuple[Value, Value, None]:
    """Root-mean-square normalisation of x (+ bias + residual), then * weight + bias; also what was normalised."""
    b.unsupported_if(quant_scale > 0, "a quantised result")
    if norm_weight is None:
        raise b.unsupported("no weight")
    for v in (bias, residual):
        x = x if v is None else b(Add(), x, v)
    axis = b.axis_of(x, begin_norm_axis)
    made = b(RMSNormalization(axis, epsilon), x, norm_weight)
    made = made if norm_bias is None else b(Add(), made, norm_bias)
    return made, x, None


def _lrn(b: PaddleBuilder, made: LRN, x: Value, *, data_format: str = "NCHW") -> tuple[Value, None]:
    """X / (k + alpha * sum of squares of n channels) ** beta."""
    return b(replace(made, alpha=made.alpha * made.size, layout=b.layout_of(data_format)), x), None


PADDLE.reader("lrn", results=("Out", "MidOut"))(AsIs(LRN, then=_lrn, n=5, alpha=1e-4, beta=0.75, k=2.0))


@PADDLE.reader("data_norm", results=("Y", "Means", "Scales"))
def data_norm(
    b: PaddleBuilder,
    x: Value,
    batch_size: Value,
    batch_sum: Value,
    batch_square_sum: Value,
    scale_w: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-4,
    slot_dim: int = -1,
    data_format: str = "NCHW",
    enable_scale_and_shift: bool = False,
) -> tuple[Value, Value, Value]:
    """(x - sum / size) * sqrt(size / square sum)."""
    b.unsupported_if(slot_dim > 0, f"slot_dim {slot_dim}")
    mean, scale = b(Div(), batch_sum, batch_size), b(Sqrt(), b(Div(), batch_size, batch_square_sum))
    made = b(Mul(), b(Sub(), x, mean), scale)
    if enable_scale_and_shift and scale_w is not None and bias is not None:
        made = b(Add(), b(Mul(), made, scale_w), bias)
    return made, mean, scale


@PADDLE.reader("affine_channel")
def affine_channel(b: PaddleBuilder, x: Value, scale: Value, bias: Value, *, data_format: str = "NCHW") -> Value:
    """X * scale + bias for each channel."""
    rank = b.rank_of(x)
    at = rank - 1 if b.is_last(data_format) else 1
    return b(Add(), b(Mul(), x, b.along(scale, rank, at)), b.along(bias, rank, at))


@PADDLE.reader("spectral_norm")
def spectral_norm(
    b: PaddleBuilder, weight: Value, u: Value, v: Value, *, dim: int = 0, power_iters: int = 1, eps: float = 1e-12
) -> Value:
    """Weights divided by their greatest singular value, which steps of the power method find."""
    b.unsupported_if(not 0 <= power_iters <= MOST_STEPS, f"power_iters = {power_iters}")
    rank = b.rank_of(weight)
    order = (b.axis_of(weight, dim), *(i for i in range(rank) if i != b.axis_of(weight, dim)))
    matrix = b.shaped(b.transposed(weight, *order), [b.static_dim(weight, dim), -1])
    for _ in range(power_iters):
        v = _unit(b, b(MatMul(trans_a=True), matrix, b.shaped(u, [-1, 1])), eps)
        u = _unit(b, b(MatMul(), matrix, b.shaped(v, [-1, 1])), eps)
    sigma = b(MatMul(), b.shaped(u, [-1]), b(MatMul(), matrix, b.shaped(v, [-1])))
    return b(Div(), weight, sigma)


MOST_STEPS = 64
"""Steps of the power method at most."""


def _unit(b: PaddleBuilder, x: Value, eps: float) -> Value:
    """A column of length 1."""
    return b(Div(), x, b(Add(), b(ReduceL2(False), x), eps))
