"""Edges where kernels, references and onnxruntime once gave different results: one rule each, held to everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.gather import Unique
from bolt_numba.ops.control import Scan
from bolt_numba.ops.layers.detection.regions import RoiAlign
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul, scale_ratio
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM
from bolt_numba.ops.layers.resize import GridSample
from bolt_numba.ops.pointwise import Add, Pow, Sub
from bolt_numba.ops.registry import result_tuple
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.harness import run_kernel

INF, NAN = np.inf, np.nan
RNG = np.random.default_rng(3)


def run(op: Any, *operands: Array | None) -> tuple[Array, ...]:
    """A session's results, which are the reference's."""
    graph = Graph("one")
    build = Builder(graph)
    names = [None if a is None else f"x{i}" for i, a in enumerate(operands)]
    given = [(n, a) for n, a in zip(names, operands, strict=True) if n is not None and a is not None]
    values = {n: graph.add_input(n, TensorType(a.dtype, a.shape)) for n, a in given}
    made: Any = build(op, *(None if n is None else values[n] for n in names))
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        graph.add_output(value, f"y{i}")
    got = bn.compile(graph, threads=1)(**dict(given))
    with np.errstate(all="ignore"):
        wanted = result_tuple(op.reference(*operands))
    for a, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, w, rtol=2e-5, atol=1e-6)
    return tuple(got)


# ---- scales whose product is too small for a normal number


def scale(number: float) -> Array:
    return np.array(number, F32)


SCALES = [
    (1e-20, 1e-20, 1e-40), (1e-25, 1e-25, 1e-38), (1e-40, 1.0, 1e-40), (1e-30, 1e10, 1e-20), (0.5, 0.25, 0.5),
    (1e-38, 1e20, 1e-18), (1e24, 1e-42, 1e-18), (1e-44, 1e38, 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "y"), SCALES)
def test_ratio_of_tiny_scales(a: float, b: float, y: float) -> None:
    wanted = float(F32.type(a)) * float(F32.type(b)) / float(F32.type(y))
    assert scale_ratio(scale(a), scale(b), scale(y)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("a", "b", "y"), [s for s in SCALES if 0.1 < s[0] * s[1] / s[2] < 10])
def test_quantised_products_of_tiny_scales(a: float, b: float, y: float) -> None:
    zero, left, right = np.array(3, np.uint8), *(RNG.integers(0, 20, s).astype(np.uint8) for s in ((4, 6), (6, 5)))
    (got,) = run(QLinearMatMul(), left, scale(a), zero, right, scale(b), zero, scale(y), zero)
    assert len(np.unique(got)) > 1
    image, filters = left.reshape(1, 4, 2, 3), right[:4].reshape(5, 4, 1, 1)
    (got,) = run(QLinearConv(), image, scale(a), zero, filters, scale(b), zero, scale(y), zero)
    assert len(np.unique(got)) > 1


def products(a: float, b: float, y: float | None) -> tuple[Array, Array]:
    """What sessions and references make of bytes with scales of the run, and the sums."""
    zero, left, right = np.array(3, np.uint8), *(RNG.integers(0, 7, s).astype(np.uint8) for s in ((9, 6), (6, 20)))
    right[:, 0] = 3
    given = (left, scale(a), zero, right, scale(b), zero)
    (got,) = run(QLinearMatMul(), *given, *(() if y is None else (scale(y), zero)))
    image, filters = left.reshape(1, 6, 3, 3), np.ascontiguousarray(right.T).reshape(20, 6, 1, 1)
    run(QLinearConv(), image, *given[1:3], filters, *given[4:], *(() if y is None else (scale(y), zero)))
    return got, (left.astype(int) - 3) @ (right.astype(int) - 3)


@pytest.mark.parametrize(("a", "b"), [(1e30, 1e20), (3e38, 3e38), (3e38, 2.0)])
def test_products_of_great_scales_saturate_and_keep_0(a: float, b: float) -> None:
    got, sums = products(a, b, None)
    np.testing.assert_array_equal(np.sign(got), np.sign(sums))
    assert np.all(np.abs(got[sums != 0]) > 3e38)
    got, sums = products(a, b, 1e-32)
    np.testing.assert_array_equal(got, np.select([sums > 0, sums < 0], [255, 0], 3))


@pytest.mark.parametrize(("a", "b"), [(INF, 1.0), (1.0, INF), (NAN, 1.0), (1.0, NAN), (INF, 0.0)])
def test_scales_of_the_run_that_are_no_numbers_give_none(a: float, b: float) -> None:
    """As in floats, where 0 times infinity is among the terms."""
    assert np.isnan(products(a, b, None)[0]).all()
    assert not products(a, b, 1.0)[0].any()


def from_onnx(nodes: list[Any], inputs: dict[str, Array], dims: Any = None) -> tuple[Any, bytes]:
    """A model of the nodes with one output y: as read, and its bytes."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in inputs.items()}
    ins = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in inputs.items()]
    out = helper.make_tensor_value_info("y", next(iter(kinds.values())) if dims is None else TensorProto.FLOAT, dims)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", ins, [out]), opset_imports=opsets, ir_version=9)
    return bn.load(model.SerializeToString()), model.SerializeToString()


FACTORS = [(1e-20, 1e-20, 1e-38), (1e-30, 1e-5, 3e-35), (1e-30, 1e-5, 2e-35), (1e-20, 1e-20, 2e-40), (0.1, 0.2, 0.3)]


@pytest.mark.parametrize(("a", "b", "y"), FACTORS)
def test_quantised_factors_of_tiny_scales(a: float, b: float, y: float) -> None:
    inputs = {"a": RNG.integers(0, 9, (3, 40)).astype(np.uint8), "b": RNG.integers(0, 9, (3, 40)).astype(np.uint8)}
    inputs |= {"as": scale(a), "bs": scale(b), "ys": scale(y), "zero": np.array(2, np.uint8)}
    names = ["a", "as", "zero", "b", "bs", "zero", "ys", "zero"]
    graph, content = from_onnx([helper.make_node("QLinearMul", names, ["y"], domain="com.microsoft")], inputs)
    got = bn.compile(graph, threads=1)(**inputs)[0]
    np.testing.assert_array_equal(got, interpret(graph, inputs)["y"])
    centred = (inputs["a"].astype(int) - 2) * (inputs["b"].astype(int) - 2)
    exact = centred * (float(scale(a)) * float(scale(b)) / float(scale(y))) + 2
    assert np.abs(got - np.clip(exact, 0, 255)).max() <= 0.51
    if a * b > 1e-37:  # where the ratio is about a half, results are about halves between levels
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        assert np.abs(got.astype(int) - session.run(None, inputs)[0]).max() <= (abs(a * b / y - 0.5) < 1e-3)


X, OTHER, Y = ["a", "as", "zero"], ["b", "bs", "zero"], ["ys", "zero"]
QUANTISED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "QLinearAdd": ([*X, *OTHER, *Y], {}),
    "QLinearWhere": (["c", *X, *OTHER, *Y], {}),
    "QLinearConcat": ([*Y, *X, *OTHER], {"axis": 1}),
    "QLinearLeakyRelu": ([*X, *Y], {"alpha": 0.1}),
    "QLinearSigmoid": ([*X, *Y], {}),
    "QLinearSoftmax": ([*X, *Y], {"axis": -1, "opset": 13}),
    "QLinearAveragePool": ([*X, *Y], {"kernel_shape": [3, 3]}),
    "QLinearGlobalAveragePool": ([*X, *Y], {}),
}


@pytest.mark.parametrize(("a", "b", "y"), [(1e-30, 1e-30, 2e-30), (3e-36, 2e-36, 2e-36), (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("zero", [np.array(100, np.uint8), np.array(-7, np.int8)])
@pytest.mark.parametrize("kind", QUANTISED)
def test_other_quantised_operators_of_tiny_scales(kind: str, zero: Array, a: float, b: float, y: float) -> None:
    names, attributes = QUANTISED[kind]
    low, high = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max + 1
    inputs = {n: RNG.integers(low, high, (1, 3, 8, 10)).astype(zero.dtype) for n in "ab"}
    inputs |= {"c": inputs["a"] > inputs["b"], "as": scale(a), "bs": scale(b), "ys": scale(y), "zero": zero}
    if kind in ("QLinearSigmoid", "QLinearSoftmax"):
        inputs["ys"] = scale(1 / 128)
    inputs = {n: array for n, array in inputs.items() if n in names}
    node = helper.make_node(kind, names, ["y"], domain="com.microsoft", **attributes)
    graph, content = from_onnx([node], inputs)
    got = bn.compile(graph, threads=1)(**inputs)[0].astype(int)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    reference, other = interpret(graph, inputs)["y"], session.run(None, inputs)[0]
    assert max(np.abs(got - reference).max(), np.abs(got - other).max()) <= 1
    assert (got != reference).mean() <= 0.02  # halves between levels


# ---- regions that end before they begin


BOXES = [[3, 3, 1, 1], [2, 2, 2, 2], [3, 1, 1, 3], [1, 3, 3, 1], [3, 3, -20, -20], [0, 0, NAN, 1]]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_inverted_regions(mode: str, coordinates: str, box: list[float]) -> None:
    x = np.arange(50, dtype=F32).reshape(1, 2, 5, 5) + 1
    op = RoiAlign(mode, 2, 3, 0, 1.0, coordinates)
    (got,) = run(op, x, np.array([box, [0, 0, 4, 4]], F32), np.zeros(2, np.int64))
    assert coordinates != "half_pixel" or not got[0].any()
    assert got[1].any()


# ---- NaN


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("order", [True, False])
def test_slices_with_nan_are_all_different(dtype: str, order: bool) -> None:
    x = np.array([[1, NAN], [0, 2], [1, NAN], [0, 2], [NAN, 0], [1, 3]], dtype)
    y, first, inverse, counts = run(Unique(0, order), x)
    assert (y.shape, counts.tolist().count(2)) == ((5, 2), 1)
    assert sorted(first) == [0, 1, 2, 4, 5]
    assert inverse[0] != inverse[2]
    run(Unique(1, order), np.ascontiguousarray(x.T))
    assert len(run(Unique(None, order), x)[0]) == 5


@pytest.mark.parametrize("place", [(0, 0, 0), (2, 1, 7), (1, 0, 3)])
@pytest.mark.parametrize("hidden", [8, 20])
def test_nan_in_a_dynamically_quantised_lstm(hidden: int, place: tuple[int, ...]) -> None:
    x = RNG.standard_normal((3, 2, 9)).astype(F32)
    x[place] = NAN
    w, r = (RNG.integers(-127, 128, (1, 4 * hidden, k)).astype(np.int8) for k in (9, hidden))
    numbers = (np.full(1, 1 / 250, F32), np.zeros(1, np.int8))
    operands = (x, w, r, *[None] * 5, *numbers, *numbers)
    op = DynamicQuantizeLSTM(hidden_size=hidden)
    outputs = run(op, *operands)
    assert all(np.isfinite(y).all() for y in outputs)
    for got, wanted in zip(run_kernel(op, operands), outputs, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-3)


def test_what_optimising_changes_of_special_values() -> None:
    """As docs/numerics.md says: powers of a half are roots, and 0 - x is -x; without optimising they are not."""
    for op, operands, optimised, alone in (
        (Pow(), (None, 0.5), [NAN, -0.0, 0.0, 2], [INF, 0.0, 0.0, 2]),
        (Pow(), (None, -0.5), [NAN, -INF, INF, 0.5], [0.0, INF, INF, 0.5]),
        (Sub(), (0.0, None), [INF, 0.0, -0.0, -4], [INF, 0.0, 0.0, -4]),
    ):
        graph = Graph("one")
        x = graph.add_input("x", TensorType(F32, (4,)))
        graph.add_output(Builder(graph)(op, *(x if c is None else np.array([c], F32) for c in operands)), "y")
        given = np.array([-INF, -0.0, 0.0, 4], F32)
        with np.errstate(all="ignore"):
            for got, wanted in ((interpret(graph, {"x": given})["y"], alone), (bn.compile(graph)(given)[0], optimised)):
                np.testing.assert_allclose(got, np.array(wanted, F32), rtol=1e-6)
                np.testing.assert_array_equal(np.signbit(got)[1:], np.signbit(np.array(wanted, F32))[1:])


# ---- points far outside


FAR = [1e7, 1.5e7, 1e15, -1e15, 3e38, -3e38, INF, -INF, NAN, 5.3, -7.7, 123456.789, 2.0**40, 0.2]


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("size", [4, 7, 1])
@pytest.mark.parametrize("align", [False, True])
def test_reflected_points_stay_inside(align: bool, size: int, mode: str) -> None:
    x = RNG.uniform(1, 2, (1, 2, 3, size)).astype(F32)
    grid = np.zeros((1, 2, len(FAR), 2), F32)
    grid[0, 0, :, 0] = grid[0, 1, :, 1] = FAR
    (got,) = run(GridSample(mode, "reflection", align), x, grid)
    spread = 1 if mode == "cubic" else 1e-5
    assert x.min() - spread <= got.min() <= got.max() <= x.max() + spread


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("size", [4, 7, 1])
@pytest.mark.parametrize("align", [0, 1])
def test_points_outside_see_the_border(align: int, size: int, mode: str) -> None:
    """Each neighbour of a point is brought inside by itself, which cubic samples show."""
    x = RNG.standard_normal((1, 2, 3, size)).astype(F32)
    near = RNG.uniform(-2.5, 2.5, (1, 6, 7, 2)).astype(F32)
    (got,) = run(GridSample(mode, "border", bool(align)), x, near)
    f, images = TensorProto.FLOAT, [("x", x), ("grid", near)]
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode="border", align_corners=align)
    given = [helper.make_tensor_value_info(name, f, a.shape) for name, a in images]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", f, got.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, session.run(None, dict(images))[0], rtol=1e-4, atol=1e-5)
    far = np.zeros((1, 2, len(FAR), 2), F32)
    far[0, 0, :, 0] = far[0, 1, :, 1] = FAR
    (got,) = run(GridSample(mode, "border", bool(align)), x, far)
    outside = [i for i, point in enumerate(FAR) if 5 < abs(point) < INF]
    edges = np.where(np.array(FAR)[outside] > 0, x[:, :, 1, -1:], x[:, :, 1, :1])
    np.testing.assert_allclose(got[:, :, 0, outside], edges, rtol=1e-5)


@pytest.mark.parametrize(("padding", "align"), [("zeros", False), ("border", True), ("reflection", False)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_points_on_an_axis_that_f32_does_not_count(mode: str, padding: str, align: bool) -> None:
    """Neighbours weigh 1 together, where f32 takes them for one element that counts twice, as onnxruntime does."""
    n = (1 << 24) + 7
    lines = np.stack([np.arange(n) % 251, np.ones(n)]).astype(F32)
    points = np.array([-1, -0.5, 0, 0.31, 0.999, 1], F32)
    wide = (points.astype(np.float64) + 1) / 2
    places = wide * (n - 1) if align else wide * n - 0.5
    (got,) = run(GridSample(mode, padding, align), lines[None], points.reshape(1, -1, 1))
    inner = slice(1, -1)
    np.testing.assert_allclose(got[0, 1, inner], 1, rtol=1e-6)
    assert padding == "zeros" or np.allclose(got[0, 1], 1)
    wanted = (np.rint(places) if mode == "nearest" else places)[inner] % 251
    assert (abs(wanted - 125) < 120).all(), "no line jumps there"
    np.testing.assert_allclose(got[0, 0, inner], wanted, atol=0.06 if mode == "cubic" else 1e-4)  # bent between them



# ---- loops of no iterations


@pytest.mark.parametrize("trips", [0, 2])
@pytest.mark.parametrize("dims", [[None, "n"], [None, 3], None])
@pytest.mark.parametrize("size", [3, "n", None])
def test_loop_of_no_iterations_has_results_of_its_type(size: Any, dims: Any, trips: int) -> None:
    """Also where a symbol of the type stands for what operands say: there onnxruntime gives 0."""
    f, b, i = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep"], ["go"]), helper.make_node("Relu", ["x"], ["row"])], "body",
        [helper.make_tensor_value_info("i", i, []), helper.make_tensor_value_info("keep", b, [])],
        [helper.make_tensor_value_info("go", b, []), helper.make_tensor_value_info("row", f, dims and dims[1:])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", ""], ["y"], body=body)
    inputs = {"trips": np.array(trips), "x": np.ones(3, F32)}
    model = onnx.load_from_string(from_onnx([node], inputs, [None, "n"])[1])
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("x", f, [size]))
    content = model.SerializeToString()
    graph = bn.load(content)
    assert isinstance(graph.inputs[1].type.shape[0], Sym) == (size != 3)
    for got in (bn.compile(graph, threads=1)(**inputs)[0], interpret(graph, inputs)["y"]):
        assert got.shape == (trips, 3)
    if trips or 3 in (size, *(dims or ())):
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        assert session.run(None, inputs)[0].shape == (trips, 3)


@pytest.mark.parametrize("length", [0, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan_of_no_slices_has_results_of_its_type(axis: int, length: int) -> None:
    body, graph = Graph("body"), Graph("scan")
    build, inside = Builder(graph), Builder(body)
    taken = inside(Add(), *(body.add_input(n, TensorType(F32, (Sym("n"),))) for n in ("slice", "captured")))
    body.add_output(taken, "row")
    shapes = {"x": (Sym("t"), Sym("n")), "z": (Sym("n"),)}
    ins = [graph.add_input(name, TensorType(F32, shape)) for name, shape in shapes.items()]
    made: Any = build(Scan(body, states=0, scans=1, output_axes=(axis,)), *ins)
    graph.add_output(made[0] if isinstance(made, tuple) else made, "y")
    inputs = {"x": np.ones((length, 3), F32), "z": np.ones(3, F32)}
    for got in (bn.compile(graph, threads=1)(**inputs)[0], interpret(graph, inputs)["y"]):
        assert got.shape == ((length, 3) if axis == 0 else (3, length))
