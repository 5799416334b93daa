"""ONNX bytes to a `Graph`: parse, check what must hold, list what is unsupported, read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.converters.bounded import Folders, reading
from bolt_numba.converters.nodes import hear
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import GraphReader, unsupported_nodes
from bolt_numba.converters.onnx.reading.payload import without_payloads
from bolt_numba.converters.onnx.structure import all_nodes, domain_of, functions_of, opsets_of
from bolt_numba.converters.wire import what_is_wrong
from bolt_numba.ir.graph import Graph


def read_onnx(data: bytes | memoryview, folders: Folders, name: str) -> Graph:
    """The graph of an ONNX file, whose large weights stay views of ``data``.

    folders: where external data may lie; none when there is no file.  name: what messages call the model.
    Raises InvalidModelError for what is no valid model, UnsupportedOpError listing all operators without a meaning
    here, ShapeError or DTypeError for nodes whose operands do not fit.
    """
    with parsed(data, name) as model:
        return read_model(model, folders, name)


@contextmanager
def parsed(data: bytes | memoryview, name: str) -> Iterator[onnx.ModelProto]:
    """The messages of a file; its large weights are known until the block ends.  Raises InvalidModelError."""
    with without_payloads(data) as rest:
        try:
            model = onnx.ModelProto.FromString(rest)
        except Exception as error:  # protobuf's own kinds of errors
            raise InvalidModelError(f"{name}: got {what_is_wrong(data)}, wanted an ONNX model") from error
        yield model


def read_model(model: onnx.ModelProto, folders: Folders = (), name: str = "model") -> Graph:
    """The graph of a parsed model; see `read_onnx`."""
    with reading(name):
        return _read(model, folders, name)


def _read(model: onnx.ModelProto, folders: Folders, name: str) -> Graph:
    if not model.HasField("graph"):
        raise InvalidModelError(f"{name}: got no graph, wanted an ONNX model")
    opsets = opsets_of(model.opset_import, name)
    if not opsets:
        if model.ir_version >= 3:
            raise InvalidModelError(f"{name}: opset_import: got none, wanted the version of each domain")
        opsets = {"": 1}
    functions = functions_of(model, name)
    missing = unsupported_nodes(model.graph.node, opsets, functions)
    if missing:
        raise UnsupportedOpError(name, missing)
    hear(lambda: _named(model))
    graph = GraphReader(name, folders, functions).read(model.graph, opsets, model.graph.name or name)
    graph.metadata.update({p.key: p.value for p in model.metadata_props})
    graph.metadata["format"] = "onnx"
    graph.metadata["producer"] = f"{model.producer_name} {model.producer_version}".strip()
    graph.metadata["opset"] = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(opsets.items()))
    return graph


def _named(model: onnx.ModelProto) -> Iterator[tuple[tuple[object, ...], str]]:
    """All nodes of a file, those of its functions once, with the names of their operators."""
    parts = [model.graph.node, *(function.node for function in model.functions)]
    for number, node in enumerate(node for part in parts for node in all_nodes(part)):
        domain = domain_of(node.domain)
        yield (number,), f"{domain}.{node.op_type}" if domain else node.op_type
