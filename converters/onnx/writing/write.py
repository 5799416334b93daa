"""Graphs as ONNX models: the portable part of the intermediate representation, in the opset that it needs."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import onnx
from onnx import helper

from bolt_numba.base.border import border
from bolt_numba.base.errors import BoltError, UnsupportedOpError
from bolt_numba.base.files.mapped import check_intact
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.types import Array, TensorType
from bolt_numba.converters.onnx.structure import read_names
from bolt_numba.converters.onnx.writing.graph import write_graph
from bolt_numba.converters.onnx.writing.opset import OLDEST, expand, ir_version, needed, since, spell_older, too_new
from bolt_numba.converters.onnx.writing.tensor import EXTERNAL, Weights, repeated
from bolt_numba.ir.graph import Graph

PACKAGE = "bolt-numba"
MAX_PROTO = (1 << 31) - (1 << 24)
"""Bytes of weights from which a model cannot be one protobuf message."""
BODIES = 4
"""Function bodies within function bodies that are looked into for an older opset."""
OURS = ("format", "producer", "opset")
"""Metadata that the reader makes; the written file says it elsewhere."""


@border("to_onnx")
def to_onnx(graph: Graph, *, opset: int | None = None) -> onnx.ModelProto:
    """The model of a graph; images whose channels are last stand between transposes.

    opset: version of the default domain; None takes the oldest from 18 on that has all nodes as they are.
    Raises UnsupportedOpError listing all nodes that ONNX (or that opset) has no words for, BoltError for an opset.
    """
    return _model(graph, Weights(), opset)


@border("to_onnx")
def to_onnx_apart(graph: Graph) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The same without its large weights, which are external, and these by name: for engines that borrow arrays."""
    apart: dict[str, Array] = {}
    model = _model(graph, Weights(location="weights", apart=apart), None)
    read = set().union({v.name for v in model.graph.output}, *map(read_names, model.graph.node))
    kept = [t for t in model.graph.initializer if t.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model, {t.name: apart[t.name] for t in kept if t.name in apart}


@border("save_onnx", OSError)
def save_onnx(graph: Graph, path: str | os.PathLike[str], *, opset: int | None = None, external: bool = False) -> None:
    """Write a graph as an ONNX file that appears complete or not at all; see `to_onnx`.

    external: put large weights into a file ``<name>.data`` beside it, as is done always beyond 2 GiB.
    Raises UnsupportedOpError for what ONNX has no words for, BoltError for an opset that is too old or too new.
    """
    if not external and _weight_bytes(graph) < MAX_PROTO:
        data = to_onnx(graph, opset=opset).SerializeToString()
        with replaced(path) as file:
            file.write(data)
        return
    target = Path(path)
    save_onnx_apart(graph, target, target.with_name(f"{target.name}.data"), opset=opset)


@border("save_onnx", OSError)
def save_onnx_apart(graph: Graph, path: Path, beside: Path, least: int = EXTERNAL, opset: int | None = None) -> None:
    """The same with the weights of ``least`` bytes and more in the file ``beside`` it, in the same folder."""
    with replaced(path) as file:
        with replaced(beside) as data_file:
            model = _model(graph, Weights(data_file, beside.name, least=least), opset)
        file.write(model.SerializeToString())


def _weight_bytes(graph: Graph) -> int:
    """Bytes of all constants, as far as they are really stored."""
    held: dict[int, int] = {}
    todo = [graph]
    while todo:
        part = todo.pop()
        todo += [sub for _, sub in part.subgraphs()]
        for array in (v.const for v in part.constants() if v.const is not None):
            kept = repeated(array)
            held[id(array)] = (array if kept is None else kept).nbytes
    return sum(held.values())


def _model(graph: Graph, weights: Weights, opset: int | None) -> onnx.ModelProto:
    check_intact(graph.weights())
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and opset not in range(OLDEST, newest + 1):
        raise BoltError(f"opset: got {opset!r:.80}, wanted {OLDEST} to {newest}")
    proto, types = write_graph(graph, weights)
    opsets = needed(proto, types, 1) if opset is not None else needed(proto, types)
    made = helper.make_model(proto, opset_imports=[helper.make_opsetid(d, v) for d, v in sorted(opsets.items())])
    made.producer_name, made.producer_version = PACKAGE, _own_version()
    helper.set_model_props(made, {k: v for k, v in graph.metadata.items() if k not in OURS})
    if opset is not None:
        made = _stamped(made, opset, types)
    made.ir_version = ir_version({o.domain: o.version for o in made.opset_import}, types)
    return made


def _own_version() -> str:
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:  # run from its sources without being installed
        return ""


def _version(model: onnx.ModelProto) -> int:
    return next(int(o.version) for o in model.opset_import if not o.domain)


def _set_version(model: onnx.ModelProto, version: int) -> None:
    next(o for o in model.opset_import if not o.domain).version = version


def _stamped(model: onnx.ModelProto, opset: int, types: dict[str, TensorType]) -> onnx.ModelProto:
    """The model in a given opset; raises UnsupportedOpError listing what it does not have."""
    if _version(model) <= opset:
        _set_version(model, opset)
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    spell_older(made.graph, opset, types)
    for _ in range(BODIES):
        if not expand(made.graph, opset, types):
            break
        spell_older(made.graph, opset, types)
    late = too_new(made.graph.node, opset, types)
    if late:
        return _converted(model, opset, [f"{n.op_type} at node '{n.name}' needs opset {since(n, types)}" for n in late])
    del made.graph.value_info[:]  # the names are not all there any more
    _set_version(made, opset)
    return made


def _converted(model: onnx.ModelProto, opset: int, late: list[str]) -> onnx.ModelProto:
    """The last resort: the converter of onnx, which knows some more steps."""
    try:
        made = onnx.version_converter.convert_version(model, opset)
        onnx.checker.check_model(made)
    except Exception as error:  # what it raises for what it cannot do is not documented
        raise UnsupportedOpError(f"{model.graph.name}: in opset {opset}", list(dict.fromkeys(late))) from error
    return made
