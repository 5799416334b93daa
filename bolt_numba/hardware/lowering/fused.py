"""Operators that hold several: each of them by itself.

bare(Conv[activation](x, w, b, r)) -> activation(Conv(x, w, b) + r)     also ConvTranspose, MatMul
product(MatMul[alpha](a^T, b^T, c)) -> MatMul(Transpose(a), Transpose(b)) * alpha + c
chain(Chain(x...))                  -> its operators
attention(FusedAttention(q, k, v))  -> MatMul(Softmax(MatMul(q, k^T) * scale + mask), v)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Split, Transpose
from bolt_numba.ops.chain import Chain
from bolt_numba.ops.layers.attention import FusedAttention, swapped
from bolt_numba.ops.layers.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule
from bolt_numba.types import F32, F64


def _holds_more(op: Any) -> bool:
    return op.activation is not None or getattr(op, "residual", False)


@rule(Pat((Conv, ConvTranspose, MatMul), where=_holds_more))
def bare(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    if getattr(op, "to", None) is not None:
        return m.refuse("the result is of another dtype")
    operands, residual = list(m.root.inputs), None
    if getattr(op, "residual", False):
        residual = operands.pop()
    names = {f.name for f in dataclasses.fields(op)}
    plain = dataclasses.replace(op, activation=None, **({"residual": False} if "residual" in names else {}))
    y = b(plain, *operands)
    if residual is not None:
        y = b(Add(), y, residual)
    return y if op.activation is None else b(op.activation, y)


def _is_flagged(op: Any) -> bool:
    return op.activation is None and not op.residual and op.to is None


@rule(Pat(MatMul, (Pat(name="a"), Pat(name="b")), where=_is_flagged))
def product(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    bias = m.root.inputs[2] if len(m.root.inputs) > 2 else None
    if op == MatMul() and bias is None:
        return m.refuse("it is a product and nothing else")
    if m["a"].type.dtype not in (F32, F64):
        return m.refuse("sums of other numbers are rounded at the end")
    left, right = _turned(b, m["a"], op.trans_a), _turned(b, m["b"], op.trans_b)
    if left is None or right is None:
        return m.refuse("the rank is not known")
    y = b(MatMul(), left, right)
    if op.alpha != 1:
        y = b(Mul(), y, op.alpha)
    return y if bias is None else b(Add(), y, bias)


def _turned(b: Builder, x: Value, swap: bool) -> Value | None:
    """The last two axes exchanged, of a constant at once; a vector stays."""
    if not swap:
        return x
    if x.type.shape is None:
        return None
    rank = len(x.type.shape)
    if rank < 2:
        return x
    if x.const is not None:
        return b.const(np.ascontiguousarray(x.const.swapaxes(-1, -2)))
    made: Value = b(Transpose((*range(rank - 2), rank - 1, rank - 2)), x)
    return made


@rule(Pat(Chain))
def chain(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    values = list(m.root.inputs)
    for step, operands in op.steps:
        values.append(b(step, *(values[i] for i in operands)))
    return tuple(values[i] for i in op.results)


@rule(Pat(FusedAttention, (Pat(name="q"),)))
def attention(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    q, k, v, mask = (*m.root.inputs, None, None, None)[:4]
    if m["q"].type.dtype not in (F32, F64):
        return m.refuse("narrow floats are summed as wide ones")
    if op.packed:
        q, k, v = b(Split(-2, 3), q)
    ranks = [len(x.type.shape or ()) for x in (q, k, v) if x is not None]
    if not all(ranks):
        return m.refuse("the rank is not known")
    if op.causal or (mask is not None and not _is_finite(mask)):
        return m.refuse("rows that see nothing may be hidden")
    given = zip((q, k, v), op.layouts, ranks, strict=True)
    q, k, v = (_heads(b, x, rank) if layout == "SHD" else x for x, layout, rank in given)
    scores = b(Mul(), b(MatMul(trans_b=True), q, k), op.scale)
    if mask is not None:
        scores = b(Add(), scores, mask)
    y = b(MatMul(), b(Softmax(-1), scores), v)
    return _heads(b, y, max(ranks)) if op.y_layout == "SHD" else y


def _heads(b: Builder, x: Any, rank: int) -> Value:
    made: Value = b(Transpose(swapped(tuple(range(rank)))), x)
    return made


def _is_finite(mask: Value) -> bool:
    return mask.type.known is not None and bool(np.isfinite(mask.type.known).all())


RULES: tuple[Rule, ...] = (bare, product, chain, attention)
