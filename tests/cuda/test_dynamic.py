"""What plans cannot know beforehand, on the simulated GPU: shapes by data, control flow, state, shapes to come."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels import precompile
from bolt_numba.kernels.cuda import code
from bolt_numba.ops.arrays.gather import Gather, NonZero
from bolt_numba.ops.arrays.reduce import ReduceMax, TopK
from bolt_numba.ops.arrays.shape import Concat, Reshape, Transpose
from bolt_numba.ops.control import If, Loop
from bolt_numba.ops.pointwise import Add, Greater, Mul, Relu, Sub
from bolt_numba.runtime import stand_ins
from bolt_numba.runtime.stand_ins import STANDS_IN
from bolt_numba.types import BOOL, F32, I64, Array, Sym, TensorType


def graph_of(build: Callable[[Builder, Value], Any], **others: TensorType) -> Graph:
    """Input x, [n, 4], and others by name."""
    graph = Graph("dynamic")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    more = [graph.add_input(name, t) for name, t in others.items()]
    for i, y in enumerate(build(Builder(graph), x, *more)):
        graph.add_output(y, f"y{i}")
    return graph


def expect(session: bn.Session, graph: Graph, **given: Array) -> None:
    wanted = interpret(graph, given)
    for name, got in session(**given).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6)


def compiled(graph: Graph, **how: Any) -> bn.Session:
    return bn.compile(graph, device="cuda-sim", threads=1, stages=(), **how)


def whole(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, (rows, 4)).astype(F32)


def on_gpu(session: bn.Session) -> set[str]:
    return {row["op"] for row in session.report() if row["device"] == "cuda-sim"}


def test_a_shape_by_data_ends_a_plan_and_the_next_goes_on_there() -> None:
    def build(b: Builder, x: Value) -> Any:
        kept = b(NonZero(), b(Relu(), x))
        rows = b(Gather(1), kept, np.array([0, 1, 0]))
        return kept, rows, b(Add(), x, 1.0)

    graph = graph_of(build)
    session = compiled(graph)
    with pytest.raises(ShapeError, match="x has no elements along the axis"):  # nothing is above zero
        session(x=-np.ones((2, 4), F32))
    for rows in (2, 3, 2):
        expect(session, graph, x=whole(rows, seed=rows))
    assert {"Relu", "Add", "Gather"} <= on_gpu(session)


def test_a_count_by_data_is_planned_for_its_content() -> None:
    def build(b: Builder, x: Value, k: Value) -> Any:
        values, _ = b(TopK(axis=1), b(Relu(), x), b(Reshape(), k, np.array([1])))
        return (b(Mul(), values, 2.0),)

    graph = graph_of(build, k=TensorType(I64, ()))
    session = compiled(graph)
    for k in (1, 3, 1):
        expect(session, graph, x=whole(3, seed=k), k=np.array(k))


def body(scale: float) -> Graph:
    made = Graph("body")
    v = made.add_input("x", TensorType(F32, (Sym("n"), 4)))
    b = Builder(made)
    made.add_output(b(Add(), b(Mul(), v, np.float32(scale)), 1.0), "y")
    return made


def test_branches_run_there() -> None:
    def build(b: Builder, x: Value) -> Any:
        flag = b(Greater(), b(ReduceMax(keepdims=0), x), 2.0)
        return (b(Relu(), b(If(then_branch=body(2), else_branch=body(3)), flag, x)),)

    graph = graph_of(build)
    session = compiled(graph)
    for top in (1, 4):
        expect(session, graph, x=np.minimum(whole(5, seed=top), top))
    bodies = [p.plan for runner in session._runner.bodies.values() for p in runner.prepared.values()]
    assert len(bodies) == 2
    assert all(any(job.device.name == "cuda-sim" for job in plan.jobs) for plan in bodies)


def test_loops_run_there() -> None:
    inner = Graph("inner")
    inner.add_input("trip", TensorType(I64, ()))
    go = inner.add_input("go", TensorType(BOOL, ()))
    x = inner.add_input("x", TensorType(F32, (3, 4)))
    y = Builder(inner)(Sub(), x, 1.0)
    for value, name in ((go, "go2"), (y, "x2"), (y, "row")):
        inner.add_output(value, name)

    graph = Graph("loop")
    first = graph.add_input("x", TensorType(F32, (3, 4)))
    count = graph.add_input("count", TensorType(I64, ()))
    node = Builder(graph).node(Loop(inner, 1), count, np.array(True), first, name="again")
    for i, value in enumerate(node.outputs):
        graph.add_output(value, f"y{i}")
    session = compiled(graph)
    for turns in (3, 1):
        expect(session, graph, x=whole(3), count=np.array(turns))


def test_state_is_fed_back() -> None:
    graph = Graph("counter")
    x = graph.add_input("x", TensorType(F32, (4,)))
    state, b = Value(graph.unique_name("s"), TensorType(F32, (4,))), Builder(graph)
    total = b(Add(), x, state)
    graph.add_state(state, total, np.zeros(4, F32))
    graph.add_output(b(Mul(), total, 2.0), "y")
    session = compiled(graph)
    assert [float(session(x=np.ones(4, F32))["y"][0]) for _ in range(3)] == [2, 4, 6]
    session.reset_state()
    assert float(session(x=np.ones(4, F32))["y"][0]) == 2
    assert on_gpu(session) == {"Add", "Mul"}


def test_many_shapes() -> None:
    graph = graph_of(lambda b, x: (b(Concat(0), b(Relu(), x), b(Transpose((1, 0)), b(Transpose((1, 0)), x))),))
    session = compiled(graph)
    for rows in range(1, 11):
        expect(session, graph, x=whole(rows, seed=rows))
    assert on_gpu(session) == {"Relu", "Concat", "Transpose"}


def test_a_session_is_pickled_with_its_device() -> None:
    graph = graph_of(lambda b, x: (b(Relu(), x),))
    session = pickle.loads(pickle.dumps(bn.compile(graph, device="cuda-sim", threads=1)))
    assert session.device == "cuda-sim"
    expect(session, graph, x=whole(3))
    assert on_gpu(session) == {"Relu"}


def test_tuning_leaves_nodes_there() -> None:
    graph = graph_of(lambda b, x: (b(Relu(), x),))
    session = compiled(graph, tune=True)
    expect(session, graph, x=whole(3))
    assert on_gpu(session) == {"Relu"}


def test_others_stand_in_for_kernels_that_are_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lambda b, x: (b(Relu(), x),))
    session = compiled(graph, stand_ins=True)
    expect(session, graph, x=whole(3))
    expect(session, graph, x=whole(3))
    lacking, held = [[code.code_of]], []

    def once(kernels: Any, arch: str, kind: str) -> Any:
        return [code.code_of(kernel, arch, kind) for kernel in kernels] if lacking else []

    monkeypatch.setattr(code, "lacking", once)
    monkeypatch.setattr(stand_ins, "compile_later", lambda *wish: held.append(wish))
    expect(session, graph, x=whole(5))
    (row,) = [row for row in session.report() if row["op"] == "Relu"]
    assert row["runner"].endswith(STANDS_IN)
    assert row["device"] != "cuda-sim"
    lacking.clear()
    for wish in held:
        precompile.compile_later(*wish)
    assert precompile.idle(60)
    expect(session, graph, x=whole(5))
    assert on_gpu(session) == {"Relu"}


def test_results_go_into_arrays_of_the_caller() -> None:
    graph = graph_of(lambda b, x: (b(Relu(), x), b(Mul(), x, 3.0)))
    session, x = compiled(graph), whole(3)
    buffers = {"y0": np.empty((3, 4), F32), "y1": x}
    wanted = interpret(graph, {"x": x.copy()})
    session.run_into({"x": x}, buffers)
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, wanted[name])
