"""Kernels compiled by several processes at once, and those that nobody waits for.

This process and its assistants take kernels from one queue.  An assistant is another interpreter, to which kernels are
shipped (`kernels.shipping`): threads would share Python's lock, and a fork would copy locks that other threads hold.
Where no interpreter can be started, this process compiles alone.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from bolt_numba.base.config import CACHE_DIR, compilers
from bolt_numba.base.errors import KernelError
from bolt_numba.base.files.kept import folders, tell_cost
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.swallowed import swallowed
from bolt_numba.kernels import compiles
from bolt_numba.kernels.code_files import MachineCode
from bolt_numba.kernels.compiles import Compile
from bolt_numba.kernels.declare import function_key

PAYS = 3
"""Kernels from which another process pays: it takes half a second to begin."""
HEAD_START = 1.0
"""Seconds that the first run, by references, has the processors for itself."""
PIPE_BYTES = 1 << 15
"""Of kernels that are left to an assistant at the end: less than a pipe holds, so nobody waits for it to read."""

_processes: int | None = None
failed: set[MachineCode] = set()
"""Kernels that were tried for later, and cannot be compiled."""


@contextmanager
def compiling_in(processes: int) -> Iterator[None]:
    """Have `prepare` compile in this many processes; else as many as `base.config.compilers` says."""
    global _processes
    before, _processes = _processes, processes
    try:
        yield
    finally:
        _processes = before


def prepare(kernels: Iterable[Any], besides: Iterable[Any] = ()) -> None:
    """Load kernels, and compile those that no cache has; one that fails says so when its address is asked for.

    besides: compiled, too, where any is.  A thread that may not wait, or has no compiler, gets what is there.
    """
    missing = _missing(kernels)
    if not missing or not compiles.may_wait():
        return
    able = [kernel for kernel in missing if kernel.can_compile]
    if able:
        _compile(list(dict.fromkeys((*able, *_missing(besides)))))
    for folder in dict.fromkeys(kernel.folder for kernel in missing):
        tell_cost(folder)  # assistants cannot


def _compile(missing: Sequence[MachineCode]) -> None:
    """Compile in this process and its assistants, and show how far that is."""
    from bolt_numba.kernels.progress import shown

    wanted = compilers() if _processes is None else _processes
    assistants = min(wanted, len(missing)) - 1 if len(missing) >= PAYS else 0
    compiles.expect(len(missing))
    with shown(missing):
        _compile_all(deque(missing), assistants)


def _missing(kernels: Iterable[Any]) -> list[MachineCode]:
    return [k for k in dict.fromkeys(kernels) if isinstance(k, MachineCode) and not k.is_ready]


def _compile_all(queue: deque[MachineCode], assistants: int) -> None:
    """Compile what is in a queue; returns when all of it is done."""
    heard = compiles.heard()
    with ExitStack() as stack:
        made = [stack.enter_context(a) for a in (Assistant.start() for _ in range(assistants)) if a is not None]
        threads = [threading.Thread(target=_feed, args=(assistant, queue, heard), daemon=True) for assistant in made]
        for thread in threads:
            thread.start()
        stack.callback(queue.clear)  # an interrupt leaves nothing to begin
        while queue:
            with suppress(IndexError, KernelError):
                queue.popleft().compile()
        for thread in threads:
            thread.join()


def _feed(assistant: Assistant, queue: deque[MachineCode], heard: list[Compile] | None) -> None:
    """Have an assistant compile kernels of a queue; what it cannot is left to who asks for the kernel."""
    with compiles.heard_by(heard), suppress(IndexError):
        while assistant.compile(queue.popleft()):
            pass


class Assistant:
    """Another interpreter that compiles for this one, which ends when its input does."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self._is_ready = False
        self._sending = threading.Lock()

    @classmethod
    def start(cls, is_nice: bool = False, stays: bool = False) -> Assistant | None:
        """None where there is no interpreter, or it may not be started.  stays: it may end after this process."""
        import subprocess

        if not is_python(sys.executable):
            return None
        errors = subprocess.DEVNULL if stays else None  # else who reads those of this process would wait for it
        code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {_import_path()!r}
from bolt_numba.kernels.shipping import serve
serve({is_nice})"""
        pipe, found = subprocess.PIPE, folders()
        env = os.environ | ({CACHE_DIR.name: str(found.own)} if found.is_named else {})  # wherever this process is now
        try:
            command = [sys.executable, "-P", "-c", code]
            return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=env))
        except (OSError, ValueError, RuntimeError):  # the last: Python is about to end
            return None

    def __enter__(self) -> Assistant:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def compile(self, kernel: MachineCode) -> bool:
        """Have the kernel compiled, and loaded here; False where it was not."""
        from bolt_numba.kernels.shipping import SECONDS, is_ready, receive, send, shipped

        data = shipped(kernel)
        if data is None:
            return False
        compiles.begins(kernel.name)
        try:
            with self._sending:
                send(self.process.stdin, data)
            self._is_ready = self._is_ready or is_ready(self.process.stdout)
            answer = receive(self.process.stdout) if self._is_ready else None
        except (OSError, ValueError):
            return False
        if not answer or len(answer) <= SECONDS.size:
            return False
        kernel.take(answer[SECONDS.size :])
        compiles.ended(Compile(kernel.name, SECONDS.unpack_from(answer)[0], f"by process {self.process.pid}"))
        return True

    def leave(self, kernel: MachineCode, room: int) -> int:
        """Have the kernel compiled when this process is gone; the bytes that say so, at most ``room``.

        Nobody waits for a pipe that is full or being written to: all of ``room`` is gone then.
        """
        from bolt_numba.kernels.shipping import HEAD, NICE, framed, shipped

        data = shipped(kernel)
        if data is None or len(data) + HEAD.size > room:
            return 0
        if not self._sending.acquire(blocking=False):
            return room
        try:
            os.setpriority(os.PRIO_PROCESS, self.process.pid, NICE)
            pipe = self.process.stdin.fileno()
            os.set_blocking(pipe, False)
            sent = os.write(pipe, framed(data))
            return sent if sent == len(data) + HEAD.size else room
        except (OSError, ValueError):
            return room
        finally:
            self._sending.release()

    def close(self) -> None:
        """End it: at once where it is still at work."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError, ValueError):
                pipe.close()
        self.process.terminate()
        self.process.wait()


def is_python(executable: Any) -> bool:
    """Whether this is an interpreter, and not a server or an application with one inside."""
    is_named = isinstance(executable, str) and Path(executable).stem.startswith("python")
    return is_named and not hasattr(sys, "frozen")


def _import_path() -> list[str]:
    """Where modules are looked for, wherever another process is.

    What is no text is left out, as imports do, and what is relative to a folder that is gone.
    """
    found = []
    for part in sys.path:
        with suppress(TypeError, OSError):
            found.append(str(Path(part).absolute()))
    return found


# --------------------------------------------------------------------------------------------------------------- later


class _Wish:
    """Kernels that somebody wants later.  then: called when all of them are there, or have `failed`."""

    def __init__(self, kernels: Iterable[MachineCode], then: Callable[[], None]) -> None:
        self.left, self.then = set(kernels), then


class _Later:
    """Threads for what nobody waits for, each with an assistant."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wishes: list[_Wish] = []
        self.queue: deque[MachineCode] = deque()
        self.known: set[MachineCode] = set()
        self.threads: list[threading.Thread] = []
        self.assistants: list[Assistant] = []
        self.has_ended = threading.Event()

    def add(self, wish: _Wish, is_urgent: bool) -> None:
        threads = compilers() if is_urgent else 1
        with self.lock:
            self.wishes.append(wish)
            new = sorted(wish.left - self.known, key=_bulk, reverse=True)
            compiles.expect(len(new))
            self.queue.extend(new)
            self.known |= wish.left
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            for _ in range(min(threads, len(self.queue)) - len(self.threads)):
                work = partial(self._work, is_urgent)
                thread = threading.Thread(target=work, name="bolt_numba compiles", daemon=True)
                with suppress(RuntimeError):  # the system gives no more threads: the next wish tries again
                    thread.start()
                    self.threads.append(thread)

    def _work(self, is_urgent: bool) -> None:
        if is_urgent:
            self.has_ended.wait(HEAD_START)
        is_worth_it = compilers() > 1 and any(kernel.can_compile for kernel in tuple(self.queue))
        assistant = Assistant.start(is_nice=not is_urgent, stays=True) if is_worth_it else None
        if assistant is not None:
            self.assistants.append(assistant)
        try:
            while (kernel := self._next()) is not None:
                if assistant is None or not assistant.compile(kernel):
                    _compile_here(kernel)
                self._done(kernel)
        finally:
            if assistant is not None and not self.has_ended.is_set():
                self.assistants.remove(assistant)
                assistant.close()

    def _next(self) -> MachineCode | None:
        with self.lock:
            if self.queue:
                return self.queue.popleft()
            self.threads = [thread for thread in self.threads if thread is not threading.current_thread()]
            return None

    def leave(self) -> None:
        """The process ends: its assistants compile what is left, so that the next process finds it."""
        with self.lock:
            left = list(self.queue)
            self.queue.clear()
            self.has_ended.set()
        if left and not self.assistants and compilers() > 1:
            self.assistants += filter(None, [Assistant.start(is_nice=True, stays=True)])
        rooms = [PIPE_BYTES] * len(self.assistants)
        for number, kernel in enumerate(left if rooms else ()):
            at = number % len(rooms)
            rooms[at] -= self.assistants[at].leave(kernel, rooms[at])

    def _done(self, kernel: MachineCode) -> None:
        if not kernel.is_ready:
            failed.add(kernel)
        with self.lock:
            self.known.discard(kernel)
            mine = [wish for wish in self.wishes if kernel in wish.left]
            for wish in mine:
                wish.left.discard(kernel)
            ended = [wish for wish in mine if not wish.left]
            self.wishes = [wish for wish in self.wishes if wish not in ended]
        for wish in ended:
            wish.then()


def _bulk(kernel: MachineCode) -> int:
    """What grows with the time that a kernel compiles: the long ones come first, so that processes end together."""
    given = getattr(kernel, "given", None)
    return sum(map(len, function_key(given, set()))) if isinstance(given, FunctionType) else 0


def _compile_here(kernel: MachineCode) -> None:
    """In this thread; others run meanwhile, but share Python's lock with it."""
    try:
        kernel.compile()
    except Exception as error:
        swallowed(f"kernel {kernel.name!r}", error)
        compiles.logger().warning("kernel %s: cannot be compiled, another runs in its place: %s", kernel.name, error)


_later = _Later()
renew_after_fork(sys.modules[__name__], "_later", _Later)
atexit.register(lambda: _later.leave())


def compile_later(kernels: Iterable[Any], then: Callable[[], None], is_urgent: bool = False) -> None:
    """Compile kernels behind the back of who runs models; ``then`` is called, by another thread, when all are tried.

    is_urgent: by as many processes as compile what somebody waits for, once the first run is likely to be over; else by
    one that steps back.
    """
    _later.add(_Wish(kernels, then), is_urgent)


def idle(timeout: float = 600.0) -> bool:
    """Wait until nothing is compiled for later; False where that takes longer."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        thread = next((thread for thread in _later.threads if thread.is_alive()), None)
        if thread is None:
            return True
        thread.join(end - time.monotonic())
    return False
