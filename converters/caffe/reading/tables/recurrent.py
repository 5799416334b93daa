"""Readers of recurrent layers: a graph run for each step, because ``cont`` may end a sequence at any of them.

Source: BVLC's unrolled nets, which multiply what is carried over by ``cont``: 0 begins anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32, Dim, TensorType
from bolt_numba.converters.builder import ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.shape import Reshape, Split, Unsqueeze
from bolt_numba.ops.control import Scan
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Sigmoid, Tanh


def _zeros(b: LayerBuilder, batch: int, width: int) -> Value:
    """A state at first."""
    ask(4 * batch * width, b.what)
    return b.const(np.zeros((1, batch, width), F32))


@reader("LSTM")
def lstm(b: LayerBuilder, x: Value, cont: Value, *others: Value, num_output: int, expose_hidden: bool = False) -> Any:
    """x: [t, n, ...], cont: [t, n], perhaps a static input [n, ...], then with ``expose_hidden`` h and c [1, n, h]."""
    static, states = _others(b, others, 2 if expose_hidden else 0)
    inputs, rest = _projected(b, x, static, 4 * num_output)
    recurrent = b.blob(rest, (4 * num_output, num_output), "weight_filler")
    batch = b.dim_of(x, 1)
    states = states or [_zeros(b, b.static_dim(x, 1), num_output) for _ in range(2)]

    def step(s: Builder, h: Value, c: Value, gates: Value, on: Value, w: Value) -> tuple[Value, ...]:
        y = s(Add(), gates, s(MatMul(trans_b=True), s(Mul(), h, on), w))
        return _unit(s, c, y, on)

    return _scan(b, step, inputs, cont, states, [recurrent], batch, num_output)


def _unit(s: Builder, c: Value, gates: Value, on: Value) -> tuple[Value, ...]:
    """New h and c from the sums of the gates i, f, o, g [n, 4 h] and c [n, h]."""
    i, f, o, g = s.node(Split(1, 4), gates).outputs
    i, f, o, g = s(Sigmoid(), i), s(Mul(), s(Sigmoid(), f), on), s(Sigmoid(), o), s(Tanh(), g)
    new = s(Add(), s(Mul(), f, c), s(Mul(), i, g))
    return s(Mul(), o, s(Tanh(), new)), new


@reader("RNN")
def rnn(b: LayerBuilder, x: Value, cont: Value, *others: Value, num_output: int, expose_hidden: bool = False) -> Any:
    """The state is h = tanh(w_h (cont * h) + w_x x + b_h), the result y = tanh(w_o h + b_o)."""
    static, states = _others(b, others, 1 if expose_hidden else 0)
    inputs, rest = _projected(b, x, static, num_output)
    weights = [
        b.blob(rest, (num_output, num_output), "weight_filler"),
        b.blob(rest + 1, (num_output, num_output), "weight_filler"),
        b.blob(rest + 2, (num_output,), "bias_filler"),
    ]
    states = states or [_zeros(b, b.static_dim(x, 1), num_output)]

    def step(s: Builder, h: Value, sums: Value, on: Value, w: Value, wo: Value, bo: Value) -> tuple[Value, ...]:
        new = s(Tanh(), s(Add(), sums, s(MatMul(trans_b=True), s(Mul(), h, on), w)))
        return new, s(Tanh(), s(MatMul(trans_b=True), new, wo, bo))

    return _scan(b, step, inputs, cont, states, weights, b.dim_of(x, 1), num_output, own_result=True)


@reader("LSTMUnit")
def lstm_unit(b: LayerBuilder, c: Value, gates: Value, cont: Value) -> list[Value]:
    """One step: c [1, n, h], gates [1, n, 4 h], cont [1, n] -> c and h."""
    count = b.static_dim(c, 2)
    on = b(Reshape(), cont, ints([-1, 1]))
    h, new = _unit(b, b(Reshape(), c, ints([-1, count])), b(Reshape(), gates, ints([-1, 4 * count])), on)
    return [b(Unsqueeze(), v, ints([0])) for v in (new, h)]


def _others(b: LayerBuilder, others: tuple[Value, ...], states: int) -> tuple[Value | None, list[Value]]:
    """The static input, where there is one, and the initial states."""
    if len(others) not in (states, states + 1):
        raise b.invalid("number of bottoms", len(others) + 2, f"{states + 2} or {states + 3}")
    static = others[0] if len(others) > states else None
    return static, list(others[len(others) - states :] if states else ())


def _projected(b: LayerBuilder, x: Value, static: Value | None, count: int) -> tuple[Value, int]:
    """w_x x + b for all steps [t, n, count], plus w_static of the static input; the number of blobs read."""
    w, bias = b.blob(0, (count, _length(b, x, 2)), "weight_filler"), b.blob(1, (count,), "bias_filler")
    flat = x if b.rank_of(x) == 3 else b(Reshape(), x, ints([0, 0, _length(b, x, 2)]))
    sums = b(MatMul(trans_b=True), flat, w, bias)
    if static is None:
        return sums, 2
    ws = b.blob(2, (count, _length(b, static, 1)), "weight_filler")
    flat = static if b.rank_of(static) == 2 else b(Reshape(), static, ints([0, _length(b, static, 1)]))
    return b(Add(), sums, b(MatMul(trans_b=True), flat, ws)), 3


def _length(b: LayerBuilder, x: Value, first: int) -> int:
    made = 1
    for i in range(first, b.rank_of(x)):
        made *= b.static_dim(x, i)
    return made


def _scan(
    b: LayerBuilder,
    step: Any,
    sums: Value,
    cont: Value,
    states: list[Value],
    weights: list[Value],
    batch: Dim,
    count: int,
    own_result: bool = False,
) -> list[Value]:
    """Runs ``step`` over time; its result is the first state, or with ``own_result`` what it returns last.

    Returns the results [t, n, h], then the last states [1, n, h].
    """
    body = Graph("step")
    s = Builder(body)
    state_type = TensorType(F32, (batch, count))
    carried = [body.add_input(f"state_{i}", state_type) for i in range(len(states))]
    at = body.add_input("sums", TensorType(F32, (batch, b.dim_of(sums, 2))))
    on = body.add_input("cont", TensorType(F32, (batch, 1)))
    captured = [body.add_input(f"weights_{i}", v.type) for i, v in enumerate(weights)]
    made = step(s, *carried, at, on, *captured)
    for value in made[: len(states)]:
        body.add_output(value)
    body.add_output(made[-1] if own_result else made[0], "result")
    flags = b(Unsqueeze(), cont, ints([2]))
    first = [b(Reshape(), v, ints([-1, count])) for v in states]
    *last, results = b.node(Scan(body, len(states), 2), *first, sums, flags, *weights).outputs
    return [results, *(b(Unsqueeze(), v, ints([0])) for v in last)]
