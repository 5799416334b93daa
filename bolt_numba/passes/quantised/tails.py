"""What follows an integer product runs on its sums: bias, residual, activation, and the step back to bytes.

integer_bias(QLinearConv(x, w) + c)                 -> QLinearConv(x, w, bias c)   a number for each filter
integer_factor(QLinearConv(x, w) * c)               -> QLinearConv(x, w)           into the scales of w
integer_residual(QLinearConv(x, w) + DQ(r))         -> QLinearConv(x, w, residual r)         also r in f32
integer_activation(act(QLinearConv(x, w)))          -> QLinearConv(x, w, activation)
integer_result(QuantizeLinear(QLinearConv(x, w)))   -> QLinearConv(x, w, y_scale, y_zero)
tail_before_move(act(Reshape(QLinearConv(x, w))))   -> Reshape(act(QLinearConv(x, w)))    other moves; QuantizeLinear

Also QLinearMatMul.  The product must be f32 so far, and have one reader.  An activation is dropped where the limits of
the bytes do the same, as those of u8 with a zero point of 0 do for Relu.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I32, Array, Dim, TensorType
from bolt_numba.codegen.chain import can_generate
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.quantize import BYTES, QuantizeLinear, limits
from bolt_numba.ops.arrays.shape import DepthToSpace, Reshape, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.ops.pointwise import Add, Clip, Mul, Relu
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.shapes import product
from bolt_numba.passes.quantised.products import Stored, bias_of_sums, constant_of, known, stored
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule

MOVES = (Reshape, Transpose, Squeeze, Unsqueeze, Slice, DepthToSpace)
BEFORE_BYTES = (*MOVES, MaxPool)
"""What gives the same, whether its operand is rounded to bytes or its result."""
Y_SCALE, BIAS, RESIDUAL = 6, 8, 9
"""Operands of both operators."""
_PRODUCT = Pat((QLinearConv, QLinearMatMul), name="y", sole_use=True)


def _operands(node: Node) -> list[Any]:
    """All twelve operands."""
    return [*node.inputs, *(None,) * (12 - len(node.inputs))]


def _is_real(node: Node) -> bool:
    """Whether the result is f32."""
    return _operands(node)[Y_SCALE] is None


def _channels(node: Node) -> tuple[int, Dim]:
    """The axis of the filters, or of the columns, and how many there are."""
    shape = node.output.type.shape or (0,)
    axis = len(shape) - 1 if getattr(node.op, "layout", "NHWC") == "NHWC" else 1
    return axis, shape[axis]


def _per_filter(m: Match) -> tuple[int, str]:
    """How many filters there are, where ``c`` is a number for each of them or for all; else 0, and why not."""
    shape, given = m["y"].type.shape, m["c"].type.shape
    op = m.op("y")
    if op.residual or op.activation is not None or not _is_real(m.node("y")):
        return 0, "the operator is fused already"
    if not shape or given is None or len(given) > len(shape) or m.root.output.type.shape != shape:
        return 0, "the result has another shape"
    axis, count = _channels(m.node("y"))
    full = (1,) * (len(shape) - len(given)) + given
    if any(d != 1 for i, d in enumerate(full) if i != axis) or not isinstance(count, int):
        return 0, "the numbers differ along another axis"
    return count, "there are no filters"


@rule(Pat(Add, (_PRODUCT, Pat(name="c")), commutative=True))
def integer_bias(m: Match, b: Builder) -> Result:
    """A constant bias, also one that is dequantised: it stays in i32 where it is stored in units of the sums."""
    node, op = m.node("y"), m.op("y")
    operands, (count, reason) = _operands(node), _per_filter(m)
    if not count:
        return m.refuse(reason)
    x, w = (Stored(operands[i], operands[i + 1], operands[i + 2], operands[i].type.dtype) for i in (0, 3))
    depth = operands[3].type.shape[1:] if isinstance(op, QLinearConv) else operands[0].type.shape[-1:]
    before = operands[BIAS]
    c = constant_of(m["c"] if before is not None else bias_of_sums(m["c"], x, w, product(depth)))
    if c is None:
        return m.refuse("what is added is computed")
    made = np.broadcast_to(c.reshape(-1), (count,)).astype(I32 if c.dtype == I32 else F32)
    if before is not None:
        scales, old = (known(x.scale), known(w.scale)), before.const
        if old is None or scales[0] is None or scales[0].size != 1 or scales[1] is None:
            return m.refuse("the bias is computed")
        unit = scales[0].reshape(()) * scales[1] if old.dtype == I32 else 1
        made = (old * unit + made).astype(F32)
    operands[BIAS] = made
    return b(op, *operands)


@rule(Pat(Mul, (_PRODUCT, const("c")), commutative=True))
def integer_factor(m: Match, b: Builder) -> Result:
    operands, (count, reason) = _operands(m.node("y")), _per_filter(m)
    scale, c, bias = operands[4].const, m["c"].const, operands[BIAS]
    if not count or scale is None or c is None or scale.size not in (1, count):
        return m.refuse(reason)
    factor = np.broadcast_to(c.reshape(-1), (count,))
    scaled = scale.reshape(-1) * factor
    if not np.isfinite(scaled).all():
        return m.refuse("a scale that is not finite")
    if bias is not None and bias.type.dtype == F32:
        if bias.const is None:
            return m.refuse("the bias is computed")
        operands[BIAS] = bias.const * factor
    operands[4] = scaled.astype(F32)
    return b(m.op("y"), *operands)


@rule(Pat(Add, (_PRODUCT, Pat(name="r")), commutative=True))
def integer_residual(m: Match, b: Builder) -> Result:
    node, op, r = m.node("y"), m.op("y"), m["r"]
    operands = _operands(node)
    if op.residual or op.activation is not None or not _is_real(node):
        return m.refuse("the operator is fused already")
    if r.type != m["y"].type or r.type.shape is None or r is m["y"]:
        return m.refuse("the residual has another shape")
    bytes_ = stored(r)
    one = bytes_ is not None and bytes_.axis is None and bytes_.dtype in BYTES
    operands[RESIDUAL:] = (bytes_.data, bytes_.scale, bytes_.zero) if bytes_ is not None and one else (r, None, None)
    return b(dataclasses.replace(op, residual=True), *operands)


@rule(Pat(Pointwise, (_PRODUCT,)))
def integer_activation(m: Match, b: Builder) -> Result:
    act: Any = m.root.op
    node, op = m.node("y"), m.op("y")
    if act.arity != 1 or m.root.output.type.dtype != F32 or not _is_real(node):
        return None
    if not can_generate(act, [TensorType(F32, (1,))]):
        return m.refuse("there is no vector code for the activation")
    if op.activation is not None:
        return m.refuse("the operator has an activation already")
    return b(dataclasses.replace(op, activation=act), *node.inputs)


@rule(Pat(QuantizeLinear, (_PRODUCT,)))
def integer_result(m: Match, b: Builder) -> Result:
    node, op = m.node("y"), m.op("y")
    operands, (_, scale, zero) = _operands(node), (*m.root.inputs, None)[:3]
    dtype = m.root.output.type.dtype
    if not _is_real(node) or dtype not in BYTES or m["y"].type.dtype != F32:
        return m.refuse("no bytes, or bytes already")
    if scale is None or scale.const is None or not _is_positive(scale):
        return m.refuse("several scales, or one that is computed or not positive")
    if zero is not None and zero.const is None:
        return m.refuse("a zero point that is computed")
    point: Value | Array = np.zeros((), dtype) if zero is None else zero
    operands[Y_SCALE : Y_SCALE + 2] = scale, point
    if _is_idle(op.activation, float(scale.const.reshape(())), known(point)):
        op = dataclasses.replace(op, activation=None)
    return b(op, *operands)


@rule(Pat((Pointwise, QuantizeLinear), (Pat(BEFORE_BYTES, (Pat(name="x"),), name="moved", sole_use=True),)))
def tail_before_move(m: Match, b: Builder) -> Result:
    """One move at a time, where a product is below them all and nobody else reads what is between."""
    op: Any = m.root.op
    kinds = BEFORE_BYTES if isinstance(op, QuantizeLinear) else MOVES
    below: Value | None = m["moved"]
    while below is not None and below.node is not None and isinstance(below.node.op, kinds) and m.sole(below):
        below = below.node.inputs[0]
    node = None if below is None else below.node
    if node is None or not isinstance(node.op, (QLinearConv, QLinearMatMul)) or not m.sole(node.output):
        return m.refuse("no product with this reader alone below")
    rest = [v for v in m.root.inputs[1:] if v is not None]
    if isinstance(op, QuantizeLinear):
        if m.root.output.type.dtype not in BYTES or not all(_is_positive(v) for v in rest[:1]):
            return m.refuse("several scales, or one that is computed")
        if any(v.const is None or v.const.size != 1 for v in rest[1:]):
            return m.refuse("several zero points, or one that is computed")
    elif op.arity != 1 or m.root.output.type.dtype != F32 or node.op.activation is not None:
        return m.refuse("the product has an activation already")
    if not _is_real(node):
        return m.refuse("the product is of bytes already")
    return b(m.op("moved"), b(op, m["x"], *rest), *m.node("moved").inputs[1:])


def _is_positive(scale: Value) -> bool:
    """Whether a scale is known, and one finite number greater than 0 that is no denormal one."""
    known_scale = scale.const
    if known_scale is None or known_scale.size != 1 or known_scale.dtype != F32:
        return False
    return bool(np.isfinite(known_scale).all() and (known_scale >= np.finfo(F32).tiny).all())


def _is_idle(activation: Any, scale: float, zero: Array | None) -> bool:
    """Whether an activation only cuts off what the bytes cannot hold."""
    if zero is None or not isinstance(activation, (Relu, Clip)):
        return False
    low, high = (0.0, None) if isinstance(activation, Relu) else (activation.lo, activation.hi)
    least, most = limits(zero.dtype)
    point = float(zero.reshape(()))

    def level(bound: float) -> float:
        return float(np.rint(F32.type(bound) / F32.type(scale))) + point

    return (low is None or level(low) <= least) and (high is None or level(high) >= most)


RULES: tuple[Rule, ...] = (
    integer_bias,
    integer_factor,
    integer_residual,
    integer_activation,
    integer_result,
    tail_before_move,
)
