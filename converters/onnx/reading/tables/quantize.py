"""Readers of quantised operators of the default domain."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.onnx.reading.tables.conv import check_auto_pad, check_kernel
from bolt_numba.converters.onnx.types import dtype_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.integer_products import ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul
from bolt_numba.ops.layers.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear

Ints = tuple[int, ...]


@reader("QuantizeLinear")
def quantize_linear(
    b: NodeBuilder,
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: bool = True,
) -> Any:
    dtype = dtype_of(output_dtype, "output_dtype") if output_dtype else None
    return b(QuantizeLinear(axis, block_size, saturate, dtype), x, scale, zero_point)


@reader("DequantizeLinear")
def dequantize_linear(
    b: NodeBuilder,
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Any:
    dtype = dtype_of(output_dtype, "output_dtype") if output_dtype else None
    return b(DequantizeLinear(axis, block_size, dtype), x, scale, zero_point)


@reader("DynamicQuantizeLinear")
def dynamic_quantize_linear(b: NodeBuilder, x: Value) -> Any:
    return b(DynamicQuantizeLinear(), x)


@reader("MatMulInteger")
def matmul_integer(b: NodeBuilder, x: Value, y: Value, x_zero: Value | None = None, y_zero: Value | None = None) -> Any:
    return b(MatMulInteger(), x, y, x_zero, y_zero)


@reader("ConvInteger")
def conv_integer(
    b: NodeBuilder,
    x: Value,
    w: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Any:
    check_kernel(b, w, kernel_shape)
    operator = ConvInteger(strides, pads, dilations, group, check_auto_pad(b, auto_pad))
    return b(operator, x, w, x_zero, w_zero)


@reader("QLinearConv")
def qlinear_conv(
    b: NodeBuilder,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Any:
    check_kernel(b, w, kernel_shape)
    operator = QLinearConv(strides, pads, dilations, group, check_auto_pad(b, auto_pad))
    return b(operator, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)


@reader("QLinearMatMul")
def qlinear_matmul(
    b: NodeBuilder,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    y: Value,
    y_scale: Value,
    y_zero: Value,
    z_scale: Value,
    z_zero: Value,
) -> Any:
    return b(QLinearMatMul(), x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero)
