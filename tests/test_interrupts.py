"""What comes from outside at any moment, forks and interrupts: no lock stays held, no team is lost, bits are the same.

Each test runs in a process of its own, which ends itself when it is stuck.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base import forks as locks
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Exp, Relu
from bolt_numba.runtime.runner import Runner
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.near import assert_near

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork, signals and the team")
STUCK_S = 240
FORKS, PLANNERS = 200, 2
INTERRUPTS = 600
AGAIN_S = 0.5
SIZES = range(1, 60)


def network(width: int = 48) -> Graph:
    graph = Graph("net")
    build, rng = Builder(graph), np.random.default_rng(width)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), width)))
    for _ in range(3):
        x = build(Relu(), build(MatMul(), x, (rng.standard_normal((width, width)) / width).astype(F32)))
    graph.add_output(build(Exp(), x), "y")
    return graph


def feed(n: int, width: int = 48) -> Array:
    return np.random.default_rng(n).standard_normal((n, width), np.float32)


def child(task: Callable[[], None], module: str = __name__, **environment: str) -> None:
    """Run a function of a file of tests in a new process."""
    code = f"from {module} import {task.__name__}; {task.__name__}()"
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


# ------------------------------------------------------------------------------------------------------------- forks


def forks() -> None:
    """Fork while other threads read, plan and run."""
    data = to_onnx(network()).SerializeToString()
    wanted = bn.compile(data, threads=2)
    bits = {n: wanted(feed(n))["y"] for n in SIZES}
    shared, stop = bn.compile(data, threads=2), threading.Event()

    def plan(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            shared.close()
            for n in rng.sample(SIZES, 8):
                shared(feed(n))
            bn.compile(data, threads=2)(feed(n))

    planners = [threading.Thread(target=plan, args=(seed,)) for seed in range(PLANNERS)]
    for planner in planners:
        planner.start()
    failed = []
    try:
        for i in range(FORKS):
            time.sleep(random.Random(i).uniform(0, 0.002))
            process = os.fork()
            if not process:
                signal.alarm(STUCK_S)
                n = SIZES[i % len(SIZES)]
                both = shared(feed(n))["y"], bn.compile(data, threads=2)(feed(n))["y"]
                os._exit(0 if all(y.tobytes() == bits[n].tobytes() for y in both) else 1)
            if os.waitpid(process, 0)[1]:
                failed.append(i)
    finally:
        stop.set()
        for planner in planners:
            planner.join()
    assert not failed, f"children {failed} of {FORKS} are stuck or wrong"


@pytest.mark.timeout(1600)
def test_forks_while_threads_plan() -> None:
    child(forks)


def test_two_threads_fork_at_once() -> None:
    def fork() -> None:
        locks._before()
        locks._in_parent()

    other = threading.Thread(target=fork)
    locks._before()
    other.start()
    time.sleep(0.05)  # it waits for the first lock
    locks._in_parent()
    other.join()
    for owner, name in locks._awaited:
        assert getattr(owner, name).acquire(timeout=60), name
        getattr(owner, name).release()


def test_a_session_can_plan_at_each_step_of_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork or an interrupt may come between any two: what has no graph any more knows how to make it."""
    session, seen = bn.compile(to_onnx(network()).SerializeToString()), list[bool]()
    session(feed(3))

    def put(self: Runner, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        seen.append(bool(self.region.nodes) or self.make is not None)

    monkeypatch.setattr(Runner, "__setattr__", put)
    session.close()
    assert not session._runner.region.nodes
    assert all(seen)


# -------------------------------------------------------------------------------------------------------- interrupts


def interrupted(delay: float, work: Callable[[], Any]) -> bool:
    """Run ``work``, with a KeyboardInterrupt after ``delay`` seconds; whether it came before the end.

    Python drops an exception in the callback of a weak reference, so another one follows after `AGAIN_S`; but none
    comes in this function itself, which would not catch it.
    """

    def interrupt(_: int, frame: Any) -> None:
        if frame.f_code not in (interrupted.__code__, interrupt.__code__):
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay, AGAIN_S)
        work()
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def for_ever(work: Callable[[], Any]) -> None:
    while True:
        work()


def team_interrupts() -> None:
    """Afterwards the team still shares the work."""
    from tests.test_threads import Shares

    program, rng, hits = Shares(3, 2), random.Random(1), 0
    program.run()
    for _ in range(INTERRUPTS):
        hits += interrupted(rng.uniform(2e-5, 3e-4), lambda: for_ever(program.run))
        program.counts[:] = 0
        program.run()
        np.testing.assert_array_equal(program.counts, 1)
    assert hits == INTERRUPTS


def plan_interrupts() -> None:
    """Afterwards the session, new ones too, give the same bits."""
    data = to_onnx(network()).SerializeToString()
    bits = {n: bn.compile(data, threads=2)(feed(n))["y"] for n in SIZES}
    rng, hits, shared = random.Random(2), 0, bn.compile(data, threads=2)

    def plan() -> None:
        shared.close()
        shared(feed(n))
        bn.compile(data, threads=2)(feed(n))

    for i in range(INTERRUPTS // 2):
        n = rng.choice(SIZES)
        hits += interrupted(rng.uniform(1e-5, 2e-2), lambda: for_ever(plan))
        for sess in (shared, bn.compile(data, threads=2) if i % 20 == 0 else shared):
            assert sess(feed(n))["y"].tobytes() == bits[n].tobytes()
    assert hits == INTERRUPTS // 2


def cold_interrupts() -> None:
    """The first use, which imports readers, rules and kernels, is interrupted again and again."""
    rng, data = random.Random(os.environ["SEED"]), to_onnx(network()).SerializeToString()
    for _ in range(40):
        interrupted(rng.uniform(1e-4, 2e-2), lambda: bn.compile(data, threads=2)(feed(3)))
    graph = bn.load(data)
    assert_near(bn.compile(data, threads=2)(feed(3))["y"], interpret(graph, {"x": feed(3)})["y"], 1e-5)


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("task", [team_interrupts, plan_interrupts])
def test_interrupts_leave_nothing_behind(task: Callable[[], None]) -> None:
    child(task)


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("seed", range(4))
def test_interrupts_of_the_first_use(seed: int) -> None:
    child(cold_interrupts, SEED=str(seed))


def handler_runs() -> None:
    """Call the session that plans from within, as a signal handler does, at every so many calls of Python."""
    data = to_onnx(network(160)).SerializeToString()
    bits = {n: bn.compile(data, threads=2)(feed(n, 160))["y"].tobytes() for n in (3, 4)}
    shared, seen, at, inner = bn.compile(data, threads=2), 0, 0, 0

    def handler(_: Any, event: str, __: Any) -> None:
        nonlocal seen, inner
        seen += event == "call"
        if event == "call" and seen == at:
            sys.setprofile(None)
            for n in bits:
                assert shared(feed(n, 160))["y"].tobytes() == bits[n]
            inner += 1

    signal.alarm(STUCK_S)
    for at in range(1, 20_000, 23):  # noqa: B007  # the handler reads it
        shared.close()
        seen, before = 0, inner
        sys.setprofile(handler)
        first = shared(feed(3, 160))["y"].tobytes()
        sys.setprofile(None)
        assert first == shared(feed(3, 160))["y"].tobytes() == bits[3]
        if inner == before:  # the plan took fewer calls
            break
    assert inner > 20


@pytest.mark.timeout(1600)
def test_a_signal_handler_may_run_the_session_that_plans() -> None:
    child(handler_runs)
