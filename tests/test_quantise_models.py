"""Whole networks in the QDQ form, as quantisers of others write them: what is left float, and their results."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization  # type: ignore[import-untyped]

import bolt_numba as bn
from bench.quantised import TWINS
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.store import save
from bolt_numba.ops.arrays.quantize import QuantizeLinear
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.surgery import extract, packed, with_outputs
from bolt_numba.types import Array

U8, S8 = quantization.QuantType.QUInt8, quantization.QuantType.QInt8
SCHEMES = {
    "u8-s8-channels": {"activation_type": U8, "weight_type": S8, "per_channel": True},
    "s8-s8": {"activation_type": S8, "weight_type": S8, "per_channel": False},
    "u8-u8": {"activation_type": U8, "weight_type": U8, "per_channel": False},
    "operators": {"activation_type": U8, "weight_type": S8, "quant_format": quantization.QuantFormat.QOperator},
}
"""What weights and activations are stored in."""


class Net:
    """An ONNX model that is written node by node, with random weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *dims: int, scale: float = 0.0, mean: float = 0.0) -> str:
        array = self.rng.normal(mean, scale or 1 / np.sqrt(max(np.prod(dims[1:]), 1)), dims).astype(np.float32)
        return self.constant(array)

    def constant(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, channels: int, filters: int, size: int = 3, **more: Any) -> str:
        pads, group = [size // 2] * 4, more.get("group", 1)
        w = self.weight(filters, channels // group, size, size)
        return self("Conv", x, w, self.weight(filters, scale=0.5), pads=pads, **more)

    def model(self, x: tuple[int | None, ...], y: str, rank: int) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        dims = [None] * rank
        graph = helper.make_graph(
            self.nodes, "net", [info("x", TensorProto.FLOAT, x)], [info(y, TensorProto.FLOAT, dims)], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual_net() -> onnx.ModelProto:
    net = Net()
    y = net("MaxPool", net("Relu", net.conv("x", 3, 16, 7, strides=[2, 2])), kernel_shape=[2, 2], strides=[2, 2])
    for filters in (16, 24):
        near = net("Relu", net.conv(y, 16, filters))
        near = net.conv(near, filters, 16)
        y = net("Relu", net("Add", near, y))
    y = net("Concat", y, net("Relu", net.conv(y, 16, 8, 1)), axis=1)
    y = net("Flatten", net("GlobalAveragePool", y))
    return net.model((1, 3, 32, 32), net("Gemm", y, net.weight(10, 24), net.weight(10), transB=1), 2)


def mobile_net() -> onnx.ModelProto:
    net = Net()
    six = [net.constant(np.array(v, np.float32)) for v in (0, 6)]
    y, channels = net("Clip", net.conv("x", 3, 16, strides=[2, 2]), *six), 16
    for filters, stride in ((16, 1), (24, 2), (24, 1)):
        wide = net("Clip", net.conv(y, channels, 3 * channels, 1), *six)
        wide = net("Clip", net.conv(wide, 3 * channels, 3 * channels, group=3 * channels, strides=[stride] * 2), *six)
        narrow = net.conv(wide, 3 * channels, filters, 1)
        y, channels = (net("Add", y, narrow) if filters == channels and stride == 1 else narrow), filters
    y = net("HardSwish", net.conv(y, channels, 40, 1))
    y = net("Flatten", net("GlobalAveragePool", y))
    return net.model((1, 3, 32, 32), net("Gemm", y, net.weight(10, 40), net.weight(10), transB=1), 2)


def transformer(tokens: int | None = 12, width: int = 32, heads: int = 4) -> onnx.ModelProto:
    net = Net()

    def linear(x: str, n: int, m: int) -> str:
        return net("Add", net("MatMul", x, net.weight(n, m, scale=1 / np.sqrt(n))), net.weight(m, scale=0.1))

    def split(x: str, perm: list[int]) -> str:
        shape = net.constant(np.array([1, -1, heads, width // heads], np.int64))
        return net("Transpose", net("Reshape", x, shape), perm=perm)

    def norm(x: str) -> str:
        return net("LayerNormalization", x, net.weight(width, scale=0.1, mean=1.0), net.weight(width, scale=0.1))

    q, v = (split(linear("x", width, width), [0, 2, 1, 3]) for _ in range(2))
    k = split(linear("x", width, width), [0, 2, 3, 1])
    scores = net("Mul", net("MatMul", q, k), net.constant(np.array(0.35, np.float32)))
    y = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    y = net("Reshape", y, net.constant(np.array([1, -1, width], np.int64)))
    y = norm(net("Add", linear(y, width, width), "x"))
    wide = linear(y, width, 2 * width)
    wide = net("Mul", wide, net("Sigmoid", wide))
    return net.model((1, tokens, width), norm(net("Add", linear(wide, 2 * width, width), y)), 3)


NETS = {"residual": residual_net, "mobile": mobile_net, "transformer": transformer}


class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Normal inputs to calibrate with."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        rng = np.random.default_rng(1)
        self.left = iter([{"x": rng.normal(0, 1, dims).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> Any:
        return next(self.left, None)


def quantised(folder: Path, net: str, scheme: str) -> onnx.ModelProto:
    """The network as onnxruntime's quantiser writes it."""
    model = NETS[net]()
    dims = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    source, target = folder / "float.onnx", folder / "bytes.onnx"
    onnx.save(model, source)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        quantization.quantize_static(str(source), str(target), Samples(dims), **SCHEMES[scheme])
    finally:
        root.setLevel(level)
    return onnx.load(target)


def floats_left(graph: Graph) -> list[str]:
    """Products and convolutions of floats."""
    kinds = ("Conv", "MatMul", "FusedAttention", "ConvTranspose")
    return [n.name for n in run_pipeline(graph, check=True).nodes if n.op.name in kinds]


def signed_factors(graph: Graph) -> list[str]:
    """Products that would have to turn the bytes that they read."""
    products = [n for n in run_pipeline(graph).nodes if n.op.name in ("QLinearConv", "QLinearMatMul")]
    return [n.name for n in products if n.operands[0] is not None and n.operands[0].type.dtype == np.int8]


def level_of(model: onnx.ModelProto) -> float:
    """The step of the result: the scale of the last DequantizeLinear; that of usual numbers where it stays float."""
    weights = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    made = {name: node for node in model.graph.node for name in node.output}
    node = made[model.graph.output[0].name]
    if node.op_type != "DequantizeLinear":
        return 1 / 32
    return float(weights[node.input[1]].reshape(-1)[0])


def by_onnxruntime(content: bytes, feeds: dict[str, Array], rewritten: bool = True) -> list[Array]:
    options = onnxruntime.SessionOptions()
    if not rewritten:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, feeds)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("net", NETS)
def test_networks_of_onnxruntimes_quantiser(tmp_path: Path, net: str, scheme: str) -> None:
    model = quantised(tmp_path, net, scheme)
    content, level = model.SerializeToString(), level_of(model)
    graph = bn.load(content)
    assert not floats_left(graph)
    assert not signed_factors(graph)
    session = bn.compile(graph, threads=1)
    for seed in range(3):
        dims = graph.inputs[0].type.dims
        feeds = {"x": np.random.default_rng(seed).normal(0, 1, dims).astype(np.float32)}
        got, exact = session(**feeds)[0], next(iter(interpret(graph, feeds).values()))
        (peer,) = by_onnxruntime(content, feeds)
        assert np.abs(got - exact).max() <= LEVELS[net] * level
        assert np.abs(got - exact).mean() <= 0.3 * level
        assert np.abs(got - peer).max() <= LEVELS[net] * level
    assert all(row["runner"] != "reference" for row in session.report()), session.report()


LEVELS = {"residual": 1.5, "mobile": 1.5, "transformer": 4.5}
"""How far results may be apart: one level between two operators may become several behind a norm."""

def steps_between_bytes(graph: Graph) -> list[tuple[list[str], str]]:
    """Byte tensors, and the one that is computed of them, for each QuantizeLinear."""
    found = []
    for node in graph.nodes:
        if not isinstance(node.op, QuantizeLinear) or node.operands[0] is None or node.operands[0].is_const:
            continue
        sources: dict[str, None] = {}
        todo: list[Any] = [node.operands[0]]
        while todo:
            value = todo.pop()
            if value is None or value.is_const:
                continue
            if value.node is None or isinstance(value.node.op, QuantizeLinear):
                sources[value.name] = None
            else:
                todo += value.node.inputs
        found.append((list(sources), node.output.name))
    return found


@pytest.mark.parametrize("net", NETS)
def test_each_step_between_bytes_is_within_a_level(tmp_path: Path, net: str) -> None:
    """Given exact bytes; behind a norm the differences of many steps would hide the fault of one."""
    graph = bn.load(quantised(tmp_path, net, "u8-s8-channels").SerializeToString())
    steps = steps_between_bytes(graph)
    assert len(steps) > 5
    x = np.random.default_rng(5).normal(0, 1, graph.inputs[0].type.dims).astype(np.float32)
    exact = {"x": x} | interpret(with_outputs(graph, [name for _, name in steps]), {"x": x})
    for sources, name in steps:
        session = bn.compile(extract(graph, sources, [name]), threads=1)
        away = np.abs(session(**{s: exact[s] for s in sources})[0].astype(int) - exact[name])
        assert away.max() <= 1, (name, session.report())
        assert away.mean() <= 0.01, (name, session.report())


FILES = ("mobilenet_v2", "mobilenet_v3_large", "squeezenet", "yolo_n", "gemm1024")
"""Networks with residuals, squeezes and joins, which the quantiser writes in seconds."""


def away(got: Array, wanted: Array) -> float:
    """Root of the mean squared error, as a part of the signal's."""
    return float(np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2)))


@pytest.mark.parametrize("name", FILES)
def test_real_files_run_on_bytes_as_near_as_onnxruntimes(name: str) -> None:
    """Rounding at other places makes a difference behind many layers: as much as onnxruntime's own rewrites make."""
    twin = TWINS[f"{name}_int8"]
    content, feeds = twin.path().read_bytes(), twin.feeds()
    graph = bn.load(content)
    assert not floats_left(graph)
    (plain,), (fused,) = (by_onnxruntime(content, feeds, rewritten) for rewritten in (False, True))
    assert away(bn.compile(graph, threads=1)(**feeds)[0], plain) <= 1.2 * away(fused, plain) + 1e-3


def test_a_model_with_biases_behind_and_levels_on_both_sides_of_zero() -> None:
    """As NNCF writes them: symmetric weights, 255 levels, biases as sums of their own, weights yet to be rounded."""
    net = Net()

    def fake(x: str, scale: float, zero: int, dtype: Any) -> str:
        at = net.constant(np.array(scale, np.float32)), net.constant(np.array(zero, dtype))
        return net("DequantizeLinear", net("QuantizeLinear", x, *at), *at)

    def weight(axis: int, *dims: int) -> str:
        scales = net.constant(net.rng.uniform(0.002, 0.004, dims[axis]).astype(np.float32))
        zeros = net.constant(np.zeros(dims[axis], np.int8))
        made = net("QuantizeLinear", net.weight(*dims), scales, zeros, axis=axis)
        return net("DequantizeLinear", made, scales, zeros, axis=axis)

    y = net("Conv", fake("x", 0.03, 0, np.int8), weight(0, 16, 3, 3, 3), strides=[2, 2])
    y = net("Relu", net("Add", y, net.weight(1, 16, 1, 1)))
    y = net("Conv", fake(y, 0.02, 0, np.uint8), weight(0, 16, 1, 3, 3), group=16)
    y = fake(net("Add", y, net.weight(1, 16, 1, 1)), 0.02, 0, np.int8)
    y = net("MatMul", net("Flatten", net("GlobalAveragePool", y)), weight(1, 16, 10))
    y = net("MatMul", fake(net("Add", y, net.weight(10)), 0.01, 0, np.int8), weight(1, 10, 8))
    y = net("Add", y, net.weight(8))
    content = net.model((2, 3, 20, 20), fake(y, 0.05, 0, np.int8), 2).SerializeToString()
    graph = bn.load(content)
    assert [n.op.name for n in run_pipeline(graph).nodes].count("QLinearConv") == 2
    feeds = {"x": net.rng.normal(0, 1, (2, 3, 20, 20)).astype(np.float32)}
    got, wanted = bn.compile(graph)(**feeds)[0], interpret(graph, feeds)
    assert np.abs(got - next(iter(wanted.values()))).max() <= 0.051
    assert np.abs(got - by_onnxruntime(content, feeds)[0]).max() <= 0.051


def test_lengths_that_only_the_run_tells(tmp_path: Path) -> None:
    source, target = tmp_path / "float.onnx", tmp_path / "bytes.onnx"
    onnx.save(transformer(None), source)
    quantization.quantize_static(str(source), str(target), Samples((1, 12, 32)), **SCHEMES["u8-s8-channels"])
    graph = bn.load(target)
    assert not floats_left(graph)
    session = bn.compile(graph, threads=1)
    for tokens in (12, 1, 40, 7, 13, 64, 5):
        feeds = {"x": np.random.default_rng(tokens).normal(0, 1, (1, tokens, 32)).astype(np.float32)}
        got, exact = session(**feeds)[0], next(iter(interpret(graph, feeds).values()))
        assert got.shape == exact.shape
        assert np.abs(got - exact).max() <= LEVELS["transformer"] * level_of(onnx.load(target))


def test_packed_and_written_again(tmp_path: Path) -> None:
    """What the passes made of bytes is stored, and loads without them; the file of the graph itself stays QDQ."""
    content = quantised(tmp_path, "mobile", "u8-s8-channels").SerializeToString()
    graph = bn.load(content)
    feeds = {"x": np.random.default_rng(3).normal(0, 1, graph.inputs[0].type.dims).astype(np.float32)}
    wanted = bn.compile(graph, threads=1)(**feeds)[0]
    made = packed(graph, threads=(1,))
    save(made, tmp_path / "packed.bolt")
    np.testing.assert_array_equal(bn.compile(tmp_path / "packed.bolt", threads=1)(**feeds)[0], wanted)
    inner = run_pipeline(graph, until="quantise")
    assert "QLinearConv" in {n.op.name for n in inner.nodes}
    again = to_onnx(inner).SerializeToString()
    np.testing.assert_array_equal(bn.compile(bn.load(again), threads=1)(**feeds)[0], wanted)
    assert np.abs(by_onnxruntime(again, feeds)[0] - wanted).max() <= 1.5 * level_of(onnx.load_from_string(content))
