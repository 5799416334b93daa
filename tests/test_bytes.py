"""Products of bytes: shapes and zero points that the drawn cases do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.ops.layers.products.integer_products import ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul
from bolt_numba.ops.pointwise import Clip, HardSwish, Relu, Sigmoid
from bolt_numba.types import F32, I8, I32, U8, Array
from tests.harness import plan, run_kernel, run_planned

RNG = np.random.default_rng(5)


def random_bytes(dtype: Any, *dims: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(int(info.min), int(info.max), dims, endpoint=True).astype(dtype)


def check(op: Any, *inputs: Array | None) -> None:
    (got,) = run_kernel(op, list(inputs))
    np.testing.assert_array_equal(got, op.reference(*inputs))


@pytest.mark.parametrize("left", [U8, I8])
@pytest.mark.parametrize("right", [U8, I8])
def test_all_signs_far_from_saturation_of_pairs(left: Any, right: Any) -> None:
    """The greatest bytes everywhere: sums of two products exceed 16 bits."""
    for a in (np.iinfo(left).min, np.iinfo(left).max):
        for b in (np.iinfo(right).min, np.iinfo(right).max):
            ones = np.ones((14, 70), left) * left.type(a), np.ones((70, 40), right) * right.type(b)
            check(MatMulInteger(), *ones, np.asarray(3, left), np.asarray(-7 if right == I8 else 7).astype(right))


@pytest.mark.parametrize("dims", [(25, 300, 70), (1, 129, 65), (200, 7, 33), (13, 4096, 16), (5, 3, 100), (2, 1, 1)])
def test_spans_panels_and_tails(dims: tuple[int, int, int]) -> None:
    m, k, n = dims
    a, b = random_bytes(U8, m, k), random_bytes(U8, k, n)
    check(MatMulInteger(), a, b, random_bytes(U8), random_bytes(U8, n))
    scale = np.asarray(0.37, F32), np.asarray(1.7 / k, F32)
    check(QLinearMatMul(), a, scale[0], random_bytes(U8), b, RNG.random(n).astype(F32), random_bytes(U8, n), scale[1],
          random_bytes(I8))  # fmt: skip


@pytest.mark.parametrize(("right", "nothing"), [(U8, 128), (I8, 0)])
def test_some_columns_have_no_zero_point(right: Any, nothing: int) -> None:
    """Of the bytes that are multiplied: the sums of the rows are wanted for the others, wherever these are."""
    a, b = random_bytes(U8, 5, 20), random_bytes(right, 20, 9)
    for other in (0, 4, 8):
        zero = np.full(9, nothing, right)
        zero[other] = 5
        check(MatMulInteger(), a, b, random_bytes(U8), zero)
    check(MatMulInteger(), a, b, random_bytes(U8), np.full(9, nothing, right))


def test_zero_points_of_rows() -> None:
    a, b = random_bytes(I8, 3, 14, 20), random_bytes(U8, 20, 9)
    for zero in (random_bytes(I8, 14), random_bytes(I8, 3, 14, 1)):
        check(MatMulInteger(), a, b, zero, random_bytes(U8, 9))
    check(MatMulInteger(), a[0], random_bytes(U8, 3, 20, 9), random_bytes(I8, 14), random_bytes(U8, 3, 1, 9))


@pytest.mark.parametrize("group", [1, 2, 64])
@pytest.mark.parametrize("known", [True, False])
def test_images_larger_than_a_span(group: int, known: bool) -> None:
    x, w = random_bytes(U8, 1, 40, 41, 64), random_bytes(I8, 64, 64 // group, 3, 3)
    op = ConvInteger(pads=(1, 1, 1, 1), strides=(1, 2), group=group, layout="NHWC")
    inputs = [x, w, random_bytes(U8), random_bytes(I8, 64)]
    (got,) = run_kernel(op, inputs, constant=[False, True, known, known])
    np.testing.assert_array_equal(got, op.reference(*inputs))


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_few_channels_join_the_taps_of_a_row(channels: int) -> None:
    x, w = random_bytes(I8, 2, 23, 19, channels), random_bytes(I8, 35, channels, 5, 4)
    op = QLinearConv(pads=(2, 1, 0, 3), strides=(2, 2), layout="NHWC")
    scale = np.asarray(2.0**-4, F32)
    check(op, x, scale, random_bytes(I8), w, RNG.random(35).astype(F32), np.zeros(35, I8), np.asarray(30, F32),
          random_bytes(U8), RNG.integers(-9999, 9999, 35).astype(I32))  # fmt: skip


@pytest.mark.parametrize("group", [1, 2, 32])
@pytest.mark.parametrize("bias", [-(2**31), 2**31 - 1])
def test_sums_beyond_32_bits_are_left_to_the_reference(bias: int, group: int) -> None:
    x, w = random_bytes(U8, 1, 6, 7, 32), random_bytes(I8, 32, 32 // group, 3, 3)
    one = np.asarray(1, F32)
    op = QLinearConv(pads=(1, 1, 1, 1), group=group, layout="NHWC")
    inputs = [x, one, np.asarray(9, U8), w, one, np.asarray(0, I8), np.asarray(2.0**24, F32), np.asarray(128, U8)]
    assert plan(op, [*inputs, np.full(32, bias, I32)]) is None
    assert plan(op, [*inputs, np.full(32, bias // 2, I32)]) is not None
    np.testing.assert_array_equal(op.reference(*inputs, np.full(32, bias, I32)), 0 if bias < 0 else 255)


def quantised(x: Array, w: Array, bias: bool = True, dtype: Any = U8) -> list[Array | None]:
    """Operands of a QLinearConv whose results mostly are within the limits."""
    count, one = w.shape[0], w[0].size
    scales = np.asarray(0.03, F32), RNG.uniform(0.5, 1, count).astype(F32), np.asarray(2.5 * one**0.5, F32)
    made = [x, scales[0], random_bytes(x.dtype), w, scales[1], np.zeros(count, I8), scales[2], random_bytes(dtype)]
    return [*made, RNG.integers(-9999, 9999, count).astype(I32) if bias else None]


@pytest.mark.parametrize("channels", [16, 20, 24, 32, 48, 64, 72, 96, 100, 144])
@pytest.mark.parametrize("taps", [(3, 1), (3, 2), (5, 1), (5, 2), (7, 2), (1, 2), (2, 1), (4, 2)])
def test_depthwise_of_any_number_of_channels(channels: int, taps: tuple[int, int]) -> None:
    size, stride = taps
    sizes = (6, 13) if channels % 3 else (5, 2)
    x = random_bytes(I8 if channels % 5 else U8, 2, *sizes, channels)
    w = random_bytes(I8, channels, 1, size, size)
    op = QLinearConv(pads=(size // 2,) * 4, strides=(2, stride), group=channels, dilations=(1 + channels % 2, 1),
                     layout="NHWC", activation=Relu() if size == 3 else None)  # fmt: skip
    inputs = quantised(x, w, dtype=U8 if size == 3 else I8)
    planned = plan(op, inputs)
    assert planned is not None
    assert planned.entry.name == "conv_bytes_pixels"
    (got,) = run_planned(planned, inputs)
    assert abs(got.astype(I32) - op.reference(*inputs).astype(I32)).max() <= (size == 3)


@pytest.mark.parametrize("channels", [16, 20, 64, 100])
@pytest.mark.parametrize("zero", [(U8, 0), (U8, 126), (U8, 151), (U8, 255), (I8, -7), (I8, None)])
@pytest.mark.parametrize("form", [(3, 1, 1), (5, 2, 1), (3, 1, 2), (3, 1, 3), (4, 1, 4)])
def test_depthwise_with_zero_points_of_weights_and_apart(channels: int, zero: Any, form: tuple[int, ...]) -> None:
    """Weights less their zero points need nine bits; taps are up to four pixels apart."""
    (dtype, point), (size, stride, apart) = zero, form
    x, w = random_bytes(U8, 2, 7, 11, channels), random_bytes(dtype, channels, 1, 3, size)
    w[: channels // 2] = w[: channels // 2] // 4 + (96 if dtype == U8 else 0)
    op = QLinearConv(pads=(1, 2, 1, 3), strides=(1, stride), group=channels, dilations=(1, apart), layout="NHWC")
    inputs = quantised(x, w, dtype=I8)
    inputs[5] = random_bytes(I8, channels) if point is None else np.full(channels, point, dtype)
    inputs[6] = np.asarray(30, F32)
    planned = plan(op, inputs)
    assert planned is not None
    assert planned.entry.name == "conv_bytes_pixels"
    (got,) = run_planned(planned, inputs)
    np.testing.assert_array_equal(got, op.reference(*inputs))
    summed = ConvInteger(op.strides, op.pads, op.dilations, op.group, op.auto_pad, op.layout)
    check(summed, x, w, inputs[2], inputs[5])


def test_depthwise_on_a_line() -> None:
    x, w = random_bytes(U8, 3, 37, 40), random_bytes(I8, 40, 1, 3)
    check(QLinearConv(pads=(2, 0), group=40, layout="NHWC"), *quantised(x, w))


@pytest.mark.parametrize("activation", [None, Relu(), Clip(lo=-1.5, hi=2.0), Sigmoid(), HardSwish()])
@pytest.mark.parametrize("kind", [(U8, U8), (I8, I8), (U8, F32), (F32, U8), (F32, F32), (F32, I8)])
def test_what_follows_the_sums(activation: Any, kind: tuple[Any, Any]) -> None:
    """Result and residual of bytes or f32, bias of both kinds: within one level, or rounding of f32."""
    for channels, group, bias in ((40, 1, I32), (67, 1, F32), (7, 1, None), (40, 40, F32), (100, 100, I32)):
        x, w = random_bytes(I8, 1, 5, 6, 19 if group == 1 else group), random_bytes(I8, channels, 19, 1, 1)
        inputs = quantised(x, w if group == 1 else random_bytes(I8, channels, 1, 3, 3), False)[:8]
        inputs[6:] = np.asarray(0.05, F32), np.asarray(-10, I8) if kind[0] == I8 else np.asarray(110, U8)
        inputs[1] = np.asarray(0.0002, F32)
        if kind[0] == F32:
            inputs[6:] = None, None
        dims = 1, 5, 6, channels
        residual = RNG.standard_normal(dims) if kind[1] == F32 else random_bytes(kind[1], *dims)
        added = None if bias is None else (RNG.standard_normal(channels) * (1 if bias == F32 else 900)).astype(bias)
        inputs += [added, residual.astype(kind[1])]
        if kind[1] != F32:
            inputs += [np.asarray(0.02, F32), random_bytes(kind[1])]
        op = QLinearConv(layout="NHWC", group=group, pads=(int(group > 1),) * 4, activation=activation, residual=True)
        (got,) = run_kernel(op, inputs)
        wanted = op.reference(*inputs)
        if kind[0] == F32:
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        else:
            apart = abs(got.astype(I32) - wanted.astype(I32))
            assert apart.max() <= 1
            assert apart.mean() < 0.01
            assert got.std() > 2


@pytest.mark.parametrize("channels", [16, 36, 100])
def test_sums_of_depthwise_layers(channels: int) -> None:
    x, w = random_bytes(I8, 2, 7, 9, channels), random_bytes(I8, channels, 1, 3, 5)
    check(ConvInteger(pads=(1, 2, 0, 1), group=channels, layout="NHWC"), x, w, random_bytes(I8))


def test_numbers_beyond_i32_before_rounding() -> None:
    """Their signs still say which limit they get."""
    for group in (1, 64):
        x, w = random_bytes(U8, 1, 6, 7, 64), random_bytes(I8, 64, 64 // group, 3, 3)
        inputs = quantised(x, w)
        inputs[6] = np.asarray(1e-9, F32)
        op = QLinearConv(pads=(1, 1, 1, 1), group=group, layout="NHWC")
        assert {0, 255} <= set(op.reference(*inputs).reshape(-1).tolist())
        check(op, *inputs)


BAD_SCALES = [0.0, -1.0, np.inf, -np.inf, 3e38, np.nan]


@pytest.mark.parametrize("bad", BAD_SCALES)
@pytest.mark.parametrize("place", [1, 4, 6])
@pytest.mark.parametrize("kind", ["product", "dense", "depthwise"])
def test_scales_of_the_run_that_make_no_sense_give_what_the_reference_gives(kind: str, place: int, bad: float) -> None:
    a, b = random_bytes(U8, 7, 20), random_bytes(I8, 20, 40)
    if kind != "product":
        a, b = random_bytes(U8, 1, 6, 6, 20), random_bytes(I8, *((40, 20, 3, 3) if kind == "dense" else (20, 1, 3, 3)))
    scales = {1: 0.02, 4: 0.01, 6: 0.1} | {place: bad}
    x_scale, w_scale, y_scale = (np.asarray(v, F32) for v in scales.values())
    inputs = [a, x_scale, np.asarray(100, U8), b, w_scale, np.asarray(0, I8), y_scale, np.asarray(7, U8)]
    for activation in (None,) if np.isnan(bad) else (None, Relu(), Clip(-1.0, 2.0)):
        for count in (8,) if place == 6 else (8, 6):  # six: the result is f32
            op: Any = QLinearMatMul(activation)
            if kind != "product":
                op = QLinearConv(group=1 if kind == "dense" else 20, layout="NHWC", activation=activation)
            with np.errstate(all="ignore"):
                wanted = op.reference(*inputs[:count])
                (got,) = run_kernel(op, inputs[:count], constant=[i in (3, 5) for i in range(count)])
            is_real = count == 6
            np.testing.assert_allclose(got.astype(float), wanted, rtol=1e-5 * is_real, atol=1e-6 if is_real else 1)
