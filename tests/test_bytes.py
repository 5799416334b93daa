"""Products of bytes: shapes and zero points that the drawn cases do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.ops.layers.integer_products import ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul
from bolt_numba.types import F32, I8, I32, U8, Array
from tests.harness import plan, run_kernel

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
