"""A node by itself, as an SDK is asked for it: what it lacks it says, and is asked once for each kind of node."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.types import TensorType
from bolt_numba.ir.graph import Graph, Node, Value

MOST_CONSTANT = 1024
"""Elements up to which a constant is one when an SDK is asked for a node; larger ones are operands then."""


def alone(node: Node) -> Graph:
    """A graph of one node; large constants are inputs."""
    graph = Graph("node")
    operands: list[Value | None] = []
    given: dict[Value, Value] = {}
    for value in node.inputs:
        if value is None or (value.const is not None and value.const.size <= MOST_CONSTANT):
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


def kind_of(node: Node, by_rank: bool = False) -> Any:
    """What two nodes have in common of which an SDK says the same.

    by_rank: it does not look at sizes, but for those that only the run tells, and those that are 0.
    """
    decide = node.op.value_inputs
    operands = [None if v is None else _operand(v, i in decide, by_rank) for i, v in enumerate(node.inputs)]
    return node.op, tuple(operands), tuple(_type(v.type, by_rank) for v in node.outputs)


def _operand(value: Value, decides: bool, by_rank: bool) -> Any:
    """The type, and of a small constant that it is one; its content, unless it is only computed with."""
    if value.const is None:
        return _type(value.type, by_rank)
    only_computed = not decides and value.const.dtype.kind == "f"
    if value.const.size > MOST_CONSTANT and not (by_rank and only_computed):
        return _type(value.type, by_rank)
    return _type(value.type, by_rank), b"constant" if only_computed else value.const.tobytes()


def _type(t: TensorType, by_rank: bool) -> Any:
    if not by_rank or t.shape is None:
        return t
    return t.dtype, len(t.shape), t.is_static, 0 in t.shape
