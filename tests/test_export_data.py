"""Native programs of models in which data decide sizes or branches, against sessions in Python."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.errors import BoltError, ShapeError
from bolt_numba.export import stages
from bolt_numba.export.layout import ProgramTable
from bolt_numba.export.program import native_program
from bolt_numba.export.tables import rows_of
from bolt_numba.export.tapes import runs
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.data_sized import SIZED, select_sized
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.registry import load
from bolt_numba.ops.arrays.gather import Compress, Gather, GatherND, NonMaxSuppression, NonZero
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Reshape, Transpose
from bolt_numba.ops.control import If, Loop, Scan
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, And, Cast, Greater, Less, Mul, Relu
from bolt_numba.types import BOOL, F32, I64, Array, Sym, TensorType, type_of
from tests.cases import CASES, Case
from tests.missing import no_cases
from tests.native_programs import Interpreter
from tests.rule_cases import graph_of, whole

pytestmark = pytest.mark.skipif(not target().is_x86, reason="programs that need no linker are of x86-64")
load("cpu")
OPERATORS = sorted({op for op, device in SIZED if device == "cpu"}, key=lambda op: op.__name__)


def same(graph: Graph, feeds: Sequence[dict[str, Any]], **options: Any) -> bytes:
    """The block of a graph, which gives the shapes and bits of a session for all of these inputs."""
    block = native_program(graph, **options).block.tobytes()
    program, session = Interpreter(block), bn.compile(graph, threads=1, stand_ins=False)
    for arrays in feeds:
        found = program.run(arrays)
        for name, wanted in session(arrays).items():
            assert found[name].shape == wanted.shape
            assert found[name].tobytes() == wanted.tobytes()
    return block


def case_graph(case: Case) -> tuple[Graph, dict[str, Array]]:
    """The operator of a case, its first two operands as inputs, the others as constants."""
    graph, feeds, operands = Graph("case"), dict[str, Array](), list[Value | None]()
    b = Builder(graph)
    for i, array in enumerate(case.inputs):
        if array is None:
            operands.append(None)
        elif i < 2:
            operands.append(graph.add_input(f"x{i}", type_of(array).with_value(None)))
            feeds[f"x{i}"] = array
        else:
            operands.append(b.const(array))
    made = b(case.op, *operands)
    for value in made if isinstance(made, (tuple, list)) else (made,):
        graph.add_output(value)
    return graph, feeds


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_an_operator_gives_true_lengths(op: Any) -> None:
    assert op in CASES, no_cases(op)
    taken = 0

    @settings(deadline=None, database=None, derandomize=True, max_examples=15, suppress_health_check=list(HealthCheck))
    @given(case=CASES[op]())
    def run(case: Case) -> None:
        nonlocal taken
        graph, feeds = case_graph(case)
        known = [None if a is None else type_of(a) for a in case.inputs]
        if select_sized(case.op, known) is None:
            return
        taken += 1
        same(graph, [feeds])

    run()
    assert taken > 3


def masks(*shape: int) -> list[dict[str, Any]]:
    """Inputs of which nothing, some and all is selected."""
    rng = np.random.default_rng(0)
    return [{"x": (whole(*shape, seed=2) + 9) * (rng.random(shape) < share)} for share in (0, 0.5, 1, 0.05)]


def test_what_follows_a_length_is_planned_for_each() -> None:
    def build(b: Builder, x: Value) -> Any:
        places = b(Transpose((1, 0)), b(NonZero(), x))
        values = b(Reshape(), b(GatherND(), x, places), np.array([-1, 1]))
        rows = b(Concat(1), b(Cast(F32), places), values)
        return b(Relu(), b(MatMul(), rows, whole(3, 7, seed=4))), b(ReduceSum(keepdims=False), rows, np.array([0]))

    graph, feeds = graph_of(build, {"x": (6, 9)}), masks(6, 9)
    feeds += [{"x": np.arange(54, dtype=np.float32).reshape(6, 9) < n} for n in range(54)]
    block = same(graph, [{"x": np.asarray(f["x"], np.float32)} for f in feeds], threads=2)
    assert len(list(rows_of(block, ProgramTable.PLANS))) < 20  # most lengths share a stage


def test_a_detector_selects_its_boxes() -> None:
    def build(b: Builder, boxes: Value, scores: Value) -> Any:
        limits = (np.array([5]), np.array([0.5], np.float32), np.array([0.3], np.float32))
        chosen = b(NonMaxSuppression(), boxes, scores, *limits)
        place = b(Gather(1), chosen, np.array(2))
        return b(Gather(0), b(Reshape(), boxes, np.array([40, 4])), place), b(Cast(F32), chosen), scores

    rng = np.random.default_rng(3)
    corners = rng.random((1, 40, 2)) * 100
    boxes = np.concatenate([corners, corners + rng.random((1, 40, 2)) * 40], 2).astype(np.float32)
    scores = [rng.random((1, 3, 40)).astype(np.float32) * most for most in (1, 0.2, 0.32)]
    graph = graph_of(build, {"boxes": (1, 40, 4), "scores": (1, 3, 40)})
    same(graph, [{"boxes": boxes, "scores": s} for s in scores], target="native")


def test_limits_of_a_detector_may_be_inputs() -> None:
    def build(b: Builder, boxes: Value, scores: Value, most: Value, overlap: Value, score: Value) -> Any:
        return b(NonMaxSuppression(), boxes, scores, most, overlap, score)

    rng = np.random.default_rng(3)
    corners = rng.random((1, 40, 2)) * 100
    boxes = np.concatenate([corners, corners + rng.random((1, 40, 2)) * 40], 2).astype(np.float32)
    fixed = {"boxes": boxes, "scores": rng.random((1, 3, 40)).astype(np.float32)}
    limits = ((5, 0.5, 0.3), (0, 0.5, 0.3), (-1, 0.5, 0.3), (1000, 0.1, 0), (7, 1, 0.99))
    names = (("most", np.int64), ("overlap", np.float32), ("score", np.float32))
    given = [{n: np.array([v], d) for (n, d), v in zip(names, values, strict=True)} for values in limits]
    sizes = {"boxes": (1, 40, 4), "scores": (1, 3, 40), "most": (I64, 1), "overlap": (1,), "score": (1,)}
    same(graph_of(build, sizes), [fixed | more for more in given])


def test_two_lengths_apart_from_each_other() -> None:
    def build(b: Builder, x: Value) -> Any:
        first = b(NonZero(), x)
        second = b(Compress(0), x, b(Greater(), b(ReduceMax(keepdims=False), x, np.array([1])), np.float32(3)))
        return first, b(Add(), second, np.float32(1)), b(Relu(), x)

    same(graph_of(build, {"x": (5, 4)}), masks(5, 4))


def branching(*, inner: bool = False) -> Graph:
    """y = x + 1 or 2 x, of other rows; another If on the same condition, and one on another."""

    def branch(kind: Any, number: float) -> Graph:
        g = Graph("branch")
        x = g.add_input("inner", TensorType(F32, (3, 4)))
        b = Builder(g)
        y = b(kind(), x, np.float32(number))
        if number == 2:
            y = b(Concat(0), y, x)
        g.add_output(y, "y")
        return g

    def build(b: Builder, x: Value, chosen: Value) -> Any:
        above = b(Greater(), b(ReduceSum(keepdims=False), x, np.array([0, 1])), np.float32(0)) if inner else chosen
        y = b(If(branch(Add, 1), branch(Mul, 2)), above, x)
        z = b(If(branch(Mul, 3), branch(Add, 5)), above, x)
        w = b(If(branch(Mul, 7), branch(Add, 8)), chosen, z)
        return b(Relu(), y), b(Add(), y, b(ReduceSum(), z, np.array([0]))), w

    return graph_of(build, {"x": (3, 4), "chosen": (BOOL,)})


@pytest.mark.parametrize("inner", [True, False])
def test_branches_are_stages(inner: bool) -> None:
    x = whole(3, 4, seed=1)
    feeds = [{"x": x * sign, "chosen": np.array(flag)} for sign, flag in itertools.product((1, -1), (True, False))]
    block = same(branching(inner=inner), feeds)
    assert len(list(rows_of(block, ProgramTable.PLANS))) == (7 if inner else 3)  # a condition is decided once


def test_what_stays_in_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(b: Builder, x: Value) -> Any:
        return b(NonZero(), b(NonZero(), x))

    with pytest.raises(BoltError, match=r"data decide the size of its result.* a length, and data decide in it once"):
        native_program(graph_of(twice, {"x": (3, 4)}))

    def both(b: Builder, x: Value) -> Any:
        flat = b(Reshape(), b(NonZero(), x), np.array([-1]))
        return b(Concat(0), flat, b(Reshape(), b(NonZero(), b(Relu(), x)), np.array([-1])))

    with pytest.raises(BoltError, match="what follows depends on two lengths at once"):
        native_program(graph_of(both, {"x": (3, 4)}))
    graph = graph_of(lambda b, x: b(Cast(F32), b(NonZero(), x)), {"x": (300, 400)})
    with pytest.raises(BoltError, match="a length of up to 120000: wanted less than 32768"):
        native_program(graph)
    same(graph_of(lambda b, x: b(NonZero(), x), {"x": (300, 400)}), masks(300, 400))
    monkeypatch.setattr(stages, "MOST_STAGES", 4)
    with pytest.raises(BoltError, match=r"inputs: got 'chosen', wanted them fixed.*\n.*If.*more than 4 stages"):
        native_program(branching(inner=True))


def loop_body(*, stacks: bool, grows: bool = False) -> Graph:
    """Two vectors change places, one has 1 added, or grows; goes on while its sum is below 40; may stack a result."""
    body = Graph("body")
    i, go = body.add_input("i", TensorType(I64, ())), body.add_input("go", TensorType(BOOL, ()))
    one, two = (body.add_input(name, TensorType(F32, (Sym("k") if grows else 4,))) for name in ("one", "two"))
    scale = body.add_input("scale", TensorType(F32, (4,)))
    b = Builder(body)
    more = b(Concat(0), one, one) if grows else b(Add(), one, np.float32(1))
    below = b(Less(), b(ReduceSum(keepdims=False), more, np.array([0])), np.float32(40))
    for value in (b(And(), go, below), two, more):
        body.add_output(value)
    if stacks:
        body.add_output(b(Mul(), b(Add(), more, b(Cast(F32), i)), scale))
    return body


@pytest.mark.parametrize("trips", [3, 0, None])
def test_a_loop_ends_as_data_say(trips: int | None) -> None:
    """With a limit that is a constant, an input, or not there."""

    def build(b: Builder, one: Value, two: Value, *limit: Value) -> Any:
        many = limit[0] if limit else np.array([trips])
        op = Loop(loop_body(stacks=not limit), 2)
        made = b(op, many, None, one, two, np.arange(4, dtype=np.float32))
        return *made, b(Relu(), made[0]), *([b(ReduceSum(keepdims=False), made[2], np.array([0]))] if not limit else [])

    sizes: dict[str, Any] = {"one": (4,), "two": (4,)} | ({"n": (I64, 1)} if trips is None else {})
    feeds = [{"one": whole(4, seed=1) + high, "two": whole(4, seed=2)} for high in (0, 8, 50)]
    if trips is None:
        feeds = [feed | {"n": np.array([n])} for feed, n in itertools.product(feeds, (0, 1, 7))]
    same(graph_of(build, sizes), feeds, threads=2)


def test_a_loop_with_a_condition_given() -> None:
    def build(b: Builder, one: Value, two: Value, go: Value) -> Any:
        return b(Loop(loop_body(stacks=False), 2), None, go, one, two, np.arange(4, dtype=np.float32))

    feeds = [{"one": whole(4, seed=1), "two": whole(4, seed=2), "go": np.array(flag)} for flag in (True, False)]
    same(graph_of(build, {"one": (4,), "two": (4,), "go": (BOOL,)}), feeds)


@pytest.mark.parametrize(("axes", "backwards"), [((), ()), ((1, 0), (1, 0)), ((0, 1), (0, 1))])
def test_a_scan_stacks_along_its_axes(axes: tuple[int, ...], backwards: tuple[int, ...]) -> None:
    body = Graph("body")
    state, piece, other = (body.add_input(name, TensorType(F32, (4,))) for name in ("state", "piece", "other"))
    b = Builder(body)
    after = b(Add(), b(Mul(), state, np.float32(0.5)), piece)
    for value in (after, b(Mul(), after, other), piece):
        body.add_output(value)
    op = Scan(body, 1, 2, axes, backwards, axes[::-1], backwards[::-1])

    def build(b: Builder, x: Value, y: Value) -> Any:
        made = b(op, np.zeros(4, np.float32), x, y)
        return *made, b(Relu(), made[1])

    sizes = {"x": (4, 5) if axes[:1] == (1,) else (5, 4), "y": (4, 5) if axes[1:] == (1,) else (5, 4)}
    same(graph_of(build, sizes), [{k: whole(*d, seed=3 + len(k)) for k, d in sizes.items()}])


def test_a_branch_that_does_not_fit_the_shapes_is_told() -> None:
    def branch(rows: int) -> Graph:
        g = Graph("branch")
        x = g.add_input("inner", TensorType(F32, (Sym("r"), 4)))
        g.add_output(Builder(g)(Reshape(), x, np.array([rows, 2, 2])), "y")
        return g

    def build(b: Builder, x: Value, chosen: Value) -> Any:
        return b(If(branch(3), branch(5)), chosen, x)

    with pytest.raises(BoltError, match=r"'chosen', wanted them fixed.*\n.*If\(.*its else branch: .*Reshape"):
        native_program(graph_of(build, {"x": (3, 4), "chosen": (BOOL,)}))


def test_a_state_keeps_its_size_whatever_data_say() -> None:
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (3, 4)})
    b, before = Builder(graph), Value("before", TensorType(F32, (Sym("r"), 4)))
    sums = b(ReduceSum(keepdims=False), graph.inputs[0], np.array([1]))
    kept = b(Compress(0), graph.inputs[0], b(Greater(), sums, 0.0))
    graph.add_output(b(ReduceSum(), before), "sum")
    graph.add_state(before, kept, np.zeros((3, 4), np.float32))
    with pytest.raises(ShapeError, match=r"state 'before': got \[3, 4\] at first and \[0, 4\] after a run"):
        native_program(graph)


def test_loops_that_stay_in_python_are_told() -> None:
    def build(b: Builder, one: Value, two: Value, *, stacks: bool) -> Any:
        op = Loop(loop_body(stacks=stacks, grows=not stacks), 2)
        return b(op, None, np.array(True), one, two, np.zeros(4, np.float32))[0]

    for stacks, text in ((True, "nothing says how many at most"), (False, "carries changes its shape")):
        with pytest.raises(BoltError, match=rf"Loop\(.*data decide its branch or count.*{text}"):
            native_program(graph_of(partial(build, stacks=stacks), {"one": (4,), "two": (4,)}))


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_words_are_kept_as_runs(values: list[int], data: st.DataObject) -> None:
    ns = np.cumsum(data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values))))
    rows = list(runs(ns, np.array(values, np.int64)))
    known = dict(zip(ns.tolist(), values, strict=True))
    for n in range(int(ns[-1]) + 2):
        found = [row for row in rows if row[0] <= n <= row[1]]
        assert len(found) == (n in known)
        for first, _, value, slope in found:
            assert (value + slope * (n - first) - known[n]) % (1 << 64) == 0
    line = list(runs(np.arange(100), np.arange(100) * 24 + 7))
    assert line == [(0, 99, 7, 24)]
