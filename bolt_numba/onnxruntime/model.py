"""A model file as onnxruntime shows it: inputs, outputs and metadata as the file declares them, and its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bolt_numba.base.records import record
from bolt_numba.onnxruntime.errors import OrtOptionError, OrtRefusedError
from bolt_numba.onnxruntime.kinds import CODES, kind_of, kind_of_spec
from bolt_numba.types import Array, TensorSpec, TensorType

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.proto import onnx
    from bolt_numba.ir.graph import Graph

Shape = list["int | str | None"]

OVERRIDABLE_SINCE = 4
"""Version of ONNX's format from which an initializer that is also an input may be fed."""
READERS_ENTRIES = ("format", "producer", "opset")
"""Entries of a graph's metadata that its reader adds."""


@record(frozen=True)
class NodeArg:
    """An input or output: name, onnxruntime's type, shape (a str for a named dimension, None for an unnamed one).

    The shape of what has no known rank is empty, as there.
    """

    name: str
    type: str
    shape: Shape


@record(frozen=True)
class ModelMetadata:
    """What the model file says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] | None = None


@record(frozen=True)
class Declared:
    """What a file says, by name; None for the shape of what it gives no rank."""

    inputs: dict[str, Shape | None]
    outputs: dict[str, Shape | None]
    overridable: list[NodeArg]
    meta: ModelMetadata


@record(frozen=True)
class Changes:
    """What a caller changes of a file before it is read.

    dimensions, meanings: sizes of free dimensions of inputs, by name and by what they denote.  initializers: arrays in
    the place of the file's.  inputs: names of initializers that are to be inputs.
    """

    dimensions: Mapping[str, int]
    meanings: Mapping[str, int]
    initializers: Mapping[str, Array]
    inputs: frozenset[str] = frozenset()


def read_declared(source: Any, changes: Changes) -> tuple[Graph, Declared]:
    """The graph of a model and what its file declares.  Changes can be made to ONNX files only."""
    from bolt_numba.converters import Content, format_of
    from bolt_numba.converters.bounded import reading
    from bolt_numba.ir.graph import Graph
    from bolt_numba.ir.model import Model

    content = None if isinstance(source, (Graph, Model)) else Content(source)
    if content is None or format_of(content) != "onnx":
        return _read_other(source, changes)
    from bolt_numba.converters.onnx.reading.read import parsed, read_model

    with reading(content.name, OSError), parsed(content.view, content.name) as proto:
        _fix_dimensions(proto.graph, changes)
        declared = _declared(proto)
        _change_initializers(proto.graph, changes, content.name)
        return read_model(proto, content.folder, content.name), declared


def _read_other(source: Any, changes: Changes) -> tuple[Graph, Declared]:
    from bolt_numba.session import load

    if changes.dimensions or changes.meanings or changes.initializers:
        raise OrtRefusedError("SessionOptions: got dimensions or initializers, wanted them for an ONNX file only")
    graph = load(source)
    own = {k: v for k, v in graph.metadata.items() if k not in READERS_ENTRIES}
    meta = ModelMetadata(graph.metadata.get("producer", ""), graph.name, custom_metadata_map=own)
    ins = {v.name: _symbolic(v.type) for v in graph.caller_inputs}
    return graph, Declared(ins, {name: _symbolic(v.type) for name, v in graph.caller_outputs}, [], meta)


def _symbolic(t: TensorType) -> Shape | None:
    return None if t.shape is None else [d if isinstance(d, int) else str(d) for d in t.shape]


def _fix_dimensions(graph: onnx.GraphProto, changes: Changes) -> None:
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim:
            size = changes.dimensions.get(dim.dim_param) if dim.dim_param else None
            size = changes.meanings.get(dim.denotation, size) if dim.denotation else size
            if size is not None and not dim.HasField("dim_value"):
                dim.dim_value = size


def _change_initializers(graph: onnx.GraphProto, changes: Changes, what: str) -> None:
    held = {tensor.name: place for place, tensor in enumerate(graph.initializer)}
    for name, array in changes.initializers.items():
        if name not in held:
            raise OrtOptionError(f"{what}: initializer: got {name!r}, wanted a name of the file's")
        tensor = graph.initializer[held[name]]
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.raw_data = name, CODES[array.dtype], array.tobytes()
        tensor.dims.extend(array.shape)
    for name in sorted(changes.inputs, key=held.__getitem__, reverse=True):
        del graph.initializer[held[name]]


def _declared(model: onnx.ModelProto) -> Declared:
    from bolt_numba.converters.onnx.types import type_of_proto

    graph = model.graph
    held = {t.name for t in graph.initializer} if model.ir_version >= OVERRIDABLE_SINCE else set()
    overridable = [
        NodeArg(i.name, kind_of(type_of_proto(i.type, i.name)), _shape(i.type) or [])
        for i in graph.input
        if i.name in held
    ]
    meta = ModelMetadata(
        model.producer_name, graph.name, model.domain, model.doc_string, graph.doc_string, model.model_version,
        {p.key: p.value for p in model.metadata_props},
    )  # fmt: skip
    return Declared(_shapes(graph.input), _shapes(graph.output), overridable, meta)


def _shapes(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, Shape | None]:
    return {info.name: _shape(info.type) for info in infos}


def _shape(proto: onnx.TypeProto) -> Shape | None:
    """Dimensions as the file has them; None where it says nothing of the rank."""
    if not proto.tensor_type.HasField("shape"):
        return None
    return [_dimension(d) for d in proto.tensor_type.shape.dim]


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def args_of(specs: Sequence[TensorSpec], declared: Mapping[str, Shape | None], symbols: set[str]) -> list[NodeArg]:
    """Inputs or outputs: sizes that are known, else what the file says, else symbols that inputs have."""
    return [NodeArg(s.name, kind_of_spec(s), _merged(s.shape, declared.get(s.name), symbols)) for s in specs]


def _merged(found: Sequence[int | str] | None, said: Shape | None, symbols: set[str]) -> Shape:
    if found is None:
        return said or []
    rows: Shape = said if said is not None and len(said) == len(found) else [None] * len(found)
    return [_choose(f, d, symbols) for f, d in zip(found, rows, strict=True)]


def _choose(found: int | str, said: int | str | None, symbols: set[str]) -> int | str | None:
    if isinstance(found, int) or (said is None and found in symbols):
        return found
    return said


def named_dimensions(declared: Mapping[str, Shape | None]) -> set[str]:
    return {d for shape in declared.values() for d in shape or () if isinstance(d, str)}


