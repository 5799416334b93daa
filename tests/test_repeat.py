"""Nodes alike share a plan, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.conv import Conv
from bolt_numba.ops.matmul import MatMul
from bolt_numba.ops.pointwise import Clip, LeakyRelu, Pow
from bolt_numba.ops.reduce import ReduceSum
from bolt_numba.ops.shape import Slice
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.plan import Planner, region_of
from bolt_numba.runtime.repeat import number_operators
from bolt_numba.runtime.runner import Runner
from bolt_numba.types import F32, Array, TensorType

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


def precedents(graph: Graph) -> int:
    planner = Planner(region_of(graph), MakerContext(1, Packs()))
    planner.plan([v.type for v in graph.inputs])
    return len(planner.precedents)


def check(graph: Graph, within: float = 0.0) -> None:
    """within: of the largest value."""
    feeds = {v.name: weights(*v.type.dims) for v in graph.inputs}
    (got,) = Runner(region_of(graph), 1, Packs()).run(list(feeds.values()))
    wanted = interpret(graph, feeds)["y"]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=within * np.abs(wanted).max())


@pytest.mark.parametrize("width", [8, 80])
def test_layers_with_other_weights(width: int) -> None:
    graph = layers(MatMul(), [[weights(width, width), weights(width)] for _ in range(3)], 5, width)
    check(graph)
    assert precedents(graph) == (3 if width == 8 else 1)  # content counts where it is small


def test_convolutions_with_other_filters() -> None:
    graph = layers(
        Conv(layout="NHWC", pads=(1, 1, 1, 1)), [[weights(16, 16, 3, 3), weights(16)] for _ in range(2)], 1, 9, 9, 16
    )
    check(graph, within=2e-6)  # Winograd's transforms round


def test_small_constants_count() -> None:
    wide = layers(Slice(), [[np.array([i]), np.array([9 - i]), np.array([1])] for i in range(3)], 4, 9)
    assert precedents(wide) == 3
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
