"""Reductions, softmax and normalisations on the simulated GPU, against their references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.registry import KERNELS, Context, Step, Types, select
from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.layers import norm
from bolt_numba.types import BF16, F16, F32, F64, Array, TensorType, type_of
from tests.cuda.harness import counted, expect, run_op
from tests.cuda.property import taken_cases
from tests.test_pointwise import integers, reals

TOLERANCE = {F32: 2e-5, F16: 2e-3, BF16: 1.6e-2}
FOLDS = (ops.ReduceL2, ops.ReduceSum, ops.ReduceMean, ops.ReduceProd, ops.ReduceL1, ops.ReduceSumSquare,
         ops.ReduceLogSum, ops.ReduceLogSumExp, ops.ReduceMin, ops.ReduceMax)  # fmt: skip
"""`make test` runs the first and the last one, which load, join and finish in other ways."""


def axes(*given: int) -> Array:
    return np.array(given, np.int64)


@pytest.mark.parametrize("op", FOLDS, ids=lambda op: op.__name__)
def test_rows_columns_and_several_axes_are_folded(op: Any) -> None:
    x = reals(3, 4, 37, low=0.1, high=2)
    for along in ((2,), (1,), (0, 2), ()) if op in (ops.ReduceSum, ops.ReduceMax) else ((2,), (0, 2)):
        expect(op(keepdims=len(along) == 1), x, axes(*along), constants=(1,), rtol=1e-5)


def special(*shape: int) -> Array:
    """Lines with NaN, infinities, zeros of both signs, and nothing but -inf."""
    x = reals(*shape)
    lines = x.reshape(-1, shape[-1])
    lines[0, 3], lines[1, 2], lines[2, 1], lines[3] = np.nan, np.inf, -np.inf, -np.inf
    lines[4], lines[4, 5], lines[5] = 0.0, -0.0, lines[5] * 300
    return x


@pytest.mark.parametrize("op", [ops.ReduceMax, ops.ReduceMin, ops.ReduceSum, ops.ReduceLogSumExp])
def test_lines_that_are_not_finite_are_folded(op: Any) -> None:
    x = special(7, 40)
    expect(op(), x, axes(1), constants=(1,))
    expect(op(), np.ascontiguousarray(x.T), axes(0), constants=(1,))


@pytest.mark.parametrize(
    ("dtype", "others"),
    [
        (np.int8, [ops.ReduceMean, ops.ReduceSumSquare]), (np.uint8, [ops.ReduceMax]), (np.int32, [ops.ReduceMin]),
        (np.uint64, [ops.ReduceL1, ops.ReduceMax]), (np.int64, [ops.ReduceMin]),
        (np.uint32, [ops.ReduceMean, ops.ReduceL2]), (np.int16, [ops.ReduceMean, ops.ReduceL2]),
        (F64, [ops.ReduceMean, ops.ReduceMin, ops.ReduceSumSquare]),
    ],
    ids=str,
)  # fmt: skip
def test_integers_and_doubles_are_folded(dtype: Any, others: Any) -> None:
    x = integers(dtype, 3, 20)
    for op in (ops.ReduceSum, *others):
        expect(op(), x, axes(1), constants=(1,), rtol=1e-12)
    expect(ops.ReduceMax(), x > 2, axes(0), constants=(1,))


def test_few_long_lines_are_folded_in_parts() -> None:
    expect(ops.ReduceMean(), reals(1, 20000), axes(1), constants=(1,))
    expect(ops.ReduceSum(), reals(300, 33).astype(F16), axes(0), constants=(1,), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("dtype", "folds"),
    [
        (np.int32, [ops.ReduceL2, ops.ReduceMax]),
        (np.uint32, [ops.ReduceMean, ops.ReduceL2]),
        (np.uint64, [ops.ReduceMin, ops.ReduceSumSquare]),
    ],
    ids=str,
)
def test_integers_are_folded_in_parts(dtype: Any, folds: Any) -> None:
    x = np.arange(512).reshape(128, 4).astype(dtype)
    for op in folds:
        expect(op(), x, axes(0), constants=(1,))


def test_sums_behind_means_and_roots_are_longer_than_the_integers() -> None:
    """Those of 64 bits want more than that, which the host has."""
    long = np.array([[2**31 - 1, 2**31 - 3, -(2**31)], [46340, 46341, 3], [-7, 2, 2]], np.int32)
    for op in (ops.ReduceMean, ops.ReduceL2):
        expect(op(), long, axes(1), constants=(1,))
        types = [TensorType(np.dtype(np.int64), (3, 3)), type_of(axes(1))]
        assert select(op(), types, device="cuda") is None


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_axes_are_folded(data: st.DataObject) -> None:
    dims = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 9, 17]), min_size=1, max_size=4)))
    along = [i for i in range(len(dims)) if data.draw(st.booleans())]
    x = integers(data.draw(st.sampled_from([F32, F16, BF16])), *dims)
    expect(ops.ReduceSum(keepdims=data.draw(st.booleans())), x, axes(*along), constants=(1,), rtol=1e-2)


@pytest.mark.parametrize("op", [ops.Softmax, ops.LogSoftmax])
def test_softmax_of_rows_and_columns(op: Any) -> None:
    x = special(7, 40)
    expect(op(), x)
    expect(op(axis=0), np.ascontiguousarray(x.T))
    for n, dtype in ((33, F16), (600, F32), (9000, F32), (9001, BF16)):
        expect(op(), (4 * reals(2, n)).astype(dtype), rtol=TOLERANCE[np.dtype(dtype)], atol=1e-5)


@pytest.mark.parametrize("dtype", [F32, F16, np.int32, np.uint64, F64], ids=str)
def test_positions_of_extremes(dtype: Any) -> None:
    x = integers(dtype, 3, 4, 29)
    first, second = (ops.ArgMax, ops.ArgMin) if np.dtype(dtype).itemsize < 8 else (ops.ArgMin, ops.ArgMax)
    expect(first(2), x)
    expect(second(1, keepdims=False, select_last_index=True), x)


def test_the_first_of_nan_is_the_extreme() -> None:
    x = special(7, 40)
    x[0, 9] = np.nan
    for op in (ops.ArgMax(1), ops.ArgMin(1), ops.ArgMax(1, select_last_index=True), ops.Hardmax()):
        expect(op, x)
    expect(ops.Hardmax(axis=0), x.astype(F16))


@pytest.mark.parametrize("n", [24, 601, 9001])
def test_rows_are_normalised(n: int) -> None:
    x, scale, bias = reals(2, 3, n) + np.float32(30), reals(n), reals(n)
    expect(norm.LayerNormalization(), x, scale, bias, rtol=1e-4, atol=2e-5)
    expect(norm.LayerNormalization(stats=True), x, scale, rtol=1e-4, atol=2e-5)
    expect(norm.RMSNormalization(), x, scale)
    x, scale, bias = (a.astype(F16) for a in (reals(5, n), scale, bias))
    expect(norm.LayerNormalization(), x, scale, bias, rtol=2e-3, atol=2e-3)
    expect(norm.RMSNormalization(), x, scale, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("numerics", "strict"), ("precision", "bf16")])
def test_a_fault_of_one_level_or_precision_is_found(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, arrays = norm.LayerNormalization(), [reals(3, 40), reals(40), reals(40)]
    expect(op, *arrays, rtol=1e-4, atol=2e-5)
    (entry,) = KERNELS[norm.LayerNormalization, "cuda"]

    def make(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
        return entry.make(op, ins[:2] if getattr(context, name) == value else ins, outs, context)

    monkeypatch.setitem(KERNELS, (norm.LayerNormalization, "cuda"), [replace(entry, make=make)])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        expect(op, *arrays, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_channels_are_normalised(layout: str, dtype: Any) -> None:
    x = (reals(2, 6, 5, 7) if layout == "NCHW" else reals(2, 5, 7, 6)).astype(dtype)
    scale, bias, mean, var = (reals(6, low=0.5, high=2).astype(dtype) for _ in range(4))
    given = {"rtol": TOLERANCE[np.dtype(dtype)], "atol": TOLERANCE[np.dtype(dtype)]}
    expect(norm.BatchNormalization(layout=layout), x, scale, bias, mean, var, **given)
    expect(norm.InstanceNormalization(layout=layout), x, scale, bias, **given)
    expect(norm.GroupNormalization(num_groups=3, layout=layout), x, scale, bias, **given)
    for size in (3, 4):
        expect(norm.LRN(size, alpha=0.1, layout=layout), x, **given)


def test_lines_are_divided_by_their_norm() -> None:
    x = special(7, 40)
    expect(norm.LpNormalization(), x)
    expect(norm.LpNormalization(axis=0, p=1), x)
    expect(norm.LpNormalization(p=1), x.astype(F16), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("number", [1e30, 2e19, -1e38])
def test_squares_beyond_the_range(number: float) -> None:
    """A finite number over the root of an infinite sum is 0, in rows of registers, long rows, groups and channels."""
    for n in (9001, 20):
        x = np.random.default_rng(n).integers(-3, 4, (3, n)).astype(np.float32)
        x[1, 2] = number
        ones = np.ones(n, np.float32)
        expect(norm.LayerNormalization(), x, ones, rtol=1e-4, atol=2e-5)
        expect(norm.RMSNormalization(), x, ones)
    image = np.tile(x, (1, 3)).reshape(1, 9, 20)
    ones = np.ones(9, np.float32)
    expect(norm.GroupNormalization(3), image, ones, ones, rtol=1e-4, atol=2e-5)
    expect(norm.InstanceNormalization(), image, ones, ones, rtol=1e-4, atol=2e-5)
    expect(norm.LRN(3), image)
    expect(norm.LpNormalization(p=1), x)


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_running_sums(exclusive: bool, reverse: bool) -> None:
    rows, columns = axes(2).reshape(()), axes(1).reshape(())
    expect(ops.CumSum(exclusive, reverse), reals(2, 3, 40), rows, constants=(1,), atol=1e-5)
    expect(ops.CumSum(exclusive, reverse), integers(np.int64, 2, 9, 5), columns, constants=(1,))
    expect(ops.CumProd(exclusive, reverse), reals(2, 3, 12), rows, constants=(1,))


def test_running_sums_of_several_parts_and_of_bytes() -> None:
    expect(ops.CumSum(), reals(2, 700).astype(F16), axes(1), constants=(1,), rtol=2e-3, atol=2e-2)
    expect(ops.CumSum(), integers(np.uint8, 3, 300), axes(1), constants=(1,))


def test_memory_is_read_in_whole_sectors() -> None:
    """By loads of 16 bytes, once; no bank of shared memory is asked twice at a time."""
    x = reals(8, 1024)
    for op, arrays, reads in (
        (ops.ReduceSum(), (x, axes(1)), 1), (ops.ReduceMax(), (x, axes(0)), 1), (ops.Softmax(), (x,), 1),
        (ops.Softmax(), (x.astype(F16),), 1), (ops.Softmax(axis=0), (x,), 2), (ops.CumSum(), (x, axes(1)), 1),
        (norm.LayerNormalization(), (x[:, :512], x[0, :512], x[1, :512]), 3),
    ):  # fmt: skip
        with counted() as report:
            run_op(op, *arrays, constants=(1,) if arrays[-1].dtype == np.int64 else ())
        found, shared = report.total("ld.global"), report.total("ld.shared", "st.shared")
        assert report.efficiency("ld.global") > 0.98, op
        assert found.nbytes <= 1.02 * reads * arrays[0].nbytes, op
        assert shared.worst <= 1, op


def test_nothing_is_reduced_to_what_the_reference_gives() -> None:
    for op, dtype in (
        (ops.ReduceSum, F32),
        (ops.ReduceMax, np.int32),
        (ops.ReduceMean, F16),
        (ops.ReduceLogSumExp, F32),
    ):
        expect(op(), np.zeros((3, 0), dtype), axes(1), constants=(1,))


@pytest.mark.parametrize("op", [norm.LayerNormalization, norm.RMSNormalization, norm.GroupNormalization, ops.Softmax])
def test_drawn_cases(op: Any) -> None:
    assert taken_cases(op, F32, 4, rtol=2e-4, atol=1e-5) >= 3
