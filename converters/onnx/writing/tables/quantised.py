"""Writers of operators on bytes: as ONNX has them, or around the float operator where more is fused to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.converters.onnx.writing.registry import Named, NoSpellingError, writer
from bolt_numba.converters.onnx.writing.tables.standard import convolution
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.layers.between_bytes import BetweenBytes
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.ops.layers.integer_products import QLinearConv, QLinearMatMul, is_fused
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.layers.quantize import DequantizeLinear, QuantizeLinear, RangeRounded
from bolt_numba.ops.pointwise import Add, Cast, Mul
from bolt_numba.types import I32

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter

SHARED = ("strides", "pads", "dilations", "group", "auto_pad", "layout")
"""Attributes of both convolutions."""


@writer(QLinearConv, QLinearMatMul, whole=True)
def integer_product(w: GraphWriter, op: Any, *terms: Any) -> Any:
    """ONNX's operator, or the float one between conversions."""
    given: list[Any] = [t if t.name else None for t in terms] + [None] * (12 - len(terms))
    y_scale, y_zero, bias, residual, residual_scale, residual_zero = given[6:]
    if not is_fused(op, y_scale, None if bias is None else bias.type):
        if isinstance(op, QLinearConv) and all(d == 1 for t in given[1:3] for d in t.type.shape or ()):
            return convolution(w, op, *terms)
        if bias is None and not isinstance(op, QLinearConv):
            return w.plain(op, terms, [op.infer(*(t.type for t in terms))])
    if any(len(t.type.shape or ()) > 1 for t in (*given[1:3], given[4], y_scale) if t is not None):
        raise NoSpellingError("scales for each row of each matrix, or each image")
    y = _real_result(w, op, *given[:6], bias)
    if residual_scale is not None:
        residual = _real(w, residual, residual_scale, residual_zero, 0)
    y = y if residual is None else w.write(Add(), y, residual)
    y = y if op.activation is None else w.write(op.activation, y)
    return y if y_scale is None else w.write(QuantizeLinear(axis=-2), y, y_scale, y_zero)


@writer(ByteTable)
def byte_table(w: GraphWriter, op: ByteTable, x: Named, table: Named) -> Any:
    """A lookup, whose negative indices count from the end as the entries of negative bytes do."""
    return w.write(Gather(0), table, w.write(Cast(I32), x))


@writer(RangeRounded)
def range_rounded(w: GraphWriter, op: RangeRounded, x: Named) -> Any:
    """The floats, as exact sessions compute: ONNX has no ranges of rows."""
    return w.node("Identity", [x], [x.type])


@writer(BetweenBytes)
def between_bytes(w: GraphWriter, op: BetweenBytes, x: Named, *terms: Named) -> Any:
    """The float operator between conversions."""
    x_scale, x_zero, y_scale, y_zero, *others = terms
    y = w.write(op.op, w.write(DequantizeLinear(), x, x_scale, x_zero), *others)
    return w.write(QuantizeLinear(), y, y_scale, y_zero)


def _real_result(w: GraphWriter, op: Any, x: Any, x_scale: Any, x_zero: Any, f: Any, f_scale: Any, *rest: Any) -> Any:
    """The float product and its bias."""
    f_zero, bias = rest
    if bias is not None and bias.type.dtype == I32:
        bias = _real(w, bias, _product(w, x_scale, f_scale), None, 0)
    x = _real(w, x, x_scale, x_zero, -2)
    if isinstance(op, QLinearConv):
        conv: Any = Conv(**{key: getattr(op, key) for key in SHARED})
        return w.write(conv, x, _real(w, f, f_scale, f_zero, 0), *([] if bias is None else [bias]))
    y = w.write(MatMul(), x, _real(w, f, f_scale, f_zero, -1))
    return y if bias is None else w.write(Add(), y, bias)


def _real(w: GraphWriter, x: Any, scale: Any, zero: Any, axis: int) -> Any:
    """The numbers that integers stand for."""
    return w.write(DequantizeLinear(axis=axis), x, scale, *([] if zero is None else [zero]))


def _product(w: GraphWriter, a: Any, b: Any) -> Any:
    """The scale of the sums."""
    if a.known is not None and b.known is not None:
        return w.const(np.asarray(a.known.reshape(()) * b.known, np.float32))
    return w.write(Mul(), a, b)
