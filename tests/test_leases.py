"""Leases: runs share the workers of the process and keep to its processors, whatever ends, forks or interrupts them."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import bolt_numba as bn
from bench.models import light
from bolt_numba.devices import threads as teams
from bolt_numba.errors import DataError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.executor import LEFT, LINGER
from bolt_numba.kernels.cpu.language.lang import (
    PTR,
    atomic_add,
    atomic_compare_exchange,
    atomic_load,
    atomic_store,
    native,
    sched_yield,
    spin_pause,
)
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.pointwise import Exp
from bolt_numba.types import F32, I64, Array, TensorType
from tests.test_interrupts import child, feed, for_ever, interrupted, network
from tests.test_threads import Shares, Steps

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the team needs Linux semaphores")
Team = Any
STUCK_S = 60
LINGER_S = 0.01
"""More than `LINGER` cycles."""


@native(threads=PTR)
def note(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Write down how many share the step."""
    atomic_store(p.threads, nthreads)


@native(came=PTR, open=PTR)
def stay(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Say that somebody came, and stay until the gate opens."""
    atomic_add(p.came, 1)
    while atomic_load(p.open) == 0:
        sched_yield()


class Visit:
    """A run in a thread of its own: it notes its threads, stays at a gate, and so on, as often as there are gates."""

    def __init__(self, threads: int, gates: int = 1) -> None:
        self.threads, self.came, self.open = (np.zeros(gates + 1, np.int64) for _ in range(3))
        steps: list[tuple[Any, dict[str, Any]]] = []
        for gate in range(gates + 1):
            steps.append((note, {"threads": self.threads[gate:]}))
            if gate < gates:
                steps.append((stay, {"came": self.came[gate:], "open": self.open[gate:]}))
        self.steps = Steps(steps, threads)
        self.thread = threading.Thread(target=self.steps.run)
        self.thread.start()
        self.await_gate(0)

    def await_gate(self, gate: int) -> None:
        """Until all threads that the run has are at a gate."""
        until = time.monotonic() + STUCK_S
        while not self.came[gate] or self.came[gate] < self.threads[gate]:
            assert time.monotonic() < until
            time.sleep(1e-4)

    def pass_gate(self, gate: int) -> None:
        self.open[gate] = 1
        if gate + 1 < len(self.open) - 1:
            self.await_gate(gate + 1)
        else:
            self.thread.join(STUCK_S)
            assert not self.thread.is_alive()


def staffed(team: Team) -> Team:
    """The team when all its workers are there; they take a moment to begin."""
    team.grow(team.room + 1)
    until = time.monotonic() + STUCK_S
    while team.workers < team.room:
        assert time.monotonic() < until
    return team


def nobody(team: Team) -> bool:
    """Whether no run and no lease is left."""
    return int(team.words[0]) == 0


# ---------------------------------------------------------------------------------------------------- who gets how many


def test_two_runs_of_two_threads_keep_to_two_processors(processors: Callable[[int], Team]) -> None:
    team = staffed(processors(2))
    first = Visit(2, gates=3)
    assert first.threads[0] == 2, "it is alone"
    assert team.callers_and_leased == 2
    second = Visit(2)
    assert second.threads[0] == 1, "nothing is free, and nobody waits"
    first.pass_gate(0)
    assert first.threads[1] == 1, "a processor is wanted by another caller"
    assert team.callers_and_leased == 2
    second.pass_gate(0)
    time.sleep(LINGER_S)
    first.pass_gate(1)
    assert first.threads[2] == 2, "and is free again"
    first.pass_gate(2)
    assert nobody(team)


def test_runs_that_want_more_than_there_is_get_their_part_each(processors: Callable[[int], Team]) -> None:
    team = staffed(processors(6))
    first = Visit(6, gates=3)
    assert first.threads[0] == 6
    second, third = Visit(6, gates=3), Visit(6)
    for gate in (0, 1):
        first.pass_gate(gate)
        second.pass_gate(gate)
    assert (first.threads[2], second.threads[2]) == (2, 2)
    third.pass_gate(0)
    time.sleep(LINGER_S)
    first.pass_gate(2)
    assert first.threads[3] == 3, "two are left"
    second.pass_gate(2)
    assert second.threads[3] > 3
    assert nobody(team)


def test_a_run_on_one_thread_is_a_caller_too(processors: Callable[[int], Team]) -> None:
    staffed(processors(2))
    alone = Visit(1)
    other = Visit(2)
    assert other.threads[0] == 1
    alone.pass_gate(0)
    time.sleep(LINGER_S)
    other.pass_gate(0)
    assert other.threads[1] == 2


@pytest.mark.skipif(not LINGER, reason="no cycles are counted here")
def test_the_processor_of_a_caller_that_left_is_kept_for_a_moment(processors: Callable[[int], Team]) -> None:
    team = staffed(processors(2))
    left = LEFT // 8
    alone = Visit(2)
    alone.pass_gate(0)
    assert team.words[left] == 0, "nobody wanted more"
    first, second = Visit(2), Visit(2)
    second.pass_gate(0)
    assert team.words[left] != 0
    first.pass_gate(0)
    for moment, threads in ((1 << 62, 1), (0, 2)):
        team.words[left] = moment
        visit = Visit(2)
        assert visit.threads[0] == threads
        visit.pass_gate(0)


def test_workers_start_when_runs_want_them(processors: Callable[[int], Team]) -> None:
    team = processors(8)
    first = Visit(3)
    assert team.started == 2
    second = Visit(3)
    assert team.started == 5
    for visit in (first, second):
        visit.pass_gate(0)
    Shares(1, 2).run()
    assert team.started == 5


@native(now=PTR, most=PTR)
def count_busy(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Keep the largest number of shares that run at once."""
    now = atomic_add(p.now, 1) + 1
    for _ in range(200):
        spin_pause()
    most = atomic_load(p.most)
    while now > most and not atomic_compare_exchange(p.most, most, now):
        most = atomic_load(p.most)
    atomic_add(p.now, -1)


@pytest.mark.parametrize(("callers", "threads", "there"), [(2, 2, 2), (3, 4, 4), (8, 2, 3), (1, 5, 3)])
def test_busy_threads_are_no_more_than_processors_or_callers(
    callers: int, threads: int, there: int, processors: Callable[[int], Team]
) -> None:
    team = staffed(processors(there))
    counts, stop = np.zeros(2, np.int64), threading.Event()
    programs = [Steps([(count_busy, {"now": counts, "most": counts[1:]})] * 20, threads) for _ in range(callers)]

    def call(program: Steps) -> None:
        while not stop.is_set():
            program.run()

    runners = [threading.Thread(target=call, args=(program,)) for program in programs]
    for runner in runners:
        runner.start()
    leases = []
    for _ in range(200):
        leases.append(team.callers_and_leased)
        time.sleep(1e-3)
    stop.set()
    for runner in runners:
        runner.join()
    # A caller that comes when all processors have been given away is one too many until the next step.
    assert counts[1] <= callers + there - 1
    assert np.median(leases) <= max(there, callers), "but only until then"
    assert nobody(team)


# ------------------------------------------------------------------------------------------------------------- the bits


def together(calls: list[Callable[[], Array]], seconds: float) -> list[set[bytes]]:
    """The different results of calls that threads make at once, each over and over."""
    found: list[set[bytes]] = [set() for _ in calls]
    end = time.monotonic() + seconds

    def call(i: int) -> None:
        while True:  # once at least, however long others compile
            found[i].add(calls[i]().tobytes())
            if time.monotonic() >= end:
                return

    callers = [threading.Thread(target=call, args=(i,)) for i in range(len(calls))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return found


@pytest.mark.parametrize("there", [1, 2, 3, 4])
def test_leases_that_come_and_go_leave_the_bits(there: int, processors: Callable[[int], Team]) -> None:
    """Convolutions of all kinds, in runs whose threads change from step to step."""
    team = processors(there)
    source = onnx.load(light("squeezenet")).SerializeToString()
    x = {"data_0": np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)}
    wanted = bn.compile(source, threads=1).run(None, x)[0].tobytes()
    sessions = [bn.compile(source, threads=threads) for threads in (4, 4, 2)]
    found = together([lambda s=s: s.run(None, x)[0] for s in sessions], 1.5)  # type: ignore[misc]
    assert found == [{wanted}] * 3
    assert nobody(team)


def test_sessions_that_close_and_go_while_others_run(processors: Callable[[int], Team]) -> None:
    team = processors(3)
    graph, x = network(200), feed(64, 200)
    wanted = bn.compile(graph, threads=1)(x)["y"].tobytes()
    kept = bn.compile(graph, threads=3)

    def fleeting() -> Array:
        with bn.compile(graph, threads=3) as session:
            result: Array = session(x)["y"]
        del session
        gc.collect()
        return result

    def closed() -> Array:
        kept.close()
        result: Array = kept(x)["y"]
        return result

    assert together([fleeting, lambda: kept(x)["y"], closed, fleeting], 2) == [{wanted}] * 4
    assert nobody(team)


# ----------------------------------------------------------------------------------------- errors, interrupts and forks


def test_a_run_that_is_refused_gives_its_workers_back(processors: Callable[[int], Team]) -> None:
    team = staffed(processors(2))
    graph = Graph("one")
    build = Builder(graph)
    x, at = graph.add_input("x", TensorType(F32, (4096, 300))), graph.add_input("at", TensorType(I64, (3000,)))
    graph.add_output(build(Gather(0), build(Exp(), x), at), "y")
    session = bn.compile(graph, threads=2)
    feeds = {"x": np.zeros((4096, 300), np.float32), "at": np.full(3000, 5000)}
    for _ in range(20):
        with pytest.raises(DataError, match="5000"):
            session.run(None, feeds)
        assert nobody(team)
    visit = Visit(2)
    assert visit.threads[0] == 2
    visit.pass_gate(0)


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_while_a_worker_starts(
    before: bool, processors: Callable[[int], Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    team, start = processors(2), threading.Thread.start

    def interrupting(thread: threading.Thread) -> None:
        if not before:
            start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupting)
    program = Shares(3, 2)
    with pytest.raises(KeyboardInterrupt):
        program.run()
    program.run()
    np.testing.assert_array_equal(program.counts, 1)
    assert staffed(team).workers == 1, "not two in one block"
    visit = Visit(2)
    assert visit.threads[0] == 2
    visit.pass_gate(0)


def lease_interrupts() -> None:
    """Interrupts at any moment of runs, beside another caller: all workers come back."""
    team = teams._Team(3)
    teams._teams[:] = [staffed(team)]
    rng, stop = random.Random(3), threading.Event()
    mine, other = Shares(5, 3), Shares(5, 3)
    beside = threading.Thread(target=lambda: [other.run() for _ in iter(stop.is_set, True)])
    beside.start()
    hits = sum(interrupted(rng.uniform(2e-5, 3e-4), lambda: for_ever(mine.run)) for _ in range(300))
    stop.set()
    beside.join()
    assert hits == 300
    assert nobody(team)
    time.sleep(LINGER_S)
    visit = Visit(3)
    assert visit.threads[0] == 3
    visit.pass_gate(0)


def lease_forks() -> None:
    """Forks while other threads hold leases: a child has its own workers, and the same bits."""
    graph = network(200)
    session, x = bn.compile(graph, threads=2), feed(64, 200)
    wanted = session(x)["y"].tobytes()
    staffed(teams.team())
    for _ in range(20):
        held, begun = Visit(2), teams.team()
        process = os.fork()
        if not process:
            signal.alarm(STUCK_S)
            right = session(x)["y"].tobytes() == wanted and staffed(teams.team()) is not begun
            visit = Visit(2)
            visit.pass_gate(0)
            os._exit(0 if right and visit.threads[0] == min(2, teams.team().room + 1) and nobody(teams.team()) else 1)
        assert os.waitpid(process, 0)[1] == 0
        held.pass_gate(0)
        assert session(x)["y"].tobytes() == wanted
    assert nobody(teams.team())


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("task", [lease_interrupts, lease_forks])
def test_leases_outside_their_time(task: Callable[[], None]) -> None:
    child(task, "tests.test_leases")
