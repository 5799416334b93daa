"""Several flows with one line of tasks, as one executor of Bolt's Flow serves several graphs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from bolt_numba.base.border import border
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.options import want_one_of
from bolt_numba.flow.engine import COMPLETED, FIFO
from bolt_numba.flow.errors import FlowEmptyError, FlowError, FlowFullError
from bolt_numba.flow.flow import Flow
from bolt_numba.flow.parts import seconds_of, wait_of, want_count
from bolt_numba.flow.task import FlowTask


class Flows:
    """Flows by name; `dequeue` gives the tasks of all of them in one order.  May be used from many threads.

    Each flow keeps its own workers.

    Parameters
    ----------
    flows: by the name that `enqueue` takes.
    capacity: tasks that may be in all of them together, not done or not read; `enqueue` waits for room.
    order: in which `dequeue` gives them: ``"fifo"``, as they came, or ``"completed"``, as they were done.
    The constructor raises FlowError for what is no flow.
    """

    @border("flow")
    def __init__(self, flows: Mapping[str, Flow], *, capacity: int = 64, order: str = FIFO) -> None:
        self.flows = dict(flows)
        if not self.flows or not all(isinstance(given, Flow) for given in self.flows.values()):
            raise FlowError(f"flows: got {flows!r:.80}, wanted flows by name")
        self.capacity, self.order = want_count("capacity", capacity), want_one_of("order", order, (FIFO, COMPLETED))
        self._line: deque[FlowTask] = deque()
        self._count, self._is_closed = 0, False
        self._changed = threading.Condition()
        renew_after_fork(self, "_changed", threading.Condition)

    @border("flow")
    def enqueue(
        self,
        name: str,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Any = None,
        deadline: float | None = None,
        timeout: float | None = None,
        **named: Any,
    ) -> FlowTask:
        """Add a task of the flow ``name``; all else is as of `Flow.enqueue`.

        Raises FlowError for a name, FlowFullError where no room comes.
        """
        if name not in self.flows:
            raise FlowError(f"flow: got {name!r:.80}, wanted one of {list(self.flows)}")
        left = seconds_of("timeout", timeout)
        until = None if left is None else time.perf_counter() + left
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._is_closed or self._count < self.capacity, left)
            if self._is_closed:
                raise FlowError(f"flow {name!r}: got a task after the flows were closed, wanted it before")
            if not has_room:
                raise FlowFullError(f"flow {name!r}: got {self.capacity} tasks that are not done or not read, "
                                    f"wanted fewer within {timeout} s")  # fmt: skip
            self._count += 1  # room for it, also while the flow itself has none
        try:
            rest = None if until is None else max(0.0, until - time.perf_counter())
            task = self.flows[name].submit(values, stream=stream, deadline=deadline, timeout=rest, **named)
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
            raise
        if self.order == FIFO:
            with self._changed:
                self._line.append(task)
        task.add_done_callback(self._told)
        return task

    def _told(self, task: Any) -> None:
        with self._changed:
            if self.order == COMPLETED:
                self._line.append(task)
            self._changed.notify_all()

    def _head(self) -> bool:
        return bool(self._line) and self._line[0].done()

    @border("flow")
    def dequeue(self, block: bool = True, timeout: float | None = None) -> FlowTask:
        """The next task that is done, in the order of all flows.

        block, timeout and errors: as of `Flow.dequeue`.  Raises FlowEmptyError where no task is to come in time.
        """
        wait = wait_of(block, timeout)
        with self._changed:
            self._changed.wait_for(lambda: self._head() or (wait is None and not self._count), wait)
            if not self._head():
                why = "no task is left" if not self._count else f"no task was done within {wait} s"
                raise FlowEmptyError(f"flows {list(self.flows)}: {why}")
            self._count -= 1
            self._changed.notify_all()
            return self._line.popleft()

    def size(self) -> int:
        """Tasks that are not done or not read."""
        return self._count

    def close(self, cancel: bool = False) -> None:
        """Close all flows, as `Flow.close`.  What is done can still be read; who waits for room gets a FlowError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for flow in self.flows.values():
            flow.close(cancel)

    def __enter__(self) -> Flows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(cancel=kind is not None)
