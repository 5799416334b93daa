"""Readers of convolutions and pools; activations are [n, spatial..., c], as in the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bolt_numba.converters.operands import rank_of, static_dim
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.quantised import ranged
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.pointwise import Mul, Sqrt
from bolt_numba.types import Sym

PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}
Ints = tuple[int, ...]


def _convolved(
    b: TfliteBuilder, x: Value, w: Value, bias: Value | None, strides: Ints, dilations: Ints, padding: str, fused: str
) -> Any:
    """A convolution with w [k, c / groups, spatial...]; the groups follow from the channels."""
    channels, of_group = static_dim(b, x, -1), static_dim(b, w, 1)
    if of_group < 1 or channels % of_group:
        raise b.invalid("channels of x", channels, f"a multiple of {of_group}, those of a filter")
    made = Conv(strides, (), dilations, channels // of_group, PADDING[padding], "NHWC")
    return activated(b, b(made, x, w, bias), fused)


@TFLITE.reader("CONV_2D")
def conv_2d(
    b: TfliteBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    fused_activation_function: str = "NONE",
    dilation_w_factor: int = 1,
    dilation_h_factor: int = 1,
    quantized_bias_type: str = "FLOAT32",
) -> Any:
    """w: [k, h, w, c / groups]."""
    turned = b(Transpose((0, 3, 1, 2)), w)
    strides, dilations = (stride_h, stride_w), (dilation_h_factor, dilation_w_factor)
    return _convolved(b, ranged(b, x, 1, axis=1), turned, bias, strides, dilations, padding, fused_activation_function)


@TFLITE.reader("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(
    b: TfliteBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    depth_multiplier: int = 0,
    fused_activation_function: str = "NONE",
    dilation_w_factor: int = 1,
    dilation_h_factor: int = 1,
) -> Any:
    """w: [1, h, w, c * multiplier]; the multiplier follows from the channels, whatever the option says."""
    turned = b(Transpose((3, 0, 1, 2)), w)
    strides, dilations = (stride_h, stride_w), (dilation_h_factor, dilation_w_factor)
    return _convolved(b, x, turned, bias, strides, dilations, padding, fused_activation_function)


@TFLITE.reader("CONV_3D")
def conv_3d(
    b: TfliteBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    padding: str = "SAME",
    stride_d: int,
    stride_w: int,
    stride_h: int,
    fused_activation_function: str = "NONE",
    dilation_d_factor: int = 1,
    dilation_w_factor: int = 1,
    dilation_h_factor: int = 1,
) -> Any:
    """w: [d, h, w, c / groups, k]."""
    turned = b(Transpose((4, 3, 0, 1, 2)), w)
    strides = (stride_d, stride_h, stride_w)
    dilations = (dilation_d_factor, dilation_h_factor, dilation_w_factor)
    return _convolved(b, x, turned, bias, strides, dilations, padding, fused_activation_function)


def _spread(
    b: TfliteBuilder, operator: ConvTranspose, shape: Value, w: Value, x: Value, bias: Value | None, fused: str
) -> Any:
    """A transposed convolution to a result of this shape.

    Where only the run tells the shape, it must be the one that the padding gives.
    """
    rank = rank_of(b, x) - 2
    known = shape.type.known
    if known is not None:
        if known.size != rank + 2:
            raise b.invalid("length of output_shape", known.size, rank + 2)
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
    b: TfliteBuilder,
    output_shape: Value,
    w: Value,
    x: Value,
    bias: Value | None = None,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    fused_activation_function: str = "NONE",
    quantized_bias_type: str = "FLOAT32",
) -> Any:
    """w: [k, h, w, c]."""
    turned = b(Transpose((3, 0, 1, 2)), w)
    operator = ConvTranspose((stride_h, stride_w), auto_pad=PADDING[padding], layout="NHWC")
    return _spread(b, operator, output_shape, turned, ranged(b, x, 1, axis=1), bias, fused_activation_function)


@TFLITE.reader("CONV_3D_TRANSPOSE")
def conv_3d_transpose(
    b: TfliteBuilder,
    output_shape: Value,
    w: Value,
    x: Value,
    bias: Value | None = None,
    *,
    padding: str = "SAME",
    stride_d: int,
    stride_w: int,
    stride_h: int,
    fused_activation_function: str = "NONE",
    dilation_d_factor: int = 1,
    dilation_w_factor: int = 1,
    dilation_h_factor: int = 1,
) -> Any:
    """w: [d, h, w, k, c]."""
    turned = b(Transpose((4, 3, 0, 1, 2)), w)
    strides = (stride_d, stride_h, stride_w)
    dilations = (dilation_d_factor, dilation_h_factor, dilation_w_factor)
    operator = ConvTranspose(strides, (), dilations, auto_pad=PADDING[padding], layout="NHWC")
    return _spread(b, operator, output_shape, turned, x, bias, fused_activation_function)


@TFLITE.reader("AVERAGE_POOL_2D")
def average_pool_2d(
    b: TfliteBuilder,
    x: Value,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    filter_width: int,
    filter_height: int,
    fused_activation_function: str = "NONE",
) -> Any:
    made = AveragePool(
        (filter_height, filter_width), (stride_h, stride_w), auto_pad=PADDING[padding], layout="NHWC"
    )  # fmt: skip
    return activated(b, b(made, x), fused_activation_function)


@TFLITE.reader("MAX_POOL_2D")
def max_pool_2d(
    b: TfliteBuilder,
    x: Value,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    filter_width: int,
    filter_height: int,
    fused_activation_function: str = "NONE",
) -> Any:
    made = MaxPool((filter_height, filter_width), (stride_h, stride_w), auto_pad=PADDING[padding], layout="NHWC")
    return activated(b, b(made, x), fused_activation_function)


@TFLITE.reader("L2_POOL_2D")
def l2_pool_2d(
    b: TfliteBuilder,
    x: Value,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    filter_width: int,
    filter_height: int,
    fused_activation_function: str = "NONE",
) -> Any:
    """The root of the mean of squares of each window."""
    kernel, strides = (filter_height, filter_width), (stride_h, stride_w)
    mean = b(AveragePool(kernel, strides, auto_pad=PADDING[padding], layout="NHWC"), b(Mul(), x, x))
    return activated(b, b(Sqrt(), mean), fused_activation_function)
