"""Convolution and its transpose, any number of spatial axes; no integer quantised ones (see `quantize`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bolt_numba.base.budget import BLAS, ask, spend
from bolt_numba.base.records import record
from bolt_numba.base.types import AnyDType, Array, Dim, Shape, Sym, TensorType
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.layers.products.matmul import finish, product_dtype, want_activation, want_residual
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype
from bolt_numba.ops.shapes import want_dim, want_dims
from bolt_numba.ops.windows import Windows, as_layout, channels_first, join_shape, per_axis, split_shape, want_auto_pad


def _want_groups(owner: Op, what: str, count: Dim, group: int) -> None:
    if group < 1 or (isinstance(count, int) and count % group):
        raise owner.fail(what, count, f"a multiple of group {group}")


def _kernel(owner: Convolution | ConvTranspose, w: TensorType) -> tuple[int, ...] | None:
    """Sizes of the kernel, None where only the run tells them; raises ShapeError for filters without any."""
    want_auto_pad(owner, owner.auto_pad)
    if w.shape is None:
        return None
    owner.fail_if(len(w.shape) < 3, "w", w, "a rank of at least 3")
    return None if Sym in map(type, w.shape[2:]) else tuple(map(int, w.shape[2:]))  # type: ignore[arg-type]


def _unknown(sizes: Shape) -> Shape:
    return tuple(fresh_dim("windows") for _ in sizes)


def _by_tap(w: Array) -> Array:
    """Filters with the kernel positions (the last axis) in front, dense: NumPy calls BLAS for dense operands only."""
    return np.ascontiguousarray(np.moveaxis(w, -1, 0))


def along_channels(v: Array, rank: int) -> Array:
    """``v`` [c] shaped to broadcast against [n, c, spatial...] of ``rank`` axes."""
    return v.reshape(-1, *(1,) * (rank - 2))


@record(frozen=True)
class Convolution(Op):
    """Attributes and shapes common to all convolutions."""

    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    auto_pad: str = "NOTSET"
    layout: str = "NCHW"
    filters_at: ClassVar[int] = 1
    """Which operand holds the filters."""
    residual_at: ClassVar[int] = 3
    """Which operand is the residual, where one is added."""

    def windows(self, kernel: Sequence[int]) -> Windows:
        return Windows.of(self, kernel, self.strides, self.dilations, self.pads, self.auto_pad)

    def output_shape(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> Shape | None:
        """Shape of the result, None when a rank is unknown; raises ShapeError."""
        kernel = _kernel(self, w)
        parts = split_shape(self, x, self.layout, None if w.shape is None else len(w.shape))
        if parts is None or w.shape is None:
            return None
        (n, c, sizes), (k, cg) = parts, w.shape[:2]
        _want_groups(self, "number of filters", k, self.group)
        want_dims(self, "bias", bias, k)
        want_dim(self, "channels of x", c, cg * self.group)
        outs = _unknown(sizes) if kernel is None else self.windows(kernel).output_dims(self, sizes)
        return join_shape(n, k, outs, self.layout)

    def sums(self, x: Array, w: Array) -> Array:
        """Products of windows and filters, summed in the arrays' own dtype: [n, k, outs...], whatever the layout."""
        x = channels_first(x, self.layout)
        n, c = x.shape[:2]
        k, cg, *kernel = w.shape
        windows = self.windows(kernel).resolved(x.shape[2:])
        outs = self.windows(kernel).static_dims(self, x.shape[2:])
        g = self.group
        spend(math.prod(w.shape) * n * math.prod(outs) // BLAS, self.name)
        views = windows.taps(windows.padded(x, 0, outs), outs)
        if g == 1 and c < 16:  # few products per tap: one product over all taps writes the result once
            seen_by_all = np.stack([v.reshape(n, c, math.prod(outs)) for v in views], axis=2)
            products = math.prod(w.shape[1:])
            seen_by_all = seen_by_all.reshape(n, products, math.prod(outs))
            return np.asarray(np.matmul(w.reshape(k, products), seen_by_all)).reshape(n, k, *outs)
        y = np.zeros((n, g, k // g, math.prod(outs)), dtype=x.dtype)
        by_tap = _by_tap(w.reshape(g, k // g, cg, math.prod(kernel)))
        for i, seen in enumerate(views):
            columns, filters = seen.reshape(n, g, c // g, math.prod(outs)), by_tap[i]
            y += filters * columns if cg == 1 else np.matmul(filters, columns)
        return y.reshape(n, k, *outs)


@op("Conv")
class Conv(Convolution):
    """y = activation(correlation of x with w + bias + residual).

    x: [n, c, h, w] or [n, h, w, c], any number of spatial axes · w: [k, c/g, r, s] in either layout · bias: [k] ·
    residual: like y -> y: [n, k, oh, ow] in x's layout; f32, f64, f16 or bf16 throughout (narrow ones sum in f32).
    to: as that of `MatMul`: dtype of y where values between products are narrow.
    Units: pads, strides and dilations in elements.  Source: ONNX Conv-22.
    """

    activation: Op | None = None
    residual: bool = False
    to: AnyDType | None = None

    def infer(
        self, x: TensorType, w: TensorType, bias: TensorType | None = None, residual: TensorType | None = None
    ) -> TensorType:
        dtype, result = product_dtype(self, self.to, x, w, bias, residual)
        want_dtype(self, "x", dtype, *FLOATS)
        want_activation(self, self.activation, dtype)
        shape = self.output_shape(x, w, bias)
        want_residual(self, residual)
        if shape is not None:
            want_dims(self, "residual", residual, *shape)
        return TensorType(result, shape)

    def reference(self, x: Array, w: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
        y = self.sums(widened(x), widened(w))
        if bias is not None:
            y += along_channels(widened(bias), y.ndim)
        y = finish(as_layout(y, self.layout), residual, self.activation)
        return y.astype(self.to or x.dtype, copy=False)


@op("ConvTranspose")
class ConvTranspose(Op):
    """y = activation(transposed convolution of x with w + bias): each input element adds its scaled filter to y.

    x: [n, c, h, w] or [n, h, w, c] · w: [c, k/g, r, s] in either layout · bias: [k] -> y: [n, k, oh, ow] in x's layout;
    f32, f64, f16 or bf16.  output_shape: spatial sizes of y, from which pads follow.  Source: ONNX ConvTranspose-22.
    """

    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"
    layout: str = "NCHW"
    activation: Op | None = None
    filters_at: ClassVar[int] = 1

    def infer(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> TensorType:
        dtype = same_dtype(self, x, w, bias)
        want_dtype(self, "x", dtype, *FLOATS)
        want_activation(self, self.activation, dtype)
        kernel = _kernel(self, w)
        parts = split_shape(self, x, self.layout, None if w.shape is None else len(w.shape))
        if parts is None or w.shape is None:
            return TensorType(dtype, None)
        (n, c, sizes), (cw, kg) = parts, w.shape[:2]
        _want_groups(self, "channels of x", c, self.group)
        want_dim(self, "first dimension of w", cw, c)
        want_dims(self, "bias", bias, kg * self.group)
        outs = _unknown(sizes) if kernel is None else self.output_dims(sizes, kernel)
        return TensorType(dtype, join_shape(n, kg * self.group, outs, self.layout))

    def windows(self, kernel: Sequence[int]) -> Windows:
        return Windows.of(self, kernel, self.strides, self.dilations, self.pads, self.auto_pad)

    def full_dims(self, sizes: Sequence[Dim], kernel: Sequence[int]) -> Shape:
        """Sizes before pads are cut off, output_padding included."""
        windows = self.windows(kernel)
        extra = per_axis(self, "output_padding", self.output_padding, len(kernel), 0, 0)
        return tuple(
            (size - 1) * s + span + e
            for size, s, span, e in zip(sizes, windows.strides, windows.spans, extra, strict=True)
        )

    def output_dims(self, sizes: Sequence[Dim], kernel: Sequence[int]) -> Shape:
        """Spatial sizes of y."""
        rank = len(kernel)
        windows, full = self.windows(kernel), self.full_dims(sizes, kernel)
        if self.output_shape:
            return per_axis(self, "output_shape", self.output_shape, rank)
        if self.auto_pad.startswith("SAME"):
            return tuple(size * s for size, s in zip(sizes, windows.strides, strict=True))
        cut = windows.pads if self.auto_pad == "NOTSET" else (0,) * (2 * rank)
        outs = tuple(d - cut[i] - cut[rank + i] for i, d in enumerate(full))
        if any(isinstance(d, int) and d < 0 for d in outs):
            raise self.fail("pads", self.pads, "less than the output")
        return outs

    def resolved_pads(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """Explicit pads, begins then ends, for static sizes; never negative."""
        rank = len(kernel)
        if not self.output_shape and not self.auto_pad.startswith("SAME"):
            return self.windows(kernel).pads if self.auto_pad == "NOTSET" else (0,) * (2 * rank)
        full, outs = self.full_dims(sizes, kernel), self.output_dims(sizes, kernel)
        totals = [max(int(f) - int(o), 0) for f, o in zip(full, outs, strict=True)]  # type: ignore[arg-type]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        return tuple(small + large) if self.auto_pad == "SAME_UPPER" else tuple(large + small)

    def reference(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        data = channels_first(widened(x), self.layout)
        n, c, *sizes = data.shape
        kg, kernel = w.shape[1], w.shape[2:]
        g, rank = self.group, len(kernel)
        windows = self.windows(kernel)
        pads = self.resolved_pads(sizes, kernel)
        outs = [int(d) for d in self.output_dims(sizes, kernel)]  # type: ignore[arg-type]  # static sizes
        room = [max(int(f), o + p) for f, o, p in zip(self.full_dims(sizes, kernel), outs, pads, strict=False)]  # type: ignore[arg-type]
        ask(math.prod((n, g * kg, *room)) * data.dtype.itemsize, f"{self.name}: result before pads are cut off")
        spend(w.size * n * math.prod(sizes) // BLAS, self.name)
        y = np.zeros((n, g * kg, *room), dtype=data.dtype)
        columns = data.reshape(n, g, c // g, math.prod(sizes))
        by_tap = _by_tap(widened(w).reshape(g, c // g, kg, math.prod(kernel)).swapaxes(1, 2))
        for i, target in enumerate(windows.taps(y, sizes)):
            target += np.matmul(by_tap[i], columns).reshape(target.shape)
        y = y[(slice(None), slice(None), *(slice(pads[i], pads[i] + outs[i]) for i in range(rank)))]
        if bias is not None:
            y = y + along_channels(widened(bias), y.ndim)
        return finish(as_layout(y, self.layout), None, self.activation).astype(x.dtype, copy=False)
