"""Weights of few bits: how well they are rounded, what the graph and other engines make of them, and bad wishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.products.matmul_bits import FEW_ROWS, TOGETHER
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.pointwise import Add, Gelu, Relu
from bolt_numba.ops.registry import result_tuple
from bolt_numba.quantize import NarrowModel, weights_only
from bolt_numba.quantize.blocks import gptq, nearest
from bolt_numba.types import BF16, F16, F32, I8, I64, U8, Array, Sym, TensorType
from tests.harness import plans, run_planned
from tests.near import assert_near

RNG = np.random.default_rng(11)


def real(*dims: int) -> Array:
    return RNG.standard_normal(dims).astype(F32)


def perceptron() -> Graph:
    graph = Graph("perceptron")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 96)))
    b = Builder(graph)
    y = b(Gelu(), b(MatMul(), x, b.const(real(96, 160) / 10), b.const(real(160)), name="wide"))
    y = b(Relu(), b(MatMul(trans_b=True), y, b.const(real(130, 160) / 12), name="turned"))
    graph.add_output(b(MatMul(), y, b.const(real(130, 20) / 12)), "y")
    return graph


def sqnr(made: NarrowModel, graph: Graph, x: Array) -> float:
    wanted, got = (bn.compile(g)(x)[0] for g in (graph, made.graph))
    return float(10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum()))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "block", "least"), [(8, 32, 38.0), (8, None, 34.0), (4, 16, 15.0), (4, None, 10.0)])
def test_products_of_few_bits_are_near_and_run_elsewhere(
    bits: int, block: int | None, least: float, symmetric: bool, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    graph, x = perceptron(), real(5, 96)
    made = weights_only(graph, bits=bits, block=block, symmetric=symmetric)
    assert [w.shape for w in made.weights] == [(96, 160), (130, 160)]  # the last one is small
    assert sqnr(made, graph, x) > least
    (got,) = bn.compile(made.graph)(x)
    made.save(tmp_path / "made.onnx")
    made.save(tmp_path / "made.bolt")
    options = onnxruntime.SessionOptions()  # as it is: its own MatMulNBits rounds the activations to 8 bits
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(str(tmp_path / "made.onnx"), options)
    assert_near(got, peer.run(None, {"x": x})[0], 1e-5)
    np.testing.assert_array_equal(bn.compile(tmp_path / "made.bolt")(x)[0], got)
    assert "MatMulNBits" in {n.op.name for n in bn.compile(tmp_path / "made.onnx").optimised.nodes}
    assert "2 weights" in str(made)


@pytest.mark.parametrize("block", [16, None])
def test_tables_are_looked_up_in_bytes(block: int | None, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = Graph("words")
    words, b = graph.add_input("words", TensorType(I64, (Sym("n"), 3))), Builder(graph)
    table = b.const(real(200, 48))
    y = b(Add(), b(Gather(0), table, words), b(Gather(0), table, words))
    graph.add_output(b(MatMul(), y, b.const(real(48, 100) / 7)), "y")
    made = weights_only(graph, bits=8, block=block)
    assert [w.shape for w in made.weights] == [(48, 100), (200, 48)]
    given = RNG.integers(0, 200, (4, 3))
    session = bn.compile(made.graph)
    (got,) = session(given)
    assert_near(got, bn.compile(graph)(given)[0], 0.02)
    assert not any(a.dtype == F32 and a.size >= 200 * 48 for a in session.optimised.weights())
    made.save(tmp_path / "made.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(str(tmp_path / "made.onnx"), options)
    assert_near(got, peer.run(None, {"words": given})[0], 1e-5)
    assert len(weights_only(graph, bits=8, block=block, tables=False).weights) == 1


def test_each_method_is_better_than_the_one_before() -> None:
    """A searched range holds weights better; GPTQ gives better results of inputs whose elements go together."""
    mixing = real(24, 96)
    data, x = ((real(n, 24) @ mixing + 0.1 * real(n, 96)).astype(F32) for n in (200, 50))
    graph = perceptron()
    rtn, mse, best = (
        weights_only(graph, bits=4, block=None, method=method, data={"x": data}) for method in ("rtn", "mse", "gptq")
    )
    assert all(a.sqnr < b.sqnr for a, b in zip(rtn.weights, mse.weights, strict=True))
    assert sqnr(best, graph, x) > sqnr(mse, graph, x) + 1


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_of_independent_inputs_rounds_to_the_nearest(symmetric: bool) -> None:
    """There is nothing that another weight could make up for; searched scales are those of nearest numbers."""
    w = real(7, 64)
    made, plain = gptq(w, np.eye(64), 4, 16, symmetric), nearest(w, 4, 16, symmetric, search=True)
    np.testing.assert_allclose(made.real, plain.real, rtol=0, atol=1e-6)


def test_a_block_longer_than_a_column_is_the_column() -> None:
    w = real(3, 40)
    np.testing.assert_array_equal(nearest(w, 4, 1 << 60, True).real, nearest(w, 4, 40, True).real)


@pytest.mark.parametrize("rows", [1, TOGETHER, TOGETHER + 1, FEW_ROWS])
def test_long_sums_of_one_scale_keep_their_digits(rows: int) -> None:
    """A column of 16,384 numbers of one sign, and one scale for all."""
    graph, k = Graph("long"), 16384
    b = Builder(graph)
    w = b(DequantizeLinear(), b.const(np.full((k, 64), -128, I8)), np.array(1e-3, F32))
    graph.add_output(b(MatMul(), graph.add_input("x", TensorType(F32, (rows, k))), w), "y")
    session = bn.compile(graph, threads=1)
    np.testing.assert_allclose(session(np.full((rows, k), 0.255, F32))[0], -0.255 * 0.128 * k, rtol=2e-6)
    assert any(node["op"] == "MatMulNBits" for node in session.report())


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_columns_come_a_chunk_at_a_time(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is a step that writes some columns of the one result, in workspace where that is narrow."""
    monkeypatch.setattr("bolt_numba.kernels.cpu.products.matmul_bits.CHUNK_BYTES", 1)
    op, codes = MatMulNBits(4, 16), RNG.integers(0, 256, (150, 2, 8)).astype(U8)
    inputs = [real(2 * FEW_ROWS, 32).astype(dtype), codes, real(150, 2), None, real(150).astype(dtype)]
    (wanted,) = result_tuple(op.reference(*inputs))  # type: ignore[arg-type]
    found = plans(op, inputs)
    assert len(found) == 2, "sums of more terms at once where the level is not strict"
    for planned in found:
        assert sum(step.kernel.name == "sweep" for step in planned.steps) == 3
        (got,) = run_planned(planned, inputs)
        assert_near(got, wanted, {F32: 1e-5, F16: 1e-3, BF16: 8e-3}[dtype])


def test_zeros_and_dead_inputs() -> None:
    w, moments = np.zeros((3, 32), F32), np.zeros((32, 32))
    assert not nearest(w, 4, 16, True).real.any()
    assert np.isfinite(gptq(real(3, 32), moments, 8, 16, False).real).all()


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"bits": 3}, "bits: got 3, wanted 4 or 8"),
        ({"block": 24}, "block: got 24, wanted a multiple of 16"),
        ({"method": "awq"}, "method: got 'awq', wanted one of rtn, mse, gptq"),
        ({"method": "gptq"}, "method: got 'gptq' without data"),
        ({"keep": ["nowhere*"]}, "got pattern 'nowhere"),
        ({"keep": ["*"]}, "no product with at least"),
        ({"method": "gptq", "data": {"x": np.full((2, 96), np.nan, F32)}}, "NaN"),
        ({"method": "gptq", "data": {"x": np.full((2, 96), 1e30, F32)}}, "squares of tensor 'x': got NaN or infinity"),
    ],
)
def test_wishes_that_cannot_be(wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(BoltError, match=said):
        weights_only(perceptron(), **wishes)
