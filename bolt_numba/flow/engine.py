"""The engine of a flow: one lock, the threads that serve its stations, and what becomes of each task.

Every wait is one on a condition of that lock.  A task ends once: whoever finds it open, with the lock held, ends it.
Who waits for it is told when the lock is free again, because futures call functions of the user.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bolt_numba.flow.crew import Crew, Worker
from bolt_numba.flow.errors import FlowDeadlineError, FlowEmptyError, FlowError, FlowFullError
from bolt_numba.flow.station import Outcome, Piece, Station, Work
from bolt_numba.flow.statistics import EVENTS, SAMPLES, Event, NodeCounts
from bolt_numba.flow.task import FlowTask, StreamMemory
from bolt_numba.flow.waiting import Waiters, remember

FIFO, COMPLETED = "fifo", "completed"


class FlowEngine:
    """Runs tasks.

    capacity: tasks that may be not done, or not read.  readers: stations by the value that they read.
    watch: told of each run with the lock held: how long its pieces had waited, and its seconds.
    """

    def __init__(self, name: str, crews: Sequence[Crew], stations: Sequence[Station], lock: Any) -> None:
        self.name, self.crews, self.stations = name, list(crews), list(stations)
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.readers: dict[str, list[Station]] = {}
        self.wanted = {s: len({*s.node.inputs.values()}) for s in stations}
        self.sources = [s for s, count in self.wanted.items() if not count]
        self.keepers = [s for s in stations if s.keeps]
        self.capacity, self.is_fifo = 64, True
        self.lock = lock
        self.room, self.results, self.idle, self.alarm = (threading.Condition(lock) for _ in range(4))
        self.awaiting_room, self.awaiting_results = Waiters(), Waiters()
        self.open: set[FlowTask] = set()
        self.line: deque[FlowTask] = deque()
        self.ended: deque[tuple[FlowTask, Any]] = deque()
        self.streams: dict[Any, StreamMemory] = {}
        self.deadlines: list[tuple[float, int, FlowTask]] = []
        self.taken = self.pending = self.unread = self.lined = 0
        self.inner: dict[str, NodeCounts] = {}
        self.ends = {"done": 0, "failed": 0, "cancelled": 0}
        self.latencies: deque[float] = deque(maxlen=SAMPLES)
        self.events: deque[Event] | None = None
        self.watch: Callable[[list[float], float], None] | None = None
        self.started_at = time.perf_counter()
        self.is_finished = self.is_closed = self.is_left = False
        self.working = 0
        self.threads: list[threading.Thread] = []
        remember(self)

    # --- tasks come --------------------------------------------------------------------------------------------------

    def stream(self, key: Any) -> StreamMemory:
        """What is kept of a stream, from its first task on until `end_stream`."""
        try:
            hash(key)
        except TypeError as error:
            raise FlowError(f"flow {self.name!r}: stream: got {key!r:.80}, wanted a key: {error}") from error
        with self.lock:
            return self.streams.setdefault(key, StreamMemory())

    def has_room(self) -> bool:
        return self.is_finished or self.pending + self.unread < self.capacity

    def enter(self, task: FlowTask, timeout: float | None, seconds: float | None) -> None:
        """Take a task, once there is room.  seconds: by when it must be done."""
        with self.lock:
            self.want_open()
            self.start()
            if not self.room.wait_for(self.has_room, timeout):
                raise FlowFullError(f"flow {self.name!r}: got {self.capacity} tasks that are not done or not read, "
                                    f"wanted fewer within {timeout} s")  # fmt: skip
            self._enter(task, seconds)
        self.announce()

    def enter_or_wait(self, task: FlowTask, seconds: float | None) -> Any:
        """Take a task and give None, or give an awaitable after which to try again."""
        with self.lock:
            self.want_open()
            self.start()
            if not self.has_room():
                return self.awaiting_room.add()
            self._enter(task, seconds)
        self.announce()
        return None

    def _enter(self, task: FlowTask, seconds: float | None) -> None:
        self.want_open()
        task.number, self.taken = self.taken, self.taken + 1
        task.begin = time.perf_counter()
        self.pending += 1
        self.open.add(task)
        if task.in_line:
            self.lined += 1
            if self.is_fifo:
                self.line.append(task)
        if seconds is not None:
            self._set_deadline(task, task.begin + seconds)
        for station in self.keepers:
            station.join_line(task)
        task.left = len(self.stations)
        task.missing = self.wanted.copy()
        for station in self.sources:
            self._begin(task, station)
        for name in self.inputs:
            self._arrived(task, name)
        if not self.stations:
            self._end(task, {name: task.values[name] for name in self.outputs})

    def want_open(self) -> None:
        if self.is_finished:
            raise FlowError(f"flow {self.name!r}: got a task after the flow was finished or closed, wanted it before")

    # --- tasks go on -------------------------------------------------------------------------------------------------

    def _arrived(self, task: FlowTask, value: str) -> None:
        for station in self.readers.get(value, ()):
            if not task.is_open:  # another reader had it end
                return
            task.missing[station] -= 1
            if not task.missing[station]:
                self._begin(task, station)

    def _begin(self, task: FlowTask, station: Station) -> None:
        """All inputs of a station are there."""
        try:
            pieces = station.pieces(task, time.perf_counter())
        except Exception as error:
            self._end(task, station.node.fault(error))
            return
        if station.node.each:
            task.gathered[station] = [None] * len(pieces)
            task.missing[station] = len(pieces)
            if not pieces:
                self._made(task, station, {value: [] for value in station.node.outputs.values()})
        for piece in pieces:
            station.offer(piece)

    def _ran(self, station: Station, piece: Piece, outcome: Outcome) -> None:
        """A piece is through."""
        task = piece.task
        if task.is_open:
            if isinstance(outcome, BaseException):
                self._end(task, outcome)
            else:
                values, states = outcome
                if station.keeps:
                    task.memory.kept[station.node].update(states)
                if piece.index is None:
                    self._made(task, station, values)
                else:
                    self._gather(task, station, piece.index, values)
        station.leave_line(task, has_turn=True)

    def _gather(self, task: FlowTask, station: Station, index: int, values: dict[str, Any]) -> None:
        """An item of a task's lists is through."""
        gathered = task.gathered[station]
        gathered[index] = values
        task.missing[station] -= 1
        if not task.missing[station]:
            del task.gathered[station]
            names = station.node.outputs.values()
            self._made(task, station, {name: [v[name] for v in gathered] for name in names})

    def _made(self, task: FlowTask, station: Station, values: dict[str, Any]) -> None:
        task.values.update(values)
        task.left -= 1
        if not task.left:
            self._end(task, {name: task.values[name] for name in self.outputs})
            return
        for value in values:
            self._arrived(task, value)

    # --- tasks end ---------------------------------------------------------------------------------------------------

    def _end(self, task: FlowTask, outcome: Any) -> None:
        """With the lock held; `announce` must follow without it.  outcome: as `FlowTask.end` takes it."""
        if not task.is_open:
            return
        task.is_open = False
        self.open.discard(task)
        if not isinstance(outcome, dict):
            for station in self.stations:
                station.discard(task)
        task.values, task.missing, task.gathered = {}, {}, {}
        if isinstance(outcome, dict):
            self.latencies.append(time.perf_counter() - task.begin)
        self.ends["cancelled" if outcome is None else "done" if isinstance(outcome, dict) else "failed"] += 1
        self.ended.append((task, outcome))
        self.pending -= 1  # who is told of the end may add tasks, or close the flow
        if task.in_line:
            self.unread += 1
        else:
            self._tell_room()
        if not self.pending:
            self.idle.notify_all()

    def announce(self) -> None:
        """Tell those who wait for tasks that ended; not with the lock held."""
        while self.ended:
            try:
                task, outcome = self.ended.popleft()
            except IndexError:
                return
            task.end(outcome)
            with self.lock:
                self._deliver(task)

    def _deliver(self, task: FlowTask) -> None:
        task.is_delivered = True
        if task.in_line:
            if not self.is_fifo:
                self.line.append(task)
            self.results.notify_all()
            self.awaiting_results.wake()

    def _tell_room(self) -> None:
        self.room.notify_all()
        self.awaiting_room.wake()

    def cancel(self, task: FlowTask) -> bool:
        """Give a task up; whether it was open."""
        with self.lock:
            was_open = task.is_open
            self._end(task, None)
        self.announce()
        return was_open

    # --- tasks are read ----------------------------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        """Whether no task can be read any more."""
        return self.is_finished and not self.lined

    def _head(self) -> bool:
        return bool(self.line and self.line[0].is_delivered)

    def read(self, timeout: float | None, *, expects: bool) -> FlowTask:
        """The next task that is done.  expects: whether to wait for a task that nobody has given yet."""
        with self.lock:
            self.results.wait_for(lambda: self._head() or self.is_exhausted or not (expects or self.lined), timeout)
            if not self._head():
                why = f"no task was done within {timeout} s" if self.lined else "no task is left"
                raise FlowEmptyError(f"flow {self.name!r}: {why}")
            return self._read()

    def read_or_wait(self) -> Any:
        """The next task that is done, None where none is left, or an awaitable after which to try again."""
        with self.lock:
            if self._head():
                return self._read()
            return None if self.is_exhausted else self.awaiting_results.add()

    def _read(self) -> FlowTask:
        task = self.line.popleft()
        self.unread -= 1
        self.lined -= 1
        self._tell_room()
        if not self.lined or self._head():
            self.results.notify_all()
            self.awaiting_results.wake()
        return task

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _set_deadline(self, task: FlowTask, when: float) -> None:
        if not self.deadlines:
            self._start_thread(self._watch, f"{self.name}-deadlines")
        elif len(self.deadlines) > 2 * len(self.open) + 64:
            self.deadlines = [row for row in self.deadlines if row[2].is_open]
            heapq.heapify(self.deadlines)
        heapq.heappush(self.deadlines, (when, task.number, task))
        self.alarm.notify()

    def _watch(self) -> None:
        """The thread of deadlines: runs as long as there are any."""
        while True:
            with self.lock:
                while self.deadlines and not self.deadlines[0][2].is_open:
                    heapq.heappop(self.deadlines)
                if not self.deadlines:
                    self.threads.remove(threading.current_thread())
                    return
                when, _, task = self.deadlines[0]
                left = when - time.perf_counter()
                if left > 0:
                    del task
                    self.alarm.wait(left)
                    continue
                text = f"flow {self.name!r}: task {task.number}: got no result by its deadline"
                self._end(task, FlowDeadlineError(text))
                del task
            self.announce()

    # --- threads -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers, once."""
        if self.threads or self.is_closed:
            return
        for crew in self.crews:
            for worker in crew.workers:
                self.working += 1
                self._start_thread(partial(self._work, crew, worker), f"{self.name}-{crew.name}-{worker.number}")

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _work(self, crew: Crew, worker: Worker) -> None:
        """A worker's thread."""
        worker.pin()
        while (work := self._wait(crew, worker)) is not None:
            while work is not None:
                work = self._serve(crew, worker, *work)
            self.announce()
        with self.lock:
            self.working -= 1
            is_last = self.is_left and not self.working
        if is_last:
            self._close_nodes()

    def _close_nodes(self) -> None:
        for station in self.stations:
            station.node.close()

    def _wait(self, crew: Crew, worker: Worker) -> Work | None:
        """The next work of a crew; None where none will come."""
        with self.lock:
            work, wait = crew.take(worker, time.perf_counter())
            while work is None and not self.is_closed:
                crew.idle += 1
                try:
                    crew.condition.wait(wait)
                finally:
                    crew.idle -= 1
                work, wait = crew.take(worker, time.perf_counter())
            return work

    def _serve(self, crew: Crew, worker: Worker, station: Station, pieces: Sequence[Piece]) -> Work | None:
        """Do work.  Gives what to do next, if there is more and nobody is to be told of the end of a task first."""
        begin = time.perf_counter()
        with worker.token:
            outcomes = station.run(pieces, worker)
        end = time.perf_counter()
        with self.lock:
            station.running.pop(worker, None)
            self._count(crew, worker, station, pieces, begin, end)
            crew.looks = True
            try:
                for piece, outcome in zip(pieces, outcomes, strict=True):
                    station.counts.failed += isinstance(outcome, BaseException) and piece.task.is_open
                    self._ran(station, piece, outcome)
            finally:
                crew.looks = False
            if self.ended:
                crew.pass_on()
                return None
            return crew.take(worker, end)[0]

    def _count(
        self, crew: Crew, worker: Worker, station: Station, pieces: Sequence[Piece], begin: float, end: float
    ) -> None:
        """Note a run, in the statistics and in the trace."""
        who, device = f"{crew.name} {worker.number}", worker.place[0]
        waits = [begin - p.since for p in pieces]
        station.counts.ran(waits, end - begin, who, device)
        if self.watch is not None:
            self.watch(waits, end - begin)
        tasks = () if self.events is None else tuple([p.task.number for p in pieces])
        if self.events is not None:
            self.events.append(Event(station.name, crew.name, worker.number, begin, end, tasks))
        for name, since, until, count in worker.inner:
            self.inner.setdefault(name, NodeCounts()).ran([0.0] * count, until - since, who, device)
            if self.events is not None:
                self.events.append(Event(name, crew.name, worker.number, since, until, tasks * count))
        worker.inner.clear()

    def trace(self) -> None:
        """Keep events from now on."""
        self.events = deque(maxlen=EVENTS)

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """No other task comes."""
        with self.lock:
            self.is_finished = True
            self.room.notify_all()
            self.results.notify_all()
            self.awaiting_room.wake()
            self.awaiting_results.wake()

    def give_up(self) -> None:
        """Cancel all tasks that are not done."""
        with self.lock:
            for task in sorted(self.open, key=lambda t: t.number):
                self._end(task, None)
        self.announce()

    def close(self, cancel: bool, wait: bool = True) -> None:
        """End all threads, when all tasks are done, or cancelled."""
        self.finish()
        if cancel:
            self.give_up()
            for station in self.stations:
                station.node.close(kill=True)
        current = threading.current_thread()
        inside = current in self.threads
        with self.lock:
            if wait and not inside:
                self.idle.wait_for(lambda: not self.pending)
            elif not cancel and self.pending:
                raise FlowError(f"flow {self.name!r}: close: got a call by a thread of its own, wanted cancel=True")
            self.is_closed, self.is_left = True, self.is_left or not wait or inside
            for crew in self.crews:
                crew.condition.notify_all()
            self.alarm.notify_all()
            threads = [t for t in self.threads if t is not current]
        if wait and not inside and not sys.is_finalizing():
            for thread in threads:
                thread.join()
            self._close_nodes()
