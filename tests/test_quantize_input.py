"""What callers give the quantiser: data in many forms, bad data, functions of their own that raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, DataError, DTypeError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.gather import Gather, NonZero
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Split
from bolt_numba.ops.control import If
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Greater, Neg, Relu
from bolt_numba.quantize import quantize, weights_only
from bolt_numba.quantize.data import feeds_of
from bolt_numba.sessions.inputs import spec_of
from bolt_numba.types import BOOL, F32, I64, Sym, TensorType


def small_net() -> Graph:
    graph, rng = Graph("net"), np.random.default_rng(2)
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 3, 8, 8)))
    y = b(Conv(pads=(1, 1, 1, 1)), x, rng.standard_normal((8, 3, 3, 3)).astype(F32), name="first")
    y = b(Conv(), y, rng.standard_normal((8, 8, 1, 1)).astype(F32), name="last")
    graph.add_output(b(ReduceMean(keepdims=False), y, np.array([2, 3], np.int64)), "y")
    return graph


def samples(count: int = 3) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((count, 3, 8, 8)).astype(F32)}


def test_data_comes_in_many_forms(tmp_path: Path) -> None:
    specs = [spec_of("x", TensorType(F32, (Sym("n"), 3))), spec_of("i", TensorType(I64, (Sym("n"),)))]
    arrays = {"x": np.ones((70, 3), F32), "i": np.arange(70)}
    feeds = feeds_of(arrays, specs)
    assert [len(f["x"]) for f in feeds] == [64, 6]
    np.savez(tmp_path / "all.npz", **arrays)
    assert len(feeds_of(tmp_path / "all.npz", specs)) == 2
    for n in range(3):
        np.savez(tmp_path / f"{n}.npz", x=np.ones((2, 3), F32), i=np.zeros(2, np.int64))
    assert len(feeds_of(tmp_path, specs)) == 5
    fixed = [spec_of("x", TensorType(F32, (2, 3)))]
    assert len(feeds_of(np.ones((7, 3), F32), fixed)) == 3
    assert len(feeds_of(np.ones((7, 2, 3), F32), fixed)) == 7
    assert len(feeds_of([{"x": np.ones((2, 3), F32)}], fixed)) == 1
    assert len(feeds_of({"x": [[1.5, 2, 3]] * 4}, fixed)) == 2
    assert len(feeds_of(({"x": np.ones((2, 3), F32)} for _ in range(3)), fixed)) == 3


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"z": np.ones((4, 3, 8, 8), F32)}, ShapeError, "got ['z'], wanted ['x']"),
        ({"x": np.ones((4, 3, 8, 8))}, DTypeError, "got f64"),
        ({"x": np.ones((4, 2, 8, 8), F32)}, ShapeError, "got shape (4, 2, 8, 8)"),
        ({"x": np.ones((0, 3, 8, 8), F32)}, DataError, "got none"),
        ([], DataError, "got none"),
        (3, DTypeError, "got a int"),
        ([3], DTypeError, "got a int in a list"),
        ({"x": np.full((4, 3, 8, 8), np.nan, F32)}, DataError, "got NaN or infinity"),
        ({"x": [[[[1, 2]]], [[[1]]]]}, DTypeError, "input 'x': got a list, wanted f32"),
        ([{"x": [[1, 2], [1]]}], DTypeError, "input 'x': got a list, wanted f32"),
        ({"x": "letters"}, DTypeError, "input 'x': got a str, wanted f32"),
    ],
)
def test_data_that_does_not_fit_is_one_clear_error(data: Any, error: type[BoltError], words: str) -> None:
    with pytest.raises(error) as caught:
        quantize(small_net(), data)
    assert words in str(caught.value)


class TheirError(Exception):
    pass


def fail(*_: Any) -> Any:
    raise TheirError("theirs")


def failing_data() -> Iterator[Any]:
    yield {"x": samples()["x"]}
    raise TheirError("theirs")


CALLERS: dict[str, Callable[[], Any]] = {
    "metric": lambda: quantize(small_net(), samples(), metric=fail),
    "progress": lambda: quantize(small_net(), samples(), progress=fail),
    "data": lambda: quantize(small_net(), failing_data()),
    "calibration": lambda: bn.compile(small_net(), precision="int8", calibration=failing_data()),
    "weights": lambda: weights_only(wide(), progress=fail),
}


def wide() -> Graph:
    graph = Graph("wide")
    x = graph.add_input("x", TensorType(F32, (2, 96)))
    graph.add_output(Builder(graph)(MatMul(), x, np.ones((96, 160), F32)), "y")
    return graph


@pytest.mark.parametrize("what", CALLERS)
def test_what_a_function_of_the_caller_raises_reaches_the_caller(what: str) -> None:
    with pytest.raises(TheirError, match="theirs"):
        CALLERS[what]()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "accuracy"}, "metric: got 'accuracy', wanted a function"),
        ({"progress": 3}, "progress: got 3, wanted a function"),
        ({"labels": [[1], [1, 2]]}, "labels: got lists of different lengths"),
        ({"labels": ["a"]}, "labels: got"),
        ({"metric": lambda _: "good"}, "metric: got 'good', wanted a finite number"),
    ],
)
def test_wishes_that_are_no_functions_or_figures(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BoltError, match=words):
        quantize(small_net(), samples(), **options)


def test_labels_need_a_number_for_each_class() -> None:
    graph = Graph("net")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 3, 8, 8)))
    y = b(Conv(pads=(1, 1, 1, 1)), x, np.ones((8, 3, 3, 3), F32))
    graph.add_output(b(ReduceMean(keepdims=False), y), "y")
    with pytest.raises(ShapeError, match="labels: first output"):
        quantize(graph, samples(), labels=[1, 2, 3])


def lookup() -> Graph:
    """Two look-ups in one table, and a small table, which stays."""
    graph, rng = Graph("words"), np.random.default_rng(4)
    b, words = Builder(graph), graph.add_input("words", TensorType(I64, (Sym("n"), 5)))
    table, small = (b.const(rng.standard_normal(dims).astype(F32)) for dims in ((300, 48), (300, 2)))
    y = b(Add(), b(Gather(0), table, words, name="some"), b(Gather(0), table, b(Neg(), words), name="others"))
    y = b(MatMul(), y, rng.standard_normal((48, 30)).astype(F32), name="product")
    graph.add_output(b(Concat(-1), y, b(Gather(0), small, words, name="small")), "y")
    return graph


def test_tables_are_stored_in_bytes_and_run_elsewhere(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    graph, words = lookup(), np.random.default_rng(5).integers(0, 300, (40, 5))
    made = quantize(graph, {"words": words}, measure=True)
    assert [(row.name, row.stored) for row in made.report.layers] == [
        ("some", "s8"), ("others", "s8"), ("product", "u8 x s8"),
    ]  # fmt: skip
    assert all(row.output_sqnr is not None and 35 < row.output_sqnr < 60 for row in made.report.layers)
    session = bn.compile(made.graph, threads=1)
    assert not any(a.dtype == F32 and a.size >= 300 * 48 for a in session.optimised.weights())
    made.save(tmp_path / "made.onnx")
    (got,) = session(words[:3])
    peer = onnxruntime.InferenceSession(str(tmp_path / "made.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, peer.run(None, {"words": words[:3]})[0], rtol=1e-4, atol=1e-4)
    table = graph.nodes[0].operands[0]
    assert table is not None
    assert table.const is not None
    table.const[7, 7] = 300  # one number would take most levels
    assert [row.name for row in quantize(graph, {"words": words}).report.layers] == ["product"]
    table.const[7, 7] = 0
    kept = quantize(graph, {"words": words}, keep=["Gather"])
    assert [row.stored for row in kept.report.layers] == ["float", "float", "u8 x s8"]


def test_bodies_of_control_flow_stay_float_and_are_told() -> None:
    rng = np.random.default_rng(6)

    def body(name: str) -> Graph:
        graph = Graph(name)
        y = graph.add_input("y", TensorType(F32, (Sym("n"), 8)))
        graph.add_output(Builder(graph)(MatMul(), y, rng.standard_normal((8, 8)).astype(F32)), "z")
        return graph

    graph = Graph("net")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 8)))
    flag = graph.add_input("flag", TensorType(BOOL, ()))
    graph.add_output(b(If(then_branch=body("then"), else_branch=body("else")), flag, x), "y")
    data = [{"x": rng.standard_normal((3, 8)).astype(F32), "flag": np.array(n % 2 > 0)} for n in range(4)]
    with pytest.raises(BoltError, match="outside of control flow"):
        quantize(graph, data)
    inner = graph.nodes[0]
    inner.set_input(1, Builder(graph, [])(MatMul(), x, rng.standard_normal((8, 8)).astype(F32), name="first"))
    graph.nodes.insert(0, inner.operands[1].node)  # type: ignore[union-attr,arg-type]
    made = quantize(graph, data)
    assert [row.name for row in made.report.layers] == ["first"]
    assert "layers in bodies of control flow, which stay float: 2" in str(made.report)


def test_channels_may_be_last(tmp_path: Path) -> None:
    """As in TFLite's models: the same integers as with channels first, and a file that others run."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def net(layout: str) -> Graph:
        graph, rng = Graph("net"), np.random.default_rng(8)
        b = Builder(graph)
        x = graph.add_input("x", TensorType(F32, (2, 9, 8, 6) if layout == "NHWC" else (2, 6, 9, 8)))
        bias = rng.standard_normal(12).astype(F32)
        y = b(Conv(pads=(1, 1, 1, 1), layout=layout), x, rng.standard_normal((12, 6, 3, 3)).astype(F32), bias)
        y = b(Conv(group=12, layout=layout), b(Relu(), y), rng.standard_normal((12, 1, 3, 3)).astype(F32))
        y = b(ConvTranspose(strides=(2, 2), layout=layout), y, rng.standard_normal((12, 5, 2, 2)).astype(F32))
        graph.add_output(y, "y")
        return graph

    images = np.random.default_rng(9).standard_normal((8, 6, 9, 8)).astype(F32)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    first, made = (quantize(net(n), {"x": x}, measure=True) for n, x in (("NCHW", images), ("NHWC", last)))
    assert [row.op for row in made.report.layers] == ["Conv", "Conv", "ConvTranspose"]
    assert made.tensors == first.tensors
    (got,), (wanted,) = (bn.compile(q.graph, threads=1)(x[:2]) for q, x in ((made, last), (first, images)))
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)
    made.save(tmp_path / "made.onnx")
    peer = onnxruntime.InferenceSession(str(tmp_path / "made.onnx"), providers=["CPUExecutionProvider"])
    away = np.abs(got - peer.run(None, {"x": last[:2]})[0])
    assert np.mean(away > 1e-3) < 0.02


def detector() -> Graph:
    """As many rows as there are positive results."""
    graph = Graph("detector")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    y = b(MatMul(), x, np.random.default_rng(2).standard_normal((4, 16)).astype(F32), name="last")
    row, _ = b(Split(axis=0, num_outputs=2), b(NonZero(), b(Greater(), y, np.float32(0))))
    graph.add_output(b(Cast(F32), row), "found")
    return graph


def test_the_report_says_which_outputs_were_not_compared() -> None:
    nothing = quantize(detector(), {"x": np.zeros((3, 4), F32)})
    assert "SQNR of the worst output exact\n" in str(nothing.report)
    assert "warning: output 'found' is empty for all of the data: nothing of it was compared" in str(nothing.report)
    x = np.random.default_rng(4).standard_normal((1000, 4)).astype(F32)
    several = quantize(detector(), {"x": x}, weights="s4")
    assert "output 'found' has another shape than in float for " in str(several.report)
    assert repr(several).startswith("Quantised('detector': 1 of 1 layers quantised, SQNR of the worst output ")


def test_data_that_is_not_there() -> None:
    for path in ("nothing", "nothing.npz"):
        with pytest.raises(FileNotFoundError, match="'nothing"):
            quantize(small_net(), path)
