"""What tests of partition share: a device that takes the operators that it is told of, and graphs in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.ops.foreign import Foreign
from bolt_numba.passes.partition.partition import Candidate, Partition
from bolt_numba.passes.rewrite import Rule, nested
from bolt_numba.types import F32, TensorType
from tests.graphs import feeds_of, make


class Picky:
    """A device that takes the operators that it is told of."""

    def __init__(self, *names: str, lowerings: Sequence[Rule] = (), seconds: float = 0.0, copy: float = 0.0) -> None:
        self.names, self.lowerings, self.each, self.copy = names, lowerings, seconds, copy

    def supports(self, node: Node) -> bool | str:
        return node.op.name in self.names or f"it knows no {node.op.name}"

    def seconds(self, node: Node) -> float | None:
        return self.each

    def copy_seconds(self, nbytes: int) -> float:
        return self.copy


def parted(graph: Graph, *targets: Candidate, **options: Any) -> tuple[Graph, Partition]:
    """A copy of the graph, partitioned and checked."""
    made, partition = load_bolt(to_bytes(graph)), Partition(targets, **options)
    partition(made)
    verify(made)
    return made, partition


def parts_of(graph: Graph) -> list[list[str]]:
    """Names of the nodes of each part."""
    found = [node.op for each in nested(graph) for node in each.nodes]
    return [[n.name for n in op.graph.nodes] for op in found if isinstance(op, Foreign)]


def chain(*names: str) -> Graph:
    """Operators of one operand, one after the other, called 1, 2, ..."""
    graph = Graph("chain")
    build, x = Builder(graph), graph.add_input("x", TensorType(F32, (2, 3)))
    for i, name in enumerate(names, start=1):
        x = build(make(name), x, name=str(i))
    graph.add_output(x, "y")
    return graph


def same(before: Graph, after: Graph) -> None:
    feeds = feeds_of(before)
    wanted, got = interpret(before, feeds), interpret(after, feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)
