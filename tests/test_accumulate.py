"""Running extremes, orders and beams against what they mean, element by element."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import DataError, ShapeError
from bolt_numba.ops.arrays.accumulate import CumMax, CumMin, GatherTree, Inverse, LogCumSumExp, SearchSorted
from bolt_numba.types import F32, Array, type_of

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("op", "better"), [(CumMax, np.greater_equal), (CumMin, np.less_equal)])
@pytest.mark.parametrize("nans", [False, True])
def test_the_last_of_equals_is_where_the_extreme_is(op: Any, better: Any, nans: bool) -> None:
    x = RNG.integers(-3, 4, (3, 9)).astype(F32)
    if nans:
        x[1, [3, 6]] = np.nan
    values, places = op(-1).reference(x)
    for row, got, where in zip(x, values, places, strict=True):
        best = 0
        for i, v in enumerate(row):
            if np.isnan(v) or (not np.isnan(row[best]) and better(v, row[best])):
                best = i
            assert where[i] == best
            np.testing.assert_array_equal(got[i], row[best])


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_running_logarithms_do_not_overflow(exclusive: bool, reverse: bool) -> None:
    x = np.array([[-800.0, -700.0, 1.0, 900.0, 899.0]])
    got = LogCumSumExp(1, exclusive, reverse).reference(x)[0]
    row = x[0, ::-1] if reverse else x[0]
    for i in range(5):
        seen = row[: i if exclusive else i + 1]
        wanted = -np.inf if not seen.size else seen.max() + np.log(np.sum(np.exp(seen - seen.max())))
        np.testing.assert_allclose(got[4 - i if reverse else i], wanted, rtol=1e-12)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
def test_places_in_order_are_those_of_bisection(right: bool, rank: int) -> None:
    rows: Array = np.sort(RNG.integers(0, 6, (2, 7)), axis=1)
    values = RNG.integers(-1, 8, (2, 5))
    find = bisect.bisect_right if right else bisect.bisect_left
    got = SearchSorted(right).reference(rows if rank == 2 else rows[0], values)
    wanted = [[find(list(rows[i if rank == 2 else 0]), v) for v in values[i]] for i in range(2)]
    np.testing.assert_array_equal(got, wanted)


def test_beams_are_followed_from_their_end() -> None:
    ids = np.arange(24).reshape(4, 2, 3)
    parents = RNG.integers(0, 3, (4, 2, 3))
    got = GatherTree().reference(ids, parents)
    for n in range(2):
        for beam in range(3):
            at = beam
            for step in range(3, -1, -1):
                assert got[step, n, beam] == ids[step, n, at]
                at = parents[step, n, at]


def test_a_parent_outside_of_the_beams_is_refused() -> None:
    with pytest.raises(DataError, match=r"GatherTree: parents\[.*\]: got 3"):
        GatherTree().reference(np.zeros((2, 1, 3), np.int64), np.full((2, 1, 3), 3))


def test_a_matrix_times_its_inverse_is_the_identity() -> None:
    x = RNG.standard_normal((3, 4, 4)) + 4 * np.eye(4)
    np.testing.assert_allclose(x @ Inverse().reference(x), np.broadcast_to(np.eye(4), x.shape), atol=1e-12)


def test_a_singular_matrix_and_one_that_is_not_square_are_refused() -> None:
    with pytest.raises(DataError, match=r"Inverse: x: got a singular matrix"):
        Inverse().reference(np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"Inverse: shape of x: got .*, wanted square matrices"):
        Inverse().infer(type_of(np.zeros((2, 3), F32)))


def test_rows_and_values_share_their_leading_axes() -> None:
    with pytest.raises(ShapeError, match="values"):
        SearchSorted().infer(type_of(np.zeros((2, 3), F32)), type_of(np.zeros((3, 3), F32)))
