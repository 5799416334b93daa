"""Dynamic quantisation and weights of few bits: what the passes make of the forms that files have, and the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, I8, U8, AnyDType, Array, Sym, TensorType
from tests.near import assert_near
from tests.unsaturated import unsaturated

RNG = np.random.default_rng(5)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


class File:
    """An ONNX file of nodes in the words of onnxruntime's dynamic quantiser."""

    def __init__(self, *dims: int) -> None:
        self.nodes: list[Any] = []
        self.held: list[Any] = []
        self.dims = dims

    def const(self, array: Array) -> str:
        self.held.append(numpy_helper.from_array(array, f"c{len(self.held)}"))
        return str(self.held[-1].name)

    def __call__(self, op: str, *operands: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [v if isinstance(v, str) else self.const(np.asarray(v)) for v in operands]
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, domain=domain, **attributes))
        return made[0] if outputs == 1 else made

    def scaled(self, sums: str, scale: str, weights: Any) -> Any:
        return self("Mul", self("Cast", sums, to=1), self("Mul", scale, weights))

    def model(self, *outputs: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", 1, self.dims)
        shown = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", [x], shown, self.held)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def weights(*dims: int, dtype: AnyDType = I8) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, dims).astype(dtype)


def scales(*dims: int) -> Array:
    return RNG.uniform(0.001, 0.01, dims).astype(F32)


def real(*dims: int) -> Array:
    return RNG.standard_normal(dims).astype(F32)


def projections(b: File) -> list[Any]:
    """Three products of one input, and one of their sum with a residual."""
    y, scale, zero = b("DynamicQuantizeLinear", "x", outputs=3)
    made = []
    for dtype, point in ((I8, np.zeros(40, I8)), (U8, np.array(131, U8)), (I8, np.array(3, I8))):
        sums = b("MatMulInteger", y, weights(24, 40, dtype=dtype), zero, point)
        made.append(b("Add", b.scaled(sums, scale, scales(*point.shape)), real(40)))
    y, scale, zero = b("DynamicQuantizeLinear", b("Relu", made[0]), outputs=3)
    last = b("Add", b.scaled(b("MatMulInteger", y, weights(40, 24), zero), scale, scales(1)), "x")
    return [*made[1:], last]


def convolutions(b: File) -> list[Any]:
    y, scale, zero = b("DynamicQuantizeLinear", "x", outputs=3)
    sums = b("ConvInteger", y, weights(8, 6, 3, 3), zero, np.array(0, I8), pads=[1, 1, 1, 1])
    made = b("Add", b.scaled(sums, scale, scales(1)), b("Reshape", real(8), np.array([1, -1, 1, 1])))
    y, scale, zero = b("DynamicQuantizeLinear", b("Relu", made), outputs=3)
    sums = b("ConvInteger", y, weights(8, 1, 3, 3, dtype=U8), zero, np.array(7, U8), group=8)
    return [b.scaled(sums, scale, scales())]


def compounds(b: File) -> list[Any]:
    y, scale, zero = b("DynamicQuantizeLinear", "x", outputs=3)
    one = b("MatMulIntegerToFloat", y, weights(24, 40), scale, scales(40), zero, np.zeros(40, I8), real(40),
            domain="com.microsoft")  # fmt: skip
    return [one, b("DynamicQuantizeMatMul", "x", weights(24, 16), scales(), np.array(-5, I8), domain="com.microsoft")]


@pytest.mark.parametrize(
    ("build", "dims", "wanted"),
    [
        (projections, (2, 7, 24), {"DynamicQuantizeLinear": 2, "QLinearMatMul": 4}),
        (convolutions, (2, 6, 9, 9), {"DynamicQuantizeLinear": 2, "QLinearConv": 2, "Transpose": 2}),
        (compounds, (5, 24), {"DynamicQuantizeLinear": 1, "QLinearMatMul": 2}),
    ],
)
def test_dynamic_quantisation_is_products_alone(
    build: Callable[[File], list[Any]], dims: tuple[int, ...], wanted: dict[str, int]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    b = File(*dims)
    model = b.model(*build(b))
    graph = read_model(model)
    session = bn.compile(graph, threads=2)
    assert kinds(session.optimised) == wanted
    x = {"x": real(*dims)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    oracle = onnxruntime.InferenceSession(unsaturated(model).SerializeToString(), options).run(None, x)
    for got, plain, peer in zip(session(x), interpret(graph, x).values(), oracle, strict=True):
        assert_near(got, plain, 1e-6)
        assert_near(got, peer, 1e-6)
    runners = [row["runner"] for row in session.report()]
    assert len(runners) == sum(wanted.values())
    assert "reference" not in runners


def test_a_row_of_rows_keeps_its_sums() -> None:
    """Where the factor is wider than the sums, or varies along rows, the product of integers stays."""
    b = File(3, 24)
    y, scale, zero = b("DynamicQuantizeLinear", "x", outputs=3)
    wide = b.scaled(b("MatMulInteger", y, weights(24, 5), zero), scale, scales(2, 3, 5))
    rows = b.scaled(b("MatMulInteger", y, weights(24, 5), zero), scale, scales(3, 1))
    graph = read_model(b.model(wide, rows))
    assert kinds(run_pipeline(graph))["MatMulInteger"] == 2
    x = {"x": real(3, 24)}
    for got, plain in zip(bn.compile(graph)(x), interpret(graph, x).values(), strict=True):
        assert_near(got, plain, 1e-6)


# ---- weights of few bits


def stored(bits: int, signed: bool, n: int, k: int) -> Array:
    if bits == 8:
        return weights(k, n, dtype=I8 if signed else U8)
    dtype: Any = ml_dtypes.int4 if signed else ml_dtypes.uint4
    return (RNG.integers(0, 16, (k, n)) - 8 * signed).astype(np.int8).astype(dtype)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("per", ["tensor", "column", "block"])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 70])
def test_weights_stay_as_they_are(bits: int, signed: bool, per: str, rows: int) -> None:
    k, n = 144, 130
    w = stored(bits, signed, n, k)
    dims = {"tensor": (), "column": (n,), "block": (9, n)}[per]
    zero = None if signed and rows == 2 else (RNG.integers(3, 8, dims) - 4 * signed).astype(np.int8).astype(w.dtype)
    numbers, op = scales(*dims), DequantizeLinear(axis=0 if per == "block" else 1, block_size=16 * (per == "block"))
    swapped = rows == 5
    if swapped:
        w, numbers = np.ascontiguousarray(w.T), np.ascontiguousarray(numbers.T)
        zero = None if zero is None else np.ascontiguousarray(zero.T)
        op = DequantizeLinear(axis=1 - op.axis, block_size=op.block_size)
    graph = Graph("weights")
    x = graph.add_input("x", TensorType(F32, (1, rows, k)))
    b = Builder(graph)
    held = [b.const(a) for a in (w, numbers, zero) if a is not None]
    y = b(MatMul(trans_b=swapped), x, b(op, *held))
    graph.add_output(b(Add(), y, real(n)), "y")
    session = bn.compile(graph)
    assert kinds(session.optimised) == {"MatMulNBits": 1}
    given = real(1, rows, k)
    assert_near(session(given)[0], interpret(graph, {"x": given})["y"], 1e-5)
    assert [row["runner"] for row in session.report()] == ["matmul_bits"]


def test_weights_become_floats_where_floats_are_faster() -> None:
    """Few weights, scales within K, and products of as many rows as floats are best at."""
    for dims, op, count in (
        ((4, 64), DequantizeLinear(axis=1), 64),
        ((4, 256), DequantizeLinear(axis=0), 256),
        ((30, 256), DequantizeLinear(axis=1), 256),
    ):
        graph = Graph("floats")
        x = graph.add_input("x", TensorType(F32, dims))
        b, n = Builder(graph), dims[1]
        graph.add_output(b(MatMul(), x, b(op, b.const(weights(n, n)), b.const(scales(count)))), "y")
        assert kinds(run_pipeline(graph)) == {"MatMul": 1}
        given = real(*dims)
        assert_near(bn.compile(graph)(given)[0], interpret(graph, {"x": given})["y"], 1e-5)


def test_unknown_rows_and_moved_weights() -> None:
    graph = Graph("moved")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 128)))
    b = Builder(graph)
    w = b(Transpose((1, 0)), b(DequantizeLinear(axis=0), b.const(weights(200, 128)), b.const(scales(200))))
    graph.add_output(b(MatMul(), x, w), "y")
    session = bn.compile(graph)
    assert kinds(session.optimised) == {"MatMulNBits": 1}
    for rows in (1, 9, 100):
        given = real(rows, 128)
        assert_near(session(given)[0], interpret(graph, {"x": given})["y"], 1e-5)
