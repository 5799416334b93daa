"""Cases for the rules that make products of bytes, and take in what follows them; see rule_cases."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.types import F32, I8, I32, U8
from tests.rule_cases import f32, fires, o, whole

ZERO, SCALE = np.array(3, U8), np.array(0.5, F32)


def _real(b: Builder, x: Any, scale: Any = SCALE, zero: Any = ZERO, axis: int = 0) -> Value:
    return b(o("DequantizeLinear", axis), x, scale, zero)  # type: ignore[no-any-return]


def _weight(b: Builder, *dims: int, axis: int = 0) -> Value:
    """Bytes with a scale for each filter or column."""
    scales = np.array([0.5, 0.25, 2.0, 1.0, 0.125][: dims[axis]], F32)
    return _real(b, whole(*dims).astype(I8), scales, np.zeros(dims[axis], I8), axis)


def _conv(b: Builder, x: Value) -> Any:
    return b(o("Conv", pads=(1, 1, 1, 1)), _real(b, x), _weight(b, 5, 3, 3, 3))


def _bytes_conv(b: Builder, x: Value, w: Any = None) -> Any:
    """An integer convolution whose result is f32."""
    w = whole(5, 3, 3, 3).astype(I8) if w is None else w
    return b(o("QLinearConv"), x, SCALE, ZERO, w, SCALE, np.array(1, I8))


def _bytes_product(b: Builder, x: Value) -> Any:
    return b(o("QLinearMatMul"), x, SCALE, ZERO, whole(4, 5).astype(I8), SCALE, np.array(1, I8))


fires("integer_conv", "QLinearConv", x=(U8, 2, 3, 5, 5))(_conv)


@fires("integer_conv", "QLinearConv", x=(U8, 1, 3, 5, 5))
def conv_with_a_bias_in_units_of_the_sums(b: Builder, x: Value) -> Any:
    scales = np.array([0.5, 0.25, 2.0, 1.0, 0.125], F32) * SCALE
    bias = b(o("DequantizeLinear", 0), np.arange(-2, 3).astype(I32), scales)
    return b(o("Conv"), _real(b, x), _weight(b, 5, 3, 3, 3), bias)


fires("integer_matmul", "QLinearMatMul", x=(U8, 2, 4))(
    lambda b, x: b(o("MatMul"), _real(b, x), _weight(b, 4, 5, axis=1))
)
fires("integer_matmul", "Transpose Mul QLinearMatMul", x=(U8, 4, 2))(
    lambda b, x: b(o("MatMul", trans_a=True, trans_b=True, alpha=0.5), _real(b, x), _weight(b, 5, 4))
)
fires("integer_matmul", "Transpose QLinearMatMul", x=(U8, 2, 3, 4), y=(I8, 2, "n", 4))(
    lambda b, x, y: b(o("MatMul", trans_b=True), _real(b, x), _real(b, y, zero=np.array(-2, I8)))
)


@fires("integer_matmul", "QLinearMatMul", x=(U8, 2, 4))
def product_of_nibbles(b: Builder, x: Value) -> Any:
    import ml_dtypes

    weight = _real(b, whole(4, 5).astype(ml_dtypes.int4), SCALE, None)
    return b(o("MatMul"), _real(b, x), weight, f32(1, 2, 3, 4, 5))


fires("integer_bias", "QLinearConv", x=(U8, 1, 3, 5, 5))(
    lambda b, x: b(o("Add"), _bytes_conv(b, x), f32(1, 2, 3, 4, 5).reshape(1, 5, 1, 1))
)
fires("integer_bias", "QLinearMatMul", x=(U8, "n", 4))(lambda b, x: b(o("Add"), _bytes_product(b, x), f32(3)))
fires("integer_residual", "QLinearMatMul", x=(U8, 2, 4), r=(2, 5))(
    lambda b, x, r: b(o("Add"), r, _bytes_product(b, x))
)
fires("integer_residual", "QLinearConv", x=(U8, 1, 3, 5, 5), r=(I8, 1, 5, 3, 3))(
    lambda b, x, r: b(o("Add"), _bytes_conv(b, x), _real(b, r, zero=np.array(2, I8)))
)
fires("integer_activation", "QLinearMatMul", x=(U8, 2, 4))(lambda b, x: b(o("Relu"), _bytes_product(b, x)))
fires("integer_result", "QLinearConv", x=(U8, 1, 3, 5, 5))(
    lambda b, x: b(o("QuantizeLinear"), _bytes_conv(b, x), f32(8), np.array([2], U8))
)


@fires("integer_result", "QLinearConv", x=(U8, 1, 3, 5, 5))
def result_whose_limits_are_those_of_the_activation(b: Builder, x: Value) -> Any:
    made = o("QLinearConv", activation=o("Relu"))
    real = b(made, x, SCALE, ZERO, whole(5, 3, 3, 3).astype(I8), SCALE, np.array(1, I8))
    return b(o("QuantizeLinear"), real, f32(4).reshape(()), np.array(0, U8))


def _transposed(b: Builder, x: Value, *, group: int = 1, **more: Any) -> Any:
    w = _real(b, whole(4, 3, 3, 3).astype(I8), SCALE, np.array(1, I8))
    return b(o("ConvTranspose", strides=(2, 2), group=group, **more), _real(b, x), w, whole(3 * group))


fires("integer_conv_transpose", "QLinearConv Reshape Transpose Reshape Slice", x=(U8, 2, 4, 5, 3))(
    lambda b, x: _transposed(b, x, pads=(1, 1, 1, 0), output_padding=(1, 1))
)
fires("integer_conv_transpose", "QLinearConv DepthToSpace Slice", x=(U8, "n", 4, "h", "w"))(_transposed)
fires("integer_conv_transpose", "QLinearConv Reshape Transpose Reshape Slice", x=(U8, 1, 4, 3, 3))(
    lambda b, x: _transposed(b, x, group=2)
)
for _dims in ((1, 3, 4, 4), (2, 5, 3, 4)):
    fires("integer_conv_transpose", "QLinearConv Reshape Transpose Reshape Slice", x=(U8, *_dims))(
        lambda b, x: _transposed(b, x, pads=(1, 1, 1, 0), output_padding=(1, 1), layout="NHWC")
    )
fires("integer_conv_transpose", "QLinearConv Reshape Transpose Reshape", x=(U8, "n", 4, 3, 4))(
    lambda b, x: _transposed(b, x, group=2, pads=(0, 0, 1, 1), layout="NHWC")
)


def _apart(b: Builder, x: Value, between: Any, blocks: tuple[int, ...], filters: Any, **attributes: Any) -> Any:
    """A dilated convolution of [n, spatial..., c] as files without dilations have it."""
    count, sizes = len(blocks), x.type.dims[1:]
    parts = [d // k for d, k in zip(sizes, blocks, strict=False)]
    split = [-1, *(d for pair in zip(parts, blocks, strict=True) for d in pair), sizes[-1]]
    cut = (*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), 2 * count + 1)
    turned = b(o("Transpose", cut), b(o("Reshape"), x, np.array(split)))
    images = b(o("Reshape"), turned, np.array([-1, *parts, sizes[-1]]))
    y = between(b, b(o("Conv", layout="NHWC", **attributes), images, filters))
    made = y.type.dims[1:]
    join = (count, *(a for i in range(count) for a in (count + 1 + i, i)), 2 * count + 1)
    wide = b(o("Transpose", join), b(o("Reshape"), y, np.array([*blocks, -1, *made])))
    whole_sizes = [d * k for d, k in zip(made, blocks, strict=False)]
    return b(o("Reshape"), wide, np.array([-1, *whole_sizes, made[-1]]))


def _clipped(b: Builder, y: Value) -> Any:
    return b(o("QuantizeLinear"), b(o("Clip", lo=-3.0, hi=90.0), y), SCALE, ZERO)


fires("dilated_conv", "Conv Relu", x=(2, 8, 9, 3))(
    lambda b, x: _apart(b, x, lambda b, y: b(o("Relu"), y), (2, 3), whole(5, 3, 3, 2))
)
fires("dilated_conv", "Conv", x=(1, 12, 4))(lambda b, x: _apart(b, x, lambda b, y: y, (4,), whole(4, 1, 3), group=4))
fires("dilated_conv", "Conv Clip QuantizeLinear", x=(3, 4, 4, 2))(
    lambda b, x: _apart(b, x, _clipped, (2, 2), whole(3, 2, 2, 2))
)


@fires("pad_into_integer_conv", "QLinearConv", x=(U8, 1, 5, 6, 3))
def pads_of_the_zero_point(b: Builder, x: Value) -> Any:
    padded = b(o("Pad"), x, np.array([0, 1, 0, 0, 0, 2, 1, 0]), ZERO)
    return b(o("QLinearConv", layout="NHWC"), padded, SCALE, ZERO, whole(5, 3, 3, 3).astype(I8), SCALE, np.array(1, I8))


fires("tail_before_move", "QLinearMatMul Relu Reshape", x=(U8, 2, 4))(
    lambda b, x: b(o("Relu"), b(o("Reshape"), _bytes_product(b, x), np.array([5, 2])))
)
fires("tail_before_move", "QLinearMatMul QuantizeLinear Transpose", x=(U8, 2, 4))(
    lambda b, x: b(o("QuantizeLinear"), b(o("Transpose", (1, 0)), _bytes_product(b, x)), SCALE, ZERO)
)


@fires("integer_bias", "QLinearMatMul", x=(U8, 2, 4))
def bias_in_units_of_the_sums(b: Builder, x: Value) -> Any:
    bias = b(o("DequantizeLinear", 0), np.arange(5).astype(I32), np.full(5, SCALE * SCALE), np.zeros(5, I32))
    return b(o("Add"), bias, _bytes_product(b, x))


@fires("integer_bias", "QLinearMatMul", x=(U8, 2, 4))
def bias_in_bytes_of_another_scale(b: Builder, x: Value) -> Any:
    return b(o("Add"), _bytes_product(b, x), _real(b, whole(1, 5).astype(I8), SCALE, None))


@fires("tail_before_move", "QLinearConv QuantizeLinear MaxPool", x=(U8, 1, 3, 6, 6))
def rounding_before_the_greatest(b: Builder, x: Value) -> Any:
    y = b(o("MaxPool", (2, 2), (1, 1), (1, 0, 1, 0)), _bytes_conv(b, x))
    return b(o("QuantizeLinear"), y, f32(4).reshape(()), np.array(100, U8))


@fires("integer_bias", "QLinearMatMul", x=(U8, 2, 4))
def second_bias(b: Builder, x: Value) -> Any:
    bias = np.arange(5).astype(I32)
    y = b(o("QLinearMatMul"), x, SCALE, ZERO, whole(4, 5).astype(I8), SCALE, np.array(1, I8), None, None, bias)
    return b(o("Add"), y, whole(5))


fires("integer_factor", "QLinearConv", x=(U8, 1, 3, 5, 5))(
    lambda b, x: b(o("Mul"), f32(1, -2, 4, 0.5, 0).reshape(5, 1, 1), _bytes_conv(b, x))
)


@fires("integer_factor", "QLinearMatMul", x=(U8, 2, 4))
def factor_of_a_bias(b: Builder, x: Value) -> Any:
    scales = f32(1, 2, 4, 8, 1)
    y = b(o("QLinearMatMul"), x, SCALE, ZERO, whole(4, 5).astype(I8), scales, np.ones(5, I8), None, None, whole(5))
    return b(o("Mul"), y, f32(0.5))
