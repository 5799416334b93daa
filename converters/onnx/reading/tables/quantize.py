"""Readers of quantised operators of the default domain."""

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader
from bolt_numba.converters.onnx.reading.tables.conv import Convolved
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.layers.products.integer_products import ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul

add_as_is(DynamicQuantizeLinear)
add_reader("MatMulInteger", AsIs(MatMulInteger, "x y x_zero? y_zero?"))
add_reader("QLinearMatMul", AsIs(QLinearMatMul, "x x_scale x_zero y y_scale y_zero z_scale z_zero"))
add_reader("ConvInteger", Convolved(ConvInteger, "x w x_zero? w_zero?"))
QLINEAR_CONV = "x x_scale x_zero w w_scale w_zero y_scale y_zero bias?"
add_reader("QLinearConv", Convolved(QLinearConv, QLINEAR_CONV))
QUANTIZE = AsIs(QuantizeLinear, ignored={"precision": 0})
add_reader("QuantizeLinear", QUANTIZE)
add_as_is(DequantizeLinear)
