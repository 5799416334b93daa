"""Operators of onnxruntime's own domain, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.types import Array, Sym, TensorType
from tests.near import assert_near
from tests.unsaturated import unsaturated

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(3)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 255, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    return RNG.integers(-100, 100, shape).astype(np.int8)


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def model_of(op: str, inputs: Mapping[str, Array | None], outputs: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    """One node; operands but the first are initializers, as in the files that the optimizer writes."""
    (first, x), *others = inputs.items()
    assert x is not None
    infos = [helper.make_tensor_value_info(first, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    names = ["" if array is None else name for name, array in inputs.items()]
    if op == "GatherBlockQuantized":
        names[:2] = names[1::-1]  # its table comes first
    if op == "QLinearConcat":
        names = names[-2:] + names[:-2]  # the result's scale and zero point come first
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    held = [onnx.numpy_helper.from_array(a, n) for n, a in others if a is not None]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=n) for n in results], held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def steps(array: Array) -> Array:
    return array.astype(np.float64)


X = real(2, 4, 12)
IMAGE, FILTER = real(1, 3, 8, 8), real(4, 3, 3, 3)
Q = {"x_scale": scalar(0.02), "x_zero": scalar(120, np.uint8)}
R = {"y_scale": scalar(0.03), "y_zero": scalar(110, np.uint8)}
Z = {"z_scale": scalar(0.05), "z_zero": scalar(128, np.uint8)}

CASES: list[tuple[str, dict[str, Array | None], dict[str, Any]]] = [
    ("Gelu", {"x": X}, {}),
    ("BiasGelu", {"x": X, "b": real(12)}, {}),
    ("FastGelu", {"x": X}, {}),
    ("FastGelu", {"x": X, "b": real(12)}, {}),
    ("QuickGelu", {"x": X}, {"alpha": 1.5}),
    ("FusedConv", {"x": IMAGE, "w": FILTER, "b": real(4)}, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("FusedConv", {"x": IMAGE, "w": FILTER, "b": real(4), "z": real(1, 4, 6, 6)}, {"activation": "Relu"}),
    ("FusedConv", {"x": IMAGE, "w": FILTER}, {"activation": "LeakyRelu", "activation_params": [0.3]}),
    ("FusedConv", {"x": IMAGE, "w": FILTER}, {"activation": "Clip", "activation_params": [-0.5, 1.0]}),
    ("FusedConv", {"x": IMAGE, "w": FILTER}, {"activation": "Sigmoid"}),
    ("FusedConv", {"x": IMAGE, "w": FILTER}, {"activation": "Tanh"}),
    ("FusedConv", {"x": IMAGE, "w": FILTER}, {"activation": "HardSigmoid", "activation_params": [0.2, 0.4]}),
    ("FusedMatMul", {"x": X, "w": real(5, 12)}, {"transB": 1, "alpha": 0.5}),
    ("FusedGemm", {"x": real(3, 4), "w": real(4, 5), "c": real(5)}, {"activation": "Relu", "beta": 2.0}),
    ("FusedGemm", {"x": real(3, 4), "w": real(4, 5)}, {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    ("SkipLayerNormalization", {"x": X, "s": real(2, 4, 12), "g": real(12), "b": real(12), "c": real(12)}, {}),
    ("SkipLayerNormalization", {"x": X, "s": real(2, 4, 12), "g": real(12)}, {"epsilon": 0.1}),
    ("SkipSimplifiedLayerNormalization", {"x": X, "s": real(2, 4, 12), "g": real(12)}, {"epsilon": 1e-5}),
    ("Attention", {"x": X, "w": real(12, 36), "b": real(36)}, {"num_heads": 3}),
    ("Attention", {"x": X, "w": real(12, 36), "b": real(36)}, {"num_heads": 2, "unidirectional": 1}),
    (
        "Attention",
        {"x": X, "w": real(12, 36), "b": real(36), "m": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)},
        {"num_heads": 2},
    ),
    ("MultiHeadAttention", {"q": X, "k": real(2, 5, 12), "v": real(2, 5, 18)}, {"num_heads": 3, "scale": 0.4}),
    ("MultiHeadAttention", {"q": X, "k": real(2, 5, 12), "v": real(2, 5, 12), "b": real(36)}, {"num_heads": 2}),
    (
        "MatMulIntegerToFloat",
        {
            "x": u8(3, 4),
            "w": i8(4, 5),
            "xs": scalar(0.1),
            "ws": real(5),
            "xz": scalar(7, np.uint8),
            "wz": None,
            "b": real(5),
        },
        {},
    ),
    (
        "DynamicQuantizeMatMul",
        {"x": real(3, 4), "w": i8(4, 5), "ws": scalar(0.1), "wz": scalar(0, np.int8), "b": real(5)},
        {},
    ),
    ("QLinearAdd", {"x": u8(2, 3), **Q, "y": u8(2, 3), **R, **Z}, {}),
    ("QLinearMul", {"x": u8(2, 3), **Q, "y": u8(3), **R, **Z}, {}),
    ("QLinearSigmoid", {"x": u8(2, 3), **Q, "r_scale": scalar(1 / 256), "r_zero": scalar(0, np.uint8)}, {}),
    ("QLinearLeakyRelu", {"x": u8(2, 3), **Q, **R}, {"alpha": 0.2}),
    (
        "QLinearSoftmax",
        {"x": u8(2, 6), **Q, "r_scale": scalar(1 / 256), "r_zero": scalar(0, np.uint8)},
        {"axis": -1, "opset": 13},
    ),
    ("QLinearAveragePool", {"x": u8(1, 2, 6, 6), **Q, **R}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("QLinearGlobalAveragePool", {"x": u8(1, 2, 6, 6), **Q, **R}, {"channels_last": 0}),
    ("QGemm", {"x": u8(3, 4), **Q, "w": u8(4, 5), **R, "c": RNG.integers(-99, 99, 5).astype(np.int32), **Z}, {}),
    ("QuantizeLinear", {"x": X, **Q}, {}),
    ("DequantizeLinear", {"x": u8(2, 3), **Q}, {}),
    ("NhwcMaxPool", {"x": u8(1, 6, 6, 2)}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    (
        "MatMulNBits",
        {"x": real(2, 20), "w": u8(5, 2, 8), "s": real(5 * 2)},
        {"K": 20, "N": 5, "bits": 4, "block_size": 16},
    ),
    (
        "MatMulNBits",
        {"x": real(2, 32), "w": u8(5, 2, 8), "s": real(5 * 2), "z": u8(5 * 1)},
        {"K": 32, "N": 5, "bits": 4, "block_size": 16},
    ),
]

LAYER: dict[str, Array | None] = {
    "x": real(3, 2, 6),
    "w": i8(2, 6, 16),
    "r": i8(2, 4, 16),
    "b": real(2, 32),
    "lens": None,
    "h0": real(2, 2, 4),
    "c0": real(2, 2, 4),
    "p": None,
    "ws": scalar(0.01).repeat(2),
    "wz": scalar(0, np.int8).repeat(2),
    "rs": scalar(0.01).repeat(2),
    "rz": scalar(0, np.int8).repeat(2),
}
BYTES: dict[str, Array | None] = {
    "x": u8(2, 4, 12),
    "w": i8(12, 36),
    "b": real(36),
    "xs": scalar(0.01),
    "ws": scalar(0.01),
    "m": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32),
    "xz": scalar(120, np.uint8),
    "wz": scalar(3, np.int8),
}
ROWS = RNG.integers(0, 6, (2, 3))
CASES += [
    ("QAttention", BYTES, {"num_heads": 3}),
    ("QAttention", BYTES, {"num_heads": 3, "unidirectional": 1}),
    ("GatherBlockQuantized", {"i": ROWS, "w": u8(6, 32), "s": real(6, 2)}, {"bits": 8, "block_size": 16}),
    ("GatherBlockQuantized", {"i": ROWS, "w": u8(6, 16), "s": real(6, 2), "z": u8(6, 1)}, {"block_size": 16}),
    (
        "MatMulNBits",
        {"x": real(2, 32), "w": u8(5, 2, 16), "s": real(5 * 2), "z": u8(5 * 2)},
        {"K": 32, "N": 5, "bits": 8, "block_size": 16},
    ),
    ("SkipLayerNormalization", {"x": X, "s": real(4, 12), "g": real(12)}, {}),
]
W = {"w_scale": scalar(0.01), "w_zero": scalar(0, np.int8)}
W8 = {"w_scale": scalar(0.01), "w_zero": scalar(99, np.uint8)}
CASES += [
    ("GridSample", {"x": real(1, 2, 4, 5), "g": np.clip(real(1, 3, 3, 2), -1, 1)}, {"mode": "bilinear"}),
    ("ExpandDims", {"x": X, "axis": scalar(1, np.int32)}, {}),
    ("Trilu", {"x": X, "k": scalar(1, np.int64)}, {"upper": 0}),
    ("Pad", {"x": X, "p": np.array([0, 1, 0, 0, 2, 0]), "v": scalar(3.0)}, {}),
    ("GatherND", {"x": X, "i": np.array([[0, 1], [1, 3]])}, {}),
    ("CDist", {"x": real(4, 3), "y": real(5, 3)}, {"metric": "sqeuclidean"}),
    ("CDist", {"x": real(4, 3), "y": real(5, 3)}, {"metric": "euclidean"}),
    ("FusedMatMul", {"x": real(4, 2, 12), "w": real(2, 12, 5)}, {"transBatchA": 1}),
    ("FusedMatMul", {"x": real(2, 4, 12), "w": real(5, 2, 12)}, {"transBatchB": 1, "transB": 1}),
    ("SkipSimplifiedLayerNormalization", {"x": X, "s": real(2, 4, 12), "g": real(12), "b": real(12)}, {}),
    ("ScaledSiLU", {"x": X}, {"alpha": 0.5}),
    ("ScaledSiLU", {"x": X, "s": scalar(0.25)}, {}),
    ("GatedAdd", {"x": X, "y": real(2, 4, 12), "g": real(2, 4, 1)}, {}),
    ("GatedRMSNorm", {"x": X, "s": real(12), "g": real(2, 4, 12)}, {}),
    ("GatedRMSNorm", {"x": X, "s": real(12), "g": real(2, 4, 12)}, {"activation": "sigmoid"}),
    ("QLinearConcat", {"x": u8(2, 3), **Q, "w": u8(2, 5), **W8, **R}, {"axis": 1}),
    ("QLinearAveragePool", {"x": u8(1, 6, 6, 2), **Q, **R}, {"kernel_shape": [2, 3], "channels_last": 1}),
    ("QLinearGlobalAveragePool", {"x": u8(1, 6, 6, 2), **Q, **R}, {"channels_last": 1}),
    ("QLinearWhere", {"c": RNG.random((2, 3)) < 0.5, "x": u8(2, 3), **Q, "y": u8(3), **R, **Z}, {}),
    (
        "QLinearConv",
        {"x": u8(1, 6, 6, 3), **Q, "w": i8(4, 3, 3, 3), **W, **R, "b": RNG.integers(-999, 999, 4).astype(np.int32)},
        {"channels_last": 1, "pads": [1, 1, 0, 0]},
    ),
    ("QuantizeLinear", {"x": X, "s": scalar(0.02), "z": scalar(-300, np.int16)}, {}),
    ("QuantizeLinear", {"x": X, "s": scalar(0.02), "z": scalar(300, np.uint16)}, {}),
    ("DequantizeLinear", {"x": i8(2, 3).astype(np.int16), "s": scalar(0.02), "z": scalar(-300, np.int16)}, {}),
    (
        "MatMulNBits",
        {"x": real(2, 40), "w": u8(5, 3, 8), "s": real(5 * 3), "z": None, "g": None, "b": real(5)},
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    ("MatMulNBits", {"x": real(1, 64), "w": u8(7, 2, 16), "s": real(7 * 2)}, {"K": 64, "N": 7, "block_size": 32}),
]
CASES += [("DynamicQuantizeLSTM", LAYER, {"hidden_size": 4, "direction": "bidirectional"})]


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES, ids=lambda v: v if isinstance(v, str) else None)
def test_operator_means_what_onnxruntime_computes(
    op: str, inputs: dict[str, Array | None], attributes: dict[str, Any]
) -> None:
    model = model_of(op, inputs, 1, attributes)
    first, x = next(iter(inputs.items()))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = onnxruntime.InferenceSession(unsaturated(model).SerializeToString(), options).run(None, {first: x})
    got = interpret(read_model(model), {first: x})["y0"]
    assert got.dtype == wanted.dtype
    if wanted.dtype.kind == "f":
        assert_near(got, wanted, 2e-4 if "Gelu" not in op else 1e-3, floor=1)
    else:
        assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_four_bits(dtype: Any) -> None:
    held = [onnx.numpy_helper.from_array(a, n) for n, a in (("s", scalar(0.3)), ("z", scalar(3, dtype)))]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], domain="com.microsoft"),
    ]
    info = helper.make_tensor_value_info("x", 1, X.shape), onnx.ValueInfoProto(name="y")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [info[0]], [info[1]], held)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    np.testing.assert_array_equal(interpret(read_model(model), {"x": X})["y"], wanted)


def test_sum_of_skip_is_an_output() -> None:
    inputs: dict[str, Array | None] = {"x": X, "s": real(2, 4, 12), "g": real(12)}
    model = model_of("SkipLayerNormalization", inputs, 4, {})
    del model.graph.output[1:3]
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    got = interpret(read_model(model), {"x": X})
    np.testing.assert_allclose(got["y3"], X + inputs["s"], rtol=1e-6)


def test_what_has_no_meaning_is_said() -> None:
    model = model_of("FusedConv", {"x": IMAGE, "w": FILTER}, 1, {"activation": "Mystery"})
    with pytest.raises(UnsupportedOpError, match="activation Mystery"):
        read_model(model)


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_few_bits_are_written_back(points: bool, biased: bool) -> None:
    """Those that round x, too, which onnxruntime does as we do, but not where zero points are floats."""
    held: dict[str, Any] = {"w": u8(5, 2, 16), "s": real(5, 2)}
    held |= {"z": u8(5, 2).astype(np.float32) if points else None, "b": real(5) if biased else None}
    graph = Graph("bits")
    x = graph.add_input("x", TensorType(np.dtype(np.float32), (Sym("n"), 40)))
    graph.add_output(Builder(graph)(MatMulNBits(rounded=biased), x, *held.values()), "y")
    data = {"x": real(3, 40)}
    made = to_onnx(graph)
    assert [n.op for n in read_model(made).nodes] == [MatMulNBits(rounded=biased)]
    assert [n.op_type for n in made.graph.node] == ["MatMulNBits"]
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, data)
    assert_near(interpret(graph, data)["y"], wanted, 2e-2 if biased and points else 1e-5)
