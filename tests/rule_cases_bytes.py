"""One small graph for every rule about conversions between bytes and floats; used by test_rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.types import F32, I8, I16, U8, AnyDType
from tests.rule_cases import fires, i64, o


def dq(b: Any, x: Any, scale: float = 0.5, point: int = 0) -> Any:
    return b(o("DequantizeLinear"), x, np.array(scale, F32), np.array(point, x.type.dtype))


def q(b: Any, x: Any, scale: float = 0.5, point: int = 0, dtype: AnyDType = U8) -> Any:
    return b(o("QuantizeLinear"), x, np.array(scale, F32), np.array(point, dtype))


fires("drop_equal_conversions", "Relu", x=(I16, 2, 3))(lambda b, x: q(b, dq(b, b(o("Relu"), x)), dtype=I16))
fires("byte_table_of_function", "ByteTable", x=(U8, 2, 3))(lambda b, x: q(b, b(o("Tanh"), dq(b, x)), 0.01, 3, I8))
fires("byte_table_of_conversions", "ByteTable", x=(U8, 2, 3))(lambda b, x: q(b, dq(b, x), 0.3, 1))
fires("byte_table_of_limits", "ByteTable", x=(I8, 2, 70))(
    lambda b, x: b(o("ByteTable"), b(o("Clip", lo=-9, hi=70), x), np.arange(255, -1, -1, dtype=U8))
)
fires("dequantize_after_move", "Transpose DequantizeLinear", x=(U8, 2, 3))(
    lambda b, x: b(o("Transpose", (1, 0)), dq(b, x))
)
fires("dequantize_after_move", "Split DequantizeLinear DequantizeLinear", x=(U8, 2, 4))(
    lambda b, x: tuple(b.node(o("Split", 1, 2), dq(b, x)).outputs)
)
fires("dequantize_after_axis_move", "Transpose DequantizeLinear", x=(I8, 2, 3))(
    lambda b, x: b(o("Transpose", (1, 0)), b(o("DequantizeLinear", -1), x, np.array([1, 2, 0.5], F32)))
)
fires("dequantize_after_pad", "Pad DequantizeLinear", x=(I8, 2, 3))(
    lambda b, x: b(o("Pad"), dq(b, x, point=7), i64(0, 1, 0, 1))
)
fires("dequantize_after_window", "MaxPool DequantizeLinear", x=(I8, 1, 2, 4, 4))(
    lambda b, x: b(o("MaxPool", (2, 2)), dq(b, x, point=7))
)
fires("dequantize_after_join", "Concat DequantizeLinear", x=(I8, 2, 3))(
    lambda b, x: b(o("Concat", 0), dq(b, x, 0.5, 7), dq(b, x, 0.5, 7))
)
fires("dequantize_after_relu", "Clip DequantizeLinear", x=(I8, 2, 3))(lambda b, x: b(o("Relu"), dq(b, x, point=7)))
fires("between_bytes", "BetweenBytes", x=(U8, 2, 5))(lambda b, x: q(b, b(o("Softmax"), dq(b, x)), 0.013))
fires("between_bytes", "BetweenBytes", x=(U8, 1, 4, 4, 3))(
    lambda b, x: q(b, b(o("AveragePool", (2, 2), layout="NHWC"), dq(b, x)), 0.47)
)
fires("between_bytes", "BetweenBytes", x=(I8, 1, 4, 4, 3))(
    lambda b, x: q(b, b(o("Resize", "linear", layout="NHWC"), dq(b, x), None, np.array([1, 1, 2, 2], F32)), 0.47)
)
fires("quantize_before_move", "QuantizeLinear Reshape", x=(2, 3))(lambda b, x: q(b, b(o("Reshape"), x, i64(6))))
fires("quantize_before_join", "QuantizeLinear QuantizeLinear Concat", x=(2, 3), y=(2, 1))(
    lambda b, x, y: q(b, b(o("Concat", 1), x, y))
)


def scaled(b: Any, sums: Any, *scales: Any) -> Any:
    """Sums as numbers, times the product of two scales."""
    return b(o("Mul"), b(o("Cast", F32), sums), b(o("Mul"), *scales))


@fires("scaled_matmul", "DynamicQuantizeLinear QLinearMatMul", x=(2, 4))
def scaled_product(b: Any, x: Any) -> Any:
    y, scale, zero = b(o("DynamicQuantizeLinear"), x)
    w = np.arange(-6, 6, dtype=I8).reshape(4, 3)
    return scaled(b, b(o("MatMulInteger"), y, w, zero), scale, np.array([0.5, 1, 2], F32))


@fires("scaled_conv", "DynamicQuantizeLinear QLinearConv", x=(1, 2, 4, 4))
def scaled_convolution(b: Any, x: Any) -> Any:
    y, scale, zero = b(o("DynamicQuantizeLinear"), x)
    return scaled(b, b(o("ConvInteger"), y, np.ones((3, 2, 2, 2), I8), zero), np.array([0.5], F32), scale)


def ranged(b: Any, op: Any, x: Any, w: Any, axis: int = -1, bias: bool = True) -> Any:
    """A layer whose activations have a range of their own; its weights have a scale for each of the first axis."""
    scale = np.linspace(0.5, 1, w.shape[0], dtype=F32)
    more = (np.arange(w.shape[0], dtype=F32),) if bias else ()
    return b(op, b(o("RangeRounded", axis), x), b(o("DequantizeLinear", 0), w, scale), *more)


fires("ranged_matmul", "QuantizeRows QLinearMatMul", 1e-6, x=(2, 3, 4))(
    lambda b, x: ranged(b, o("MatMul", trans_b=True), x, np.arange(-6, 6, dtype=I8).reshape(3, 4))
)
fires("ranged_conv", "QuantizeRows QLinearConv", 1e-6, x=(1, 4, 4, 2))(
    lambda b, x: ranged(b, o("Conv", layout="NHWC"), x, np.arange(-8, 8, dtype=I8).reshape(2, 2, 2, 2), 1)
)
fires("ranged_conv", "QuantizeRows QLinearMatMul", 1e-6, x=(2, 4, 4, 2))(
    lambda b, x: ranged(b, o("Conv", layout="NHWC"), x, np.arange(-3, 3, dtype=I8).reshape(3, 2, 1, 1), -1, False)
)
fires("ranged_conv", "QuantizeRows QLinearConv", 1e-6, x=(3, 4, 4, 2))(
    lambda b, x: ranged(b, o("Conv", layout="NHWC"), x, np.arange(-8, 8, dtype=I8).reshape(2, 2, 2, 2), 1)
)
fires("ranged_matmul", "QuantizeRows QLinearMatMul", 1e-6, x=(2, 3, 4))(
    lambda b, x: b(o("MatMul"), b(o("RangeRounded"), x),
                   b(o("DequantizeLinear"), np.arange(-20, 20, dtype=I8).reshape(2, 4, 5), np.float32(0.5)))
)  # fmt: skip
fires("ranged_conv_transpose", "QuantizeRows QLinearConv Reshape Transpose Reshape", 1e-6, x=(2, 4, 3, 2))(
    lambda b, x: b(o("ConvTranspose", (2, 2), auto_pad="SAME_UPPER", layout="NHWC"), b(o("RangeRounded", 1), x),
                   b(o("DequantizeLinear"), np.arange(-27, 27, dtype=I8).reshape(2, 3, 3, 3), np.float32(0.5)))
)  # fmt: skip
fires("exact_floats", "Neg", 0.02, x=(2, 5))(lambda b, x: b(o("Neg"), b(o("RangeRounded"), x)))


@fires("weights_stay", "MatMulNBits", tolerance=1e-5, x=(2, 128))
def product_of_stored_weights(b: Any, x: Any) -> Any:
    w = np.random.default_rng(0).integers(-128, 128, (128, 130)).astype(I8)
    return b(o("MatMul"), x, b(o("DequantizeLinear"), w, np.linspace(0.5, 1, 130, dtype=F32)))


fires("bits_bias", "MatMulNBits", tolerance=1e-6, x=(2, 32))(
    lambda b, x: b(o("Add"), b(o("MatMulNBits", 8, 32), x, *stored_columns()), np.arange(3, dtype=F32))
)


def stored_columns() -> Any:
    return np.arange(96, dtype=U8).reshape(3, 1, 32), np.ones((3, 1), F32)
