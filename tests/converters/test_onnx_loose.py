"""Models that declare less than they know, and declarations that mean something: results are onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
from bolt_numba.types import Array

RNG = np.random.default_rng(17)
Dims = list[Any] | None
Info = helper.make_tensor_value_info


def hold(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], feeds: dict[str, Any], **constants: Array
) -> None:
    """Check what the last node gives."""
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "loose", inputs, outputs, held)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    wanted = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    for got, want in zip(bn.compile(data, threads=1).run(None, feeds), wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


FILTERS: tuple[Dims, ...] = ([None] * 4, ["a", "b", "c", "d"], [None, None, 3, None], None)
WINDOWS: tuple[dict[str, Any], ...] = (
    {}, {"kernel_shape": [3, 2]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"strides": [2, 1], "pads": [1, 0, 0, 1]}, {"group": 2, "dilations": [1, 2]},
)  # fmt: skip


@pytest.mark.parametrize("declared", FILTERS, ids=["none", "names", "some", "no rank"])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose", "ConvInteger", "QLinearConv"])
def test_filters_whose_sizes_the_run_tells(name: str, declared: Dims) -> None:
    """The product is in the middle of a graph, so passes meet it, too."""
    for window in WINDOWS:
        groups = window.get("group", 1)
        shape = (4, 6 // groups, 3, 2) if name == "ConvTranspose" else (6, 4 // groups, 3, 2)
        floats = name.startswith("Conv") and name != "ConvInteger"
        x = RNG.normal(size=(2, 4, 7, 8)).astype(np.float32) if floats else RNG.integers(0, 255, (2, 4, 7, 8), np.uint8)
        w = RNG.normal(size=shape).astype(np.float32) if floats else RNG.integers(-127, 127, shape, np.int8)
        operands = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
        if name == "ConvInteger":
            operands = ["x", "w", "x_zero", "w_zero"]
        constants = {
            "x_scale": np.float32(0.125), "x_zero": np.uint8(128), "w_scale": np.float32(0.03), "w_zero": np.int8(0),
            "y_scale": np.float32(4), "y_zero": np.uint8(120),
        }  # fmt: skip
        nodes = [
            helper.make_node("Relu" if floats else "Identity", ["x"], ["x_"]),
            helper.make_node(name, ["x_", *(["w"] if floats else operands[1:])], ["y"], **window),
            helper.make_node("Transpose", ["y"], ["z"], perm=[0, 2, 3, 1]),
        ]
        used = {n: a for n, a in constants.items() if not floats and n in operands}
        kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in (x, w)]
        sizes: Dims = [None, 4, None, None]
        hold(nodes, [Info("x", kinds[0], sizes), Info("w", kinds[1], declared)], {"x": x, "w": w}, **used)


def test_transposed_filters_with_sizes_of_the_result() -> None:
    for window in (
        {"output_shape": [15, 16]},
        {"output_padding": [1, 1]},
        {"output_shape": [15, 16], "auto_pad": "SAME_LOWER"},
    ):
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **window)
        feeds = {
            "x": RNG.normal(size=(1, 4, 7, 8)).astype(np.float32),
            "w": RNG.normal(size=(4, 6, 3, 3)).astype(np.float32),
        }
        hold([node], [Info(n, TensorProto.FLOAT, [None] * 4) for n in feeds], feeds)


@pytest.mark.parametrize("number", [[1], [None], ["one"]], ids=["one", "none", "name"])
@pytest.mark.parametrize("flag", [[], [1]], ids=["scalar", "one element"])
def test_number_and_condition_of_a_loop_have_the_axis_that_its_body_declares(number: Dims, flag: Dims) -> None:
    """Slice takes the number as it is, and it is a result of each iteration; tf2onnx writes CropAndResize so."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["i", "one"], ["next"]),
            helper.make_node("Slice", ["x", "i", "next"], ["row"]),
            helper.make_node("Squeeze", ["row", "zero"], ["flat"]),
            helper.make_node("Identity", ["i"], ["number"]),
            helper.make_node("Not", ["go"], ["over"]),
            helper.make_node("Add", ["sum", "i"], ["sum_"]),
        ],
        "body",
        [Info("i", TensorProto.INT64, number), Info("go", TensorProto.BOOL, flag), Info("sum", TensorProto.INT64, [1])],
        [onnx.ValueInfoProto(name=n) for n in ("go_on", "sum_", "flat", "number", "over")],
    )
    loop = helper.make_node("Loop", ["count", "true", "start"], ["total", "rows", "numbers", "flags"], body=body)
    inputs = [Info("count", TensorProto.INT64, []), Info("x", TensorProto.FLOAT, [None, 3])]
    feeds = {"count": np.array(3), "x": RNG.normal(size=(4, 3)).astype(np.float32)}
    dims: Any = flag
    true = np.ones(dims, bool)
    hold([loop], inputs, feeds, one=np.array([1]), zero=np.array([0]), start=np.array([5]), true=true)


@pytest.mark.parametrize("operands", [["count", ""], ["count", "true"]], ids=["none", "constant"])
def test_a_loop_that_carries_and_captures_nothing(operands: list[str]) -> None:
    nodes = [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Mul", ["i", "i"], ["square"])]
    body = helper.make_graph(
        nodes,
        "body",
        [Info("i", TensorProto.INT64, []), Info("go", TensorProto.BOOL, [])],
        [onnx.ValueInfoProto(name=n) for n in ("go_on", "square")],
    )
    loop = helper.make_node("Loop", operands, ["squares"], body=body)
    hold([loop], [Info("count", TensorProto.INT64, [])], {"count": np.array(5)}, true=np.array(True))
