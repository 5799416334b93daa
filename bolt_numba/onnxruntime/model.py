"""A model file as onnxruntime shows it: inputs, outputs and metadata as the file declares them, and its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import Array, TensorSpec, TensorType
from bolt_numba.onnxruntime.errors import OrtRefusedError
from bolt_numba.onnxruntime.kinds import CODES, kind_of, kind_of_spec

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.proto import onnx
    from bolt_numba.ir.graph import Graph

Shape = list["int | str | None"]

OVERRIDABLE_SINCE = 4
"""Version of ONNX's format from which an initializer that is also an input may be fed."""
NO_VERSION = (1 << 63) - 1
"""What onnxruntime says of a model without a version."""
READERS_ENTRIES = ("format", "producer", "opset")
"""Entries of a graph's metadata that its reader adds."""


class NodeArg:
    """An input or output: name, onnxruntime's type, shape (a str for a named dimension, None for an unnamed one).

    The shape of what has no known rank is empty, as there.
    """

    __slots__ = ("_name", "_shape", "_type")

    def __init__(self, name: str, type: str, shape: Shape) -> None:
        self._name, self._type, self._shape = name, type, shape

    @property
    def name(self) -> str:
        return self._name

    @property
    def type(self) -> str:
        return self._type

    @property
    def shape(self) -> Shape:
        """A list of the caller's own."""
        return list(self._shape)

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class ModelMetadata:
    """What the model file says of itself; a caller may change what it got."""

    __slots__ = (
        "custom_metadata_map", "description", "domain", "graph_description", "graph_name", "producer_name", "version",
    )  # fmt: skip

    def __init__(self, producer_name: str, graph_name: str, custom_metadata_map: dict[str, str]) -> None:
        self.producer_name, self.graph_name = producer_name, graph_name
        self.custom_metadata_map = custom_metadata_map
        self.domain = self.description = self.graph_description = ""
        self.version = NO_VERSION


@record(frozen=True)
class Declared:
    """What a file says, by name; None for the shape of what it gives no rank.

    kinds: types of outputs that are no tensors, as onnxruntime writes them.
    """

    inputs: dict[str, Shape | None]
    outputs: dict[str, Shape | None]
    kinds: dict[str, str]
    overridable: list[NodeArg]
    meta: ModelMetadata


@record(frozen=True)
class Changes:
    """What a caller changes of a file before it is read.

    dimensions, meanings: sizes of free dimensions of inputs, by name and by what they denote.  initializers: arrays in
    the place of the file's.  inputs: names of initializers that are to be inputs.  loose: an input that is declared a
    scalar may have any shape.  files: contents of files with external data, by name.  folders: where other such files
    are, for a model that is no file itself.
    """

    dimensions: Mapping[str, int]
    meanings: Mapping[str, int]
    initializers: Mapping[str, Array]
    inputs: frozenset[str] = frozenset()
    loose: bool = False
    files: Mapping[str, bytes] | None = None
    folders: tuple[Path, ...] = ()


def read_declared(source: Any, changes: Changes) -> tuple[Graph, Declared]:
    """The graph of a model and what its file declares.  Changes can be made to ONNX files only."""
    from bolt_numba.converters.bounded import reading
    from bolt_numba.converters.formats import Content, format_of
    from bolt_numba.ir.graph import Graph
    from bolt_numba.ir.model import Model

    content = None if isinstance(source, (Graph, Model)) else Content(source)
    if content is None or format_of(content) != "onnx":
        return _read_other(source, changes)
    from bolt_numba.converters.onnx.reading.read import parsed, read_model

    with reading(content.name, OSError), parsed(content.view, content.name) as proto:
        _fix_dimensions(proto.graph, changes)
        declared = _declared(proto)
        _change_initializers(proto.graph, changes)
        _take_files(proto.graph, changes.files or {}, content.name)
        if changes.loose:
            _loosen(proto.graph)
        return read_model(proto, content.folders or changes.folders, content.name), declared


def _read_other(source: Any, changes: Changes) -> tuple[Graph, Declared]:
    from bolt_numba.sessions.loading import load

    if changes.dimensions or changes.meanings or changes.initializers:
        raise OrtRefusedError("SessionOptions: got dimensions or initializers, wanted them for an ONNX file only")
    graph = load(source)
    own = {k: v for k, v in graph.metadata.items() if k not in READERS_ENTRIES}
    meta = ModelMetadata(graph.metadata.get("producer", ""), graph.name, own)
    ins = {v.name: _symbolic(v.type) for v in graph.caller_inputs}
    return graph, Declared(ins, {name: _symbolic(v.type) for name, v in graph.caller_outputs}, {}, [], meta)


def _symbolic(t: TensorType) -> Shape | None:
    return None if t.shape is None else [d if isinstance(d, int) else str(d) for d in t.shape]


def _fix_dimensions(graph: onnx.GraphProto, changes: Changes) -> None:
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim:
            size = changes.dimensions.get(dim.dim_param) if dim.dim_param else None
            size = changes.meanings.get(dim.denotation, size) if dim.denotation else size
            if size is not None and not dim.HasField("dim_value"):
                dim.dim_value = size


def _loosen(graph: onnx.GraphProto) -> None:
    for info in graph.input:
        if not info.type.HasField("tensor_type"):  # asking for it would make it one
            continue
        if not info.type.tensor_type.shape.dim:
            info.type.tensor_type.ClearField("shape")


def _change_initializers(graph: onnx.GraphProto, changes: Changes) -> None:
    held = {tensor.name: place for place, tensor in enumerate(graph.initializer)}
    for name in held.keys() & changes.initializers.keys():
        tensor, array = graph.initializer[held[name]], changes.initializers[name]
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.raw_data = name, CODES[array.dtype], array.tobytes()
        tensor.dims.extend(array.shape)
    for name in sorted(changes.inputs, key=held.__getitem__, reverse=True):
        del graph.initializer[held[name]]


def _take_files(graph: onnx.GraphProto, files: Mapping[str, bytes], what: str) -> None:
    """Put into initializers what they say lies in these files."""
    for tensor in graph.initializer:
        said = {entry.key: entry.value for entry in tensor.external_data}
        file = files.get(said.get("location", ""))
        if file is None:
            continue
        start = int(said.get("offset", 0))
        end = start + int(said.get("length", len(file) - start))
        if not 0 <= start <= end <= len(file):
            raise InvalidModelError(
                f"{what}: tensor {tensor.name!r}: external data: got bytes {start} to {end}, wanted some of {len(file)}"
            )
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = file[start:end]


def _declared(model: onnx.ModelProto) -> Declared:
    from bolt_numba.converters.onnx.types import type_of_proto

    graph = model.graph
    held = {t.name for t in graph.initializer} if model.ir_version >= OVERRIDABLE_SINCE else set()
    overridable = [
        NodeArg(i.name, kind_of(type_of_proto(i.type, i.name)), _shape(i.type) or [])
        for i in graph.input
        if i.name in held
    ]
    meta = ModelMetadata(model.producer_name, graph.name, {p.key: p.value for p in model.metadata_props})
    meta.domain, meta.version = model.domain, model.model_version if model.HasField("model_version") else NO_VERSION
    meta.description, meta.graph_description = model.doc_string, graph.doc_string
    nested = [i for i in graph.output if i.type.WhichOneof("value") not in ("tensor_type", None)]
    kinds = {i.name: kind_of(type_of_proto(i.type, i.name)) for i in nested}
    return Declared(_shapes(graph.input), _shapes(graph.output), kinds, overridable, meta)


def _shapes(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, Shape | None]:
    return {info.name: _shape(info.type) for info in infos}


def _shape(proto: onnx.TypeProto) -> Shape | None:
    """Dimensions as the file has them; None where it says nothing of the rank."""
    if proto.HasField("optional_type"):
        return _shape(proto.optional_type.elem_type)
    if not proto.tensor_type.HasField("shape"):
        return None
    return [_dimension(d) for d in proto.tensor_type.shape.dim]


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def args_of(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Shape | None], symbols: set[str], kinds: Mapping[str, str]
) -> list[NodeArg]:
    """Inputs or outputs: sizes that are known, else what the file says, else symbols that inputs have."""
    return [
        NodeArg(s.name, kinds.get(s.name) or kind_of_spec(s), _merged(s.shape, shapes.get(s.name), symbols))
        for s in specs
    ]


def _merged(found: Sequence[int | str] | None, said: Shape | None, symbols: set[str]) -> Shape:
    if found is None:
        return said or []
    rows: Shape = said if said is not None and len(said) == len(found) else [None] * len(found)
    return [_choose(f, d, symbols) for f, d in zip(found, rows, strict=True)]


def _choose(found: int | str, said: int | str | None, symbols: set[str]) -> int | str | None:
    if isinstance(found, int) or (said is None and found in symbols):
        return found
    return said


def are_loose(args: Sequence[NodeArg], feeds: Mapping[str, Any]) -> bool:
    """Whether inputs have axes where scalars are declared."""
    given = [arg for arg in args if arg.name in feeds and arg.type.startswith("tensor")]
    return any(np.shape(feeds[arg.name]) and not arg.shape for arg in given)


def named_dimensions(declared: Mapping[str, Shape | None]) -> set[str]:
    return {d for shape in declared.values() for d in shape or () if isinstance(d, str)}
