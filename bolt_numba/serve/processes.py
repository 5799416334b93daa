"""Several processes that serve the same models, forked once these are loaded: weights are there once."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from prometheus_client.multiprocess import mark_process_dead

log = logging.getLogger("bolt_numba.serve")

SHORTEST_S = 1.0
"""Seconds that a process lives at least: one that ends sooner is begun again only after so long."""
PR_SET_PDEATHSIG = 1
ENDS = (signal.SIGTERM, signal.SIGINT)
PASSED = (*ENDS, signal.SIGHUP)


class Herd:
    """So many processes that do the same.  One that dies is begun again; SIGTERM and SIGINT end all, all get SIGHUP.

    work: what each does, with its number; it must not return before a signal.
    """

    def __init__(self, count: int, work: Callable[[int], None]) -> None:
        self.count, self.work = count, work
        self.pids: dict[int, tuple[int, float]] = {}
        self.is_ending = False

    def run(self) -> None:
        """Begin all, look after them, and return when all have ended."""
        for each in PASSED:
            signal.signal(each, self._pass_on)
        for number in range(self.count):
            self._begin(number)
        while self.pids:
            self._look_after(*os.waitpid(-1, 0))

    def _begin(self, number: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)  # until the child has no handler of ours
        pid = os.fork()
        if pid:
            self.pids[pid] = (number, time.monotonic())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
            if self.is_ending:  # the signal came before the process was known
                os.kill(pid, signal.SIGTERM)
            return
        status = 1
        try:
            for each in PASSED:
                signal.signal(each, signal.SIG_DFL)
            if sys.platform == "linux":  # it ends with the process that looks after it, if that is killed
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
            self.work(number)
            status = 0
        except BaseException:
            log.exception("worker %d ended", number)
        finally:
            os._exit(status)

    def _look_after(self, pid: int, status: int) -> None:
        number, since = self.pids.pop(pid)
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
        if self.is_ending:
            return
        log.error(
            "worker %d (process %d) ended with %d: another begins", number, pid, os.waitstatus_to_exitcode(status)
        )
        time.sleep(max(0.0, SHORTEST_S - (time.monotonic() - since)))
        self._begin(number)

    def _pass_on(self, number: int, frame: object) -> None:
        self.is_ending = self.is_ending or number in ENDS
        for pid in list(self.pids):
            os.kill(pid, number)
