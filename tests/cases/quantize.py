"""Cases of quantised operators.  Scales are powers of two, so that no product of theirs is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.arrays import quantize as q
from bolt_numba.types import F32, I8, U8, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, axis_of, pick, real, shapes, whole


def some_bytes(draw: Draw, dims: tuple[int, ...], dtype: Any) -> Array:
    info = np.iinfo(dtype)
    return whole(draw, dims, int(info.min), int(info.max), dtype)


def some_scale(draw: Draw, dims: tuple[int, ...] = ()) -> Array:
    return np.asarray(2.0 ** whole(draw, dims, -5, 1), dtype=F32)


@cases(q.QuantizeLinear)
def quantize_linear(draw: Draw, op: type[q.QuantizeLinear]) -> Case:
    dims, dtype = shapes(draw, 1, 4), pick(draw, U8, I8)
    axis = axis_of(draw, len(dims))
    per = pick(draw, (), (dims[axis],))
    operands = (real(draw, dims, -20, 20), some_scale(draw, per), some_bytes(draw, per, dtype))
    return Case(op(axis), operands[: pick(draw, 2, 3, 3)])


@cases(q.DequantizeLinear)
def dequantize_linear(draw: Draw, op: type[q.DequantizeLinear]) -> Case:
    dims, dtype = shapes(draw, 1, 4), pick(draw, U8, I8)
    axis = axis_of(draw, len(dims))
    per = pick(draw, (), (dims[axis],))
    operands = (some_bytes(draw, dims, dtype), some_scale(draw, per), some_bytes(draw, per, dtype))
    return Case(op(axis), operands[: pick(draw, 2, 3, 3)])


@cases(q.DynamicQuantizeLinear)
@cases(q.QuantizeRows)
@cases(q.RangeRounded)
def dynamic_quantize_linear(draw: Draw, op: Any) -> Case:
    low, high = pick(draw, (-3.0, 4.0), (0.5, 2.0), (-5.0, -1.0))
    dims = shapes(draw, 1, 3)
    made = op() if op is q.DynamicQuantizeLinear else op(axis_of(draw, len(dims)))
    return Case(made, (real(draw, dims, low, high),))
