"""Graphs of f16 and bf16 compute in f32: no conversions between nodes, the same types outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceMax, Softmax
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.control import If
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Greater, Mul, Relu
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import BF16, BOOL, F16, F32, I64, AnyDType, Array, TensorType

RNG = np.random.default_rng(3)
HALVES = (F16, BF16)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def operators(graph: Graph) -> list[str]:
    return [node.op.name for node in run_pipeline(graph, until="canonical", check=True).nodes]


def network(half: AnyDType) -> Graph:
    """Convolution, residual, product and softmax of one dtype."""
    graph = Graph("halves")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(half, (1, 8, 6, 6)))
    y = b(Relu(), b(Conv(pads=(1, 1, 1, 1)), x, (real(8, 8, 3, 3) / 9).astype(half), real(8).astype(half)))
    y = b(Reshape(), b(Add(), y, x), np.array([1, -1]))
    y = b(MatMul(), y, (real(288, 20) / 17).astype(half))
    graph.add_output(b(Softmax(axis=-1), y), "y")
    return graph


@pytest.mark.parametrize("half", HALVES)
def test_no_conversions_between_nodes(half: AnyDType) -> None:
    graph, x = network(half), real(1, 8, 6, 6).astype(half)
    assert operators(graph).count("Cast") == 2
    session = bn.compile(graph)
    (got,) = session(x)
    assert got.dtype == half
    runners = [row["runner"] for row in session.report()]
    assert not any("(f32)" in runner for runner in runners)
    assert ("matmul_f16" if half == F16 else "matmul_bf16") in runners
    wide = network_in_f32(graph)
    wanted = bn.compile(wide)(x.astype(F32))[0]
    assert np.abs(got.astype(F32) - wanted).max() < (2e-3 if half == F16 else 2e-2)
    np.testing.assert_array_equal(bn.compile(graph, threads=2)(x)[0], got)


def network_in_f32(graph: Graph) -> Graph:
    """The same graph with all values in f32."""
    made = Graph("wide")
    b, twin = Builder(made), {}
    for v in graph.inputs:
        twin[v] = made.add_input(v.name, TensorType(F32, v.type.shape))
    for node in graph.nodes:
        ins: list[Any] = []
        for v in node.inputs:
            assert v is not None
            ins.append(twin[v] if v.const is None else v.const.astype(F32) if v.type.dtype in HALVES else v.const)
        twin[node.output] = b(node.op, *ins)
    made.add_output(twin[graph.outputs[0]], "y")
    return made


@pytest.mark.parametrize("half", HALVES)
def test_strict_sessions_round_where_the_model_does(half: AnyDType) -> None:
    graph, x = Graph("strict"), np.array([[1, 300, 0.001, -7]]).astype(half)
    b = Builder(graph)
    v = graph.add_input("x", TensorType(half, (1, 4)))
    third = b(Mul(), v, np.array(1 / 3).astype(half))
    graph.add_output(b(Mul(), b(Add(), third, third), np.array(3).astype(half)), "y")
    (wanted,) = interpret(graph, {"x": x}).values()
    np.testing.assert_array_equal(bn.compile(graph, numerics="strict")(x)[0], wanted)


def test_what_overflows_between_does_not_outside() -> None:
    graph = Graph("overflow")
    b = Builder(graph)
    v = graph.add_input("x", TensorType(F16, (3,)))
    big = b(Mul(), v, np.float16(1000))
    graph.add_output(b(Mul(), big, np.float16(0.001)), "y")
    graph.add_output(big, "big")
    x = np.array([1, 100, 6e-8], np.float16)  # the last one is subnormal
    y, big_result = bn.compile(graph)(x)
    np.testing.assert_allclose(y.astype(F32), [1, 100, 6e-8], rtol=2e-3, atol=6e-8)
    assert y[2] > 0
    np.testing.assert_array_equal(big_result, np.array([1000, np.inf, np.float32(x[2]) * 1000], np.float16))
    assert np.isinf(bn.compile(graph, numerics="strict")(x)[0][1])


def test_rounding_on_purpose_stays() -> None:
    graph = Graph("rounds")
    b = Builder(graph)
    v = graph.add_input("x", TensorType(F32, (2, 50)))
    moved = b(Reshape(), b(Cast(F16), v), np.array([100]))
    graph.add_output(b(Mul(), b(Cast(F32), moved), np.float32(3)), "y")
    x = real(2, 50)
    np.testing.assert_array_equal(bn.compile(graph)(x)[0], x.astype(F16).astype(F32).reshape(-1) * np.float32(3))


def test_tables_stay_narrow_and_casts_of_f32_fall_away() -> None:
    graph = Graph("table")
    b = Builder(graph)
    index = graph.add_input("i", TensorType(I64, (5,)))
    v = graph.add_input("x", TensorType(F32, (5, 16)))
    rows = b(Gather(), real(1000, 16).astype(F16), index)
    made = b(Add(), rows, b(Cast(F16), v))
    graph.add_output(b(Cast(F32), made), "y")
    optimised = run_pipeline(graph, check=True)
    table = next(v for v in optimised.constants() if v.type.shape == (1000, 16))
    assert table.type.dtype == F16
    assert operators(graph) == ["Gather", "Cast", "Add"]
    x, i = real(5, 16), np.array([3, 999, 0, 4, 4])
    assert table.const is not None
    np.testing.assert_array_equal(bn.compile(graph)(i=i, x=x)[0], table.const[i].astype(F32) + x)


def test_bodies_of_control_flow() -> None:
    def body(scale: float) -> Graph:
        made = Graph("body")
        b = Builder(made)
        v = made.add_input("x", TensorType(F16, (4,)))
        made.add_output(b(Add(), b(Mul(), v, np.float16(scale)), np.float16(1)), "y")
        return made

    graph = Graph("if")
    b = Builder(graph)
    v = graph.add_input("x", TensorType(F16, (4,)))
    flag = b(Greater(), b(ReduceMax(keepdims=0), v), np.float16(2))
    assert flag.type.dtype == BOOL
    made = b(If(then_branch=body(2), else_branch=body(3)), flag, v)
    graph.add_output(b(Mul(), made, np.float16(2)), "y")
    session = bn.compile(graph)
    for x in (np.array([1, 0, 1, 2], F16), np.array([1, 0, 1, 4], F16)):
        wanted = 2 * ((2 if x.max() > 2 else 3) * x.astype(F32) + 1)
        np.testing.assert_array_equal(session(x)[0], wanted.astype(F16))
    run_pipeline(graph, check=True)


@pytest.mark.parametrize("half", HALVES)
def test_intermediate_values_keep_name_and_type(half: AnyDType) -> None:
    graph, x = network(half), real(1, 8, 6, 6).astype(half)
    names = [node.output.name for node in graph.nodes]
    found = bn.compile(graph).run(names, {"x": x})
    for name, value, node in zip(names, found, graph.nodes, strict=True):
        assert value.dtype == half, name
        assert value.shape == node.output.type.dims
    assert bn.verify(graph, "reference", precision="f16" if half == F16 else "bf16").ok
