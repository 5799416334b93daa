"""Values that stay between products become bfloat16: half the bytes are written and read, and nothing converts them.

    y = Conv(...), read by Conv and MatMul alone  ->  y of bfloat16, and ``to`` of all these operators set

Products of a session of precision ``bf16`` round that operand anyhow, so only residuals lose digits.  Convolutions that
another algorithm may compute in f32 (`is_direct`) and values that others read stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bolt_numba.base.types import BF16, F32
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul

LEAST_SIDE = 24
"""Channels, or rows and columns of weights, from which products of bfloat16 are expected to be taken."""


def is_direct(node: Node) -> bool:
    """Whether a product of constant weights is expected to be a direct sum of bfloat16."""
    op: Any = node.op
    if not isinstance(op, (Conv, MatMul)) or op.to is not None:
        return False
    w = node.operands[1]
    if w is None or w.const is None or w.const.dtype != F32 or w.const.ndim < 2 or min(w.const.shape[:2]) < LEAST_SIDE:
        return False
    if isinstance(op, MatMul):
        return w.const.ndim == 2 and not op.trans_a
    return op.layout == "NHWC" and op.group == 1 and (max(w.const.shape[2:]) == 1 or max(op.strides, default=1) > 1)


def can_be_narrow(graph: Graph, value: Value) -> bool:
    """Whether products alone make and read a value, as the operand that is not the weights or as a residual."""
    if value.node is None or value.type.dtype != F32 or not value.uses or graph.is_output(value):
        return False
    if not is_direct(value.node):
        return False
    return all(is_direct(n) and value not in (n.operands[1], *n.operands[2:3]) for n in value.uses.times)


def narrow_values(graph: Graph) -> bool:
    """Make such values of a graph bfloat16; whether there are any."""
    narrow = {id(v) for node in graph.nodes for v in node.outputs if can_be_narrow(graph, v)}
    for node in graph.nodes:
        op: Any = node.op
        if id(node.output) in narrow or any(id(v) in narrow for v in node.operands):
            node.op = replace(op, to=BF16 if id(node.output) in narrow else F32)
            (node.output.type,) = infer_types(node.op, [None if v is None else v.type for v in node.operands])
    return bool(narrow)
