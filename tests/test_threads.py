"""The team of threads: it sleeps when there is nothing to do, and wakes for every run."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from bolt_numba.kernels.cpu.executor import run_steps
from bolt_numba.kernels.cpu.lang import atomic_add
from bolt_numba.kernels.jit import I64, PTR, native
from bolt_numba.runtime.threads import run_alone, run_native

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
        run_native(self.call.ctypes.data, self.threads, True)


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
