"""Parts for devices: what is marked, what is joined, and that nothing else changes."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.converters import load
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.parts import dissolve
from bolt_numba.ir.spec import verify
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.ir.text import to_text
from bolt_numba.ops.foreign import Foreign
from bolt_numba.passes.partition.clusters import clusters
from bolt_numba.passes.partition.partition import Candidate, Partition
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.passes.rewrite import Rule, nested
from bolt_numba.types import F32, TensorType
from tests.graphs import feeds_of, graphs, make

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True, database=None)


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


# --- clusters --------------------------------------------------------------------------------------------------------


def check_clusters(reads: Sequence[Collection[int]], marked: Sequence[bool], found: Sequence[Sequence[int]]) -> None:
    """Each item once, unmarked ones alone, operands first (so there is no cycle), and nothing could be joined."""
    place = {item: k for k, group in enumerate(found) for item in group}
    assert sorted(place) == list(range(len(marked)))
    assert sum(map(len, found)) == len(marked)
    assert all(len(group) == 1 or all(marked[i] for i in group) for group in found)
    edges = {(place[a], place[b]) for b, operands in enumerate(reads) for a in operands if place[a] != place[b]}
    assert all(a < b for a, b in edges)
    after: list[set[int]] = [set() for _ in found]
    for a, b in edges:
        after[a].add(b)
    reach = [0] * len(found)
    for a in reversed(range(len(found))):
        for b in after[a]:
            reach[a] |= reach[b] | 1 << b
    for a, b in edges:
        if marked[found[a][0]] and marked[found[b][0]]:
            assert any(reach[between] >> b & 1 for between in after[a] if between != b)


def random_reads(rng: random.Random, count: int, span: int, most: int) -> list[set[int]]:
    each = (range(rng.randint(0, most) if i else 0) for i in range(count))
    return [{rng.randrange(max(0, i - span), i) for _ in times} for i, times in enumerate(each)]


def test_clusters_of_random_graphs_are_convex_and_as_large_as_they_may_be() -> None:
    for seed in range(600):
        rng = random.Random(seed)
        reads = random_reads(rng, rng.randrange(25), rng.choice([2, 5, 30]), 3)
        marked = [rng.random() < rng.choice([0.3, 0.6, 0.9]) for _ in reads]
        check_clusters(reads, marked, clusters(reads, marked))


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_five_thousand_nodes_take_less_than_a_second(share: float) -> None:
    rng = random.Random(1)
    reads = random_reads(rng, 5000, 5000, 3)
    marked = [rng.random() < share for _ in reads]
    start = time.process_time()
    found = clusters(reads, marked)
    assert time.process_time() - start < 1
    check_clusters(reads, marked, found)


def test_ten_operators_of_which_three_are_not_supported_give_two_parts() -> None:
    graph = chain("Abs", "Neg", "Abs", *("Neg",) * 6, "Abs")
    made, partition = parted(graph, Candidate("npu", Picky("Neg")))
    assert parts_of(made) == [["2"], ["4", "5", "6", "7", "8", "9"]]
    assert [row.part for row in partition.decisions] == ["", "npu.0", "", *["npu.1"] * 6, ""]
    assert partition.decisions[0].reasons == {"npu": "it knows no Abs"}
    same(graph, made)


def test_branches_meet_in_one_part_and_a_way_round_does_not() -> None:
    graph = Graph("branches")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (4,)))
    first = b(make("Neg"), x, name="first")
    left, right = b(make("Relu"), first, name="left"), b(make("Relu"), first, name="right")
    met = b(make("Add"), left, right, name="met")
    graph.add_output(b(make("Add"), met, b(make("Abs"), first, name="round"), name="last"), "y")
    made, _ = parted(graph, Candidate("npu", Picky("Neg", "Relu", "Add")))
    assert parts_of(made) == [["first", "left", "right", "met"], ["last"]]
    same(graph, made)


@EXAMPLES
@given(graph=graphs(), data=st.data())
def test_parts_of_random_graphs_compute_the_same(graph: Graph, data: st.DataObject) -> None:
    names = sorted({node.op.name for each in nested(graph) for node in each.nodes})
    one, two = (data.draw(st.lists(st.sampled_from(names), unique=True)) if names else [] for _ in range(2))
    targets = Candidate("a", Picky(*one), data.draw(st.integers(1, 3))), Candidate("b", Picky(*two))
    made, partition = parted(graph, *targets)
    same(graph, made)
    inside = [name for part in parts_of(made) for name in part]
    outside = [n.name for each in nested(made) for n in each.nodes if not isinstance(n.op, Foreign)]
    assert sorted([*inside, *outside]) == sorted(n.name for each in nested(graph) for n in each.nodes)
    assert all(bool(row.part) == bool(row.device) for row in partition.decisions)
    assert sorted(row.node for row in partition.decisions if row.part) == sorted(inside)
    stored = load_bolt(to_bytes(made))
    assert to_text(stored) == to_text(made)
    again = load_bolt(to_bytes(made))
    for each in nested(again):
        dissolve(each)
    assert sorted(to_text(again).splitlines()) == sorted(to_text(load_bolt(to_bytes(graph))).splitlines())
    same(graph, run_pipeline(graph, partition=Partition(targets), check=True))
    same(graph, run_pipeline(stored, check=True))
    same(graph, load(to_onnx(made).SerializeToString()))
