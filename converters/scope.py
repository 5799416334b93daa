"""Names of a source file to values of a graph: what a node may read, what a subgraph captures, names bound again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bolt_numba.ir.graph import Graph, Value


class Scope:
    """Names that nodes may read; ``captured`` holds what a subgraph reads from outside, which becomes its inputs.

    outer: the scope around a subgraph.  shares_graph: the nodes become part of the graph around them, so that nothing
    is captured.  prefix: of the names that values get.  depth: how many subgraphs and functions are around the nodes.
    """

    def __init__(
        self, graph: Graph, *, outer: Scope | None = None, prefix: str = "", depth: int = 0, shares_graph: bool = False
    ) -> None:
        self.graph, self.outer, self.prefix, self.depth, self.shares_graph = graph, outer, prefix, depth, shares_graph
        self.values: dict[str, Value | None] = {}
        self.captured: dict[int, tuple[Value, Value]] = {}

    def find(self, name: str) -> Value | None:
        """The value of a name; raises KeyError.  What an outer scope defines is captured, a constant is copied."""
        if name in self.values or self.outer is None:
            return self.values[name]
        found = self.outer.find(name)
        if found is not None and not self.shares_graph:
            if found.const is not None:
                found = Value(self.graph.unique_name(name), found.type, const=found.const)
            else:
                found = self.capture(found, name)
        self.values[name] = found
        return found

    def capture(self, value: Value, name: str) -> Value:
        """What stands for a value of an outer scope in this graph."""
        if id(value) not in self.captured:
            self.captured[id(value)] = (value, Value(self.graph.unique_name(name), value.type))
        return self.captured[id(value)][1]

    def reserve(self, names: Iterable[str]) -> None:
        """Keep the names that nodes give to their results, before the first node: no derived name may take one."""
        for name in dict.fromkeys(names):
            if name and name not in self.values:
                self.graph.unique_name(name)

    def name_for(self, name: str) -> str:
        """What to call the value that ``name`` is bound to next.

        A format whose nodes write in place binds a name again.  The last value has it in the graph, as it has in the
        original's memory; an older one gives it up, unless it is an input.
        """
        if self.prefix:
            return self.graph.unique_name(self.prefix + name)
        older = self.values.get(name)
        if older is not None and older.name == name:
            other = self.graph.unique_name(name)
            if older in self.graph.inputs:
                return other
            older.name = other
            if older.node is not None and older.index == 0:
                older.node.name = other
        return name


def take_captures(scopes: Sequence[Scope]) -> list[Value]:
    """Give the graphs of all scopes all that any of them captures, as inputs in one order; returns what is captured."""
    captures = {i: pair[0] for scope in scopes for i, pair in scope.captured.items()}
    for scope in scopes:
        scope.graph.inputs += [scope.capture(value, value.name) for value in captures.values()]
    return list(captures.values())
