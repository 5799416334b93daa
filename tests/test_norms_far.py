"""Norms of rows that lie far from zero, or are long: against f64 and beside onnxruntime, kernels and references.

Each element's error is counted in the unit of what adds up to it: the scale times one deviation and the distance
from the mean, and the bias.  The largest is at most four times onnxruntime's, and at most `LIMIT`, which theirs is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.norm import GroupNormalization, InstanceNormalization, LayerNormalization
from bolt_numba.types import F32, Array, Sym, TensorType

UNIT = 2.0**-24
NEAR, LIMIT = 8 * UNIT, 32 * UNIT
EPSILON = 1e-5
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "LayerNormalization": [(16, 384), (3, 77), (4, 5), (3, 1), (2, 50_001)],
    "SkipLayerNormalization": [(2, 8, 384), (1, 3, 77)],
    "InstanceNormalization": [(2, 3, 17, 19), (1, 2, 200, 210), (2, 20, 5)],
    "GroupNormalization": [(2, 6, 7, 9), (1, 4, 150, 150)],
}
CASES = [(kind, shape) for kind, shapes in SHAPES.items() for shape in shapes]
FAR = [(0.0, 1.0), (1e4, 1e-2), (1e4, 1.0), (1e6, 1.0), (1e6, 0.1), (-3e7, 40.0), (1e-3, 1e-6), (1e18, 1e13)]


def expected(kind: str, x: Array, scale: Array, bias: Array) -> tuple[Array, Array]:
    """The norm of x in f64, and the unit of each element's error."""
    axes, groups, by = tuple(range(2, x.ndim)), x, (-1,) + (1,) * (x.ndim - 2)
    if kind.endswith("LayerNormalization"):
        axes, by = (-1,), (-1,)
    elif kind == "GroupNormalization":
        axes, groups = (2,), x.reshape(x.shape[0], 2, -1)
    groups = groups.astype(np.float64)
    groups = groups - groups.mean(axes, keepdims=True)
    groups = groups - groups.mean(axes, keepdims=True)
    y = (groups / np.sqrt((groups * groups).mean(axes, keepdims=True) + EPSILON)).reshape(x.shape)
    factor, shift = scale.astype(np.float64).reshape(by), bias.astype(np.float64).reshape(by)
    return y * factor + shift, np.abs(factor) * (1 + np.abs(y)) + np.abs(shift)


def operands(kind: str, shape: tuple[int, ...], mean: float, deviation: float) -> dict[str, Array]:
    rng = np.random.default_rng(len(shape) + shape[-1])
    channels = shape[-1] if kind.endswith("LayerNormalization") else shape[1]
    x = (mean + deviation * rng.standard_normal(shape)).astype(F32)
    skip = {"skip": (deviation * rng.standard_normal(shape)).astype(F32)} if kind.startswith("Skip") else {}
    scale, bias = rng.uniform(0.5, 2, channels).astype(F32), rng.standard_normal(channels).astype(F32)
    return {"x": x, **skip, "scale": scale, "bias": bias}


def as_onnx(kind: str, feeds: dict[str, Array]) -> bytes:
    attributes = {"num_groups": 2} if kind == "GroupNormalization" else {}
    domain = "com.microsoft" if kind.startswith("Skip") else ""
    node = helper.make_node(kind, list(feeds), ["y"], domain=domain, epsilon=EPSILON, **attributes)
    ins = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ins, [out]), opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def largest(got: Array, wanted: Array, unit: Array) -> float:
    error = np.abs(got - wanted) / unit
    return float(error.max()) if np.isfinite(got).all() else np.inf


@pytest.mark.parametrize(("mean", "deviation"), FAR)
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_rows_far_from_zero(kind: str, shape: tuple[int, ...], mean: float, deviation: float) -> None:
    feeds = operands(kind, shape, mean, deviation)
    content = as_onnx(kind, feeds)
    x = feeds["x"] + feeds["skip"] if "skip" in feeds else feeds["x"]
    truth = expected(kind, x, feeds["scale"], feeds["bias"])
    other = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    limit = min(4 * max(largest(other, *truth), NEAR), LIMIT)
    assert largest(bn.compile(bn.load(content), threads=1)(**feeds)[0], *truth) <= limit
    assert largest(interpret(bn.load(content), feeds)["y"], *truth) <= limit


def run(op: Any, *given: Array) -> tuple[Array, ...]:
    graph = Graph("one")
    build = Builder(graph)
    ins = [graph.add_input(f"x{i}", TensorType(a.dtype, a.shape)) for i, a in enumerate(given)]
    made: Any = build(op, *ins)
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        graph.add_output(value, f"y{i}")
    return tuple(bn.compile(graph, threads=1)(*given))


@pytest.mark.parametrize(("mean", "deviation"), FAR)
@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("shape", [(2, 6, 7, 9), (1, 4, 150, 150), (1, 40, 3, 3)])
def test_channels_last(shape: tuple[int, ...], groups: int, mean: float, deviation: float) -> None:
    kind = "GroupNormalization" if groups else "InstanceNormalization"
    x, scale, bias = operands(kind, shape, mean, deviation).values()
    truth = expected(kind, x, scale, bias)
    op: Any = GroupNormalization(2, EPSILON, "NHWC") if groups else InstanceNormalization(EPSILON, "NHWC")
    got = run(op, np.moveaxis(x, 1, -1).copy(), scale, bias)[0]
    assert largest(np.moveaxis(got, -1, 1), *truth) <= LIMIT


@pytest.mark.parametrize("n", [5, 64, 384, 5000])
def test_statistics(n: int) -> None:
    x = operands("LayerNormalization", (3, n), 1e6, 1.0)["x"]
    ones, wide = np.ones(n, F32), x.astype(np.float64)
    _, mean, inverse = run(LayerNormalization(stats=True), x, ones)
    np.testing.assert_allclose(mean, wide.mean(-1, keepdims=True), rtol=2**-24)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(wide.var(-1, keepdims=True) + EPSILON), rtol=2e-6)


@pytest.mark.parametrize("n", [33, 64, 384, 5000])
@pytest.mark.parametrize("far", [1e4, 1e8, -1e8])
def test_rows_whose_sample_is_far_from_the_rest(far: float, n: int) -> None:
    """The kernel centres rows on four vectors of their own; here the first of them is another than the rest."""
    x, scale, bias = operands("LayerNormalization", (2, n), 3.0, 1.0).values()
    x[:, : min(16, n // 4)] = far
    x[1] = np.where(np.arange(n) == n - 1, 7.0, far)
    got = run(LayerNormalization(epsilon=EPSILON), x, scale, bias)[0]
    assert largest(got, *expected("LayerNormalization", x, scale, bias)) <= LIMIT


@pytest.mark.parametrize("n", [7, 384, 5000])
def test_rows_without_a_deviation(n: int) -> None:
    x = np.array([[0.1], [1e6], [-1e30], [1e-30]], F32).repeat(n, 1)
    scale, bias = np.full(n, 2, F32), np.linspace(-1, 1, n, dtype=F32)
    got = run(LayerNormalization(epsilon=EPSILON), x, scale, bias)[0]
    np.testing.assert_allclose(got, np.broadcast_to(bias, x.shape), atol=1e-5)


def test_a_deviation_beyond_the_range_leaves_the_bias() -> None:
    """As the reference: 1 / sqrt(infinity) is 0."""
    x, scale, bias = operands("LayerNormalization", (3, 384), 1e30, 1e25).values()
    got = run(LayerNormalization(epsilon=EPSILON), x, scale, bias)[0]
    np.testing.assert_array_equal(got, np.broadcast_to(bias, x.shape))


@pytest.mark.parametrize("n", [4, 7, 384])
def test_a_huge_number_in_a_row_leaves_the_bias(n: int) -> None:
    """The deviation is infinite, whatever a sum of the row would be."""
    x, bias = np.ones((1, n), F32), np.linspace(-1, 1, n, dtype=F32)
    x[0, 0] = 3e38
    np.testing.assert_array_equal(run(LayerNormalization(), x, np.ones(n, F32), bias)[0], bias[None])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [0, "n"])
def test_norms_of_no_elements_are_nan_without_a_warning(size: int | str) -> None:
    """Fixed and open sizes alike."""
    graph = Graph("empty")
    build, width = Builder(graph), Sym(size) if isinstance(size, str) else size
    x, scale = (graph.add_input(name, TensorType(F32, (*rows, width))) for name, rows in (("x", (2,)), ("s", ())))
    for name, value in zip("ymi", build(LayerNormalization(stats=True), x, scale), strict=True):
        graph.add_output(value, name)
    given = {"x": np.ones((2, 0), F32), "s": np.ones(0, F32)}
    for found in (bn.compile(graph, threads=1)(given), interpret(graph, given)):
        assert found["y"].shape == (2, 0)
        assert np.isnan([found["m"], found["i"]]).all()
