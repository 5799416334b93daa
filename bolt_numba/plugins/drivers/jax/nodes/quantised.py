"""Conversions between integers and the numbers that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, I8, I16, I32, U8, U16, AnyDType
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear, limits
from bolt_numba.plugins.drivers.jax.table import FLOATS, WIDE, JaxSite, builds

STORED = (U8, I8, U16, I16)


def _along(s: JaxSite, op: DequantizeLinear | QuantizeLinear, v: Any) -> Any:
    """Scales or zero points, shaped to broadcast against x: one, one for each index of the axis, or one a block."""
    if v.size == 1:
        return v.reshape(())
    axis = s.axis(op.axis)
    if v.ndim == 1:
        return v.reshape(-1, *(1,) * (s.rank() - 1 - axis))
    return s.np.repeat(v, op.block_size, axis=axis)[tuple(slice(0, d) for d in s.dims())]


def _stored(s: JaxSite, y: Any, dtype: AnyDType) -> Any:
    """Rounded numbers within the limits; NaN is the lower one."""
    low, high = limits(dtype)
    return s.np.where(s.np.isnan(y), low, s.np.clip(y, low, high)).astype(dtype)


@builds("DequantizeLinear", dtypes=(*STORED, I32), others={1: FLOATS}, results=FLOATS)
def dequantise(s: JaxSite, op: DequantizeLinear, x: Any, scale: Any, zero: Any = None) -> Any:
    """A difference of i32 is exact in f64."""
    y = x.astype(F64 if x.dtype == I32 else F32)
    if zero is not None:
        y = y - _along(s, op, zero.astype(y.dtype))
    factor = _along(s, op, scale)
    return (y.astype(factor.dtype) * factor).astype(s.results[0].dtype)


@builds("QuantizeLinear", dtypes=(*FLOATS, I32), others={1: (*FLOATS, I32), 2: STORED}, results=STORED)
def quantise(s: JaxSite, op: QuantizeLinear, x: Any, scale: Any, zero: Any = None) -> Any:
    """Division, rounding to even, the zero point, the limits."""
    y = x if x.dtype in WIDE else x.astype(F32)
    y = s.np.rint(y / _along(s, op, scale).astype(y.dtype))
    if zero is not None:
        y = y + _along(s, op, zero.astype(F32))
    return _stored(s, y, s.results[0].dtype)


@builds("DynamicQuantizeLinear", results=(U8, F32))
def dynamic(s: JaxSite, op: DynamicQuantizeLinear, x: Any) -> Any:
    """By the range of x, 0 included."""
    low, high = s.np.minimum(s.np.min(x), 0), s.np.maximum(s.np.max(x), 0)
    scale = s.np.where(high > low, (high - low) / np.float32(255), np.float32(1))
    zero = _stored(s, s.np.rint(-low / scale), U8)
    return _stored(s, s.np.rint(x / scale) + zero.astype(F32), U8), scale, zero
