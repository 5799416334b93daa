"""Loops that are recurrent layers, as Keras and TensorFlow write them.

loop_of_layer(Loop over rows of x) -> LSTM, GRU or RNN over x: the products with x are one product of all rows, sums are
                                      added in another order

The body is read as formulas: a gate is a sum of products of constants with the input's row and the state, `Sum`; what
follows is a tree of functions.  How a model slices, joins or splits its weights does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, F64, I64, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Reshape, Split, Squeeze, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.passes.loops.bodies import shown
from bolt_numba.passes.loops.course import Course, Progress
from bolt_numba.passes.loops.rows import taken
from bolt_numba.passes.rewrite import Match, Result


@record(frozen=True, eq=False)
class Given:
    """The state of number ``state``, or a row of an input: ``value`` is the Gather that reads it."""

    state: int | None = None
    value: Value | None = None


@record(frozen=True, eq=False)
class Tree:
    """A function of formulas, by its operator's name; a number is a constant."""

    name: str
    args: tuple[Any, ...]


@record(frozen=True, eq=False)
class Sum:
    """Products of leaves and trees, each [n, size], with [rows, size], and a bias of [rows]."""

    products: Mapping[Any, Array]
    bias: Array | None
    rows: int


Formula: TypeAlias = "Given | Tree | Sum | Array | list[Any] | None"
"""What a value of the body is; a list is formulas joined along the last axis, and their sizes."""


class Reading:
    """The body of a loop as formulas."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.found: dict[int, Formula] = {}
        for i in range(course.op.carried):
            self.found[id(course.body.inputs[2 + i])] = Given(i)

    def of(self, value: Value | None) -> Formula:
        if value is None:
            return None
        if value.const is not None:
            return value.const
        if id(value) not in self.found:
            node = value.node
            rule = None if node is None else _RULES.get(node.op.name)
            self.found[id(value)] = None if rule is None or node is None else rule(self, node, value)
        return self.found[id(value)]


def _row(reading: Reading, node: Node, value: Value) -> Formula:
    place = reading.course.one(node.inputs[1])
    x = node.inputs[0]
    outer = x in reading.course.body.inputs[2 + reading.course.op.carried :]
    return Given(None, value) if outer and place is not None and place.slope in (1, -1) else None


def _reshaped(reading: Reading, node: Node, value: Value) -> Formula:
    """The same formula, where the last axis stays as it is."""
    x = node.inputs[0]
    before, after = None if x is None else x.type.shape, value.type.shape
    return reading.of(x) if before and after and before[-1] == after[-1] and value.type.is_static else None


def _joined(reading: Reading, node: Node, value: Value) -> Formula:
    op: Any = node.op
    rank = None if value.type.shape is None else len(value.type.shape)
    if rank is None or op.axis % rank != rank - 1:
        return None
    return [(reading.of(v), v.type.shape[-1]) for v in node.inputs if v is not None and v.type.shape]


def _product(reading: Reading, node: Node, value: Value) -> Formula:
    op: Any = node.op
    x, w, bias = (*node.inputs, None)[:3]
    if w is None or w.const is None or w.const.ndim != 2 or (bias is not None and bias.const is None):
        return None
    if op.trans_a or op.activation is not None or op.residual or op.to is not None or x is None:
        return None
    given = reading.of(x)
    matrix = (w.const if op.trans_b else w.const.T) * w.const.dtype.type(op.alpha)
    products: dict[Any, Array] = {}
    at = 0
    for source, size in given if isinstance(given, list) else [(given, matrix.shape[1])]:
        if not isinstance(source, (Given, Tree)) or not isinstance(size, int):
            return None
        products[source] = matrix[:, at : at + size] + products.get(source, 0)
        at += size
    return Sum(products, None if bias is None else bias.const, matrix.shape[0]) if at == matrix.shape[1] else None


def _added(reading: Reading, node: Node, value: Value) -> Formula:
    x, y = (reading.of(v) for v in node.inputs)
    if x is None or y is None:
        return None
    for a, b in ((x, y), (y, x)):
        if isinstance(a, Sum) and isinstance(b, np.ndarray):
            if b.size not in (1, a.rows) or b.shape[-1:] not in ((), (b.size,)):
                return None
            flat = np.broadcast_to(b.reshape(-1), (a.rows,))
            return Sum(a.products, flat if a.bias is None else a.bias + flat, a.rows)
    if isinstance(x, Sum) and isinstance(y, Sum) and x.rows == y.rows:
        products = dict(x.products)
        for source, matrix in y.products.items():
            products[source] = products[source] + matrix if source in products else matrix
        biases = [s.bias for s in (x, y) if s.bias is not None]
        return Sum(products, sum(biases[1:], biases[0]) if biases else None, x.rows)
    return Tree("Add", (x, y))


def _function(reading: Reading, node: Node, value: Value) -> Formula:
    args = [reading.of(v) for v in node.inputs]
    if any(x is None or isinstance(x, list) for x in args):
        return None
    numbers = (x.item() if isinstance(x, np.ndarray) and x.size == 1 else x for x in args)
    return Tree(node.op.name, tuple(numbers))


def _sliced(reading: Reading, node: Node, value: Value) -> Formula:
    """A part of the last axis."""
    x = node.inputs[0]
    shape = None if x is None else x.type.shape
    if x is None or not shape:
        return None
    op: Any = node.op
    if isinstance(op, Split):
        sizes = [v.type.shape[-1] if v.type.shape else None for v in node.outputs]
        if op.axis % len(shape) != len(shape) - 1 or not all(isinstance(n, int) for n in sizes):
            return None
        first = sum(sizes[: value.index])  # type: ignore[arg-type]
        return _part(reading.of(x), first, first + sizes[value.index])  # type: ignore[operator]
    bounds = taken(reading.course, node, shape)
    if bounds is None or [*bounds] != [len(shape) - 1]:
        return None
    start, end = bounds[len(shape) - 1]
    fixed = not start.slope and not end.slope and isinstance(start.offset, int) and isinstance(end.offset, int)
    return _part(reading.of(x), start.offset, end.offset) if fixed else None


def _part(x: Formula, first: Any, last: Any) -> Formula:
    if isinstance(x, Sum) and 0 <= first < last <= x.rows:
        products = {source: matrix[first:last] for source, matrix in x.products.items()}
        return Sum(products, None if x.bias is None else x.bias[first:last], last - first)
    if isinstance(x, Tree) and len(x.args) == 1:
        inner = _part(x.args[0], first, last)
        return None if inner is None else Tree(x.name, (inner,))
    return None


_RULES: dict[str, Callable[[Reading, Node, Value], Formula]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Identity"), _reshaped),
    **dict.fromkeys(("Sigmoid", "Tanh", "Relu", "Mul", "Sub"), _function),
    **dict.fromkeys(("Split", "Slice"), _sliced),
    "Add": _added,
    "Concat": _joined,
    "Gather": _row,
    "MatMul": _product,
}


# --- cells ------------------------------------------------------------------------------------------------------------


@record(frozen=True)
class Cell:
    """A layer's operator, its gates in the operator's order, and the numbers of its states."""

    op: Any
    gates: tuple[Sum, ...]
    states: tuple[int, ...]
    behind: Sum | None = None
    """Of a GRU that resets behind the product: what is reset."""


def _terms(x: Formula, name: str) -> Iterator[tuple[Any, Any]]:
    """Both orders of the operands of a sum or product."""
    if isinstance(x, Tree) and x.name == name:
        yield x.args
        yield x.args[::-1]


def _gate(x: Formula, names: Sequence[str] = ("Sigmoid", "Tanh", "Relu")) -> tuple[str, Sum] | None:
    if isinstance(x, Tree) and x.name in names and isinstance(x.args[0], Sum):
        return x.name, x.args[0]
    return None


def _lstm(states: Sequence[Formula]) -> Cell | None:
    """Of c' = f * c + i * g, h' = o * act(c')."""
    for h, c in ((0, 1), (1, 0)):
        for kept, new in _terms(states[c], "Add"):
            for forget, old in _terms(kept, "Mul"):
                for enter, made in _terms(new, "Mul"):
                    for out, seen in _terms(states[h], "Mul"):
                        gates = [_gate(v) for v in (enter, out, forget, made)]
                        if None in gates or not isinstance(old, Given) or old.state != c:
                            continue
                        if not isinstance(seen, Tree) or len(seen.args) != 1 or seen.args[0] is not states[c]:
                            continue
                        (i, wi), (o, wo), (f, wf), (g, wc) = gates  # type: ignore[misc]
                        if i == o == f:
                            return Cell(LSTM(activations=(i, g, seen.name)), (wi, wo, wf, wc), (h, c))
    return None


def _gru(states: Sequence[Formula]) -> Cell | None:
    """Of h' = (1 - z) * g + z * h."""
    for kept, new in _terms(states[0], "Add"):
        for z, old in _terms(kept, "Mul"):
            for rest, made in _terms(new, "Mul"):
                update = _gate(z)
                if not isinstance(rest, Tree) or rest.name != "Sub" or rest.args[1] is not z or update is None:
                    continue
                if isinstance(rest.args[0], float) and rest.args[0] == 1 and isinstance(old, Given) and old.state == 0:
                    return _with_reset(update, made)
    return None


def _with_reset(update: tuple[str, Sum], made: Formula) -> Cell | None:
    """A GRU by its update gate and what it takes in; the reset is behind the product, or before it."""
    if not isinstance(made, Tree) or made.name not in ("Tanh", "Relu"):
        return None
    for x, reset in _terms(made.args[0], "Add"):
        for r, behind in _terms(reset, "Mul"):
            gate = _gate(r)
            if gate is not None and isinstance(x, Sum) and isinstance(behind, Sum) and gate[0] == update[0]:
                op = GRU(activations=(update[0], made.name), linear_before_reset=True)
                return Cell(op, (update[1], gate[1], x), (0,), behind)
    whole = made.args[0]
    if not isinstance(whole, Sum):
        return None
    for source in whole.products:
        for r, old in _terms(source, "Mul"):
            gate = _gate(r)
            if gate is None or gate[0] != update[0] or not isinstance(old, Given) or old.state != 0:
                continue
            if old in whole.products:
                return None
            products = {old if s is source else s: matrix for s, matrix in whole.products.items()}
            new = Sum(products, whole.bias, whole.rows)
            return Cell(GRU(activations=(update[0], made.name)), (update[1], gate[1], new), (0,))
    return None


def _rnn(states: Sequence[Formula]) -> Cell | None:
    gate = _gate(states[0])
    return None if gate is None else Cell(RNN(activations=(gate[0],)), (gate[1],), (0,))


def loop_of_layer(m: Match, b: Builder) -> Result:
    course = Course(m.root)
    count = course.op.carried
    if not course.is_exact or not isinstance(course.trips, int) or not course.trips:
        return None
    if course.op.listed or count not in (1, 2):
        return None
    reading = Reading(course)
    states = [reading.of(course.result(i)) for i in range(count)]
    cell = _lstm(states) if count == 2 else _gru(states) or _rnn(states)
    if cell is None:
        return m.refuse("the body is no cell of a recurrent layer")
    leaves = {s for gate in (*cell.gates, cell.behind) if gate is not None for s in gate.products}
    rows = [s for s in leaves if isinstance(s, Given) and s.value is not None]
    if len(rows) != 1 or any(not isinstance(s, Given) or s.state not in (None, cell.states[0]) for s in leaves):
        return m.refuse("not one input and one state")
    if cell.behind is not None and (rows[0] in cell.behind.products or cell.gates[2].products.keys() != {rows[0]}):
        return m.refuse("what is reset is not of the state alone, or the rest is not of the input alone")
    h = course.result(cell.states[0])
    scanned = course.body.outputs[1 + count :]
    if any(v is not h and (shown(v) is not h or not v.type.is_static) for v in scanned):
        return m.refuse("the loop gives more than the state")
    return _built(course, cell, rows[0], b)


def _built(course: Course, cell: Cell, row: Given, b: Builder) -> Result:
    h = course.result(cell.states[0])
    x = _all_rows(course, row, b)
    dtype = h.type.dtype
    if x is None or not x.type.is_static or not h.type.is_static or h.type.rank != 2 or dtype not in (F32, F64):
        return None
    batch, hidden = h.type.dims
    if any(g.rows != hidden for g in cell.gates):
        return None
    _, rows, size = x.type.dims
    if rows != batch:
        return None
    parts = [*cell.gates[:-1], cell.behind or cell.gates[-1]]
    w = np.concatenate([g.products.get(row, np.zeros((hidden, size), dtype)) for g in cell.gates])
    r = np.concatenate([_of_state(g, hidden, dtype) for g in parts])
    biases = [np.zeros(hidden, dtype) if g.bias is None else g.bias for g in cell.gates]
    second = [np.zeros(hidden, dtype)] * len(parts)
    if cell.behind is not None and cell.behind.bias is not None:
        second[-1] = cell.behind.bias
    bias = np.concatenate([*biases, *second]).astype(dtype)
    initial = [b(Reshape(), course.initial(i), np.array([1, batch, hidden], I64)) for i in cell.states]
    made = b.node(cell.op, x, w[None].astype(dtype), r[None].astype(dtype), bias[None], None, *initial,
                  name=course.node.name).outputs
    last: list[Value] = [h] * len(cell.states)
    for i, value in zip(cell.states, made[1:], strict=True):
        last[i] = b(Squeeze(), value, np.array([0], I64))
    scanned = [b(Reshape(), made[0], np.array([course.trips, *v.type.dims], I64))
               for v in course.body.outputs[1 + len(last) :]]
    return (*last, *scanned)


def _of_state(gate: Sum, hidden: int, dtype: Any) -> Array:
    """The product with the state."""
    found = [matrix for s, matrix in gate.products.items() if isinstance(s, Given) and s.state is not None]
    return found[0] if found else np.zeros((hidden, hidden), dtype)


def _all_rows(course: Course, row: Given, b: Builder) -> Value | None:
    """The rows that the iterations read, in their order: [trips, n, size]."""
    node: Any = row.value and row.value.node
    op, (inner, at) = node.op, node.inputs
    place = course.one(at)
    assert isinstance(op, Gather)
    assert isinstance(place, Progress)
    outer = course.node.inputs[course.body.inputs.index(inner)]
    shape, trips = inner.type.shape, course.trips
    if outer is None or shape is None or not inner.type.is_static or not isinstance(trips, int):
        return None
    axis = op.axis % len(shape)
    if axis == len(shape) - 1:
        return None
    first, last = place.at(0), place.at(trips - 1)
    if not isinstance(first, int) or not isinstance(last, int) or not course.is_within(place, 0, shape[axis] - 1):
        return None
    if (first, last) != (0, shape[axis] - 1):
        end = last + place.slope
        ends = np.array([end if end >= 0 else -(2**62)], I64)
        outer = b(Slice(), outer, np.array([first], I64), ends, np.array([axis], I64), np.array([place.slope], I64))
    order = (axis, *(i for i in range(len(shape)) if i != axis))
    outer = b(Transpose(order), outer) if axis else outer
    return b(Reshape(), outer, np.array([trips, -1, shape[-1]], I64))
