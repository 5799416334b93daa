"""Control flow.  A body is a graph that takes all captured values as inputs, so that it refers to nothing outside.

An operator says what it does by `ControlFlow.execute`, which runs its graphs through a callback: the interpreter, the
references and the runtime each bring their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bolt_numba.base.budget import CALL, ask, spend, unasked
from bolt_numba.base.errors import DTypeError
from bolt_numba.base.records import record
from bolt_numba.base.types import (
    BOOL,
    I64,
    Array,
    Dim,
    NestedType,
    OptionalType,
    SequenceType,
    Shape,
    Sym,
    TensorType,
    dtype_name,
    optional_of,
    sequence_of,
)
from bolt_numba.ops.content import bounded
from bolt_numba.ops.evaluate import evaluate
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import known_ints, want_dim, want_dims, want_one

if TYPE_CHECKING:  # operators know nothing of graphs at run time
    from bolt_numba.ir.graph import Graph

Run: TypeAlias = "Callable[[Graph, Sequence[Any]], Sequence[Any]]"
"""Runs a graph: its inputs in order to its outputs in order."""
Ahead: TypeAlias = "Callable[[Graph, Trips], bool]"
"""Runs iterations of a body without Python between them, if it can; whether it ran any."""


class ControlFlow(Op):
    """An operator that runs graphs."""

    @property
    def branches(self) -> tuple[Graph, ...]:
        """Graphs of which one takes the place of the node, where operand 0 is known: `chosen`.

        Their inputs are the other operands.
        """
        return ()

    def chosen(self, known: Array) -> Graph:
        """The one of `branches` that runs for this content of operand 0."""
        raise NotImplementedError(self.name)

    def execute(self, args: Sequence[Any], run: Run, ahead: Ahead | None = None) -> Sequence[Any]:
        """Outputs for the operands ``args`` (None for an omitted one), running graphs through ``run`` or ``ahead``."""
        raise NotImplementedError(self.name)

    def reference(self, *args: Any) -> tuple[Any, ...]:
        return tuple(self.execute(args, run_by_references))


def run_by_references(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Outputs of a graph for its inputs, each in order."""
    arrays: dict[int, Any] = {id(v): a for v, a in zip(graph.inputs, inputs, strict=True)}

    def read(value: Any) -> Any:
        if value is None:
            return None
        return value.const if value.const is not None else arrays[id(value)]

    for node in graph.nodes:
        results = evaluate(node.op, [read(v) for v in node.inputs])
        arrays.update(zip(map(id, node.outputs), results, strict=False))
    return [read(v) for v in graph.outputs]


def _agreed(a: Dim, b: Dim) -> Dim:
    return a if a == b else fresh_dim("branch")


def joined(what: str, a: TensorType, b: TensorType) -> TensorType:
    """What is true of both types; raises DTypeError."""
    if isinstance(a, NestedType) or isinstance(b, NestedType):
        return _joined_nested(what, a, b)
    if a.dtype != b.dtype:
        got = f"{dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
        raise DTypeError(f"{what}: dtypes of one result: got {got}, wanted the same")
    shape: Shape | None = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(_agreed(x, y) for x, y in zip(a.shape, b.shape, strict=True))
    return TensorType(a.dtype, shape)


def _joined_nested(what: str, a: TensorType, b: TensorType) -> TensorType:
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner = [t.element if isinstance(t, OptionalType) else t for t in (a, b)]
        return optional_of(joined(what, *inner))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return sequence_of(joined(what, a.element, b.element))
    if a != b:
        raise DTypeError(f"{what}: types of one result: got {a} and {b}, wanted the same")
    return a


def _want_captures(owner: Op, body: Graph, first: int, given: Sequence[TensorType | None]) -> None:
    """Raise unless the operands ``given`` may be the inputs of a body from its input ``first`` on."""
    wanted = [v.type for v in body.inputs[first:]]
    owner.fail_if(len(wanted) != len(given), "number of captures", len(given), len(wanted))
    for i, (t, inner) in enumerate(zip(given, wanted, strict=True)):
        if t is None or isinstance(inner, NestedType):
            continue
        want_dtype(owner, f"capture {i}", t.dtype, inner.dtype)
        if inner.shape is not None:
            want_dims(owner, f"capture {i}", t, *(d if isinstance(d, int) else None for d in inner.shape))


def _first(owner: Op, what: str, array: Array) -> Any:
    """What an operand of one element holds; raises ShapeError for others."""
    owner.fail_if(array.size != 1, f"shape of {what}", list(array.shape), "one element")
    return array.reshape(-1)[0]


def _sizes(body: Graph, shapes: Sequence[Shape | None]) -> dict[str, int]:
    """What the symbols that are a whole dimension of a body's inputs stand for, when these have ``shapes``."""
    found: dict[str, int] = {}
    for t, shape in zip([v.type for v in body.inputs], shapes, strict=True):
        for dim, size in zip(getattr(t, "shape", None) or (), shape or (), strict=False):
            if isinstance(dim, Sym) and isinstance(size, int) and not dim.const and [f for _, f in dim.terms] == [1]:
                found.setdefault(dim.terms[0][0], size)
    return found


def _stacked(owner: Op, chunks: Sequence[Array], like: TensorType, sizes: dict[str, int], axis: int = 0) -> Array:
    """Results of all iterations, some along the first axis of each chunk, along a new axis.

    Of no iterations: as ``like`` says, where ``sizes`` knows its symbols; else 0.  Raises ShapeError where results
    differ in shape.
    """
    if chunks:
        try:
            whole = chunks[0] if len(chunks) == 1 and chunks[0].base is None else np.concatenate(chunks)
            return np.ascontiguousarray(np.moveaxis(whole, 0, axis)) if axis else whole
        except ValueError as error:
            shapes = sorted({np.shape(a)[1:] for a in chunks})
            raise owner.fail(f"results to stack along axis {axis}", shapes, "one shape with such an axis") from error
    dims = [_size(d, sizes) for d in like.shape or ()]
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, 0)
    return np.empty(dims, like.dtype)


def _size(dim: Dim, sizes: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    known = all(atom in sizes for atom, _ in dim.terms)
    return max(0, dim.const + sum(factor * sizes[atom] for atom, factor in dim.terms)) if known else 0


class Growth:
    """What the iterations of a loop leave behind, asked for again whenever it has doubled."""

    def __init__(self, what: str) -> None:
        self.what, self.nbytes, self.granted = what, 0, unasked()

    def add(self, results: Sequence[Any]) -> None:
        """Count the results of an iteration, which are kept and in the end stacked."""
        self.nbytes += sum(2 * r.nbytes + OBJECT for r in results if isinstance(r, np.ndarray))
        if self.nbytes > self.granted:
            ask(self.nbytes, f"{self.what}: results of its iterations")
            self.granted = 2 * self.nbytes


OBJECT = 128
"""Bytes of an array beside its elements."""


@record(eq=False)
class Trips:
    """Iterations of a body: which is the next, and what it is given.

    limit: how many at most, None: any.  is_counted: whether the body takes its number and whether it runs, and returns
    whether another follows.  sliced: operands of which an iteration takes one row.  scanned: of each result that is
    kept, chunks with the results of some iterations along the first axis; of the last ``listed`` they may be of any
    shapes, a chunk each.  pace: iterations that may run before Python looks at limits again; granted: bytes that need
    not be asked for.  later: the first that may run ahead, ``wait`` after one that could not.
    """

    body: Graph
    carried: list[Any]
    captures: Sequence[Any]
    limit: int | None
    is_counted: bool
    scanned: list[list[Array]]
    sliced: Sequence[Array] = ()
    keep: bool = True
    listed: int = 0
    number: int = 0
    pace: int = 4
    granted: int = 0
    later: int = 0
    wait: int = 1

    def run(self, owner: Op, run: Run, ahead: Ahead | None) -> None:
        """Run all iterations."""
        room = Growth(owner.name)
        self.granted = room.granted
        while self.keep and (self.limit is None or self.number < self.limit):
            spend(CALL, owner.name)
            if ahead is None or not ahead(self.body, self):
                self._one(owner, run)
            room.add([kept[-1] for kept in self.scanned])

    def inputs(self) -> list[Any]:
        """What the next iteration is given."""
        head = [np.array(self.number, I64), np.array(self.keep)] if self.is_counted else []
        rows = [np.asarray(a[self.number, ...], order="C") for a in self.sliced]
        return [*head, *self.carried, *rows, *self.captures]

    def _one(self, owner: Op, run: Run) -> None:
        outs = run(self.body, self.inputs())
        if self.is_counted:
            self.keep = bool(_first(owner, "the body's cond", outs[0]))
            outs = outs[1:]
        self.carried = list(outs[: len(self.carried)])
        for kept, value in zip(self.scanned, outs[len(self.carried) :], strict=True):
            kept.append(np.asarray(value)[np.newaxis])
        self.number += 1


@op("If")
class If(ControlFlow):
    """The results of one of two graphs, chosen by cond.

    cond: bool of one element · captures: the inputs of both graphs -> the outputs of either; a dimension or rank on
    which the graphs do not agree is unknown.  Source: ONNX If-25.
    """

    then_branch: Graph
    else_branch: Graph
    value_inputs = (0,)
    data_bounds = bounded(cond="which branch runs; read in Python")

    def infer(self, cond: TensorType, *captures: TensorType | None) -> tuple[TensorType, ...]:
        want_dtype(self, "cond", cond.dtype, BOOL)
        want_one(self, cond=cond)
        branches = (self.then_branch, self.else_branch)
        for branch in branches:
            _want_captures(self, branch, 0, captures)
        count = len(self.then_branch.outputs)
        if len(self.else_branch.outputs) != count:
            raise self.fail("outputs of else_branch", len(self.else_branch.outputs), count)
        first, second = ([v.type for v in branch.outputs] for branch in branches)
        if cond.known is not None:
            taken = first if cond.known.reshape(-1)[0] else second
            return tuple(t.with_value(None) for t in taken)
        return tuple(joined(self.name, a, b) for a, b in zip(first, second, strict=True))

    @property
    def branches(self) -> tuple[Graph, ...]:
        return self.then_branch, self.else_branch

    def chosen(self, known: Array) -> Graph:
        return self.then_branch if _first(self, "cond", known) else self.else_branch

    def execute(self, args: Sequence[Any], run: Run, ahead: Ahead | None = None) -> Sequence[Any]:
        return run(self.chosen(args[0]), args[1:])


@op("Loop")
class Loop(ControlFlow):
    """Runs a graph again and again, at most ``trip_count`` times, while ``cond`` stays true.

    trip_count: i64 of one element or None · cond: bool of one element or None · ``carried`` values that each iteration
    takes and gives anew (their shapes may change) · captures.  body: (iteration i64, cond, carried…, captures…) ->
    (cond, carried…, scanned…).  Outputs: the last carried values, and each scanned one stacked along a new first axis;
    the last ``listed`` of them are sequences instead, of tensors of any shapes.  Source: ONNX Loop-25.
    """

    body: Graph
    carried: int
    listed: int = 0
    least_operands = 2
    data_bounds = bounded(
        trip_count="how often the body runs; read in Python", cond="whether the body runs; read in Python"
    )

    def infer(
        self, trip_count: TensorType | None, cond: TensorType | None, *values: TensorType
    ) -> tuple[TensorType, ...]:
        inner = [v.type for v in self.body.outputs]
        want_dtypes(self, (I64,), trip_count=trip_count)
        want_dtypes(self, (BOOL,), cond=cond)
        want_one(self, trip_count=trip_count, cond=cond)
        wanted = len(self.body.inputs) - 2
        self.fail_if(len(values) != wanted, "operands after trip_count and cond", len(values), wanted)
        if not 0 <= self.carried <= min(len(values), len(inner) - 1):
            raise self.fail("carried", self.carried, f"0 to {min(len(values), len(inner) - 1)}")
        stacked = len(inner) - self.listed
        if not 1 + self.carried <= stacked <= len(inner):
            raise self.fail("listed", self.listed, f"0 to {len(inner) - 1 - self.carried}")
        _want_captures(self, self.body, 2 + self.carried, values[self.carried :])
        pairs = zip(values[: self.carried], inner[1 : 1 + self.carried], strict=True)
        last = [joined(self.name, a, b) for a, b in pairs]
        trips = self._trips(trip_count, cond)
        scanned = [_scan_type(t, trips, 0) for t in inner[1 + self.carried : stacked]]
        return (*last, *scanned, *(sequence_of(TensorType(t.dtype, None)) for t in inner[stacked:]))

    def _trips(self, trip_count: TensorType | None, cond: TensorType | None) -> Dim:
        """How many iterations there are: the number given, where no condition may end the loop earlier."""
        number = known_ints(trip_count) if trip_count is not None else None
        again = self.body.outputs[0]
        is_true = again.const is not None and again.const.size == 1 and bool(again.const.all())
        endless = again is self.body.inputs[1] or is_true
        return max(0, number[0]) if number and cond is None and endless else fresh_dim("trips")

    def execute(self, args: Sequence[Any], run: Run, ahead: Ahead | None = None) -> Sequence[Any]:
        limit = None if args[0] is None else int(_first(self, "trip_count", args[0]))
        keep = args[1] is None or bool(_first(self, "cond", args[1]))
        types = [v.type for v in self.body.outputs[1 + self.carried :]]
        ends = 2 + self.carried
        kept: list[list[Array]] = [[] for _ in types]
        trips = Trips(self.body, list(args[2:ends]), args[ends:], limit, True, kept, keep=keep, listed=self.listed)
        trips.run(self, run, ahead)
        sizes = {} if all(kept) else _sizes(self.body, [None, None, *(getattr(a, "shape", None) for a in args[2:])])
        chunks, count = list(zip(trips.scanned, types, strict=True)), len(types) - self.listed
        lists = ([chunk[i, ...] for chunk in kept for i in range(len(chunk))] for kept, _ in chunks[count:])
        return [*trips.carried, *(_stacked(self, kept, t, sizes) for kept, t in chunks[:count]), *lists]


def _scan_type(t: TensorType, length: Dim, axis: int) -> TensorType:
    if t.shape is None:
        return TensorType(t.dtype, None)
    dims = list(t.shape)
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, length)
    return TensorType(t.dtype, tuple(dims))


@op("Scan")
class Scan(ControlFlow):
    """Runs a graph once for each slice of its scanned inputs, carrying a state.

    Operands: state…, scanned inputs (``scans`` of them), captures…; body: (state…, one slice of each…, captures…) ->
    (state…, one slice of each result…).  Axes and directions (1: from the end) per scanned input and result.
    Outputs: the last state, the stacked results.  Source: ONNX Scan-25.
    """

    body: Graph
    states: int
    scans: int
    input_axes: tuple[int, ...] = ()
    input_directions: tuple[int, ...] = ()
    output_axes: tuple[int, ...] = ()
    output_directions: tuple[int, ...] = ()

    def infer(self, *values: TensorType) -> tuple[TensorType, ...]:
        self.fail_if(len(values) != len(self.body.inputs), "operands", len(values), len(self.body.inputs))
        inner, ends = [v.type for v in self.body.outputs], self.states + self.scans
        if self.scans < 1 or not 0 <= self.states <= min(len(values) - self.scans, len(inner)):
            raise self.fail("states and scans", (self.states, self.scans), f"operands among {len(values)}")
        _want_captures(self, self.body, ends, values[ends:])
        last = [joined(self.name, a, b) for a, b in zip(values[: self.states], inner[: self.states], strict=True)]
        length = self._trips(values[self.states : ends])
        results = inner[self.states :]
        axes = [self._axis(self.output_axes, i) for i in range(len(results))]
        return (*last, *(_scan_type(t, length, axis) for t, axis in zip(results, axes, strict=True)))

    def _trips(self, scanned: Sequence[TensorType]) -> Dim:
        """The common length of the scanned inputs; their slices must be what the body takes."""
        length: Dim | None = None
        for i, t in enumerate(scanned):
            if t.shape is None:
                continue
            axis = normalise_axis(self, self._axis(self.input_axes, i), len(t.shape))
            inner = self.body.inputs[self.states + i].type
            want_dtype(self, f"scanned input {i}", t.dtype, inner.dtype)
            if inner.shape is not None and len(inner.shape) != len(t.shape) - 1:
                raise self.fail(f"rank of scanned input {i}", t, f"{len(inner.shape) + 1}")
            if length is not None:
                want_dim(self, f"length of scanned input {i}", t.shape[axis], length)
            length = t.shape[axis] if length is None or isinstance(length, Sym) else length
        return fresh_dim("trips") if length is None else length

    @staticmethod
    def _axis(given: tuple[int, ...], i: int) -> int:
        return given[i] if i < len(given) else 0

    def execute(self, args: Sequence[Any], run: Run, ahead: Ahead | None = None) -> Sequence[Any]:
        ends = self.states + self.scans
        scanned = [
            np.moveaxis(a, normalise_axis(self, self._axis(self.input_axes, i), a.ndim), 0)[
                :: -1 if self._axis(self.input_directions, i) else 1
            ]
            for i, a in enumerate(args[self.states : ends])
        ]
        lengths = {len(a) for a in scanned}
        self.fail_if(len(lengths) != 1, "lengths of the scanned inputs", sorted(lengths), "one length")
        kept: list[list[Array]] = [[] for _ in self.body.outputs[self.states :]]
        trips = Trips(self.body, list(args[: self.states]), args[ends:], lengths.pop(), False, kept, scanned)
        trips.run(self, run, ahead)
        shapes = [getattr(a, "shape", None) for a in args]
        shapes[self.states : ends] = [a.shape[1:] for a in scanned]
        sizes = _sizes(self.body, shapes)
        stacked = []
        for i, (chunks, value) in enumerate(zip(kept, self.body.outputs[self.states :], strict=True)):
            is_reversed = self._axis(self.output_directions, i)
            ordered = [chunk[::-1] for chunk in chunks[::-1]] if is_reversed else chunks
            stacked.append(_stacked(self, ordered, value.type, sizes, self._axis(self.output_axes, i)))
        return [*trips.carried, *stacked]
