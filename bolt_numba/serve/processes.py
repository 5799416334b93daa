"""Several processes that serve the same models, forked once these are loaded: weights are there once.

A change of the repository that one of them is asked for goes by its pipe to the process that looks after them, and from
there to all; it is done when all have made it.  Changes follow one another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import orjson
from prometheus_client.multiprocess import mark_process_dead

from bolt_numba.serve.errors import RequestError, failure
from bolt_numba.serve.repository import Repository

log = logging.getLogger("bolt_numba.serve")

SHORTEST_S = 1.0
"""Seconds that a process lives at least: one that ends sooner is begun again only after so long."""
ENDS = (signal.SIGTERM, signal.SIGINT)
PASSED = (*ENDS, signal.SIGHUP)
WOKEN = 4096


class Link:
    """Of one of several processes: its pipe, by which changes of its repository become those of all."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.turn = pipe, asyncio.Lock()

    def begin(self, repository: Repository) -> None:
        """Hear of changes, in the event loop that runs."""
        self.repository, repository.together = repository, self.change
        asyncio.get_running_loop().add_reader(self.pipe.fileno(), self._hear)

    async def change(self, name: str, loads: bool) -> None:
        """Make a change in all processes.  Raises RequestError where one of them could not.

        Only one is in the pipe until it is answered: many, or a long one, would not find room there.
        """
        await self.turn.acquire()
        self.asked = asyncio.get_running_loop().create_future()
        _send(self.pipe, {"change": [name, loads]})
        if error := await asyncio.shield(self.asked):  # the answer comes, too, if nobody waits for it
            raise RequestError(error[1], error[0])

    def _hear(self) -> None:
        try:
            told = orjson.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):  # who looks after this process is gone, and it goes, too
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            signal.raise_signal(signal.SIGTERM)
            return
        if "change" in told:
            self.making = asyncio.create_task(self._make(*told["change"]))  # the one before is done
        else:
            self.asked.set_result(told["error"])
            self.turn.release()

    async def _make(self, name: str, loads: bool) -> None:
        error = None
        try:
            await (self.repository.load if loads else self.repository.unload)(name)
        except Exception as found:
            error = failure(found)
        _send(self.pipe, {"error": error})


class ServingProcess(NamedTuple):
    """A process: its number, when it began, and the pipe to it."""

    number: int
    since: float
    pipe: Connection


class Herd:
    """So many processes that do the same.  One that dies is begun again; SIGTERM and SIGINT end all, all get SIGHUP.

    work: what each does, with its link; it must not return before a signal.
    unloaded: names of models that were unloaded, which processes that begin later do without.
    """

    def __init__(self, count: int, work: Callable[[Link], None], unloaded: set[str]) -> None:
        self.count, self.work, self.unloaded = count, work, unloaded
        self.workers: dict[int, ServingProcess] = {}
        self.is_ending = False
        self.line: deque[tuple[int, Any]] = deque()
        self.asking: tuple[int, Any] | None = None
        self.left = set[int]()
        self.error: Any = None

    def run(self) -> None:
        """Begin all, look after them, and return when all have ended."""
        self.woken, waking = socket.socketpair()
        waking.setblocking(False)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # so that it wakes
        for each in PASSED:
            signal.signal(each, self._pass_on)
        for number in range(self.count):
            self._begin(number)
        while self.workers:
            pipes = {worker.pipe: pid for pid, worker in self.workers.items()}
            for ready in wait([self.woken, *pipes]):
                if isinstance(ready, Connection):
                    self._hear(pipes[ready], ready)
                else:
                    self.woken.recv(WOKEN)
            for pid in list(self.workers):  # no other child, which somebody else may wait for
                if (ended := os.waitpid(pid, os.WNOHANG)) != (0, 0):
                    self._look_after(*ended)

    def _begin(self, number: int) -> None:
        ours, theirs = Pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)  # until the child has no handler of ours
        pid = os.fork()
        if pid:
            theirs.close()
            self.workers[pid] = ServingProcess(number, time.monotonic(), ours)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
            if self.is_ending:  # the signal came before the process was known
                os.kill(pid, signal.SIGTERM)
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (*PASSED, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
            for pipe in (ours, *(worker.pipe for worker in self.workers.values())):
                pipe.close()
            if self.asking is not None:  # the others make a change, which this one finds made
                self._note(*self.asking[1])
            self.work(Link(theirs))
            status = 0
        except BaseException:
            log.exception("worker %d ended", number)
        finally:
            os._exit(status)

    def _look_after(self, pid: int, status: int) -> None:
        number, since, pipe = self.workers.pop(pid)
        pipe.close()
        self.left.discard(pid)
        self._go_on()
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
        if number == signal.SIGHUP:
            self.unloaded.clear()
        for pid in list(self.workers):
            os.kill(pid, number)

    # --- changes -----------------------------------------------------------------------------------------------------

    def _hear(self, pid: int, pipe: Connection) -> None:
        """A process asks for a change, or has made one."""
        try:
            told = orjson.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # it has ended, which its status tells
            return
        if "change" in told:
            self.line.append((pid, told["change"]))
        else:
            self.left.discard(pid)
            self.error = self.error or told["error"]
        self._go_on()

    def _go_on(self) -> None:
        """Tell who asked, if all have made its change, and have all make the next one."""
        while not self.left:
            if self.asking is not None:
                pid, (name, loads) = self.asking
                if self.error is None:
                    self._note(name, loads)
                self._tell(pid, {"error": self.error})
            self.asking = self.line.popleft() if self.line else None
            if self.asking is None:
                return
            self.error, self.left = None, set(self.workers)
            for pid in self.workers:
                self._tell(pid, {"change": self.asking[1]})

    def _note(self, name: str, loads: bool) -> None:
        (self.unloaded.discard if loads else self.unloaded.add)(name)

    def _tell(self, pid: int, what: Any) -> None:
        if pid in self.workers:
            with suppress(OSError):  # it has ended
                _send(self.workers[pid].pipe, what)


def _send(pipe: Connection, what: Any) -> None:
    pipe.send_bytes(orjson.dumps(what))
