"""The light networks of the onnx wheel on small pictures, with random weights in the place of constant ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from bolt_numba.types import Array

FULL = 224
"""Pixels a side for which the networks were made."""
NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip


def light(name: str, side: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A network for pictures of ``side`` pixels (32 is one pixel of the last features), and a picture.

    Windows over all of the last features, reshapes, and the first fully connected layer follow the size.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / f"light_{name}.onnx")
    model.ir_version = 8  # weights need not be inputs
    graph = model.graph
    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    picture = next(i for i in graph.input if i.name not in weights)
    for dim in picture.type.tensor_type.shape.dim[2:]:
        dim.dim_value = side
    for node in graph.node:
        _fit(node, weights, side)
    made = {n.output[0]: weights[n.input[0]].tolist() for n in graph.node if n.op_type == "ConstantOfShape"}
    kept = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(kept)
    others = [i for i in graph.input if i.name == picture.name]
    del graph.input[:]
    graph.input.extend(others)
    read = {name for node in kept for name in node.input}
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items() if n in read)
    _fill(model, made)
    if graph.node[-1].op_type == "Softmax":  # hides differences: one of these numbers is nearly 1
        graph.output[0].name = graph.node.pop().input[0]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    data = np.random.default_rng(0).standard_normal((1, 3, side, side), np.float32)
    return model, {picture.name: data}


def _fit(node: Any, weights: dict[str, Array], side: int) -> None:
    """Attributes and shapes of one node for pictures of another size."""
    if node.op_type == "AveragePool":
        for attribute in node.attribute:
            if attribute.name == "kernel_shape" and attribute.ints[0] >= 7:
                attribute.ints[:] = [side // 32] * 2
    elif node.op_type == "Reshape" and node.input[1] in weights:
        shape = weights[node.input[1]].copy()
        if len(shape) == 2:
            shape[1] = -1
        elif shape[-1] > 1:
            shape[-2:] = shape[-2:] * side // FULL
        weights[node.input[1]] = shape


def _fill(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> None:
    """Random weights, layer after layer; that of the first fully connected one has as many rows as come to it."""
    rng, graph = np.random.default_rng(1), model.graph
    made: dict[str, Array] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in shapes and name not in made:
                made[name] = _weight(rng, node.op_type, position, shapes[name])
        if node.op_type == "Gemm" and node.input[1] in made:
            depth = _inferred(model, made, node.input[0])
            if depth is not None:
                rows = made[node.input[1]].shape[0]
                made[node.input[1]] = _weight(rng, "Gemm", 1, [rows, depth])
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in made.items())


def _weight(rng: np.random.Generator, kind: str, position: int, shape: list[int]) -> Array:
    if kind == "BatchNormalization":  # sums of many residuals stay within f16
        low, high = ((0.3, 0.6), (-0.1, 0.1), (-0.1, 0.1), (0.8, 1.2))[position - 1]
        return rng.uniform(low, high, shape).astype(np.float32)
    scale = math.sqrt(2.0 / max(math.prod(shape[1:]), 1)) if len(shape) > 1 else 0.1
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def _inferred(model: onnx.ModelProto, made: dict[str, Array], name: str) -> int | None:
    """Columns of a value as far as shape inference knows."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.initializer.extend(
        helper.make_tensor(n, onnx.TensorProto.FLOAT, a.shape, a.tobytes(), raw=True) for n, a in made.items()
    )
    for value in shape_inference.infer_shapes(probe).graph.value_info:
        if value.name == name:
            dims = value.type.tensor_type.shape.dim
            return dims[-1].dim_value or None if len(dims) == 2 else None
    return None
