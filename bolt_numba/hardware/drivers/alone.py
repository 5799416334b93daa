"""A node by itself, as an SDK is asked for it: what it lacks it says, and is asked once for each kind of node."""

from __future__ import annotations

from typing import Any

from bolt_numba.ir.graph import Graph, Node, Value

SMALL = 1024
"""Elements up to which a constant is one when an SDK is asked for a node; larger ones are operands then."""


def alone(node: Node) -> Graph:
    """A graph of one node; large constants are inputs."""
    graph = Graph("node")
    operands: list[Value | None] = []
    given: dict[Value, Value] = {}
    for value in node.inputs:
        if value is None or (value.const is not None and value.const.size <= SMALL):
            operands.append(None if value is None else Value(value.name, value.type, const=value.const))
            continue
        if value not in given:
            given[value] = graph.add_input(value.name, value.type.with_value(None))
        operands.append(given[value])
    made = Node(node.op, operands, [v.type for v in node.outputs], graph.unique_name(node.name))
    graph.nodes.append(made)
    for value in made.outputs:
        graph.add_output(value)
    return graph


def kind_of(node: Node) -> Any:
    """What two nodes have in common of which an SDK says the same."""
    operands = []
    for value in node.inputs:
        content = None if value is None or value.const is None or value.const.size > SMALL else value.const.tobytes()
        operands.append(None if value is None else (value.type, content))
    return node.op, tuple(operands), tuple(v.type for v in node.outputs)
