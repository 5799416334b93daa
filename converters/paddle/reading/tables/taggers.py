"""Readers of what sequence taggers end in: recurrent layers over ragged values, and the best path of labels.

The recurrent layers take inputs that a product has made already, so that the graph's operators multiply by ones.
Source: Paddle's gru_op, lstm_op, crf_decoding_op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64, TensorType
from bolt_numba.converters.builder import ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.ragged import RaggedRows, given, lengths_of
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather, GatherElements
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMax
from bolt_numba.ops.arrays.shape import Concat, Expand, Shape, Squeeze, Unsqueeze
from bolt_numba.ops.control import Scan
from bolt_numba.ops.layers.recurrent import GRU, LSTM
from bolt_numba.ops.pointwise import Add, Cast, Equal, Neg, Where
from bolt_numba.ops.registry import fresh_dim

_ACTIVATIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}


def _named(b: PaddleBuilder, *names: str) -> tuple[str, ...]:
    for name in names:
        b.unsupported_if(name not in _ACTIVATIONS, f"activation {name}")
    return tuple(_ACTIVATIONS[name] for name in names)


def _ones(signs: Sequence[tuple[int, int]], hidden: int) -> Any:
    """Weights [1, gates * h, gates * h] that take each gate's inputs from a place, with a sign."""
    count = len(signs)
    made = np.zeros((count, hidden, count, hidden), np.float32)
    for gate, (place, sign) in enumerate(signs):
        made[gate, :, place, :] = sign * np.eye(hidden, dtype=np.float32)
    return made.reshape(1, count * hidden, count * hidden)


def _rows_of(b: PaddleBuilder, rows: RaggedRows, y: Value) -> Value:
    """The rows of what a recurrent operator gives, [longest, 1, n, h]."""
    made = b.transposed(b(Squeeze(), y, ints([1])), 1, 0, 2)
    return given(b, rows.flat(made), rows.lengths)


def _state(b: PaddleBuilder, state: Value | None) -> Value | None:
    return None if state is None else b.unsqueezed(state, 0)


@PADDLE.reader("gru", results=["Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"], slots={"Input": "x"})
def gru(
    b: PaddleBuilder,
    x: Value,
    h0: Value | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    *,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    is_reverse: bool = False,
    origin_mode: bool = False,
) -> tuple[Value, None, None, None]:
    """Gates u, r and c.  h = u c + (1 - u) h, or the other way round in origin mode, which is the graph's."""
    if weight is None:
        raise b.invalid("Weight", "none", "weights of the gates")
    rows, hidden = RaggedRows(b, lengths_of(b, x)), b.static_dim(weight, 0)
    functions = _named(b, gate_activation, activation)
    b.unsupported_if(not origin_mode and gate_activation != "sigmoid", f"gates by {gate_activation}")
    sign = 1 if origin_mode else -1  # 1 - sigmoid(x) is sigmoid(-x)
    if bias is not None:
        x = b(Add(), x, b.shaped(bias, [1, -1]))
    memory = b.flat(weight)
    gates = b.transposed(b.shaped(b.sliced(memory, 0, 0, 2 * hidden * hidden), [hidden, 2 * hidden]), 1, 0)
    update = b.sliced(gates, 0, 0, hidden)
    fresh = b.transposed(b.shaped(b.sliced(memory, 0, 2 * hidden * hidden), [hidden, hidden]), 1, 0)
    r = b(Concat(0), update if sign > 0 else b(Neg(), update), b.sliced(gates, 0, hidden), fresh)
    operator = GRU(direction="reverse" if is_reverse else "forward", hidden_size=hidden, activations=functions)
    w = _ones([(0, sign), (1, 1), (2, 1)], hidden)
    steps = b.transposed(rows.padded(x), 1, 0, 2)
    y, _ = b(operator, steps, w, b.unsqueezed(r, 0), None, rows.short(), _state(b, h0))
    return _rows_of(b, rows, y), None, None, None


@PADDLE.reader("lstm", results=["Hidden", "Cell", "BatchGate", "BatchCellPreAct"], slots={"Input": "x"})
def lstm(
    b: PaddleBuilder,
    x: Value,
    h0: Value | None = None,
    c0: Value | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    *,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> tuple[Value, None, None, None]:
    """Gates c, i, f and o; behind their biases stand the weights of the peepholes of i, f and o."""
    b.unsupported_if(b.wants(1), "the cells of all steps")
    if weight is None:
        raise b.invalid("Weight", "none", "weights of the gates")
    rows, hidden = RaggedRows(b, lengths_of(b, x)), b.static_dim(weight, 0)
    peepholes = None
    if bias is not None:
        row = b.flat(bias)
        x = b(Add(), x, b.shaped(b.sliced(row, 0, 0, 4 * hidden), [1, -1]))
        if use_peepholes:
            of_i, of_f, of_o = (b.sliced(row, 0, k * hidden, (k + 1) * hidden) for k in (4, 5, 6))
            peepholes = b.unsqueezed(b(Concat(0), of_i, of_o, of_f), 0)
    columns = [b.sliced(weight, 1, k * hidden, (k + 1) * hidden) for k in (1, 3, 2, 0)]
    r = b.unsqueezed(b.transposed(b(Concat(1), *columns), 1, 0), 0)
    functions = _named(b, gate_activation, candidate_activation, cell_activation)
    operator = LSTM(direction="reverse" if is_reverse else "forward", hidden_size=hidden, activations=functions)
    w = _ones([(1, 1), (3, 1), (2, 1), (0, 1)], hidden)
    steps = b.transposed(rows.padded(x), 1, 0, 2)
    y, _, _ = b(operator, steps, w, r, None, rows.short(), _state(b, h0), _state(b, c0), peepholes)
    return _rows_of(b, rows, y), None, None, None


@PADDLE.reader("crf_decoding", results=["ViterbiPath"])
def crf_decoding(
    b: PaddleBuilder, emission: Value, transition: Value, label: Value | None = None, length: Value | None = None
) -> Value:
    """The labels of the best path of each sequence; with ``label``, whether they are these.

    emission: [rows, k] ragged, or [n, most, k] with ``length``.  transition: [k + 2, k]; its first two rows are what a
    path's begin and end add.
    """
    if length is None:
        rows = RaggedRows(b, lengths_of(b, emission))
        path = rows.flat(_best_path(b, rows.padded(emission), transition, rows.inside))
        path = b.shaped(path, [-1, 1])
    else:
        rows = RaggedRows(b, b(Cast(I64), b.flat(length)))
        rows.longest = b(Gather(0), b(Shape(), emission), np.array(1))
        inside = rows.inside
        path = b(Where(), inside, _best_path(b, emission, transition, inside), np.array(0, I64))
    if label is not None:
        path = b(Cast(I64), b(Equal(), path, b.shaped(b(Cast(I64), label), b(Shape(), path))))
    return given(b, path, rows.lengths) if length is None else path


def _best_path(b: PaddleBuilder, emission: Value, transition: Value, inside: Value) -> Value:
    """Labels [n, most] for emissions [n, most, k]; ``inside`` says which are there."""
    k = b.static_dim(emission, 2)
    start, stop, steps = b.sliced(transition, 0, 0, 1), b.sliced(transition, 0, 1, 2), b.sliced(transition, 0, 2)
    by_step, there = b.transposed(emission, 1, 0, 2), b.transposed(inside, 1, 0)
    batch = b(Gather(0), b(Shape(), emission), np.array(0))
    zeros = _zeros(b, batch, k)
    first = b(Equal(), _steps(b, by_step), 0)
    scores, back = b(Scan(_forward(k), 1, 3), zeros, by_step, there, first, start, steps)
    last = b(ArgMax(axis=1, keepdims=False), b(Add(), scores, stop))
    _, path = b(Scan(_backward(k), 1, 2, (), (1, 1), (), (1,)), last, back, there)
    return b.transposed(path, 1, 0)


def _zeros(b: PaddleBuilder, batch: Value, k: int) -> Value:
    shape = b(Concat(0), b(Unsqueeze(), batch, ints([0])), ints([k]))
    return b(Expand(), np.zeros((1, 1), np.float32), shape)


def _steps(b: PaddleBuilder, by_step: Value) -> Value:
    return b.counted(b(Gather(0), b(Shape(), by_step), np.array(0)))


def _forward(k: int) -> Graph:
    """One step of the greatest scores: (scores, emission, there, whether it is the first, start, steps)."""
    graph = Graph("forward")
    b = Builder(graph)
    scores, emission = (graph.add_input(name, TensorType(F32, (fresh_dim("n"), k))) for name in ("scores", "emission"))
    there = graph.add_input("there", TensorType(BOOL, (fresh_dim("n"),)))
    first = graph.add_input("first", TensorType(BOOL, ()))
    start, steps = graph.add_input("start", TensorType(F32, (1, k))), graph.add_input("steps", TensorType(F32, (k, k)))
    ways = b(Add(), b(Unsqueeze(), scores, ints([2])), b(Unsqueeze(), steps, ints([0])))
    best = b(Where(), first, start, b(ReduceMax(keepdims=False), ways, ints([1])))
    kept = b(Where(), b(Unsqueeze(), there, ints([1])), b(Add(), best, emission), scores)
    graph.add_output(kept, "best")
    graph.add_output(b(ArgMax(axis=1, keepdims=False), ways), "from")
    return graph


def _backward(k: int) -> Graph:
    """One step back: (label, where each label came from, there) -> (label before, label)."""
    graph = Graph("backward")
    b = Builder(graph)
    label = graph.add_input("label", TensorType(I64, (fresh_dim("n"),)))
    back = graph.add_input("back", TensorType(I64, (fresh_dim("n"), k)))
    there = graph.add_input("there", TensorType(BOOL, (fresh_dim("n"),)))
    before = b(Squeeze(), b(GatherElements(1), back, b(Unsqueeze(), label, ints([1]))), ints([1]))
    graph.add_output(b(Where(), there, before, label), "before")
    graph.add_output(label, "here")
    return graph
