"""Files of models with one operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper


def save_model(path: Path, op: str, inputs: dict[str, tuple[int, list[Any]]], out: int, *, domain: str = "") -> Path:
    """A file with one node, whose result has the shape of its first input."""
    path.parent.mkdir(parents=True, exist_ok=True)
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    result = helper.make_tensor_value_info("y", out, next(iter(inputs.values()))[1])
    graph = helper.make_graph([helper.make_node(op, list(inputs), ["y"], domain=domain)], op, infos, [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def add(path: Path, rows: Any = "n", columns: Any = 3, kind: int = TensorProto.FLOAT) -> Path:
    """y = a + b"""
    return save_model(path, "Add", {"a": (kind, [rows, columns]), "b": (kind, [rows, columns])}, kind)


def same(path: Path, kind: int) -> Path:
    """y = x"""
    return save_model(path, "Identity", {"x": (kind, ["n", "m"])}, kind)


def softmax(path: Path) -> Path:
    """y = softmax(x), over the last axis, whose size is free"""
    return save_model(path, "Softmax", {"x": (TensorProto.FLOAT, ["n", "m"])}, TensorProto.FLOAT)


def look_up(path: Path, table: Any) -> Path:
    """y = x + table[i] for each row, z = -y"""
    info = helper.make_tensor_value_info
    x, i = info("x", TensorProto.FLOAT, ["n", "m"]), info("i", TensorProto.INT64, ["n"])
    y, z = (info(name, TensorProto.FLOAT, ["n", "m"]) for name in "yz")
    rows = [
        ("Gather", ["table", "i"], "row"), ("Unsqueeze", ["row", "axes"], "column"), ("Add", ["x", "column"], "y"),
        ("Neg", ["y"], "z"),
    ]  # fmt: skip
    nodes = [helper.make_node(op, inputs, [output]) for op, inputs, output in rows]
    constants = {"table": np.asarray(table, "f4"), "axes": np.array([1])}
    held = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(nodes, "look up", [x, i], [y, z], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path
