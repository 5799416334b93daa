"""Nodes of a flow: a function or a model, with the names of the values that it reads and makes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.errors import BoltError
from bolt_numba.base.options import INT8, Options, options_of
from bolt_numba.base.options import OPTIONS as SESSION_OPTIONS
from bolt_numba.base.types import TensorSpec
from bolt_numba.devices import plug_ins
from bolt_numba.flow.batching import join, rows_of, split
from bolt_numba.flow.errors import FlowError
from bolt_numba.flow.parts import OPTIONS, NodeOptions, State, names_in, type_of, want_devices
from bolt_numba.sessions.inputs import as_input, spec_of, zeros_of

if TYPE_CHECKING:
    from bolt_numba.flow.crew import Worker
    from bolt_numba.ir.graph import Graph
    from bolt_numba.sessions.session import Session

Ports = Mapping[str, str]


class FlowNode:
    """A node: ``inputs`` and ``outputs`` are names of values by the names that the node itself has for them.

    wants, makes: types of inputs and outputs, by the node's names, as far as they are known.
    batched: inputs that have an axis of the batch, the first.  loose: those whose other sizes may differ there.
    cuts: axes of outputs that are cut to the size of an axis of an input that was filled up: output, axis, input, its
    axis.
    said: what the node was made of, as a file names it: a function, or a model with its options.
    """

    def __init__(self, name: str, inputs: Ports, outputs: Ports, options: NodeOptions) -> None:
        self.name, self.inputs, self.outputs, self.options = name, dict(inputs), dict(outputs), options
        self.each = names_in("each", options.each)
        self.states = {p: s if isinstance(s, State) else State(s) for p, s in options.states.items()}
        self.fixed = dict(options.fixed)
        self.batched: tuple[str, ...] = tuple(inputs)
        self.loose: Container[str] = options.pad
        self.cuts: list[tuple[str, int, str, int]] = []
        self.wants: dict[str, TensorSpec] = {}
        self.makes: dict[str, TensorSpec] = {}
        self.keeps = bool(self.states)
        self.said: dict[str, Any] = {}
        for value in self.each:
            if value not in self.inputs.values():
                raise FlowError(f"each: got {value!r}, wanted one of the inputs {list(self.inputs.values())}")
        both = {*self.inputs} & ({*self.fixed} | {*self.states}) | {*self.fixed} & {*self.states}
        if both:
            raise FlowError(f"inputs: got {sorted(both)} twice, wanted each as an input, fixed, or a state")

    def expand(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The inputs of each piece of work: one, or one for each item of the lists."""
        feeds = {port: values[value] for port, value in self.inputs.items()}
        if not self.each:
            return [feeds]
        lists = {port: feeds[port] for port, value in self.inputs.items() if value in self.each}
        for port, given in lists.items():
            if not isinstance(given, (list, tuple)):
                raise FlowError(f"input {port!r}: got a {type(given).__name__}, wanted a list to take each of")
        counts = {port: len(given) for port, given in lists.items()}
        if len(set(counts.values())) != 1:
            raise FlowError(f"inputs: got lists of {counts}, wanted as many items in each")
        return [{**feeds, **{p: x[i] for p, x in lists.items()}} for i in range(next(iter(counts.values())))]

    def prepare(self, workers: Iterable[Worker]) -> None:
        """Make ready to be called by these workers."""

    def close(self, kill: bool = False) -> None:
        """Let go of what belongs to the node's workers; kill: also where it works."""

    def stop(self, worker: Worker) -> None:
        """Nobody wants any more what a worker calls the node for.  Runs of sessions end anyway (`Worker.token`)."""

    def call(self, feeds: Mapping[str, Any], worker: Worker, kept: dict[str, Any]) -> dict[str, Any]:
        """Outputs by the node's names, states among them.  kept: what the stream has here."""
        raise NotImplementedError

    def run(
        self, feeds: Mapping[str, Any], worker: Worker, kept: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs by the names of their values, and the states as they are then."""
        if not self.states:
            return self.named(self.call({**feeds, **self.fixed}, worker, kept)), {}
        states = {port: kept.get(port, state.initial) for port, state in self.states.items()}
        made = self.call({**feeds, **self.fixed, **states}, worker, kept)
        return self.named(made), {port: made[state.output] for port, state in self.states.items()}

    def run_together(self, feeds: Sequence[Mapping[str, Any]], worker: Worker) -> list[dict[str, Any]]:
        """As `run`, for several pieces as one batch."""
        made = self.call({**join(feeds, self.batched, self.options.pad), **self.fixed}, worker, {})
        rows = [rows_of(f, self.batched) for f in feeds]
        parts = split({port: made[port] for port in self.outputs}, rows)
        for port, axis, source, its_axis in self.cuts:
            for part, own in zip(parts, feeds, strict=True):
                part[port] = part[port][(slice(None),) * axis + (slice(own[source].shape[its_axis]),)]
        return [self.named(part) for part in parts]

    def named(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by the names of their values, held to declared types."""
        if not self.options.types:
            return {value: made[port] for port, value in self.outputs.items()}
        return {value: self._checked(port, made[port]) for port, value in self.outputs.items()}

    def _checked(self, port: str, given: Any) -> Any:
        spec = self.makes.get(port)
        return given if spec is None or port not in self.options.types else as_input(spec, given)

    def fault(self, error: BaseException) -> BoltError:
        """The error that a task ends with where this node raised one."""
        try:
            if isinstance(error, BoltError):
                made = at_node(error, None, self.name)
            else:
                said = f": {error}" if str(error) else ""
                made = FlowError(f"node {self.name!r}: {type(error).__name__}{said}")
        except Exception:  # a class of the caller's, which is not made of one text, or has none
            made = FlowError(f"node {self.name!r}: {type(error).__name__}")
        if made is not error:
            trace = error.__traceback__
            made.__cause__ = error.with_traceback(None if trace is None else trace.tb_next)  # frames that hold the task
        return made


class FunctionNode(FlowNode):
    """A Python function.  It gets inputs in order, or by name where they were named; fixed ones and states by name."""

    def __init__(
        self, name: str, function: Callable[..., Any], inputs: Any, outputs: Any, options: NodeOptions
    ) -> None:
        if not callable(function):
            raise FlowError(f"function: got {function!r:.80}, wanted a function")
        self.by_name = isinstance(inputs, Mapping)
        super().__init__(name, _as_ports("inputs", inputs), _as_ports("outputs", outputs), options)
        for key in ("pad", "ragged"):
            if getattr(options, key):
                raise FlowError(f"{key}: got {getattr(options, key)!r:.80} for a function, wanted it for models only")
        self.function, self.said = function, {"function": function}
        self.results = [*self.outputs, *(s.output for s in self.states.values() if s.output not in self.outputs)]
        self.makes = {port: type_of(port, text) for port, text in options.types.items()}
        _want_known("types", options.types, self.outputs)

    def call(self, feeds: Mapping[str, Any], worker: Worker, kept: dict[str, Any]) -> dict[str, Any]:
        named = dict(feeds)
        args = [] if self.by_name else [named.pop(port) for port in self.inputs]
        made = self.apply(worker, args, named)
        if isinstance(made, Mapping) and set(self.results) <= made.keys():
            return {name: made[name] for name in self.results}
        if len(self.results) == 1:
            return {self.results[0]: made}
        if not self.results:
            return {}
        if not isinstance(made, (tuple, list)) or len(made) != len(self.results):
            got = f"{len(made)} of them" if isinstance(made, (tuple, list)) else f"a {type(made).__name__}"
            raise FlowError(f"results: got {got}, wanted {len(self.results)}: {', '.join(self.results)}")
        return dict(zip(self.results, made, strict=True))

    def apply(self, worker: Worker, args: list[Any], named: dict[str, Any]) -> Any:
        """Call the function."""
        return self.function(*args, **named)


COMPILED = frozenset({*SESSION_OPTIONS, "calibration"})
"""Options of `bn.compile` that a node of a model may have; ``weights`` and ``signature`` are read with the model."""


def model_of(source: Any, options: dict[str, Any]) -> Session | Graph:
    """A session, or the graph that a model is read as.  options: those of `bn.compile`; what reading takes is removed.

    Raises FlowError for options that it does not know, or with a session.
    """
    from bolt_numba.sessions.loading import read_model
    from bolt_numba.sessions.session import Session

    if isinstance(source, Session):
        if options:
            raise FlowError(f"options: got {sorted(options)} for a session, wanted {sorted(OPTIONS)}")
        return source
    known = COMPILED | {"weights", "signature"}
    if unknown := sorted(options.keys() - known):
        raise FlowError(f"options: got {unknown}, wanted some of {sorted(known | OPTIONS)}")
    return read_model(source, None, options.pop("weights", None)).graph(options.pop("signature", None))


class ModelNode(FlowNode):
    """A model, run by one session for each device and number of threads that its workers have."""

    def __init__(
        self, name: str, source: Session | Graph, inputs: Any, outputs: Any, options: NodeOptions,
        compiled: Mapping[str, Any], said: Mapping[str, Any],
    ) -> None:  # fmt: skip
        from bolt_numba.sessions.session import Session

        self.given = source if isinstance(source, Session) else None
        self.graph = source.graph if isinstance(source, Session) else source
        self.compiled = dict(compiled)
        self.sessions: dict[Any, Session] = {}
        wants = {v.name: spec_of(v.name, v.type) for v in self.graph.caller_inputs}
        makes = {n: spec_of(n, v.type) for n, v in self.graph.caller_outputs}
        free = [n for n in wants if n not in options.fixed and n not in options.states]
        back = {s if isinstance(s, str) else s.output for s in options.states.values()}
        ins = _as_ports("inputs", free if inputs is None else inputs, free)
        outs = _as_ports("outputs", [n for n in makes if n not in back] if outputs is None else outputs, list(makes))
        super().__init__(name, ins, outs, options)
        self.wants, self.makes, self.said = wants, makes, dict(said)
        _want_known("inputs", [*self.inputs, *self.fixed, *self.states], wants)
        _want_known("outputs", [*self.outputs, *back], makes)
        if missing := [n for n in free if n not in self.inputs]:
            raise FlowError(f"inputs: got {list(self.inputs)}, missing {missing}")
        _want_known("pad", options.pad, self.inputs)
        for key in ("types", "process"):
            if getattr(options, key):
                raise FlowError(f"{key}: got {getattr(options, key)!r:.80} for a model, wanted it for functions only")
        self.fixed = {port: as_input(wants[port], given) for port, given in self.fixed.items()}
        self.states = {port: State(s.output, _first(wants[port], s.initial)) for port, s in self.states.items()}
        self.keeps = bool(self.states or self.graph.states)
        if self.keeps and self.each:
            raise FlowError("each: got it for a model that keeps a state, wanted one piece after another")
        self._check_batch()
        self._check_compiled()

    def _check_compiled(self) -> None:
        """What `bn.compile` would refuse with the first task is refused at once, as far as words and numbers go."""
        given = {key: value for key, value in self.compiled.items() if key in SESSION_OPTIONS}
        if given.get("precision") == INT8:
            del given["precision"]
        if given.get("device") is not None:
            want_devices("device", given["device"])
        options_of("model", given)

    def _check_batch(self) -> None:
        if self.options.max_batch == 1:
            return
        if self.keeps:
            raise FlowError("max_batch: got a model that keeps a state, wanted one piece after another")
        free = {n: s.shape for n, s in (self.wants | self.makes).items() if n in self.inputs or n in self.outputs}
        self.batched = tuple(n for n in self.inputs if _is_free(free[n]))
        firm = {n: shape for n, shape in free.items() if n in self.outputs and not _is_free(shape)}
        if not self.batched or firm:
            raise FlowError(f"max_batch: got shapes {firm or free}, wanted a first axis whose size is free")
        if self.options.ragged:
            if self.options.pad or {*self.batched} != {*self.wants}:
                raise FlowError(f"ragged: got rows of {self.batched}, wanted them of all inputs, and no pad")
            self.loose = self.batched
        sizes = {d: (n, i) for n in self.options.pad for i, d in enumerate(free[n] or ()) if i and isinstance(d, str)}
        others = {d for n in self.inputs if n not in self.options.pad for d in (free[n] or ())[1:]}
        for name in self.outputs if sizes else ():
            for axis, size in enumerate((free[name] or ())[1:], 1):
                if size in sizes:
                    self.cuts.append((name, axis, *sizes[size]))
                elif isinstance(size, str) and size not in others:
                    raise FlowError(f"pad: output {name!r}: got a size {size!r}, wanted sizes that inputs have")
        if self.options.pad and any(free[n] is None for n in (*self.options.pad, *self.outputs)):
            raise FlowError(f"pad: got shapes {free}, wanted as many axes as are known")

    def prepare(self, workers: Iterable[Worker]) -> None:
        from bolt_numba.compiling import compile

        workers = list(workers)
        opened = {name for worker in workers for name in plug_ins(worker.place[0] or "cpu")}
        for worker in workers:
            place = worker.place
            if place in self.sessions:
                continue
            given, (device, threads) = self.given, place
            if given is None:
                chosen = {"device": "cpu", "threads": worker.share, **self.compiled}
                chosen |= {key: own for key, own in (("device", device), ("threads", threads)) if own is not None}
                chosen = _without_others(chosen, opened)
                self.sessions[place] = compile(self.graph, **chosen)
            elif (device in (None, given.device)) and threads in (None, given.threads):
                self.sessions[place] = given
            else:
                self.sessions[place] = _elsewhere(given, device, threads)

    def call(self, feeds: Mapping[str, Any], worker: Worker, kept: dict[str, Any]) -> dict[str, Any]:
        session = self.sessions[worker.place]
        if self.graph.states:
            session = kept.get("session") or session.clone()
            kept["session"] = session
        return dict(session(feeds).items())

    def run_together(self, feeds: Sequence[Mapping[str, Any]], worker: Worker) -> list[dict[str, Any]]:
        if not self.options.ragged:
            return super().run_together(feeds, worker)
        counts = [rows_of(f, self.batched) for f in feeds]
        rows = [{n: f[n][i] for n in f} for f, count in zip(feeds, counts, strict=True) for i in range(count)]
        made = iter(self.sessions[worker.place].run_rows(rows, [*self.outputs]))
        parts = [[next(made) for _ in range(count)] for count in counts]
        return [
            self.named({n: np.stack([row[n] for row in part]) for n in self.outputs}) if part
            else self.run(own, worker, {})[0]  # no row tells the shape of none
            for own, part in zip(feeds, parts, strict=True)
        ]  # fmt: skip

    def close(self, kill: bool = False) -> None:
        for session in self.sessions.values():
            if session is not self.given:
                session.close()


def _is_free(shape: tuple[int | str, ...] | None) -> bool:
    """Whether the first axis may have any size."""
    return shape is None or (len(shape) > 0 and isinstance(shape[0], str))


def _elsewhere(session: Session, device: Any, threads: int | None) -> Session:
    """A session of the same graph, made with the same options, on another device or with other threads."""
    if device in (None, session.device):
        return session.clone(threads)
    graph = session.graph  # a session that began without its model is complete now, and its class another
    moved = vars(session.options) | {"device": device, "threads": threads or session.threads}
    options = Options(**_without_others(moved, {*plug_ins(session.device)}))
    return type(session)(graph, options, signatures=session.signatures)


def _without_others(options: Mapping[str, Any], opened: set[str]) -> dict[str, Any]:
    """Options of a session without what is said of plug-ins that others open."""
    mine, said = {*plug_ins(options["device"])}, options.get("properties") or {}
    kept = {k: v for k, v in said.items() if k in mine or k not in opened} or None
    return {**options, "properties": kept, **({} if mine or not opened else {"placement": None})}


def _first(spec: TensorSpec, given: Any) -> Any:
    """What a stream begins with."""
    if given is not None:
        return as_input(spec, given)
    if spec.shape is None or not all(isinstance(d, int) for d in spec.shape):
        raise FlowError(f"state {spec.name!r}: got no initial value for shape {spec.shape}, wanted one")
    return zeros_of(spec, spec.shape)


def _as_ports(what: str, given: Any, ports: Sequence[str] | None = None) -> dict[str, str]:
    """Names of values by the node's own names, in whose order they may be given, too."""
    if isinstance(given, Mapping):
        names_in(what, given.keys())
        if not all(isinstance(value, str) for value in given.values()):
            raise FlowError(f"{what}: got {given!r:.80}, wanted names of values")
        names_in(what, given.values() if what == "outputs" else set(given.values()))
        return dict(given)
    names = names_in(what, given)
    if ports is None:
        return {name: name for name in names}
    if len(names) > len(ports):
        raise FlowError(f"{what}: got {len(names)}, wanted at most {len(ports)}: {list(ports)}")
    return dict(zip(ports, names, strict=False))


def _want_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise FlowError(f"{what}: got {name!r}, wanted one of {known}")
