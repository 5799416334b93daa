"""Readers of convolutions and pools; activations are [n, spatial..., c], as in the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.base.types import Sym
from bolt_numba.converters.builder import Ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.quantised import ranged
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.pointwise import Mul, Sqrt

PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}


@record(frozen=True)
class TfliteWindows:
    """Options of what slides windows over an image."""

    stride_w: int
    stride_h: int
    padding: str = "SAME"
    fused_activation_function: str = "NONE"

    @property
    def strides(self) -> Ints:
        return (self.stride_h, self.stride_w)


@record(frozen=True)
class TfliteFilters(TfliteWindows):
    """Those of convolutions."""

    dilation_w_factor: int = 1
    dilation_h_factor: int = 1

    @property
    def dilations(self) -> Ints:
        return (self.dilation_h_factor, self.dilation_w_factor)


@record(frozen=True)
class TfliteFilters3D(TfliteFilters):
    """Those of convolutions over three axes."""

    stride_d: int = 0
    dilation_d_factor: int = 1

    @property
    def strides(self) -> Ints:
        return (self.stride_d, self.stride_h, self.stride_w)

    @property
    def dilations(self) -> Ints:
        return (self.dilation_d_factor, self.dilation_h_factor, self.dilation_w_factor)


def _convolved(b: TfliteBuilder, x: Value, w: Value, bias: Value | None, filters: TfliteFilters) -> Value:
    """A convolution with w [k, c / groups, spatial...]; the groups follow from the channels."""
    channels, of_group = b.static_dim(x, -1), b.static_dim(w, 1)
    if of_group < 1 or channels % of_group:
        raise b.invalid("channels of x", channels, f"a multiple of {of_group}, those of a filter")
    pad = PADDING[filters.padding]
    made = Conv(filters.strides, (), filters.dilations, channels // of_group, pad, "NHWC")
    return activated(b, b(made, x, w, bias), filters.fused_activation_function)


@TFLITE.reader("CONV_2D")
def conv_2d(b: TfliteBuilder, x: Value, w: Value, bias: Value | None = None, *, filters: TfliteFilters) -> Value:
    """w: [k, h, w, c / groups]."""
    return _convolved(b, ranged(b, x, 1, axis=1), b(Transpose((0, 3, 1, 2)), w), bias, filters)


@TFLITE.reader("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(
    b: TfliteBuilder, x: Value, w: Value, bias: Value | None = None, *, filters: TfliteFilters
) -> Value:
    """w: [1, h, w, c * multiplier]; the multiplier follows from the channels, whatever the option says."""
    return _convolved(b, x, b(Transpose((3, 0, 1, 2)), w), bias, filters)


@TFLITE.reader("CONV_3D")
def conv_3d(b: TfliteBuilder, x: Value, w: Value, bias: Value | None = None, *, filters: TfliteFilters3D) -> Value:
    """w: [d, h, w, c / groups, k]."""
    return _convolved(b, x, b(Transpose((4, 3, 0, 1, 2)), w), bias, filters)


def _spread(
    b: TfliteBuilder, operator: ConvTranspose, shape: Value, w: Value, x: Value, bias: Value | None, fused: str
) -> Value:
    """A transposed convolution to a result of this shape.

    Where only the run tells the shape, it must be the one that the padding gives.
    """
    rank = b.rank_of(x) - 2
    known = shape.type.known
    if known is not None:
        b.invalid_if(known.size != rank + 2, "length of output_shape", known.size, rank + 2)
        operator = replace(operator, output_shape=tuple(int(d) for d in known.reshape(-1)[1:-1]))
    made = b(operator, x, w, bias)
    wanted = shape.type.value
    if known is None and wanted is not None and made.type.shape is not None:
        for got, size in zip(made.type.shape[1:-1], list(wanted)[1:-1], strict=True):
            if got != size and not (isinstance(got, Sym) and isinstance(size, Sym)):
                raise b.unsupported(f"output_shape {list(wanted)} where the padding gives {list(made.type.shape)}")
    return activated(b, made, fused)


@TFLITE.reader("TRANSPOSE_CONV")
def transpose_conv(
    b: TfliteBuilder, output_shape: Value, w: Value, x: Value, bias: Value | None = None, *, windows: TfliteWindows
) -> Value:
    """w: [k, h, w, c]."""
    turned = b(Transpose((3, 0, 1, 2)), w)
    operator = ConvTranspose(windows.strides, auto_pad=PADDING[windows.padding], layout="NHWC")
    seen = ranged(b, x, 1, axis=1)
    return _spread(b, operator, output_shape, turned, seen, bias, windows.fused_activation_function)


@TFLITE.reader("CONV_3D_TRANSPOSE")
def conv_3d_transpose(
    b: TfliteBuilder, output_shape: Value, w: Value, x: Value, bias: Value | None = None, *, filters: TfliteFilters3D
) -> Value:
    """w: [d, h, w, k, c]."""
    turned = b(Transpose((4, 3, 0, 1, 2)), w)
    pad = PADDING[filters.padding]
    operator = ConvTranspose(filters.strides, (), filters.dilations, auto_pad=pad, layout="NHWC")
    return _spread(b, operator, output_shape, turned, x, bias, filters.fused_activation_function)


@record(frozen=True)
class TflitePool(TfliteWindows):
    """Those of pools."""

    filter_width: int = 0
    filter_height: int = 0

    def of(self, b: TfliteBuilder, operator: Any, x: Value) -> Any:
        kernel = self.filter_height, self.filter_width
        return b(operator(kernel, self.strides, auto_pad=PADDING[self.padding], layout="NHWC"), x)


@TFLITE.reader("AVERAGE_POOL_2D")
def average_pool_2d(b: TfliteBuilder, x: Value, *, pool: TflitePool) -> Value:
    return activated(b, pool.of(b, AveragePool, x), pool.fused_activation_function)


@TFLITE.reader("MAX_POOL_2D")
def max_pool_2d(b: TfliteBuilder, x: Value, *, pool: TflitePool) -> Value:
    return activated(b, pool.of(b, MaxPool, x), pool.fused_activation_function)


@TFLITE.reader("L2_POOL_2D")
def l2_pool_2d(b: TfliteBuilder, x: Value, *, pool: TflitePool) -> Value:
    """The root of the mean of squares of each window."""
    mean = pool.of(b, AveragePool, b(Mul(), x, x))
    return activated(b, b(Sqrt(), mean), pool.fused_activation_function)
