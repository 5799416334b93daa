"""The team of threads: it sleeps when there is nothing to do, and wakes for every run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.config import MAX_THREADS
from bolt_numba.devices import threads as teams
from bolt_numba.devices.threads import run_alone, run_native
from bolt_numba.errors import DeviceError
from bolt_numba.kernels.cpu.executor import run_steps
from bolt_numba.kernels.cpu.language.lang import atomic_add
from bolt_numba.kernels.cpu.products.pack import run_shares
from bolt_numba.kernels.jit import I64, PTR, native
from tests.test_interrupts import feed, network

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the team needs Linux semaphores")


@native(counts=PTR, step=I64)
def count_shares(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Add 1 for the share that this is of ``nthreads``."""
    atomic_add(p.counts + 8 * (p.step * nthreads + tid), 1)


class Shares:
    """A program of ``steps`` shared steps that count who ran."""

    def __init__(self, steps: int, threads: int) -> None:
        self.threads, self.counts = threads, np.zeros((steps, threads), np.int64)
        self.records = [count_shares.record(counts=self.counts, step=i) for i in range(steps)]
        self.kernels = np.full(steps, count_shares.address, np.int64)
        self.params = np.array([r.ctypes.data for r in self.records], np.int64)
        self.flags, self.ticks = np.ones(steps, np.int64), np.zeros(steps + 1, np.int64)
        self.call = run_steps.record(
            kernels=self.kernels, params=self.params, flags=self.flags, ticks=self.ticks, steps=steps, timed=0
        )

    def run(self) -> None:
        run_native(self.call.ctypes.data, self.threads)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_every_share_runs_once_whether_the_team_sleeps_or_not(threads: int) -> None:
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
    run_alone(program.call.ctypes.data)
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
def test_fewer_threads_than_asked_for(granted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "_teams", {})
    refuse(granted, monkeypatch)
    program = Shares(40, 4)
    for _ in range(50):
        program.run()
    assert teams.team(4).workers == granted
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
print(threads.team(4).workers, (got == wanted).all())
"""
"""Uses everything once before, as another user may read no files."""


def test_a_process_that_may_have_no_more_threads() -> None:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LIMITED], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "0 True\n", done.stdout + done.stderr


@pytest.mark.parametrize("count", [0, -1, MAX_THREADS + 1, 10**9, 2**70])
def test_a_number_of_threads_that_makes_no_sense(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=f"threads: got {count}, wanted 1 to {MAX_THREADS}"):
        bn.compile(network(), threads=count)
    monkeypatch.setenv("BOLT_NUMBA_NUM_THREADS", str(count))
    with pytest.raises(DeviceError, match=f"got '{count}', wanted a number from 1 to {MAX_THREADS}"):
        bn.compile(network())


def test_the_same_bits_with_more_threads_than_processors() -> None:
    one, many = (bn.compile(network(), threads=n)(feed(50))["y"] for n in (1, 64))
    assert one.tobytes() == many.tobytes()
