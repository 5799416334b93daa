"""Stations: a node with its queue.  What waits there is taken in order, or several pieces at once as a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from bolt_numba.flow.batching import BatchError, key_of
from bolt_numba.flow.crew import Crew, Worker
from bolt_numba.flow.node import FlowNode, ModelNode
from bolt_numba.flow.statistics import NodeCounts
from bolt_numba.flow.task import FlowTask, StreamLine

Outcome: TypeAlias = "tuple[dict[str, Any], dict[str, Any]] | BaseException"
"""Values that a piece made and what its stream has at the node after it, or what was raised."""


class Piece:
    """Work for a station: a task, or one item of a list of it.  since: when it came."""

    __slots__ = ("feeds", "index", "key", "since", "task")

    def __init__(self, task: FlowTask, feeds: Mapping[str, Any], index: int | None, since: float) -> None:
        self.task, self.feeds, self.index, self.since = task, feeds, index, since
        self.key: Hashable = None


Work: TypeAlias = "tuple[Station, list[Piece]]"
"""A station, and pieces that it runs as one."""


class Station:
    """A node, its queue, and the crew that serves it.  All but `run` is for who holds the flow's lock.

    readers: stations that take what this one makes.
    """

    def __init__(self, node: FlowNode, crew: Crew) -> None:
        self.node, self.crew, self.name = node, crew, node.name
        self.queue: deque[Piece] = deque()
        self.readers: list[Station] = []
        self.feeders: list[Station] = []
        self.counts = NodeCounts()
        self.keeps = node.keeps
        self.running: dict[Worker, Sequence[Piece]] = {}
        self.max_batch, self.max_wait, self.bound = node.options.max_batch, node.options.max_wait, node.options.queue

    @property
    def is_full(self) -> bool:
        return len(self.queue) >= self.bound

    @property
    def is_held_up(self) -> bool:
        """Whether a station that takes what this one makes is full."""
        return bool(self.readers) and any(reader.is_full for reader in self.readers)

    # --- queue -------------------------------------------------------------------------------------------------------

    def pieces(self, task: FlowTask, now: float) -> list[Piece]:
        """The work that a task brings, whose inputs are all there: one piece, or one for each item of its lists."""
        node = self.node
        feeds = node.expand(task.values)
        made = [Piece(task, feed, i if node.each else None, now) for i, feed in enumerate(feeds)]
        if self.max_batch > 1:
            for piece in made:
                piece.key = key_of(piece.feeds, node.batched, node.loose)
        return made

    def offer(self, piece: Piece) -> None:
        """Put a piece into the queue, or keep it until it is its turn in its stream."""
        line = piece.task.memory.lines.get(self) if self.keeps else None
        if line is None:
            self._put(piece)
        else:
            line.parked[piece.task] = piece
            self._admit(line)

    def _put(self, piece: Piece) -> None:
        at = len(self.queue)
        while at and self.queue[at - 1].task.priority > piece.task.priority:
            at -= 1
        self.queue.insert(at, piece)
        self.counts.came(len(self.queue))
        self.crew.came()

    def _admit(self, line: StreamLine) -> None:
        if not line.is_taken and line.tasks and (piece := line.parked.pop(line.tasks[0], None)) is not None:
            line.is_taken = True
            self._put(piece)

    def join_line(self, task: FlowTask) -> None:
        """A task begins: it comes after all earlier ones of its stream."""
        if self.keeps and task.stream is not None:
            task.memory.lines.setdefault(self, StreamLine()).tasks.append(task)

    def leave_line(self, task: FlowTask, has_turn: bool = False) -> None:
        """A task is through, or will not come.  has_turn: its piece was taken and is gone now."""
        line = task.memory.lines.get(self) if self.keeps else None
        if line is None or task not in line.tasks or (line.is_taken and line.tasks[0] is task and not has_turn):
            return
        if line.tasks[0] is task:
            line.is_taken = False
        line.tasks.remove(task)
        line.parked.pop(task, None)
        self._admit(line)

    def take(self, now: float) -> tuple[list[Piece], float | None]:
        """Pieces to run as one now; else the time when those that wait run without others."""
        was_full = self.is_full
        if self.max_batch == 1:
            piece = self.queue.popleft()
            self._tell_feeders(was_full)
            return [piece], None
        first = self.queue[0]
        alike = [p for p in self.queue if p.key == first.key][: self.max_batch]
        until = first.since + self.max_wait
        if len(alike) < self.max_batch and now < until:
            return [], until
        if isinstance(self.node, ModelNode) and not self.node.options.ragged:  # a plan for each size: powers of 2
            alike = alike[: 1 << (len(alike).bit_length() - 1)] if len(alike) < self.max_batch else alike
        chosen = set(map(id, alike))
        self.queue = deque(p for p in self.queue if id(p) not in chosen)
        self._tell_feeders(was_full)
        return alike, None

    def begins(self, worker: Worker, pieces: Sequence[Piece]) -> None:
        """A worker begins with pieces, and may be stopped."""
        self.running[worker] = pieces
        worker.token.reset()

    def discard(self, task: FlowTask) -> None:
        """A task ended before it was through: its pieces leave the queue, and it leaves the line of its stream."""
        for worker, pieces in self.running.items():
            if all(not p.task.is_open for p in pieces) and any(p.task is task for p in pieces):
                worker.token.cancel()
                self.node.stop(worker)
        was_full, before = self.is_full, len(self.queue)
        if before:
            self.queue = deque(p for p in self.queue if p.task is not task)
            self._tell_feeders(was_full)
        self.leave_line(task, has_turn=len(self.queue) < before)

    def _tell_feeders(self, was_full: bool) -> None:
        """Who feeds this station may go on where it was full."""
        if was_full and not self.is_full:
            for crew in {feeder.crew for feeder in self.feeders}:
                crew.condition.notify_all()

    # --- work --------------------------------------------------------------------------------------------------------

    def run(self, pieces: Sequence[Piece], worker: Worker) -> list[Outcome]:
        """The outcome of each piece.  Where a batch fails each piece is run alone, so that it fails by itself."""
        if len(pieces) > 1:
            try:
                return self._together(pieces, worker)
            except BatchError as error:
                return [self.node.fault(error) for _ in pieces]
            except BaseException:  # each is run by itself, and what it raises is its own
                pass
        return [self._alone(piece, worker) for piece in pieces]

    def _alone(self, piece: Piece, worker: Worker) -> Outcome:
        try:
            kept = piece.task.memory.kept.setdefault(self.node, {}) if self.keeps else {}
            values, states = self.node.run(piece.feeds, worker, kept)
        except BaseException as error:
            return self.node.fault(error)
        return values, states

    def _together(self, pieces: Sequence[Piece], worker: Worker) -> list[Outcome]:
        return [(values, {}) for values in self.node.run_together([p.feeds for p in pieces], worker)]
