"""Recurrent layers as threads run them: shares of one step are taken by whoever comes first, the bits stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN, Recurrent
from bolt_numba.types import F32, NUMERICS, Array, TensorType

LAYERS = (LSTM(), GRU(), GRU(linear_before_reset=True), RNN(), LSTM(direction="bidirectional"))
HIDDEN, STEPS = 272, 60


def run(op: Recurrent, threads: int) -> Array:
    rng, d, rows = np.random.default_rng(1), op.directions, op.gates * HIDDEN
    graph = Graph()
    x = graph.add_input("x", TensorType(F32, (STEPS, 1, 40)))
    w, r = ((rng.standard_normal((d, rows, k)) / 16).astype(F32) for k in (40, HIDDEN))
    bias = rng.standard_normal((d, 2 * rows)).astype(F32)
    b = Builder(graph)
    graph.add_output(b.node(op, x, b.const(w), b.const(r), b.const(bias)).outputs[0], "y")
    session = bn.Session(graph, threads=threads)
    given = rng.standard_normal((STEPS, 1, 40)).astype(F32)
    first: Array = session.run(None, {"x": given})[0]
    for _ in range(20):
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], first)
    return first


@pytest.mark.parametrize("op", LAYERS, ids=str)
def test_threads_share_steps_and_keep_the_bits(op: Recurrent, processors: Callable[[int], Any]) -> None:
    alone = run(op, 1)
    for threads, there in ((2, 2), (3, 3), (4, 3)):
        processors(there)
        np.testing.assert_array_equal(run(op, threads), alone)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("op", [*LAYERS, LSTM(layout=1)], ids=lambda op: f"{op.name}{op.directions}{op.layout}")
@pytest.mark.parametrize("hidden", [1, 17])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (5, 1), (1, 3), (40, 2)])
@pytest.mark.parametrize("bias", [True, False])
def test_sessions_of_every_level(op: Any, numerics: str, hidden: int, steps: int, batch: int, bias: bool) -> None:
    """Whether the products of x are a step of their own, and add a bias first or last."""
    rng, d, rows = np.random.default_rng(0), op.directions, op.gates * hidden
    dims = (batch, steps, 6) if op.layout else (steps, batch, 6)
    shapes = dims, (d, rows, 6), (d, rows, hidden), *([(d, 2 * rows)] if bias else [])
    x, *weights = (rng.uniform(-0.5, 0.5, shape).astype(F32) for shape in shapes)
    graph = Graph()
    b, given = Builder(graph), graph.add_input("x", TensorType(F32, x.shape))
    graph.add_output(b.node(op, given, *map(b.const, weights)).outputs[0], "y")
    (got,) = bn.compile(graph, numerics=numerics)(x).values()
    np.testing.assert_allclose(got, op.reference(x, *weights)[0], rtol=0, atol=2e-6)


def test_a_cell_without_peepholes_may_be_infinite() -> None:
    """As in onnxruntime, no gate sees it then; where there are peepholes, 0 times infinity is NaN."""
    rng, h = np.random.default_rng(2), 20
    x, w, r = (rng.standard_normal(dims).astype(F32) for dims in ((3, 2, 5), (1, 4 * h, 5), (1, 4 * h, h)))
    cell = np.zeros((1, 2, h), F32)
    cell[0, 0, 3], cell[0, 1, 17] = np.inf, -np.inf
    for peepholes in (None, np.zeros((1, 3 * h), F32)):
        operands = [x, w, r, None, None, None, cell, peepholes]
        graph = Graph()
        given = {f"x{i}": a for i, a in enumerate(operands) if a is not None}
        inputs = {name: graph.add_input(name, TensorType(F32, a.shape)) for name, a in given.items()}
        for i, value in enumerate(Builder(graph).node(LSTM(), *(inputs.get(f"x{i}") for i in range(8))).outputs):
            graph.add_output(value, f"y{i}")
        got = bn.compile(graph)(given)
        with np.errstate(invalid="ignore"):
            wanted = LSTM().reference(*operands)  # type: ignore[arg-type]
        for mine, theirs in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        assert np.isinf(wanted[2]).sum() == (2 if peepholes is None else 0)
        assert np.isnan(wanted[2]).any() == (peepholes is not None)
