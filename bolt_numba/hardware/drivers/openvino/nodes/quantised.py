"""Conversions between integers and the numbers that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import OvSite, builds
from bolt_numba.ops.layers.quantize import limits
from bolt_numba.types import F32, I8, I32, U8

BYTES = (U8, I8)


def _along(s: OvSite, op: Any, v: Any, i: int) -> Any:
    """Scales or zero points, shaped to broadcast against x."""
    shape = s.dims(i)
    if all(d == 1 for d in shape):
        return s.v.reshape(v, s.i64(*[1] * s.rank()), False)
    s.want(len(shape) == 1 and not op.block_size, "scales in blocks")
    axis = op.axis % s.rank()
    return s.v.reshape(v, s.i64(*[-1 if a == axis else 1 for a in range(s.rank())]), False)


@builds("DequantizeLinear", dtypes=(U8, I8, I32), others={1: (F32,)}, results=(F32,))
def dequantise(s: OvSite, op: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    s.want(s.rank() > 0, "one number")
    y = s.v.convert(x, np.float32)
    if zero is not None:
        y = s.v.subtract(y, _along(s, op, s.v.convert(zero, np.float32), 2))
    return s.v.multiply(y, _along(s, op, scale, 1))


@builds("QuantizeLinear", dtypes=(F32,), others={2: BYTES}, results=BYTES)
def quantise(s: OvSite, op: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    """Division, rounding to even, the zero point, the limits."""
    s.want(s.rank() > 0, "one number")
    y = s.v.round(s.v.divide(x, _along(s, op, scale, 1)), "half_to_even")
    if zero is not None:
        y = s.v.add(y, _along(s, op, s.v.convert(zero, np.float32), 2))
    target = s.results[0].dtype
    low, high = limits(target)
    bounded = s.v.minimum(s.v.maximum(y, s.const(np.array(low, F32))), s.const(np.array(high, F32)))
    return s.v.convert(bounded, target.type)
