"""Stored numbers to the real ones that they stand for, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bolt_numba.base.types import F32, I8, I32, AnyDType, Array
from bolt_numba.converters.tflite.container import Quantisation
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.quantize import STORED, DequantizeLinear, QuantizeLinear, RangeRounded, limits, spread
from bolt_numba.ops.pointwise import Add, Cast, Clip, Div, Round

if TYPE_CHECKING:
    from bolt_numba.converters.tflite.reading.graph import TfliteBuilder


def dequantised(b: Builder, x: Value, q: Quantisation) -> Value:
    """The real numbers of a value, f32.  Constants of dtypes that no operator takes become f32 at once."""
    dtype = x.type.dtype
    if dtype not in (*STORED, I32):
        if x.const is not None:
            return b.const(_real(x.const, q))
        x, dtype = b(Cast(I32), x), I32
    operator = DequantizeLinear(q.axis if q.scale.ndim else 1, q.block)
    return b(operator, x, q.scale, _zero(q, dtype) if np.any(q.zero_point) else None)


def quantised(b: Builder, y: Value, q: Quantisation, dtype: AnyDType) -> Value:
    """Stored numbers for real ones, rounded half to even and saturated."""
    if dtype in STORED:
        return b(QuantizeLinear(q.axis if q.scale.ndim else 1, q.block), y, q.scale, _zero(q, dtype))
    low, high = limits(dtype)
    whole = b(Add(), b(Round(), b(Div(), y, q.scale)), q.zero_point.astype(F32))
    return b(Cast(dtype), b(Clip(low, float(np.nextafter(np.float32(high), np.float32(0)))), whole))


def ranged(b: TfliteBuilder, x: Value, weights: int, axis: int) -> Value:
    """Activations of a layer, rounded by their own range where its weights (an operand's number) are constant bytes.

    axis: from which on numbers share a range.  Source: dynamic range quantisation, as LiteRT runs it.
    """
    w = b.stored[weights]
    if w is None or w.const is None or w.type.dtype != I8 or b.quantisations[weights] is None or x.type.dtype != F32:
        return x
    return b(RangeRounded(axis), x) if x.node is None or not isinstance(x.node.op, DequantizeLinear) else x


def _zero(q: Quantisation, dtype: AnyDType) -> Array:
    return q.zero_point.astype(np.int8).astype(dtype) if "int4" in dtype.name else q.zero_point.astype(dtype)


def _real(stored: Array, q: Quantisation) -> Array:
    scale, zero = (
        spread(DequantizeLinear(), "scale", v, stored.shape, q.axis, q.block) for v in (q.scale, q.zero_point)
    )
    made: Array = ((stored.astype(np.float64) - zero) * scale).astype(F32)
    return made
