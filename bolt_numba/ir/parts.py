"""Parts of a graph as one node each, `Foreign`, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bolt_numba.ir.build import infer_types, merged_type
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.foreign import Foreign


def enclose(graph: Graph, groups: Sequence[tuple[str, Sequence[Node]]], names: Sequence[str]) -> list[Node]:
    """Order the nodes of a graph by groups, and replace each group that has a device by one node.

    groups: a device ("" for none) and its nodes, in an order in which operands come first; no path may leave a group
    with a device and come back.  names: wanted for the new nodes, which are returned, in order.
    """
    nodes: list[Node] = []
    made: list[Node] = []
    for device, members in groups:
        if device:
            made.append(_enclosed(graph, device, members, names[len(made)]))
        nodes += made[-1:] if device else members
    graph.nodes = nodes
    return made


def _enclosed(graph: Graph, device: str, members: Sequence[Node], name: str) -> Node:
    inner = Graph(name)
    own = {id(v): v for node in members for v in node.outputs}
    twin: dict[int, Value] = {}
    operands: list[Value] = []
    constants: list[Value] = []

    def inside(value: Value | None) -> Value | None:
        if value is None:
            return None
        if id(value) not in twin and value.const is not None:
            constants.append(value)
            twin[id(value)] = Value(inner.unique_name(value.name), value.type, const=value.const)
        elif id(value) not in twin:
            operands.append(value)
            twin[id(value)] = inner.add_input(value.name, value.type)
        return twin[id(value)]

    for node in members:
        made = Node(node.op, [inside(v) for v in node.operands], [v.type for v in node.outputs], node.name)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            new.name = inner.unique_name(old.name)
            twin[id(old)] = new
        inner.nodes.append(made)
    for node in members:
        node.detach()
    returned = set(map(id, graph.outputs))
    results = [v for v in own.values() if v.uses or id(v) in returned]
    inside_only = [v for v in own.values() if not v.uses and id(v) not in returned]
    inside_only += [v for v in constants if not v.uses and id(v) not in returned]
    graph.release_names([v.name for v in inside_only])
    for value in results:
        inner.add_output(twin[id(value)], value.name)
    stands = Node(Foreign(inner, device), operands, [v.type for v in results], graph.unique_name(name))
    for old, new in zip(results, stands.outputs, strict=True):
        new.name = old.name
        graph.replace_uses(old, new)
    return stands


def dissolve(graph: Graph, kept: Collection[str] = ()) -> int:
    """Replace nodes that stand for parts by what is in them, but for those of devices ``kept``; returns how many."""
    count = 0
    nodes: list[Node] = []
    shared = {(v.name, id(v.const)): v for v in graph.constants()} if any(map(_is_part, graph.nodes)) else {}
    todo = graph.nodes[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node.op, Foreign) and node.op.device not in kept:
            todo += reversed(_dissolved(graph, node, shared))
            count += 1
        else:
            nodes.append(node)
    graph.nodes = nodes
    return count


def _is_part(node: Node) -> bool:
    return isinstance(node.op, Foreign)


def _dissolved(graph: Graph, stands: Node, shared: dict[tuple[str, int], Value]) -> list[Node]:
    """The nodes of a part, which read what the part read; all that read its results read theirs."""
    assert isinstance(stands.op, Foreign)
    inner = stands.op.graph
    twin: dict[int, Value | None] = dict(zip(map(id, inner.inputs), stands.operands, strict=True))
    nodes: list[Node] = []

    def outside(value: Value | None) -> Value | None:
        if value is None:
            return None
        if id(value) not in twin and value.const is not None:
            key = value.name, id(value.const)
            if key not in shared:
                shared[key] = Value(graph.unique_name(value.name), value.type, const=value.const)
            twin[id(value)] = shared[key]
        return twin[id(value)]

    graph.release_names([stands.name, *(v.name for v in stands.outputs)])
    named = {id(inside): out.name for inside, out in zip(inner.outputs, stands.outputs, strict=True)}
    for node in inner.nodes:
        operands = [outside(v) for v in node.operands]
        found = infer_types(node.op, [None if v is None else v.type for v in operands])
        types = [merged_type(v.type, t) or t for v, t in zip(node.outputs, found, strict=True)]
        made = Node(node.op, operands, types, node.name)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            new.name = graph.unique_name(named.get(id(old), old.name))
            twin[id(old)] = new
        nodes.append(made)
    for old, inside in zip(stands.outputs, inner.outputs, strict=True):
        new_value = outside(inside)
        assert new_value is not None
        new_value.type = merged_type(old.type, new_value.type) or new_value.type
        graph.replace_uses(old, new_value)
    stands.detach()
    return nodes
