"""Nodes that compute shapes: they go along with a part whose values they look at, which else would fall into two.

    part 1 -> Shape -> Gather -> Concat -> part 2, which reads part 1, too  ->  one part with Shape, Gather and Concat

When a part is compiled for fixed shapes, what they compute is a constant.  Nodes that others need as well are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.passes.partition.marking import Taker, refusal


class ShapeNodes:
    """Nodes of a graph that compute with shapes.

    roots: by ``id`` of what they compute, by ``id`` the values of other nodes whose dimensions that follows from.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.roots: dict[int, set[int]] = {}
        self._asked: dict[tuple[int, int], bool] = {}
        for node in nodes:
            if all(v.type.value is not None for v in node.outputs):
                read = [id(v) for v in node.operands if v is not None and not v.is_const]
                roots = {root for v in read for root in self.roots.get(v, {v})}
                self.roots.update((id(v), roots) for v in node.outputs)

    def reads(self, node: Node, device: Taker) -> Iterator[int]:
        """By ``id``, what a node reads if shapes are computed in its part."""
        for v in node.operands:
            if v is not None:
                yield from self.roots[id(v)] if self._may_go(v, device) else (id(v),)

    def _may_go(self, value: Value, device: Taker) -> bool:
        """Whether what computes a value, if it is a shape, may be in a part of a device."""
        if id(value) not in self.roots:
            return False
        if device.shapes == "fixed":
            return True
        assert value.node is not None
        key = id(value.node), id(device)
        if key not in self._asked:
            before = [v for v in value.node.operands if v is not None and id(v) in self.roots]
            self._asked[key] = not refusal(value.node, device) and all(self._may_go(v, device) for v in before)
        return self._asked[key]

    def along(
        self, graph: Graph, part: Sequence[Node], device: Taker, order: Mapping[Node, int]
    ) -> list[tuple[Node, Node]]:
        """Have a part read copies of what computes shapes from its own values, or that itself if nobody else reads it.

        order: of all nodes.  Gives pairs of a node, and what is to stand in the part: it, or its copy.
        """
        inside, made = set(part), []
        returned = set(map(id, graph.outputs))
        for node in sorted(self._looking_at(part, device), key=order.__getitem__, reverse=True):
            goes = node
            readers = {reader for v in node.outputs for reader in v.uses.times}
            if not readers <= inside or any(id(v) in returned for v in node.outputs):
                goes = Node(node.op, node.operands, [v.type for v in node.outputs], graph.unique_name(node.name))
                for old, new in zip(node.outputs, goes.outputs, strict=True):
                    new.name = goes.name if new.index == 0 else graph.unique_name(new.name)
                    for reader in inside & old.uses.times.keys():
                        reader.replace_input(old, new, old.uses.times[reader])
            inside.add(goes)
            made.append((node, goes))
        return made

    def _looking_at(self, part: Sequence[Node], device: Taker) -> set[Node]:
        """What computes shapes from values of a part, for it."""
        own = {id(v) for node in part for v in node.outputs}
        found: set[Node] = set()
        todo = list(part)
        while todo:
            for v in todo.pop().operands:
                if v is not None and self._may_go(v, device) and self.roots[id(v)] & own:
                    assert v.node is not None
                    if v.node not in found:
                        found.add(v.node)
                        todo.append(v.node)
        return found
