"""Integer arithmetic as floats between conversions, conversions as arithmetic, and the signs of weights.

real_product(QLinearConv(x, ..., y_scale)) -> QuantizeLinear(Conv(DequantizeLinear(x), ...))   also QLinearMatMul
between_bytes(BetweenBytes[op](x))         -> QuantizeLinear(op(DequantizeLinear(x)))
dequantise(DequantizeLinear(x))            -> (Cast(x) - zero_point) * scale                   one scale
quantise(QuantizeLinear(x))                -> Cast(Clip(Round(x / scale) + zero_point))        one scale
signed_weights(QLinearConv(w[u8]))         -> QLinearConv(w[i8] - 128)                         also QLinearMatMul

The first two round as ONNX's definition of the operators in floats does: a byte may differ by one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Expand, Reshape
from bolt_numba.ops.layers.between_bytes import BetweenBytes
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.ops.layers.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.layers.quantize import DequantizeLinear, QuantizeLinear, limits
from bolt_numba.ops.pointwise import Add, Cast, Clip, Div, Mul, Round, Sub
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule
from bolt_numba.types import F32, I8, I32, U8

SHARED = ("strides", "pads", "dilations", "group", "auto_pad", "layout")
"""Attributes of both convolutions."""


def _real(b: Builder, x: Value, scale: Value, zero: Value | None, axis: int) -> Value:
    """The numbers that integers stand for; scale and zero point may be one number and several."""
    operands = [scale] if zero is None else _alike(b, scale, zero)
    made: Value = b(DequantizeLinear(axis=axis), x, *operands)
    return made


def _alike(b: Builder, scale: Value, zero: Value) -> list[Value]:
    """Both of one shape."""
    length = max(v.type.size for v in (scale, zero))
    shape = np.array([length] if length > 1 else [], np.int64)
    return [_expanded(b, v, shape) for v in (scale, zero)]


def _expanded(b: Builder, v: Value, shape: Any) -> Value:
    """One number as several, or in the shape of one."""
    if v.type.shape == tuple(shape):
        return v
    if v.const is not None:
        return b.const(np.broadcast_to(v.const.reshape(-1) if len(shape) else v.const.reshape(()), shape).copy())
    made: Value = b(Expand() if len(shape) else Reshape(), v, shape)
    return made


@rule(Pat((QLinearConv, QLinearMatMul)))
def real_product(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    given: list[Any] = [*m.root.inputs, *[None] * 6][:12]
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, residual, r_scale, r_zero = given
    if any(v is not None and len(v.type.shape or ()) > 1 for v in (x_scale, x_zero, w_scale, y_scale)):
        return m.refuse("scales for each row of each matrix, or each image")
    if not all(v.type.is_static for v in (x_scale, x_zero, w_scale, w_zero)):
        return m.refuse("scales of a number that only the run tells")
    if bias is not None and bias.type.dtype == I32:
        bias = _real(b, bias, b(Mul(), x_scale, w_scale), None, 0)
    is_conv = isinstance(op, QLinearConv)
    left = _real(b, x, x_scale, x_zero, -2)
    right = _real(b, w, w_scale, w_zero, 0 if is_conv else -1)
    if is_conv:
        plain: Any = Conv(**{name: getattr(op, name) for name in SHARED})
        y = b(plain, left, right, *([] if bias is None else [bias]))
    else:
        y = b(MatMul(), left, right)
        y = y if bias is None else b(Add(), y, bias)
    if residual is not None:
        y = b(Add(), y, residual if r_scale is None else _real(b, residual, r_scale, r_zero, 0))
    y = y if op.activation is None else b(op.activation, y)
    return y if y_scale is None else b(QuantizeLinear(axis=-2), y, y_scale, y_zero)


@rule(Pat(BetweenBytes))
def between_bytes(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x, x_scale, x_zero, y_scale, y_zero, *others = m.root.inputs
    y = b(op.op, b(DequantizeLinear(), x, x_scale, x_zero), *others)
    return b(QuantizeLinear(), y, y_scale, y_zero)


def _is_one(*values: Value | None) -> bool:
    """Whether each is one number."""
    return all(v is None or v.type.shape in ((), (1,)) for v in values)


@rule(Pat(DequantizeLinear, (Pat(name="x"), Pat(name="scale"))))
def dequantise(m: Match, b: Builder) -> Result:
    zero = m.root.inputs[2] if len(m.root.inputs) > 2 else None
    x, scale = m["x"], m["scale"]
    wide = not _is_one(scale, zero) or not x.type.shape
    if wide or scale.type.dtype != F32 or m.root.output.type.dtype != F32 or x.type.dtype not in (I8, U8):
        return m.refuse("several scales, or other numbers than bytes")
    y = b(Cast(F32), x)
    y = y if zero is None else b(Sub(), y, b(Cast(F32), zero))
    return b(Mul(), y, scale)


@rule(Pat(QuantizeLinear, (Pat(name="x"), Pat(name="scale"))))
def quantise(m: Match, b: Builder) -> Result:
    zero = m.root.inputs[2] if len(m.root.inputs) > 2 else None
    target, (x, scale) = m.root.output.type.dtype, (m["x"], m["scale"])
    wide = not _is_one(scale, zero) or not x.type.shape
    if wide or target not in (I8, U8) or x.type.dtype != F32 or scale.type.dtype != F32:
        return m.refuse("several scales, or other numbers than bytes")
    y = b(Round(), b(Div(), x, scale))
    y = y if zero is None else b(Add(), y, b(Cast(F32), zero))
    return b(Cast(target), b(Clip(*limits(target)), y))


@rule(Pat((QLinearConv, QLinearMatMul)))
def signed_weights(m: Match, b: Builder) -> Result:
    operands = list(m.root.inputs)
    w, zero = operands[3], operands[5]
    if w is None or zero is None or w.const is None or zero.const is None or w.type.dtype != U8:
        return m.refuse("the weights are signed, or no constants")
    operands[3], operands[5] = (b.const(_less_half(v.const)) for v in (w, zero))
    return b(dataclasses.replace(m.root.op), *operands)


def _less_half(array: Any) -> Any:
    """Bytes less 128, signed."""
    return (array.astype(np.int16) - 128).astype(I8)


RULES: tuple[Rule, ...] = (real_product, between_bytes, dequantise, quantise)
SIGNED: tuple[Rule, ...] = (signed_weights,)
"""For devices whose weights are signed; before the others."""
