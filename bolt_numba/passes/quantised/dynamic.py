"""Sums of bytes that are made numbers at once, as dynamic quantisation writes them, are products with a scale.

scaled_matmul(Cast(MatMulInteger(x, w)) * s) -> QLinearMatMul(x, w)      s: x's scale times w's, or any number or column
scaled_conv(Cast(ConvInteger(x, w)) * s)     -> QLinearConv(x, w)
ranged_matmul(MatMul(RangeRounded(x), DQ(w))) -> QLinearMatMul(QuantizeRows(x), w)
ranged_conv(Conv(RangeRounded(x), DQ(w)))    -> QLinearConv(QuantizeRows(x), w)     a range for each image, or pixel
ranged_conv_transpose(ConvTranspose(RangeRounded(x), DQ(w)))    -> QLinearConv(QuantizeRows(x), w')    see `transposed`
exact_floats(RangeRounded(x))                -> x              what products of bytes did not take in, and all if strict

The same bits: the sums are rounded to f32 and multiplied by the product of the scales.  `tails` takes in what follows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, U8, Array, Dim, Shape
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeRows, RangeRounded
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.integer_products import (
    ConvInteger,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    sums_fit,
)
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Cast, Mul
from bolt_numba.passes.canonical.views import reshaped
from bolt_numba.passes.quantised.products import Stored, known, stored
from bolt_numba.passes.quantised.transposed import as_convolution
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule


def _factors(s: Value) -> tuple[Value | Array, Value]:
    """Scales of x (one) and of w, whose product is ``s``."""
    node = s.node
    if node is not None and isinstance(node.op, Mul) and None not in node.inputs:
        one, other = node.inputs
        for x, w in ((one, other), (other, one)):
            if x is not None and w is not None and x.type.shape is not None and _elements(x) == 1:
                return x, w
    return np.ones((), F32), s


def _elements(value: Value) -> int | None:
    return value.type.size if value.type.is_static else None


def _zero(value: Value | None, like: Value) -> Value | Array:
    return np.zeros((), like.type.dtype) if value is None else value


def _sums(op: type[Any]) -> Pat:
    return Pat(Mul, (Pat(Cast, (Pat(op, name="sums", sole_use=True),), sole_use=True), Pat(name="s")), commutative=True)


@rule(_sums(MatMulInteger))
def scaled_matmul(m: Match, b: Builder) -> Result:
    x, w, zero_x, zero_w = (*m.node("sums").inputs, None, None)[:4]
    shape = m["sums"].type.shape
    if x is None or w is None or not _keeps(m, shape):
        return m.refuse("no f32, or another shape")
    scale_x, scale_w = _factors(m["s"])
    columns = _for_columns(b, scale_w, shape[-1] if shape else 1)
    if columns is None:
        return m.refuse("a scale that is neither a number nor one for each column")
    return b(QLinearMatMul(), x, scale_x, _zero(zero_x, x), w, columns, _zero(zero_w, w))


@rule(_sums(ConvInteger))
def scaled_conv(m: Match, b: Builder) -> Result:
    x, w, zero_x, zero_w = (*m.node("sums").inputs, None, None)[:4]
    op: Any = m.op("sums")
    if x is None or w is None or op.layout != "NCHW" or not _keeps(m, m["sums"].type.shape):
        return m.refuse("no f32, another shape, or another layout")
    scale_x, scale_w = _factors(m["s"])
    if _elements(scale_w) != 1:
        return m.refuse("several scales")
    made = QLinearConv(op.strides, op.pads, op.dilations, op.group, op.auto_pad, op.layout)
    return b(made, x, scale_x, _zero(zero_x, x), w, scale_w, _zero(zero_w, w))


def _keeps(m: Match, shape: Shape | None) -> bool:
    """Whether the result is f32 and of the shape of the sums."""
    out = m.root.output.type
    return out.dtype == F32 and shape is not None and out.shape == shape


def _for_columns(b: Builder, scale: Value, columns: Dim) -> Value | None:
    """The scale as one number or a line of one for each column; None when it is neither."""
    dims = scale.type.shape
    if dims is None or any(d != 1 for d in dims[:-1]) or (dims and dims[-1] not in (1, columns)):
        return None
    return scale if len(dims) < 2 or all(d == 1 for d in dims) else reshaped(b, scale, dims[-1:])


_RANGED, _W = Pat(RangeRounded, (Pat(name="x"),), name="ranged"), Pat(DequantizeLinear, name="w")


@rule(Pat(MatMul, (_RANGED, _W)))
def ranged_matmul(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    w, bias = _constant(m["w"]), (*m.root.inputs, None)[2]
    if w is None or not _is_plain(op) or op.trans_a or op.alpha != 1:
        return m.refuse("weights that are no bytes, or fused already")
    data, along = known(w.data), -1 if op.trans_b else -2
    if data is None or data.ndim < 2 or len(m["x"].type.shape or ()) < 2 or m.op("ranged").axis != -1:
        return m.refuse("no rows and columns")
    if (w.axis is not None and w.axis - data.ndim not in {-1, -2} - {along}) or not _fits(w, data.shape[along]):
        return m.refuse("several scales in a sum, or one that may exceed 32 bits")
    columns = np.ascontiguousarray(data.swapaxes(-1, -2)) if op.trans_b else data
    x, scale, zero = b(QuantizeRows(), m["x"])
    return b(QLinearMatMul(), x, scale, zero, columns, w.scale, w.zero, None, None, bias)


@rule(Pat(Conv, (_RANGED, _W)))
def ranged_conv(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    w, bias, shape = _constant(m["w"]), (*m.root.inputs, None)[2], m["x"].type.shape
    if w is None or not _is_plain(op) or not shape:
        return m.refuse("filters that are no bytes, or fused already")
    data = known(w.data)
    if data is None or w.axis not in (None, 0) or not _fits(w, math.prod(data.shape[1:])):
        return m.refuse("several scales in a filter, or sums that may exceed 32 bits")
    if op.layout == "NHWC" and op.group == 1 and data[0, 0].size == 1 and not any(op.pads) and set(op.strides) <= {1}:
        x, scale, zero = b(QuantizeRows(), m["x"])
        columns = np.ascontiguousarray(data.reshape(data.shape[:2]).T)
        return b(QLinearMatMul(), x, scale, zero, columns, w.scale, w.zero, None, None, bias)
    if shape[0] != 1 and 1 < op.group == data.shape[0] and data.shape[1] == 1:
        return m.refuse("one filter a channel, of several images, which are faster as floats")
    made = QLinearConv(op.strides, op.pads, op.dilations, op.group, op.auto_pad, op.layout)
    x, scale, zero = b(QuantizeRows(1), m["x"])
    return b(made, x, scale, zero, w.data, w.scale, w.zero, None, None, bias)


@rule(Pat(ConvTranspose, (_RANGED, _W)))
def ranged_conv_transpose(m: Match, b: Builder) -> Result:
    x, scale, zero = b(QuantizeRows(1), m["x"])
    return as_convolution(m, b, Stored(x, scale, zero, U8))


@rule(Pat(RangeRounded, (Pat(name="x"),)))
def exact_floats(m: Match, b: Builder) -> Result:
    return m["x"]


def _constant(value: Value) -> Stored | None:
    """Constant bytes with known scales."""
    found = stored(value)
    return None if found is None or any(known(v) is None for v in (found.data, found.scale, found.zero)) else found


def _is_plain(op: Any) -> bool:
    return op.activation is None and not op.residual


def _fits(w: Stored, depth: int) -> bool:
    """Whether sums of bytes of any range fit 32 bits."""
    return sums_fit(U8, None, w.dtype, known(w.zero), depth, None)


RULES: tuple[Rule, ...] = (scaled_matmul, scaled_conv)
RANGED: tuple[Rule, ...] = (ranged_matmul, ranged_conv, ranged_conv_transpose)
EXACT: tuple[Rule, ...] = (exact_floats,)
