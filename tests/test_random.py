"""Random operators: distributions, seeds, and that nothing folds or merges them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.random import Dropout, Multinomial, RandomNormal, RandomUniform
from bolt_numba.ops.pointwise import Sub
from bolt_numba.types import F16, F32, F64, Array

SHAPE = np.array([200, 500])


def same_distribution(x: Array, quantiles: Any) -> None:
    """Deciles of 100,000 samples; a distance of 0.01 in probability is over six standard deviations."""
    for share in np.arange(0.1, 1.0, 0.1):
        assert abs(float((x < quantiles(share)).mean()) - share) < 0.01


@pytest.mark.parametrize("seed", [None, 0.0, -3.5])
def test_uniform(seed: float | None) -> None:
    x = RandomUniform(-2.0, 6.0, F32, seed).reference(SHAPE)
    assert x.min() >= -2 < 6 > x.max()
    same_distribution(x, lambda share: -2 + 8 * share)


@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_normal(dtype: Any) -> None:
    x = RandomNormal(3.0, 2.0, dtype, 1.0).reference(SHAPE)
    assert x.dtype == dtype
    z = (x.astype(np.float64) - 3) / 2
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 1) < 0.02
    assert abs((z**3).mean()) < 0.05
    assert abs((z**4).mean() - 3) < 0.15
    assert abs(np.corrcoef(z[:, :-1].reshape(-1), z[:, 1:].reshape(-1))[0, 1]) < 0.02


def test_multinomial() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [1.0, 1.0, 2.0]])
    y = Multinomial(50000, np.dtype("i8"), 2.0).reference(np.log(weights).astype(np.float32) + 5)
    shares = np.stack([(y == k).mean(1) for k in range(3)], 1)
    np.testing.assert_allclose(shares, weights / weights.sum(1, keepdims=True), atol=0.01)
    certain = np.array([[-np.inf, 0.0, -np.inf]], np.float32)
    assert set(Multinomial(1000).reference(certain).reshape(-1)) == {1}


def test_dropout_scales_what_it_keeps() -> None:
    x = np.ones(tuple(SHAPE), np.float32)
    y, mask = Dropout(3).reference(x, np.array(0.75, np.float32), np.array(True))
    assert abs(mask.mean() - 0.25) < 0.01
    np.testing.assert_array_equal(y, np.where(mask, np.float32(4), np.float32(0)))


def test_seeds() -> None:
    one, two = (RandomNormal(seed=s).reference(SHAPE) for s in (1.0, 2.0))
    np.testing.assert_array_equal(one, RandomNormal(seed=1.0).reference(SHAPE))
    assert not np.array_equal(one, two)
    assert not np.array_equal(*(RandomNormal().reference(SHAPE) for _ in range(2)))


def test_two_equal_nodes_stay_two_and_every_run_draws_anew() -> None:
    graph = Graph("noise")
    b = Builder(graph)
    first, second = (b(RandomUniform(), np.array([4, 8])) for _ in range(2))
    graph.add_output(b(Sub(), first, second), "difference")
    session = bn.compile(graph, threads=1)
    a, c = session.run(None, {})[0].copy(), session.run(None, {})[0]
    assert np.abs(a).max() > 0
    assert not np.array_equal(a, c)
