"""`Flow`: a graph of models and functions, through which tasks stream."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bolt_numba.base.border import border
from bolt_numba.base.config import processors
from bolt_numba.base.errors import BoltError
from bolt_numba.base.options import want_one_of
from bolt_numba.base.types import TensorSpec
from bolt_numba.flow.copies import GraphNode
from bolt_numba.flow.crew import Crew
from bolt_numba.flow.engine import COMPLETED, FIFO, FlowEngine
from bolt_numba.flow.errors import FlowEmptyError, FlowError
from bolt_numba.flow.node import FlowNode, FunctionNode, ModelNode, model_of
from bolt_numba.flow.parts import (
    OPTIONS,
    NodeOptions,
    Workers,
    fits,
    names_in,
    seconds_of,
    text_of,
    type_of,
    wait_of,
    want_count,
    workers_of,
)
from bolt_numba.flow.station import Station
from bolt_numba.flow.statistics import FlowStatistics, chrome_events, percentiles, statistics_of
from bolt_numba.flow.task import FlowTask
from bolt_numba.flow.waiting import renew_lock_of
from bolt_numba.sessions.inputs import as_input

if TYPE_CHECKING:
    from bolt_numba.sessions.loading import Source
    from bolt_numba.sessions.session import Session


class Flow:
    """A graph of models and functions, through which tasks stream.  May be used from many threads.

    Nodes read and make named values.  The graph is complete with the first task; nodes are not added after it.

    Parameters
    ----------
    name: shown in errors, in names of threads and in traces.
    inputs: names of the values that each task brings; or types by name, such as ``{"image": "u8[h,w,3]"}``.
    outputs: names of the values that each task results in.
    workers: threads that serve all nodes which have none of their own: how many, or `Workers`, or several of them;
        None: the processors that this process may use.
    copies: the same, but each worker takes a task through the whole graph.
    capacity: tasks that may be in the flow, not done or not read; `enqueue` waits for room.
    order: in which `dequeue` gives them: ``"fifo"``, as they came, or ``"completed"``, as they were done.
    The constructor raises FlowError for what does not fit together.
    """

    @border("flow")
    def __init__(
        self,
        name: str = "flow",
        *,
        inputs: str | Sequence[str] | Mapping[str, str],
        outputs: str | Sequence[str],
        workers: int | Workers | Sequence[Workers] | None = None,
        copies: int | Workers | Sequence[Workers] | None = None,
        capacity: int = 64,
        order: str = FIFO,
    ) -> None:
        self.name = name
        self.inputs = names_in("inputs", inputs.keys() if isinstance(inputs, Mapping) else inputs)
        self.outputs = names_in("outputs", outputs)
        self.types: dict[str, TensorSpec] = {}
        if isinstance(inputs, Mapping):
            self.types = {value: type_of(value, text) for value, text in inputs.items()}
        if copies is not None and workers is not None:
            raise FlowError(f"flow {name!r}: got workers and copies, wanted one of them")
        self.workers = workers_of(processors() if workers is None else workers)
        self.copies = None if copies is None else workers_of(copies)
        self.capacity, self.order = want_count("capacity", capacity), want_one_of("order", order, (FIFO, COMPLETED))
        self.nodes: list[FlowNode] = []
        self._makers: dict[str, FlowNode] = {}
        self._engine: FlowEngine | None = None
        self._traces = self._is_closed = False
        self._lock = threading.RLock()
        renew_lock_of(self)
        self._last: weakref.finalize[..., Any] | None = None

    # --- the graph ---------------------------------------------------------------------------------------------------

    @border("flow")
    def function(
        self,
        function: Callable[..., Any],
        inputs: str | Sequence[str] | Mapping[str, str],
        outputs: str | Sequence[str] | Mapping[str, str],
        *,
        name: str | None = None,
        **options: Any,
    ) -> Flow:
        """Add a function, which is called with its inputs in order.

        inputs: names of values, or values by parameter; it is then called by name.  It returns its output; a tuple or
        a dictionary, where there are several.  outputs: names of values, or values by the names in that dictionary.
        options: those of `NodeOptions`.
        Raises FlowError for a name or option that does not fit, or behind the first task.
        """
        called = name or str(getattr(function, "__name__", type(function).__name__))
        return self._add(called, options, lambda o: _function_node(called, function, inputs, outputs, o))

    @border("flow", OSError)
    def model(
        self,
        source: Source | Session,
        inputs: str | Sequence[str] | Mapping[str, str] | None = None,
        outputs: str | Sequence[str] | Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Flow:
        """Add a model: a session, or what `bn.compile` takes.

        inputs, outputs: values in the order of the model's inputs and outputs, or by their names; None: values have the
        names that the model has for them.  options: those of `NodeOptions`; all others are for `bn.compile`.
        Raises FlowError as `function`, and what `bn.compile` raises, with the name of the node.
        """
        from bolt_numba.sessions.session import Session

        own = {key: value for key, value in options.items() if key in OPTIONS}
        rest = {key: value for key, value in options.items() if key not in OPTIONS}
        said = {"model": source, **rest}
        try:
            graph = model_of(source, rest)
        except BoltError as error:
            raise type(error)(f"flow {self.name!r}: node {name or 'model'!r}: {error}") from error
        called = name or (graph.graph.name if isinstance(graph, Session) else graph.name) or "model"
        return self._add(called, own, lambda o: ModelNode(called, graph, inputs, outputs, o, rest, said))

    def _add(self, name: str, options: Mapping[str, Any], make: Callable[[NodeOptions], FlowNode]) -> Flow:
        with self._lock:
            try:
                if self._engine is not None:
                    raise FlowError("got it after the first task, wanted all nodes before")
                if any(node.name == name for node in self.nodes):
                    raise FlowError("got a second node of this name, wanted another: name='...'")
                if unknown := sorted(options.keys() - OPTIONS):
                    raise FlowError(f"options: got {unknown}, wanted some of {sorted(OPTIONS)}")
                node = make(NodeOptions(**options))
                for value in node.outputs.values():
                    if value in self.inputs or value in self._makers:
                        raise FlowError(f"output {value!r}: got a value that is made already, wanted another name")
                self._makers.update(dict.fromkeys(node.outputs.values(), node))
                self.nodes.append(node)
            except BoltError as error:
                raise type(error)(f"flow {self.name!r}: node {name!r}: {error}") from error
        return self

    def ordered(self) -> list[FlowNode]:
        """Nodes, each after those that it reads from.  Raises FlowError where the graph is not sound."""
        there, left, found = set(self.inputs), list(self.nodes), list[FlowNode]()
        while ready := [node for node in left if there.issuperset(node.inputs.values())]:
            found += ready
            left = [node for node in left if node not in ready]
            there.update(value for node in ready for value in node.outputs.values())
        for node in left:
            missing = [v for v in node.inputs.values() if v not in there]
            why = "that nothing makes" if any(v not in self._makers for v in missing) else "that depend on the node"
            raise FlowError(f"flow {self.name!r}: node {node.name!r}: inputs: got {missing}, {why}")
        if missing := [v for v in self.outputs if v not in there]:
            raise FlowError(f"flow {self.name!r}: outputs: got {missing}, wanted values of {sorted(there)}")
        for node in found:
            self._check_types(node)
        return found

    def _check_types(self, node: FlowNode) -> None:
        for port, value in node.inputs.items():
            made, wanted = self.type_of_value(value), node.wants.get(port)
            if value in node.each or made is None or wanted is None or fits(made, wanted):
                continue
            source = self._makers.get(value)
            origin = "the flow" if source is None else f"node {source.name!r}"
            where = f"flow {self.name!r}: node {node.name!r}: input {port!r}"
            raise FlowError(f"{where}: got {text_of(made)} from {origin}, wanted {text_of(wanted)}")

    def type_of_value(self, value: str) -> TensorSpec | None:
        """What is known of a value's type."""
        node = self._makers.get(value)
        if node is None:
            return self.types.get(value)
        port = next(port for port, name in node.outputs.items() if name == value)
        return None if node.each else node.makes.get(port)

    # --- the engine --------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> FlowEngine:
        """What runs the tasks; made when the first comes.

        Raises FlowError where values are missing or of another type.
        """
        with self._lock:
            if self._engine is None:
                self._engine = self._made()
                self._last = weakref.finalize(self, self._engine.close, True, False)
                self._last.atexit = False  # the engine looks after itself there
            return self._engine

    def _made(self) -> FlowEngine:
        lock, nodes = threading.RLock(), [] if self._is_closed else self.ordered()
        if self.copies is not None and not self._is_closed:
            crews = [Crew("copy", self.copies, lock)]
            graph = GraphNode("graph", self.inputs, self.outputs, nodes)
            stations = [Station(graph, crews[0])]
        else:
            shared = Crew("workers", self.workers, lock)
            own = {n.name: Crew(n.name, workers_of(w), lock) for n in nodes if (w := n.options.workers) is not None}
            stations = [Station(node, own.get(node.name, shared)) for node in nodes]
            crews = [crew for crew in (shared, *own.values()) if any(s.crew is crew for s in stations)]
        makers = {value: s for s in stations for value in s.node.outputs.values()}
        for station in reversed(stations):  # the last ones first
            station.crew.stations.append(station)
        for station in stations:
            for feeder in {makers[v] for v in station.node.inputs.values() if v in makers}:
                if feeder is not station:
                    feeder.readers.append(station)
                    station.feeders.append(feeder)
            try:
                station.node.prepare(station.crew.workers)
            except BoltError as error:
                fault = station.node.fault(error)
                raise type(fault)(f"flow {self.name!r}: {fault}") from error
        made = FlowEngine(self.name, crews, stations, lock)
        made.is_finished = made.is_closed = self._is_closed
        for station in stations:
            for value in {*station.node.inputs.values()}:
                made.readers.setdefault(value, []).append(station)
        made.inputs, made.outputs = self.inputs, self.outputs
        made.capacity, made.is_fifo = self.capacity, self.order == FIFO
        if self._traces:
            made.trace()
        return made

    # --- tasks -------------------------------------------------------------------------------------------------------

    @border("flow")
    def enqueue(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Any = None,
        deadline: float | None = None,
        timeout: float | None = None,
        priority: int = 0,
        **named: Any,
    ) -> FlowTask:
        """Add a task, which `dequeue` gives back when it is done.  The task is also a future of its results.

        values: by the flow's inputs; also as keywords.  stream: the key of its stream, for nodes that keep something.
        deadline: seconds until it must be done; then it fails with a FlowDeadlineError.  timeout: seconds to wait for
        room; None: as long as it takes, 0: not at all; then a FlowFullError is raised and there is no task.
        priority: tasks with a lower number go first where several wait.
        Raises FlowError for inputs that are not the flow's.
        """
        return self._enter(values, named, stream, deadline, timeout, True, priority)

    @border("flow")
    def submit(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Any = None,
        deadline: float | None = None,
        timeout: float | None = None,
        priority: int = 0,
        **named: Any,
    ) -> FlowTask:
        """As `enqueue`, for a task that is a future only: `dequeue` and iteration do not give it.

        Raises FlowError as that.
        """
        return self._enter(values, named, stream, deadline, timeout, False, priority)

    def __call__(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run one task and wait for its results, by name.

        Raises as `enqueue`: FlowError for inputs, and what the task met.
        """
        return self.submit(values, **named).result()

    async def run_async(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Any = None,
        deadline: float | None = None,
        **named: Any,
    ) -> dict[str, Any]:
        """Run one task; the event loop meanwhile does something else.  Cancelling the coroutine cancels the task.

        Raises FlowError as `enqueue`.
        """
        import asyncio

        return await asyncio.wrap_future(await self._enter_async(values, named, stream, deadline, False))

    async def enqueue_async(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Any = None,
        deadline: float | None = None,
        **named: Any,
    ) -> FlowTask:
        """As `enqueue`; the event loop does something else until there is room.  Raises FlowError as that."""
        return await self._enter_async(values, named, stream, deadline, True)

    def _task(self, values: Any, named: Mapping[str, Any], stream: Any, in_line: bool, priority: Any = 0) -> FlowTask:
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise FlowError(f"flow {self.name!r}: priority: got {priority!r:.80}, wanted a whole number")
        if values is not None and not isinstance(values, Mapping):
            raise FlowError(f"flow {self.name!r}: got a {type(values).__name__}, wanted values by name")
        given = {**(values or {}), **named}
        if given.keys() != set(self.inputs):
            raise FlowError(f"flow {self.name!r}: inputs: got {list(given)}, wanted {list(self.inputs)}")
        for name, spec in self.types.items():
            given[name] = as_input(spec, given[name])
        task = FlowTask(self.engine, given, stream, in_line, priority)
        task.owner = self  # a flow with open tasks is not given up
        return task

    def _enter(
        self, values: Any, named: Mapping[str, Any], stream: Any, deadline: float | None, timeout: float | None,
        in_line: bool, priority: int,
    ) -> FlowTask:  # fmt: skip
        task = self._task(values, named, stream, in_line, priority)
        self.engine.enter(task, seconds_of("timeout", timeout), seconds_of("deadline", deadline))
        return task

    async def _enter_async(
        self, values: Any, named: Mapping[str, Any], stream: Any, deadline: float | None, in_line: bool
    ) -> FlowTask:
        task = self._task(values, named, stream, in_line)
        seconds = seconds_of("deadline", deadline)
        while (waiting := self.engine.enter_or_wait(task, seconds)) is not None:
            await waiting
        return task

    @border("flow")
    def dequeue(self, block: bool = True, timeout: float | None = None) -> FlowTask:
        """The next task of `enqueue` that is done, in the flow's order; its ``result()`` gives results or raises.

        block: wait for it.  timeout: seconds to wait, also for a task that nobody has given yet; None: as long as
        tasks are under way.  Raises FlowEmptyError where there is none by then.
        """
        return self.engine.read(wait_of(block, timeout), expects=timeout is not None)

    def __iter__(self) -> Iterator[FlowTask]:
        """Tasks as `dequeue` gives them, until the flow is finished and all were read."""
        while True:
            try:
                yield self.engine.read(None, expects=True)
            except FlowEmptyError:
                return

    async def __aiter__(self) -> AsyncIterator[FlowTask]:
        """As iteration; the event loop does something else until a task is done."""
        while True:
            found = self.engine.read_or_wait()
            if found is None:
                return
            if isinstance(found, FlowTask):
                yield found
            else:
                await found

    def map(self, tasks: Iterable[Mapping[str, Any]], *, ahead: int | None = None, **options: Any) -> Iterator[Any]:
        """Results of tasks, in the order of the tasks.  They are taken from the iterable as there is room.

        ahead: tasks taken before the first result is waited for; None: half of what the flow holds.  options:
        ``stream`` and ``deadline`` of all of them.  An error of a task is raised here; tasks behind it are cancelled.
        Raises FlowError for inputs that are not the flow's.
        """
        window: list[FlowTask] = []
        most = max(1, self.capacity // 2) if ahead is None else want_count("ahead", ahead)
        try:
            for values in tasks:
                window.append(self.submit(values, **options))
                if len(window) >= most:
                    yield window.pop(0).result()
            while window:
                yield window.pop(0).result()
        finally:
            for task in window:
                task.cancel()

    def size(self) -> int:
        """Tasks that are not done or not read."""
        engine = self._engine
        return 0 if engine is None else engine.pending + engine.unread

    def end_stream(self, key: Any) -> None:
        """Forget what nodes keep of a stream, once its tasks are done; a later task with this key begins anew."""
        if self._engine is not None:
            with self._engine.lock:
                self._engine.streams.pop(key, None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Take no other task: iteration then ends behind the last one."""
        self.engine.finish()

    def close(self, cancel: bool = False) -> None:
        """Wait for all tasks, or cancel them, and end all threads and processes.  What is done can still be read."""
        with self._lock:
            engine = self._engine
            self._is_closed = True  # one that had no task yet takes none any more
        if engine is not None:
            engine.close(cancel)

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        elif self._engine is not None:  # a graph that is not complete must not hide what was raised
            self._engine.close(cancel=True)

    # --- looking -----------------------------------------------------------------------------------------------------

    def statistics(self) -> FlowStatistics:
        """What was counted so far."""
        engine = self.engine
        with engine.lock:
            nodes = {s.name: statistics_of(s.counts, len(s.queue)) for s in engine.stations}
            nodes |= {name: statistics_of(counts, 0) for name, counts in engine.inner.items()}
            return FlowStatistics(engine.taken, **engine.ends, latency_s=percentiles(engine.latencies), nodes=nodes)

    def trace(self) -> None:
        """Keep what each worker does from now on, the latest 100,000 runs, for `save_trace`."""
        self._traces = True
        if self._engine is not None:
            self._engine.trace()

    @border("flow", OSError)
    def save_trace(self, path: str | Path) -> None:
        """Write Chrome trace events (for Perfetto or chrome://tracing): a row for each worker, a box for each run.

        Raises FlowError where none was begun.
        """
        from bolt_numba.runtime.reports.profile import write_trace

        engine = self.engine
        with engine.lock:
            events = list(engine.events or ())
        if not self._traces:
            raise FlowError(f"flow {self.name!r}: got no trace, wanted a call of trace() before the tasks")
        write_trace(path, chrome_events(events, engine.started_at))

    def __repr__(self) -> str:
        names = ", ".join(node.name for node in self.nodes)
        return f"Flow({self.name!r}, {', '.join(self.inputs)} -> {names} -> {', '.join(self.outputs)})"


def _function_node(name: str, function: Any, inputs: Any, outputs: Any, options: NodeOptions) -> FlowNode:
    if options.process is False:
        return FunctionNode(name, function, inputs, outputs, options)
    from bolt_numba.flow.processes import ProcessNode  # other flows do without

    return ProcessNode(name, function, inputs, outputs, options)
