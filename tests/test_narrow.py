"""Values of bfloat16 between products: kernels against those of f32, the pass that makes them, who else meets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.converters.onnx.writing.write import save_onnx
from bolt_numba.errors import DTypeError
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.cpu.halves.bf16 import conv_bf16, matmul_bf16
from bolt_numba.kernels.cpu.products.sweep import MR
from bolt_numba.kernels.registry import KERNELS, always, load
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Clip, Gelu, LeakyRelu, Relu
from bolt_numba.surgery import packed
from bolt_numba.types import BF16, F16, F32, F64, Array, Sym, TensorType
from tests.harness import run_kernel

RNG = np.random.default_rng(8)
load("cpu")
ENTRIES = {
    kind: replace(next(e for e in KERNELS[kind, "cpu"] if e.name == maker.__name__), accepts=always)
    for kind, maker in ((Conv, conv_bf16), (MatMul, matmul_bf16))
}
ACTIVATIONS = st.sampled_from([None, Relu(), Clip(-1.0, 2.0), LeakyRelu(0.5)])


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def check(op: Any, inputs: list[Array | None], narrow: tuple[bool, bool, bool]) -> None:
    """The bits of f32 that hold the same numbers, rounded at the end.  narrow: operand, residual and result."""
    dtypes = [BF16 if n else F32 for n in narrow]
    given = list(inputs)
    for i, dtype in zip((0, 3), dtypes[:2], strict=True):
        if i < len(given) and given[i] is not None:
            given[i] = given[i].astype(dtype)  # type: ignore[union-attr]
    constant = [False, True, True, False][: len(given)]
    plain = [None if x is None else x.astype(F32) for x in given]
    (wanted,) = run_kernel(ENTRIES[type(op)], plain, (1,), constant=constant, instance=op)
    (got,) = run_kernel(ENTRIES[type(op)], given, (1, 2), constant=constant, instance=replace(op, to=dtypes[2]))
    assert got.dtype == dtypes[2]
    np.testing.assert_array_equal(got, wanted.astype(dtypes[2]))


NARROW = st.tuples(st.booleans(), st.booleans(), st.booleans())


@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(1, 3 * MR + 1), n=st.integers(16, 100), k=st.one_of(st.integers(8, 130), st.just(1100)),
    bias=st.booleans(), residual=st.booleans(), activation=ACTIVATIONS, narrow=NARROW,
)  # fmt: skip
def test_matmul(m: int, n: int, k: int, bias: bool, residual: bool, activation: Any, narrow: Any) -> None:
    op = MatMul(activation=activation, residual=residual)
    inputs = [real(m, k), real(k, n), real(n) if bias else None, *([real(m, n)] if residual else [])]
    check(op, inputs if bias or residual else inputs[:2], narrow)


@settings(deadline=None, max_examples=40)
@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)), c=st.integers(1, 70), k=st.integers(16, 70),
    taps=st.sampled_from([1, 3]), stride=st.integers(1, 2), residual=st.booleans(), activation=ACTIVATIONS,
    narrow=NARROW,
)  # fmt: skip
def test_conv(
    size: tuple[int, int], c: int, k: int, taps: int, stride: int, residual: bool, activation: Any, narrow: Any
) -> None:
    if c * taps < 8:
        return
    how: dict[str, Any] = {"strides": (stride, stride), "pads": (taps // 2,) * 4, "layout": "NHWC"}
    inputs: list[Array | None] = [real(2, *size, c), real(k, c, taps, taps), real(k)]
    if residual:
        inputs.append(real(*Conv(**how).reference(*inputs).shape))  # type: ignore[arg-type]
    check(Conv(**how, residual=residual, activation=activation), inputs, narrow)


def test_types_of_products_with_narrow_operands() -> None:
    a, b = TensorType(BF16, (4, 32)), TensorType(F32, (32, 16))
    assert infer_types(MatMul(to=F32), [a, b]) == (TensorType(F32, (4, 16)),)
    assert infer_types(MatMul(to=F16), [a, b]) == (TensorType(F16, (4, 16)),)
    for op, ins in (
        (MatMul(), [a, b]),
        (MatMul(to=F64), [a, b]),
        (MatMul(to=BF16), [a, TensorType(BF16, (32, 16))]),
        (MatMul(to=BF16), [TensorType(F64, (4, 32)), b]),
        (MatMul(to=BF16), [a, b, TensorType(BF16, (16,))]),
        (MatMul(to=BF16, residual=True), [a, b, None, TensorType(F64, (4, 16))]),
    ):
        with pytest.raises(DTypeError):
            infer_types(op, ins)


def network() -> Graph:
    """Two bottlenecks as those of ResNet and two layers of a transformer's kind."""
    rng, graph = np.random.default_rng(0), Graph("narrow")
    b = Builder(graph)

    def layer(value: Any, count: int, taps: int = 1) -> Any:
        depth = value.type.shape[1]
        w = rng.standard_normal((count, depth, taps, taps), np.float32) * np.float32((2 / (taps**2 * depth)) ** 0.5)
        return b(Conv(pads=(taps // 2,) * 4), value, w, rng.standard_normal(count, np.float32))

    value = b(Relu(), layer(graph.add_input("x", TensorType(F32, (1, 32, 14, 14))), 128))
    for _ in range(2):
        inner = b(Relu(), layer(b(Relu(), layer(value, 32)), 32, 3))
        value = b(Relu(), b(Add(), layer(inner, 128), value))
    value = b(ReduceMean(keepdims=False), value, np.array([2, 3]))
    for k, n in ((128, 64), (64, 48), (48, 10)):
        value = b(Gelu(), b(MatMul(), value, rng.standard_normal((k, n), np.float32) / 8))
    graph.add_output(value, "y")
    return graph


def dtypes(graph: Graph) -> list[str]:
    """Operator and dtype of each product."""
    return [f"{n.op.name} {n.output.type.dtype.name}" for n in graph.nodes if isinstance(n.op, (Conv, MatMul))]


def test_sessions_narrow_what_products_alone_read(tmp_path: Path) -> None:
    x, graph = np.random.default_rng(1).standard_normal((1, 32, 14, 14), np.float32), network()
    plain, session = bn.compile(graph), bn.compile(graph, precision="bf16", threads=1)
    wide, narrow = "Conv float32", "Conv bfloat16"
    # What the 3x3 layers and the mean read stays, and so does the result.
    assert dtypes(session.optimised) == [
        narrow, wide, wide, narrow, wide, wide, wide, "MatMul bfloat16", "MatMul float32", "MatMul float32",
    ]  # fmt: skip
    wanted, got = plain(x)[0], session(x)[0]
    assert 1e-6 < np.abs(got - wanted).max() / np.abs(wanted).max() < 1e-2
    np.testing.assert_array_equal(bn.compile(graph, precision="bf16", threads=2)(x)[0], got)
    assert set(dtypes(bn.compile(graph, precision="bf16", numerics="strict").optimised)) == {wide, "MatMul float32"}
    assert set(dtypes(plain.optimised)) == {wide, "MatMul float32"}
    bn.save(packed(graph, precision="bf16"), tmp_path / "ready.bolt")
    np.testing.assert_array_equal(bn.compile(tmp_path / "ready.bolt", precision="bf16")(x)[0], got)
    np.testing.assert_allclose(bn.compile(tmp_path / "ready.bolt")(x)[0], wanted, rtol=1e-4, atol=1e-5)


def test_what_others_read_as_a_bias_or_an_output_stays() -> None:
    graph = Graph("bias")
    b = Builder(graph)
    line, rows = graph.add_input("line", TensorType(F32, (64,))), graph.add_input("rows", TensorType(F32, (5, 64)))
    made = b(MatMul(), rows, real(64, 64))
    graph.add_output(made, "made")
    bias = b(MatMul(), line, real(64, 48))
    graph.add_output(b(MatMul(), made, real(64, 48), bias), "y")
    session = bn.compile(graph, precision="bf16", threads=1)
    assert dtypes(session.optimised) == ["MatMul float32"] * 3
    given = real(64), real(5, 64)
    for got, wanted in zip(session(*given), bn.compile(graph)(*given), strict=True):
        assert got.dtype == F32
        assert np.abs(got - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_narrow_graphs_run_and_are_written_like_others(tmp_path: Path) -> None:
    """Interpreted, by kernels of f32 between conversions, and from files of both formats."""
    x = np.random.default_rng(1).standard_normal((1, 32, 14, 14), np.float32)
    graph = bn.compile(network(), precision="bf16").optimised
    (wanted,) = interpret(graph, {"x": x}).values()
    largest = np.abs(wanted).max()
    bn.save(graph, tmp_path / "narrow.bolt")
    save_onnx(graph, tmp_path / "narrow.onnx")
    for name in ("narrow.bolt", "narrow.onnx"):
        got = bn.compile(tmp_path / name)(x)[0]
        assert np.abs(got - wanted).max() < 1e-2 * largest
    strict = bn.compile(graph, numerics="strict")
    assert np.abs(strict(x)[0] - wanted).max() < 1e-5 * largest
    assert any("(f32)" in row["runner"] for row in strict.report())


def test_new_shapes() -> None:
    """From the fifth shape on, tapes serve: the bits of sessions that know no other shape."""
    graph = Graph("shapes")
    b = Builder(graph)
    rng, value = np.random.default_rng(3), graph.add_input("x", TensorType(F32, (Sym("n"), Sym("h"), 20, 32)))
    for k in (48, 40, 64):
        w = rng.standard_normal((k, value.type.shape[-1], 1, 1), np.float32) / 8
        value = b(Relu(), b(Conv(layout="NHWC"), value, w))
    value = b(MatMul(), b(Gelu(), b(MatMul(), value, rng.standard_normal((64, 80), np.float32) / 8)), real(80, 24))
    graph.add_output(value, "y")
    session = bn.compile(graph, precision="bf16")
    assert dtypes(session.optimised).count("Conv bfloat16") == 3
    assert dtypes(session.optimised).count("MatMul bfloat16") == 1
    for n, h in ((1, 3), (2, 5), (1, 7), (3, 1), (1, 4), (2, 2), (1, 9), (4, 3)):
        x = real(n, h, 20, 32)
        np.testing.assert_array_equal(session(x)[0], bn.compile(graph, precision="bf16")(x)[0])
