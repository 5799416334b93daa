"""Reductions and positions of extremes where the cases of `tests.cases.reduce` are too tame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.arrays.reduce import CumProd
from bolt_numba.ops.dtypes import INTS
from bolt_numba.types import F16, F32, F64, I32, I64, U64, AnyDType, Array, dtype_name
from tests.harness import plan, run_kernel


@pytest.mark.parametrize("op", [ops.ArgMax, ops.ArgMin])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_positions_among_equals_zeros_and_nan(op: Any, last: bool, dtype: Any) -> None:
    for n in (1, 2, 3, 4, 5, 15, 16, 17, 40, 48, 49, 100):
        rng = np.random.default_rng(n)
        x = rng.integers(-3, 3, (50, n)).astype(dtype)
        x[x == 0] = np.where(rng.random(int((x == 0).sum())) < 0.5, -0.0, 0.0)
        x[3, n // 2] = x[3, -1] = np.nan
        x[4], x[5], x[6] = -np.inf, np.inf, np.nan
        made = op(1, False, last)
        np.testing.assert_array_equal(run_kernel(made, (x,))[0], made.reference(x))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (2,), (0, 1, 2)])
def test_log_sum_exp_of_infinities_and_nan(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(0, 30, (3, 50, 37)).astype(np.float32)
    x[0, 1, 2], x[1, 3, 4], x[2, 5], x[:, 6, 7] = np.inf, np.nan, -np.inf, -np.inf
    op = ops.ReduceLogSumExp()
    wanted = op.reference(x.astype(np.float64), np.array(axes))
    np.testing.assert_allclose(run_kernel(op, (x, np.array(axes)))[0], wanted, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f8"])
@pytest.mark.parametrize("op", [ops.ReduceMean, ops.ReduceSum, ops.ReduceMax, ops.ReduceProd])
def test_wide_columns_and_two_groups_of_axes(dtype: str, op: Any) -> None:
    x = np.random.default_rng(2).integers(0, 3, (3, 4, 5, 1030)).astype(dtype)
    for axes in ((1,), (0, 2), (3,)):
        wanted = op().reference(x, np.array(axes))
        np.testing.assert_allclose(run_kernel(op(), (x, np.array(axes)))[0], wanted, rtol=1e-12)


@pytest.mark.parametrize("op", [ops.ReduceMax, ops.ReduceMin])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_extremes_keep_nan_wherever_it_is(op: Any, dtype: Any) -> None:
    for n in (1, 127, 128, 129, 300, 513):
        x = np.random.default_rng(n).normal(size=(n + 2, n)).astype(dtype)
        x[np.arange(n), np.arange(n)] = np.nan
        x[n] = np.inf
        np.testing.assert_array_equal(run_kernel(op(), (x, np.array(1)))[0], op().reference(x, np.array(1)))


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i4", "u8"])
@pytest.mark.parametrize("op", [ops.CumSum, CumProd])
def test_running_lines_are_summed_in_order(dtype: str, op: Any) -> None:
    for shape, axis in (
        ((11, 37), 1),
        ((3, 8, 21), 2),
        ((1, 50), 1),
        ((37, 5), 0),
        ((3, 20, 8), 1),
        ((20, 9), 0),
        ((9, 3), 0),
        ((2, 9, 600), 1),
    ):
        low = 1 if dtype[0] == "f" else 0
        x = (np.random.default_rng(5).random(shape) + low).astype(dtype) if low else (
            np.random.default_rng(5).integers(0, 100, shape).astype(dtype))  # fmt: skip
        for exclusive in (False, True):
            for reverse in (False, True):
                made = op(exclusive, reverse)
                inputs = (x, np.array(axis))
                np.testing.assert_array_equal(run_kernel(made, inputs)[0], made.reference(*inputs))


def test_the_mean_of_one_integer_is_the_integer() -> None:
    x = np.array([[2**62 + 1], [-(2**63)], [2**53 + 1]])
    for made, axes in ((ops.ReduceMean(noop_with_empty_axes=True), ()), (ops.ReduceMean(), (np.array([1]),))):
        np.testing.assert_array_equal(run_kernel(made, [x, *axes])[0], x)


SUMMED: dict[Any, Any] = {
    ops.ReduceSum: sum,
    ops.ReduceMean: lambda row: abs(sum(row)) // len(row) * (1 if sum(row) > 0 else -1),
    ops.ReduceL1: lambda row: sum(map(abs, row)),
    ops.ReduceL2: lambda row: math.isqrt(sum(v * v for v in row)),
    ops.ReduceSumSquare: lambda row: sum(v * v for v in row),
    ops.ReduceProd: math.prod,
    ops.ReduceLogSum: lambda row: math.trunc(math.log(sum(row))) if sum(row) > 0 else None,
    ops.ReduceLogSumExp: lambda row: math.trunc(max(row) + math.log(sum(math.exp(v - max(row)) for v in row)))
    if max(map(abs, row)) < 2**40 else None,
    ops.ReduceMax: max,
    ops.ReduceMin: min,
}  # fmt: skip
"""What reductions of integers give of Python's, which have no end; None: nothing that is worth a comparison."""


def rows_of(dtype: AnyDType) -> list[list[int]]:
    """Lines whose sums, squares and products are far beyond the dtype, whatever their mean or root is."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    root = math.isqrt(high)
    rng = np.random.default_rng(0)
    rows = [
        [high] * 3, [high // 2] * 3, [low] * 4, [high, high, low], [root] * 3, [root + 1] * 3,
        [100], [high], [low], [0, 0], [high // 3 * 2, high // 5, 7], [low + 1, 2, low], [1, -1 if low else 1, 0],
        [3 * (root // 5), 4 * (root // 5)],
    ]  # fmt: skip
    rows += [rng.integers(low, high, n, dtype).tolist() for n in (2, 9, 33, 150)]
    rows += [rng.integers(low // 16, high // 16, n, dtype).tolist() for n in (5, 64, 257)]
    if dtype.itemsize == 8:
        odd = 100_000_001
        rows += [[3 * odd, 4 * odd], [2**33] * 3, [2**62 + 1] * 3, [odd - 1, odd], [2**53 + 1], [2**31 * odd] * 2]
    return rows


def same(op: Any, got: Array, wanted: Sequence[int], low_bits: Array) -> bool:
    """Exactly, but for roots beyond what f64 holds."""
    near = [op is ops.ReduceL2 and w > 2**53 and math.isclose(g, w, rel_tol=1e-13)
            for g, w in zip(got.reshape(-1).tolist(), wanted, strict=True)]  # fmt: skip
    return bool(np.all((got.reshape(-1) == low_bits) | near))


@pytest.mark.parametrize("dtype", INTS, ids=dtype_name)
@pytest.mark.parametrize("op", SUMMED, ids=lambda op: op.name)
def test_integers_are_reduced_exactly(op: Any, dtype: AnyDType) -> None:
    """Whatever comes between: a result that fits is right, and of others the low bits where they are sums."""
    for row in rows_of(dtype):
        wanted, limits = SUMMED[op](row), np.iinfo(dtype)
        fits = wanted is not None and limits.min <= wanted <= limits.max
        if not fits and (wanted is None or op in (ops.ReduceL2, ops.ReduceLogSum, ops.ReduceLogSumExp)):
            continue
        low_bits = np.array(wanted % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)
        x = np.array(row, dtype)
        for given in (x, np.repeat(x[:, None], 3, 1)):
            made, operands = op(keepdims=False), (given, np.array([0]))
            results = [made.reference(*operands), *(() if plan(made, operands) is None else run_kernel(made, operands))]
            for got in results:
                assert same(op, got, [wanted] * got.size, low_bits), row


@pytest.mark.parametrize("op", [ops.ReduceMean, ops.ReduceL2])
@pytest.mark.parametrize("dtype", [I32, I64, U64], ids=dtype_name)
def test_long_sums_of_two_groups_of_axes(op: Any, dtype: AnyDType) -> None:
    """Several passes, wide columns, and threads that share them."""
    high = int(np.iinfo(dtype).max)
    x = np.random.default_rng(1).integers(high // 1600, high // 800, (3, 5, 7, 600), dtype)
    for axes in ([0, 2], [1], [3], [1, 3], [0, 1, 2, 3]):
        made, operands = op(keepdims=False), (x, np.array(axes))
        moved = np.moveaxis(x, axes, range(-len(axes), 0)).reshape(-1, math.prod(x.shape[a] for a in axes))
        wanted = [SUMMED[op](row) for row in moved.tolist()]
        for got in (made.reference(*operands), run_kernel(made, operands)[0]):
            assert same(op, got, wanted, np.array(wanted, dtype))


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=dtype_name)
def test_a_determinant_of_nan_is_nan(dtype: Any) -> None:
    """Beside zeros, too, as onnxruntime has it."""
    x = np.zeros((6, 2, 2), dtype)
    x.reshape(6, 4)[range(4), range(4)] = np.nan
    x[5] = [[2, 1], [1, 3]]
    np.testing.assert_allclose(ops.Det().reference(x), np.array([np.nan] * 4 + [0, 5], dtype), rtol=1e-6)
