"""The team: worker threads that run the same native loop as the caller.

There is one team per thread count in a process.  Its workers spin for a short while after a run, then sleep on a
semaphore.  One run at a time uses the team; a run that finds it busy runs on its own thread alone, with the same bits.
A forked child starts with no teams.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import numpy as np

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.kernels.cpu.executor import SPINS, run_steps, team_run, team_worker
from bolt_numba.kernels.cpu.products.pack import aligned_zeros

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_LINE = 16
"""f32 words in a cache line: what one thread writes and another reads has a line of its own."""


class _Team:
    """``size`` shares of work, the caller's one, and a worker for each other as far as the system gives threads.

    What a missing worker would do the others do, as shares are taken by whoever comes.
    """

    def __init__(self, size: int) -> None:
        # A cache line for the job, one for each thread, one for each semaphore.
        self.shared = aligned_zeros((1 + 2 * size, _LINE))
        self.record = np.zeros((), team_run.params)
        self.record["job"] = self.shared[0].ctypes.data
        self.record["lines"] = self.shared[1].ctypes.data
        self.record["semaphores"] = semaphores = self.shared[1 + size].ctypes.data
        self.record["spins"] = SPINS
        for kept in (self.shared, self.record):
            # Workers run until the process ends, which is later than Python frees what it has.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        libc = ctypes.CDLL(None)
        for worker in range(1, size):
            if libc.sem_init(ctypes.c_void_p(semaphores + 64 * worker), 0, 0) != 0:
                raise OSError("sem_init failed")
        self.call = _CALL(team_run.address)
        work = _CALL(team_worker.address)
        record = self.record_address = self.record.ctypes.data
        self.workers = 0
        for worker in range(1, size):
            name = f"bolt-numba-{worker}"
            try:
                threading.Thread(target=work, args=(record, worker, size), name=name, daemon=True).start()
            except RuntimeError:  # "can't start new thread"
                break
            self.workers += 1


_teams: dict[int, _Team] = {}
_lock = threading.Lock()
_alone: list[ctypes._CFunctionType] = []

renew_after_fork(sys.modules[__name__], "_lock", threading.Lock)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_teams.clear)


def can_team() -> bool:
    """Whether this platform has the unnamed semaphores that the workers sleep on."""
    return sys.platform.startswith("linux")


def team(size: int) -> _Team:
    found = _teams.get(size)
    if found is None:
        with _lock:
            found = _teams.get(size)
            if found is None:
                found = _teams[size] = _Team(size)
    return found


def run_alone(address: int) -> None:
    """Run the steps of the record at ``address`` on the calling thread."""
    if not _alone:
        _alone.append(_CALL(run_steps.address))
    _alone[0](address, 0, 1)


def run_native(address: int, threads: int) -> None:
    """Run the steps of the record at ``address``, with the team of so many threads when it is free."""
    if threads == 1:
        run_alone(address)
        return
    crew = team(threads)
    crew.call(crew.record_address, address, threads)
