"""Layers of TFLite whose weights are bytes and whose activations are floats: rounded by their own range in each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ops.arrays.quantize import QuantizeRows
from bolt_numba.types import Array
from tests.harness import run_kernel
from tests.near import assert_near
from tests.tflite_operator import Tensor, constant, model

F32 = np.float32
CONV = {"stride_w": 1, "stride_h": 1, "padding": "SAME", "dilation_w_factor": 1, "dilation_h_factor": 1}


def weights(shape: tuple[int, ...], axis: int = 0) -> Tensor:
    rng = np.random.default_rng(1)
    scale = rng.uniform(0.5, 1.5, shape[axis]).astype(F32) * F32(0.01)
    return constant(rng.integers(-127, 128, shape).astype(np.int8), scale=list(scale), axis=axis)


def real(w: Tensor) -> Array:
    """The numbers that weights stand for, f64."""
    assert w.data is not None
    shape = [1] * w.data.ndim
    shape[w.axis] = -1
    return np.asarray(w.data.astype(np.float64) * np.reshape(np.asarray(w.scale, np.float64), shape))


def ranged(x: Array, axis: int) -> Array:
    """Activations as bytes of their own range hold them, f64."""
    y, scale, zero = QuantizeRows(axis).reference(x)
    return np.asarray((y.astype(np.float64) - zero) * scale)


def dense(rows: tuple[int, ...], n: int = 33, k: int = 48, **options: Any) -> tuple[bytes, Tensor, Array]:
    w, bias = weights((n, k)), np.linspace(-1, 1, n).astype(F32)
    more = {"keep_num_dims": len(rows) > 1, **options}
    inputs = [Tensor((*rows, k)), w, constant(bias)]
    return model("FULLY_CONNECTED", inputs, [Tensor((*rows, n))], "FullyConnected", **more), w, bias


def operators(session: bn.Session) -> list[str]:
    return [node.op.name for node in session.optimised.nodes]


def drawn(*shape: int) -> Array:
    return np.random.default_rng(2).normal(size=shape).astype(F32)


@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3), (40,)])
def test_rows_of_dense_layers_have_ranges_of_their_own(rows: tuple[int, ...]) -> None:
    file, w, bias = dense(rows)
    session, x = bn.compile(file), drawn(*rows, 48) * np.geomspace(1e-3, 1e3, rows[-1], dtype=F32)[:, None]
    assert operators(session) == ["QuantizeRows", "QLinearMatMul"]
    assert_near(session.run(None, {"t0": x})[0], ranged(x, -1) @ real(w).T + bias, 1e-5, "dense")


@pytest.mark.parametrize("rows", [(1,), (40,)])
def test_strict_sessions_compute_with_floats(rows: tuple[int, ...]) -> None:
    file, w, bias = dense(rows)
    session, x = bn.compile(file, numerics="strict"), drawn(*rows, 48)
    assert operators(session) == ["MatMul"]
    assert_near(session.run(None, {"t0": x})[0], x @ real(w).T + bias, 1e-5, "dense")


def test_a_row_does_not_depend_on_others_and_keeps_its_nan() -> None:
    session, x = bn.compile(dense((6,))[0]), drawn(6, 48)
    (whole,) = session.run(None, {"t0": x})
    spoilt = x.copy()
    spoilt[2, 5], spoilt[4, 7] = np.nan, np.inf
    (got,) = session.run(None, {"t0": spoilt})
    np.testing.assert_array_equal(got[[0, 1, 3, 5]], whole[[0, 1, 3, 5]])
    assert np.isnan(got[[2, 4]]).all()


@pytest.mark.parametrize(("shape", "axis"), [((1, 40, 41, 33), 1), ((2, 30000), -1), ((3, 7, 20001), -1)])
def test_threads_share_long_rows(shape: tuple[int, ...], axis: int) -> None:
    op, x = QuantizeRows(axis), drawn(*shape)
    for got, wanted in zip(run_kernel(op, [x], (1, 2, 3)), op.reference(x), strict=True):
        np.testing.assert_array_equal(got, wanted)


def convolution(images: int, w: Tensor, op: str = "CONV_2D", c: int = 8) -> bytes:
    kind = "Conv2D" if op == "CONV_2D" else "DepthwiseConv2D"
    filters = w.shape[0] if op == "CONV_2D" else w.shape[3]
    result = Tensor((images, 7, 6, filters))
    return model(op, [Tensor((images, 7, 6, c)), w], [result], kind, **CONV)


@pytest.mark.parametrize(("kernel", "axis", "product"), [((3, 3), 1, "QLinearConv"), ((1, 1), -1, "QLinearMatMul"),
                                                         ((1, 5), 1, "QLinearConv")])  # fmt: skip
@pytest.mark.parametrize("groups", [1, 2])
def test_an_image_has_one_range_and_pixels_have_theirs(
    kernel: tuple[int, int], axis: int, product: str, groups: int
) -> None:
    """Where a filter sees one pixel, pixels are rows, as in LiteRT; in groups they are not."""
    w = weights((20, *kernel, 8 // groups))
    session, x = bn.compile(convolution(1, w)), drawn(1, 7, 6, 8)
    exact = bn.compile(convolution(1, w), numerics="strict")
    if groups > 1:
        axis, product = 1, "QLinearConv"
    assert operators(session) == ["QuantizeRows", product]
    (wanted,) = exact.run(None, {"t0": ranged(x, axis).astype(F32)})
    assert_near(session.run(None, {"t0": x})[0], wanted, 1e-5, product)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("filters", [(3, 3), (1, 5), (1, 1)])
def test_each_image_has_a_range_of_its_own(filters: tuple[int, int], groups: int) -> None:
    """So it does not depend on the others, and a NaN stays where it is."""
    w, x = weights((20, *filters, 8 // groups)), drawn(3, 7, 6, 8) * np.array([1e-3, 1, 1e3], F32).reshape(-1, 1, 1, 1)
    x[1] = np.abs(x[1])  # with another zero point
    session, single = bn.compile(convolution(3, w)), bn.compile(convolution(1, w))
    (whole,) = session.run(None, {"t0": x})
    for i in range(3):
        np.testing.assert_array_equal(whole[i], single.run(None, {"t0": x[i : i + 1]})[0][0])
    x[1, 2, 3, 4] = np.nan
    (got,) = session.run(None, {"t0": x})
    np.testing.assert_array_equal(got[::2], whole[::2])
    assert np.isnan(got[1]).any()


@pytest.mark.parametrize(("images", "op", "w"), [
    (1, "DEPTHWISE_CONV_2D", weights((1, 3, 3, 8), 3)), (2, "CONV_2D", weights((8, 3, 3, 1))),
])  # fmt: skip
def test_depthwise_layers_stay_exact(images: int, op: str, w: Tensor) -> None:
    """Ours of floats are faster than LiteRT's of bytes."""
    file = convolution(images, w, op)
    sessions = [bn.compile(file, numerics=n) for n in ("default", "strict")]
    assert all(operators(s) == ["Conv"] for s in sessions)
    x = drawn(images, 7, 6, 8)
    first, second = (s.run(None, {"t0": x})[0] for s in sessions)
    assert_near(first, second, 1e-5, "depthwise")


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_batched_products_have_ranges_of_their_own(turned: bool) -> None:
    w = constant(np.random.default_rng(1).integers(-127, 128, (2, 48, 33)).astype(np.int8), scale=[0.01])
    given = constant(w.data.swapaxes(1, 2).copy(), scale=[0.01]) if turned and w.data is not None else w
    session = bn.compile(
        model("BATCH_MATMUL", [Tensor((2, 5, 48)), given], [Tensor((2, 5, 33))], "BatchMatMul", adj_y=turned)
    )
    assert operators(session) == ["QuantizeRows", "QLinearMatMul"]
    x = drawn(2, 5, 48) * np.geomspace(1e-3, 1e3, 5, dtype=F32)[:, None]
    assert_near(session.run(None, {"t0": x})[0], ranged(x, -1) @ real(w), 1e-5, "batched")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_images_of_transposed_convolutions_have_a_range(padding: str) -> None:
    sizes = (14, 12) if padding == "SAME" else (15, 13)
    shape, w = constant(np.array([2, *sizes, 5], np.int32)), weights((5, 3, 3, 8))
    inputs = [shape, w, Tensor((2, 7, 6, 8)), constant(np.linspace(-1, 1, 5).astype(F32))]
    file = model("TRANSPOSE_CONV", inputs, [Tensor((2, *sizes, 5))], "TransposeConv", stride_w=2, stride_h=2,
                 padding=padding)  # fmt: skip
    session, exact = (bn.compile(file, numerics=n) for n in ("default", "strict"))
    assert "QLinearConv" in operators(session)
    assert operators(exact) == ["ConvTranspose"]
    x = drawn(2, 7, 6, 8) * np.array([1e-2, 1e2], F32).reshape(-1, 1, 1, 1)
    (got,), (wanted,) = session.run(None, {"t2": x}), exact.run(None, {"t2": ranged(x, 1).astype(F32)})
    for i in range(2):
        assert_near(got[i], wanted[i], 1e-5, padding)
