"""Float operators between conversions run on bytes, and give the QDQ form's results up to one level."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, ShapeError
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.layers.norm import BatchNormalization
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul, sums_fit
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Clip, HardSwish, LeakyRelu, Relu, Sigmoid
from bolt_numba.ops.registry import Op
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, I8, I16, I32, U8, U16, AnyDType, Array, Sym, TensorType, type_of
from tests.lower_isa import IS_LOWER

Rng = np.random.Generator
SEEDS = range(4 if IS_LOWER else 12)
ACTIVATIONS: tuple[Op | None, ...] = (
    *(None, Relu(), Clip(0.0, 6.0), Clip(-1.0, 2.0)),
    *(LeakyRelu(0.1), HardSwish(), Sigmoid()),
)


def any_bytes(rng: Rng, dtype: AnyDType, *dims: int) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, dims).astype(dtype)


def zero_point(rng: Rng, dtype: AnyDType) -> Array | None:
    """Any, the middle, or none."""
    info = np.iinfo(dtype)
    found = (any_bytes(rng, dtype), np.array((info.min + info.max + 1) // 2, dtype), None)
    return found[rng.integers(3)]


def number(rng: Rng, low: float = 0.005, high: float = 0.1) -> Array:
    return np.array(rng.uniform(low, high), F32)


class Layers:
    """A graph of layers as quantisers write them: every operator between conversions."""

    def __init__(self, seed: int, **inputs: tuple[Any, ...]) -> None:
        self.rng, self.graph = np.random.default_rng(seed), Graph("layers")
        self.b = Builder(self.graph)
        self.inputs = []
        for name, (dtype, *dims) in inputs.items():
            shape = tuple(Sym(d) if isinstance(d, str) else d for d in dims)
            self.inputs.append(self.graph.add_input(name, TensorType(dtype, shape)))

    def real(self, x: Any, scale: Array, zero: Any = None, axis: int = 1) -> Value:
        return self.b(DequantizeLinear(axis), x, scale, zero)  # type: ignore[no-any-return]

    def any_real(self, x: Value) -> tuple[Value, Array]:
        """The value dequantised by a scale of its own, and that."""
        scale = number(self.rng)
        return self.real(x, scale, zero_point(self.rng, x.type.dtype)), scale

    def stored(self, x: Value, scale: Any, dtype: AnyDType, zero: Array | None = None) -> Value:
        zero = np.zeros((), dtype) if zero is None else zero
        return self.b(QuantizeLinear(), x, np.asarray(scale, F32), zero)  # type: ignore[no-any-return]

    def weight(self, dims: tuple[int, ...], axis: int, dtype: AnyDType = I8) -> tuple[Value, Array]:
        """Constant weights with a scale for all, or one for each index of the axis."""
        scale = self.rng.uniform(0.002, 0.02, dims[axis] if self.rng.random() < 0.7 else ()).astype(F32)
        zero = np.zeros(scale.shape, dtype) if dtype == I8 else any_bytes(self.rng, dtype, *scale.shape)
        return self.real(any_bytes(self.rng, dtype, *dims), scale, zero, axis), scale

    def bias(self, count: int, unit: Array) -> Value | Array | None:
        """None, in f32, or in i32 with the unit of the sums."""
        real = self.rng.normal(0, 1, count).astype(F32)
        kind = self.rng.integers(3)
        if kind == 2:
            units = np.broadcast_to(unit, (count,)).copy()
            return self.real(np.rint(real / units).astype(I32), units, axis=0)
        return real if kind else None

    def result(self, y: Value, depth: int) -> None:
        """Quantised by a scale that makes use of the bytes, or as it is."""
        kind = (U8, I8, None)[self.rng.integers(3)]
        if kind is not None:
            y = self.stored(y, 0.02 * math.sqrt(depth), kind, any_bytes(self.rng, kind))
        self.graph.add_output(y, "y")


def operators(graph: Graph) -> list[str]:
    return [n.op.name for n in run_pipeline(graph, check=True).nodes]


def data_for(graph: Graph, seed: int = 0, **sizes: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made = {}
    for v in graph.inputs:
        dims = [sizes[str(d)] if isinstance(d, Sym) else d for d in v.type.shape or ()]
        is_float = v.type.dtype == F32
        made[v.name] = rng.normal(0, 1, dims).astype(F32) if is_float else any_bytes(rng, v.type.dtype, *dims)
    return made


def same_levels(graph: Graph, data: dict[str, Array], levels: int = 1) -> None:
    """A session gives the references' results up to ``levels``, or nearly in f32, and the same for 1 and 2 threads."""
    wanted = interpret(graph, data)
    results = [bn.compile(graph, threads=n)(**data) for n in (1, 2)]
    for name, w in wanted.items():
        one, two = (r[name] for r in results)
        assert one.dtype == w.dtype
        assert one.tobytes() == two.tobytes()
        if w.dtype == F32:
            np.testing.assert_allclose(one, w, rtol=0, atol=2e-5 * max(1, float(np.abs(w).max(initial=0))))
        else:
            apart = np.abs(one.astype(int) - w.astype(int))
            assert apart.max(initial=0) <= levels
            assert (apart > 0).mean() <= 0.02 if apart.size else True


# ---------------------------------------------------------------------------------------------------- one operator


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Conv]] = {
    "dense": ((2, 20, 9, 8), (7, 20, 3, 3), Conv(pads=(1, 1, 1, 1))),
    "pointwise": ((1, 40, 5, 6), (33, 40, 1, 1), Conv()),
    "image": ((1, 3, 17, 15), (9, 3, 3, 3), Conv((2, 2), (1, 1, 1, 1))),
    "grouped": ((1, 16, 7, 7), (24, 4, 3, 3), Conv(pads=(0, 1, 1, 0), dilations=(2, 1), group=4)),
    "depthwise": ((1, 35, 9, 9), (35, 1, 5, 5), Conv((2, 1), (2, 2, 2, 2), group=35)),
    "signal": ((2, 6, 30), (5, 6, 4), Conv(pads=(3, 0), auto_pad="NOTSET")),
    "volume": ((1, 4, 5, 4, 6), (3, 4, 2, 2, 2), Conv(auto_pad="SAME_UPPER")),
}


def convolution(kind: str, seed: int) -> Graph:
    dims, filters, op = CONVOLUTIONS[kind]
    net = Layers(seed, x=((U8, I8)[seed % 2], *dims))
    x, x_scale = net.any_real(net.inputs[0])
    w, w_scale = net.weight(filters, 0, (I8, I8, U8)[seed % 3])
    y = net.b(op, x, w, net.bias(filters[0], x_scale * w_scale))
    if seed % 4 == 1:
        r = net.graph.add_input("r", TensorType(I8, y.type.shape))
        y = net.b(Add(), *(y, net.any_real(r)[0])[:: 1 - 2 * (seed // 4 % 2)])
    activation = ACTIVATIONS[seed % len(ACTIVATIONS)]
    y = y if activation is None else net.b(activation, y)
    net.result(y, math.prod(filters[1:]) // (10 if isinstance(activation, Clip | Sigmoid) else 1))
    return net.graph


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(kind: str, seed: int) -> None:
    graph = convolution(kind, seed)
    made = [name for name in operators(graph) if name not in ("Transpose", "Reshape")]
    assert made == ["QLinearConv"]
    same_levels(graph, data_for(graph, seed))


SPREAD: dict[str, tuple[tuple[int, ...], tuple[int, ...], ConvTranspose]] = {
    "twice": ((1, 12, 5, 6), (12, 7, 2, 2), ConvTranspose((2, 2))),
    "overlapping": ((2, 8, 4, 5), (8, 5, 4, 4), ConvTranspose((2, 2), (1, 1, 1, 1))),
    "uneven": ((1, 6, 4, 3), (6, 5, 3, 5), ConvTranspose((2, 3), (1, 0, 0, 2), output_padding=(1, 2))),
    "grouped": ((1, 8, 5, 4), (8, 3, 3, 3), ConvTranspose((2, 2), (0, 1, 1, 1), group=4)),
    "no stride": ((1, 4, 5, 4), (4, 6, 3, 2), ConvTranspose((), (1, 0, 1, 1))),
    "signal": ((2, 5, 9), (5, 4, 7), ConvTranspose((4,), (1, 2), output_padding=(3,))),
    "volume": ((1, 4, 3, 2, 3), (4, 3, 2, 3, 1), ConvTranspose((1, 2, 2))),
}


def transposed_convolution(kind: str, seed: int) -> Graph:
    dims, filters, op = SPREAD[kind]
    net = Layers(seed, x=((U8, I8)[seed % 2], *dims))
    x, x_scale = net.any_real(net.inputs[0])
    w, w_scale = net.weight(filters, 1, (I8, I8, U8)[seed % 3])
    count = filters[1] * op.group
    y = net.b(op, x, w, net.bias(count, x_scale * (w_scale if w_scale.size == 1 else np.tile(w_scale, op.group))))
    activation = ACTIVATIONS[seed % len(ACTIVATIONS)]
    y = y if activation is None else net.b(activation, y)
    net.result(y, filters[0] * 2)
    return net.graph


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", SPREAD)
def test_transposed_convolutions(kind: str, seed: int) -> None:
    graph = transposed_convolution(kind, seed)
    made = [name for name in operators(graph) if name not in ("Transpose", "Reshape", "Slice")]
    assert made == ["QLinearConv"]
    same_levels(graph, data_for(graph, seed))


def test_transposed_convolutions_of_sizes_that_only_the_run_tells() -> None:
    net = Layers(4, x=(U8, "n", 6, "h", "w"))
    y = net.b(ConvTranspose((2, 2), (1, 0, 1, 1)), net.any_real(net.inputs[0])[0], net.weight((6, 5, 3, 3), 1)[0])
    net.graph.add_output(net.stored(net.b(Relu(), y), 0.1, U8), "y")
    assert {"QLinearConv", "DepthToSpace", "Slice"} <= set(operators(net.graph))
    for n, h, w in ((1, 4, 5), (2, 1, 1), (0, 3, 3), (3, 7, 2)):
        same_levels(net.graph, data_for(net.graph, n=n, h=h, w=w))


def product(seed: int, *, computed: bool) -> Graph:
    rng = np.random.default_rng(seed + 100)
    m, k, n = (int(rng.choice([1, 2, 7, 16, 33, 50])) for _ in range(3))
    op = MatMul(bool(rng.integers(2)), bool(rng.integers(2)), float(rng.choice([1.0, 1.0, 0.25])))
    batch = () if seed % 2 else (3,)
    left, right = (k, m) if op.trans_a else (m, k), (n, k) if op.trans_b else (k, n)
    inputs = {"x": ((U8, I8)[seed % 2], *batch, *left)}
    net = Layers(seed, **inputs, **({"w": (I8, *batch, *right)} if computed else {}))
    x, x_scale = net.any_real(net.inputs[0])
    w, w_scale = net.any_real(net.inputs[1]) if computed else net.weight(right, 0 if op.trans_b else 1)
    unit = np.asarray(x_scale * w_scale * F32.type(op.alpha), F32)
    y = net.b(op, x, w, net.bias(n, unit))
    activation = ACTIVATIONS[seed % len(ACTIVATIONS)]
    y = y if activation is None else net.b(activation, y)
    net.result(y, k)
    return net.graph


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_products(seed: int, computed: bool) -> None:
    graph = product(seed, computed=computed)
    assert "MatMul" not in operators(graph)
    assert "QLinearMatMul" in operators(graph)
    same_levels(graph, data_for(graph, seed))


# ------------------------------------------------------------------------------------------------- what is taken in


def conv_of(net: Layers, x: Value, filters: int = 6, **more: Any) -> Any:
    """A convolution of a value that is quantised, with a bias in f32 and weights for each filter."""
    c = (x.type.shape or (0, 0))[1]
    assert isinstance(c, int)
    scale = net.rng.uniform(0.002, 0.02, filters).astype(F32)
    w = net.real(any_bytes(net.rng, I8, filters, c, 3, 3), scale, np.zeros(filters, I8), 0)
    return net.b(Conv(pads=(1, 1, 1, 1), **more), x, w, net.rng.normal(0, 1, filters).astype(F32))


def test_an_activation_that_the_limits_do_anyway_is_dropped() -> None:
    for activation, zero, scale, kept in (
        (Relu(), 0, 0.1, False), (Relu(), 3, 0.1, True), (Clip(0.0, 6.0), 0, 6 / 255, False),
        (Clip(0.0, 6.0), 0, 6 / 200, True), (Clip(None, 2.0), 0, 0.1, True), (LeakyRelu(0.1), 0, 0.1, True),
    ):  # fmt: skip
        net = Layers(3, x=(U8, 1, 8, 6, 6))
        y = net.b(activation, conv_of(net, net.any_real(net.inputs[0])[0]))
        net.graph.add_output(net.stored(y, scale, U8, np.array(zero, U8)), "y")
        (node,) = [n for n in run_pipeline(net.graph).nodes if isinstance(n.op, QLinearConv)]
        assert (node.op.activation is not None) == kept
        same_levels(net.graph, data_for(net.graph))


def test_two_readers_of_a_float_result_leave_it_float() -> None:
    net = Layers(5, x=(U8, 1, 8, 6, 6))
    y = conv_of(net, net.any_real(net.inputs[0])[0])
    net.graph.add_output(net.stored(y, 0.05, U8), "y")
    net.graph.add_output(net.stored(y, 0.11, I8), "z")
    made = operators(net.graph)
    assert made.count("QLinearConv") == 1
    assert made.count("QuantizeLinear") == 2
    same_levels(net.graph, data_for(net.graph))


def test_a_rounding_before_the_residual_is_not_skipped() -> None:
    """Conv -> Q -> DQ -> Add -> Q: the sum is of bytes that the convolution gives."""
    net = Layers(6, x=(U8, 1, 8, 6, 6), r=(U8, 1, 8, 6, 6))
    y = net.stored(conv_of(net, net.any_real(net.inputs[0])[0], 8), 0.07, U8, np.array(120, U8))
    y = net.real(y, np.array(0.07, F32), np.array(120, U8))
    y = net.b(Relu(), net.b(Add(), y, net.any_real(net.inputs[1])[0]))
    net.graph.add_output(net.stored(y, 0.08, U8), "y")
    (conv,) = [n for n in run_pipeline(net.graph).nodes if isinstance(n.op, QLinearConv)]
    assert not conv.op.residual
    assert conv.output.type.dtype == U8
    same_levels(net.graph, data_for(net.graph))


def test_computed_bias_and_several_scales_of_the_result_stay_outside() -> None:
    net = Layers(7, x=(U8, 3, 12), c=(F32, 9))
    w = net.weight((12, 9), 1)[0]
    y = net.b(Add(), net.b(MatMul(), net.any_real(net.inputs[0])[0], w), net.inputs[1])
    scales = np.linspace(0.01, 0.09, 9).astype(F32)
    net.graph.add_output(net.b(QuantizeLinear(axis=1), y, scales, np.zeros(9, U8)), "y")
    assert "QuantizeLinear" in operators(net.graph)
    same_levels(net.graph, data_for(net.graph))


def test_batch_norms_behind_go_into_the_scales() -> None:
    net = Layers(10, x=(U8, 1, 8, 6, 6))
    y = conv_of(net, net.any_real(net.inputs[0])[0])
    statistics = [net.rng.normal(0.5, 1, 6).astype(F32) for _ in range(3)] + [net.rng.uniform(0.5, 2, 6).astype(F32)]
    y = net.b(Relu(), net.b(BatchNormalization(), y, *statistics))
    net.graph.add_output(net.stored(y, 0.05, U8), "y")
    assert [name for name in operators(net.graph) if name != "Transpose"] == ["QLinearConv"]
    same_levels(net.graph, data_for(net.graph))


def test_several_scales_of_rows_stay_float() -> None:
    net = Layers(11, x=(U8, 3, 12))
    rows = net.real(net.inputs[0], np.array([0.1, 0.2, 0.05], F32), axis=0)
    net.graph.add_output(net.b(MatMul(), rows, net.weight((12, 9), 1)[0]), "y")
    assert "QLinearMatMul" not in operators(net.graph)
    same_levels(net.graph, data_for(net.graph))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2])
def test_narrow_weights_are_widened_to_bytes(dtype: Any) -> None:
    net = Layers(8, x=(U8, 3, 24))
    info = ml_dtypes.iinfo(dtype)
    w = net.rng.integers(int(info.min), int(info.max) + 1, (24, 10)).astype(dtype)
    zero = None if info.min else np.full(10, 7, dtype)
    scales = net.rng.uniform(0.05, 0.2, 10).astype(F32)
    net.graph.add_output(net.b(MatMul(), net.any_real(net.inputs[0])[0], net.real(w, scales, zero)), "y")
    assert operators(net.graph) == ["QLinearMatMul"]
    same_levels(net.graph, data_for(net.graph))


@pytest.mark.parametrize("dtype", [I16, U16])
def test_activations_in_16_bits_stay_float_between_conversions(dtype: AnyDType) -> None:
    net = Layers(9, x=(dtype, 1, 8, 6, 6))
    y = conv_of(net, net.real(net.inputs[0], np.array(2e-4, F32), np.array(300, dtype)))
    net.graph.add_output(net.stored(net.b(Relu(), y), 1e-4, dtype, np.array(100, dtype)), "y")
    assert "QLinearConv" not in operators(net.graph)
    same_levels(net.graph, data_for(net.graph), levels=4)


# ----------------------------------------------------------------------------------------------------------- shapes


def two_layers(seed: int = 0) -> Graph:
    net = Layers(seed, x=(F32, "n", 3, "h", "w"))
    at = np.array(0.03, F32), np.array(128, U8)
    x = net.real(net.stored(net.inputs[0], at[0], U8, at[1]), *at)
    y = net.stored(net.b(Relu(), conv_of(net, x, 16)), 0.05, U8)
    y = conv_of(net, net.real(y, np.array(0.05, F32), np.array(0, U8)), 16, group=1)
    net.graph.add_output(net.stored(y, 0.05, I8, np.array(3, I8)), "y")
    return net.graph


def test_dynamic_and_empty_shapes() -> None:
    graph = two_layers()
    session = bn.compile(graph, threads=1)
    for n, h, w in ((1, 8, 9), (3, 5, 30), (1, 1, 1), (0, 8, 8), (1, 16, 16), (2, 9, 7), (1, 3, 2)):
        data = data_for(graph, n, n=n, h=h, w=w)
        got, wanted = session(**data)["y"], interpret(graph, data)["y"]
        assert got.shape == wanted.shape
        assert np.abs(got.astype(int) - wanted.astype(int)).max(initial=0) <= 1


def test_empty_sums_give_the_zero_point() -> None:
    net = Layers(1, x=(U8, 4, 0))
    y = net.b(MatMul(), net.any_real(net.inputs[0])[0], net.weight((0, 5), 1)[0])
    net.graph.add_output(net.stored(y, 0.1, U8, np.array(9, U8)), "y")
    assert (bn.compile(net.graph)(np.zeros((4, 0), U8))["y"] == 9).all()


# -------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("scale", [0.0, -0.5, np.nan, np.inf])
@pytest.mark.parametrize("place", ["x", "w", "y"])
def test_bad_scales_give_what_the_float_form_gives(place: str, scale: float) -> None:
    scales = {"x": 0.05, "w": 0.01, "y": 0.1} | {place: scale}
    net = Layers(2, x=(U8, 1, 4, 5, 5))
    x = net.real(net.inputs[0], np.array(scales["x"], F32), np.array(100, U8))
    w = net.real(any_bytes(net.rng, I8, 6, 4, 3, 3), np.full(6, scales["w"], F32), np.zeros(6, I8), 0)
    net.graph.add_output(net.stored(net.b(Conv(), x, w), scales["y"], U8, np.array(7, U8)), "y")
    data = data_for(net.graph)
    with np.errstate(all="ignore"):
        wanted = interpret(net.graph, data)["y"]
        got = bn.compile(net.graph)(**data)["y"]
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


ZERO, ONE = np.array(0, U8), np.array(1, F32)


@pytest.mark.parametrize(("index", "array", "text"), [
    (6, np.array(0, F32), "y_scale: got 0.0, wanted finite numbers greater than 0"),
    (6, np.array(-1, F32), "y_scale: got -1.0"),
    (1, np.array(np.nan, F32), "x_scale: got nan, wanted finite numbers"),
    (4, np.array([1, np.inf], F32), "w_scale: got inf"),
    (4, np.ones(3, F32), "shape of w_scale"),
    (5, np.zeros(3, I8), "shape of w_zero_point"),
    (8, np.zeros(3, I32), "shape of bias"),
    (8, np.zeros(2, F32).astype(np.float64), "dtype of bias"),
    (1, np.ones(2, F32), "shape of x_scale"),
    (7, None, "y_zero_point: got none, wanted an operand"),
    (9, np.zeros((1, 2, 3, 3), F32), "residual: got .*, wanted none"),
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(index: int, array: Array | None, text: str) -> None:
    x, w = np.zeros((1, 4, 5, 5), U8), np.zeros((2, 4, 3, 3), I8)
    operands = [x, ONE, ZERO, w, np.ones(2, F32), np.zeros(2, I8), ONE, ZERO, np.zeros(2, I32), None]
    operands[index] = array
    with pytest.raises(BoltError, match=f"^QLinearConv: .*{text}"):
        infer_types(QLinearConv(), [None if a is None else type_of(a) for a in operands])


@pytest.mark.parametrize(("index", "scale"), [(6, 0.0), (6, -0.5), (6, np.nan), (1, np.inf), (4, np.nan)])
def test_scales_that_only_a_run_tells_are_computed_with(index: int, scale: float) -> None:
    """By the reference, too: constants alone are refused."""
    rng = np.random.default_rng(index)
    feeds = {f"x{i}": np.array(0.05, F32) for i in (1, 4, 6)}
    feeds |= {"x0": any_bytes(rng, U8, 1, 4, 5, 5), f"x{index}": np.array(scale, F32)}
    graph = Graph("scales")
    x = {name: graph.add_input(name, type_of(a).with_value(None)) for name, a in feeds.items()}
    w = any_bytes(rng, I8, 2, 4, 3, 3)
    y = Builder(graph)(QLinearConv(), x["x0"], x["x1"], ZERO, w, x["x4"], np.array(0, I8), x["x6"], ZERO)
    graph.add_output(y, "y")
    got, wanted = bn.compile(graph)(**feeds)["y"], interpret(graph, feeds)["y"]
    np.testing.assert_array_equal(got, wanted)


def test_fused_operands_that_do_not_fit_are_refused() -> None:
    a, b = np.zeros((2, 4), U8), np.zeros((4, 3), I8)
    plain = [a, ONE, ZERO, b, ONE, np.array(0, I8), None, None, None]
    for more, text in (
        ([None], "residual: got none"),
        ([np.zeros((2, 4), F32)], "shape of residual"),
        ([np.zeros((2, 3), I8)], "residual_scale: got none"),
        ([np.zeros((2, 3), F32), ONE], "residual_zero_point: got none"),
        ([np.zeros((2, 3), I8), np.ones(3, F32), np.array(0, I8)], "shape of residual_scale"),
        ([np.zeros((2, 3), I8), ONE, ZERO], "dtype of residual_zero_point"),
    ):
        types = [None if v is None else type_of(v) for v in (*plain, *more)]
        with pytest.raises(BoltError, match=f"^QLinearMatMul: .*{re.escape(text)}"):
            infer_types(QLinearMatMul(residual=True), types)
    with pytest.raises(ShapeError, match="activation"):
        infer_types(QLinearMatMul(activation=Add()), [None if v is None else type_of(v) for v in plain])


def test_sums_beyond_32_bits_are_never_wrapped() -> None:
    assert sums_fit(U8, None, U8, None, 33025, None)
    assert not sums_fit(U8, None, U8, None, 33026, None)
    assert sums_fit(U8, np.array(128, U8), I8, np.array(0, I8), 131071, None)
    assert not sums_fit(U8, np.array(128, U8), I8, np.array(0, I8), 131071, np.array([32768], I32))
    depth = 40000
    for computed in (False, True):
        net = Layers(1, x=(U8, 2, depth), **({"w": (U8, depth, 3)} if computed else {}))
        w = net.inputs[1] if computed else np.full((depth, 3), 255, U8)
        one = np.array(1e-3, F32)
        y = net.b(MatMul(), net.real(net.inputs[0], one), net.real(w, one))
        net.graph.add_output(net.stored(y, 20.0, U8), "y")
        assert "QLinearMatMul" not in operators(net.graph)
        data = {v.name: np.full(v.type.dims, 255, U8) for v in net.graph.inputs}
        assert (bn.compile(net.graph)(**data)["y"] == 130).all()


@pytest.mark.parametrize("depth", [40, 40000])
def test_a_depth_that_only_the_run_tells(depth: int) -> None:
    net = Layers(1, x=(U8, 2, "k"), w=(U8, "k", 3))
    one = np.array(1e-3, F32)
    y = net.b(MatMul(), net.real(net.inputs[0], one), net.real(net.inputs[1], one))
    net.graph.add_output(net.stored(y, 20.0, U8), "y")
    data = {"x": np.full((2, depth), 255, U8), "w": np.full((depth, 3), 255, U8)}
    assert (bn.compile(net.graph)(**data)["y"] == round(depth * 255 * 255e-6 / 20)).all()


def test_a_bias_that_fills_32_bits_is_added_right() -> None:
    for bias in (2**31 - 1, -(2**31)):
        net = Layers(1, x=(U8, 1, 8, 4, 4))
        w = net.real(np.full((6, 8, 1, 1), 127, I8), np.full(6, 0.01, F32), np.zeros(6, I8), 0)
        x = net.real(net.inputs[0], np.array(0.01, F32), np.array(0, U8))
        units = np.full(6, np.float32(0.01) * np.float32(0.01), F32)
        y = net.b(Conv(), x, w, net.real(np.full(6, bias, I32), units, axis=0))
        net.graph.add_output(net.stored(y, 3000.0, U8, np.array(128, U8)), "y")
        same_levels(net.graph, {"x": np.full((1, 8, 4, 4), 255 if bias > 0 else 0, U8)})
