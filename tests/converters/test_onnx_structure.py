"""Structure of ONNX models: names, order, functions, subgraphs, and what messages say when it is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import helper

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.structure import NEWEST
from bolt_numba.errors import DTypeError, InvalidModelError, ShapeError, UnsupportedOpError
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array, Sym

X = np.arange(-3, 3, dtype=np.float32)


def read(text: str, opset: int = 18, header: str = "", name: str = "m.onnx") -> Graph:
    """A graph in onnx's text form, whose signature and body are given."""
    head = f'<ir_version: 8, opset_import: ["": {opset}{header}]>'
    return read_model(onnx.parser.parse_model(head + text), name=name)


def run(graph: Graph, **feeds: Array) -> list[Array]:
    return list(interpret(graph, feeds).values())


def test_names_of_tensors_are_kept() -> None:
    graph = read("g (float[6] x) => (float[6] y) { a = Gemm2D(x) y = Exp(a) }".replace("Gemm2D", "Relu"))
    assert [v.name for v in graph.inputs] == ["x"]
    assert [n.output.name for n in graph.nodes] == ["a", "y"]
    assert graph.output_names == ["y"]
    assert interpret(graph, {"x": X}, ["a"])["a"].tolist() == [0, 0, 0, 0, 1, 2]


def test_operators_that_are_the_identity_keep_both_names() -> None:
    graph = read("g (float[6] x) => (float[6] z) { a = Relu(x) y = Dropout(a) z = Identity(y) }")
    assert {"a", "y", "z"} <= {v.name for v in graph.values()}
    np.testing.assert_array_equal(run(graph, x=X)[0], np.maximum(X, 0))


def test_inputs_may_be_outputs_and_one_tensor_several_outputs() -> None:
    graph = read("g (float[6] x) => (float[6] x, float[6] y, float[6] y) { y = Neg(x) }")
    assert graph.output_names == ["x", "y", "y"]


def test_symbols_name_dimensions() -> None:
    graph = read("g (float[batch, 3] x) => (float[n, m] y) { y = Relu(x) }")
    assert graph.inputs[0].type.shape == (Sym("batch"), 3)
    assert graph.outputs[0].type.shape == (Sym("batch"), 3)


def test_unnamed_dimensions_are_not_equal() -> None:
    graph = read('g (float["?", "?"] x) => (float[a] y) { y = Relu(x) }'.replace('"?"', "u"))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[u, v] x) => (float[a, b] y) { y = Relu(x) }'
    )
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    first, second = read_model(model).inputs[0].type.shape or ()
    assert isinstance(first, Sym)
    assert first != second
    shape = graph.inputs[0].type.shape or ()
    assert shape[0] == shape[1]


def test_declared_output_shapes_are_not_trusted() -> None:
    graph = read("g (float[6] x) => (float[99, 2] y) { y = Relu(x) }")
    assert graph.outputs[0].type.shape == (6,)


@pytest.mark.parametrize("version", [3, 8])
def test_initializers_that_are_inputs_are_constants(version: int) -> None:
    text = f'<ir_version: {version}, opset_import: ["": 9]> g (float[n, 6] x, float[6] w) => (float[n, 6] y)'
    model = onnx.parser.parse_model(f"{text} {{ y = Add(x, w) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(X, "w"))
    graph = read_model(model)
    assert [v.name for v in graph.inputs] == ["x"]
    np.testing.assert_array_equal(run(graph, x=X[None])[0], 2 * X[None])
    session = bn.compile(model.SerializeToString())
    with pytest.raises(ShapeError, match=r"^inputs: 'w' is not one of \['x'\]"):
        session.run(None, {"x": X[None], "w": X})
    with pytest.raises(ShapeError, match=r"^row 1: inputs: 'w' is not one of \['x'\]"):
        session.run_rows([{"x": X}, {"x": X, "w": X}])


def test_nodes_in_any_order() -> None:
    graph = read("g (float[6] x) => (float[6] y) { y = Exp(b) b = Neg(a) a = Abs(x) }")
    assert [n.op.name for n in graph.nodes] == ["Abs", "Neg", "Exp"]


def test_variadic_operators_become_binary_ones() -> None:
    graph = read("g (float[6] x) => (float[6] y) { z = Neg(x) y = Max(x, z, x) }")
    assert [n.op.name for n in graph.nodes] == ["Neg", "Max", "Max"]


def test_clip_with_constant_bounds_and_without() -> None:
    graph = read("g (float[6] x) => (float[6] y) { lo = Constant<value_float = -1.0>() y = Clip(x, lo) }")
    assert [n.op.name for n in graph.nodes] == ["Clip"]
    np.testing.assert_array_equal(run(graph, x=X)[0], np.maximum(X, -1))
    dynamic = read("g (float[6] x, float lo, float hi) => (float[6] y) { y = Clip(x, lo, hi) }")
    assert [n.op.name for n in dynamic.nodes] == ["Max", "Min"]
    np.testing.assert_array_equal(run(dynamic, x=X, lo=np.float32(-1), hi=np.float32(1))[0], np.clip(X, -1, 1))


# --- functions -------------------------------------------------------------------------------------------------------

FUNCTION = """
<domain: "local", opset_import: ["": 18]>
scaled <factor: float = 2.0> (x) => (y) {
    f = Constant <value_float: float = @factor> ()
    y = Mul(x, f)
}
<domain: "local", opset_import: ["": 18, "local": 1]>
twice (x) => (z) { y = local.scaled <factor = 3.0> (x) z = local.scaled (y) }
"""


def test_functions_are_read_in_place() -> None:
    text = "g (float[6] x) => (float[6] y) { y = local.twice(x) }" + FUNCTION
    graph = read(text, header=', "local": 1')
    np.testing.assert_array_equal(run(graph, x=X)[0], 6 * X)
    assert [n.op.name for n in graph.nodes] == ["Mul", "Mul"]
    assert graph.nodes[-1].output.name == "y"
    assert all(n.output.name.startswith(("y", "g/")) for n in graph.nodes)


def test_functions_that_pass_an_operand_on() -> None:
    text = """g (float[6] x) => (float[6] y) { y = local.same(x) }
    <domain: "local", opset_import: ["": 18]> same (a) => (a) { b = Neg(a) }"""
    np.testing.assert_array_equal(run(read(text, header=', "local": 1'), x=X)[0], X)


def test_missing_operands_of_functions_are_missing_inside() -> None:
    text = """g (float[6] x) => (float[6] y) { y = local.maybe(x) }
    <domain: "local", opset_import: ["": 18]> maybe (a, low) => (b) { b = Clip(a, low) }"""
    np.testing.assert_array_equal(run(read(text, header=', "local": 1'), x=X)[0], X)


def test_recursive_functions_are_refused() -> None:
    text = """g (float[6] x) => (float[6] y) { y = local.f(x) }
    <domain: "local", opset_import: ["local": 1]> f (a) => (b) { b = local.h(a) }
    <domain: "local", opset_import: ["local": 1]> h (a) => (b) { b = local.f(a) }"""
    with pytest.raises(InvalidModelError, match=r"m\.onnx: function '[fh]': calls itself"):
        read(text, header=', "local": 1')


def test_functions_that_explode_are_refused() -> None:
    body = '<domain: "local", opset_import: ["": 18, "local": 1]> f{0} (a) => (c) {{ b = {1}(a) c = {1}(b) }}\n'
    functions = "".join(body.format(i, f"local.f{i + 1}" if i < 40 else "Neg") for i in range(41))
    with pytest.raises(InvalidModelError, match=r"functions expand to .* nodes, wanted at most"):
        read("g (float[6] x) => (float[6] y) { y = local.f0(x) }" + functions, header=', "local": 1')


def test_operators_without_a_reader_are_read_through_their_body() -> None:
    graph = read(
        "g (float[2, 3, 4, 4] x) => (float[a] y) { s = Constant <value_ints = [2, 2]> ()"
        " y = CenterCropPad <axes = [2, 3]> (x, s) }"
    )
    x = np.arange(96, dtype=np.float32).reshape(2, 3, 4, 4)
    np.testing.assert_array_equal(run(graph, x=x)[0], x[:, :, 1:3, 1:3])


# --- subgraphs -------------------------------------------------------------------------------------------------------

BRANCHES = """g (float[6] x, bool c, bool d) => (float[6] y) {
    a = Abs(x)
    y = If (c) <
        then_branch = t () => (float[6] p) { p = Add(a, x) },
        else_branch = e () => (float[6] q) {
            q = If (d) <
                then_branch = tt () => (float[6] r) { r = Neg(a) },
                else_branch = ee () => (float[6] a) { }
            >
        }
    >
}"""


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_branches_capture_explicitly(c: bool, d: bool) -> None:
    graph = read(BRANCHES)
    wanted = np.abs(X) + X if c else -np.abs(X) if d else np.abs(X)
    np.testing.assert_array_equal(run(graph, x=X, c=np.array(c), d=np.array(d))[0], wanted)
    (node,) = [n for n in graph.nodes if n.op.name == "If"]
    for _, branch in graph.subgraphs():
        assert [v.type for v in branch.inputs] == [v.type for v in node.inputs[1:] if v is not None]


def test_only_the_branch_of_a_constant_condition_is_read() -> None:
    text = BRANCHES.replace("bool c, bool d", "bool d").replace(
        "a = Abs(x)", "a = Abs(x) i = Constant<value_int = 0>() c = Cast<to = 9>(i)"
    )
    graph = read(text)
    assert sum(n.op.name == "If" for n in graph.nodes) == 1
    np.testing.assert_array_equal(run(graph, x=X, d=np.array(True))[0], -np.abs(X))


def test_loop_with_growing_state_and_scanned_result() -> None:
    graph = read("""g (float[n] x, int64 m) => (float[k] y, float[m2] s) {
        y, s = Loop (m, , x) <body = b (int64 i, bool c, float[n] v) => (bool c2, float[n2] w, float t) {
            c2 = Identity(c) w = Concat<axis = 0>(v, x) t = ReduceSum<keepdims = 0>(w) } > }""")
    y, s = run(graph, x=X, m=np.array(3))
    np.testing.assert_array_equal(y, np.tile(X, 4))
    np.testing.assert_array_equal(s, X.sum() * np.array([2, 3, 4], np.float32))


def test_scan_from_the_end() -> None:
    graph = read("""g (float z, float[6] x) => (float last, float[6] sums) {
        last, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b (float s, float v)
            => (float t, float u) { t = Add(s, v) u = Identity(t) }> (z, x) }""")
    last, sums = run(graph, z=np.float32(1), x=X)
    np.testing.assert_array_equal(sums, 1 + np.cumsum(X[::-1]))
    assert last == sums[-1]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("g (float[6] x) => (float[6] y) { y = Relu(z) }", InvalidModelError, r"node 'y' \(Relu\): tensor 'z'"),
        ("g (float[6] x) => (float[6] q) { y = Relu(x) }", InvalidModelError, r"output 'q'"),
        ("g (float[6] x) => (float[6] y) { y = Relu(x) y = Exp(x) }", InvalidModelError, "'y': got two definitions"),
        ("g (float[6] x) => (float[6] x) { x = Relu(x) }", InvalidModelError, "'x': got two definitions"),
        ("g (float[6] x) => (float[6] y) { y = Add(x, z) z = Neg(y) }", InvalidModelError, "got a cycle"),
        (
            "g (float[6] x) => (float[6] y) { y = Relu <slope = 1.0> (x) }",
            InvalidModelError,
            "attribute 'slope': got an unknown name",
        ),
        ("g (float[6] x) => (float[6] y) { y = Concat(x, x) }", InvalidModelError, "attribute 'axis': got none"),
        (
            "g (float[6] x) => (float[6] y) { y = Concat <axis = 0.5> (x, x) }",
            InvalidModelError,
            "attribute 'axis': got type FLOAT, wanted INT",
        ),
        (
            "g (float[6] x) => (float[6] y) { y = Relu(x, x) }",
            InvalidModelError,
            "number of inputs: got 2, wanted at most 1",
        ),
        ("g (float[6] x) => (float[6] y) { y = Add(x) }", InvalidModelError, "input 1 'y': got none"),
        ("g (float[6] x) => (float[6] y) { y = Add(x, ) }", InvalidModelError, "input 1 'y': got none"),
        ("g (float[6] x) => (float[6] y) { y, z = Relu(x) }", InvalidModelError, "got 2 outputs, wanted at most 1"),
        (
            "g (float[6] x, float[5] z) => (float[6] y) { y = Add(x, z) }",
            ShapeError,
            r"m\.onnx: node 'y' \(Add\): Add: shapes",
        ),
        (
            "g (float[6] x, int64[6] z) => (float[6] y) { y = Add(x, z) }",
            DTypeError,
            r"m\.onnx: node 'y' \(Add\): Add: dtype",
        ),
        ("g (float[6] x) => (float[6] y) { y = Transpose <perm = [1]> (x) }", ShapeError, "Transpose"),
        (
            'g (float[6] x) => (float[6] y) { y = Pad <mode = "odd"> (x, p) p = Constant<value_ints=[1,1]>() }',
            ShapeError,
            "mode: got odd",
        ),
    ],
)
def test_messages(text: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        read(text)


def test_all_unsupported_operators_are_listed_at_once() -> None:
    text = """g (float[6] x, bool c) => (float[6] y) {
        a = Frobnicate(x)
        b = acme.Blob(a)
        y = If (c) <then_branch = t () => (float[6] p) { p = acme.Other(b) },
                    else_branch = e () => (float[6] q) { q = Relu(x) }>
    }"""
    with pytest.raises(UnsupportedOpError) as caught:
        read(text, header=', "acme": 3')
    assert isinstance(caught.value, NotImplementedError)
    assert "Blob (domain acme, opset 3) at node 'b'" in caught.value.items
    assert "Other (domain acme, opset 3) at node 'p'" in caught.value.items
    assert "m.onnx: 3 unsupported" in str(caught.value)


def test_sparse_inputs_are_unsupported() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (sparse_tensor(float[6]) x) => (float[6] y) { y = Relu(x) }'
    )
    with pytest.raises(UnsupportedOpError, match=r"input 'x': 1 unsupported:\s+a value of kind sparse_tensor_type"):
        read_model(model)


@pytest.mark.parametrize("version", [0, -5, 1 << 40])
def test_impossible_opsets(version: int) -> None:
    model = helper.make_model(helper.make_graph([], "g", [], []))
    model.opset_import[0].version = version
    with pytest.raises(InvalidModelError, match=r"opset of domain 'ai.onnx'"):
        read_model(model)


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml"])
def test_opsets_of_the_future_are_refused(domain: str) -> None:
    imports = {"": 17, domain: NEWEST[domain]}
    for version, refused in ((NEWEST[domain], False), (NEWEST[domain] + 1, True)):
        imports[domain] = version
        model = helper.make_model(helper.make_graph([], "g", [], []))
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(d, v) for d, v in imports.items())
        if not refused:
            read_model(model)
            continue
        with pytest.raises(InvalidModelError, match=f"opset of domain .*: got {version}, wanted 1 to {version - 1}"):
            read_model(model)
        with pytest.raises(Exception, match="FAIL"):
            onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_newest_opset_is_that_of_onnx() -> None:
    assert NEWEST[""] >= onnx.defs.onnx_opset_version()


@pytest.mark.parametrize("versions", [(17, 11), (11, 17)])
def test_of_two_imports_of_a_domain_the_last_counts(versions: tuple[int, int]) -> None:
    """Softmax of opset 11 normalises over all axes from the given one on."""
    text = "g (float[1, 2, 3] x) => (float[1, 2, 3] y) { y = Softmax <axis = 1> (x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {versions[1]}]> {text}')
    model.opset_import.insert(0, helper.make_opsetid("", versions[0]))
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    with pytest.warns(UserWarning, match=rf"'ai.onnx': got {versions[0]} and {versions[1]}, the last one counts"):
        got = run(read_model(model), x=x)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got[0], theirs.run(None, {"x": x})[0], rtol=1e-6)


def test_unknown_attributes_are_ignored_where_one_with_a_default_is_missing() -> None:
    """Models were published that say epsion.  Where nothing can be meant, or in other domains, they are errors."""
    text = """g (float[2, 3] x, float[3] s) => (float[2, 3] y) {
        y = LayerNormalization <epsion = 1.0, axis = -1> (x, s) }"""
    x = X.reshape(2, 3)
    with pytest.warns(UserWarning, match=r"LayerNormalization: attributes: got unknown \['epsion'\]"):
        got = run(read(text), x=x, s=np.ones(3, np.float32))
    wanted = run(read(text.replace("epsion = 1.0, ", "")), x=x, s=np.ones(3, np.float32))
    np.testing.assert_array_equal(got[0], wanted[0])
    with pytest.raises(InvalidModelError, match="attribute 'axiss': got an unknown name"):
        read("g (float[6] x) => (float[12] y) { y = Concat <axis = 0, axiss = 1> (x, x) }")
    with pytest.raises(InvalidModelError, match="attribute 'scal': got an unknown name"):
        read("g (float[6] x) => (float[6] y) { y = ai.onnx.ml.Scaler <scal = 1.0> (x) }", header=', "ai.onnx.ml": 3')


def test_no_graph_and_no_opset() -> None:
    with pytest.raises(InvalidModelError, match="got no graph"):
        read_model(onnx.ModelProto())
    model = helper.make_model(helper.make_graph([], "g", [], []))
    del model.opset_import[:]
    with pytest.raises(InvalidModelError, match="opset_import: got none"):
        read_model(model)


def test_old_files_without_opset_are_opset_1() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 1]> g (float[6] x) => (float[6] y) { y = Relu(x) }'
    )
    del model.opset_import[:]
    model.ir_version = 2
    np.testing.assert_array_equal(run(read_model(model), x=X)[0], np.maximum(X, 0))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [2], "auto_pad": "BAD"}),
        ("Conv", {"auto_pad": "BAD"}),
        ("DepthToSpace", {"blocksize": 2, "mode": "BAD"}),
    ],
)
def test_words_are_checked_where_ranks_are_unknown(op: str, attributes: dict[str, Any]) -> None:
    names = ["x", "w"] if op.startswith("Conv") else ["x"]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (*names, "y")]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", values[:-1], values[-1:])
    with pytest.raises(ShapeError, match="got BAD"):
        read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
