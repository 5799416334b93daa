"""Several processes that serve the same models, forked once these are loaded: weights are there once.

A change of the repository that one of them is asked for goes by its pipe to the process that looks after them, and from
there to all; it is done when all have made it.  Changes follow one another.  A version takes requests once all have
loaded it: what one of them could not load, none takes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

import orjson
from prometheus_client.multiprocess import mark_process_dead

from bolt_numba.serve.errors import MOST_SAID, RequestError, failure, spelled
from bolt_numba.serve.repository import Repository

log = logging.getLogger("bolt_numba.serve")

SHORTEST_S = 1.0
"""Seconds that a process lives at least: one that ends sooner is begun again only after so long."""
ENDS = (signal.SIGTERM, signal.SIGINT)
PASSED = (*ENDS, signal.SIGHUP)
WOKEN = 4096
WATCHER = 0
"""The number of the process that looks at the folder for all."""
MOST_DEATHS = 2
"""Processes that may end while they load a version: no other tries it then."""
GONE = ("unavailable", "the server ends")


class Link:
    """Of one of several processes: its pipe, by which changes of its repository become those of all.

    watches: whether it looks at the folder for all.
    """

    def __init__(self, pipe: Connection, watches: bool) -> None:
        self.pipe, self.watches, self.turn = pipe, watches, asyncio.Lock()

    def begin(self, repository: Repository, begin_task: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Hear of changes, in the event loop that runs.  begin_task: begins work that is given up at the end."""
        self.repository, self.begin_task, repository.link = repository, begin_task, self
        asyncio.get_running_loop().add_reader(self.pipe.fileno(), self._hear)

    async def change(self, name: str, loads: bool, is_asked: bool) -> None:
        """Make a change in all processes.  Raises RequestError where one of them could not.

        Only one is in the pipe until it is answered: many, or a long one, would not find room there.
        """
        await self.turn.acquire()
        self.asked = asyncio.get_running_loop().create_future()
        if not _send(self.pipe, {"change": [name, loads, is_asked]}):
            self._answered(GONE)
        if error := await asyncio.shield(self.asked):  # the answer comes, too, if nobody waits for it
            raise RequestError(error[1], error[0])
        if self.repository.is_ending:  # this process, and perhaps all
            raise RequestError(GONE[1], GONE[0])

    def trying(self, version: str) -> None:
        """Tell what is being loaded, should this process die of it."""
        _send(self.pipe, {"trying": version})

    async def agree(self, failed: dict[str, str], after: dict[str, int]) -> dict[str, str | None]:
        """Tell what failed here, and what would serve, with hashes of its files.

        Gives what none shall take, with reasons, "": all that is new; None: not all found the same files.
        """
        self.agreed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        failed = {v: spelled(said)[: MOST_SAID // len(failed)] for v, said in failed.items()}
        _send(self.pipe, {"failed": failed, "after": after})
        return cast(dict[str, str | None], await self.agreed)

    def _answered(self, error: Any) -> None:
        self.asked.set_result(error)
        self.turn.release()

    def _hear(self) -> None:
        try:
            told = orjson.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):  # who looks after this process is gone, and it goes, too
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            self.pipe.close()
            if self.turn.locked():
                self._answered(GONE)
            signal.raise_signal(signal.SIGTERM)
            return
        if "change" in told:
            self.begin_task(self._make(*told["change"]))
        elif "error" in told:
            self._answered(told["error"])
        elif not self.agreed.done():  # it is given up at the end
            self.agreed.set_result(told["refused"])

    async def _make(self, name: str, loads: bool, is_asked: bool) -> None:
        repository, error = self.repository, None
        try:
            if not repository.is_ending:
                await (repository.load if loads else repository.unload)(name, is_asked)
        except RequestError as found:  # who asked for it counts it
            error = (found.kind, spelled(str(found))[:MOST_SAID])
        except Exception as found:
            error = failure(found)
        finally:
            _send(self.pipe, {"error": error, "serve": [*repository.models.get(name, ())]})


class ServingProcess(NamedTuple):
    """A process: its number, when it began, and the pipe to it."""

    number: int
    since: float
    pipe: Connection


class Herd:
    """So many processes that do the same.  One that dies is begun again; SIGTERM and SIGINT end all, one gets SIGHUP.

    work: what each does, with its link; it must not return before a signal.
    repository: as processes that begin later find it: without what was unloaded, or what the others refused.
    """

    def __init__(self, count: int, work: Callable[[Link], None], repository: Repository) -> None:
        self.count, self.work, self.repository = count, work, repository
        self.workers: dict[int, ServingProcess] = {}
        self.is_ending = self.is_decided = False
        self.line: deque[tuple[int, Any]] = deque()
        self.asking: tuple[int, Any] | None = None
        self.left, self.voted, self.error, self.name = set[int](), set[int](), cast(Any, None), ""
        self.failed, self.trying = dict[str, str](), dict[int, str]()
        self.have, self.afters = set[str](), list[dict[str, int]]()

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
                    with suppress(EOFError, OSError):  # it has ended, which its status tells
                        self._hear(pipes[ready], ready)
                else:
                    self.woken.recv(WOKEN)
            for pid in list(self.workers):  # no other child, which somebody else may wait for
                if (ended := os.waitpid(pid, os.WNOHANG)) != (0, 0):
                    self._look_after(*ended)

    def _begin(self, number: int) -> int:
        ours, theirs = Pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)  # until the child has no handler of ours
        pid = os.fork()
        if pid:
            theirs.close()
            self.workers[pid] = ServingProcess(number, time.monotonic(), ours)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
            if self.is_ending:  # the signal came before the process was known
                os.kill(pid, signal.SIGTERM)
            return pid
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (*PASSED, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
            for pipe in (ours, *(worker.pipe for worker in self.workers.values())):
                pipe.close()
            self.work(Link(theirs, number == WATCHER))
            status = 0
        except BaseException:
            log.exception("worker %d ended", number)
        finally:
            os._exit(status)

    def _look_after(self, pid: int, status: int) -> None:
        number, since, pipe = self.workers.pop(pid)
        with pipe, suppress(EOFError, OSError):
            while pipe.poll():  # its last words
                self._hear(pid, pipe)
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
        if not self.is_ending:
            log.error(
                "worker %d (process %d) ended with %d: another begins", number, pid, os.waitstatus_to_exitcode(status)
            )
            time.sleep(max(0.0, SHORTEST_S - (time.monotonic() - since)))
            is_asked = not self.is_decided and pid in self.left | self.voted
            if is_asked:
                self._blame(pid)
            other = self._begin(number)
            if is_asked:  # in place of the one that died
                self.left.add(other)
                self._tell(other, {"change": [self.name, self.loads, False]})  # what was refused meanwhile remains so
        self._done(pid)
        self._go_on()

    def _pass_on(self, number: int, frame: object) -> None:
        self.is_ending = self.is_ending or number in ENDS
        for pid in list(self.workers)[: 1 if number == signal.SIGHUP else None]:
            os.kill(pid, number)

    # --- changes -----------------------------------------------------------------------------------------------------

    def _hear(self, pid: int, pipe: Connection) -> None:
        """A process asks for a change, tries or has loaded what it could of one, or has made it."""
        told = orjson.loads(pipe.recv_bytes())
        if "change" in told:
            self.line.append((pid, told["change"]))
        elif "trying" in told:
            self.trying[pid] = told["trying"]
        elif "failed" in told:
            self.failed |= told["failed"]
            self.afters.append(told["after"])
            self.left.discard(pid)
            self.trying.pop(pid, None)
            self.voted.add(pid)
        else:
            if told["error"]:
                self.error = self.error or told["error"]
                self.failed[""] = told["error"][1]
            self.have.update(told["serve"])
            self._done(pid)
        self._go_on()

    def _done(self, pid: int) -> None:
        self.left.discard(pid)
        self.voted.discard(pid)

    def _blame(self, pid: int) -> None:
        """Refuse what processes died of, if they are too many."""
        self.deaths += pid in self.trying
        if self.deaths >= MOST_DEATHS and pid in self.trying:
            said = f"model {self.name!r}: version {self.trying[pid]}: processes died as they loaded it"
            self.failed[self.trying[pid]] = said
        self.repository.refuse(self.name, self.failed)

    def _go_on(self) -> None:
        """Tell all what none takes, once all have loaded; who asked, once all are done; and have all make the next."""
        while not self.left:
            if self.voted:
                self.left, self.voted, self.is_decided = self.voted, set(), True
                self.repository.refuse(self.name, self.failed)
                first, others = self.afters[0].items(), [after.items() for after in self.afters]
                apart = dict.fromkeys(version for other in others for version, _ in first ^ other)
                for pid in self.left:
                    self._tell(pid, {"refused": apart | self.failed})
                return
            if self.asking is not None:
                self.repository.agreed |= {self.name: self.have} if self.have else {}
                self._tell(self.asking[0], {"error": self.error})
            self.asking = self.line.popleft() if self.line else None
            if self.asking is None:
                return
            self.name, self.loads, is_asked = self.asking[1]
            self._note(is_asked)
            self.error, self.is_decided, self.deaths, self.left = None, False, 0, set(self.workers)
            self.failed, self.trying, self.have, self.afters = {}, {}, set(), []
            for pid in self.workers:
                self._tell(pid, {"change": self.asking[1]})

    def _note(self, is_asked: bool) -> None:
        if not self.loads:
            self.repository.forget(self.name)
            self.repository.agreed.pop(self.name, None)
        if is_asked:
            (self.repository.forgive if self.loads else self.repository.unloaded.add)(self.name)

    def _tell(self, pid: int, what: Any) -> None:
        if pid in self.workers:
            _send(self.workers[pid].pipe, what)


def _send(pipe: Connection, what: Any) -> bool:
    """Whether the other end was there."""
    try:
        pipe.send_bytes(orjson.dumps(what))
        return True
    except OSError:
        return False
