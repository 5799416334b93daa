"""Surgery: simplified, reshaped and cut models compute what the original computes, and errors say what is meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.errors import BoltError, DTypeError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.passes.pipeline import portable
from bolt_numba.passes.trace import Trace
from bolt_numba.types import F32, I8, I64, U8, Sym
from tests.converters.test_onnx_models import ROUNDED, feeds, fetched
from tests.graphs import feeds_of, graphs
from tests.near import assert_near
from tests.rule_cases import f32, graph_of, i64, o, whole

DIGITS = str(Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx")


def same(before: Graph, after: Graph, tolerance: float = 0.0) -> None:
    """Both compute the same from whole numbers."""
    verify(after)
    data = feeds_of(before)
    wanted, got = interpret(before, data), interpret(after, data)
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert_near(got[name], array, tolerance, name, floor=1)


def kinds(graph: Graph) -> str:
    return " ".join(n.op.name for n in graph.nodes)


def simplified(build: Callable[..., Any], wanted: str, tolerance: float = 1e-5, **shapes: Any) -> Graph:
    graph = graph_of(build, shapes)
    made = surgery.simplify(graph)
    assert kinds(made) == wanted
    same(graph, made, tolerance)
    return made


# --- simplify --------------------------------------------------------------------------------------------------------

NODES = {
    "ch_PP-OCRv4_det_infer.onnx": 177,
    "ch_PP-OCRv4_rec_infer.onnx": 223,
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": 125,
    "silero_vad.onnx": 148,
    "silero_vad_16k_op15.onnx": 74,
    "silero_vad_16k_sequence.onnx": 25,
    "silero_vad_half.onnx": 73,
    "silero_vad_op18_ifless.onnx": 86,
    "silero_vad_openvino_16k.onnx": 29,
    "bilstm.int8.onnx": 46,
    "rawi.int8.onnx": 20,
    "minilm.onnx": 326,
    "open_nsfw.onnx": 384,
    "nmp.onnx": 168,
}
"""The most nodes that a model may keep, those of subgraphs included."""


def count(graph: Graph) -> int:
    return len(graph.nodes) + sum(count(sub) for _, sub in graph.subgraphs())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NODES)
def test_models_keep_their_meaning_and_few_nodes(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = fetched(name)
    graph = surgery.simplify(bn.load(path))
    assert count(graph) <= NODES[name]
    target = tmp_path / "simple.onnx"
    surgery.save_onnx(graph, target)
    assert target.stat().st_size <= 1.01 * path.stat().st_size
    inputs = feeds(name, path)
    wanted, got = (onnxruntime.InferenceSession(p).run(None, inputs) for p in (path, target))
    for a, array in zip(got, wanted, strict=True):
        assert_near(a, array, 5e-2 if name.startswith(ROUNDED) else 1e-4, floor=0.01)


@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    same(graph, surgery.simplify(graph))


def test_what_is_constant_is_computed() -> None:
    def build(b: Builder, x: Value) -> Any:
        rows = b(o("Gather"), b(o("Shape"), x), i64(0))
        shape = b(o("Concat", 0), rows, b(o("Mul"), i64(2), i64(3)))
        y = b(o("Identity"), b(o("Reshape"), x, shape))
        b(o("Neg"), x)
        return b(o("Add"), y, b(o("Relu"), f32(-1, 2, 0, 0, 0, 1))), b(o("Add"), y, f32(0, 2, 0, 0, 0, 1))

    made = simplified(build, "Reshape Add", x=("n", 2, 3))
    assert made.outputs[0] is made.outputs[1]


def test_a_certain_branch_is_inlined() -> None:
    def build(b: Builder, x: Value) -> Any:
        branches = []
        for name in ("Neg", "Relu"):
            branch = Graph(name)
            branch.add_output(Builder(branch)(o(name), branch.add_input("x", x.type)))
            branches.append(branch)
        return b(o("If", *branches), b(o("Less"), i64(1), i64(2)), x)

    simplified(build, "Neg", x=(2,))


def test_weights_take_up_what_follows() -> None:
    def build(b: Builder, x: Value) -> Any:
        statistics = [np.abs(whole(4, seed=i)) + 1 for i in range(4)]
        y = b(o("Conv"), b(o("Pad"), x, i64(0, 0, 1, 1, 0, 0, 1, 1)), whole(4, 3, 3, 3))
        y = b(o("Relu"), b(o("BatchNormalization"), y, *statistics))
        return b(o("BatchNormalization"), y, *statistics)

    made = simplified(build, "Conv Relu BatchNormalization", x=(1, 3, 4, 4))
    assert made.nodes[0].op.pads == (1, 1, 1, 1)  # type: ignore[attr-defined]


def test_activations_are_recognised_before_weights_take_their_factors() -> None:
    def build(b: Builder, x: Value) -> Any:
        y = b(o("Mul"), x, b(o("Clip", 0.0, 6.0), b(o("Add"), x, f32(3))))
        return b(o("Conv"), b(o("Div"), y, f32(6)), whole(4, 3, 1, 1))

    simplified(build, "HardSwish Conv", x=(1, 3, 4, 4))


def test_the_model_does_not_grow() -> None:
    narrow = np.arange(300 * 200, dtype=np.int64).reshape(300, 200).astype(I8)

    def build(b: Builder, x: Value) -> Any:
        y = b(o("MatMul"), x, b(o("Mul"), b(o("Cast", F32), narrow), f32(0.5)))
        return b(o("Add"), y, b(o("ConstantOfShape", 1.0, F32), i64(100, 200)))

    graph = graph_of(build, {"x": (100, 300)})
    assert kinds(surgery.simplify(graph)) == "Cast Mul MatMul ConstantOfShape Add"
    grown = surgery.simplify(graph, growth=1 << 20)
    assert kinds(grown) == "MatMul Add"
    same(graph, grown)


def test_one_constant_in_parts() -> None:
    """A weight whose parts are all that is read is cut, however large it is; otherwise it is stored once."""
    weight = whole(300, 200)

    def build(b: Builder, x: Value) -> Any:
        halves = [b(o("Slice"), weight_of(b), i64(100 * i), i64(100 * i + 100), i64(1)) for i in (0, 1)]
        return b(o("MatMul"), b(o("MatMul"), x, halves[0]), b(o("Transpose", (1, 0)), halves[1]))

    kept: list[Value] = []

    def weight_of(b: Builder) -> Value:
        if not kept:
            kept.append(b.const(weight))
        return kept[0]

    simplified(build, "MatMul MatMul", x=(4, 300))


# --- rules of their own ----------------------------------------------------------------------------------------------


def test_slices_become_one() -> None:
    def other_axes(b: Builder, x: Value) -> Any:
        return b(o("Slice"), b(o("Slice"), x, i64(1), i64(3), i64(-1)), i64(0), i64(1), i64(0), i64(2))

    def one_axis(b: Builder, x: Value) -> Any:
        y = b(o("Slice"), x, i64(-1, 1), i64(-99, 6), i64(1, 0), i64(-1, 1))
        return b(o("Slice"), y, i64(1, 0), i64(99, 4), i64(1, 0), i64(2, 3))

    def read_twice(b: Builder, x: Value) -> Any:
        y = b(o("Slice"), x, i64(0), i64(5), i64(0))
        return b(o("Slice"), y, i64(1), i64(3), i64(0)), y

    simplified(other_axes, "Slice", x=("n", 4))
    simplified(one_axis, "Slice", x=(8, 7))
    simplified(read_twice, "Slice Slice", x=(8, 7))


@pytest.mark.parametrize(("dtype", "zero"), [(I8, 0), (I8, -3), (U8, 128)])
def test_weights_in_8_bits_stay_so(dtype: Any, zero: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 100, (2, 64, 256)).astype(dtype)
    recurrent = rng.integers(0, 100, (2, 256, 64)).astype(dtype)

    def build(b: Builder, x: Value) -> Any:
        wide = b(o("Cast", F32), codes)
        wide = b(o("Sub"), wide, f32(zero)) if zero else wide
        w = b(o("Transpose", (0, 2, 1)), b(o("Mul"), wide, f32(2**-9, 2**-10).reshape(2, 1, 1)))
        r = b(o("Reshape"), b(o("Mul"), b(o("Cast", F32), recurrent), np.array(2**-10, F32)), i64(2, 256, 64))
        return b(o("LSTM", direction="bidirectional", hidden_size=64), x, w, r)[0]

    made = simplified(build, "DequantizeLinear DequantizeLinear LSTM", x=(3, 1, 64))
    assert {v.const.dtype for v in made.constants() if v.const is not None and v.const.size > 999} == {dtype}


def test_weights_of_products_and_tables_are_scaled_as_they_were() -> None:
    codes = np.ones((300, 200), I8)

    def table(b: Builder, x: Value) -> Any:
        scaled = b(o("Mul"), b(o("Cast", F32), codes), np.full((300, 1), 0.5, F32))
        return b(o("Gather"), scaled, b(o("Cast", I64), x))

    def blocks(b: Builder, x: Value) -> Any:
        scaled = b(o("Mul"), b(o("Cast", F32), codes), whole(300, 200))
        return b(o("Add"), x, scaled)

    simplified(table, "Cast Mul Cast Gather", x=())
    simplified(blocks, "Cast Mul Add", x=(300, 200))


def test_zero_states_are_left_out() -> None:
    def build(b: Builder, x: Value) -> Any:
        batch = b(o("Gather"), b(o("Shape"), x), i64(1))
        zeros = b(o("ConstantOfShape", 0.0, F32), b(o("Concat", 0), i64(2), batch, i64(4)))
        first, second = (b(o("Slice"), zeros, i64(i), i64(i + 1), i64(0)) for i in (0, 1))
        ones = b(o("ConstantOfShape", 1.0, F32), b(o("Concat", 0), i64(1), batch, i64(4)))
        weights = whole(1, 16, 3), whole(1, 16, 4)
        y = b(o("LSTM", hidden_size=4), x, *weights, None, None, first, second)[1]
        return y, b(o("LSTM", hidden_size=4), x, *weights, None, None, ones, second)[1]

    made = simplified(build, "Shape Gather Concat ConstantOfShape LSTM LSTM", x=(5, "n", 3))
    assert sorted(len(n.inputs) for n in made.nodes if n.op.name == "LSTM") == [3, 6]


def test_every_rule_fires() -> None:
    """On a graph that has a place for each."""

    def build(b: Builder, x: Value) -> Any:
        part = b(o("Slice"), b(o("Slice"), x, i64(0), i64(3), i64(0)), i64(0), i64(1), i64(1))
        wide = b(o("Add"), b(o("Cast", F32), np.ones((1, 256, 128), I8)), f32(2))
        w = b(o("Transpose", (0, 2, 1)), b(o("Mul"), wide, f32(0.5)))
        r = b(o("Mul"), b(o("Cast", F32), np.ones((1, 128, 128), I8)), f32(0.5))
        y = b(o("RNN", hidden_size=128), part, w, r, None, None, np.zeros((1, 1, 128), F32))[0]
        return b(o("BatchNormalization"), b(o("Conv"), y, whole(4, 1, 1, 1)), *(np.ones(4, F32),) * 4)

    trace = Trace()
    graph = graph_of(build, {"x": (5, 2, 256)})
    made = surgery.simplify(graph, trace=trace)
    assert kinds(made) == "Slice DequantizeLinear DequantizeLinear RNN Conv"
    assert {r.name for r in portable.RULES} <= set(trace.counts())
    same(graph, made, 1e-5)


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_symbols_get_their_sizes_everywhere() -> None:
    def build(b: Builder, x: Value, y: Value) -> Any:
        grown = b(o("Concat", 0), x, y)
        flat = b(o("Reshape"), grown, b(o("Concat", 0), b(o("Size"), grown), i64()))
        return grown, flat

    graph = graph_of(lambda b, x, y: b(o("Concat", 0), x, y), {"x": ("n", 3), "y": ("n", "m")})
    made = surgery.with_shapes(graph, {"x": (4, 3)})
    assert [str(v.type) for v in (*made.inputs, *made.outputs)] == ["f32[4, 3]", "f32[4, m]", "f32[8, 3]"]
    assert graph.inputs[0].type.shape == (Sym("n"), 3)
    verify(made)


LOOP = """<ir_version: 8, opset_import: ["": 18]>
g (float[n, k] x, int64 trips, bool c) => (float[n, k] last, float[t, n] all, float[r, s] grown, float[u, v] picked) {
  yes = Constant <value = bool {1}> ()
  last, grown, all = Loop (trips, yes, x, x) <
    body = inner (int64 i, bool go, float[n, k] kept, float[m, k] old)
        => (bool on, float[n, k] next, float[p, k] more, float[n] out) {
      on = Identity (go)
      next = Mul (kept, x)
      more = Concat <axis = 0> (old, x)
      axes = Constant <value_ints = [1]> ()
      out = ReduceSum <keepdims = 0> (next, axes)
    }>
  picked = If (c) <then_branch = a () => (float[n, k] r) { r = Neg (last) },
                   else_branch = b () => (float[q, k] r) { r = Relu (grown) }>
}"""


def test_bodies_are_inferred_again() -> None:
    graph = read_model(onnx.parser.parse_model(LOOP))
    made = surgery.with_shapes(graph, {"x": (2, 3)})
    verify(made)
    last, every, grown, picked = (v.type.shape for v in made.outputs)
    assert last == (2, 3)
    assert every is not None
    assert every[1] == 2
    assert grown is not None
    assert isinstance(grown[0], Sym)
    assert grown[1] == 3
    assert picked is not None
    assert picked[1] == 3
    body = next(sub for _, sub in made.subgraphs())
    assert [v.type.shape for v in body.inputs[2:3]] == [(2, 3)]
    data = {"x": whole(2, 3), "trips": np.array(3), "c": np.array(False)}
    for name, array in interpret(graph, data).items():
        np.testing.assert_array_equal(interpret(made, data)[name], array)


def test_a_branch_that_is_not_taken_may_not_fit() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    g (float[n, 2] x, bool c) => (float[m, 2] y) {
      axes = Constant <value_ints = [0]> ()
      y = If (c) <then_branch = a () => (float[n, 2] r) { r = Neg (x) },
                  else_branch = b () => (float[1, 2] r) { s = Squeeze (x, axes)  r = Unsqueeze (s, axes) }>
    }""")
    made = surgery.with_shapes(read_model(model), {"x": (3, 2)})
    verify(made)
    x = whole(3, 2)
    np.testing.assert_array_equal(interpret(made, {"x": x, "c": np.array(True)})["y"], -x)


SCAN = """<ir_version: 8, opset_import: ["": 18]>
g (float[k] s, float[n, k] x) => (float[k] last, float[n, k] all) {
  last, all = Scan <num_scan_inputs = 1,
    body = inner (float[k] state, float[k] slice) => (float[k] next, float[k] out) {
      next = Add (state, slice)
      out = Identity (next) }> (s, x) }"""


def test_scans_are_inferred_again() -> None:
    graph = read_model(onnx.parser.parse_model(SCAN))
    made = surgery.with_shapes(graph, {"x": (4, 3)})
    assert [v.type.shape for v in made.outputs] == [(3,), (4, 3)]
    same(surgery.with_shapes(graph, {"x": (4, 3)}), surgery.simplify(made))


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"xx": (1,)}, "input: got 'xx', wanted 'x'"),
        ({"x": (2,)}, r"input 'x': got shape \[2\], wanted one of f32\[n, 3\]"),
        ({"x": (2, 4)}, r"input 'x': got shape \[2, 4\]"),
        ({"x": (-1, 3)}, r"got shape \[-1, 3\]"),
        ({"x": (2, 3), "y": (4, 1)}, "dimension n: got 4, wanted 2 as elsewhere"),
        ({"y": (2, 2)}, "node 'Concat': Concat: shapes of operands"),
    ],
)
def test_wrong_shapes(shapes: dict[str, Any], text: str) -> None:
    graph = graph_of(lambda b, x, y: b(o("Concat", 0), x, y), {"x": ("n", 3), "y": ("n", "m")})
    with pytest.raises((BoltError, ShapeError), match=text):
        surgery.with_shapes(graph, shapes)


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def net() -> Graph:
    """x -> a -> b -> c, and d = a + y."""

    def build(b: Builder, x: Value, y: Value, unused: Value) -> Any:
        a = b(o("Relu"), x, name="a")
        d = b(o("Add"), a, y, name="d")
        return b(o("Neg"), b(o("Mul"), a, f32(2), name="b"), name="c"), d

    return graph_of(build, {"x": ("n", 3), "y": ("n", 3), "unused": (1,)})


def names(graph: Graph) -> tuple[list[str], list[str]]:
    return [v.name for v in graph.inputs], graph.output_names


def test_extract(net: Graph) -> None:
    part = surgery.extract(net, ["a"], ["b", "out0"])
    assert names(part) == (["a"], ["b", "out0"])
    assert kinds(part) == "Mul Neg"
    verify(part)
    (b, c) = interpret(part, {"a": f32(1, 2, 3).reshape(1, 3)}).values()
    np.testing.assert_array_equal(-b, c)
    assert names(surgery.extract(net, [], ["out0"])) == (["x"], ["out0"])
    assert names(surgery.extract(net, ["a", "y"], ["out1"])) == (["a", "y"], ["out1"])
    assert names(net) == (["x", "y", "unused"], ["out0", "out1"])


def test_outputs_and_unused(net: Graph) -> None:
    wide = surgery.with_outputs(net, ["b", "x", "out1"])
    assert names(wide) == (["x", "y", "unused"], ["b", "x", "out1"])
    verify(wide)
    assert names(surgery.without_unused(wide)) == (["x", "y"], ["b", "x", "out1"])
    assert names(surgery.without_unused(surgery.with_outputs(net, ["b"]))) == (["x"], ["b"])


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (["aa"], ["ou0", "nothing like it"], "got 'aa', wanted 'a'; got 'ou0', wanted 'out0'; got 'nothing"),
        (["a"], ["out1"], "the outputs also depend on y; name them too"),
        (["b"], ["a"], r"got \['b'\], wanted tensors that the outputs depend on"),
        (["x", "a"], ["out0"], r"got \['x'\], wanted tensors that the outputs depend on"),
    ],
)
def test_impossible_parts(net: Graph, inputs: list[str], outputs: list[str], text: str) -> None:
    with pytest.raises(BoltError, match=text):
        surgery.extract(net, inputs, outputs)


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_channels_first() -> None:
    """Images only, or what is named; no transpose is left between layers."""
    layer = lambda b, x, y: (  # noqa: E731
        b(o("MaxPool", (2, 2), layout="NHWC"), b(o("Conv", layout="NHWC"), x, whole(8, 3, 3, 3))), b(o("Relu"), y)
    )
    net = graph_of(layer, {"x": (1, 9, 7, 3), "y": (2, 3, 4)})
    made = surgery.channels_first(net)
    verify(made)
    assert [v.type.shape for v in made.inputs] == [(1, 3, 9, 7), (2, 3, 4)]
    assert names(made) == names(net)
    data = feeds_of(net)
    images, others = interpret(net, data).values()
    turned = {**data, "x": np.ascontiguousarray(data["x"].transpose(0, 3, 1, 2))}
    session = bn.compile(made)
    for got in (list(interpret(made, turned).values()), session.run(None, turned)):
        np.testing.assert_array_equal(got[0].transpose(0, 2, 3, 1), images)
        np.testing.assert_array_equal(got[1], others)
    assert kinds(session.optimised).count("Transpose") <= 2
    assert [v.type.shape for v in surgery.channels_first(net, ["y"]).inputs] == [(1, 9, 7, 3), (2, 4, 3)]
    both = surgery.channels_first(graph_of(lambda b, x: x, {"x": (1, 2, 2, 3)}))
    assert both.outputs[0].type.shape == (1, 3, 2, 2)
    with pytest.raises(BoltError, match="got 'z', wanted 'out"):
        surgery.channels_first(net, ["z"])
    with pytest.raises(ShapeError, match="wanted a known rank of at least 3"):
        surgery.channels_first(graph_of(lambda b, x: b(o("Relu"), x), {"x": (2, 3)}), ["x"])


# --- what is unsupported ---------------------------------------------------------------------------------------------

MIXED = """<ir_version: 8, opset_import: ["": 18, "acme": 1]>
g (float[2, 3] x, bool c) => (float[2, 3] y) {
  a = acme.Blob (x)
  b = Transpose <perm = [1, 0]> (a)
  d = acme.Blob (b)
  e = Dropout (x, half, c)
  f = Relu (e)
  half = Constant <value = float {0.5}> ()
  g = If (c) <then_branch = t () => (float[2, 3] r) { r = acme.Other (f) },
              else_branch = u () => (float[2, 3] r) { r = acme.Blob (f) }>
  h = Reshape (d, s)
  s = Shape (x)
  y = Add (g, h)
}"""


def test_all_that_is_unsupported_is_found() -> None:
    found = surgery.unsupported(onnx.parser.parse_model(MIXED).SerializeToString())
    wanted = {"a": "acme", "d": "acme", "r": "Other"}
    assert sum("Blob (domain acme" in line for line in found) == 3
    assert all(any(f"at node '{name}'" in line and text in line for line in found) for name, text in wanted.items())
    assert surgery.unsupported(DIGITS) == []


def test_invalid_models_stay_errors() -> None:
    broken = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Add (x) }'
    )
    with pytest.raises(bn.InvalidModelError):
        surgery.unsupported(broken.SerializeToString())


def test_channels_that_are_first_are_not_turned() -> None:
    """Nets of Caffe and Paddle have them first; who names an input knows better."""
    net = graph_of(lambda b, x: (b(o("Relu"), x),), {"x": (1, 3, 9, 7)})
    net.metadata["format"] = "caffe"
    with pytest.raises(bn.BoltError, match="got them first, as in models of caffe, wanted them last"):
        surgery.channels_first(net)
    assert surgery.channels_first(net, ["x"]).inputs[0].type.shape == (1, 7, 3, 9)


@pytest.mark.parametrize("change", [surgery.simplify, surgery.without_unused, surgery.channels_first])
def test_what_is_no_graph_is_refused(change: Callable[[Any], Graph]) -> None:
    with pytest.raises(DTypeError, match="graph: got a str, wanted a Graph"):
        change("model.onnx")
