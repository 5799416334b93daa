"""Readers of normalisations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Expand, Reshape, Unsqueeze
from bolt_numba.ops.layers.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from bolt_numba.ops.pointwise import Add, Cast, Div, Mul, Sqrt, Sub

add_as_is(InstanceNormalization, LRN, LpNormalization)
add_reader("GroupNormalization", AsIs(GroupNormalization, ignored={"stash_type": 1}), since=21)
add_reader("RMSNormalization", AsIs(RMSNormalization, ignored={"stash_type": 1}))


def _with_stats(b: NodeBuilder, made: LayerNormalization, *operands: Value) -> Any:
    return b(replace(made, stats=b.wants(1) or b.wants(2)), *operands)


add_reader("LayerNormalization", AsIs(LayerNormalization, ignored={"stash_type": 1}, then=_with_stats))


def _by_batch(
    b: NodeBuilder, made: BatchNormalization, *operands: Value, momentum: float = 0.9, training_mode: bool = False
) -> Value | tuple[Value, Value, Value]:
    """Inference; training mode takes the statistics from the batch (biased variance) and returns the running ones."""
    if not training_mode:
        return b(made, *operands)
    x, scale, bias, mean, var = operands
    axes = ints([0, *range(2, b.rank_of(x))])
    batch_mean = b(ReduceMean(keepdims=True), x, axes)
    centred = b(Sub(), x, batch_mean)
    batch_var = b(ReduceMean(keepdims=False), b(Mul(), centred, centred), axes)
    batch_mean = b(ReduceMean(keepdims=False), x, axes)
    y = b(made, x, scale, bias, batch_mean, batch_var)
    running = [
        b(Add(), b(Mul(), old, momentum), b(Mul(), b(Cast(old.type.dtype), new), 1.0 - momentum))
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return y, running[0], running[1]


def _by_element(b: NodeBuilder, made: BatchNormalization, *operands: Value, spatial: bool = True) -> Value:
    """Before opset 9; spatial = 0 has statistics for every element instead of every channel."""
    if spatial:
        return b(made, *operands)
    x, scale, bias, mean, var = operands
    normal = b(Div(), b(Sub(), x, mean), b(Sqrt(), b(Add(), var, made.epsilon)))
    return b(Add(), b(Mul(), normal, scale), bias)


_OF_TRAINING = {"momentum": 0.9, "is_test": False}
add_reader("BatchNormalization", AsIs(BatchNormalization, then=_by_batch), since=9)
add_reader("BatchNormalization", AsIs(BatchNormalization, ignored=_OF_TRAINING, then=_by_element))


@reader("GroupNormalization")
def group_normalization_18(
    b: NodeBuilder, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5
) -> Value:
    """Opset 18 to 20 has one scale and bias for a group, not for a channel."""
    channels = b.static_dim(x, 1)
    b.invalid_if(num_groups < 1 or channels % num_groups, "num_groups", num_groups, f"a divisor of {channels} channels")
    shape = ints([num_groups, channels // num_groups])
    spread = [b(Reshape(), b(Expand(), b(Unsqueeze(), v, ints([1])), shape), ints([channels])) for v in (scale, bias)]
    return b(GroupNormalization(num_groups, epsilon), x, *spread)


@reader("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    b: NodeBuilder, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value | None]:
    """Written by onnxruntime's optimizer into the default domain."""
    return b(RMSNormalization(axis, epsilon), x, scale), inverse_rms(b, x, axis, epsilon) if b.wants(1) else None


def inverse_rms(b: NodeBuilder, x: Value, axis: int, epsilon: float) -> Value:
    """What an RMS normalisation over the axes from ``axis`` on multiplies by: f32, 1 for the normalised axes."""
    wide, rank = b(Cast(F32), x), b.rank_of(x)
    squares = b(ReduceMean(), b(Mul(), wide, wide), ints(range(axis % rank, rank)))
    return b(Div(), np.ones((), F32), b(Sqrt(), b(Add(), squares, epsilon)))
