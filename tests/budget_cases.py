"""Small models that ask for much: each once took gigabytes, hours or the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

Case: TypeAlias = tuple[onnx.ModelProto, dict[str, Any]]
CASES: dict[str, tuple[Callable[[], Case], str]] = {}
"""By name: what makes the model and its inputs, and how it must end: an error's name, "ok", or "" for either."""

KINDS = {"f": T.FLOAT, "i": T.INT64, "s": T.STRING, "b": T.BOOL}
node = helper.make_node
BIG = 1 << 34


def case(ends: str = "BudgetError") -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a model."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES[make.__name__] = make, ends
        return make

    return register


def value(name: str, kind: str, shape: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, KINDS[kind], shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


F3 = np.array([1, 2, 3], np.float32)


def sized(op: str, first: str, operand: str, given: Any, **attributes: Any) -> tuple[Callable[[], Case], ...]:
    """A node whose second operand sizes the result: as an input, and as a constant."""
    x = np.array(["a"], object) if first == "s" else F3
    nodes = [node(op, ["x", operand], ["y"], **attributes)]
    ends = [value("y", first, None)]
    dynamic = model(nodes, [value("x", first, x.shape), value(operand, "i", given.shape)], ends)
    constant = model(nodes, [value("x", first, x.shape)], ends, {operand: given})
    return lambda: (dynamic, {"x": x, operand: given}), lambda: (constant, {"x": x})


for _name, _op, _first, _given in (
    ("expand", "Expand", "f", ints(BIG, 3)),
    ("tile", "Tile", "f", ints(BIG)),
    ("pad", "Pad", "f", ints(0, BIG)),
    ("strings", "Expand", "s", ints(1 << 29)),
):
    for _how, _make in zip(("by_data", "constant"), sized(_op, _first, "n", _given), strict=True):
        CASES[f"{_name}_{_how}"] = _make, "BudgetError"


@case()
def constant_of_shape() -> Case:
    return model([node("ConstantOfShape", ["n"], ["y"])], [value("n", "i", (1,))], [value("y", "f")]), {"n": ints(BIG)}


@case()
def constant_of_shape_known() -> Case:
    nodes = [node("ConstantOfShape", ["n"], ["z"]), node("Exp", ["z"], ["e"]), node("Add", ["e", "x"], ["y"])]
    return model(nodes, [value("x", "f", (1,))], [value("y", "f")], {"n": ints(BIG)}), {"x": F3[:1]}


@case()
def range_by_data() -> Case:
    limits = {"a": np.array(0), "b": np.array(BIG), "c": np.array(1)}
    return model([node("Range", list(limits), ["y"])], [value(k, "i", ()) for k in limits], [value("y", "i")]), limits


@case()
def one_hot() -> Case:
    inputs = [value("x", "i", (3,)), value("d", "i", (1,)), value("v", "f", (2,))]
    feeds = {"x": ints(0, 1, 2), "d": ints(BIG), "v": F3[:2]}
    return model([node("OneHot", ["x", "d", "v"], ["y"])], inputs, [value("y", "f")]), feeds


@case()
def window() -> Case:
    return model([node("HannWindow", ["n"], ["y"])], [value("n", "i", ())], [value("y", "f")]), {"n": np.array(BIG)}


@case()
def resize() -> Case:
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="linear")]
    inputs = [value("x", "f", (1, 1, 8, 8)), value("s", "f", (4,))]
    scales = np.array([1, 1, 8000, 8000], np.float32)
    return model(nodes, inputs, [value("y", "f")]), {"x": np.ones((1, 1, 8, 8), np.float32), "s": scales}


@case()
def resize_between_axes() -> Case:
    """The result is small, what stands between its axes is not."""
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="cubic", antialias=1)]
    inputs = [value("x", "f", (1, 1, 8, 65536)), value("s", "f", (4,))]
    scales = np.array([1, 1, 20000, 1 / 65536], np.float32)
    return model(nodes, inputs, [value("y", "f")]), {"x": np.ones((1, 1, 8, 65536), np.float32), "s": scales}


@case()
def einsum() -> Case:
    nodes = [node("Einsum", ["x", "x"], ["y"], equation="a,b->ab")]
    return model(nodes, [value("x", "f", ("n",))], [value("y", "f")]), {"x": np.ones(65536, np.float32)}


@case()
def einsum_between() -> Case:
    """The result is small, what stands between its products is not."""
    nodes = [node("Einsum", ["x", "x", "x"], ["y"], equation="ab,cd,ef->ace")]
    return model(nodes, [value("x", "f", ("n", 1))], [value("y", "f")]), {"x": np.ones((900, 1), np.float32)}


@case()
def concat_doubling() -> Case:
    nodes = [node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(40)]
    return model(nodes, [value("v0", "f", ("n",))], [value("v40", "f")]), {"v0": F3}


@case()
def strings_doubling() -> Case:
    nodes = [node("StringConcat", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(40)]
    return model(nodes, [value("v0", "s", (1,))], [value("v40", "s")]), {"v0": np.array(["ab"], object)}


@case()
def strings_doubling_known() -> Case:
    nodes = [node("StringConcat", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(40)]
    nodes += [node("StringConcat", ["v40", "x"], ["y"])]
    held = {"v0": np.array(["ab"], object)}
    return model(nodes, [value("x", "s", (1,))], [value("y", "s")], held), {"x": np.array(["c"], object)}


def _pool(op: str, pad: int, kernel: int, stride: int = 1, **more: int) -> Case:
    nodes = [node(op, ["x"], ["y"], kernel_shape=[kernel], pads=[pad, pad], strides=[stride], **more)]
    return model(nodes, [value("x", "f", (1, 1, 3))], [value("y", "f")]), {"x": F3.reshape(1, 1, 3)}


@case("")
def average_pool_pads() -> Case:
    return _pool("AveragePool", (1 << 31) - 1, 1 << 31)


@case("")
def average_pool_pads_counted() -> Case:
    return _pool("AveragePool", 1 << 31, 2, 1 << 31, count_include_pad=1)


@case("")
def max_pool_pads() -> Case:
    return _pool("MaxPool", 1 << 31, 1 << 31, 1 << 31)


@case("")
def lp_pool_pads() -> Case:
    return _pool("LpPool", 1 << 31, 3, 1 << 31)


def _transposed(stride: int, pad: int = 0) -> Case:
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], strides=[stride], pads=[pad, pad])]
    x, w = F3.reshape(1, 1, 3), np.ones((1, 1, 3), np.float32)
    return model(nodes, [value("x", "f", (1, 1, 3))], [value("y", "f")], {"w": w}), {"x": x}


@case()
def conv_transpose() -> Case:
    return _transposed(10**9)


@case("")
def conv_transpose_endless() -> Case:
    return _transposed(1 << 62)


@case("")
def conv_transpose_cut() -> Case:
    return _transposed(10**9, 10**9 - 1)


@case("ok")
def tf_idf() -> Case:
    nodes = [
        node(
            "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=2, max_gram_length=2, max_skip_count=1 << 40,
            ngram_counts=[0, 0], ngram_indexes=[0], pool_int64s=[1, 2],
        )
    ]  # fmt: skip
    return model(nodes, [value("x", "i", (3,))], [value("y", "f")]), {"x": ints(1, 2, 3)}


def _loop(results: bool, known: bool) -> Case:
    body = helper.make_graph(
        [node("Identity", ["c"], ["c2"]), node("Add", ["a", "a"], ["a2"]), node("Identity", ["a"], ["r"])], "body",
        [value("i", "i", ()), value("c", "b", ()), value("a", "f", (1,))],
        [value("c2", "b", ()), value("a2", "f", (1,)), *([value("r", "f", (1,))] if results else [])],
    )  # fmt: skip
    outs = ["y", "z"][: 1 + results]
    nodes = [node("Loop", ["n", "", "x"], outs, body=body)]
    trips = {"n": np.array(1 << 62)}
    ends = [value(o, "f") for o in outs]
    if not known:
        return model(nodes, [value("n", "i", ()), value("x", "f", (1,))], ends), {**trips, "x": F3[:1]}
    nodes.append(node("Add", ["y", "u"], ["w"]))
    return model(nodes[:1], [value("u", "f", (1,))], ends, {**trips, "x": F3[:1]}), {"u": F3[:1]}


def endless_loop() -> Case:
    """Only an interruption ends it."""
    return _loop(False, known=False)


@case("ok")
def loop_known() -> Case:
    """Loading must not run it."""
    made, feeds = _loop(False, known=True)
    made.graph.node.append(node("If", ["e"], ["w"], then_branch=_branch("y"), else_branch=_branch("u")))
    made.graph.initializer.append(numpy_helper.from_array(np.array(False), "e"))
    del made.graph.output[:]
    made.graph.output.append(value("w", "f"))
    made.graph.input.append(value("h", "i", ()))
    return made, feeds | {"h": np.array(0)}


def _branch(name: str) -> onnx.GraphProto:
    return helper.make_graph([node("Identity", [name], ["o"])], "branch", [], [value("o", "f")])


@case("ok")
def regex() -> Case:
    nodes = [node("RegexFullMatch", ["x"], ["y"], pattern="(a|aa)+$|(a*)*b")]
    return model(nodes, [value("x", "s", (1,))], [value("y", "b")]), {"x": np.array(["a" * 60 + "c"], object)}


def _rois(scale: float) -> Case:
    nodes = [node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2, sampling_ratio=0)]
    inputs = [value("x", "f", (1, 1, 8, 8)), value("r", "f", (1, 4)), value("b", "i", (1,))]
    feeds = {
        "x": np.ones((1, 1, 8, 8), np.float32), "r": np.array([[0, 0, scale, scale]], np.float32), "b": ints(0),
    }  # fmt: skip
    return model(nodes, inputs, [value("y", "f")], opset=22), feeds


@case("ok")
def roi_align() -> Case:
    return _rois(1e7)


@case("ok")
def roi_align_infinite() -> Case:
    return _rois(float("inf"))


@case("ok")
def symbols() -> Case:
    nodes = [node("Shape", ["x"], ["s0"])]
    nodes += [node("Mul", [f"s{i}"] * 2, [f"s{i + 1}"]) for i in range(28)]
    return model(nodes, [value("x", "f", ("n",))], [value("s28", "i")]), {"x": F3}


@case("ok")
def products_of_constants() -> Case:
    """A small file whose folding takes long."""
    nodes = [node("ConstantOfShape", ["n"], ["m0"])]
    nodes += [node("MatMul", [f"m{i}"] * 2, [f"m{i + 1}"]) for i in range(8)]
    nodes += [node("ReduceSum", ["m8"], ["s"]), node("Add", ["s", "x"], ["y"])]
    return model(nodes, [value("x", "f", (1,))], [value("y", "f")], {"n": ints(2000, 2000)}), {"x": F3[:1]}


@case("ok")
def wide_sum() -> Case:
    return model([node("Sum", ["x"] * 16000, ["y"])], [value("x", "f", (3,))], [value("y", "f")]), {"x": F3}


@case("ok")
def many_inputs() -> Case:
    names = [f"x{i}" for i in range(20000)]
    nodes = [node("Sum", names, ["y"])]
    return model(nodes, [value(n, "f", (3,)) for n in names], [value("y", "f")]), dict.fromkeys(names, F3)


@case("ok")
def long_chain() -> Case:
    ops = ("Relu", "Neg", "Exp", "Sigmoid", "Tanh", "Abs")
    nodes = [node(ops[i % 6], [f"v{i}"], [f"v{i + 1}"]) for i in range(50000)]
    return model(nodes, [value("v0", "f", (3,))], [value("v50000", "f")]), {"v0": F3}


@case("ok")
def one_value_read_often() -> Case:
    nodes = [node("Add", [f"v{i}", "v0"], [f"v{i + 1}"]) for i in range(50000)]
    return model(nodes, [value("v0", "f", (3,))], [value("v50000", "f")]), {"v0": F3}
