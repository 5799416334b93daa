"""A task: one run of the graph, which is a future of its results, and what streams keep from task to task."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolt_numba.flow.engine import FlowEngine
    from bolt_numba.flow.node import FlowNode
    from bolt_numba.flow.station import Station


class FlowTask(Future[dict[str, Any]]):
    """A task of a flow: `concurrent.futures.Future` of a dictionary of the flow's outputs by name.

    It can be cancelled as long as it is not done, also while a node works for it: runs of models then end, and what
    another node gives is dropped.

    Attributes
    ----------
    number: how many tasks the flow had taken before.  stream: the key that it was given with, or None.
    priority: pieces of tasks with a lower one go first in every queue.
    """

    def __init__(
        self, engine: FlowEngine, values: dict[str, Any], stream: Any, in_line: bool, priority: int = 0
    ) -> None:
        super().__init__()
        self.number, self.stream, self.in_line, self.priority = -1, stream, in_line, priority
        self.engine, self.values = engine, values
        self.memory = StreamMemory() if stream is None else engine.stream(stream)
        self.missing: dict[Station, int] = {}
        self.gathered: dict[Station, list[Any]] = {}
        self.left = 0
        self.is_open, self.is_delivered, self.begin = True, False, 0.0
        self.owner: Any = None

    def cancel(self) -> bool:
        """Give the task up, if it is not done; whether it was given up."""
        return self.engine.cancel(self)

    def end(self, outcome: dict[str, Any] | BaseException | None) -> None:
        """Tell who waits: results, an error, or None for a task that was cancelled."""
        self.owner = None
        if outcome is None:
            super().cancel()
            self.set_running_or_notify_cancel()
        elif isinstance(outcome, BaseException):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


class StreamMemory:
    """What the nodes keep of one stream, and its tasks in order before each node that keeps something."""

    __slots__ = ("kept", "lines")

    def __init__(self) -> None:
        self.kept: dict[FlowNode, dict[str, Any]] = {}
        self.lines: dict[Station, StreamLine] = {}


class StreamLine:
    """Open tasks of a stream before a node that keeps something: the first has its turn.

    parked: pieces of work that came before their turn.  is_taken: whether the first is in the queue or runs.
    """

    __slots__ = ("is_taken", "parked", "tasks")

    def __init__(self) -> None:
        self.tasks: deque[FlowTask] = deque()
        self.parked: dict[FlowTask, Any] = {}
        self.is_taken = False
