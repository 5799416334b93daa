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
from bolt_numba.types import F32, Array, TensorType

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
