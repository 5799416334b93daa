"""The team of threads: it sleeps when there is nothing to do, and wakes for every run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.config import MAX_THREADS
from bolt_numba.devices.threads import run_native
from bolt_numba.errors import BoltError
from bolt_numba.kernels.cpu.executor import run_steps
from bolt_numba.kernels.cpu.language.lang import atomic_add, split
from bolt_numba.kernels.cpu.products.pack import run_shares
from bolt_numba.kernels.jit import PTR, Native, native
from tests.test_interrupts import feed, network

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the team needs Linux semaphores")


CELLS = 60


@native(counts=PTR)
def count_cells(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Add 1 to each of the cells that this share has."""
    low, high = split(CELLS, tid, nthreads)
    for cell in range(low, high):
        atomic_add(p.counts + 8 * cell, 1)


class Shares:
    """A program of ``steps`` shared steps that count which cells were done."""

    def __init__(self, steps: int, threads: int) -> None:
        self.counts = np.zeros((steps, CELLS), np.int64)
        self.program = Steps([(count_cells, {"counts": row}) for row in self.counts], threads)
        self.run = self.program.run


class Steps:
    """A program of kernels with their arguments, all of which are shared."""

    def __init__(self, steps: list[tuple[Native, dict[str, Any]]], threads: int) -> None:
        self.threads, self.arguments = threads, steps
        self.records = [kernel.record(**values) for kernel, values in steps]
        self.kernels = np.array([kernel.address for kernel, _ in steps], np.int64)
        self.params = np.array([r.ctypes.data for r in self.records], np.int64)
        self.flags, self.ticks = np.ones(len(steps), np.int64), np.zeros(len(steps) + 1, np.int64)
        self.call = run_steps.record(
            kernels=self.kernels, params=self.params, flags=self.flags, ticks=self.ticks, steps=len(steps), timed=0,
            stop=None,
        )

    def run(self) -> None:
        run_native(self.call.ctypes.data, self.threads)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_every_share_runs_once_whether_the_team_sleeps_or_not(threads: int, processors: Any) -> None:
    processors(threads)
    program = Shares(40, threads)
    pauses = [0, 0, 2e-5, 6e-5, 2e-4, 2e-3]  # workers spin for about 50 us: awake, going to sleep, asleep
    for i in range(300):
        program.run()
        time.sleep(pauses[i % len(pauses)])
    np.testing.assert_array_equal(program.counts, 300)


def test_an_idle_team_takes_no_time() -> None:
    program = Shares(4, 2)
    for _ in range(100):
        program.run()
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03


def test_alone_runs_every_step_as_one_share() -> None:
    program = Shares(3, 1)
    program.run()
    np.testing.assert_array_equal(program.counts, 1)


# ------------------------------------------------------------------------------------------------ too few, too many


def refuse(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only so many threads start."""
    start, left = threading.Thread.start, [after]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_fewer_threads_than_asked_for(granted: int, processors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    team = processors(4)
    refuse(granted, monkeypatch)
    program = Shares(40, 4)
    for _ in range(50):
        program.run()
    assert team.room == granted
    assert team.workers <= granted, "one may be about to begin"
    np.testing.assert_array_equal(program.counts, 50)


@native(done=PTR)
def mark_share(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Add 1 where this share is."""
    atomic_add(p.done + 8 * tid, 1)


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_packing_with_fewer_threads(granted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(granted, monkeypatch)
    done = np.zeros(4, np.int64)
    run_shares(mark_share, 4, 1 << 30, done=done)
    np.testing.assert_array_equal(done, 1)


LIMITED = """
import os, resource
import bolt_numba as bn
from bolt_numba.devices import threads
from tests.test_interrupts import feed, network
graph, x = network(300), feed(200, 300)
wanted = bn.compile(graph, threads=4)(x)["y"]
threads._teams.clear()
if os.getuid() == 0:  # whom the limit does not hold
    os.setgid(65534), os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
got = bn.compile(graph, threads=4)(x)["y"]
print(threads.team().workers, (got == wanted).all())
"""
"""Uses everything once before, as another user may read no files."""


def test_a_process_that_may_have_no_more_threads() -> None:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LIMITED], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "0 True\n", done.stdout + done.stderr


@pytest.mark.parametrize("count", [0, -1, MAX_THREADS + 1, 10**9, 2**70])
def test_a_number_of_threads_that_makes_no_sense(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BoltError, match=f"threads: got {count}, wanted a whole number from 1 to {MAX_THREADS}"):
        bn.compile(network(), threads=count)
    monkeypatch.setenv("BOLT_NUMBA_NUM_THREADS", str(count))
    with pytest.raises(BoltError, match=f"got '{count}', wanted a number from 1 to {MAX_THREADS}"):
        bn.compile(network())


def test_the_same_bits_with_more_threads_than_processors() -> None:
    one, many = (bn.compile(network(), threads=n)(feed(50))["y"] for n in (1, 64))
    assert one.tobytes() == many.tobytes()
