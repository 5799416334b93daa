"""Tapes are made where no call waits for them, and what makes them ends with its session, its process, or its work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base import turns as behind
from bolt_numba.base.budget import Budget, unasked, within
from bolt_numba.base.turns import short_turns
from bolt_numba.ir.graph import Graph
from bolt_numba.runtime import runner
from bolt_numba.runtime.tape import FIRST, Tape, Tapes
from tests.harness import served
from tests.loop_graphs import i64, looped
from tests.rule_cases import graph_of, o
from tests.test_plan_cache import in_threads

WAIT_S = 60.0
Turn = Callable[[], None]


def scaled() -> Graph:
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    return graph_of(lambda b, x: b(o("Relu"), b(o("MatMul"), x, w)), {"x": ("n", 8)})


def rows(count: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)


def endless(turn: Turn) -> None:
    while True:
        turn()


def tries(session: bn.Session) -> int:
    return sum(tapes.tries for tapes in session._runner.tapes.values())


def test_no_call_waits_for_a_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are the same before it is there and later; the calls of the meantime make no second one."""
    free, follow, graph = threading.Event(), Tapes.follow, scaled()

    def held(self: Tapes, *args: Any) -> None:
        assert free.wait(WAIT_S)
        follow(self, *args)

    monkeypatch.setattr(Tapes, "follow", held)
    session = bn.compile(graph, threads=1)
    before = [session(rows(n))[0].tobytes() for n in range(1, 20)]  # would wait for ever
    assert tries(session) == 0
    free.set()
    assert behind.idle(WAIT_S)
    assert [len(tapes.tapes) for tapes in session._runner.tapes.values()] == [1]
    assert [session(rows(n))[0].tobytes() for n in range(1, 20)] == before
    for n in range(20, 40):
        other = bn.compile(graph, threads=1, max_plans=1)
        assert session(rows(n))[0].tobytes() == session(rows(n))[0].tobytes() == other(rows(n))[0].tobytes()
    assert served(session._runner) > 20


def test_few_shapes_have_no_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "later", lambda *args: pytest.fail("somebody has a tape made"))
    session = bn.compile(scaled(), threads=1)
    for n in (1, 2, 3) * 5:
        session(rows(n))


def test_warming_up_waits_for_the_tape() -> None:
    session = bn.compile(scaled(), threads=1)
    for n in range(1, FIRST + 1):
        session.warmup(x=(n, 8))
    assert [len(tapes.tapes) for tapes in session._runner.tapes.values()] == [1]


def test_a_loop_has_the_tape_of_its_body_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves the iterations that are left."""

    def build(b: Any, x: Any) -> Any:
        def body(g: Any, number: Any, going_on: Any, grown: Any, more: Any) -> Any:
            return None, [g(o("Concat", axis=0), grown, more)], []

        return looped(b, body, i64(40).reshape(()), [x], [x], open_axes=[0])[0]

    monkeypatch.setattr(runner, "later", lambda *args: pytest.fail("it is made behind the loop's back"))
    session = bn.compile(graph_of(build, {"x": (1, 8)}), threads=1)
    assert session(rows(1))[0].shape == (41, 8)
    bodies = session._runner.bodies.values()
    assert all(tapes.tapes for body in bodies for tapes in body.tapes.values())


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_session_that_is_closed_leaves_nothing_at_work(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(Tape, "__init__", lambda self, runner, context, types, is_open, turn, *more: endless(turn))
    session = bn.compile(scaled(), threads=1)
    for n in range(1, FIRST + 3):
        session(rows(n))
    (tapes,) = session._runner.tapes.values()
    assert behind.is_wanted(tapes)
    if end == "close":
        session.close()
    else:
        behind.stop()
    assert behind.idle(0)
    assert not [t for t in threading.enumerate() if t.name == "bolt_numba tapes"]
    assert tapes.refused == []
    assert session(rows(3))[0].shape == (3, 8)


def test_a_plan_that_a_closing_session_waits_for_leaves_no_tape_behind() -> None:
    """It would be of the graph that is gone, with no results, and who waits for it would run it."""
    session = bn.compile(scaled(), threads=1)
    session(rows(1))
    runner = session._runner
    with runner.lock:  # as who plans
        (closing,) = in_threads(session.close)
        closing.join(0.3)
        behind.later(runner.serving, runner, endless)
    closing.join(WAIT_S)
    is_left = behind.is_wanted(runner)
    behind.stop()
    assert not is_left
    assert session(rows(3))[0].shape == (3, 8)


def test_other_sessions_keep_what_is_made_for_them() -> None:
    began, stopped = threading.Event(), threading.Event()

    def first(turn: Turn) -> None:
        began.set()
        try:
            endless(turn)
        finally:
            stopped.set()

    one, two, made = object(), object(), list[int]()
    behind.later(one, one, first)
    behind.later(two, two, lambda turn: made.append(2))
    behind.later(one, one, lambda turn: made.append(1))
    assert began.wait(WAIT_S)
    behind.stop(one)
    assert stopped.is_set()
    behind.wait(two)
    assert behind.idle(WAIT_S)
    assert made == [2]


def test_nobody_waits_for_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is closed while another thread warms it up, and the system may give no thread."""
    free, one, two = threading.Event(), object(), object()
    behind.later(one, one, lambda turn: free.wait(WAIT_S))  # type: ignore[arg-type,return-value]
    behind.later(two, two, lambda turn: None)
    (waiting,) = in_threads(partial(behind.wait, two))
    while waiting.is_alive() and behind.is_wanted(two):
        behind.stop(two)
    waiting.join(WAIT_S / 10)
    is_waiting = waiting.is_alive()
    free.set()
    assert behind.idle(WAIT_S)
    assert not is_waiting

    def none(self: threading.Thread) -> None:
        waited.append(behind._worker.tasks[0].done)
        raise RuntimeError("can't start new thread")

    waited: list[threading.Event] = []
    monkeypatch.setattr(threading.Thread, "start", none)
    behind.later(two, two, lambda turn: None)
    assert waited[0].is_set()
    assert behind.idle(0)


def test_what_rests_while_somebody_plans_can_be_dropped() -> None:
    """As when a session is closed by a thread that plans, or while another session waits for kernels."""
    began = threading.Event()

    def work(turn: Turn) -> None:
        began.set()
        endless(turn)

    with short_turns():
        behind.later(began, began, work)
        assert began.wait(WAIT_S)
        start = time.monotonic()
        behind.stop(began)
        assert behind.idle(0)
        assert time.monotonic() - start < behind.PATIENCE_S / 2


def test_it_rests_while_somebody_plans() -> None:
    turns, began = [0], threading.Event()

    def work(turn: Turn) -> None:
        while True:
            turn()
            turns[0] += 1
            began.set()

    behind.later(turns, turns, work)
    assert began.wait(WAIT_S)
    with short_turns():
        time.sleep(0.01)
        before = turns[0]
        time.sleep(0.05)
        assert turns[0] <= before + 1  # it had asked before
    deadline = time.monotonic() + WAIT_S
    while turns[0] <= before + 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert turns[0] > before + 1
    behind.stop(turns)


def test_the_limit_of_memory_goes_with_the_work() -> None:
    seen: list[int] = []
    with within(Budget(memory=123456, seconds=1e-9).begun()):
        behind.later(seen, seen, lambda turn: seen.append(unasked()))
    assert behind.idle(WAIT_S)
    assert seen == [123456]


def test_who_fails_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(str(args.exc_value)))
    behind.later(told, told, lambda turn: 1 // 0)  # type: ignore[arg-type,return-value]
    behind.wait(told)
    behind.later(told, told, lambda turn: told.append("done"))
    assert behind.idle(WAIT_S)
    assert told == ["integer division or modulo by zero", "done"]


def test_a_child_of_fork_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the parent is making does not keep it from having a tape."""
    monkeypatch.setattr(Tapes, "follow", lambda self, runner, types, behind_cuts, turn: endless(turn))
    session = bn.compile(scaled(), threads=1)
    for n in range(1, FIRST + 2):
        session(rows(n))
    monkeypatch.undo()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            session(rows(50))
            done = behind.idle(WAIT_S)
            session(rows(51)), session(rows(51))
            code = 0 if done and served(session._runner) else 2
        finally:
            os._exit(code)
    os.close(write), os.close(read)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tapes,) = session._runner.tapes.values()
    assert behind.is_wanted(tapes)
    session.close()


def test_a_process_ends_in_the_midst_of_it() -> None:
    code = """
from tests.test_behind import endless
from bolt_numba.base import turns as behind
import threading
began = threading.Event()
def work(turn):
    began.set()
    endless(turn)
behind.later(work, work, work)
behind.later(work, work, work)
began.wait()
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - started < WAIT_S


def test_many_threads_and_shapes_have_the_bits_of_a_session_without_tapes() -> None:
    graph = scaled()
    session, alone = bn.compile(graph, threads=1, max_plans=4), bn.compile(graph, threads=1)
    wanted = {n: alone(rows(n))[0].tobytes() for n in range(1, 60)}
    wrong: list[int] = []

    def run(seed: int) -> None:
        for n in np.random.default_rng(seed).permutation(np.arange(1, 60)).tolist():
            wrong.extend([n] * (session(rows(n))[0].tobytes() != wanted[n]))

    for thread in in_threads(*[partial(run, seed) for seed in range(4)]):
        thread.join(WAIT_S)
    assert wrong == []


def told(session: bn.Session, shapes: Iterable[Any]) -> list[dict[str, Any]]:
    """What reports say of tapes once these came."""
    for x in shapes:
        session(x)
    assert behind.idle(WAIT_S)
    return session.report().tapes


def test_reports_say_what_tapes_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(scaled(), threads=1)
    (row,) = told(session, map(rows, range(1, FIRST + 1)))
    assert row == {"nodes": 1, "plans": 4, "tapes": 1, "served": 0, "is_making": False, "refused": {}}
    (row,) = told(session, map(rows, (5, 6, 7)))
    assert (row["plans"] + row["served"], row["tapes"]) == (7, 1)
    assert row["served"] > 0


def test_reports_say_why_there_is_no_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [rows(n) for n in range(1, FIRST + 1)]
    (row,) = told(bn.compile(scaled(), threads=1, tune=True), some[:1])
    assert row["refused"] == {"kernels are measured for each shape (tune=True)": 1}
    (row,) = told(bn.compile(scaled(), device="host"), some)
    assert row["refused"] == {"LostError: a plan of host": 1}

    def fail(*args: Any) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(Tape, "__init__", fail)
    (row,) = told(bn.compile(scaled(), threads=1), some)
    assert row["refused"] == {"ValueError: a fault of ours": 1}


def test_nodes_on_the_host_are_named_where_they_keep_a_plan_from_a_tape() -> None:
    graph = graph_of(lambda b, x: b(o("Relu"), b(o("Det"), b(o("Relu"), x))), {"x": ("n", 3, 3)})
    session = bn.compile(graph, threads=1)
    (row,) = told(session, [np.ones((n, 3, 3), np.float32) for n in range(1, FIRST + 1)])
    assert [r["runner"] for r in session.report()].count("reference") == 1
    assert row["refused"] == {"LostError: a plan of several devices: Det on host": 1}


def test_sizes_that_never_vary_are_no_numbers_of_a_tape() -> None:
    """Until they do: what the tape was made for goes on, and later tapes have them."""
    w = np.ones((16, 16), np.float32)
    graph = graph_of(lambda b, x: b(o("MatMul"), x, w), {"x": ("b", "n", 16)})
    session = bn.compile(graph, threads=1)
    for n in range(1, FIRST + 1):
        session(np.ones((2, n, 16), np.float32))
    assert behind.idle()
    (tapes,) = session._runner.tapes.values()
    assert tapes.same() == {(0, 0), (0, 2)}
    for batch, n in ((2, 30), (3, 31), (3, 32), (4, 33), (5, 34), (6, 35), (2, 36), (7, 37)):
        assert session(np.ones((batch, n, 16), np.float32))["out0"].tolist() == np.full((batch, n, 16), 16).tolist()
        assert behind.idle()
    assert tapes.same() == {(0, 2)}
    assert len(tapes.tapes) == 2
    assert tapes.tapes[0].at([np.ones((9, 40, 16), np.float32)]) is not None
    assert tapes.tapes[1].at([np.ones((9, 40, 16), np.float32)]) is None
