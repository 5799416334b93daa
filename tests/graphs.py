"""Random small graphs for tests of whatever reads, writes or runs graphs: symbols, subgraphs, fused operators."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bolt_numba import ops
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.registry import OPS
from bolt_numba.types import BOOL, F32, I64, Array, Sym, TensorType

ops.load_all()


def make(name: str, **attributes: Any) -> Any:
    """An operator by its registry name."""
    maker: Any = OPS[name]
    return maker(**attributes)


def integers(rng: np.random.Generator, *shape: int) -> Array:
    """Small whole numbers as f32: every sum of them is exact."""
    return rng.integers(-4, 5, shape).astype(F32)


UNARY = ("Relu", "Neg", "Abs", "Floor", "Sign", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A valid graph over f32 values of shape [n, 4], with one or two outputs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graph = Graph(draw(st.sampled_from(["g", "a graph", "Größe"])))
    graph.metadata["made"] = draw(st.text(max_size=20))
    build = Builder(graph)
    values = [graph.add_input(f"x{i}", TensorType(F32, (Sym("n"), 4))) for i in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 8))):
        values.append(draw(results(build, values, rng)))
    graph.add_output(values[-1], draw(st.sampled_from([None, "y"])))
    if draw(st.booleans()):
        graph.add_output(draw(st.sampled_from(values)), "second")
    graph.drop_dead()
    return graph


@st.composite
def results(draw: st.DrawFn, build: Builder, values: list[Value], rng: np.random.Generator) -> Value:
    """One more value of shape [n, 4], made by a node (or a few) of a kind drawn at random."""
    x = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(["unary", "binary", "constant", "matmul", "clip", "transpose", "concat", "cast", "if"]))
    if kind == "unary":
        return build(make(draw(st.sampled_from(UNARY))), x)
    if kind == "binary":
        return build(make(draw(st.sampled_from(BINARY))), x, draw(st.sampled_from(values)))
    if kind == "constant":
        return build(make("Add"), integers(rng, 4), x)
    if kind == "matmul":
        activation = draw(st.sampled_from([None, make("Relu"), make("Clip", lo=-1.0, hi=None)]))
        return build(make("MatMul", activation=activation), x, integers(rng, 4, 4), integers(rng, 4))
    if kind == "clip":
        return build(make("Clip", lo=draw(st.sampled_from([None, -2.0, float("-inf")])), hi=3.5), x)
    if kind == "transpose":
        turned = build(make("Transpose", perm=(1, 0)), x)
        return build(make("Transpose", perm=(1, 0)), turned, name="turned back")
    if kind == "concat":
        halves = build(make("Split", axis=1, num_outputs=2), x, np.array([1, 3], I64))
        return build(make("Concat", axis=1), *halves[::-1])
    if kind == "cast":
        return build(make("Cast", to=F32), build(make("Cast", to=I64), x))
    return choice(build, x, draw(st.booleans()))


def choice(build: Builder, x: Value, condition: bool) -> Value:
    """An If over ``x`` as its only capture."""
    branches = []
    for name in ("Neg", "Relu"):
        branch = Graph(name)
        inside = branch.add_input("captured", x.type.with_value(None))
        branch.add_output(Builder(branch)(make(name), inside), "result")
        branches.append(branch)
    made: Value = build(make("If", then_branch=branches[0], else_branch=branches[1]), np.array(condition, BOOL), x)
    return made


def feeds_of(graph: Graph, seed: int = 0, n: int = 3) -> dict[str, Array]:
    """Whole numbers for every input, with ``n`` for each symbol."""
    rng = np.random.default_rng(seed)
    return {
        v.name: integers(rng, *(d if isinstance(d, int) else n for d in v.type.shape or ())).astype(v.type.dtype)
        for v in graph.inputs
    }


def toposort(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in an order where operands come first, otherwise as given; raises ValueError for a cycle."""
    given = list(nodes)
    member = {id(n) for n in given}
    waiting = {
        id(n): sum(1 for v in n.inputs if v is not None and v.node is not None and id(v.node) in member) for n in given
    }
    readers: dict[int, list[Node]] = {}
    for n in given:
        for v in n.inputs:
            if v is not None and v.node is not None and id(v.node) in member:
                readers.setdefault(id(v.node), []).append(n)
    order = {id(n): i for i, n in enumerate(given)}
    ready = [(order[id(n)], n) for n in given if not waiting[id(n)]]
    heapq.heapify(ready)
    done: list[Node] = []
    while ready:
        _, n = heapq.heappop(ready)
        done.append(n)
        for reader in readers.get(id(n), ()):
            waiting[id(reader)] -= 1
            if not waiting[id(reader)]:
                heapq.heappush(ready, (order[id(reader)], reader))
    if len(done) != len(given):
        raise ValueError("the graph has a cycle")
    return done
