"""Old forms of operators: read as they stand, they mean what onnx's version converter and NumPy say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.errors import BoltError
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array
from tests.near import assert_near

RNG = np.random.default_rng(0)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(op: str, opset: int, inputs: Sequence[Array], count: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(count)]
    node = helper.make_node(op, names, [o.name for o in outputs], **attributes)
    graph = helper.make_graph([node], "g", infos, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(op: str, opset: int, inputs: Sequence[Array], count: int = 1, **attributes: Any) -> list[Array]:
    graph = read_model(model_of(op, opset, inputs, count, attributes))
    made = interpret(graph, {f"x{i}": a for i, a in enumerate(inputs)})
    return [made[f"y{i}"] for i in range(count)]


def softmax(x: Array, axis: int) -> Array:
    """Before opset 13: over all axes from ``axis`` on."""
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    e = np.exp(flat - flat.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).reshape(x.shape)


X = real(2, 3, 4, 5)
V = real(3)
I64 = np.int64

CASES: list[tuple[str, int, list[Array], dict[str, Any], Callable[[], Any]]] = [
    ("Add", 6, [X, V], {"axis": 1, "broadcast": 1}, lambda: X + V[:, None, None]),
    ("Add", 6, [X, real(4, 5)], {"broadcast": 1}, lambda: None),
    ("Mul", 1, [X, V], {"axis": -3, "broadcast": 1, "consumed_inputs": [0, 0]}, lambda: X * V[:, None, None]),
    ("PRelu", 6, [X, V], {}, lambda: np.where(X < 0, X * V[:, None, None], X)),
    ("Softmax", 11, [X], {"axis": 1}, lambda: softmax(X, 1)),
    ("Softmax", 11, [X], {"axis": 3}, lambda: softmax(X, 3)),
    ("Softmax", 9, [X], {}, lambda: softmax(X, 1)),
    ("Softmax", 12, [X], {"axis": 0}, lambda: softmax(X, 0)),
    ("Softmax", 12, [X], {"axis": -2}, lambda: softmax(X, 2)),
    ("LogSoftmax", 12, [X], {"axis": 2}, lambda: np.log(softmax(X, 2))),
    ("Hardmax", 12, [X], {"axis": 2}, lambda: hardmax(X.reshape(6, 20)).reshape(X.shape)),
    ("Squeeze", 11, [X[:1, :, :1]], {"axes": [0]}, lambda: X[0, :, :1]),
    ("Squeeze", 1, [X[:1, :1]], {}, lambda: X[0, 0]),
    ("Unsqueeze", 11, [V], {"axes": [0, 2]}, lambda: V[None, :, None]),
    ("ReduceSum", 11, [X], {"axes": [1, -1], "keepdims": 0}, lambda: X.sum((1, 3))),
    ("ReduceSum", 1, [X], {}, lambda: X.sum(keepdims=True)),
    ("ReduceMean", 13, [X], {"axes": [2]}, lambda: X.mean(2, keepdims=True)),
    ("ReduceL2", 17, [X], {"axes": [1]}, lambda: np.sqrt((X * X).sum(1, keepdims=True))),
    ("Slice", 9, [X], {"starts": [1, -3], "ends": [9, -1], "axes": [2, 3]}, lambda: X[:, :, 1:9, -3:-1]),
    ("Slice", 1, [X], {"starts": [0, 1], "ends": [1, 3]}, lambda: X[0:1, 1:3]),
    ("Pad", 2, [X], {"pads": [0, 0, 1, 2, 0, 0, 3, 0], "value": 2.0}, lambda: pad(X, 2.0)),
    ("Pad", 1, [X], {"paddings": [0, 0, 1, 2, 0, 0, 3, 0]}, lambda: pad(X, 0.0)),
    ("Pad", 10, [X], {"pads": [0, 0, 1, 0, 0, 0, 0, 0], "mode": "reflect"}, lambda: pad_reflect(X)),
    ("Clip", 6, [X], {"min": -0.5}, lambda: np.maximum(X, -0.5)),
    ("Clip", 1, [X], {"min": -0.5, "max": 0.25}, lambda: np.clip(X, -0.5, 0.25)),
    ("Upsample", 7, [X], {"scales": [1.0, 1.0, 2.0, 3.0]}, lambda: X.repeat(2, 2).repeat(3, 3)),
    ("Upsample", 1, [X], {"height_scale": 2.0, "width_scale": 1.0}, lambda: X.repeat(2, 2)),
    ("Dropout", 6, [X], {"is_test": 1}, lambda: X),
    ("Dropout", 7, [X], {"ratio": 0.3}, lambda: X),
    ("Reshape", 1, [X], {"shape": [0, -1]}, lambda: X.reshape(2, 60)),
    ("Cast", 1, [X], {"to": "INT32"}, lambda: X.astype(np.int32)),
    ("Cast", 6, [X], {"to": 7}, lambda: X.astype(np.int64)),
    ("Concat", 1, [X, X], {}, lambda: np.concatenate([X, X], 1)),
    ("Concat", 4, [X, X], {"axis": 3}, lambda: np.concatenate([X, X], 3)),
    ("Gemm", 6, [real(2, 3), real(4, 3), real(4)], {"transB": 1, "broadcast": 1, "beta": 0.5}, lambda: None),
    ("Gemm", 9, [real(3, 2), real(3, 4), real(2, 1)], {"transA": 1, "alpha": 2.0}, lambda: None),
    ("AveragePool", 1, [X], {"kernel_shape": [2, 2]}, lambda: None),
    ("MaxPool", 1, [X], {"kernel_shape": [2, 2], "strides": [2, 2]}, lambda: None),
    ("Scatter", 9, [X[0, 0], np.array([[0, 1]]), real(1, 2)], {"axis": 1}, lambda: None),
    ("Selu", 1, [X], {}, lambda: 1.0507 * np.where(X > 0, X, 1.6732 * np.expm1(X))),
    ("Max", 6, [X, -X, X], {}, lambda: np.abs(X)),
    ("Sum", 8, [X, X, X], {}, lambda: 3 * X),
    ("Mean", 8, [X, 3 * X], {}, lambda: 2 * X),
    ("Flatten", 9, [X], {"axis": 2}, lambda: X.reshape(6, 20)),
    ("Equal", 6, [np.arange(6).reshape(2, 3) % 3, np.arange(3)], {"broadcast": 1}, lambda: np.ones((2, 3), bool)),
    ("Shape", 1, [X], {}, lambda: np.array(X.shape)),
    ("Size", 1, [X], {}, lambda: np.array(X.size)),
    ("ArgMax", 11, [X], {"axis": 2, "keepdims": 0}, lambda: X.argmax(2)),
    ("Transpose", 1, [X], {}, lambda: X.T),
]


def hardmax(x: Array) -> Array:
    return np.eye(x.shape[1], dtype=x.dtype)[x.argmax(1)]


def pad(x: Array, value: float) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (1, 3), (2, 0)), constant_values=value)


def pad_reflect(x: Array) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0)), mode="reflect")


def converted(op: str, opset: int, inputs: Sequence[Array], attributes: dict[str, Any]) -> Array:
    """What onnx's own converter and reference evaluator make of the node."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.version_converter.convert_version(model_of(op, opset, inputs, 1, attributes), 22)
    made = ReferenceEvaluator(model).run(None, {f"x{i}": a for i, a in enumerate(inputs)})
    return np.asarray(made[0])


@pytest.mark.parametrize(("op", "opset", "inputs", "attributes", "wanted"), CASES, ids=lambda v: str(v)[:24])
def test_old_form(
    op: str, opset: int, inputs: list[Array], attributes: dict[str, Any], wanted: Callable[[], Array | None]
) -> None:
    expected = wanted()
    if expected is None:
        expected = converted(op, opset, inputs, attributes)
    (got,) = run(op, opset, inputs, **attributes)
    assert got.dtype == expected.dtype
    assert_near(got, expected, 1e-5)


def test_split_by_attribute_and_evenly() -> None:
    a, b = run("Split", 11, [X], 2, axis=3, split=[1, 4])
    np.testing.assert_array_equal(a, X[..., :1])
    np.testing.assert_array_equal(b, X[..., 1:])
    parts = run("Split", 2, [X], 2, axis=2)
    np.testing.assert_array_equal(np.concatenate(parts, 2), X)
    assert [p.shape[2] for p in parts] == [2, 2]
    uneven = run("Split", 18, [X], 2, axis=3, num_outputs=2)
    assert [p.shape[3] for p in uneven] == [3, 2]


def test_stated_axes_of_a_slice_are_as_many_as_starts() -> None:
    """Also where they are none, as of the newer form."""
    wanted = X[1:2, 1:3]
    np.testing.assert_array_equal(run("Slice", 1, [X], starts=[1, 1], ends=[2, 3])[0], wanted)
    model = model_of("Slice", 1, [X], 1, {"starts": [1, 1], "ends": [2, 3]})
    model.graph.node[0].attribute.append(onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS))
    with pytest.raises(BoltError, match="axes"):
        read_model(model)


def test_what_an_operator_lacks_is_not_obeyed() -> None:
    """An attribute of our operator that ONNX's has not; a dtype of 0 is none."""
    x, w, offset = real(1, 1, 4, 4), real(1, 1, 3, 3), np.zeros((1, 18, 2, 2), np.float32)
    with pytest.warns(UserWarning, match="auto_pad"):
        (got,) = run("DeformConv", 19, [x, w, offset], auto_pad="SAME_UPPER")
    assert got.shape == (1, 1, 2, 2)
    with pytest.raises(BoltError, match="dtype: element type: got 0"):
        run("EyeLike", 9, [real(2, 3)], dtype=0)
    one = np.float32(0.5)
    (got,) = run("DequantizeLinear", 25, [np.int8([2, 4]), np.asarray(one)], output_dtype=0)
    assert got.dtype == np.float32


def test_topk_with_k_as_attribute() -> None:
    values, indices = run("TopK", 1, [X], 2, axis=1, k=2)
    np.testing.assert_array_equal(values, -np.sort(-X, 1)[:, :2])
    np.testing.assert_array_equal(indices, np.argsort(-X, 1)[:, :2])


@pytest.mark.parametrize("opset", [6, 7, 8, 9, 14, 15])
def test_batch_normalization(opset: int) -> None:
    scale, bias, mean, var = real(3), real(3), real(3), np.abs(real(3))
    attributes = {"is_test": 1, "spatial": 1} if opset == 6 else {"spatial": 1} if opset < 9 else {}
    (got,) = run("BatchNormalization", opset, [X, scale, bias, mean, var], **attributes)
    c = (slice(None), None, None)
    wanted = (X - mean[c]) / np.sqrt(var[c] + 1e-5) * scale[c] + bias[c]
    assert_near(got, wanted, 1e-5)


def test_batch_normalization_of_every_element() -> None:
    scale, bias, mean, var = real(3, 4, 5), real(3, 4, 5), real(3, 4, 5), np.abs(real(3, 4, 5))
    (got,) = run("BatchNormalization", 8, [X, scale, bias, mean, var], spatial=0)
    assert_near(got, (X - mean) / np.sqrt(var + 1e-5) * scale + bias, 1e-5)


@pytest.mark.parametrize("attributes", [{}, {"momentum": 0.25}])
def test_batch_normalization_in_training(attributes: dict[str, Any]) -> None:
    """Statistics of the batch; the running ones keep ``momentum`` of what they were."""
    scale, bias, mean, var = real(3), real(3), real(3), np.abs(real(3))
    got = run("BatchNormalization", 15, [X, scale, bias, mean, var], 3, training_mode=1, **attributes)
    c, axes, kept = (slice(None), None, None), (0, 2, 3), attributes.get("momentum", 0.9)
    means, variances = X.mean(axes), X.var(axes)
    wanted = (X - means[c]) / np.sqrt(variances[c] + 1e-5) * scale[c] + bias[c]
    running = [old * kept + new * (1 - kept) for old, new in ((mean, means), (var, variances))]
    for one, two in zip(got, (wanted, *running), strict=True):
        assert_near(one, two, 1e-5)


def test_group_normalization_by_group() -> None:
    x, scale, bias = real(2, 6, 5), real(2), real(2)
    (got,) = run("GroupNormalization", 18, [x, scale, bias], num_groups=2)
    groups = x.reshape(2, 2, -1)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    wanted = normal * scale[:, None] + bias[:, None]
    assert_near(got, wanted.reshape(x.shape), 1e-5)


def constant_inputs(text: str, **constants: Array) -> onnx.ModelProto:
    model: onnx.ModelProto = onnx.parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_tile_1() -> None:
    text = (
        '<ir_version: 4, opset_import: ["": 1]> g (float[2,3,4,5] x) => (float[N,M,K,L] y) { y = Tile(x, tiles, axis) }'
    )
    model = constant_inputs(text, tiles=np.array(2.0, np.float32), axis=np.array(1.0, np.float32))
    np.testing.assert_array_equal(interpret(read_model(model), {"x": X})["y"], np.tile(X, (1, 2, 1, 1)))


@pytest.mark.parametrize("op", ["Resize", "Upsample"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_10(op: str, mode: str) -> None:
    opset = 10 if op == "Resize" else 9
    text = f'''<ir_version: 4, opset_import: ["": {opset}]>
        g (float[2,3,4,5] x) => (float[a,b,c,d] y) {{ y = {op} <mode = "{mode}"> (x, scales) }}'''
    scales = np.array([1, 1, 2, 1.5], np.float32)
    got = interpret(read_model(constant_inputs(text, scales=scales)), {"x": X})["y"]
    rows, columns = np.arange(8) / 2, np.arange(7) / np.float32(1.5)
    if mode == "nearest":
        wanted = X[:, :, rows.astype(int)][..., columns.astype(int)]
    else:
        wanted = lerp(lerp(X, rows, 2), columns, 3)
    assert_near(got, wanted, 1e-5)


def lerp(x: Array, places: Array, axis: int) -> Array:
    low = np.floor(places).astype(int)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    share = (places - low).astype(np.float32)
    share = share.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return x.take(low, axis) * (1 - share) + x.take(high, axis) * share


