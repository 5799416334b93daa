"""Graphs of Bolt's Flow, ``flow.prototxt``, as flows.

Source: ``inference/flow/src/flow.proto`` of Bolt 1.5 says what fields there are.  A node of such a file is a function
before a model, the model, and a function behind it; each may be absent.  Here these are up to three nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import dtype_name
from bolt_numba.converters.caffe.message import Message, last, messages
from bolt_numba.converters.caffe.message import named as texts
from bolt_numba.converters.caffe.message import text as text_of
from bolt_numba.converters.caffe.text import parse
from bolt_numba.flow.crew import Worker
from bolt_numba.flow.errors import FlowError
from bolt_numba.flow.flow import Flow
from bolt_numba.flow.named import MOST_LISTED, FileNames, more, unknown_keys
from bolt_numba.flow.node import ModelNode
from bolt_numba.sessions.loading import read_model
from bolt_numba.sessions.session import Session

GRAPH = {"name", "input", "output", "node"}
NODE = {
    "name", "type", "input_type", "input_format", "input_dim", "input", "output", "tmp", "precision",
    "infer_output_size_parameter", "preprocess_parameter", "inference_parameter", "postprocess_parameter",
}  # fmt: skip
INPUT, INFERENCE = "Input", "Inference"
TYPES = ("FLOAT32", "FLOAT16", "UINT32", "INT8", "UINT8")
FORMATS = ("NCHW", "NCHWC8", "MTK", "NORMAL")
NOTHING = "NULL"
"""How a file says that there is no model, or no function."""
ALL = "*"
"""The port of all values that a function before a model knows of, for the function behind it."""


def read(text: str, named: FileNames, given: Mapping[str, Any]) -> Flow:
    """The flow of a text.  given: options of the flow, of which the file says nothing."""
    graph = parse(text.encode(), named.file)
    nodes = list(messages(graph, "node", named.file))
    unknown_keys(named.file, _unknown(graph, nodes))
    steps, inputs = list[Message](), list[str]()
    for node in nodes:
        if _kind(node, named) == INPUT:
            inputs += texts(node, "output", named.file)
        else:
            steps.append(node)
    _want_there(steps, named)
    inputs = texts(graph, "input", named.file) or inputs
    outputs = texts(graph, "output", named.file)
    name = text_of(last(graph, "name", "flow"), "name")
    flow = Flow(name, inputs=inputs, outputs=outputs, **given)
    for i, node in enumerate(steps):
        name = _name(node, i)
        with named.at(f"node {name!r}"):
            _add(flow, name, node, named)
    return flow


def _unknown(graph: Message, nodes: Sequence[Message]) -> Iterator[tuple[str, str, Any]]:
    yield from (("", key, GRAPH) for key in graph if key not in GRAPH)
    for i, node in enumerate(nodes):
        yield from ((f"node {_name(node, i)!r}: ", key, NODE) for key in node if key not in NODE)


def _name(node: Message, number: int) -> str:
    return text_of(last(node, "name", f"node {number}"), "node: name")


def _kind(node: Message, named: FileNames) -> str:
    """Raises FlowError for a word that means nothing."""
    words = {"type": (INPUT, INFERENCE), "input_type": TYPES, "input_format": FORMATS}
    for field, known in words.items():
        for word in texts(node, field, named.file):
            if word not in known:
                where = f"{named.file}: node {_name(node, 0)!r}: {field}"
                raise FlowError(f"{where}: got {word!r:.80}, wanted one of {', '.join(known)}")
    return str(last(node, "type", INFERENCE))


def _part(node: Message, field: str) -> tuple[str, list[str]]:
    """What a parameter of a node begins with, or nothing, and what else it has."""
    words = texts(node, field, f"node {_name(node, 0)!r}")
    return ("", []) if not words or words[0] in ("", NOTHING) else (words[0], words[1:])


def _want_there(nodes: Sequence[Message], named: FileNames) -> None:
    """Raises FlowError with all functions and models that neither the caller gave nor the file leads to."""
    functions, models = list[str](), list[str]()
    for node in nodes:
        for field in ("preprocess_parameter", "postprocess_parameter"):
            name, _ = _part(node, field)
            if name and named.given("functions", name) is None:
                functions.append(name)
        name, _ = _part(node, "inference_parameter")
        if name and named.given("models", name) is None and not named.is_there(name):
            models.append(name)
    left = {"functions": list(dict.fromkeys(functions)), "models": list(dict.fromkeys(models))}
    said = [
        f"{kind}: got none for {', '.join(f'{n!r:.200}' for n in names[:MOST_LISTED])}{more(names)}"
        for kind, names in left.items()
        if names
    ]
    if said:
        raise FlowError(f"{named.file}: {'; '.join(said)}, wanted functions= and models=, or --function and --model")


def _add(flow: Flow, name: str, node: Message, named: FileNames) -> None:
    """Add what a node does: at most three nodes of ours."""
    where = f"node {name!r}"
    inputs, outputs = texts(node, "input", named.file), texts(node, "output", named.file)
    before, behind = (_part(node, f"{which}process_parameter") for which in ("pre", "post"))
    text, _ = _part(node, "inference_parameter")
    calls = [(named.function(where, called), words) for called, words in (before, behind) if called]
    if not text:
        if not calls:
            raise FlowError(f"{named.file}: {where}: got no model and no function, wanted one of them")
        flow.function(_Calls(calls, outputs), {n: n for n in inputs}, outputs, name=name)
        return
    source = named.model(where, text)
    source = source if isinstance(source, Session) else read_model(source).graph(None)
    graph = source.graph if isinstance(source, Session) else source
    takes, makes = [v.name for v in graph.caller_inputs], [n for n, _ in graph.caller_outputs]
    feeds = {n: f"{name}/{n}" if before[0] else n for n in takes}
    if missing := [n for n in (() if before[0] else takes) if n not in inputs]:
        raise FlowError(f"{named.file}: {where}: inputs: got {inputs}, wanted what the model takes: {missing}")
    made = {n: f"{name}/{n} of the model" if behind[0] else n for n in makes if behind[0] or n in outputs}
    others = {} if behind[0] else {n: n for n in outputs if n not in made}
    if before[0]:
        ports = feeds | others | ({ALL: f"{name}/{ALL}"} if behind[0] else {})
        flow.function(_Calls(calls[:1], ports), {n: n for n in inputs}, ports, name=f"{name}/before")
    elif others:
        raise FlowError(f"{named.file}: {where}: outputs: got {[*others]}, wanted what the model makes: {makes}")
    flow._add(name, {}, lambda options: _ConvertingNode(name, source, feeds, made, options, {}, {}))
    if behind[0]:
        ports = ({ALL: f"{name}/{ALL}"} if before[0] else {n: n for n in inputs}) | made
        flow.function(_Calls(calls[-1:], outputs), ports, outputs, name=f"{name}/behind")


class _Calls:
    """Functions of the caller one after another: each gets all values by name, and returns those that it makes.

    wanted: names that must be there in the end.
    """

    def __init__(self, calls: Sequence[tuple[Callable[..., Any], list[str]]], wanted: Iterable[str]) -> None:
        self.calls, self.wanted = list(calls), [n for n in wanted if n != ALL]
        self.__module__ = getattr(calls[0][0], "__module__", "")  # as who looks at the flow wants to see it
        self.__qualname__ = ", ".join(getattr(f, "__qualname__", repr(f)) for f, _ in calls)

    def __call__(self, /, **values: Any) -> dict[str, Any]:
        values |= values.pop(ALL, {})
        for function, words in self.calls:
            made = function(dict(values), *words)
            if not isinstance(made, Mapping):
                raise FlowError(f"result: got a {type(made).__name__}, wanted a dictionary of values by name")
            values |= made
        if missing := [n for n in self.wanted if n not in values]:
            raise FlowError(f"results: got {sorted(values)}, missing {missing}")
        return {**values, ALL: values}


class _ConvertingNode(ModelNode):
    """A model that takes numbers of other widths than its own, as Bolt's u32 for i64, or f16 for f32."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.takes, self.wants = self.wants, {}  # edges need not be of the same width

    def call(self, feeds: Mapping[str, Any], worker: Worker, kept: dict[str, Any]) -> dict[str, Any]:
        return super().call({port: self._converted(port, x) for port, x in feeds.items()}, worker, kept)

    def _converted(self, port: str, given: Any) -> Any:
        dtype = self.takes[port].dtype
        is_other = isinstance(given, np.ndarray) and given.dtype != dtype
        if not is_other or not np.can_cast(given.dtype, dtype, "same_kind"):
            return given
        with np.errstate(over="ignore"):  # what f16 has not is infinite there
            made = given.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(made, given):
            raise DTypeError(f"input {port!r}: got {given.min()} to {given.max()}, wanted what {dtype_name(dtype)} has")
        return made
