"""Reductions and positions of extremes where the cases of `tests.cases.reduce` are too tame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.arrays.reduce import CumProd
from bolt_numba.types import F32, F64
from tests.harness import run_kernel
from tests.lower_isa import run_on


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


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_lower_instruction_sets(isa: str) -> None:
    run_on(isa, f"{__file__}::{test_positions_among_equals_zeros_and_nan.__name__}")
