"""Sessions on devices that compute on halves have values of f16 or bf16 throughout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.control import If
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Greater, Mul, Relu
from bolt_numba.passes.pipeline import STAGES, run_pipeline
from bolt_numba.passes.quantised.all_halves import narrow_all, narrow_for
from bolt_numba.passes.trace import Trace
from bolt_numba.types import BF16, BOOL, F16, F32, I64, U8, AnyDType, Array, TensorType

RNG = np.random.default_rng(5)
HALVES = (F16, BF16)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def network(dtype: AnyDType = F32) -> Graph:
    """Convolution, residual, product and softmax."""
    graph = Graph("halves")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(dtype, (1, 8, 6, 6)))
    y = b(Relu(), b(Conv(pads=(1, 1, 1, 1)), x, (real(8, 8, 3, 3) / 9).astype(dtype), real(8).astype(dtype)))
    y = b(Reshape(), b(Add(), y, x), np.array([1, -1]))
    y = b(MatMul(), y, (real(288, 20) / 17).astype(dtype))
    graph.add_output(b(Softmax(axis=-1), y), "y")
    return graph


def dtypes(graph: Graph) -> list[Any]:
    """Of what nodes make, but for casts."""
    return [v.type.dtype for n in graph.nodes if not isinstance(n.op, Cast) for v in n.outputs]


@pytest.mark.parametrize("half", HALVES)
def test_all_values_are_halves_and_the_outside_is_not(half: AnyDType) -> None:
    graph = run_pipeline(network())
    x = real(1, 8, 6, 6)
    wanted = interpret(graph, {"x": x})["y"]
    narrow_all(graph, half)
    verify(graph)
    assert set(dtypes(graph)) == {half}
    assert [n.op.name for n in graph.nodes].count("Cast") == 2
    assert all(v.const is None or v.const.dtype != F32 for v in graph.constants())
    got = interpret(graph, {"x": x})["y"]
    assert got.dtype == F32
    assert np.abs(got - wanted).max() < (5e-3 if half == F16 else 4e-2)


def test_a_model_of_halves_stays_one() -> None:
    graph = run_pipeline(network(F16))
    assert F32 in dtypes(graph), "the pipeline computes in f32"
    narrow_for(graph, "f32", "default", halves=True)
    verify(graph)
    assert set(dtypes(graph)) == {F16}
    assert all(v.const is None or v.const.dtype != F32 for v in graph.constants())
    assert not any(isinstance(n.op, Cast) for n in graph.nodes), "inputs and outputs are halves, too"


@pytest.mark.parametrize("half", HALVES)
def test_narrowing_is_the_last_stage(half: AnyDType) -> None:
    """What it makes obeys the spec, and it is in the trace; sessions whose stages lack it keep f32."""
    trace, how = Trace(), {"precision": "f16" if half == F16 else "bf16", "halves": True}
    made = run_pipeline(network(), check=True, trace=trace, **how)
    assert half in dtypes(made)
    assert [name for name, _, _ in trace.stages] == [stage.name for stage in STAGES]
    assert trace.stages[-1][0] == "precision"
    assert half not in dtypes(run_pipeline(network(), until="fuse", check=True, **how))
    assert half not in dtypes(run_pipeline(network(), stages=STAGES[:-1], **how))


@pytest.mark.parametrize(("numerics", "halves"), [("default", False), ("strict", True)])
def test_strict_sessions_and_devices_that_compute_in_f32_keep_their_values(numerics: str, halves: bool) -> None:
    graph = run_pipeline(network())
    before = dtypes(graph)
    narrow_for(graph, "f16", numerics, halves)
    assert dtypes(graph) == before


def test_quantised_numbers_and_large_constants_stay() -> None:
    graph = Graph("mixed")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (4, 4)))
    large = b(Add(), x, np.full((4, 4), 1e6, F32))
    codes = b(QuantizeLinear(), b(Mul(), x, x), np.float32(0.1), np.uint8(3))
    back = b(DequantizeLinear(), codes, np.float32(0.1), np.uint8(3))
    graph.add_output(b(Concat(axis=0), b(Relu(), large), b(Relu(), back)), "y")
    data = real(4, 4)
    wanted = interpret(graph, {"x": data})["y"]
    narrow_all(graph, F16)
    verify(graph)
    kinds = {n.op.name: n.output.type.dtype for n in graph.nodes}
    assert kinds["Add"] == F32, "a constant of 1e6 is no f16"
    assert kinds["QuantizeLinear"] == U8
    assert kinds["DequantizeLinear"] == F32
    assert kinds["Mul"] == F16
    got = interpret(graph, {"x": data})["y"]
    np.testing.assert_allclose(got[4:], wanted[4:], atol=0.11)


def test_bodies_have_borders_of_their_own() -> None:
    def branch(factor: float) -> Graph:
        body = Graph("branch")
        x = body.add_input("x", TensorType(F32, (3,)))
        body.add_output(Builder(body)(Mul(), x, np.float32(factor)), "y")
        return body

    graph = Graph("branches")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (3,)))
    flag = graph.add_input("flag", TensorType(BOOL, ()))
    y = b(If(branch(2.0), branch(3.0)), flag, b(Relu(), x))
    graph.add_output(b(Greater(), y, np.float32(1)), "big")
    graph.add_output(y, "y")
    narrow_all(graph, F16)
    verify(graph)
    for flag_value, factor in ((True, 2), (False, 3)):
        made = interpret(graph, {"x": np.array([1, -1, 0.25], F32), "flag": np.array(flag_value)})
        np.testing.assert_array_equal(made["y"], np.array([factor, 0, factor / 4], F32))
        np.testing.assert_array_equal(made["big"], [True, False, False])


def test_operands_whose_content_decides_a_shape_stay() -> None:
    graph = Graph("shapes")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (2, 6)))
    graph.add_output(b(Reshape(), b(Relu(), x), np.array([3, -1])), "y")
    narrow_all(graph, BF16)
    verify(graph)
    assert [v.const.dtype for v in graph.constants() if v.const is not None] == [I64]
