"""Loops that write and read rows: what passes make of them gives what the loop gave, places out of range included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.converters.onnx.writing.write import save_onnx
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import BOOL, F32, F64, I8, I32, I64, STRING, Array, Sym, TensorType
from tests.loop_graphs import i64, line, looped, o, row_at, written

DTYPES = (F32, F64, I8, I64, BOOL, STRING)


def some(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    numbers = rng.integers(-9, 10, shape)
    if dtype == STRING:
        return numbers.astype(str).astype(object)
    return (numbers > 0) if dtype == BOOL else numbers.astype(dtype)


def outcome(run: Any) -> dict[str, Array] | str:
    """Results by name, or that it failed."""
    try:
        return dict(run())
    except BoltError:
        return "fails"


def same(graph: Graph, feeds: dict[str, Array], threads: int = 1) -> Graph:
    """Hold what the passes leave, and a session, to the graph; the inputs stay as they are.  The optimised graph."""
    kept = {name: x.copy() for name, x in feeds.items()}
    wanted = outcome(lambda: interpret(graph, feeds))
    made = run_pipeline(graph, check=True)
    session = bn.compile(graph, threads=threads)
    names = graph.output_names
    ran = [lambda: interpret(made, feeds), *[lambda: dict(zip(names, session.run(None, feeds), strict=True))] * 2]
    for got in map(outcome, ran):
        if isinstance(wanted, str) or isinstance(got, str):
            assert got == wanted
            continue
        for name, array in wanted.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
            np.testing.assert_array_equal(got[name], array, err_msg=name)
    for name, x in kept.items():
        np.testing.assert_array_equal(feeds[name], x)
    return made


def body_operators(graph: Graph) -> list[str]:
    return [node.op.name for _, body in graph.subgraphs() for node in body.nodes]


class Rows:
    """A loop that writes rows of a table into a tensor, drawn at random."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.dtype = DTYPES[seed % len(DTYPES)]
        self.shape = [int(d) for d in rng.integers(1, 5, rng.integers(1, 4))]
        self.axis = int(rng.integers(len(self.shape)))
        size = self.shape[self.axis] = int(rng.integers(1, 7))
        self.trips = int(rng.choice([size, size, size - 1, size + 1, 0]))
        lines = ((1, 0), (1, 0), (-1, size - 1), (0, 1), (2, 0), (1, 1), (1, -1), (1, -2))
        self.slope, self.offset = lines[seed // 6 % 8]
        self.reads = bool(rng.integers(2))

    def graph(self) -> tuple[Graph, dict[str, Array]]:
        graph = Graph("rows")
        b = Builder(graph)
        table = self.shape.copy()
        table[self.axis] = max(1, self.trips)
        x, t = (graph.add_input(n, TensorType(self.dtype, tuple(s))) for n, s in (("x", self.shape), ("t", table)))

        def body(inner: Builder, trip: Value, going_on: Value, y: Value, rows: Value) -> Any:
            row = row_at(inner, rows, line(inner, trip, 1, 0), self.axis)
            place = line(inner, trip, self.slope, self.offset)
            after = written(inner, y, place, row, self.axis)
            scanned = [inner(o("Shape"), y)] + [inner(o("Identity"), y)] * self.reads
            return None, [after], scanned if self.reads else scanned[:0]

        out = looped(b, body, i64(self.trips), [x], [t], open_axes=[self.axis])
        for i, v in enumerate(out):
            graph.add_output(v, f"out{i}")
        return graph, {"x": some(self.rng, self.dtype, *self.shape), "t": some(self.rng, self.dtype, *table)}


def chosen(shape: list[int], axis: int, trips: int, slope: int, offset: int, reads: bool) -> Any:
    """Such a loop over floats."""
    case = Rows(0)
    case.dtype, case.shape, case.axis, case.trips = F32, shape, axis, trips
    case.slope, case.offset, case.reads = slope, offset, reads
    return case.graph()


@pytest.mark.parametrize("seed", range(96))
def test_rows_are_written_as_by_slices(seed: int) -> None:
    same(*Rows(seed).graph())


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_nobody_reads_are_results(axis: int) -> None:
    made = same(*chosen([5, 4], axis, 3, 1, 1, False))
    assert body_operators(made) in (["Gather", "Reshape"], ["Reshape", "Gather", "Reshape"])


@pytest.mark.parametrize(("axis", "scatter"), [(0, "ScatterND"), (1, "ScatterElements")])
def test_rows_that_are_read_are_scattered(axis: int, scatter: str) -> None:
    """The tensor is a result of every iteration, so what was before it must stay."""
    made = same(*chosen([4, 4], axis, 4, 1, 0, True))
    assert scatter in body_operators(made)
    assert "Concat" not in body_operators(made)


def test_places_that_may_be_out_of_range_stay() -> None:
    for trips, slope, offset in ((5, 1, 0), (4, 1, 1), (4, 1, -1), (2, 0, 4)):
        made = same(*chosen([4, 2], 0, trips, slope, offset, False))
        assert "Concat" in body_operators(made), (trips, slope, offset)


def test_the_tensor_before_a_write_is_kept_where_it_is_wanted() -> None:
    """Two tensors that begin as one, one of them written: the other still holds what was there."""
    graph = Graph("twice")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (4, 3)))

    def body(inner: Builder, trip: Value, going_on: Value, y: Value, before: Value) -> Any:
        row = inner(o("Add"), row_at(inner, before, line(inner, trip, 1, 0), 0), np.array([[10.0]], F32))
        after = written(inner, y, line(inner, trip, 1, 0), row, 0)
        return None, [after, y], [inner(o("ReduceSum", keepdims=False), before, i64(0, 1))]

    for i, v in enumerate(looped(b, body, i64(4), [x, x], open_axes=[0, 0])):
        graph.add_output(v, f"out{i}")
    same(graph, {"x": some(np.random.default_rng(1), F32, 4, 3)})


@pytest.mark.parametrize("size", [0, 1, 4])
def test_sizes_that_only_the_run_tells(size: int) -> None:
    """The number of trips is the size of the tensor, whatever that is."""
    graph = Graph("open")
    b = Builder(graph)
    n = Sym("n")
    x, t = (graph.add_input(name, TensorType(F32, (n, 2))) for name in "xt")
    count = b(o("Gather"), b(o("Shape"), x), np.array(0, I64))

    def body(inner: Builder, trip: Value, going_on: Value, y: Value, rows: Value) -> Any:
        place = line(inner, trip, 1, 0)
        return None, [written(inner, y, place, row_at(inner, rows, place, 0), 0)], []

    graph.add_output(looped(b, body, count, [x], [t], open_axes=[0])[0], "out")
    rng = np.random.default_rng(size)
    made = same(graph, {"x": some(rng, F32, size, 2), "t": some(rng, F32, size, 2)})
    assert "Concat" not in body_operators(made)


# ---- sequences


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("stacks", [False, True])
def test_sequences_that_only_grow_are_lists_of_results(trips: int, stacks: bool, tmp_path: Path) -> None:
    """Tensors of another size in each iteration; what is written to an ONNX file carries a sequence again."""
    graph = Graph("growing")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (5, 2)))

    def body(inner: Builder, trip: Value, going_on: Value, total: Value, seq: Value, rows: Value) -> Any:
        part = inner(o("Slice"), rows, i64(0), line(inner, trip, 1, 1), i64(0))
        total = inner(o("Add"), total, inner(o("ReduceSum", keepdims=False), part, i64(0, 1)))
        return None, [total, inner(o("SequenceInsert"), seq, part)], [total] if stacks else []

    carried = [np.array(0, F32), b(o("SequenceEmpty"))]
    total, seq, *more = looped(b, body, i64(trips), carried, [x])
    for i, v in enumerate([total, *more, b(o("SequenceLength"), seq)]):
        graph.add_output(v, f"out{i}")
    if trips:
        graph.add_output(b(o("ConcatFromSequence", 0), seq), "joined")
    feeds = {"x": some(np.random.default_rng(trips), F32, 5, 2)}
    made = same(graph, feeds)
    (node,) = [n for n in made.nodes if n.op.name == "Loop"]
    op: Any = node.op
    assert op.listed == 1
    save_onnx(made, tmp_path / "again.onnx")
    for name, array in bn.compile(tmp_path / "again.onnx")(**feeds).items():
        np.testing.assert_array_equal(array, interpret(graph, feeds)[name])


def test_numbers_in_a_list_are_tensors() -> None:
    """Also where the iterations run in one native call, whose results lie beside each other."""
    graph = Graph("numbers")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, ()))

    def body(inner: Builder, trip: Value, going_on: Value, total: Value, seq: Value, step: Value) -> Any:
        total = inner(o("Add"), total, step)
        return None, [total, inner(o("SequenceInsert"), seq, total)], []

    seq = looped(b, body, i64(50), [np.array(0, F32), b(o("SequenceEmpty"))], [x])[1]
    graph.add_output(seq, "seq")
    session = bn.compile(graph, threads=1)
    for _ in range(2):
        (got,) = session.run(None, {"x": np.array(2, F32)})
        assert [(type(v), v.shape, float(v)) for v in got] == [(np.ndarray, (), 2.0 * i) for i in range(1, 51)]


def test_a_sequence_that_is_read_is_carried() -> None:
    graph = Graph("read")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (2,)))

    def body(inner: Builder, trip: Value, going_on: Value, seq: Value, row: Value) -> Any:
        return None, [inner(o("SequenceInsert"), seq, row)], [inner(o("SequenceLength"), seq)]

    seq, counts = looped(b, body, i64(3), [b(o("SequenceEmpty"))], [x])
    graph.add_output(counts, "counts")
    graph.add_output(b(o("ConcatFromSequence", 0), seq), "joined")
    made = same(graph, {"x": np.array([1, 2], F32)})
    assert [getattr(n.op, "listed", None) for n in made.nodes if n.op.name == "Loop"] == [0]


# ---- counters and conditions


def counting(start: int, step: int, limit: int, name: str, dtype: Any, more: bool) -> Graph:
    """A WHILE: counts from ``start`` while a comparison with ``limit`` holds.  more: and while a sum is small."""
    graph = Graph("while")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, ()))

    def body(inner: Builder, trip: Value, going_on: Value, n: Value, held: Value, total: Value) -> Any:
        after = inner(o("Add"), n, inner.const(np.array(step, dtype)))
        added = inner(o("Add"), total, inner(o("Add"), held, inner(o("Cast", F32), n)))
        again = inner(o(name), after, inner.const(np.array(limit, dtype)))
        if more:
            again = inner(o("And"), again, inner(o("Less"), added, np.array(40, F32)))
        return again, [after, held, added], [inner(o("Cast", I64), n)]

    carried: Sequence[Any] = [np.array(start, dtype), x, np.array(0, F32)]
    for i, v in enumerate(looped(b, body, None, carried, condition=np.array(True))):
        graph.add_output(v, f"out{i}")
    return graph


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", [I32, I64])
@pytest.mark.parametrize(("start", "step", "limit", "name"), [
    (0, 1, 7, "Less"), (0, 1, 7, "LessOrEqual"), (3, 2, 8, "Less"), (5, 1, 5, "Less"), (9, 1, 5, "Less"),
    (7, -1, 0, "Greater"), (7, -2, 0, "GreaterOrEqual"), (-3, 3, 10, "Less"),
])  # fmt: skip
def test_conditions_become_numbers_of_trips(
    start: int, step: int, limit: int, name: str, dtype: Any, more: bool
) -> None:
    made = same(counting(start, step, limit, name, dtype, more), {"x": np.array(1.5, F32)})
    (node,) = [n for n in made.nodes if n.op.name == "Loop"]
    op: Any = node.op
    assert node.inputs[0] is not None
    assert op.carried == (2 if more else 1)  # the counter's end is wanted, and only the run tells it


@pytest.mark.parametrize("trips", [0, 2, 5, 9])
def test_a_condition_does_not_replace_a_number_of_trips_that_only_the_run_tells(trips: int) -> None:
    graph = Graph("both")
    b = Builder(graph)
    count, x = graph.add_input("count", TensorType(I64, ())), graph.add_input("x", TensorType(F32, ()))

    def body(inner: Builder, trip: Value, going_on: Value, total: Value) -> Any:
        again = inner(o("Less"), trip, inner.const(np.array(5, I64)))
        return again, [inner(o("Add"), total, inner.const(np.array(1, F32)))], [inner(o("Identity"), total)]

    for i, v in enumerate(looped(b, body, count, [x])):
        graph.add_output(v, f"out{i}")
    feeds = {"count": np.array(trips, I64), "x": np.array(0.5, F32)}
    same(graph, feeds)
    total, kept = interpret(run_pipeline(graph), feeds).values()
    assert (total, len(kept)) == (0.5 + min(trips, 6), min(trips, 6))


def test_a_counter_that_leaves_its_dtype_is_no_number_of_trips() -> None:
    graph = counting(2**31 - 3, 1, 2**31 - 1, "LessOrEqual", I32, False)
    made = run_pipeline(graph)
    (node,) = [n for n in made.nodes if n.op.name == "Loop"]
    assert node.inputs[0] is None


def test_what_a_loop_holds_is_captured() -> None:
    """With no trips, too, the result is what was given."""
    for trips in (0, 3):
        graph = Graph("held")
        b = Builder(graph)
        x, y = (graph.add_input(n, TensorType(F32, (2,))) for n in "xy")

        def body(inner: Builder, trip: Value, going_on: Value, held: Value, total: Value) -> Any:
            return None, [held, inner(o("Add"), total, held)], []

        for i, v in enumerate(looped(b, body, i64(trips), [x, y])):
            graph.add_output(v, f"out{i}")
        made = same(graph, {"x": np.array([1, 2], F32), "y": np.array([3, 4], F32)})
        assert [getattr(n.op, "carried", None) for n in made.nodes] == [1]


def test_the_row_written_last_is_the_state() -> None:
    """A tensor of one row that every iteration writes: Keras' layers that return only their last step."""
    graph = Graph("last")
    b = Builder(graph)
    t = graph.add_input("t", TensorType(F32, (5, 1, 3)))

    def body(inner: Builder, trip: Value, going_on: Value, h: Value, y: Value, rows: Value) -> Any:
        h = inner(o("Add"), h, inner(o("Gather"), rows, trip))
        return None, [h, written(inner, y, inner.const(i64(0)), inner(o("Unsqueeze"), h, i64(0)), 0)], []

    carried = [np.zeros((1, 3), F32), np.zeros((1, 1, 3), F32)]
    for i, v in enumerate(looped(b, body, i64(5), carried, [t], open_axes=[None, 0])):
        graph.add_output(v, f"out{i}")
    made = same(graph, {"t": some(np.random.default_rng(0), F32, 5, 1, 3)})
    assert [getattr(n.op, "carried", None) for n in made.nodes][:1] == [1]


@pytest.mark.parametrize("grows", [-1, 0, 1])
def test_sizes_that_an_iteration_changes_are_not_those_before_the_loop(grows: int) -> None:
    """A tensor that loses its first row (-1), or becomes longer along an axis, while its rows are read and written."""
    graph = Graph("changing")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (6, 4)))

    def body(inner: Builder, trip: Value, going_on: Value, changes: Value, total: Value, other: Value) -> Any:
        place = line(inner, trip, 1, 0)
        behind = inner(o("Add"), place, i64(1))
        first, last = (inner(o("Concat", 0), v, i64(end)) for v, end in ((place, 0), (behind, 4)))
        row = inner(o("Slice"), changes, first, last, i64(0, 1))
        total = inner(o("Add"), total, inner(o("ReduceSum"), row))
        ends = inner(o("Concat", 0), place, i64(4)), inner(o("Concat", 0), behind, i64(0))
        head = inner(o("Slice"), changes, i64(0, 0), ends[0], i64(0, 1))
        tail = inner(o("Slice"), changes, ends[1], i64(6, 4), i64(0, 1))
        after = inner(o("Slice"), changes, i64(1), i64(99), i64(0))
        if grows >= 0:
            after = inner(o("Concat", grows), changes, changes)
        return None, [after, total, inner(o("Concat", 0), head, inner.const(np.ones((1, 4), F32)), tail)], []

    carried = [x, np.zeros((1, 1), F32), np.zeros((1, 4), F32)]
    made = looped(b, body, i64(4), carried, open_axes=[max(grows, 0), None, 0])
    for i, v in enumerate(made):
        graph.add_output(v, f"out{i}")
    same(graph, {"x": some(np.random.default_rng(0), F32, 6, 4)})
