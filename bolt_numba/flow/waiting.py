"""Who waits for a flow elsewhere: coroutines of event loops; and what a flow is in a forked child, and at exit."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bolt_numba.flow.errors import FlowError

if TYPE_CHECKING:
    from bolt_numba.flow.engine import FlowEngine
    from bolt_numba.flow.flow import Flow


class Waiters:
    """Coroutines that wait; for who holds the flow's lock."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Any]] = []

    def add(self) -> Any:
        """An awaitable of the running event loop, which is done when the flow calls `wake`."""
        import asyncio  # who awaits has it already

        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self.waiting.append((loop, waiter))
        return waiter

    def wake(self) -> None:
        """All look again."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for loop, waiter in waiting:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_wake, waiter)


def _wake(waiter: Any) -> None:
    if not waiter.done():
        waiter.set_result(None)


PATIENCE_S = 10.0
"""Seconds that the end of the process waits, in all, for functions and models that still run."""

_engines: weakref.WeakSet[FlowEngine] = weakref.WeakSet()
_flows: weakref.WeakSet[Flow] = weakref.WeakSet()


def renew_lock_of(flow: Flow) -> None:
    """Have a flow's lock made anew in children, where nobody is left who could be making the flow's engine."""
    _flows.add(flow)


def remember(engine: FlowEngine) -> None:
    """Look after an engine at the end of the process, and in children."""
    _engines.add(engine)


def _at_exit() -> None:
    until = time.monotonic() + PATIENCE_S
    for engine in [e for e in _engines if not e.is_closed]:
        engine.close(cancel=True, wait=False)
        for thread in list(engine.threads):
            thread.join(max(0.0, until - time.monotonic()))
        for station in engine.stations:
            station.node.close()


def _in_child() -> None:
    """A child of fork has no thread of the flow: its tasks fail, and it takes no other."""
    for flow in list(_flows):
        flow._lock = threading.RLock()
    for engine in list(_engines):
        lock = engine.lock = threading.RLock()
        engine.room, engine.results, engine.idle, engine.alarm = (threading.Condition(lock) for _ in range(4))
        for crew in engine.crews:
            crew.condition = threading.Condition(lock)
        tasks = [*engine.open, *(task for task, _ in engine.ended)]
        engine.is_finished = engine.is_closed = True
        engine.open.clear()
        engine.ended.clear()
        engine.line.clear()
        engine.threads.clear()
        engine.pending = engine.unread = engine.lined = 0
        for task in tasks:
            task.is_open = False
            task._condition = threading.Condition()  # another thread may have had it
            task._done_callbacks.clear()  # type: ignore[attr-defined]
            with suppress(Exception):  # it was about to be told
                task.end(FlowError(f"flow {engine.name!r}: got a fork, wanted its task in the process that has it"))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
