"""Readers of normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Sym
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceMean, ReduceSumSquare, Softmax
from bolt_numba.ops.layers.norm import LRN, BatchNormalization, LayerNormalization
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.pointwise import Add, Div, Mul, Pow, Sqrt, Sub

reader("Softmax")(AsIs(Softmax, axis=1))


@reader("BatchNorm")
def batch_norm(b: LayerBuilder, x: Value, *, use_global_stats: bool = True, eps: float = 1e-5) -> Value:
    """(x - mean) / sqrt(variance + eps), by the statistics that were stored, or by those of the batch.

    The stored ones are sums: their third blob says by what they are divided, and 0 makes them 0.
    """
    channels = b.dim_of(x, 1) if b.rank_of(x) > 1 else 1
    count = -1 if isinstance(channels, Sym) else channels
    if not use_global_stats:
        return _by_batch(b, x, b.static_dim(x, 1), eps)
    mean, variance = (b.weights(i, (count,)) for i in range(2))
    divisor = float(b.weights(2, (1,))[0]) if b.blobs is None or b.blobs > 2 else 1.0
    factor = np.float32(0 if divisor == 0 else 1 / divisor)
    one, zero = np.ones(mean.size, F32), np.zeros(mean.size, F32)
    if b.rank_of(x) < 2:
        return b(Div(), b(Sub(), x, mean * factor), np.sqrt(variance * factor + np.float32(eps)))
    return b(BatchNormalization(eps), x, one, zero, mean * factor, variance * factor)


def _by_batch(b: LayerBuilder, x: Value, count: int, eps: float) -> Value:
    axes = ints([0, *range(2, b.rank_of(x))])
    mean = b(ReduceMean(), x, axes)
    centred = b(Sub(), x, mean)
    variance = b(ReduceMean(keepdims=False), b(Mul(), centred, centred), axes)
    one, zero = np.ones(count, F32), np.zeros(count, F32)
    return b(BatchNormalization(eps), centred, one, zero, zero, variance)


@reader("BN")
def bn(b: LayerBuilder, x: Value, *, eps: float = 1e-5, momentum: float = 0.9, frozen: bool = True) -> Value:
    """Normalisation of forks for segmentation: blobs are scale, bias, mean and variance."""
    count = b.dim_of(x, 1)
    weights = [b.blob(i, (count,)) for i in range(4)]
    return b(BatchNormalization(eps), x, *weights)


@reader("LRN")
def lrn(
    b: LayerBuilder,
    x: Value,
    *,
    local_size: int = 5,
    alpha: float = 1.0,
    beta: float = 0.75,
    norm_region: str = "ACROSS_CHANNELS",
    k: float = 1.0,
) -> Value:
    """X / (k + alpha / size * sum of squares) ^ beta over neighbouring channels; within one, over a window, k is 1."""
    if local_size < 1 or local_size % 2 == 0 or local_size > 1 << 20:
        raise b.invalid("local_size", local_size, "an odd number")
    if norm_region == "ACROSS_CHANNELS":
        return b(LRN(local_size, alpha, beta, k), x)
    b.invalid_if(norm_region != "WITHIN_CHANNEL", "norm_region", norm_region, "ACROSS_CHANNELS or WITHIN_CHANNEL")
    size, pad = (local_size,) * 2, ((local_size - 1) // 2,) * 4
    mean = b(AveragePool(size, (1, 1), pad, count_include_pad=True), b(Mul(), x, x))
    return b(Mul(), x, b(Pow(), b(Add(), b(Mul(), mean, alpha), 1.0), -beta))


@reader("MVN")
def mvn(
    b: LayerBuilder, x: Value, *, normalize_variance: bool = True, across_channels: bool = False, eps: float = 1e-9
) -> Value:
    """(x - mean) / (standard deviation + eps), over each channel or over each image."""
    axes = ints(range(1 if across_channels else 2, b.rank_of(x)))
    if not len(axes):  # of single numbers nothing is left
        return b(Mul(), x, 0.0)
    centred = b(Sub(), x, b(ReduceMean(), x, axes))
    if not normalize_variance:
        return centred
    variance = b(ReduceMean(), b(Mul(), centred, centred), axes)
    return b(Div(), centred, b(Add(), b(Sqrt(), variance), eps))


@reader("Normalize", "L2Norm")
def normalize(
    b: LayerBuilder, x: Value, *, across_spatial: bool = True, channel_shared: bool = True, eps: float = 1e-10
) -> Value:
    """X / sqrt(sum of squares + eps) over the channels, and over the image too, times a learned factor."""
    channels = b.dim_of(x, 1)
    rank = b.rank_of(x)
    total = b(ReduceSumSquare(), x, ints(range(1, rank) if across_spatial else [1]))
    y = b(Div(), x, b(Sqrt(), b(Add(), total, eps)))
    count = 1 if channel_shared else -1 if isinstance(channels, Sym) else channels
    factor = b.weights(0, (count,), "scale_filler", 1.0)
    return b(Mul(), y, factor.reshape(-1, *(1,) * (rank - 2)) if factor.size > 1 else factor.reshape(()))


@reader("LayerNorm")
def layer_norm(b: LayerBuilder, x: Value, *, eps: float = 1e-6) -> Any:
    """Over the last axis; blobs are scale and bias.  Source: Bolt's layer."""
    count = b.static_dim(x, b.rank_of(x) - 1)
    return b(LayerNormalization(-1, eps), x, b.blob(0, (count,)), b.blob(1, (count,)))
