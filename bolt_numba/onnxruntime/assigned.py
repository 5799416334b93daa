"""Which provider runs which nodes, as onnxruntime tells it: the CPU's runs all of them."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.records import record
from bolt_numba.onnxruntime.errors import OrtRefusedError
from bolt_numba.onnxruntime.providers import PROVIDERS

RECORD = "session.record_ep_graph_assignment_info"
"""Entry of the configuration that asks for it."""


@record(frozen=True)
class OrtEpAssignedNode:
    """A node of a file."""

    name: str
    domain: str
    op_type: str


@record(frozen=True)
class OrtEpAssignedSubgraph:
    """Nodes that a provider runs."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)


def assigned(source: Any) -> list[OrtEpAssignedSubgraph]:
    """Each node of an ONNX file as a part of its own."""
    from bolt_numba.converters.bounded import reading
    from bolt_numba.converters.formats import Content, format_of  # importing the drop-in is cheap
    from bolt_numba.ir.graph import Graph
    from bolt_numba.ir.model import Model

    content = None if isinstance(source, (Graph, Model)) else Content(source)
    if content is None or format_of(content) != "onnx":
        raise OrtRefusedError("get_provider_graph_assignment_info: got a model of another format, wanted ONNX")
    from bolt_numba.converters.onnx.reading.read import parsed

    with reading(content.name, OSError), parsed(content.view, content.name) as proto:
        nodes = [OrtEpAssignedNode(n.name, n.domain, n.op_type) for n in proto.graph.node]
    return [OrtEpAssignedSubgraph(PROVIDERS[0], (node,)) for node in nodes]
