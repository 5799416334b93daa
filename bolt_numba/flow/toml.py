"""Flows as TOML: a table for the flow, and one for each node; docs/flow.md has an example."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.files.regular import open_regular
from bolt_numba.base.types import Array
from bolt_numba.flow.errors import FlowError
from bolt_numba.flow.flow import Flow
from bolt_numba.flow.named import FileNames, unknown_keys
from bolt_numba.flow.node import COMPILED, FlowNode, FunctionNode
from bolt_numba.flow.parts import OPTIONS, NodeOptions, State, Workers, text_of, workers_of

FLOW = frozenset({"name", "inputs", "outputs", "workers", "copies", "capacity", "order", "nodes"})
WORKERS = frozenset(f.name for f in fields(Workers))
STATE = frozenset(f.name for f in fields(State))
FUNCTION = {"function", "inputs", "outputs"} | OPTIONS
MODEL = {"model", "inputs", "outputs", "weights", "signature", "preprocess"} | COMPILED | OPTIONS
MODEL -= {"types", "process", "calibration", "stages"}  # objects of Python, or nothing for a model


def read(text: str, named: FileNames, given: Mapping[str, Any]) -> Flow:
    """The flow of a text.  given: options of the flow that go before those of the text."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # also of numbers with thousands of digits
        raise FlowError(f"{named.file}: got what is no TOML: {error}") from error
    nodes = data.get("nodes", {})
    for name, node in [("nodes", nodes), *(nodes.items() if isinstance(nodes, dict) else ())]:
        if not isinstance(node, dict):
            raise FlowError(f"{named.file}: {name}: got {node!r:.80}, wanted a table such as [nodes.NAME]")
    unknown_keys(named.file, _unknown(data))
    options: dict[str, Any] = {key: data[key] for key in ("inputs", "outputs", "capacity", "order") if key in data}
    for key in ("inputs", "outputs"):
        if key not in data:
            raise FlowError(f"{named.file}: {key}: got none, wanted names of values")
    name = data.get("name", named.path(named.file).stem)
    if not isinstance(name, str):
        raise FlowError(f"{named.file}: name: got {name!r:.80}, wanted a text")
    options |= {key: _workers(data[key]) for key in ("workers", "copies") if key in data}
    if given.keys() & {"workers", "copies"}:
        options = {key: value for key, value in options.items() if key not in ("workers", "copies")}
    flow = Flow(name, **{**options, **given})
    for key, node in nodes.items():
        with named.at(f"node {key!r}"):
            _add(flow, key, node, named)
    return flow


def _unknown(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """All keys that mean nothing: where they stand, and what is known there."""
    yield from (("", key, FLOW) for key in data if key not in FLOW)
    yield from _unknown_inside("", data)
    for name, node in data.get("nodes", {}).items():
        known = FUNCTION if "function" in node else MODEL if "model" in node else FUNCTION | MODEL
        yield from ((f"nodes.{name}.", key, known) for key in node if key not in known)
        yield from _unknown_inside(f"nodes.{name}.", node)


def _unknown_inside(where: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for place in ("workers", "copies"):
        given = table.get(place)
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, dict):
                yield from ((f"{where}{place}.", key, WORKERS) for key in one if key not in WORKERS)
    states = table.get("states")
    for name, state in states.items() if isinstance(states, dict) else ():
        if isinstance(state, dict):
            yield from ((f"{where}states.{name}.", key, STATE) for key in state if key not in STATE)


def _workers(given: Any) -> Any:
    """Workers of a number, a table or an array of tables; what is none of them is refused where it is used."""
    if isinstance(given, list):
        return [Workers(**one) if isinstance(one, dict) else one for one in given]
    return Workers(**given) if isinstance(given, dict) else given


def _add(flow: Flow, name: str, node: Mapping[str, Any], named: FileNames) -> None:
    where = f"node {name!r}"
    if ("function" in node) == ("model" in node):
        raise FlowError(f"{named.file}: {where}: got {sorted(node)}, wanted a function or a model")
    options = {key: value for key, value in node.items() if key not in ("function", "model", "inputs", "outputs")}
    if "workers" in node:
        options["workers"] = _workers(node["workers"])
    for key, convert in (("states", _state), ("fixed", _fixed)):
        if isinstance(node.get(key), dict):
            options[key] = {port: convert(f"{where}: {key}", port, v, named) for port, v in node[key].items()}
    inputs: Any = node.get("inputs")
    outputs: Any = node.get("outputs")
    if "model" in node:
        _add_model(flow, name, node["model"], named, inputs=inputs, outputs=outputs, **options)
        return
    for key, value in (("inputs", inputs), ("outputs", outputs)):
        if value is None:
            raise FlowError(f"{named.file}: {where}: {key}: got none, wanted names of values")
    function = named.function(f"{where}: function", node["function"])
    flow.function(function, inputs, outputs, name=name, **options)


def _add_model(flow: Flow, name: str, text: Any, named: FileNames, preprocess: Any = None, **options: Any) -> None:
    where = f"node {name!r}"
    source = named.model(f"{where}: model", text)
    if "weights" in options:
        options["weights"] = named.model(f"{where}: weights", options["weights"])
    if preprocess is not None:
        from bolt_numba.preprocessing import with_preprocessing
        from bolt_numba.preprocessing.text import steps_of
        from bolt_numba.sessions.loading import load

        if not isinstance(preprocess, dict) or not all(isinstance(v, str) for v in preprocess.values()):
            raise FlowError(f"{named.file}: {where}: preprocess: got {preprocess!r:.80}, wanted steps by input")
        graph = load(source, weights=options.pop("weights", None), signature=options.pop("signature", None))
        source = with_preprocessing(graph, {key: steps_of(steps) for key, steps in preprocess.items()})
    flow.model(source, name=name, **options)


def _state(where: str, port: str, given: Any, named: FileNames) -> State | str:
    if isinstance(given, dict) and isinstance(given.get("output"), str):
        return State(given["output"], _fixed(where, port, given.get("initial"), named))
    if not isinstance(given, str):
        raise FlowError(f"{named.file}: {where}: {port}: got {given!r:.80}, wanted the name of an output")
    return given


def _fixed(where: str, port: str, given: Any, named: FileNames) -> Any:
    """A value as TOML has it; the array of ``{ file = "table.npy" }``."""
    if not isinstance(given, dict) or given.keys() != {"file"}:
        return given
    said = f"{named.file}: {where}: {port}: got {given['file']!r:.80}"
    if not isinstance(given["file"], str):
        raise FlowError(f"{said}, wanted the name of an .npy file")
    try:
        with open_regular(named.path(given["file"])) as file:
            found = np.load(file, allow_pickle=False)
    except Exception as error:  # of any kind: heads of files are read as Python, and may claim any size
        raise FlowError(f"{said}: {type(error).__name__}: {error}") from error
    if not isinstance(found, np.ndarray):
        raise FlowError(f"{named.file}: {where}: {port}: got an archive, wanted an .npy file")
    return found


# --- writing ---------------------------------------------------------------------------------------------------------


class FlowText:
    """The text of a flow for a file at ``path``.

    arrays: what lies in files of their own beside it, by name.  Raises FlowError with all that no file can hold.
    """

    def __init__(self, flow: Flow, path: Path) -> None:
        self.path, self.arrays, self.faults = path, dict[str, Array](), list[str]()
        inputs = {name: text_of(spec) for name, spec in flow.types.items()} or list(flow.inputs)
        table: dict[str, Any] = {"name": flow.name, "inputs": inputs, "outputs": list(flow.outputs)}
        table |= {"workers" if flow.copies is None else "copies": self._workers(flow.copies or flow.workers)}
        table |= {"capacity": flow.capacity, "order": flow.order}
        tables = [("", table), *((f"nodes.{_toml(node.name)}", self._node(node)) for node in flow.nodes)]
        if self.faults:
            raise FlowError(f"flow {flow.name!r}: {'; '.join(self.faults)}")
        rows = ((f"[{name}]\n" if name else "", *(f"{k} = {_toml(v)}\n" for k, v in t.items())) for name, t in tables)
        self.text = "\n".join("".join(row) for row in rows)

    def _node(self, node: FlowNode) -> dict[str, Any]:
        where = f"node {node.name!r}"
        table: dict[str, Any] = {}
        if not node.said:
            self.faults.append(f"{where}: got a model of a graph of Bolt, wanted nodes of `Flow.model`")
        for key, given in node.said.items():
            if key == "function":
                table[key] = self._function(where, given)
            elif key in ("model", "weights"):
                table[key] = self._file(f"{where}: {key}", given)
            else:
                table[key] = self._plain(f"{where}: {key}", given)
        is_by_name = not isinstance(node, FunctionNode) or node.by_name
        table["inputs"] = node.inputs if is_by_name else list(node.inputs)
        table["outputs"] = node.outputs if any(k != v for k, v in node.outputs.items()) else list(node.outputs)
        usual = NodeOptions()
        for key in sorted(OPTIONS):
            given = getattr(node.options, key)
            if given is None or (type(given) is type(getattr(usual, key)) and given == getattr(usual, key)):
                continue
            if key == "workers":
                if isinstance(node.options.process, bool):
                    table[key] = self._workers(workers_of(given))
            elif key == "states":
                table[key] = {port: self._state(f"{where}: {port}", state) for port, state in given.items()}
            elif key == "fixed":
                table[key] = {port: self._array(f"{where}: {port}", value) for port, value in given.items()}
            else:
                table[key] = self._plain(f"{where}: {key}", given)
        return table

    def _workers(self, given: tuple[Workers, ...]) -> Any:
        rows = [{f.name: v for f in fields(w) if (v := getattr(w, f.name)) is not None} for w in given]
        return [self._plain("workers", row) for row in rows]

    def _state(self, where: str, given: State | str) -> Any:
        if isinstance(given, str) or given.initial is None:
            return given if isinstance(given, str) else given.output
        return {"output": given.output, "initial": self._array(where, given.initial)}

    def _array(self, where: str, given: Any) -> Any:
        """An array is a file of its own."""
        if not isinstance(given, (np.ndarray, np.generic)) or np.asarray(given).dtype.hasobject:
            return self._plain(where, given)
        name = f"{self.path.stem}.{len(self.arrays)}.npy"
        self.arrays[name] = np.asarray(given)
        return {"file": name}

    def _function(self, where: str, given: Any) -> str:
        module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "")
        try:
            found = None if module in (None, "__main__") else attrgetter(name)(import_module(module))
        except (AttributeError, ImportError):
            found = None
        if found is not given:
            self.faults.append(f"{where}: function: got {given!r:.80}, wanted one that a module has by its name")
        return f"{module}:{name}"

    def _file(self, where: str, given: Any) -> str:
        if not isinstance(given, (str, os.PathLike)):
            self.faults.append(f"{where}: got a {type(given).__name__}, wanted the path of a file")
            return ""
        return os.path.relpath(given, self.path.parent)

    def _plain(self, where: str, given: Any) -> Any:
        """Texts, numbers, flags, and lists and tables of them."""
        if isinstance(given, Mapping):
            return {str(key): self._plain(where, value) for key, value in given.items()}
        if isinstance(given, (list, tuple, set, frozenset)):
            return [self._plain(where, value) for value in given]
        if not isinstance(given, (str, bool, int, float)):
            self.faults.append(f"{where}: got a {type(given).__name__}, wanted texts, numbers, lists or tables")
        return given


def _toml(given: Any) -> str:
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(value)}" for key, value in given.items()) + " }"
    if isinstance(given, list):
        return "[" + ", ".join(map(_toml, given)) + "]"
    if isinstance(given, str):
        return json.dumps(given, ensure_ascii=False).replace("\x7f", "\\u007f")  # else JSON's texts are TOML's
    if isinstance(given, float):
        return repr(float(given))  # NumPy's own say their type
    return str(given).lower() if isinstance(given, bool) else repr(given)
