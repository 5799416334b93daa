"""Results of convolutions are bytes, too, in quantised files: onnxruntime computes nothing between them in float."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Clip, HardSwish, Mul, Sigmoid
from bolt_numba.quantize import quantize
from bolt_numba.types import F32, Array, TensorType

SIZES = (1, 8, 12, 12)


def weights(seed: int, *shape: int) -> Array:
    made = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return np.asarray(made, F32)


def depthwise_net() -> Graph:
    """Two blocks of 1x1, depthwise and 1x1, a shortcut, SiLU, a pool, a join, hard swish, a head that is the output."""
    graph = Graph("net")
    b = Builder(graph)
    y = graph.add_input("x", TensorType(F32, SIZES))
    for i in range(2):
        wide = b(Clip(0.0, 6.0), b(Conv(), y, weights(i, 16, 8, 1, 1), weights(9, 16), name=f"wide{i}"))
        seen = b(Conv(pads=(1,) * 4, group=16), wide, weights(i, 16, 1, 3, 3), name=f"seen{i}")
        z = b(Conv(), b(Mul(), seen, b(Sigmoid(), seen)), weights(i + 5, 8, 16, 1, 1), name=f"narrow{i}")
        y = b(Add(), y, z)
    pooled = b(MaxPool((3, 3), (1, 1), (1,) * 4), y)
    joined = b(Concat(1), y, pooled)
    last = b(HardSwish(), b(Conv(), joined, weights(3, 8, 16, 1, 1), name="last"))
    graph.add_output(b(Conv(), last, weights(4, 5, 8, 1, 1), weights(8, 5), name="head"), "y")
    return graph


def samples() -> dict[str, Array]:
    return {"x": np.random.default_rng(1).standard_normal((8, *SIZES[1:])).astype(F32)}


def rounded(graph: Graph) -> set[str]:
    """Layers whose results a QuantizeLinear reads, behind a Clip at most."""
    found = set()
    for node in graph.nodes:
        readers = [r for v in node.outputs for r in v.uses.times]
        readers += [r for n in readers if isinstance(n.op, Clip) for r in n.output.uses.times]
        if isinstance(node.op, (Conv, MatMul)) and any(r.op.name == "QuantizeLinear" for r in readers):
            found.add(node.name)
    return found


LAYERS = {f"{name}{i}" for name in ("wide", "seen", "narrow") for i in range(2)} | {"last"}


def test_results_between_layers_are_rounded_and_what_the_graph_gives_is_not() -> None:
    assert rounded(quantize(depthwise_net(), samples()).graph) == LAYERS
    one = quantize(depthwise_net(), samples(), overrides={"seen0": {"results": False}}).graph
    assert rounded(one) == LAYERS - {"seen0"}


@pytest.mark.parametrize("wishes", [{"results": False}, {"activations": "u16"}])
def test_floats_stay_between_layers_where_that_is_wished_or_nothing_is_gained(wishes: dict[str, Any]) -> None:
    made = quantize(depthwise_net(), samples(), **wishes)
    assert rounded(made.graph) == {"wide0", "wide1"}, "what layers read themselves is rounded anyway"
    assert made.report.sqnr > quantize(depthwise_net(), samples()).report.sqnr > 24


def test_onnxruntime_multiplies_bytes_in_every_layer_between(tmp_path: Path) -> None:
    quantize(depthwise_net(), samples()).save(tmp_path / "net.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 4
    onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert kinds["QLinearConv"] == len(LAYERS)
    assert kinds["Conv"] + kinds["FusedConv"] == 1, "the head"
    assert kinds["QLinearAdd"] == 2
    assert kinds["QLinearMul"] == kinds["QLinearSigmoid"] == 2
    assert kinds["QLinearConcat"] == 1
