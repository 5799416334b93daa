"""Products and convolutions of dequantised bytes run on the bytes.

integer_conv(Conv(DQ(x), DQ(w)))       -> QLinearConv(x, w)      constant w, one scale and zero point of x; a bias, too
integer_matmul(MatMul(DQ(x), DQ(y)))   -> QLinearMatMul(x, y)    y: also computed; transposes and alpha stand aside

The result is f32: what follows is taken in by `tails`.  A constant bias that is stored in units of the sums stays in
i32.  The float form rounds each product and sum, the integer form rounds once: no result is further from the exact one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, F64, I8, I32, U8, AnyDType, Array, Dim
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.quantize import BYTES, DequantizeLinear
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul, sums_fit
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Mul
from bolt_numba.passes.recognise.products import swap_last
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

NIBBLES: dict[str, AnyDType] = {"int4": I8, "uint4": U8, "int2": I8, "uint2": U8}
"""Narrower integers, and the bytes that hold them."""
UNIT = 2.0**-20
"""Relative difference up to which the scale of a bias is that of the sums: half a unit of the largest f32 sum."""


@record(frozen=True)
class Stored:
    """An operand as it is stored: bytes, scale and zero point.  axis: along which there are several of these."""

    data: Value | Array
    scale: Value | Array
    zero: Value | Array
    dtype: AnyDType
    axis: int | None = None


def stored(value: Value) -> Stored | None:
    """What a DequantizeLinear reads; None where that is not of 8 bits (constants: or fewer), or in blocks."""
    node = value.node
    if node is None or not isinstance(node.op, DequantizeLinear) or value.type.dtype != F32 or value.type.shape is None:
        return None
    data, scale, zero = (*node.inputs, None)[:3]
    if data is None or scale is None or scale.type.dtype != F32 or scale.type.shape is None or node.op.block_size:
        return None
    if scale.const is not None and not np.isfinite(scale.const).all():
        return None
    dtype, rank = data.type.dtype, len(value.type.shape)
    axis = node.op.axis % rank if rank and any(d != 1 for d in scale.type.shape) else None
    if data.const is not None and dtype.name in NIBBLES and (zero is None or zero.const is not None):
        dtype = NIBBLES[dtype.name]
        points = np.zeros((), dtype) if zero is None or zero.const is None else zero.const.astype(dtype)
        return Stored(data.const.astype(dtype), scale, points, dtype, axis)
    if dtype not in BYTES:
        return None
    return Stored(data, scale, np.zeros((), dtype) if zero is None else zero, dtype, axis)


def sums_stay_within(x: Stored, w: Stored, depth: Dim, bias: Array | None = None) -> bool:
    """Whether the sums stay within i32; where only the run tells their depth, kernels see to it."""
    points = known(x.zero), known(w.zero)
    return not isinstance(depth, int) or sums_fit(x.dtype, points[0], w.dtype, points[1], depth, bias)


def known(v: Value | Array) -> Array | None:
    return v.const if isinstance(v, Value) else v


def bias_of_sums(value: Value | None, x: Stored, w: Stored, depth: Dim, factor: float = 1.0) -> Value | None:
    """The bias in i32 where it is stored in units of the sums (times ``factor``), else as it is."""
    node = None if value is None else value.node
    if node is None or not isinstance(node.op, DequantizeLinear) or node.op.block_size:
        return value
    data, scale, zero = (*node.inputs, None)[:3]
    if data is None or scale is None or data.const is None or scale.const is None or data.type.dtype != I32:
        return value
    if zero is not None and (zero.const is None or zero.const.any()):
        return value
    x_scale, w_scale = known(x.scale), known(w.scale)
    if x_scale is None or x_scale.size != 1 or w_scale is None or not sums_stay_within(x, w, depth, data.const):
        return value
    unit = x_scale.astype(F64).reshape(()) * factor * w_scale.reshape(-1)
    given = scale.const.astype(F64).reshape(-1)
    if given.size not in (1, data.const.size) or unit.size not in (1, data.const.size):
        return value
    return data if np.all(np.abs(given - unit) <= UNIT * np.abs(unit)) else value


def constant_of(bias: Value | None) -> Array | None:
    """A bias as numbers, also where they are stored in other units; None where it is computed."""
    node = None if bias is None else bias.node
    if bias is None or node is None or not isinstance(node.op, DequantizeLinear):
        return None if bias is None else bias.const
    arrays: list[Any] = [None if v is None else v.const for v in node.inputs]
    if any(a is None for a, v in zip(arrays, node.inputs, strict=True) if v is not None):
        return None
    return np.asarray(node.op.reference(*arrays))


# --- rules -----------------------------------------------------------------------------------------------------------

_X, _W = Pat(DequantizeLinear, name="x"), Pat(DequantizeLinear, name="w")


@rule(Pat(Conv, (_X, _W)))
def integer_conv(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x, w = stored(m["x"]), stored(m["w"])
    if x is None or w is None or op.activation is not None or op.residual:
        return m.refuse("no bytes, or fused already")
    if x.axis is not None or w.axis not in (None, 0) or known(w.data) is None:
        return m.refuse("several scales of x or of a filter, or filters that are computed")
    depth = math.prod(m["w"].type.dims[1:])
    if not sums_stay_within(x, w, depth):
        return m.refuse(f"sums of {depth} products may exceed 32 bits")
    bias = bias_of_sums((*m.root.inputs, None)[2], x, w, depth)
    made = QLinearConv(op.strides, op.pads, op.dilations, op.group, op.auto_pad, op.layout)
    return b(made, x.data, x.scale, x.zero, w.data, w.scale, w.zero, None, None, bias)


@rule(Pat(MatMul, (_X, _W)))
def integer_matmul(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x, y = stored(m["x"]), stored(m["w"])
    if x is None or y is None or op.activation is not None or op.residual:
        return m.refuse("no bytes, or fused already")
    ranks = [len(v.type.shape or ()) for v in (m["x"], m["w"])]
    if min(ranks) < 2:
        return m.refuse("a vector")
    depth = (m["x"].type.shape or ())[-2 if op.trans_a else -1]
    x, y = _matrix(b, x, ranks[0], op.trans_a), _matrix(b, y, ranks[1], op.trans_b)
    if x.axis is not None or y.axis not in (None, ranks[1] - 1):
        return m.refuse("several scales of rows, or in one sum")
    if not sums_stay_within(x, y, depth):
        return m.refuse(f"sums of {depth} products may exceed 32 bits")
    bias = bias_of_sums((*m.root.inputs, None)[2], x, y, depth, op.alpha)
    scale = x.scale if op.alpha == 1 else b(Mul(), x.scale, np.array(op.alpha, F32))
    return b(QLinearMatMul(), x.data, scale, x.zero, y.data, y.scale, y.zero, None, None, bias)


def _matrix(b: Builder, x: Stored, rank: int, swapped: bool) -> Stored:
    """The operand with its last two axes where a product wants them."""
    if not swapped:
        return x
    perm, data = swap_last(rank), known(x.data)
    turned = b(Transpose(perm), x.data) if data is None else np.ascontiguousarray(data.transpose(perm))
    return Stored(turned, x.scale, x.zero, x.dtype, None if x.axis is None else perm.index(x.axis))


RULES: tuple[Rule, ...] = (integer_conv, integer_matmul)
