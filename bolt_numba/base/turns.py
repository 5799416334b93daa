"""Short turns: while a plan is made, threads that run known shapes get Python's lock back soon.

A run needs the interpreter's lock for some microseconds before and after its native code.  A thread that holds it gives
it up when another has waited for the switch interval, which is 5 ms: longer than most runs take.

What no run waits for, tapes, is made by a thread of its own, one after the other (`later`), which ends when none is
left.  It has the lock for a moment at a time and then rests, and does nothing while anybody plans.  A turn between two
moments is also where it stops, for a session that is closed and for a process that ends.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType

from bolt_numba.base.budget import Budget, within
from bolt_numba.base.follow import LostError
from bolt_numba.base.forks import renew_after_fork

TURN_S = 2e-5
"""Seconds that others wait at most, beside what the system needs to wake them."""


class _Interval:
    """The process's switch interval: how many want it short, and what it was before.  is_usual: set if nobody does."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may plan, too
        self.wanted, self.before = 0, 0.0
        self.is_usual = threading.Event()
        self.is_usual.set()


def _restored() -> _Interval:
    """For a child of fork, in which nobody plans."""
    if _interval.wanted:
        sys.setswitchinterval(_interval.before)
    return _Interval()


_interval = _Interval()
renew_after_fork(sys.modules[__name__], "_interval", _restored)


class short_turns:  # noqa: N801  # a context manager, as `within` is
    """Have the interpreter change threads often: ``with short_turns(): ...``."""

    def __enter__(self) -> None:
        with _interval.lock:
            _interval.wanted += 1
            if _interval.wanted == 1:
                _interval.is_usual.clear()
                _interval.before = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_S, _interval.before))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _interval.lock:
            if _interval.wanted == 1:
                sys.setswitchinterval(_interval.before)
                _interval.is_usual.set()
            _interval.wanted -= 1


# --------------------------------------------------------------------------------------------------- behind the back

MOMENT_S, REST_S = 5e-5, 1e-5
"""Seconds of work, and of rest, which the system makes five times as long."""
LOOK_S = 0.05
"""Seconds after which a task that rests while somebody plans looks whether it is still wanted."""
PATIENCE_S = 5.0
"""Seconds that somebody waits for a task to stop: it may be compiling a kernel, where it takes no turn."""


class StoppedError(LostError):
    """Nobody wants what is being made any more."""


class _BackgroundTask:
    """Something to make.  owner: whose it is; key: for what.  until: when somebody waits for it that long."""

    def __init__(self, owner: object, key: object, work: Callable[[Callable[[], None]], None]) -> None:
        self.owner, self.key = owner, key
        self.context, self.work = copy_context(), work  # with the caller's limit of memory
        self.is_stopped, self.done, self.began, self.until = False, threading.Event(), 0.0, 0.0

    def turn(self) -> None:
        """Let others have Python's lock, where this thread has had it for a moment."""
        while _interval.wanted and not self.is_stopped and not _interval.is_usual.wait(LOOK_S):
            pass
        if self.is_stopped:
            raise StoppedError("nobody wants it")
        if time.perf_counter() > max(self.began + MOMENT_S, self.until):
            time.sleep(REST_S)
            self.began = time.perf_counter()

    def run(self) -> None:
        try:
            if not self.is_stopped:
                with within(Budget()):  # a run's time is not the task's
                    self.work(self.turn)
        except StoppedError:
            pass
        except Exception:  # told as that of any thread; those of making a tape are in reports
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        finally:
            self.done.set()


class _BackgroundThread:
    """The thread and its tasks, the one at hand first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may run a session, too
        self.tasks: deque[_BackgroundTask] = deque()
        self.thread: threading.Thread | None = None

    def add(self, task: _BackgroundTask) -> None:
        with self.lock:
            self.tasks.append(task)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._work, name="bolt_numba tapes", daemon=True)
                try:
                    self.thread.start()
                except RuntimeError:  # the system gives no more threads, or the process ends: a later plan tries again
                    self.thread = None
                    self._drop(list(self.tasks))

    def _work(self) -> None:
        is_last = False
        while not is_last:
            task = self.tasks[0]
            try:
                task.context.run(task.run)
            finally:
                with self.lock:
                    self.tasks.remove(task)
                    is_last = not self.tasks
                    if is_last:
                        self.thread = None
                del task  # and with it what it was made for

    def _drop(self, tasks: list[_BackgroundTask]) -> None:
        """Forget tasks that have not begun; nobody waits for them any longer."""
        for task in tasks:
            self.tasks.remove(task)
            task.done.set()

    def stop(self, owner: object | None) -> None:
        with self.lock:
            thread, running = self.thread, self.tasks[0] if self.tasks else None
            dropped = [task for task in self.tasks if owner is None or task.owner is owner]
            for task in dropped:
                task.is_stopped = True
            self._drop([task for task in dropped if task is not running])
            is_last = len(self.tasks) == 1
        if running is None or running not in dropped or thread is None or thread is threading.current_thread():
            return
        running.done.wait(PATIENCE_S)
        if is_last:
            thread.join(PATIENCE_S)


_worker = _BackgroundThread()
renew_after_fork(sys.modules[__name__], "_worker", _BackgroundThread)


def later(owner: object, key: object, work: Callable[[Callable[[], None]], None]) -> None:
    """Have work done, which is given what to call often: it may rest there, or raise a `StoppedError`."""
    _worker.add(_BackgroundTask(owner, key, work))


def is_wanted(key: object) -> bool:
    """Whether what has this key is being made, or will be."""
    return any(task.key is key for task in list(_worker.tasks))


def hurry(key: object, seconds: float) -> None:
    """Wait so long for what has this key; it takes no rests meanwhile."""
    for task in list(_worker.tasks):
        if task.key is key:
            task.until = time.perf_counter() + seconds
            task.done.wait(seconds)


def stop(owner: object = None) -> None:
    """Drop what is to be made for an owner, or for all; nothing of that goes on when this returns."""
    if _worker.tasks:
        _worker.stop(owner)


def wait(owner: object) -> None:
    """Wait for all that is to be made for an owner."""
    for task in list(_worker.tasks):
        if task.owner is owner:
            task.done.wait()


def idle(timeout: float = 600.0) -> bool:
    """Wait until nothing is left to make; False where that takes longer."""
    thread = _worker.thread
    if thread is not None and thread is not threading.current_thread():
        thread.join(timeout)
    return not _worker.tasks


atexit.register(stop)
