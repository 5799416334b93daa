"""Functions of nodes in processes: one for each worker, started anew where it ends, stopped with its task."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from bolt_numba.base.shared_calls import LEAST_SEGMENT, Call, Done, Failed, Room, packed, put, room_for, serve, taken
from bolt_numba.flow.crew import Worker
from bolt_numba.flow.errors import FlowError
from bolt_numba.flow.node import FunctionNode
from bolt_numba.flow.parts import NodeOptions

PATIENCE_S = 5.0
"""Seconds that a child has to end by itself when the flow is closed."""
GRACE_S, STARTING_S = 0.1, 10.0
"""Seconds at least that a call may go on when its task was given up; and that a process may still take to start."""

_numbers = itertools.count()
"""Of segments, in their names."""

GUARD = "below `if __name__ == '__main__':`"


class ProcessNode(FunctionNode):
    """A function that each worker calls in a process of its own.  What it gets and gives is pickled, but for arrays."""

    def __init__(
        self, name: str, function: Callable[..., Any], inputs: Any, outputs: Any, options: NodeOptions
    ) -> None:
        super().__init__(name, function, inputs, outputs, options)
        self.children: dict[Worker, Child] = {}
        try:
            self.pickled = pickle.dumps(function)
        except Exception as error:  # what cannot be pickled says so in many ways
            raise FlowError(f"process: got {function!r:.80}, wanted a function of a module: {error}") from error

    def prepare(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self.children[worker] = Child(self.name, self.pickled, worker.cpus)

    def apply(self, worker: Worker, args: list[Any], named: dict[str, Any]) -> Any:
        return self.children[worker].call(args, named)

    def stop(self, worker: Worker) -> None:
        self.children[worker].stop()

    def close(self, kill: bool = False) -> None:
        for child in self.children.values():
            child.end(kill)


class Child:
    """A process that calls one function, for one thread; `stop` and `end` are for any thread."""

    def __init__(self, name: str, function: bytes, cpus: frozenset[int] | None) -> None:
        self.name, self.function, self.cpus, self.owner = name, function, cpus, os.getpid()
        self.number, self.is_closed, self.is_given_up = 0, False, False
        self.start()

    def start(self) -> None:
        """Start a process; it is ready when `call` asks for the first time."""
        method = multiprocessing.get_start_method(allow_none=True)  # a fork would copy locks of other threads
        context: Any = multiprocessing.get_context("spawn" if method in (None, "fork") else method)
        self.connection, theirs = context.Pipe()
        self.alarm, self.bell = context.Pipe(duplex=False)
        target = {"target": serve, "args": (theirs, self.function, self.cpus), "daemon": True}
        self.process: Any = context.Process(name=f"bolt-numba {self.name}", **target)
        self.begun = time.monotonic()
        self.ready_s: float | None = None
        try:
            self.process.start()
        except (AssertionError, RuntimeError, OSError) as error:
            said = f"cannot be started: {' '.join(str(error).split())}"
            if "bootstrapping" in said:  # a process imports the script, and comes here before it is ready
                said = f"got a start while a process imports the script, wanted it {GUARD}"
            raise FlowError(f"process: {said}") from error
        theirs.close()
        self.boxes: dict[str, SharedMemory] = {}
        ends = (self.connection, self.alarm, self.bell)
        self._last = weakref.finalize(self, _dispose, os.getpid(), self.process, ends, self.boxes)
        if self.is_closed:  # `end` has not seen this process
            self._last()
            raise FlowError("process: got a call after the flow was closed")

    def call(self, args: list[Any], named: dict[str, Any]) -> Any:
        """What the function returns, or raise what it raises.  Raises FlowError where the process ends meanwhile."""
        self.number, self.is_given_up = self.number + 1, False
        if self.is_closed:
            raise FlowError("process: got a call after the flow was closed")
        if not self._last.alive:
            self.start()
        try:
            if self.ready_s is None:
                self._until_ready()
            found = self._answer(args, named)
        except (EOFError, OSError) as error:
            raise FlowError(f"process: {self._ended()}, wanted a result") from error
        if found.keeps:  # nobody writes there any more
            self._drop("inbox")
        if isinstance(found, Failed):
            raise _error_of(found)
        return taken(self.boxes.get("outbox") if found.sizes else None, found.data, found.sizes)

    def _until_ready(self) -> None:
        found = self._heard()
        if isinstance(found, Failed):
            self._last()
            raise FlowError(f"process: the function cannot be imported there: {found.said}")
        self.ready_s = time.monotonic() - self.begun
        if self.is_given_up:
            raise FlowError("process: was not asked, as the task was given up")

    def _answer(self, args: list[Any], named: dict[str, Any]) -> Done | Failed:
        while self.alarm.poll(0):  # meant for an earlier call
            self.alarm.recv()
        data, parts = packed((args, named))
        sizes = [part.nbytes for part in parts]
        inbox = self._box("inbox", room_for(sizes)) if parts else None
        if inbox is not None:
            put(inbox, parts)
        del parts
        outbox = self.boxes.get("outbox")
        names = [None if box is None else box.name for box in (inbox, outbox)]
        self.connection.send(Call(data, sizes, *names))
        found: Any = self._heard()
        if isinstance(found, Room):
            try:
                name = self._box("outbox", found.nbytes).name
            except FlowError:
                self._last()  # the child waits for the name
                raise
            self.connection.send(name)
            found = self._heard()
        return found  # type: ignore[no-any-return]

    def _box(self, what: str, nbytes: int) -> SharedMemory:
        """A segment of at least so many bytes."""
        found = self.boxes.get(what)
        if found is None or found.size < nbytes:
            self._drop(what)
            found = _segment(max(LEAST_SEGMENT, 1 << (nbytes - 1).bit_length()))
            self.boxes[what] = found
        return found

    def _drop(self, what: str) -> None:
        if (found := self.boxes.pop(what, None)) is not None:
            _remove(found)

    def _heard(self) -> Any:
        """The child's next word.  Raises EOFError where it ends, or is ended because its task was given up."""
        until: float | None = None
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = wait([self.connection, self.process.sentinel, self.alarm], left)
            if self.connection in ready or (ready and self.connection.poll(0)):
                return self.connection.recv()
            if self.process.sentinel in ready or not ready:
                raise EOFError
            if self.alarm.recv() == self.number:
                self.is_given_up = True
                until = time.monotonic() + max(GRACE_S, STARTING_S if self.ready_s is None else self.ready_s)

    def _ended(self) -> str:
        """How it ended; all that it had is gone then."""
        if self.is_given_up and self.process.is_alive():
            self._last()
            return "was ended as its task was given up"
        self.process.join(PATIENCE_S)  # it has closed its end
        code = self.process.exitcode or 0
        hint = "" if self.ready_s is not None else f" before it was ready (flows of a script are to start {GUARD})"
        self._last()
        named = signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else f"code {code}"
        return f"ended by {named}{hint}"

    def stop(self) -> None:
        """The task of the call at hand was given up: it gets as long as another process would take to start."""
        with suppress(OSError):  # it has just ended
            self.bell.send(self.number)

    def end(self, kill: bool) -> None:
        """No call comes any more.  kill: the one at hand ends; else let go of all."""
        self.is_closed = True
        if os.getpid() != self.owner:
            return
        if kill:
            with suppress(Exception):  # it has just ended
                self.process.kill()
            return
        if self._last.alive:
            with suppress(Exception):  # it has just ended
                self.connection.send(None)
                self.process.join(PATIENCE_S)
        self._last()


def _segment(nbytes: int) -> SharedMemory:
    """A new segment whose memory is there.  What the system only promises may end the process that writes to it."""
    found = None
    while found is None:
        try:
            found = SharedMemory(f"bolt-{os.getpid()}-{next(_numbers)}", create=True, size=nbytes)
        except FileExistsError:  # of a process that had this number before
            continue
        except OSError as error:
            raise FlowError(f"process: shared memory: got none of {nbytes:,} bytes: {error}") from error
    handle = getattr(found, "_fd", -1)
    if hasattr(os, "posix_fallocate") and isinstance(handle, int) and handle >= 0:
        try:
            os.posix_fallocate(handle, 0, nbytes)
        except OSError as error:
            _remove(found)
            raise FlowError(f"process: shared memory: got no {nbytes:,} bytes: {error}") from error
    return found


def _remove(segment: SharedMemory) -> None:
    with suppress(OSError):
        segment.unlink()
    with suppress(BufferError):
        segment.close()


def _dispose(owner: int, process: Any, ends: Sequence[Any], boxes: dict[str, SharedMemory]) -> None:
    """End a process, and then remove its segments; not in a child of fork, whose they are not."""
    if os.getpid() != owner:
        return
    with suppress(Exception):  # it has not begun, or is gone
        process.kill()
        process.join(PATIENCE_S)
    for end in ends:
        with suppress(OSError):
            end.close()
    for segment in boxes.values():
        _remove(segment)
    boxes.clear()


def _error_of(found: Failed) -> BaseException:
    """What the function raised, with a note of where; a FlowError where it cannot be brought over."""
    error: Any = None
    if found.error is not None:
        with suppress(Exception):
            error = pickle.loads(found.error)
    if not isinstance(error, BaseException):
        error = FlowError(f"process: {found.said}")
    error.add_note(f"In its process:\n{found.trace}")
    return error  # type: ignore[no-any-return]
