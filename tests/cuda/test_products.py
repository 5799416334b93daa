"""Products on the simulated GPU: data are whole numbers, so that every order of sums gives the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cuda.products import matmul
from bolt_numba.kernels.cuda.products.choose import choose
from bolt_numba.kernels.cuda.products.simt import SIMT_TILES
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES
from bolt_numba.ops.layers.products.integer_products import MatMulInteger, QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.pointwise import Clip, LeakyRelu, Relu, Sigmoid
from bolt_numba.types import BF16, F16, F32, I8, U8, type_of
from tests.cuda.harness import counted, expect

few = settings(max_examples=10, deadline=None, derandomize=True)


def whole(seed: int, shape: Any, dtype: Any = F32, most: int = 2) -> Any:
    """Small whole numbers."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(dtype)


def pair(seed: int, m: int, n: int, k: int, batches: Any, op: MatMul, dtype: Any = F32) -> list[Any]:
    """Operands of a product; batches: leading dimensions of both."""
    a, b = (k, m) if op.trans_a else (m, k), (n, k) if op.trans_b else (k, n)
    return [whole(seed, (*batches[0], *a), dtype), whole(seed + 1, (*batches[1], *b), dtype)]


BATCHES = [((), ()), ((2,), ()), ((3,), (3,)), ((2, 1), (2,)), ((1,), (2,)), ((2, 2), (1, 2))]


@few
@given(
    st.integers(5, 60), st.integers(1, 60), st.integers(0, 40), st.sampled_from(BATCHES), st.booleans(), st.booleans(),
    st.sampled_from([None, Relu(), Clip(-3.0, 5.0)]), st.integers(0, 3),
)  # fmt: skip
def test_f32(m: int, n: int, k: int, batches: Any, trans_a: bool, trans_b: bool, activation: Any, extra: int) -> None:
    plain = MatMul(trans_a, trans_b)
    arrays = pair(m, m, n, k, batches, plain)
    shape = plain.infer(*map(type_of, arrays)).dims
    tail = [whole(3, (n,)) if extra % 2 else None, whole(4, shape) if extra > 1 else None]
    op = MatMul(trans_a, trans_b, activation=activation, residual=extra > 1, alpha=0.5)
    expect(op, *arrays, *tail, rtol=0)


HALVES = [(F16, False, False, True), (BF16, True, True, True), (F16, True, False, False), (BF16, False, True, False)]
"""Dtype, what lies turned, and whether rows begin at multiples of 16 bytes; few, as each is a kernel to compile."""


@few
@given(
    st.integers(5, 63), st.integers(1, 5), st.integers(0, 9), st.sampled_from(BATCHES), st.sampled_from(HALVES),
    st.booleans(),
)  # fmt: skip
def test_halves(m: int, n: int, k: int, batches: Any, form: Any, constant: bool) -> None:
    dtype, trans_a, trans_b, even = form
    op = MatMul(trans_a, trans_b, alpha=0.5)
    m, n, k = (8 * (m // 8 + 1), 16 * n, 8 * k) if even else (m, 13 * n, 5 * k)
    arrays = pair(m, m, n, k, batches, op, dtype)
    expect(op, *arrays, whole(3, (n,), dtype), constants=(1,) if constant else (), rtol=0)


@pytest.mark.parametrize("tile", range(len(TENSOR_TILES)))
def test_tiles_of_halves(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "TENSOR_TILES", TENSOR_TILES[tile : tile + 1])
    m, n = TENSOR_TILES[tile].m + 8, TENSOR_TILES[tile].n + 8
    op = MatMul(residual=True, activation=Relu())
    arrays = whole(0, (m, 72), F16), whole(1, (72, n), F16), whole(2, (n,), F16), whole(3, (m, n), F16)
    expect(op, *arrays, rtol=0)


def test_parts_of_sums_of_halves_are_added_in_f32() -> None:
    expect(MatMul(), whole(0, (8, 1100), F16), whole(1, (1100, 40), F16), whole(2, (40,), F16), rtol=0)


@pytest.mark.parametrize(("m", "n", "k", "dtype"), [(1, 40, 1104, F16), (3, 13, 37, F32)])
@pytest.mark.parametrize("trans_b", [False, True])
def test_few_rows(m: int, n: int, k: int, dtype: Any, trans_b: bool) -> None:
    op = MatMul(trans_b=trans_b)
    batch = ((2,), (2,)) if m > 1 else ((), ())
    expect(op, *pair(1, m, n, k, batch, op, dtype), whole(3, (n,), dtype), rtol=0, maker="matmul_few")


@pytest.mark.parametrize(("trans_b", "constants"), [(True, ()), (False, (1,))])
def test_tf32_on_request(trans_b: bool, constants: Any) -> None:
    op = MatMul(trans_b=trans_b, activation=Relu())
    a, b = np.random.default_rng(0).standard_normal((40, 37)).astype(F32), whole(1, (50, 37) if trans_b else (37, 50))
    expect(op, a, b, constants=constants, maker="matmul_tf32", numerics="fast", rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("shapes", [((7,), (7, 5)), ((5, 7), (7,)), ((7,), (7,)), ((2, 5, 7), (7,))])
def test_vectors_are_rows_and_columns(shapes: Any) -> None:
    expect(MatMul(), whole(0, shapes[0]), whole(1, shapes[1]), rtol=0)


def test_sums_in_parts_are_added_in_order() -> None:
    op = MatMul(residual=True, activation=Relu())
    _, splits = choose(SIMT_TILES, 33, 30, 1100, 1, 128)
    assert splits > 1
    expect(op, whole(0, (33, 1100)), whole(1, (1100, 30)), whole(2, (30,)), whole(3, (33, 30)), rtol=0)


@pytest.mark.parametrize(("size", "wanted"), [(4096, 128), (512, 64), (64, 32)])
def test_tiles_grow_with_products(size: int, wanted: int) -> None:
    assert choose(SIMT_TILES, size, size, size, 1, 128)[0].m == wanted


@pytest.mark.parametrize(("activation", "dtype"), [(LeakyRelu(alpha=0.25), F32), (Sigmoid(), F16)])
def test_other_activations_are_generated(activation: Any, dtype: Any) -> None:
    expect(MatMul(activation=activation), whole(0, (9, 8), dtype), whole(1, (8, 10), dtype), rtol=2e-3, atol=1e-6)


def test_what_is_not_finite_stays() -> None:
    a = np.float32([[np.inf, 1], [np.nan, 2], [-np.inf, 0]])
    expect(MatMul(activation=Relu()), a, np.float32([[1, 2, 3], [4, 5, 6]]))


# --------------------------------------------------------------------------------------------------------------- bytes


def some_bytes(seed: int, shape: Any, dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize(("left", "right", "batch"), [(U8, I8, ()), (I8, U8, ()), (U8, U8, (2,)), (I8, I8, (2,))])
def test_sums_of_bytes(left: Any, right: Any, batch: Any) -> None:
    a, b = some_bytes(0, (*batch, 37, 35), left), some_bytes(1, (*batch, 35, 21), right)
    zeros = some_bytes(2, (), left), some_bytes(3, () if batch else (21,), right)
    expect(MatMulInteger(), a, b, *zeros, constants=() if batch else (1,))


@pytest.mark.parametrize("form", ["plain", "bytes and bytes", "f32"])
def test_quantised_products(form: str) -> None:
    a, b = some_bytes(0, (9, 64), U8), some_bytes(1, (64, 12), I8)
    scale = np.random.default_rng(2).uniform(0.01, 0.02, (12,)).astype(F32)
    left, right = (scale[0], some_bytes(3, (), U8)), (scale, some_bytes(4, (12,), I8))
    y = (np.float32(0.3), np.uint8(7)) if form != "f32" else (None, None)
    if form == "plain":
        expect(QLinearMatMul(), a, *left, b, *right, *y, constants=(3, 4, 5))
    elif form == "f32":
        rest = whole(5, (9, 12))
        expect(QLinearMatMul(residual=True), a, *left, b, *right, *y, scale, rest, constants=(3,))
    else:
        rest = whole(6, (12,), np.int32, 900), some_bytes(7, (9, 12), I8), scale[1], np.int8(-3)
        op = QLinearMatMul(residual=True, activation=Relu())
        expect(op, a, *left, b, *right, *y, *rest, constants=(3, 4, 5, 8))


@pytest.mark.parametrize(("bits", "dtype", "rows"), [(4, F32, 3), (8, F16, 9)])
def test_weights_of_few_bits(bits: int, dtype: Any, rows: int) -> None:
    codes, scales = some_bytes(0, (20, 3, 16 * bits // 8), U8), whole(1, (20, 3)) * np.float32(0.25)
    zeros = whole(2, (20, 3), F32, 9) if bits == 8 else None
    x, bias = whole(3, (rows, 40), dtype), whole(4, (20,), dtype)
    op = MatMulNBits(bits=bits, block=16)
    expect(op, x, codes, scales, zeros, bias, constants=(1, 2, 3), rtol=1e-3 if dtype == F16 else 1e-6)


# ------------------------------------------------------------------------------------------------------------- budgets


@pytest.mark.parametrize(("dtype", "trans_b"), [(F16, False), (F32, True)])
def test_tiles_meet_no_bank_twice_and_move_whole_sectors(
    dtype: Any, trans_b: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "TENSOR_TILES", TENSOR_TILES[1:2])
    monkeypatch.setattr(matmul, "SIMT_TILES", SIMT_TILES[:1])
    op = MatMul(trans_b=trans_b)
    with counted() as report:
        expect(op, *pair(0, 128, 128, 64, ((), ()), op, dtype), rtol=0)
    shared = report.total()
    assert shared.wavefronts == shared.ideal
    assert report.efficiency() == 1
    if dtype == F16:
        assert report.executed("mma") == 128 * 128 * 64 // (16 * 8 * 16)
    else:
        assert report.executed() < 1.7 * report.executed("fma")


@pytest.mark.parametrize(("dtype", "trans_b"), [(np.float64, False), (np.int64, True), (np.uint32, False)])
def test_wide_numbers(dtype: Any, trans_b: bool) -> None:
    op = MatMul(trans_b=trans_b)
    a, b = pair(1, 5, 7, 9, ((2,), (2,)), op, np.int64)
    expect(op, a.astype(dtype), b.astype(dtype), whole(3, (7,), np.int64).astype(dtype), rtol=1e-12)
