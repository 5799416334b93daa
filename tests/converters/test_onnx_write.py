"""Graphs written back as ONNX: valid models that onnxruntime computes to the same numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from bolt_numba import ops
from bolt_numba.converters.formats import load
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.structure import all_nodes
from bolt_numba.converters.onnx.writing import opset as write_opset
from bolt_numba.converters.onnx.writing import write
from bolt_numba.converters.onnx.writing.registry import WRITERS, load_writers
from bolt_numba.converters.onnx.writing.tensor import tensor_of
from bolt_numba.converters.onnx.writing.write import save_onnx, to_onnx
from bolt_numba.errors import BoltError, UnsupportedOpError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.decomposed.decompose import DECOMPOSITIONS
from bolt_numba.ops.registry import OPS
from bolt_numba.passes.pipeline import STAGES, run_pipeline
from bolt_numba.surgery import simplify
from bolt_numba.types import BF16, BOOL, F32, F64, I8, I64, STRING, U8, Array, Sym, TensorType, dtype_from_name
from tests.converters.test_onnx_microsoft_decoder import HEADS, attention, node_model
from tests.converters.test_onnx_models import ROUNDED, feeds, fetched
from tests.graphs import feeds_of, graphs, make
from tests.missing import NO_SPELLING, ops_without_spelling, told
from tests.models import MODELS
from tests.near import assert_near
from tests.onnx_score import suite
from tests.pipeline_graphs import NETWORKS
from tests.pipeline_graphs import graph as network_of
from tests.rule_cases import graph_of, i64, o, whole

onnxruntime = pytest.importorskip("onnxruntime")
ENGINE = 24
"""The opset up to which onnxruntime is asked."""


def run(model: onnx.ModelProto | Path, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Outputs of onnxruntime by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = model if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return dict(zip([x.name for x in session.get_outputs()], session.run(None, dict(inputs)), strict=True))


def agree(got: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert_near(got[name], array, tolerance, name, floor=1)


def written(graph: Graph, **options: Any) -> onnx.ModelProto:
    """The model of a graph, checked."""
    model = to_onnx(graph, **options)
    onnx.checker.check_model(model, full_check=True)
    return model


def kinds(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def check(build: Callable[..., Any], wanted: str, /, tolerance: float = 1e-5, **shapes: Any) -> onnx.ModelProto:
    """Build a graph, write it, compare its nodes and what onnxruntime makes of it with the references."""
    graph = graph_of(build, shapes)
    model = written(graph)
    assert " ".join(kinds(model)) == wanted
    data = feeds_of(graph)
    agree(run(model, data), interpret(graph, data), tolerance)
    return model


# --- real models and the public suite --------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(".onnx")])
def test_models_come_back(name: str, tmp_path: Path) -> None:
    path = fetched(name)
    save_onnx(load(path), tmp_path / "again.onnx")
    inputs = feeds(name, path)
    wanted, got = run(path, inputs), run(tmp_path / "again.onnx", inputs)
    assert list(got) == list(wanted)
    for key, array in wanted.items():
        assert_near(got[key], array, 5e-2 if name.startswith(ROUNDED) else 1e-4, key, floor=0.01)


UNFAIR = ("bernoulli", "single_tree", "ceil_last_window_starts_on_pad", "ceil_output_size_reduce_by_one", "cast_")
"""Random, of f64 trees, wrongly inferred by onnx, or converted differently by onnxruntime."""


def close(got: Sequence[Any], wanted: Sequence[Any], rtol: float) -> bool:
    pairs = [(a, b) for a, b in zip(got, wanted, strict=True) if isinstance(b, np.ndarray) and b.dtype.kind in "fiub"]
    return all(a.shape == b.shape and np.allclose(a, b, max(rtol, 1e-3), 1e-3, equal_nan=True) for a, b in pairs)


@pytest.mark.timeout(1800)
def test_a_sample_of_the_public_suite() -> None:
    """Every test of one in eight: read, written, checked, run by onnxruntime where it takes such models."""
    cases = [c for c in suite() if c.category == "node" and not any(part in c.name for part in UNFAIR)]
    ran = 0
    for case in cases[::8]:
        model, data = case.load()
        made = written(read_model(model))
        values = [np.asarray(v) if isinstance(v, np.generic) else v for v in data[0][0]]
        narrow = any(isinstance(v, np.ndarray) and v.dtype.isbuiltin == 2 for v in values)
        if opset_of(made) > ENGINE or narrow:  # onnxruntime takes no arrays of ml_dtypes
            continue
        try:
            feed = dict(zip([x.name for x in made.graph.input], values, strict=True))
            got = list(run(made, feed).values())
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
            continue
        ran += 1
        if not close(got, data[0][1], case.rtol):  # then onnxruntime must differ as much before
            assert close(got, list(run(model, feed).values()), case.rtol), case.name
    assert ran > 100


@settings(deadline=None)
@given(graphs())
def test_any_graph_comes_back(graph: Graph) -> None:
    data = feeds_of(graph)
    agree(run(written(graph), data), interpret(graph, data))


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_operator_has_a_spelling() -> None:
    ops.load_all()
    load_writers()
    told(ops_without_spelling(OPS, {*WRITERS, *DECOMPOSITIONS}, NO_SPELLING))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("last", ["recognise", "fuse"])
def test_our_own_operators_are_spelled_out(name: str, last: str) -> None:
    """What the passes make: norms, attention; then channels last, epilogues and chains, too."""
    graph = network_of(name)
    names = [s.name for s in STAGES]
    made = run_pipeline(graph, stages=STAGES[: names.index(last) + 1])
    data = feeds_of(graph)
    agree(run(written(made), data), interpret(graph, data), 1e-3)


def test_products() -> None:
    check(lambda b, x: b(o("MatMul"), x, whole(3, 4)), "MatMul", x=(2, 3))
    check(lambda b, x: b(o("MatMul"), x, whole(3, 4), whole(4)), "Gemm", x=(2, 3))
    check(lambda b, x: b(o("MatMul", trans_a=True, alpha=0.5), x, whole(2, 4)), "Gemm", x=(2, 3))
    check(
        lambda b, x, y: b(o("MatMul", trans_b=True, alpha=2.0), x, y), "Transpose MatMul Mul", x=(2, 3, 4), y=(2, 5, 4)
    )
    check(lambda b, x: b(o("MatMul", trans_b=True), x, whole(5, 4), whole(5)), "MatMul Add", x=(2, 3, 4))
    check(lambda b, x: b(o("MatMul", trans_a=True), x, whole(3, 4)), "MatMul", x=(3,))


def test_epilogues() -> None:
    def product(b: Builder, x: Value, r: Value) -> Any:
        return b(o("MatMul", activation=o("Clip", -1.0, 4.0), residual=True), x, whole(3, 4), whole(4), r)

    def convolution(b: Builder, x: Value, r: Value) -> Any:
        return b(o("Conv", activation=o("Relu"), residual=True), x, whole(4, 3, 1, 1), None, r)

    check(product, "Gemm Add Clip", x=(2, 3), r=(2, 4))
    check(convolution, "Conv Add Relu", x=(1, 3, 2, 2), r=(1, 4, 2, 2))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    def build(b: Builder, q: Value, k: Value, v: Value, mask: Value) -> Any:
        return b(o("FusedAttention", scale=0.5, causal=causal), q, k, v, mask)

    shapes: dict[str, Any] = {"q": (2, "n", 4), "k": (2, 5, 4), "v": (2, 5, 3), "mask": (5,)}
    causes = "Shape ConstantOfShape Trilu Add " if causal else ""
    check(build, f"Transpose MatMul Mul Add {causes}Softmax MatMul", tolerance=1e-4, **shapes)


def test_bounds() -> None:
    check(lambda b, x: b(o("Clip", 0.0, 2.0), x), "Clip", x=(4,))
    check(lambda b, x: b(o("Clip", None, 2), x), "Clip", x=(I64, 4))
    check(lambda b, x: b(o("Clip", None, None), x), "Identity", x=(4,))


def test_what_nobody_reads_is_left_out() -> None:
    def layer(b: Builder, x: Value) -> Any:
        return b(o("LSTM", hidden_size=4), x, whole(1, 16, 3), whole(1, 16, 4))[1]

    model = check(layer, "LSTM", tolerance=1e-4, x=(5, 2, 3))
    assert [bool(name) for name in model.graph.node[0].output] == [False, True]


def test_all_that_has_no_spelling_is_listed() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(F32, None))
    p = graph.add_input("p", TensorType(F32, (2, 3)))
    build = Builder(graph)
    graph.add_output(build(make("MaxPool", kernel_shape=(2, 2), layout="NHWC"), x, name="pool"))
    graph.add_output(build(make("PairwiseCoupling", classes=3), p, name="votes"))
    graph.add_output(build(make("Relu"), p), "y")
    with pytest.raises(UnsupportedOpError, match="2 unsupported") as caught:
        to_onnx(graph)
    assert "MaxPool at node 'pool': layout NHWC" in caught.value.items[0]
    assert caught.value.items[1] == "PairwiseCoupling at node 'votes'"


def test_channels_last_stand_between_transposes() -> None:
    """One transpose where images come in and one where they go out; none between layers."""

    def layers(b: Builder, x: Value) -> Value:
        y = b(make("Conv", layout="NHWC", pads=(1, 1, 1, 1)), x, whole(8, 3, 3, 3), whole(8))
        return b(make("MaxPool", kernel_shape=(2, 2), strides=(2, 2), layout="NHWC"), y)

    check(layers, "Transpose Conv MaxPool Transpose", x=(1, 6, 6, 3))


def test_trees() -> None:
    """A stump and a leaf alone; weights of two targets, base values, missing values to the left."""
    threshold = np.array([0.5, np.nan, np.nan, np.nan], F32)
    operands = [
        np.array([1, 0, 0, 0], np.int32), threshold, np.array([1, 0, 1, 2], np.int32), np.arange(4) == 0,
        np.array([-1, 0, 1, 2], np.int32), np.array([0, 3], np.int32), np.array([0, 1, 3, 4], np.int32),
        np.array([0, 0, 1, 1], np.int32), np.array([1, 2, 4, 8], F32), np.array([16, 32], F32),
    ]  # fmt: skip
    graph = Graph("trees")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 2)))
    graph.add_output(Builder(graph)(make("TreeEnsemble", n_targets=2), x, *operands), "y")
    data = {"x": np.array([[0, 0], [0, 1], [0, np.nan]], F32)}
    got = run(written(graph), data)
    agree(got, interpret(graph, data))
    np.testing.assert_array_equal(got["y"], [[17, 40], [18, 44], [17, 40]])


@pytest.mark.parametrize("more", [{}, {"local_window_size": 3}, {"softcap": 2.0}, {"scale": 0.3}, {"do_rotary": 1}])
def test_decoders_of_onnxruntime(more: dict[str, Any]) -> None:
    operands = attention(1, 6, np.array([6, 6], np.int32), 7, packed="softcap" in more, rotary="do_rotary" in more)
    model = node_model("GroupQueryAttention", operands, 3, HEADS | more)
    given = {name: array for name, array in operands.items() if array is not None}
    made = to_onnx(read_model(model))
    assert {(x.domain, x.version) for x in made.opset_import} == {("", 18), ("com.microsoft", 1)}
    agree(run(made, given), run(model, given), 1e-4)


@pytest.mark.parametrize(("dtype", "zero"), [(I8, 0), (U8, 128)])
@pytest.mark.parametrize("simple", [False, True])
def test_quantised_layers_of_onnxruntime(dtype: Any, zero: int, simple: bool) -> None:
    """The weights come back as they were stored, in the file's own order."""
    rng = np.random.default_rng(0)
    w, r = (rng.integers(0, 100, (1, n, 256)).astype(dtype) for n in (300, 64))
    scale, point = np.array([2**-9], F32), np.array([zero], dtype)
    operands = {
        "w": w,
        "r": r,
        "ws": scale,
        "wz": point,
        "rs": np.full((1, 256), 2**-8, F32),
        "rz": np.full((1, 256), zero, dtype),
    }
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = onnx.helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=64)
    info = onnx.helper.make_tensor_value_info("x", 1, [3, 2, 300]), onnx.ValueInfoProto(name="y")
    graph = onnx.helper.make_graph([node], "g", [info[0]], [info[1]], [tensor_of(a, n) for n, a in operands.items()])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    read = read_model(model)
    made = to_onnx(simplify(read) if simple else read)
    assert kinds(made) == ["DynamicQuantizeLSTM"]
    assert len(made.SerializeToString()) < len(model.SerializeToString()) + 1000
    data = {"x": whole(3, 2, 300)}
    agree(run(made, data), run(model, data))


# --- control flow ----------------------------------------------------------------------------------------------------

LOOP = """<ir_version: 8, opset_import: ["": 18]>
g (float[n] x, int64 trips, float[1] step) => (float[n] last, float[t, n] all, float[1] picked) {
  big = Constant <value = float[1] {3.0}> ()
  yes = Constant <value = bool {1}> ()
  last, all = Loop (trips, yes, x) <
    body = inner (int64 i, bool go, float[n] carried) => (bool on, float[n] next, float[n] kept) {
    on = Identity (go)
    sum = ReduceMax <keepdims = 0> (carried)
    more = Less (sum, trips_float)
    next = If (more) <then_branch = a () => (float[n] r) { r = Add (carried, step) },
                      else_branch = b () => (float[n] r) { r = Sub (carried, big) }>
    kept = Mul (next, x)
  }>
  trips_float = Cast <to = 1> (trips)
  positive = Greater (trips_float, step)
  is_positive = Squeeze (positive)
  picked = If (is_positive) <then_branch = c () => (float[1] r) { r = Identity (step) },
                             else_branch = d () => (float[1] r) { r = Identity (big) }>
}"""

SCAN = """<ir_version: 8, opset_import: ["": 18]>
g (float[2] s, float[3, 4, 2] x, float[2] w) => (float[2] last, float[3, 2, 4] all) {
  last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [2],
    body = inner (float[2] state, float[3, 2] slice) => (float[2] next, float[3, 2] out) {
      weighted = Mul (slice, w)
      out = Add (weighted, state)
      total = ReduceSum <keepdims = 0> (out)
      next = Add (state, total)
  }> (s, x)
}"""


@pytest.mark.parametrize("text", [LOOP, SCAN], ids=["loop", "scan"])
def test_bodies_read_what_is_around_them(text: str) -> None:
    model = onnx.parser.parse_model(text)
    made = written(read_model(model))
    inputs: dict[str, Array] = {"x": np.arange(5, dtype=F32), "trips": np.array(7), "step": np.array([0.5], F32)}
    if text is SCAN:
        inputs = {"s": whole(2), "x": whole(3, 4, 2), "w": whole(2, seed=1)}
    agree(run(made, inputs), run(model, inputs))
    names = [name for node in all_nodes(made.graph.node) for name in node.output if name]
    assert len(names) == len(set(names))


# --- names, constants, types -----------------------------------------------------------------------------------------


def test_names_stay() -> None:
    graph = Graph("names")
    graph.metadata.update(author="somebody", format="onnx")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym("n") * 2 + 1)))
    build = Builder(graph)
    y = build(make("Relu"), x, name="hidden")
    for name, value in (("first", y), ("second", y), ("x again", x), ("constant", build.const(whole(2)))):
        graph.add_output(value, name)
    graph.add_output(build(make("Neg"), y, name="first.1"), "hidden")
    model = written(graph)
    assert [x.name for x in model.graph.input] == ["x"]
    assert [x.name for x in model.graph.output] == graph.output_names
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim] == ["n", "2*n + 1"]
    assert {p.key: p.value for p in model.metadata_props} == {"author": "somebody"}
    data = {"x": whole(2, 5)}
    agree(run(model, data), interpret(graph, data))


def test_an_output_may_not_take_the_name_of_an_input() -> None:
    graph = Graph("clash")
    x = graph.add_input("x", TensorType(F32, (2,)))
    graph.add_output(Builder(graph)(make("Relu"), x), "x")
    with pytest.raises(BoltError, match="got the name 'x' of an input"):
        to_onnx(graph)


def test_constants_are_stored_once() -> None:
    def build(b: Builder, x: Value) -> Any:
        return b(o("Add"), b(o("Add"), x, whole(4, 4)), whole(4, 4)), b(o("Mul"), x, whole(4, 4, seed=1))

    assert len(check(build, "Add Add Mul", x=(4, 4)).graph.initializer) == 2
    repeated = np.broadcast_to(whole(1, 300, seed=3), (200, 300))
    model = check(lambda b, x: b(o("Add"), x, repeated), "Expand Add", x=(200, 300))
    assert len(model.SerializeToString()) < 4000


@pytest.mark.parametrize(
    "name", ["f16", "bf16", "bool", "u8", "i64", "int4", "uint4", "float8_e4m3fn", "float4_e2m1fn"]
)
def test_every_dtype_is_stored(name: str) -> None:
    dtype = dtype_from_name(name)
    array = np.array([0, 1, 2, 3, 4, 6, 1], np.float32).astype(dtype)
    back = onnx.numpy_helper.to_array(tensor_of(array))
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))
    assert tensor_of(np.array(["a", "ö"], STRING)).string_data == [b"a", "ö".encode()]


# --- files -----------------------------------------------------------------------------------------------------------


def _weighted() -> Graph:
    return graph_of(lambda b, x: b(o("Add"), b(o("MatMul"), x, whole(64, 64)), whole(64)), {"x": (2, 64)})


def test_weights_beside_the_model(tmp_path: Path) -> None:
    graph = _weighted()
    save_onnx(graph, tmp_path / "m.onnx", external=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 2000
    assert (tmp_path / "m.onnx.data").stat().st_size == 64 * 64 * 4
    data = feeds_of(graph)
    agree(run(tmp_path / "m.onnx", data), interpret(graph, data))
    agree(interpret(load(tmp_path / "m.onnx"), data), interpret(graph, data))


def test_what_is_too_large_for_one_message_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("branches")
    x = graph.add_input("x", TensorType(F32, (2, 64)))
    branches = []
    for seed in (0, 1):
        branch = Graph(f"branch{seed}")
        inside = branch.add_input("inside", x.type)
        branch.add_output(Builder(branch)(make("MatMul"), inside, whole(64, 64, seed=seed)))
        branches.append(branch)
    cond = graph.add_input("cond", TensorType(BOOL, ()))
    graph.add_output(Builder(graph)(make("If", then_branch=branches[0], else_branch=branches[1]), cond, x), "y")
    monkeypatch.setattr(write, "MAX_PROTO", 2 * 64 * 64 * 4)
    save_onnx(graph, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 2 * 64 * 64 * 4
    data = {"x": whole(2, 64), "cond": np.array(False)}
    agree(run(tmp_path / "m.onnx", data), interpret(graph, data))
    monkeypatch.setattr(write, "MAX_PROTO", 2 * 64 * 64 * 4 + 1)
    save_onnx(graph, tmp_path / "n.onnx")
    assert not (tmp_path / "n.onnx.data").exists()


@pytest.mark.parametrize("external", [False, True])
def test_a_file_appears_complete_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool) -> None:
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")

    def broken(handle: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="the disk is full"):
        save_onnx(_weighted(), target, external=external)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert target.read_bytes() == b"old"
    with pytest.raises(BoltError, match="cannot be written"):
        save_onnx(_weighted(), tmp_path / "nowhere" / "m.onnx")


# --- opsets ----------------------------------------------------------------------------------------------------------


def opset_of(model: onnx.ModelProto) -> int:
    return int(next(x.version for x in model.opset_import if not x.domain))


@pytest.mark.parametrize(
    ("operator", "dtype", "wanted"),
    [("Relu", F32, 18), ("Gelu", F32, 20), ("Swish", F32, 24), ("Sin", BF16, 22), ("Identity", I8, 18)],
)
def test_the_opset_is_what_the_nodes_need(operator: str, dtype: Any, wanted: int) -> None:
    graph = graph_of(lambda b, x: b(o(operator), x), {"x": (dtype, 4)})
    assert opset_of(written(graph)) == wanted


def many(b: Builder, x: Value) -> Any:
    """Operators whose operands were attributes once."""
    y = b(o("ReduceMean"), b(o("Unsqueeze"), b(o("Pad", "constant"), x, i64(0, 1, 0, 1)), i64(0)), i64(1))
    left, right = b(o("Split", axis=2, num_outputs=2), b(o("Slice"), y, i64(0), i64(4), i64(2), i64(1)))
    z = b(o("Softmax", -1), b(o("Clip", -2.0, None), b(o("Add"), left, right)))
    return b(o("Squeeze"), z, i64(0, 1)), b(o("Shape", start=1), x), b(o("TopK"), x, i64(1))[0]


@pytest.mark.parametrize("opset", [13, 15, 17, 22])
def test_older_opsets(opset: int) -> None:
    graph = graph_of(many, {"x": (3, 6)})
    model = written(graph, opset=opset)
    assert opset_of(model) == opset
    data = feeds_of(graph)
    agree(run(model, data), interpret(graph, data))


@pytest.mark.parametrize("name", ["Gelu", "HardSwish", "Mish", "Celu"])
def test_older_opsets_get_function_bodies(name: str) -> None:
    def build(b: Builder, x: Value) -> Any:
        return b(o(name), b(o("LayerNormalization"), x, whole(6), whole(6, seed=1)))

    graph = graph_of(build, {"x": (3, 6)})
    model = written(graph, opset=13)
    assert not {name, "LayerNormalization"} & set(kinds(model)) - {"Celu"}
    data = feeds_of(graph)
    agree(run(model, data), interpret(graph, data), 1e-4)


def test_what_an_opset_lacks_is_listed() -> None:
    graph = graph_of(lambda b, x: b(o("GridSample"), x, whole(1, 2, 2, 2)), {"x": (1, 1, 4, 4)})
    with pytest.raises(UnsupportedOpError, match=r"GridSample at node '.*' needs opset 20"):
        to_onnx(graph, opset=13)
    for wrong in (6, 1000):
        with pytest.raises(BoltError, match=f"opset: got {wrong}"):
            to_onnx(graph, opset=wrong)


def test_types_are_spelled_as_schemas_do() -> None:
    sequence = make("SequenceEmpty").infer()
    assert write_opset.type_text(sequence) == "seq(tensor(float))"
    assert write_opset.type_text(TensorType(F64, None)) == "tensor(double)"
    assert write_opset.type_text(make("OptionalEmpty", dtype=BOOL).infer()) == "optional(tensor(bool))"
