"""Readers of recurrent layers over whole sequences, and of single steps."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.types import I32
from bolt_numba.converters.builder import ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Split, Squeeze
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sigmoid, Sub, Tanh

_ORDERS: dict[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}
"""Which of Paddle's gates stands at each place of the graph's: (i, f, c, o) for LSTM, (r, z, c) for GRU."""


def _ordered(b: PaddleBuilder, w: Value, mode: str) -> Value:
    """The rows of the gates in the graph's order."""
    order = _ORDERS[mode]
    if len(order) == 1:
        return w
    parts = b.node(Split(0, len(order)), w).outputs
    return b(Concat(0), *(parts[i] for i in order))


def _operator(mode: str, direction: str, hidden: int) -> Any:
    if mode == "LSTM":
        return LSTM(direction=direction, hidden_size=hidden)
    if mode == "GRU":
        return GRU(direction=direction, hidden_size=hidden, linear_before_reset=True)
    count = 2 if direction == "bidirectional" else 1
    return RNN(direction=direction, hidden_size=hidden, activations=("Tanh" if mode == "RNN_TANH" else "Relu",) * count)


@PADDLE.reader("rnn", results=("Out", "DropoutState", "State", "Reserve"), slots={"Input": "x"})
def rnn(
    b: PaddleBuilder,
    x: Value,
    pre_state: Values,
    weight_list: Values,
    sequence_length: Value | None = None,
    dropout_state: Value | None = None,
    *,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    input_size: int = 10,
    hidden_size: int = 100,
    num_layers: int = 1,
    mode: str = "RNN_TANH",
    is_test: bool = False,
) -> tuple[Value, None, list[Value], None]:
    """Layers of [t, n, features], forward or both ways; weights of all layers come before their biases."""
    b.invalid_if(mode not in _ORDERS, "mode", repr(mode), f"one of {sorted(_ORDERS)}")
    b.unsupported_if(dropout_prob and not is_test, "dropout of training")
    ways = 2 if is_bidirec else 1
    cells = num_layers * ways
    if len(weight_list) not in (2 * cells, 4 * cells) or len(pre_state) != (2 if mode == "LSTM" else 1):
        raise b.invalid("number of weights and states", (len(weight_list), len(pre_state)), (4 * cells, "1 or 2"))
    lengths = None if sequence_length is None else b.to(sequence_length, I32)
    direction = "bidirectional" if is_bidirec else "forward"
    last: list[list[Value]] = [[] for _ in pre_state]
    for layer in range(num_layers):
        own = range(layer * ways, (layer + 1) * ways)
        w, r = (_stacked(b, [weight_list[2 * i + side] for i in own], mode) for side in (0, 1))
        bias = _biases(b, weight_list[2 * cells :], own, mode)
        states = [b.sliced(s, 0, own.start, own.stop) for s in pre_state]
        y, *ends = b(_operator(mode, direction, hidden_size), x, w, r, bias, lengths, *states)
        for found, end in zip(last, ends, strict=True):
            found.append(end)
        x = b.shaped(b.transposed(y, 0, 2, 1, 3), [0, 0, ways * hidden_size]) if is_bidirec else _single(b, y)
    return x, None, [s[0] if len(s) == 1 else b(Concat(0), *s) for s in last], None


def _single(b: PaddleBuilder, y: Value) -> Value:
    return b(Squeeze(), y, ints([1]))


def _stacked(b: PaddleBuilder, weights: list[Value], mode: str) -> Value:
    """Weights of all directions, along a new first axis."""
    rows = [b.unsqueezed(_ordered(b, w, mode), 0) for w in weights]
    return rows[0] if len(rows) == 1 else b(Concat(0), *rows)


def _biases(b: PaddleBuilder, biases: Values, own: range, mode: str) -> Value | None:
    """Biases of input and state of all directions: [directions, 2 * gates * hidden]."""
    if not biases:
        return None
    rows = [b.unsqueezed(b(Concat(0), *(_ordered(b, biases[2 * i + side], mode) for side in (0, 1))), 0) for i in own]
    return rows[0] if len(rows) == 1 else b(Concat(0), *rows)


_ACTIVATIONS = (None, Sigmoid, Tanh, Relu)


def _activated(b: PaddleBuilder, x: Value, number: int) -> Value:
    b.invalid_if(not 0 <= number < len(_ACTIVATIONS), "activation", number, f"0 to {len(_ACTIVATIONS) - 1}")
    operator = _ACTIVATIONS[number]
    return x if operator is None else b(operator(), x)


@PADDLE.reader(legacy=("gru_unit",), results=("Gate", "ResetHiddenPrev", "Hidden"))
def gru_unit(
    b: PaddleBuilder,
    input: Value,
    hidden_prev: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    activation: int = 2,
    gate_activation: int = 1,
    origin_mode: bool = False,
) -> tuple[Value, Value, Value]:
    """One step: gates u, r and c; the weights of u and r, then those of c, stand one after the other in memory."""
    hidden = b.static_dim(hidden_prev, 1)
    memory = b.flat(weight)
    of_gates = b.shaped(b.sliced(memory, 0, 0, 2 * hidden * hidden), [hidden, 2 * hidden])
    of_fresh = b.shaped(b.sliced(memory, 0, 2 * hidden * hidden), [hidden, hidden])
    x = input if bias is None else b(Add(), input, b.shaped(bias, [-1]))
    sums = b(Add(), b.sliced(x, 1, 0, 2 * hidden), b(MatMul(), hidden_prev, of_gates))
    update, reset = b.node(Split(1, 2), _activated(b, sums, gate_activation)).outputs
    seen = b(Mul(), reset, hidden_prev)
    fresh = _activated(b, b(Add(), b.sliced(x, 1, 2 * hidden), b(MatMul(), seen, of_fresh)), activation)
    old, new = (fresh, hidden_prev) if origin_mode else (hidden_prev, fresh)
    made = b(Add(), old, b(Mul(), update, b(Sub(), new, old)))
    return b(Concat(1), update, reset, fresh), seen, made


@PADDLE.reader(legacy=("lstm_unit",), results=("C", "H"))
def lstm_unit(b: PaddleBuilder, x: Value, c_prev: Value, *, forget_bias: float = 0.0) -> tuple[Value, Value]:
    """One step of gates i, f, o and j."""
    i, f, o, j = b.node(Split(1, 4), x).outputs
    forget = b(Sigmoid(), b(Add(), f, forget_bias) if forget_bias else f)
    c = b(Add(), b(Mul(), forget, c_prev), b(Mul(), b(Sigmoid(), i), b(Tanh(), j)))
    return c, b(Mul(), b(Sigmoid(), o), b(Tanh(), c))
