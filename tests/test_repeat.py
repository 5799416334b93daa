"""Nodes alike share a plan, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bolt_numba.devices import in_order
from bolt_numba.errors import InternalError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels import registry
from bolt_numba.kernels.registry import select
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Slice
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Clip, LeakyRelu, Pow
from bolt_numba.runtime import choices, tape
from bolt_numba.runtime.choices import number_operators
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.plan import Planner
from bolt_numba.runtime.region import region_of
from bolt_numba.runtime.runner import Runner
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.harness import served
from tests.near import assert_near

rng = np.random.default_rng(0)


def weights(*shape: int) -> Array:
    return rng.integers(-3, 4, shape).astype(F32)


def layers(op: Any, constants: list[list[Array]], *shape: int) -> Graph:
    """One node after another: ``op(x, *constants[i])``."""
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, shape))
    for given in constants:
        x = build(op, x, *given)
    graph.add_output(x, "y")
    return graph


def selections(graph: Graph) -> int:
    planner = Planner(region_of(graph), MakerContext(1, Packs(), in_order()))
    planner.plan([v.type for v in graph.inputs])
    return len(planner.region.choices)


def check(graph: Graph, tolerance: float = 0.0) -> None:
    feeds = {v.name: weights(*v.type.dims) for v in graph.inputs}
    (got,) = Runner(region_of(graph), 1, Packs(), in_order()).run(list(feeds.values()))
    assert_near(got, interpret(graph, feeds)["y"], tolerance)


@pytest.mark.parametrize("width", [8, 80])
def test_layers_with_other_weights(width: int) -> None:
    graph = layers(MatMul(), [[weights(width, width), weights(width)] for _ in range(3)], 5, width)
    check(graph)
    assert selections(graph) == (3 if width == 8 else 1)  # content counts where it is small


def test_convolutions_with_other_filters() -> None:
    graph = layers(
        Conv(layout="NHWC", pads=(1, 1, 1, 1)), [[weights(16, 16, 3, 3), weights(16)] for _ in range(2)], 1, 9, 9, 16
    )
    check(graph, 2e-5)  # Winograd where the processor likes it


def with_maker(monkeypatch: pytest.MonkeyPatch, look: Any) -> list[Any]:
    """Have the usual maker of products look at weights first; what was seen."""
    usual, seen = select(MatMul(), [TensorType(F32, (5, 80)), TensorType(F32, (80, 80))]), list[Any]()
    assert usual is not None

    def make(op: Any, ins: Any, outs: Any, context: Any) -> Any:
        seen.append(look(ins[1].known))
        return usual.make(op, ins, outs, context)

    monkeypatch.setitem(registry.KERNELS, (MatMul, "cpu"), [replace(usual, make=make, error=None)])
    return seen


LOOKS: dict[str, Any] = {
    "array": np.asarray, "sum": lambda w: w.sum(), "ufunc": np.abs, "function": np.concatenate,
    "element": lambda w: w[0],
    "compared": lambda w: w == 0, "scaled": lambda w: 2 * w, "bytes": lambda w: w.tobytes(), "rows": list, "true": bool,
    "strides": lambda w: w.strides,
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_a_maker_that_looks_at_weights_unasked_is_an_error(monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    """Its steps would serve nodes alike with other weights."""
    graph = layers(MatMul(), [[weights(80, 80)]], 5, 80)
    with_maker(monkeypatch, LOOKS[look])
    with pytest.raises(InternalError, match=r"content of constant operand 1: float32\[80, 80\]: got a look, wanted"):
        check(graph)


def test_a_maker_that_asks_for_content_serves_only_nodes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    w, other = weights(80, 80), weights(80, 80)
    graph = layers(MatMul(), [[w], [w], [other]], 5, 80)
    seen = with_maker(monkeypatch, lambda known: float(content(known).sum()))
    assert selections(graph) == 2 + (graph.nodes[0].operands[1] is not graph.nodes[1].operands[1])
    assert {w.sum(), other.sum()} == {*seen}
    check(graph)
    monkeypatch.undo()
    assert selections(graph) == 1


def test_small_constants_count() -> None:
    wide = layers(Slice(), [[np.array([i]), np.array([9 - i]), np.array([1])] for i in range(3)], 4, 9)
    assert selections(wide) == 3
    check(layers(Slice(), [[np.array([0]), np.array([8])], [np.array([1]), np.array([8])]], 9, 4))
    check(layers(Pow(), [[np.array(2.0, F32)], [np.array(1.0, F32)]], 4, 9))


def test_other_axes_count() -> None:
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (4, 4)))
    first = build(ReduceSum(keepdims=True), x, np.array([0]))
    second = build(ReduceSum(keepdims=True), x, np.array([1]))
    graph.add_output(build(MatMul(), second, first), "y")
    check(graph)


def test_equal_is_not_the_same() -> None:
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (4,)))
    nodes = [build.node(op, x) for op in (Clip(0.0, 6.0), Clip(-0.0, 6.0), Clip(0.0, 6.0), LeakyRelu(alpha=0.1))]
    numbers = number_operators(nodes)
    assert numbers[id(nodes[0].op)] == numbers[id(nodes[2].op)]
    assert id(nodes[1].op) not in numbers
    assert numbers[id(nodes[3].op)] != numbers[id(nodes[0].op)]


@pytest.mark.usefixtures("tapes_at_once")
def test_another_shape_plans_only_what_it_changes() -> None:
    graph = Graph()
    build = Builder(graph)
    kept = graph.add_input("kept", TensorType(F32, (8, 80)))
    changed = graph.add_input("changed", TensorType(F32, (Sym("n"), 80)))
    w = weights(80, 80)
    graph.add_output(build(MatMul(), kept, w), "y")
    graph.add_output(build(MatMul(), changed, w), "z")
    runner, ways = Runner(region_of(graph), 1, Packs(), in_order()), []
    for rows in (3, 4, 8, 3, 5, 6, 7):
        one, two = weights(8, 80), weights(rows, 80)
        y, z = runner.run([one, two])
        np.testing.assert_array_equal(y, one @ w)
        np.testing.assert_array_equal(z, two @ w)
        ways.append(len(runner.region.choices))
    assert ways == [2, 3, 3, 3, 4, 4, 4]  # one for each height, and none from the fourth plan on
    assert [len(tapes.tapes) for tapes in runner.tapes.values()] == [1]
    assert served(runner) == 2  # 6 and 7


def test_ways_to_plan_a_node_do_not_heap_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST_CHOICES", 2)
    monkeypatch.setattr(tape, "MOST_TAPES", 0)
    runner = products()
    for rows in range(1, 6):
        runner.run([weights(rows, 80)])
        assert len(runner.region.choices) <= 2
    assert not any(tapes.tapes for tapes in runner.tapes.values())


@pytest.mark.usefixtures("tapes_at_once")
def test_tapes_do_not_heap_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sizes come for which none holds."""
    monkeypatch.setattr(tape, "FIRST", 0)
    monkeypatch.setattr(tape, "NEXT", 0)
    monkeypatch.setattr(tape.Tapes, "at", lambda self, arrays: None)  # nothing holds
    monkeypatch.setattr(tape.Tape, "run", lambda self, *args: None)
    monkeypatch.setattr(tape, "MOST_TAPES", 3)
    runner = products()
    for rows in range(1, 9):
        runner.run([weights(rows, 80)])
    (tapes,) = runner.tapes.values()
    assert len(tapes.tapes) == tapes.tries == 3
    assert tapes.misses == 8


def products() -> Runner:
    """A runner of a product of any number of rows."""
    graph = Graph()
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 80)))
    graph.add_output(Builder(graph)(MatMul(), x, weights(80, 80)), "y")
    return Runner(region_of(graph), 1, Packs(), in_order())
