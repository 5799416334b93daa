"""Loops that are recurrent layers become LSTM, GRU and RNN, however their weights and rows are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, Array, TensorType
from tests.loop_graphs import i64, line, looped, matrix, o, written
from tests.near import assert_near

Cell = Callable[["Writing", Builder, Value, list[Value]], list[Value]]
"""A step: the input's row [n, i] and the states [n, h] -> the states after it, the result first."""


class Writing:
    """How a model writes a layer, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n, self.i, self.h, self.t = (int(d) for d in self.rng.integers(1, 6, 4))
        self.splits, self.joins, self.batch_first, self.backwards, self.collects = self.rng.integers(0, 2, 5)
        self.bias = int(self.rng.integers(3))

    def gates(self, b: Builder, x: Value | None, h: Value | None, count: int) -> list[Value]:
        """``count`` sums of products of x and h, each [n, self.h]."""
        made = self.sums(b, x, h, count)
        if count == 1:
            return [made]
        if self.splits:
            return list(b(o("Split", -1, count), made))
        starts = [k * self.h for k in range(count)]
        return [b(o("Slice"), made, i64(0, s), i64(2**62, s + self.h)) for s in starts]

    def sums(self, b: Builder, x: Value | None, h: Value | None, count: int) -> Value:
        """The same beside each other."""
        rows = count * self.h
        given = [v for v in (x, h) if v is not None]
        if self.joins and len(given) == 2:
            weight = matrix(self.rng, self.i + self.h, rows)
            made = b(o("MatMul"), b(o("Concat", -1), *given), weight)
        else:
            parts = [b(o("MatMul", trans_b=True), v, matrix(self.rng, rows, v.type.dims[1])) for v in given]
            if self.bias == 1:
                parts[0] = b(o("Add"), parts[0], matrix(self.rng, rows))
            made = b(o("Add"), *parts) if len(parts) > 1 else parts[0]
        if self.bias:
            made = b(o("Add"), made, matrix(self.rng, 1, rows))
        return made  # type: ignore[no-any-return]

    def graph(self, cell: Cell, states: int) -> tuple[Graph, Array]:
        graph = Graph("layer")
        b = Builder(graph)
        dims = (self.n, self.t, self.i) if self.batch_first else (self.t, self.n, self.i)
        x = graph.add_input("x", TensorType(F32, dims))

        def body(inner: Builder, trip: Value, going_on: Value, *rest: Value) -> Any:
            given, y, rows = list(rest[:states]), rest[states], rest[states + 1]
            at = line(inner, trip, *((-1, self.t - 1) if self.backwards else (1, 0)))
            place = inner(o("Reshape"), at, np.zeros(0, np.int64))
            after = cell(self, inner, inner(o("Gather", 1 if self.batch_first else 0), rows, place), given)
            row = inner(o("Unsqueeze"), after[0], i64(0))
            shown = written(inner, y, line(inner, trip, 1, 0) if self.collects else inner.const(i64(0)), row, 0)
            return None, [*after, shown], []

        initial: list[Any] = [matrix(self.rng, self.n, self.h) for _ in range(states)]
        initial.append(np.zeros((self.t if self.collects else 1, self.n, self.h), F32))
        for i, v in enumerate(looped(b, body, i64(self.t), initial, [x], open_axes=[None] * states + [0])):
            graph.add_output(v, f"out{i}")
        return graph, matrix(self.rng, *dims)


def lstm(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    i, f, g, out = w.gates(b, x, states[0], 4)
    kept = b(o("Mul"), b(o("Sigmoid"), f), states[1])
    c = b(o("Add"), kept, b(o("Mul"), b(o("Sigmoid"), i), b(o("Tanh"), g)))
    return [b(o("Mul"), b(o("Sigmoid"), out), b(o("Tanh"), c)), c]


def lstm_of_one_sigmoid(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    """Three gates in one function, split behind it."""
    three, g = w.sums(b, x, states[0], 3), w.sums(b, x, states[0], 1)
    i, f, out = b(o("Split", -1, 3), b(o("Sigmoid"), three))
    c = b(o("Add"), b(o("Mul"), f, states[1]), b(o("Mul"), i, b(o("Tanh"), g)))
    return [b(o("Mul"), out, b(o("Tanh"), c)), c]


def gru_behind(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    """The reset is behind the product, as Keras has it."""
    h = states[0]
    ours, theirs = w.gates(b, x, None, 3), w.gates(b, None, h, 3)
    z, r = (b(o("Sigmoid"), b(o("Add"), p, q)) for p, q in zip(ours[:2], theirs[:2], strict=True))
    new = b(o("Tanh"), b(o("Add"), ours[2], b(o("Mul"), r, theirs[2])))
    return [b(o("Add"), b(o("Mul"), z, h), b(o("Mul"), b(o("Sub"), np.array(1, F32), z), new))]


def gru_before(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    h = states[0]
    z, r = (b(o("Sigmoid"), v) for v in w.gates(b, x, h, 2))
    new = b(o("Tanh"), w.gates(b, x, b(o("Mul"), r, h), 1)[0])
    return [b(o("Add"), b(o("Mul"), b(o("Sub"), np.array(1, F32), z), new), b(o("Mul"), h, z))]


def rnn(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    return [b(o("Relu" if w.splits else "Tanh"), w.gates(b, x, states[0], 1)[0])]


def gru_of_another_rest(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    """No GRU: what is kept and what is new do not sum to one."""
    h = states[0]
    z, r = (b(o("Sigmoid"), v) for v in w.gates(b, x, h, 2))
    new = b(o("Tanh"), w.gates(b, x, b(o("Mul"), r, h), 1)[0])
    return [b(o("Add"), b(o("Mul"), b(o("Sub"), np.array(1, F32), r), new), b(o("Mul"), h, z))]


def gru_of_the_state_alone(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    """No GRU: what is new has a product with the state that is not reset, and none with the input."""
    h = states[0]
    z, r = (b(o("Sigmoid"), v) for v in w.gates(b, x, h, 2))
    plain, reset = (w.gates(b, None, h, 1)[0] for _ in range(2))
    new = b(o("Tanh"), b(o("Add"), plain, b(o("Mul"), r, reset)))
    return [b(o("Add"), b(o("Mul"), z, h), b(o("Mul"), b(o("Sub"), np.array(1, F32), z), new))]


def lstm_of_its_cell(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    """No LSTM: gates see the cell, and not the state."""
    return lstm(w, b, x, [states[1], states[1]])


def lstm_of_a_bent_state(w: Writing, b: Builder, x: Value, states: list[Value]) -> list[Value]:
    """No LSTM: a layer holds h as it is, not its square."""
    h, c = lstm(w, b, x, states)
    return [b(o("Mul"), h, h), c]


LAYERS: list[tuple[Any, int, str]] = [
    (lstm, 2, "LSTM"), (lstm_of_one_sigmoid, 2, "LSTM"), (gru_behind, 1, "GRU"), (gru_before, 1, "GRU"),
    (rnn, 1, "RNN"),
]  # fmt: skip
OTHERS: list[tuple[Any, int, str]] = [
    (gru_of_another_rest, 1, "Loop"), (lstm_of_its_cell, 2, "Loop"), (lstm_of_a_bent_state, 2, "Loop"),
    (gru_of_the_state_alone, 1, "Loop"),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("cell", "states", "operator"), LAYERS + OTHERS)
def test_loops_are_layers(cell: Cell, states: int, operator: str, seed: int) -> None:
    graph, x = Writing(seed).graph(cell, states)
    made = run_pipeline(graph, check=True)
    found = [n.op.name for n in made.nodes if n.op.name in ("LSTM", "GRU", "RNN", "Loop")]
    assert found == [operator]
    wanted = interpret(graph, {"x": x})
    for got in (interpret(made, {"x": x}), bn.compile(graph, threads=1)(x)):
        for name, array in wanted.items():
            assert got[name].shape == array.shape
            assert_near(got[name], array, 2e-6, name, floor=1)
