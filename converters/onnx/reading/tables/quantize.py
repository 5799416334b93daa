"""Readers of quantised operators of the default domain."""

from __future__ import annotations

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.converters.onnx.reading.tables.conv import Convolved
from bolt_numba.converters.onnx.types import dtype_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.layers.products.integer_products import ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul

add_as_is(DynamicQuantizeLinear)
add_reader("MatMulInteger", AsIs(MatMulInteger, "x y x_zero? y_zero?"))
add_reader("QLinearMatMul", AsIs(QLinearMatMul, "x x_scale x_zero y y_scale y_zero z_scale z_zero"))
add_reader("ConvInteger", Convolved(ConvInteger, "x w x_zero? w_zero?"))
QLINEAR_CONV = Convolved(QLinearConv, "x x_scale x_zero w w_scale w_zero y_scale y_zero bias?")
add_reader("QLinearConv", QLINEAR_CONV)


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
) -> Value:
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
) -> Value:
    dtype = dtype_of(output_dtype, "output_dtype") if output_dtype else None
    return b(DequantizeLinear(axis, block_size, dtype), x, scale, zero_point)
