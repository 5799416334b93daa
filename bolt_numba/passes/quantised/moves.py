"""Conversions stand aside for what only moves or compares numbers: it then moves bytes, and conversions meet.

dequantize_after_move(move(DQ(x)))             -> DQ(move(x))                views, Transpose, Slice, Split, Gather ...
dequantize_after_axis_move(Transpose(DQ(x)))   -> DQ(Transpose(x))           a scale for each index of an axis
dequantize_after_pad(Pad(DQ(x)))               -> DQ(Pad(x))                 what is filled in has a code
dequantize_after_window(MaxPool(DQ(x)))        -> DQ(MaxPool(x))             also nearest Resize, greatest and least
dequantize_after_join(Concat(DQ(x), DQ(y)))    -> DQ(Concat(x, y))           equal scales; also Where, Max, Min
dequantize_after_relu(Relu(DQ(x)))             -> DQ(Clip(x))
quantize_before_move(Q(move(x)))               -> move(Q(x))                 moves that keep or add elements
quantize_before_join(Q(Concat(x, y)))          -> Concat(Q(x), Q(y))

No result differs: a code stands for the same number wherever it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays import shape as s
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ArgMax, ArgMin, ReduceMax, ReduceMin
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Clip, Max, Min, Relu, Where
from bolt_numba.passes.quantised.conversions import (
    CODES,
    are_alike,
    dequantized,
    is_per_tensor,
    known_scale,
    zero_point,
)
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

KEEPING = (s.Reshape, s.Flatten, s.Squeeze, s.Unsqueeze, s.Transpose, s.Expand, s.Tile, s.DepthToSpace, s.SpaceToDepth)
"""Moves after which there are as many elements, or more."""
PICKING = (s.Slice, s.Split, Gather, GatherElements, GatherND)
"""Moves that may leave elements out."""
_WIDE = Pat(DequantizeLinear, (Pat(name="x"),), name="wide")


def _behind(m: Match, b: Builder, op: Any, *operands: Value | Array | None) -> Result:
    """The results of ``op`` on the codes, dequantised."""
    wide = m.node("wide")
    made = b.node(op, m["x"], *operands)
    return tuple(b(wide.op, v, *wide.inputs[1:]) for v in made.outputs)


@rule(Pat((*KEEPING, *PICKING), (_WIDE,)))
def dequantize_after_move(m: Match, b: Builder) -> Result:
    if dequantized(m["wide"]) is None:
        return m.refuse("not one scale for all")
    return _behind(m, b, m.root.op, *m.root.inputs[1:])


@rule(Pat(s.Transpose, (_WIDE,)))
def dequantize_after_axis_move(m: Match, b: Builder) -> Result:
    wide, root = m.node("wide"), m.root.op
    assert isinstance(root, s.Transpose)
    scale, perm = wide.inputs[1], root.perm
    if is_per_tensor(wide) or scale is None or scale.type.shape is None or len(scale.type.shape) != 1:
        return m.refuse("not a scale for each index of an axis")
    op: Any = wide.op
    moved = dataclasses.replace(op, axis=perm.index(op.axis % len(perm)))
    return b(moved, b(root, m["x"]), *wide.inputs[1:])


def _code_of(wide: Node, number: float) -> Array | None:
    """The code that stands for exactly this number."""
    scale, zero = known_scale(wide), zero_point(wide)
    codes = wide.inputs[0]
    if scale is None or codes is None or (zero is not None and zero.const is None):
        return None
    point = 0 if zero is None or zero.const is None else int(zero.const.reshape(-1)[0])
    limits = np.iinfo(codes.type.dtype)
    nearest = np.rint(np.float32(number) / np.float32(scale)) + point
    if not limits.min <= nearest <= limits.max:
        return None
    found = np.array(int(nearest), codes.type.dtype)
    exact = np.float32(int(found) - point) * np.float32(scale) == np.float32(number)
    return found if exact else None


@rule(Pat(s.Pad, (_WIDE,)))
def dequantize_after_pad(m: Match, b: Builder) -> Result:
    wide, op = dequantized(m["wide"]), m.root.op
    assert isinstance(op, s.Pad)
    if wide is None:
        return m.refuse("not one scale for all")
    _, pads, value, axes = (*m.root.inputs, None, None)[:4]
    filling: Value | Array | None = None
    if op.mode == "constant":
        if value is not None and (value.const is None or value.const.size != 1):
            return m.refuse("what is filled in is not known")
        code = _code_of(wide, 0.0 if value is None or value.const is None else float(value.const.reshape(-1)[0]))
        if code is None:
            return m.refuse("what is filled in has no code")
        filling = code
    return _behind(m, b, op, pads, filling, axes)


def _meets_padding_only(op: MaxPool) -> bool:
    """Whether a window may lie outside the input altogether: its result would be -inf, which has no code."""
    if not any(op.pads):
        return False
    half = len(op.kernel_shape)
    widest = [max(op.pads[i], op.pads[half + i]) for i in range(half)]
    return any(d != 1 for d in op.dilations) or any(p >= k for p, k in zip(widest, op.kernel_shape, strict=True))


@rule(Pat((MaxPool, Resize, ReduceMax, ReduceMin, ArgMax, ArgMin), (_WIDE,)))
def dequantize_after_window(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    wide = dequantized(m["wide"])
    if wide is None or known_scale(wide) is None:
        return m.refuse("no known scale for all")
    if isinstance(op, MaxPool) and _meets_padding_only(op):
        return m.refuse("a window may meet nothing but padding")
    if isinstance(op, Resize) and (op.mode != "nearest" or op.coordinate_transformation_mode == "tf_crop_and_resize"):
        return m.refuse("not the nearest element")
    if isinstance(op, (ReduceMax, ReduceMin)) and not (m["x"].type.is_static and m["x"].type.size):
        return m.refuse("there may be no element")
    made = b.node(op, m["x"], *m.root.inputs[1:]).outputs
    if isinstance(op, (ArgMax, ArgMin)):
        return made[0]
    return (b(wide.op, made[0], *wide.inputs[1:]), *made[1:])


@rule(Pat((s.Concat, Max, Min, Where)))
def dequantize_after_join(m: Match, b: Builder) -> Result:
    first = 1 if isinstance(m.root.op, Where) else 0
    wides = [dequantized(v) for v in m.root.inputs[first:]]
    like = wides[0]
    if like is None or known_scale(like) is None:
        return m.refuse("an operand is not dequantised with one known scale")
    codes = [w.inputs[0] for w in wides if w is not None and are_alike(w, like)]
    if len(codes) < len(wides) or len({v.type.dtype for v in codes if v is not None}) > 1:
        return m.refuse("the operands have other scales")
    return b(like.op, b(m.root.op, *m.root.inputs[:first], *codes), *like.inputs[1:])


@rule(Pat(Relu, (_WIDE,)))
def dequantize_after_relu(m: Match, b: Builder) -> Result:
    wide = dequantized(m["wide"])
    zero = None if wide is None else _code_of(wide, 0.0)
    if zero is None:
        return m.refuse("no known scale for all")
    return m["wide"] if zero == np.iinfo(zero.dtype).min else _behind(m, b, Clip(lo=int(zero)))


@rule(Pat(QuantizeLinear, (Pat(KEEPING, (Pat(name="x"),), name="moved", sole_use=True),)))
def quantize_before_move(m: Match, b: Builder) -> Result:
    if not is_per_tensor(m.root) or m.root.output.type.dtype not in CODES:
        return m.refuse("not one scale for all")
    moved = m.node("moved")
    return b(moved.op, b(m.root.op, m["x"], *m.root.inputs[1:]), *moved.inputs[1:])


@rule(Pat(QuantizeLinear, (Pat(s.Concat, name="joined", sole_use=True),)))
def quantize_before_join(m: Match, b: Builder) -> Result:
    if not is_per_tensor(m.root) or m.root.output.type.dtype not in CODES:
        return m.refuse("not one scale for all")
    joined = m.node("joined")
    return b(joined.op, *(b(m.root.op, v, *m.root.inputs[1:]) for v in joined.inputs))


RULES: tuple[Rule, ...] = (
    dequantize_after_move,
    dequantize_after_axis_move,
    dequantize_after_pad,
    dequantize_after_window,
    dequantize_after_join,
    dequantize_after_relu,
    quantize_before_move,
    quantize_before_join,
)
