"""Softmax, norms, means and blends between bytes are one operator: the floats between never reach memory.

between_bytes(Q(op(DQ(x), ...)))  -> BetweenBytes(op)(x, ...)    op: over the last axis, means, windows

The order of rounding changes: a code at the boundary between two may become its neighbour.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.between_bytes import MOST_IN_ROW, BetweenBytes
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceMean, Softmax
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.passes.quantised.conversions import BYTES, dequantized, is_per_tensor, known_scale, zero_point
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

SCALES = (2.0**-20, 2.0**20)
"""Scales with which no number on the way leaves what an i32 or a normal float holds."""
ROWS = (Softmax, LayerNormalization, ReduceMean, AveragePool, Resize)


def _is_over_rows(node: Node) -> bool:
    """Whether there is a kernel for the axes that the operator works on."""
    op: Any = node.op
    x = node.inputs[0]
    shape = None if x is None else x.type.shape
    if not shape:
        return False
    rank = len(shape)
    if isinstance(op, ReduceMean):
        axes = node.inputs[1].type.known if len(node.inputs) > 1 and node.inputs[1] is not None else None
        if axes is None or not axes.size:
            return False
        places = sorted(int(a) % rank for a in axes.reshape(-1))
        return places == list(range(places[0], places[-1] + 1))
    if isinstance(op, Resize):
        blends = op.mode != "nearest" and op.coordinate_transformation_mode != "tf_crop_and_resize"
        made = node.output.type.shape or ()
        plain = len(made) == rank and (made[0], made[-1]) == (shape[0], shape[-1])
        known = all(v is None or v.const is not None for v in node.inputs[1:])
        return blends and plain and known and op.layout == "NHWC" and rank in (3, 4)
    if isinstance(op, AveragePool):
        return op.layout == "NHWC" and len(op.kernel_shape) <= 3
    if op.axis % rank != rank - 1:
        return False
    if isinstance(op, Softmax):
        return True
    last = shape[-1]
    plain = all(v is None or (v.type.dtype == F32 and v.type.shape == (last,)) for v in node.inputs[1:])
    return plain and not op.stats and isinstance(last, int) and 0 < last <= MOST_IN_ROW


def _numbers(node: Node) -> list[Value | None] | None:
    """Scale and zero point of a conversion, where they are known and the scale is usual."""
    scale = known_scale(node)
    return None if scale is None or not SCALES[0] < scale < SCALES[1] else [node.inputs[1], zero_point(node)]


@rule(Pat(QuantizeLinear, (Pat(ROWS, (Pat(DequantizeLinear, name="wide"),), name="made", sole_use=True),)))
def between_bytes(m: Match, b: Builder) -> Result:
    wide, made = dequantized(m["wide"]), m.node("made")
    codes = None if wide is None else wide.inputs[0]
    if wide is None or codes is None or not is_per_tensor(m.root) or not _is_over_rows(made):
        return m.refuse("not one scale for all, or other axes")
    kinds = codes.type.dtype, m.root.output.type.dtype
    ends = [_numbers(n) for n in (wide, m.root)]
    if not set(kinds) <= set(BYTES) or None in ends:
        return m.refuse("not between bytes of usual scales")
    operands: list[Any] = []
    for end, dtype in zip(ends, kinds, strict=True):
        scale, zero = end or (None, None)
        operands += [scale, np.zeros((), dtype) if zero is None else zero]
    return b(BetweenBytes(made.op), codes, *operands, *made.inputs[1:])


RULES: tuple[Rule, ...] = (between_bytes,)
