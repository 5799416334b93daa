"""State that a session keeps from run to run, declared by the graph."""

from __future__ import annotations

import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import violations
from bolt_numba.ir.store import to_bytes
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.types import F32, I64, Array, Sym, TensorType

ONE = np.ones(3, F32)


ZERO = np.zeros(3, F32)


def counter(initial: Array = ZERO) -> Graph:
    """y = 2 (x + s), and s becomes x + s."""
    g = Graph("counter")
    x = g.add_input("x", TensorType(F32, (3,)))
    s = Value(g.unique_name("s"), TensorType(F32, (3,)))
    b = Builder(g)
    total = b(Add(), x, s, name="total")
    g.add_state(s, total, initial)
    g.add_output(b(Mul(), total, 2.0), "y")
    g.add_input("unused", TensorType(F32, (3,)))
    return g


def runs(session: bn.Session, times: int) -> list[float]:
    return [float(session(x=ONE, unused=ONE)["y"][0]) for _ in range(times)]


def test_a_session_keeps_state_and_forgets_it_when_asked() -> None:
    session = bn.compile(counter())
    assert [s.name for s in session.inputs] == ["x", "unused"]
    assert [s.name for s in session.outputs] == ["y"]
    assert runs(session, 3) == [2, 4, 6]
    assert session.states["s"].tolist() == [3, 3, 3]
    session.reset_state()
    assert runs(session, 2) == [2, 4]
    session.reset_state({"s": np.full(3, 10, F32)})
    assert runs(session, 1) == [22]


def test_states_that_do_not_fit_are_refused() -> None:
    session = bn.compile(counter())
    with pytest.raises(bn.BoltError, match="state: got 'z', wanted one of"):
        session.reset_state({"z": ONE})
    with pytest.raises(bn.DTypeError, match="state 's': got i64"):
        session.reset_state({"s": np.zeros(3, I64)})
    with pytest.raises(bn.ShapeError, match="state 's': got shape"):
        session.reset_state({"s": np.zeros(4, F32)})
    with pytest.raises(bn.DTypeError, match="state 's': got what is no array"):
        session.reset_state({"s": [[1], [2, 3]]})  # type: ignore[dict-item]
    with pytest.raises(bn.DTypeError, match="state: got a list"):
        session.reset_state(["s"])  # type: ignore[arg-type]
    plain = Graph("plain")
    plain.add_output(plain.add_input("x", TensorType(F32, ())))
    with pytest.raises(bn.BoltError, match="keeps nothing"):
        bn.compile(plain).reset_state({"s": ONE})


def test_a_run_that_fails_leaves_the_state() -> None:
    session = bn.compile(counter())
    runs(session, 1)
    with pytest.raises(bn.ShapeError):
        session(x=np.ones(4, F32), unused=ONE)
    assert runs(session, 1) == [4]


def test_runs_of_many_threads_go_one_after_another() -> None:
    session = bn.compile(counter())
    with ThreadPoolExecutor(4) as pool:
        found = [f.result() for f in [pool.submit(runs, session, 10) for _ in range(4)]]
    assert sorted(v for part in found for v in part) == [2 * i for i in range(1, 41)]


def test_state_goes_through_files_copies_and_pickles(tmp_path: Path) -> None:
    graph = counter(np.full(3, 5, F32))
    assert runs(bn.compile(graph.clone()), 2) == [12, 14]
    assert runs(bn.compile(bn.load(to_bytes(graph))), 2) == [12, 14]
    session = bn.compile(graph)
    runs(session, 1)
    assert runs(pickle.loads(pickle.dumps(session)), 1) == [12]  # as loaded, not as it was left


def test_intermediate_values_are_of_the_same_run() -> None:
    session = bn.compile(counter())
    runs(session, 1)
    total, y = session.run(["total", "y"], {"x": ONE, "unused": ONE})
    assert (total[0], y[0]) == (2, 4)
    assert runs(session, 1) == [6]


def test_buffers_of_the_caller_and_state() -> None:
    session, y = bn.compile(counter()), np.empty(3, F32)
    for wanted in (2, 4):
        session.run_into({"x": ONE, "unused": ONE}, {"y": y})
        assert y[0] == wanted
    session.warmup()
    assert session.states["s"][0] == 2


def test_buffers_are_looked_at_for_the_state_that_the_run_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another thread may come before it, and lengthen what the results follow."""
    g = Graph("growing")
    x, s = g.add_input("x", TensorType(F32, (1, 4))), Value(g.unique_name("s"), TensorType(F32, (Sym("n"), 4)))
    b = Builder(g)
    g.add_state(s, b(Concat(axis=0), s, x), np.zeros((1, 4), F32))
    g.add_output(b(Mul(), s, 2.0), "y")
    session = bn.compile(g)
    kept: Any = session._states
    plain, one = kept.run, np.ones((1, 4), F32)

    def late(*given: Any) -> Any:
        monkeypatch.setattr(kept, "run", plain)
        for _ in range(200):
            session(x=one)
        return plain(*given)

    memory = np.full((300, 4), -1, F32)
    monkeypatch.setattr(kept, "run", late)
    with pytest.raises(bn.ShapeError, match=r"buffer for output 'y': got shape \(1, 4\), wanted \(201, 4\)"):
        session.run_into({"x": one}, {"y": memory[:1]})
    assert (memory == -1).all()
    assert len(session.states["s"]) == 201


def test_memory_tells_of_states() -> None:
    session = bn.compile(counter())
    assert session.memory()["states"] == 12


def test_the_interpreter_begins_anew_unless_it_is_told() -> None:
    graph = counter(np.full(3, 5, F32))
    feeds = {"x": ONE, "unused": ONE}
    assert interpret(graph, feeds)["y"][0] == 12
    assert interpret(graph, feeds | {"s": ONE}, ["y", "s/next"])["s/next"][0] == 2


def test_onnx_has_state_as_an_input_and_an_output() -> None:
    proto = to_onnx(counter())
    assert [i.name for i in proto.graph.input] == ["x", "unused", "s"]
    assert [o.name for o in proto.graph.output] == ["y", "s/next"]


def test_verify_begins_each_run_anew() -> None:
    assert bn.verify(counter(), "reference").ok


def test_the_spec_holds_states_to_their_types() -> None:
    graph = counter()
    assert not violations(graph)
    graph.states = [np.zeros(4, F32)]
    assert violations(graph) == ["states: state 's' is f32[3], it begins as f32[4] and becomes f32[3]"]
    graph.states = [ONE] * 9
    assert violations(graph) == ["states: got 9 states, wanted an input and an output for each"]


def test_a_part_of_a_model_takes_its_state_from_the_caller() -> None:
    part = surgery.extract(counter(), ["x", "s"], ["total"])
    assert bn.compile(part)(x=ONE, s=ONE)[0][0] == 2
    assert runs(bn.compile(surgery.with_outputs(counter(), ["y"])), 2) == [2, 4]


def test_a_signal_handler_within_a_run_is_told_instead_of_waiting() -> None:
    """It would wait for the run below it for ever; what the run keeps is not touched."""
    session = bn.compile(counter())
    told: list[str] = []

    def handler(number: int, frame: object) -> None:
        for call in (lambda: runs(session, 1), session.reset_state):
            with pytest.raises(bn.BoltError) as caught:
                call()
            told.append(str(caught.value))
        assert session.states["s"][0] == 1

    runs(session, 1)
    kept = session._states
    assert kept is not None
    before = signal.signal(signal.SIGUSR1, handler)

    def go(arrays: list[Array], targets: object) -> list[Array]:
        signal.raise_signal(signal.SIGUSR1)
        return [arrays[0], arrays[-1] + 1]

    try:
        kept.run(go, [ONE, ONE, ONE], None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(told) == 2
    assert "within a run" in told[0]
    assert runs(session, 1) == [6]


# --- states of models that have them as inputs and outputs -----------------------------------------------------------


def growing() -> Graph:
    """Keys of earlier runs before those of this one, how many there are, and the mean of all."""
    g = Graph("growing")
    x = g.add_input("x", TensorType(F32, (1, 4)))
    past = g.add_input("past", TensorType(F32, (Sym("n"), 4)))
    count = g.add_input("count", TensorType(F32, ()))
    b = Builder(g)
    present, more = b(Concat(axis=0), past, x), b(Add(), count, 1.0)
    g.add_output(present, "present")
    g.add_output(b(ReduceMean(), present, np.array([0, 1]), name="mean"))
    g.add_output(more, "more")
    return g


def test_outputs_become_the_inputs_of_the_next_run() -> None:
    by_hand = bn.compile(growing())
    states = {"past": "present", "count": "more"}
    graph = surgery.with_states(growing(), states, initial={"past": np.empty((0, 4), F32)})
    session = bn.compile(graph)
    assert ([s.name for s in session.inputs], [s.name for s in session.outputs]) == (["x"], ["mean"])
    for _ in range(2):
        past, count = np.empty((0, 4), F32), np.zeros((), F32)
        for step in range(3):
            x = np.full((1, 4), step, F32)
            past, mean, count = by_hand(x=x, past=past, count=count)
            assert np.array_equal(session(x=x)[0], mean)
        kept = session.states
        assert (kept["past"].tolist(), kept["count"]) == (np.asarray(past).tolist(), 3)
        session.reset_state()
    assert not violations(graph)
    proto = to_onnx(graph)
    assert [i.name for i in proto.graph.input] == ["x", "past", "count"]
    assert [o.name for o in proto.graph.output] == ["mean", "present", "more"]


@pytest.mark.parametrize(
    ("states", "initial", "text"),
    [
        ({"pats": "present"}, {}, "state: input: got 'pats', wanted 'past'"),
        ({"past": "presnet"}, {}, "state: output: got 'presnet', wanted 'present'"),
        ({"past": "present", "x": "present"}, {"past": np.empty((0, 4), F32)}, "state: output: got 'present', wanted"),
        ({"past": "present"}, {}, r"state 'past': got f32\[n, ?4\], wanted known sizes"),
        ({"past": "present"}, {"past": np.empty((0, 5), F32)}, r"state 'past': got f32\[0, ?5\] at first"),
        ({"count": "present"}, {}, r"state 'count': got f32\[\] at first and f32\[.*\] from 'present', wanted f32\[\]"),
        ({"count": "more"}, {"past": np.empty((0, 4), F32)}, r"initial: got \['past'\], wanted names of \['count'\]"),
        (["count"], {}, "states: got a list, wanted a mapping of inputs' names"),
        ({"count": "more"}, [ZERO], "initial: got a list, wanted a mapping"),
        ({"count": 1}, {}, "state: output: got 1, wanted"),
        ({"count": "more"}, {"count": [[1], [1, 2]]}, "state 'count': got what is no array"),
    ],
)
def test_states_of_other_names_and_types_are_refused(states: Any, initial: Any, text: str) -> None:
    with pytest.raises(bn.BoltError, match=text) as caught:
        surgery.with_states(growing(), states, initial=initial)
    assert not isinstance(caught.value, bn.InternalError)


def test_first_states_stay_as_they_were_given() -> None:
    first = np.zeros((), F32)
    graph = surgery.with_states(growing(), {"count": "more"}, initial={"count": first})
    first[...] = 9
    session = bn.compile(graph)
    session(x=np.zeros((1, 4), F32), past=np.zeros((2, 4), F32))
    assert session.states["count"] == 1
