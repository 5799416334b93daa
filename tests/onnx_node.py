"""One operator as a small ONNX model, for outside oracles.  It shares nothing with the converter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.shape import Split
from bolt_numba.ops.arrays.signal import MelWeightMatrix
from bolt_numba.ops.data.text import TfIdfVectorizer
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.detection.regions import DeformConv
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import Recurrent
from bolt_numba.ops.registry import Op
from bolt_numba.types import Array

OPSET = 22
LATER = {
    "RMSNormalization": 23, "RotaryEmbedding": 23, "Attention": 23, "Swish": 24, "TensorScatter": 24, "BitCast": 26,
    "CumProd": 26,
}  # fmt: skip
EARLIER = {"MaxRoiPool": 21}
"""Operators that onnxruntime knows in an older opset only."""
INTERNAL = {"activation", "residual", "indices", "stats"}

Nodes = list[onnx.NodeProto]
Emit = Callable[[Any, list[str], list[str]], Nodes]


def _attribute(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return helper.np_dtype_to_tensor_dtype(value)
    return int(value) if isinstance(value, bool) else value


def attributes(op: Op) -> dict[str, Any]:
    """Attributes that ONNX knows too; those of no value are left out."""
    found = {f.name: getattr(op, f.name) for f in dataclasses.fields(op)}  # type: ignore[arg-type]
    if not isinstance(op, Recurrent):
        found.pop("layout", None)
    if found.get("auto_pad", "NOTSET") != "NOTSET":
        found.pop("pads", None)
    made = {k: _attribute(v) for k, v in found.items() if k not in INTERNAL and v is not None and v != ()}
    if op.name == "Cast":  # an attribute of later opsets, for float8e8m0 only
        made.pop("round_mode", None)
    return made


def _constant(name: str, value: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def _plain(op: Op, ins: list[str], outs: list[str]) -> Nodes:
    return [helper.make_node(op.name, ins, outs, **attributes(op))]


def _clip(op: Any, ins: list[str], outs: list[str]) -> Nodes:
    nodes, names = [], [ins[0]]
    for label, bound in (("lo", op.lo), ("hi", op.hi)):
        names.append("" if bound is None else f"{outs[0]}_{label}")
        if bound is not None:
            nodes.append(_constant(f"{names[-1]}_f32", np.array(bound, np.float32)))
            nodes.append(helper.make_node("CastLike", [f"{names[-1]}_f32", ins[0]], [names[-1]]))
    return [*nodes, helper.make_node("Clip", names, outs)]


def _tail(op: Any, made: str, residual: str, out: str) -> Nodes:
    """Residual and activation after ``made``."""
    nodes: Nodes = []
    if residual:
        nodes.append(helper.make_node("Add", [made, residual], ["summed"]))
        made = "summed"
    if op.activation is None:
        return [*nodes, helper.make_node("Identity", [made], [out])]
    return [*nodes, *nodes_of(op.activation, [made], [out])]


def _conv(op: Conv | ConvTranspose, ins: list[str], outs: list[str]) -> Nodes:
    residual = ins.pop() if len(ins) > 3 else ""
    return [*_plain(op, ins, ["product"]), *_tail(op, "product", residual, outs[0])]


def _matmul(op: MatMul, ins: list[str], outs: list[str], ranks: Sequence[int]) -> Nodes:
    nodes: Nodes = []
    for i, trans in enumerate((op.trans_a, op.trans_b)):
        if trans and ranks[i] > 1:
            perm = [*range(ranks[i] - 2), ranks[i] - 1, ranks[i] - 2]
            nodes.append(helper.make_node("Transpose", [ins[i]], [f"t{i}"], perm=perm))
            ins[i] = f"t{i}"
    nodes.append(helper.make_node("MatMul", ins[:2], ["product"]))
    made = "product"
    if op.alpha != 1:
        nodes.append(_constant("alpha", np.array(op.alpha, np.float32)))
        nodes.append(helper.make_node("Mul", ["product", "alpha"], ["scaled"]))
        made = "scaled"
    if len(ins) > 2 and ins[2]:
        nodes.append(helper.make_node("Add", [made, ins[2]], ["biased"]))
        made = "biased"
    return [*nodes, *_tail(op, made, ins[3] if len(ins) > 3 else "", outs[0])]


def _attention(op: FusedAttention, ins: list[str], outs: list[str]) -> Nodes:
    nodes, ins, made = [], list(ins), outs[0]
    if op.packed:
        ins[1:1] = ["k", "v"] if len(ins) == 1 else []
        nodes.append(helper.make_node("Split", [ins[0]], ["q", "k", "v"], axis=-2, num_outputs=3))
        ins[:3] = "qkv"
    for i, layout in enumerate(op.layouts):
        if layout == "SHD":
            nodes.append(helper.make_node("Transpose", [ins[i]], [f"t{i}"], perm=[0, 2, 1, 3]))
            ins[i] = f"t{i}"
    if op.y_layout == "SHD":
        made = "heads_first"
    nodes.append(helper.make_node("Attention", ins, [made], scale=op.scale, is_causal=int(op.causal)))
    if op.y_layout == "SHD":
        nodes.append(helper.make_node("Transpose", [made], outs, perm=[0, 2, 1, 3]))
    return nodes


def _rotary(op: RotaryEmbedding, ins: list[str], outs: list[str], inputs: Sequence[Array | None]) -> Nodes:
    """Tables or positions are spread over the batch, which ONNX wants."""
    x, cos, *rest = (a for a in inputs if a is not None)
    n, s = x.shape[0], x.shape[1 if op.layout == "SHD" else 2]
    nodes, made = [], "turned" if op.layout == "SHD" else outs[0]
    full = (n, s) if len(rest) > 1 else (n, s, cos.shape[-1])
    nodes.append(_constant("full", np.array(full, np.int64)))
    for i in (3,) if len(rest) > 1 else (1, 2):
        nodes.append(helper.make_node("Expand", [ins[i], "full"], [f"e{i}"]))
        ins[i] = f"e{i}"
    if op.layout == "SHD":
        nodes.append(helper.make_node("Transpose", [ins[0]], ["heads_first"], perm=[0, 2, 1, 3]))
        ins[0] = "heads_first"
    turning = 2 * cos.shape[-1] if 2 * cos.shape[-1] < x.shape[-1] else 0
    given = {"interleaved": int(op.interleaved), "rotary_embedding_dim": turning}
    given |= {"num_heads": x.shape[2 if op.layout == "SHD" else 1]} if turning else {}
    nodes.append(helper.make_node("RotaryEmbedding", ins, [made], **given))
    if op.layout == "SHD":
        nodes.append(helper.make_node("Transpose", [made], outs, perm=[0, 2, 1, 3]))
    return nodes


def _split(op: Split, ins: list[str], outs: list[str]) -> Nodes:
    number = None if len(ins) > 1 else op.num_outputs
    return [helper.make_node("Split", ins, outs, axis=op.axis, num_outputs=number)]


def _filled(op: ConstantOfShape, ins: list[str], outs: list[str]) -> Nodes:
    value = numpy_helper.from_array(np.array([op.value], dtype=op.dtype))
    return [helper.make_node("ConstantOfShape", ins, outs, value=value)]


def _mel(op: MelWeightMatrix, ins: list[str], outs: list[str]) -> Nodes:
    return [helper.make_node("MelWeightMatrix", ins, outs, output_datatype=_attribute(op.dtype))]


def _deform(op: DeformConv, ins: list[str], outs: list[str]) -> Nodes:
    known = {k: v for k, v in attributes(op).items() if k != "auto_pad"}
    return [helper.make_node("DeformConv", ins, outs, **known)]


def _tf_idf(op: TfIdfVectorizer, ins: list[str], outs: list[str]) -> Nodes:
    given = attributes(op)
    pool = given.pop("pool")
    given["pool_strings" if isinstance(pool[0], str) else "pool_int64s"] = pool
    return [helper.make_node(op.name, ins, outs, **given)]


EMIT: dict[str, Emit] = {
    "TfIdfVectorizer": _tf_idf,
    "Clip": _clip,
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "ConvTranspose": _conv,
    "DeformConv": _deform,
    "FusedAttention": _attention,
    "MelWeightMatrix": _mel,
    "Split": _split,
}


def nodes_of(op: Op, ins: list[str], outs: list[str]) -> Nodes:
    """ONNX nodes that compute ``op``."""
    return EMIT.get(op.name, _plain)(op, ins, outs)


def model_of(op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> onnx.ModelProto:
    """A model whose inputs are x0, x1, ... (only those that are given) and whose outputs are y0, y1, ..."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outs = [f"y{i}" for i in range(len(outputs))]
    if isinstance(op, MatMul):
        nodes = _matmul(op, names.copy(), outs, [0 if a is None else a.ndim for a in inputs])
    elif isinstance(op, RotaryEmbedding):
        nodes = _rotary(op, names.copy(), outs, inputs)
    else:
        nodes = nodes_of(op, names.copy(), outs)
    kind = helper.np_dtype_to_tensor_dtype
    feeds = [
        helper.make_tensor_value_info(n, kind(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
        if a is not None
    ]
    results = [helper.make_tensor_value_info(n, kind(a.dtype), None) for n, a in zip(outs, outputs, strict=True)]
    graph = helper.make_graph(nodes, "one", feeds, results)
    opset = EARLIER.get(op.name) or max([OPSET, *(LATER.get(n.op_type, 0) for n in nodes)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
