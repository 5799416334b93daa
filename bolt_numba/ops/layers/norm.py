"""Normalisations at inference time; statistics of narrow floats are computed in f32."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from bolt_numba.base.budget import CALL, ask, spend
from bolt_numba.base.types import F32, Array, Shape, TensorType
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.layers.products.conv import along_channels
from bolt_numba.ops.registry import Op, normalise_axis, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import want_dims, want_within
from bolt_numba.ops.windows import as_layout, channels_first, split_shape


def _per_channel(owner: Op, layout: str, x: TensorType, **operands: TensorType) -> TensorType:
    """Type of x after checking that every operand has one number per channel; raises ShapeError."""
    want_dtypes(owner, FLOATS, x=x, **operands)
    parts = split_shape(owner, x, layout)
    for what, t in operands.items():
        want_dims(owner, what, t, None if parts is None else parts[1])
    return TensorType(x.dtype, x.shape)


def _affine(y: Array, scale: Array, bias: Array) -> Array:
    """``y * scale + bias`` along the channels of ``y`` [n, c, spatial...]."""
    return y * along_channels(widened(scale), y.ndim) + along_channels(widened(bias), y.ndim)


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean over axes, which stay as 1; NaN of no elements, of which NumPy's own warns."""
    sums = x.sum(axis=axes, keepdims=True)
    return x.mean(axis=axes, keepdims=True) if x.size or not sums.size else np.full_like(sums, np.nan)


def _centred(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """``(x - mean, mean)``; a rounded mean far from zero is off, which the mean of the differences tells."""
    mean = _mean(x, axes)
    centred = x - mean
    off = _mean(centred, axes)
    return centred - off, mean + off


def _standardised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred, _ = _centred(x, axes)
    variance = _mean(centred * centred, axes)
    return np.asarray(centred / np.sqrt(variance + x.dtype.type(epsilon)))


@op("BatchNormalization")
class BatchNormalization(Op):
    """y = (x - mean) / sqrt(var + epsilon) * scale + bias, with given statistics.

    x: [n, c, ...] or [n, ..., c] float · scale, bias, mean, var: [c] float -> y: like x.
    Source: ONNX BatchNormalization-15.
    """

    epsilon: float = 1e-5
    layout: str = "NCHW"

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, var: TensorType
    ) -> TensorType:
        return _per_channel(self, self.layout, x, scale=scale, bias=bias, mean=mean, var=var)

    def reference(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
        data = channels_first(widened(x), self.layout)
        centre, spread = (along_channels(widened(v), data.ndim) for v in (mean, var))
        y = (data - centre) / np.sqrt(spread + data.dtype.type(self.epsilon))
        return as_layout(_affine(y, scale, bias), self.layout).astype(x.dtype, copy=False)


@op("InstanceNormalization")
class InstanceNormalization(Op):
    """y = standardised x over the spatial axes, then * scale + bias per channel.

    x: [n, c, spatial...] or [n, spatial..., c] float · scale, bias: [c] -> y: like x.
    Source: ONNX InstanceNormalization-22.
    """

    epsilon: float = 1e-5
    layout: str = "NCHW"

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        same_dtype(self, x, scale, bias)
        return _per_channel(self, self.layout, x, scale=scale, bias=bias)

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        data = channels_first(widened(x), self.layout)
        y = _standardised(data, tuple(range(2, data.ndim)), self.epsilon)
        return as_layout(_affine(y, scale, bias), self.layout).astype(x.dtype, copy=False)


@op("GroupNormalization")
class GroupNormalization(Op):
    """y = standardised x over each group of channels and the spatial axes, then * scale + bias per channel.

    x: [n, c, spatial...] or [n, spatial..., c] float, c a multiple of num_groups · scale, bias: [c] -> y: like x.
    Source: ONNX GroupNormalization-21.
    """

    num_groups: int
    epsilon: float = 1e-5
    layout: str = "NCHW"

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        same_dtype(self, x, scale, bias)
        parts = split_shape(self, x, self.layout)
        if self.num_groups < 1 or (parts and isinstance(parts[1], int) and parts[1] % self.num_groups):
            raise self.fail("channels of x", parts and parts[1], f"a multiple of num_groups {self.num_groups}")
        return _per_channel(self, self.layout, x, scale=scale, bias=bias)

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        data = channels_first(widened(x), self.layout)
        grouped = data.reshape(data.shape[0], self.num_groups, math.prod(data.shape[1:]) // self.num_groups)
        y = _standardised(grouped, (2,), self.epsilon).reshape(data.shape)
        return as_layout(_affine(y, scale, bias), self.layout).astype(x.dtype, copy=False)


def _trailing(owner: Op, axis: int, x: TensorType, **operands: TensorType | None) -> int | None:
    """First normalised axis, after checking that the operands broadcast to the axes from there; raises ShapeError."""
    if x.shape is None:
        return None
    first = normalise_axis(owner, axis, len(x.shape))
    for what, t in operands.items():
        want_within(owner, what, t, x.shape)
    return first


@op("LayerNormalization")
class LayerNormalization(Op):
    """y = standardised x over the axes from ``axis`` on, then * scale + bias.

    x: [...] float · scale, bias: broadcast to x's axes from ``axis`` on -> y: like x; with stats=True also mean and
    1 / sqrt(var + epsilon), f32, x's shape with 1 for the normalised axes.  Source: ONNX LayerNormalization-17.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stats: bool = False

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType | None = None
    ) -> TensorType | tuple[TensorType, ...]:
        want_dtype(self, "x", same_dtype(self, x, scale, bias), *FLOATS)
        first = _trailing(self, self.axis, x, scale=scale, bias=bias)
        y = TensorType(x.dtype, x.shape)
        if not self.stats:
            return y
        reduced: Shape | None = None
        if first is not None and x.shape is not None:
            reduced = x.shape[:first] + (1,) * (len(x.shape) - first)
        return y, TensorType(F32, reduced), TensorType(F32, reduced)

    def reference(self, x: Array, scale: Array, bias: Array | None = None) -> Array | tuple[Array, ...]:
        data = widened(x)
        axes = tuple(range(normalise_axis(self, self.axis, x.ndim), x.ndim))
        centred, mean = _centred(data, axes)
        variance = _mean(centred * centred, axes)
        inverse = 1 / np.sqrt(variance + data.dtype.type(self.epsilon))
        y = centred * inverse * widened(scale)
        y = (y if bias is None else y + widened(bias)).astype(x.dtype, copy=False)
        return (y, mean.astype(F32), inverse.astype(F32)) if self.stats else y


@op("RMSNormalization")
class RMSNormalization(Op):
    """y = x / sqrt(mean of x * x over the axes from ``axis`` on + epsilon) * scale.

    x: [...] float · scale: broadcast to x's axes from ``axis`` on, float -> y: x's shape, scale's dtype.
    Source: ONNX RMSNormalization-23.
    """

    axis: int = -1
    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        want_dtypes(self, FLOATS, x=x, scale=scale)
        _trailing(self, self.axis, x, scale=scale)
        return TensorType(scale.dtype, x.shape)

    def reference(self, x: Array, scale: Array) -> Array:
        data = widened(x)
        axes = tuple(range(normalise_axis(self, self.axis, x.ndim), x.ndim))
        mean = _mean(data * data, axes)
        y = data / np.sqrt(mean + data.dtype.type(self.epsilon))
        return np.asarray(y.astype(x.dtype, copy=False) * scale).astype(scale.dtype, copy=False)


@op("LRN")
class LRN(Op):
    """y = x / (bias + alpha / size * sum of squares over ``size`` neighbouring channels) ** beta.

    x: [n, c, spatial...] or [n, spatial..., c] float -> y: like x.  Source: ONNX LRN-13.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    layout: str = "NCHW"

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        self.fail_if(self.size < 1, "size", self.size, "at least 1")
        split_shape(self, x, self.layout)
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array) -> Array:
        data = channels_first(widened(x), self.layout)
        before = (self.size - 1) // 2
        widths = [(0, 0), (before, self.size - 1 - before)] + [(0, 0)] * (data.ndim - 2)
        room = (data.shape[1] + self.size - 1) * data.size // max(data.shape[1], 1)
        ask(room * data.itemsize, f"{self.name}: squares of {self.size} channels")
        spend(self.size * (CALL + data.size), self.name)
        squares = np.pad(data * data, widths)
        total = np.zeros_like(data)
        for i in range(self.size):
            total += squares[:, i : i + data.shape[1]]
        number = data.dtype.type
        y = data / (number(self.bias) + number(self.alpha / self.size) * total) ** number(self.beta)
        return as_layout(y, self.layout).astype(x.dtype, copy=False)


@op("LpNormalization")
class LpNormalization(Op):
    """y = x / (its p-norm along an axis), 0 where the norm is 0.

    x: [...] float, p 1 or 2 -> y: like x.  Source: ONNX LpNormalization-22.
    """

    axis: int = -1
    p: int = 2

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        want_among(self, (1, 2), p=self.p)
        if x.shape is not None:
            normalise_axis(self, self.axis, len(x.shape))
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array) -> Array:
        data = widened(x)
        total = np.sum(np.abs(data) if self.p == 1 else data * data, axis=self.axis, keepdims=True)
        norm = total if self.p == 1 else np.sqrt(total)
        y: Array = np.divide(data, norm, out=np.zeros_like(data), where=norm != 0)
        return y.astype(x.dtype, copy=False)


RowNorm: TypeAlias = LayerNormalization | RMSNormalization
GroupNorm: TypeAlias = InstanceNormalization | GroupNormalization
ChannelNorm: TypeAlias = BatchNormalization | GroupNorm
