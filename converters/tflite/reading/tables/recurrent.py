"""Readers of recurrent layers.  What they keep from run to run are variables of the file.

A layer without projection, norm or limit of its cell is the graph's own `LSTM` or `RNN`.  Others are a cell, built once
and run for each step by a `Scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import TensorType
from bolt_numba.converters.builder import ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Split
from bolt_numba.ops.control import Scan
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import LSTM, RNN
from bolt_numba.ops.pointwise import Add, Clip, Mul, Neg, Relu, Sigmoid, Sub, Tanh
from bolt_numba.ops.registry import Op

FUNCTIONS: dict[str, Op | None] = {
    "NONE": None, "RELU": Relu(), "RELU_N1_TO_1": Clip(-1.0, 1.0), "RELU6": Clip(0.0, 6.0), "TANH": Tanh(),
}  # fmt: skip
"""Of a cell, where TANH is a function and no range."""
LEAST_VARIANCE = 1e-8
Stepped: TypeAlias = tuple[Value, list[Value]]
"""Results of all steps, and the last states."""
NAMES = {"NONE": "affine", "RELU": "relu", "TANH": "tanh"}
"""Those that the graph's own layers have, too."""


def _function(b: TfliteBuilder, name: str) -> Op | None:
    b.unsupported_if(name not in FUNCTIONS, f"fused_activation_function {name}")
    return FUNCTIONS[name]


def _of(b: Builder, function: Op | None, x: Value) -> Value:
    return x if function is None else b(function, x)


def _scanned(
    b: TfliteBuilder,
    cell: Callable[[Builder, Value, Sequence[Value], Sequence[Value]], Sequence[Value]],
    x: Value,
    states: Sequence[Value],
    constants: Sequence[Value],
    axis: int,
    backward: bool,
) -> Stepped:
    """Results of all steps along the time axis of x, and the last states.

    cell: builder, step, states, constants -> new states, of which the first is the result.  One step needs no `Scan`.
    """
    shape = list(x.type.shape or ())
    if shape[axis : axis + 1] == [1]:
        last = list(cell(b, b.squeezed(x, axis), states, constants))
        return b.unsqueezed(last[0], axis), last
    graph = Graph("cell")
    step = TensorType(x.type.dtype, tuple(shape[:axis] + shape[axis + 1 :]))
    inner = [graph.add_input(f"state{i}", s.type.with_value(None)) for i, s in enumerate(states)]
    seen = graph.add_input("step", step)
    known = [graph.add_input(f"constant{i}", c.type.with_value(None)) for i, c in enumerate(constants)]
    made = list(cell(Builder(graph), seen, inner, known))
    for i, value in enumerate([*made, made[0]]):
        graph.add_output(value, f"result{i}")
    way = (1,) if backward else (0,)
    operator = Scan(graph, len(states), 1, (axis,), way, (axis,), way)
    results = b.node(operator, *states, x, *constants).outputs
    return results[-1], list(results[:-1])


@record(frozen=True)
class LstmCell:
    """The operands of one LSTM and what it does with them.

    gates: weights of the input and of the state, bias and coefficients of the norm for each gate in the order i, f, c,
    o; those of i are None where it is 1 - f.  peepholes: of i, f and o.
    """

    inputs: tuple[Value | None, ...]
    states: tuple[Value | None, ...]
    peepholes: tuple[Value | None, ...]
    biases: tuple[Value | None, ...]
    norms: tuple[Value | None, ...]
    projection: Value | None
    projection_bias: Value | None
    function: str
    cell_clip: float
    projection_clip: float

    @property
    def is_plain(self) -> bool:
        """Whether the graph's own LSTM does all that."""
        return (
            self.projection is None
            and not self.cell_clip
            and not any(v is not None for v in self.norms)
            and self.function in NAMES
        )

    @property
    def is_coupled(self) -> bool:
        """Whether the input gate is 1 - the forget gate."""
        return self.inputs[0] is None


def _cell_of(operands: Sequence[Value | None], function: str, cell_clip: float, projection_clip: float) -> LstmCell:
    """From operands in the order of the file: weights of input, weights of state, peepholes, biases, projection."""
    return LstmCell(
        tuple(operands[0:4]), tuple(operands[4:8]), tuple(operands[8:11]), tuple(operands[11:15]),
        tuple(operands[17:21]), operands[15], operands[16], function, cell_clip, projection_clip,
    )  # fmt: skip


def _plain(b: TfliteBuilder, x: Value, cell: LstmCell, h: Value, c: Value, axis: int, backward: bool) -> Stepped:
    """The graph's own LSTM, whose gates stand in the order i, o, f, c.

    Where i is 1 - f, it is the sigmoid of what f is the sigmoid of, turned around.
    """

    def gate(values: Sequence[Value | None], index: int) -> Value | None:
        if index == 0 and cell.is_coupled:
            forget = values[1]
            return None if forget is None else b(Neg(), forget)
        return values[index]

    def stacked(values: Sequence[Value | None], order: Sequence[int]) -> Value | None:
        rows = [gate(values, i) for i in order]
        shape = next((v for v in rows if v is not None), None)
        if shape is None:
            return None
        filled = [b(Sub(), shape, shape) if v is None else v for v in rows]
        return b.unsqueezed(b(Concat(0), *filled), 0)

    order = (0, 3, 1, 2)
    weights, rows = stacked(cell.inputs, order), stacked(cell.states, order)
    bias = stacked(cell.biases, order)
    if bias is not None:
        bias = b(Concat(1), bias, b(Sub(), bias, bias))
    peepholes = None
    if any(v is not None for v in cell.peepholes):
        i, f, o = cell.peepholes
        peepholes = stacked((i, f, None, o), (0, 3, 1))
    name = NAMES[cell.function]
    operator = LSTM(
        activations=("sigmoid", name, name), direction="reverse" if backward else "forward", layout=axis,
        input_forget=cell.is_coupled,
    )  # fmt: skip
    first = [b.unsqueezed(s, axis) for s in (h, c)]
    y, *last = b(operator, x, weights, rows, bias, None, *first, peepholes)
    return b.squeezed(y, 1 if axis == 0 else 2), [b.squeezed(s, axis) for s in last]


def _general(b: TfliteBuilder, x: Value, cell: LstmCell, h: Value, c: Value, axis: int, backward: bool) -> Stepped:
    function = _function(b, cell.function)
    fields = (*cell.inputs, *cell.states, *cell.peepholes, *cell.biases, *cell.norms)
    given = [*fields, cell.projection, cell.projection_bias]
    places = [i for i, v in enumerate(given) if v is not None]

    def step(g: Builder, seen: Value, states: Sequence[Value], constants: Sequence[Value]) -> Sequence[Value]:
        inner: list[Value | None] = [None] * len(given)
        for place, value in zip(places, constants, strict=True):
            inner[place] = value
        made = LstmCell(
            tuple(inner[0:4]), tuple(inner[4:8]), tuple(inner[8:11]), tuple(inner[11:15]), tuple(inner[15:19]),
            inner[19], inner[20], cell.function, cell.cell_clip, cell.projection_clip,
        )  # fmt: skip
        return _step(g, made, function, seen, *states)

    return _scanned(b, step, x, [h, c], [v for v in given if v is not None], axis, backward)


def _step(b: Builder, cell: LstmCell, function: Op | None, x: Value, h: Value, c: Value) -> tuple[Value, Value]:
    """The new h and c."""

    def gate(index: int, peephole: Value | None, state: Value | None) -> Value:
        bias, norm = cell.biases[index], cell.norms[index]
        made = b(MatMul(trans_b=True), x, cell.inputs[index], bias if norm is None else None)
        made = b(Add(), made, b(MatMul(trans_b=True), h, cell.states[index]))
        if peephole is not None and state is not None:
            made = b(Add(), made, b(Mul(), state, peephole))
        return made if norm is None else b(LayerNormalization(epsilon=LEAST_VARIANCE), made, norm, bias)

    p_in, p_forget, p_out = cell.peepholes
    forget = b(Sigmoid(), gate(1, p_forget, c))
    kept = b(Sub(), b.const(np.ones((), x.type.dtype)), forget)
    taken = kept if cell.is_coupled else b(Sigmoid(), gate(0, p_in, c))
    fresh = _of(b, function, gate(2, None, None))
    new = b(Add(), b(Mul(), forget, c), b(Mul(), taken, fresh))
    if cell.cell_clip > 0:
        new = b(Clip(-cell.cell_clip, cell.cell_clip), new)
    out = b(Mul(), b(Sigmoid(), gate(3, p_out, new)), _of(b, function, new))
    if cell.projection is not None:
        out = b(MatMul(trans_b=True), out, cell.projection, cell.projection_bias)
        if cell.projection_clip > 0:
            out = b(Clip(-cell.projection_clip, cell.projection_clip), out)
    return out, new


def _lstm(b: TfliteBuilder, x: Value, cell: LstmCell, h: Value, c: Value, axis: int, backward: bool = False) -> Stepped:
    """Results of all steps along an axis of x [.., .., i], and the last h and c."""
    if cell.inputs[0] is None and any(v is not None for v in (cell.states[0], cell.norms[0])):
        raise b.invalid("weights of the input gate", "none", "some, as there are others of it")
    return (_plain if cell.is_plain else _general)(b, x, cell, h, c, axis, backward)


@TFLITE.reader("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(
    b: TfliteBuilder,
    x: Value,
    *operands: Value | None,
    fused_activation_function: str = "NONE",
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    time_major: bool = False,
    diagonal_recurrent_tensors: bool = False,
) -> Any:
    """x: [n, t, i], or [t, n, i].  operands: 17 of weights, the two states, and four of norms where there are any."""
    b.unsupported_if(diagonal_recurrent_tensors, "diagonal_recurrent_tensors")
    axis = 0 if time_major else 1
    return _kept_lstm(b, x, operands, axis, fused_activation_function, cell_clip, proj_clip)


def _kept_lstm(
    b: TfliteBuilder, x: Value, operands: Sequence[Value | None], axis: int, function: str, clip: float, proj: float
) -> Any:
    rows = [*operands, *[None] * (23 - len(operands))]
    h, c = rows[17], rows[18]
    if h is None or c is None or len(rows) != 23:
        raise b.invalid("number of operands", len(operands) + 1, "20 or 24, states among them")
    cell = _cell_of([*rows[:17], *rows[19:]], function, clip, proj)
    y, last = _lstm(b, x, cell, h, c, axis)
    for i, state in enumerate(last):
        b.assign(18 + i, state)
    return y


@TFLITE.reader("LSTM")
def lstm(
    b: TfliteBuilder,
    x: Value,
    *operands: Value | None,
    fused_activation_function: str = "NONE",
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    kernel_type: str = "FULL",
) -> Value | tuple[Value, Value, Value, Value]:
    """One step, x: [n, i].  The kernel BASIC takes its states as operands, and gives them."""
    if kernel_type == "BASIC":
        return _basic(b, x, *operands)
    steps = b.unsqueezed(x, 0)
    made = _kept_lstm(b, steps, operands, 0, fused_activation_function, cell_clip, proj_clip)
    return b.squeezed(made, 0)


def _basic(b: TfliteBuilder, x: Value, h: Any, w: Any, bias: Any, c: Any) -> tuple[Value, Value, Value, Value]:
    """w: [4 h, i + h] of the gates i, c, f, o -> h, c, and what went into the product and came out of it."""
    joined = b(Concat(1), x, h)
    gates = b(MatMul(trans_b=True), joined, w, bias)
    i, g, f, o = b.node(Split(1, 4), gates).outputs
    new = b(Add(), b(Mul(), b(Sigmoid(), i), b(Tanh(), g)), b(Mul(), b(Sigmoid(), f), c))
    return b(Mul(), b(Sigmoid(), o), b(Tanh(), new)), new, joined, gates


def _with_auxiliary(
    b: TfliteBuilder, x: Value, weights: Sequence[Value | None], more: Value | None, others: Sequence[Value | None]
) -> tuple[Value, list[Value | None]]:
    """Input and weights with those of an auxiliary input beside them, along the features."""
    if more is None or all(v is None for v in others):
        return x, list(weights)
    joined = [w if w is None or o is None else b(Concat(1), w, o) for w, o in zip(weights, others, strict=True)]
    return b(Concat(2), x, more), joined


def _both(b: TfliteBuilder, results: Sequence[Value], merged: bool) -> Value | tuple[Value, ...]:
    return b(Concat(2), *results) if merged else tuple(results)


@TFLITE.reader("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_sequence_lstm(
    b: TfliteBuilder,
    x: Value,
    *operands: Value | None,
    fused_activation_function: str = "NONE",
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    merge_outputs: bool = False,
    time_major: bool = True,
) -> Value | tuple[Value, ...]:
    """Two LSTM, the second from the end.  An auxiliary input without weights is the second one's input."""
    rows = [*operands, *[None] * (47 - len(operands))]
    more = rows[38]
    linked = any(v is not None for v in rows[39:47])
    results = []
    for d in range(2):
        own = rows[17 * d : 17 * d + 17]
        h, c = rows[34 + 2 * d], rows[35 + 2 * d]
        if h is None or c is None:
            raise b.invalid("states", "none", "two for each direction")
        seen = more if d and more is not None and not linked else x
        seen, own[:4] = _with_auxiliary(b, seen, own[:4], more, rows[39 + 4 * d : 43 + 4 * d])
        cell = _cell_of([*own, None, None, None, None], fused_activation_function, cell_clip, proj_clip)
        y, last = _lstm(b, seen, cell, h, c, 0 if time_major else 1, d == 1)
        for i, state in enumerate(last):
            b.assign(35 + 2 * d + i, state)
        results.append(y)
    return _both(b, results, merge_outputs)


def _rnn(
    b: TfliteBuilder, x: Value, w: Value, r: Value, bias: Value, h: Value, function: str, axis: int, backward: bool
) -> tuple[Value, Value]:
    """Results of all steps along an axis of x, and the last h."""
    if function in NAMES:
        way = "reverse" if backward else "forward"
        operator = RNN(activations=(NAMES[function],), direction=way, layout=axis)
        biases = b.unsqueezed(b(Concat(0), bias, b(Sub(), bias, bias)), 0)
        rows = [b.unsqueezed(v, 0) for v in (w, r)]
        y, last = b(operator, x, *rows, biases, None, b.unsqueezed(h, axis))
        return b.squeezed(y, 1 if axis == 0 else 2), b.squeezed(last, axis)
    made = _function(b, function)

    def step(g: Builder, seen: Value, states: Sequence[Value], constants: Sequence[Value]) -> Sequence[Value]:
        total = g(MatMul(trans_b=True), seen, constants[0], constants[2])
        return (_of(g, made, g(Add(), total, g(MatMul(trans_b=True), states[0], constants[1]))),)

    y, last = _scanned(b, step, x, [h], [w, r, bias], axis, backward)
    return y, last[0]


@TFLITE.reader("UNIDIRECTIONAL_SEQUENCE_RNN")
def unidirectional_sequence_rnn(
    b: TfliteBuilder,
    x: Value,
    w: Value,
    r: Value,
    bias: Value,
    h: Value,
    *,
    time_major: bool = False,
    fused_activation_function: str = "NONE",
) -> Value:
    y, last = _rnn(b, x, w, r, bias, h, fused_activation_function, 0 if time_major else 1, False)
    b.assign(4, last)
    return y


@TFLITE.reader("RNN")
def rnn(
    b: TfliteBuilder, x: Value, w: Value, r: Value, bias: Value, h: Value, *, fused_activation_function: str = "NONE"
) -> Value:
    """One step, x: [n, i]."""
    y, last = _rnn(b, b.unsqueezed(x, 0), w, r, bias, h, fused_activation_function, 0, False)
    b.assign(4, last)
    return b.squeezed(y, 0)


@TFLITE.reader("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_sequence_rnn(
    b: TfliteBuilder,
    x: Value,
    *operands: Value | None,
    time_major: bool = False,
    fused_activation_function: str = "NONE",
    merge_outputs: bool = False,
) -> Value | tuple[Value, ...]:
    """Two RNN, the second from the end.  An auxiliary input without weights is the second one's input."""
    rows = [*operands, *[None] * (11 - len(operands))]
    more = rows[8]
    linked = any(v is not None for v in rows[9:11])
    results = []
    for d in range(2):
        w, r, bias, h = rows[4 * d : 4 * d + 4]
        if w is None or r is None or bias is None or h is None:
            raise b.invalid("operands", "none", "weights, bias and state for each direction")
        seen = more if d and more is not None and not linked else x
        seen, (w,) = _with_auxiliary(b, seen, [w], more, rows[9 + d : 10 + d])
        assert w is not None, "weights stay"
        y, last = _rnn(b, seen, w, r, bias, h, fused_activation_function, 0 if time_major else 1, d == 1)
        b.assign(4 + 4 * d, last)
        results.append(y)
    return _both(b, results, merge_outputs)


@TFLITE.reader("SVDF")
def svdf(
    b: TfliteBuilder,
    x: Value,
    w: Value,
    times: Value,
    bias: Value | None,
    state: Value,
    *,
    rank: int = 0,
    fused_activation_function: str = "NONE",
) -> Value:
    """Filters of rank * units, w [f, i], whose results of the last m steps are weighted by ``times`` [f, m].

    state: [n, f m].  LiteRT leaves the activation out where all is quantised.
    """
    filters, length = b.static_dim(times, 0), b.static_dim(times, 1)
    b.invalid_if(rank < 1 or filters % rank, "rank", rank, f"a divisor of {filters}")
    fresh = b.unsqueezed(b(MatMul(trans_b=True), x, w), 2)
    batch = b.size_of(state, 0)
    older = b.sliced(b.reshaped(state, [batch, filters, length]), 2, 1)
    memory = b(Concat(2), older, fresh)
    b.assign(4, b.reshaped(memory, [batch, filters * length]))
    total = b(ReduceSum(False), b(Mul(), memory, times), ints([2]))
    if rank > 1:
        total = b(ReduceSum(False), b.reshaped(total, [batch, filters // rank, rank]), ints([2]))
    if bias is not None:
        total = b(Add(), total, bias)
    is_whole = b.quantisations[0] is not None
    return total if is_whole else _of(b, _function(b, fused_activation_function), total)
