"""What rules ask about a QuantizeLinear or DequantizeLinear: how many scales it has, and whether two are alike."""

from __future__ import annotations

from bolt_numba.base.types import F32, I8, I16, U8, U16
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.passes.rewrite import same_value

BYTES = (U8, I8)
CODES = (*BYTES, I16, U16)
"""Integers that activations are stored in."""
SAFE_SCALE = (2.0**-100, 2.0**100)
"""Scales with which no code becomes infinite, or too small for a normal number."""


def is_per_tensor(node: Node) -> bool:
    """Whether a conversion has one scale for all elements."""
    scale = node.inputs[1]
    return scale is not None and scale.type.shape is not None and all(d == 1 for d in scale.type.shape)


def dequantized(value: Value | None) -> Node | None:
    """The node that turns codes into a value, with one scale for all of them; None where it is made otherwise."""
    node = None if value is None else value.node
    if node is None or not isinstance(node.op, DequantizeLinear) or not is_per_tensor(node):
        return None
    codes = node.inputs[0]
    return node if codes is not None and codes.type.dtype in CODES and node.output.type.dtype == F32 else None


def known_scale(node: Node) -> float | None:
    """The one scale of a conversion, where it is known, positive and safe."""
    scale = node.inputs[1]
    if scale is None or scale.const is None or scale.const.size != 1 or scale.const.dtype != F32:
        return None
    found = float(scale.const.reshape(-1)[0])
    return found if SAFE_SCALE[0] < found < SAFE_SCALE[1] else None


def zero_point(node: Node) -> Value | None:
    """The zero point of a conversion; None where it is 0."""
    return node.inputs[2] if len(node.inputs) > 2 else None


def are_alike(a: Node, z: Node) -> bool:
    """Whether two conversions have one scale and one zero point."""
    one, two = a.inputs[1], z.inputs[1]
    if one is None or two is None or not same_value(one, two):
        return False
    points = [zero_point(a), zero_point(z)]
    first, second = points
    if first is not None and second is not None:
        return same_value(first, second)
    return all(v is None or (v.const is not None and not v.const.any()) for v in points)
