"""What leaves the package: BoltErrors that name the node and the cause, whatever goes wrong inside."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba import onnx_backend, surgery
from bolt_numba.base.border import as_bolt_error, at_node
from bolt_numba.converters.onnx.reading.registry import READERS
from bolt_numba.converters.onnx.writing.write import save_onnx, to_onnx
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.data_sized import DATA_SIZED, DataSized
from bolt_numba.kernels.registry import KERNELS, Entry, always
from bolt_numba.ops.arrays.gather import NonZero
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.control import Loop
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Relu
from bolt_numba.passes import pipeline
from bolt_numba.passes.canonical.fold import FoldConstant
from bolt_numba.quantize import write_clips, write_table
from bolt_numba.surgery import packed
from bolt_numba.types import BOOL, F32, I64, TensorType

KINDS = (
    ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, AttributeError, AssertionError,
    MemoryError, RecursionError, RuntimeError, NotImplementedError, OSError, StopIteration, UnicodeError,
)  # fmt: skip
BAD = [kind("what went wrong") for kind in KINDS]
X = np.ones((3, 4), np.float32)


def fail(error: Exception) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> Any:
        raise copy.copy(error)

    return raising


def network() -> Graph:
    graph = Graph("net")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (3, 4)))
    graph.add_output(build(MatMul(), build(Relu(), x), np.eye(4, dtype=F32), name="product"), "y")
    return graph


def by_data() -> Graph:
    graph = Graph("data")
    graph.add_output(Builder(graph)(NonZero(), graph.add_input("x", TensorType(F32, (3, 4))), name="chosen"), "y")
    return graph


def check(call: Callable[[], Any], error: Exception, node: str) -> None:
    """The call raises a BoltError that names the node, caused by ``error``."""
    with pytest.raises(bn.BoltError, match=f"node '{node}'") as caught:
        call()
    cause: BaseException | None = caught.value
    while cause is not None and type(cause) is not type(error):
        cause = cause.__cause__
    assert cause is not None, f"the cause of {caught.value!r} is lost"


errors = pytest.mark.parametrize("error", BAD, ids=lambda e: type(e).__name__)
by_operands = pytest.mark.parametrize("error", [ValueError("v"), IndexError("i"), OverflowError("o")])


@by_operands
def test_whose_fault_it_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `infer` and references meet is the model's; what selects, makes and sizes is ours."""
    bn.compile(network())(X)
    bn.compile(by_data())(X)
    broken = Entry(MatMul, "cpu", "f32", fail(error), always, 99, "broken")
    for entry in (broken, replace(broken, make=lambda *_: [], accepts=fail(error))):
        monkeypatch.setitem(KERNELS, (MatMul, "cpu"), [entry])
        with pytest.raises(bn.InternalError, match="node 'product'"):
            bn.compile(network())(X)
    monkeypatch.setitem(KERNELS, (MatMul, "cpu"), [])
    monkeypatch.setitem(DATA_SIZED, (NonZero, "cpu"), DataSized(NonZero, "cpu", fail(error), always, "broken"))
    with pytest.raises(bn.InternalError, match="node 'chosen'"):
        bn.compile(by_data())(X)
    sess = bn.compile(network())
    monkeypatch.setattr(MatMul, "infer", fail(error))
    with pytest.raises(bn.ShapeError, match="node 'product'"):
        sess(X)


def body(*outputs: str) -> Graph:
    """The body of a Loop that carries x; ``some`` has as many rows as the iteration says, ``none`` is empty."""
    graph = Graph("body")
    build = Builder(graph)
    trip = graph.add_input("trip", TensorType(I64, ()))
    cond = graph.add_input("cond", TensorType(BOOL, ()))
    x = graph.add_input("x", TensorType(F32, (3, 4)))
    made = {"cond": cond, "x": x}
    row = build(Reshape(), trip, np.array([1]))
    made["some"] = build(Slice(), x, np.array([0]), row)
    made["none"] = build(Slice(), build(Reshape(), cond, np.array([1])), np.array([0]), np.array([0]))
    for name in outputs:
        graph.add_output(made[name])
    return graph


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (("cond", "x", "some"), r"Loop: results to stack along axis 0: got \[\(0, 4\), \(1, 4\), \(2, 4\)\], wanted"),
        (("none", "x"), r"Loop: shape of the body's cond: got \[0\], wanted one element"),
    ],
)
def test_bodies_that_do_not_fit_are_faults_of_the_model(outputs: tuple[str, ...], said: str) -> None:
    graph = Graph("loop")
    x = graph.add_input("x", TensorType(F32, (3, 4)))
    count = graph.add_input("count", TensorType(I64, ()))
    node = Builder(graph).node(Loop(body(*outputs), 1), count, np.array(True), x, name="again")
    graph.add_output(node.outputs[-1], "y")
    fed = {"x": X, "count": np.array(3)}
    for run in (lambda: bn.compile(graph)(**fed), lambda: interpret(graph, fed)):
        with pytest.raises(bn.ShapeError, match=f"node 'again': {said}"):
            run()


@errors
def test_infer(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    sess = bn.compile(network())
    monkeypatch.setattr(MatMul, "infer", fail(error))
    check(lambda: sess(X), error, "product")
    with pytest.raises(bn.BoltError):
        network()


@errors
def test_maker(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Entry(MatMul, "cpu", "f32", fail(error), always, 99, "broken")
    bn.compile(network())(X)  # what registers kernels has done so
    monkeypatch.setitem(KERNELS, (MatMul, "cpu"), [broken])
    check(lambda: bn.compile(network())(X), error, "product")


@errors
def test_reference_in_a_plan(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    bn.compile(network())(X)
    monkeypatch.setitem(KERNELS, (MatMul, "cpu"), [])
    monkeypatch.setattr(MatMul, "reference", fail(error))
    check(lambda: bn.compile(network())(X), error, "product")
    check(lambda: bn.compile(network()).profile(X), error, "product")
    check(lambda: interpret(network(), {"x": X}), error, "product")


@errors
@pytest.mark.parametrize("by_kernel", [True, False])
def test_cut(error: Exception, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bn.compile(by_data())(X)
    broken = DataSized(NonZero, "cpu", fail(error), always, "broken")
    monkeypatch.setitem(DATA_SIZED, (NonZero, "cpu"), broken)
    if not by_kernel:
        monkeypatch.delitem(DATA_SIZED, (NonZero, "cpu"))
        monkeypatch.setattr(NonZero, "reference", fail(error))
    check(lambda: bn.compile(by_data())(X), error, "chosen")


@errors
def test_reader(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    model = to_onnx(network())
    bn.load(model.SerializeToString())
    for reader in READERS["", "Relu"]:
        monkeypatch.setattr(reader, "function", fail(error))
    (name,) = (n.name for n in model.graph.node if n.op_type == "Relu")
    for call in (bn.load, bn.compile, bn.InferenceSession):
        check(lambda call=call: call(model.SerializeToString()), error, name)  # type: ignore[misc]
    check(lambda: onnx_backend.prepare(model), error, name)


@errors
def test_passes(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a node: the passes as a whole."""
    sess = bn.compile(network())
    monkeypatch.setattr(pipeline, "run_pipeline", fail(error))
    for call in (lambda: bn.compile(network()), lambda: sess.optimised):
        with pytest.raises(bn.BoltError) as caught:
            call()
        assert type(caught.value.__cause__) is type(error)


def test_a_rule_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FoldConstant, "__call__", fail(AssertionError("rule")))
    np.testing.assert_array_equal(bn.compile(network())(X)["y"], X)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), bn.BudgetError),
        (RecursionError(), bn.InvalidModelError),
        (IndexError("i"), bn.InternalError),
        (ValueError("i"), bn.InternalError),
        (ModuleNotFoundError("i", name="google.protobuf"), bn.BoltError),
        (ModuleNotFoundError("i", name="bolt_numba.gone"), bn.InternalError),
        (bn.ShapeError("i"), bn.ShapeError),
        (AttributeError("i"), bn.InternalError),
        (bn.DTypeError("i"), bn.DTypeError),
        (bn.UnsupportedOpError("m", ["op"]), bn.UnsupportedOpError),
    ],
)
def test_kinds(error: Exception, kind: type[Exception]) -> None:
    assert type(at_node(error, Relu(), "n")) is kind
    assert type(as_bolt_error(error, "run")) is kind


class Odd:
    """Converts itself badly."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ArithmeticError("odd")


class Unreadable:
    """A file object that fails."""

    def read(self) -> bytes:
        raise ArithmeticError("odd")


def session() -> bn.Session:
    return bn.compile(network())


CALLS: dict[str, Callable[[], Any]] = {
    "load a number": lambda: bn.load(5),  # type: ignore[arg-type]
    "load no path": lambda: bn.load("a\0b"),
    "load a format": lambda: bn.load(b"", format="stone"),
    "load text": lambda: bn.load(b"no model"),
    "compile nothing": lambda: bn.compile(None),  # type: ignore[arg-type]
    "session of text": lambda: bn.Session("model"),  # type: ignore[arg-type]
    "threads as text": lambda: bn.compile(network(), threads="2"),  # type: ignore[arg-type]
    "threads and a half": lambda: bn.compile(network(), threads=2.5),  # type: ignore[arg-type]
    "device": lambda: bn.compile(network(), device=7),  # type: ignore[arg-type]
    "a string for floats": lambda: session()("text"),
    "ragged": lambda: session()([[1], [1, 2]]),
    "an object": lambda: session()(object()),
    "an odd object": lambda: session()(Odd()),
    "too large an integer": lambda: session()([[2**5000] * 4] * 3),
    "no mapping": lambda: session().run(None, 5),  # type: ignore[arg-type]
    "a list for a mapping": lambda: session().run(None, [X]),  # type: ignore[arg-type]
    "an unknown output": lambda: session().run(["z"], {"x": X}),
    "a buffer": lambda: session().run_into({"x": X}, {"y": [1, 2]}),  # type: ignore[dict-item]
    "negative sizes": lambda: session().warmup(x=(-3, 4)),
    "sizes in halves": lambda: session().warmup(x=(3, 4.5)),  # type: ignore[list-item]
    "no runs": lambda: session().profile(X, runs=0),
    "save a number": lambda: bn.save(5, "n.bolt"),  # type: ignore[arg-type]
    "an opset": lambda: to_onnx(network(), opset=3),
    "an output of another graph": lambda: surgery.with_outputs(network(), ["z"]),
    "inputs that are missing": lambda: onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), {}),
    "too few inputs": lambda: onnx_backend.run_node(helper.make_node("Add", ["x", "y"], ["z"]), [X]),
    "a node that does not fit": lambda: onnx_backend.run_node(helper.make_node("MatMul", ["x", "x"], ["z"]), [X]),
    "a model without a graph": lambda: onnx_backend.prepare(onnx.ModelProto()),
    "a precision in a list": lambda: bn.compile(network(), precision=["bf16"]),  # type: ignore[arg-type]
    "stages as text": lambda: bn.compile(network(), stages="canonical"),  # type: ignore[arg-type]
    "a number of stages": lambda: bn.compile(network(), stages=5),  # type: ignore[arg-type]
    "a signature in a list": lambda: bn.compile(network(), signature=["main"]),  # type: ignore[arg-type]
    "tune as an array": lambda: bn.compile(network(), tune=X),  # type: ignore[arg-type]
    "memory as a flag": lambda: bn.compile(network(), memory_limit=True),
    "a format in a list": lambda: bn.load(b"", format=["onnx"]),  # type: ignore[arg-type]
    "a path that is no text": lambda: bn.load("\ud800"),
    "a file of text": lambda: bn.load(io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8")),  # type: ignore[arg-type]
    "a file that fails": lambda: bn.load(Unreadable()),  # type: ignore[arg-type]
    "names of two kinds": lambda: session()({1: X, "z": X}),
    "one name": lambda: session().run("y", {"x": X}),
    "a number of names": lambda: session().run(5, {"x": X}),  # type: ignore[arg-type]
    "names in lists": lambda: session().run([["y"]], {"x": X}),  # type: ignore[list-item]
    "a number among names": lambda: session().run(["z", 5], {"x": X}),  # type: ignore[list-item]
    "no buffers": lambda: session().run_into({"x": X}, None),  # type: ignore[arg-type]
    "a list of buffers": lambda: session().run_into({"x": X}, [X]),  # type: ignore[arg-type]
    "a size for a shape": lambda: session().warmup(x=5),  # type: ignore[arg-type]
    "a shape of nothing": lambda: session().warmup(z=(1,)),
    "runs as text": lambda: session().profile(X, runs="many"),  # type: ignore[arg-type]
    "save a session": lambda: bn.save(session(), "n.bolt"),  # type: ignore[arg-type]
    "save to a number": lambda: bn.save(network(), 5),  # type: ignore[arg-type]
    "save to no path": lambda: bn.save(network(), "a\0b"),
    "a model of nothing": lambda: bn.Model(None),  # type: ignore[arg-type]
    "a model by numbers": lambda: bn.Model({5: network()}),  # type: ignore[dict-item]
    "verify a number": lambda: bn.verify(network(), "reference", feeds=5),  # type: ignore[arg-type]
    "pack": lambda: packed(network(), threads=["many"]),  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_values_are_bolt_errors(name: str) -> None:
    with pytest.raises(bn.BoltError) as caught:
        CALLS[name]()
    assert not isinstance(caught.value, bn.InternalError), caught.value


def test_wrong_calls_are_type_errors(tmp_path: Path) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: bn.compile(),  # type: ignore[call-arg]
        lambda: bn.Session(),  # type: ignore[call-arg]
        lambda: bn.load(),  # type: ignore[call-arg]
        lambda: session().run(None),  # type: ignore[call-arg]
        lambda: save_onnx(network(), tmp_path / "m.onnx", version=3),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call()
        assert not isinstance(caught.value, bn.BoltError)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bn.load(tmp_path / "none.onnx")


def test_an_interrupt_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sess = session()

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(MatMul, "infer", stop)
    with pytest.raises(KeyboardInterrupt):
        sess(X)


def test_names_may_come_one_by_one() -> None:
    (y,) = session().run((name for name in ("y",)), {"x": X})  # type: ignore[arg-type]
    np.testing.assert_array_equal(y, X)


def test_limits_may_be_numbers_of_numpy() -> None:
    assert bn.compile(network(), memory_limit=np.int64(1 << 30), max_plans=np.int8(3))(X)["y"].shape == (3, 4)  # type: ignore[arg-type]


def test_buffers_of_two_outputs_are_apart() -> None:
    graph = Graph("net")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (3, 4)))
    for name in ("y", "z"):
        graph.add_output(build(Relu(), x), name)
    sess, both = bn.compile(graph), np.empty((6, 4), np.float32)
    for second in (both[:3], both[2:5]):
        with pytest.raises(bn.ShapeError, match="overlap"):
            sess.run_into({"x": X}, {"y": both[:3], "z": second})
    sess.run_into({"x": X}, {"y": both[3:], "z": both[:3]})
    np.testing.assert_array_equal(both, 1)


def test_what_numpy_raises_by_request_is_not_asked_of_us() -> None:
    """``np.seterr(all="raise")`` of a caller concerns his own arithmetic."""
    cropped = "tf_crop_and_resize"
    nodes = [
        helper.make_node("Gemm", ["x", "w", "c"], ["h"], alpha=1e20, beta=1e20),
        helper.make_node("Reshape", ["h", "image"], ["i"]),
        helper.make_node("BatchNormalization", ["i", "one", "one", "one", "minus"], ["n"]),
        helper.make_node("Conv", ["n", "filter"], ["v"]),
        helper.make_node("Resize", ["v", "region", "scales"], ["y"], coordinate_transformation_mode=cropped),
    ]
    constants = {
        "w": np.full((4, 4), 1e30, F32), "c": np.full(4, 1e30, F32), "image": np.array([1, 1, 3, 4]),
        "one": np.ones(1, F32), "minus": -np.ones(1, F32), "filter": np.ones((1, 1, 1, 1), F32),
        "scales": np.ones(4, F32),
    }  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, (3, 4)), value("region", 1, (8,))], [value("y", 1, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    region = np.array([0, 0, -3e38, np.inf, 1, 1, 3e38, np.inf], F32)
    for level in ("raise", "ignore"):
        with np.errstate(all=level), pytest.raises(bn.ShapeError, match="Resize"):  # type: ignore[call-overload]
            bn.compile(content)(X, region)
        with np.errstate(all=level):  # type: ignore[call-overload]
            assert bn.compile(content)(X, np.array([0, 0, 0, 0, 1, 1, 1, 1], F32))["y"].shape == (1, 1, 3, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: write_table(3, "table.txt"),  # type: ignore[arg-type]
        lambda: write_clips(made=3, path="clips.json"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_class_is_the_callers_mistake(call: Callable[[], Any]) -> None:
    with pytest.raises(bn.DTypeError, match=r": made: got 3, wanted a Quantised$"):
        call()
