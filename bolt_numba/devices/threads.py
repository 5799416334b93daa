"""The team: the process's worker threads, which run the same native loop as the callers that lease them.

A run leases free workers, as many as its session has threads besides the caller, but no more than there are processors
for: callers and leased workers together keep to the processors of the process.  Where none is free a run does all by
itself, with the same bits.  Workers spin for a short while after a run, then sleep on a semaphore.  A forked child
starts with a team of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import numpy as np

from bolt_numba.base.cancelling import IN_FORCE, around, stopping
from bolt_numba.base.config import MAX_THREADS, processors
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.executor import LINE, SPINS, STOP, WORKERS, run_steps, team_run, team_worker

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def _lines(count: int) -> Array:
    """Lines of zeros, each where one of the cache begins."""
    made = line_aligned(count * LINE)
    made.fill(0)
    return made.reshape(count, LINE)


class _Team:
    """Room for a worker for each processor but one, which the first caller has; workers start when a run wants them.

    What a missing worker would do the others do, as shares are taken by whoever comes.
    """

    def __init__(self, processors: int) -> None:
        self.processors, self.room = processors, min(processors, MAX_THREADS) - 1 if can_team() else 0
        self.counts = _lines(2)
        self.words, self.busy = self.counts.view(np.int64).reshape(-1).data, self.counts.ctypes.data
        self.alone = _CALL(run_steps.address)
        self.started = -1  # there is no room yet: a process that never shares a step needs none

    def _make_room(self) -> None:
        """Memory of the workers, see `kernels.cpu.executor`, and what they and their callers run."""
        lines = 3 + self.processors + -(-self.processors * 8 // LINE)
        blocks, record = _lines(self.room * lines), np.zeros((), team_run.params)
        for worker in range(self.room):
            if ctypes.CDLL(None).sem_init(ctypes.c_void_p(blocks[worker * lines + 1 :].ctypes.data), 0, 0) != 0:
                raise OSError("sem_init failed")
        record["busy"], record["blocks"], record["block"] = self.busy, blocks.ctypes.data, lines * LINE
        record["processors"], record["spins"] = self.processors, SPINS
        for kept in (self.counts, blocks, record):
            # Workers run until the process ends, which is later than Python frees what it has.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        self.together, self.work = _CALL(team_run.address), _CALL(team_worker.address)
        self.address, self.started = record.ctypes.data, 0

    @property
    def workers(self) -> int:
        """Workers that there are."""
        return int(self.words[WORKERS // 8])

    @property
    def callers_and_leased(self) -> int:
        """Threads that run steps now."""
        return int(self.words[0]) & 0xFFFFFFFF

    def grow(self, threads: int) -> None:
        """Start workers for one more run of so many threads, as far as there is room and the system gives threads."""
        wanted = min((self.words[0] >> 32) + threads, self.room + 1) - 1
        if self.started >= wanted:
            return
        with _lock:
            if self.started < 0:
                self._make_room()
            while self.started < wanted:
                args = (self.address, self.room, 0)
                name = f"bolt-numba-{self.started + 1}"
                try:
                    threading.Thread(target=self.work, args=args, name=name, daemon=True).start()
                except RuntimeError:  # "can't start new thread"
                    self.room = self.started
                    return
                # An interrupt that comes before this starts one more, which finds a block free, or ends.
                self.started += 1


_teams: list[_Team] = []
"""None, or the one of this process."""
_lock = threading.RLock()  # a signal handler may run, too

renew_after_fork(sys.modules[__name__], "_lock", threading.RLock)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_teams.clear)


def can_team() -> bool:
    """Whether this platform has the unnamed semaphores that the workers sleep on."""
    return sys.platform.startswith("linux")


def team() -> _Team:
    """The team of this process; it starts without workers."""
    with _lock:
        if not _teams:
            _teams.append(_Team(processors()))
        return _teams[0]


def load_executor() -> None:
    """Load the kernels that every run needs, with one thread or several; compile those that no cache has."""
    for kernel in (run_steps, team_run, team_worker):
        assert kernel.address


def run_native(address: int, threads: int, is_watched: bool = False) -> None:
    """Run the steps of the record at ``address``, with up to ``threads`` threads: this one and leased workers."""
    if IN_FORCE and not is_watched and around():
        with stopping((address + STOP,)):
            run_native(address, threads, True)
        return
    crew = _teams[0] if _teams else team()
    if threads == 1:
        crew.alone(address, crew.busy, crew.processors)
        return
    if crew.started < crew.room:
        crew.grow(threads)
    crew.together(crew.address, address, threads)


def native_call(address: int, threads: int) -> tuple[int, int, int, int]:
    """What `run_native` calls, for native code that does so: a kernel, its parameters, ``tid`` and ``nthreads``."""
    crew = team()
    if threads == 1:
        return run_steps.address, address, crew.busy, crew.processors
    if crew.started < crew.room:
        crew.grow(threads)
    return team_run.address, crew.address, address, threads
