"""Products of matrices: transposes become flags, scales become numbers, attention becomes one operator.

transpose_into_matmul(MatMul(T(a), b))            -> MatMul(a, b, trans_a)       T swaps the last two axes
scale_into_matmul(MatMul(a, b) * c)               -> MatMul(a, b, alpha)         c a number; the product has one reader
attention(Softmax(q @ kT * c + mask) @ v)         -> FusedAttention(q, k, v, mask)     also with NaN made 0 after it
scale_into_attention(FusedAttention(q * c, k))    -> FusedAttention(q, k)        same for k
transpose_into_attention(FusedAttention(T(q), k)) -> FusedAttention(q, k)        T: heads for positions; k, v too
transpose_from_attention(T(FusedAttention))       -> FusedAttention
mask_from_where(Softmax(Where(m, s, -big)))       -> Softmax(s + Where(m, 0, -big))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from bolt_numba.base.types import TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.attention.attention import FusedAttention, swapped
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Div, IsNaN, Mul, Where
from bolt_numba.passes.constants import is_mild
from bolt_numba.passes.recognise import qkv as packed
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar, scalar_of

MASKED = -1e30
"""Scores at or below this stay what they are when an ordinary score is added, and mean "do not look there"."""


def swap_last(rank: int) -> tuple[int, ...]:
    """The permutation that swaps the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _unswapped(value: Value | None) -> Value | None:
    """``x`` when the value is x with its last two axes swapped."""
    if value is None or value.node is None or not isinstance(value.node.op, Transpose):
        return None
    perm = value.node.op.perm
    return value.node.inputs[0] if len(perm) > 1 and perm == swap_last(len(perm)) else None


@rule(Pat(MatMul, (Pat(name="a"), Pat(name="b"))))
def transpose_into_matmul(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    left, right = _unswapped(m["a"]), _unswapped(m["b"])
    if left is None and right is None:
        return None
    made = dataclasses.replace(op, trans_a=op.trans_a ^ (left is not None), trans_b=op.trans_b ^ (right is not None))
    return b(made, left or m["a"], right or m["b"], *m.root.inputs[2:])


@rule(Pat((Mul, Div), (Pat(MatMul, (Pat(name="a"), Pat(name="b")), name="mm", sole_use=True), const("c"))))
def scale_into_matmul(m: Match, b: Builder) -> Result:
    c, op = scalar_of(m["c"]), m.op("mm")
    if c is None or not is_mild(c, m["mm"].type.dtype) or len(m.node("mm").inputs) > 2 or op.activation is not None:
        return m.refuse("the factor is no number, or far from 1, or the product is not bare")
    number = c if isinstance(m.root.op, Mul) else 1 / c
    if m["a"].is_const or m["b"].is_const:
        return m.refuse("the factor goes into the weight")
    return b(dataclasses.replace(op, alpha=op.alpha * number), m["a"], m["b"])


_SCORES = Pat(MatMul, (Pat(name="q"), Pat(name="k")), name="scores", sole_use=True)


def _attention_pattern(inner: Pat, guarded: bool = False) -> Pat:
    """guarded: a line of NaN, where a query may look at no key, is replaced by 0, which is what attention gives."""
    softmax = Pat(Softmax, (inner,), name="weights", sole_use=not guarded)
    if guarded:
        softmax = Pat(Where, (Pat(IsNaN, (softmax,)), scalar(0.0), Pat(name="weights")), sole_use=True)
    return Pat(MatMul, (softmax, Pat(name="v")))


def _attention(m: Match, b: Builder) -> Result:
    scores, softmax, out = m.op("scores"), m.op("weights"), m.root
    op: Any = out.op
    rank = len(m["scores"].type.shape or ())
    if rank < 3 or softmax.axis % rank != rank - 1:
        return m.refuse("the softmax is not over the last axis")
    if scores.trans_a or scores.activation or len(m.node("scores").inputs) > 2:
        return m.refuse("the scores are no bare product")
    if op != MatMul() or len(out.inputs) > 2:
        return m.refuse("the result is no bare product")
    k = m["k"] if scores.trans_b else _natural_key(m["k"], b)
    if k is None:
        return m.refuse("the keys would have to be transposed")
    mask = m.get("mask")
    if not _fits(m["q"].type, k.type, m["v"].type, m["scores"].type, None if mask is None else mask.type):
        return m.refuse("the batch axes differ")
    return b(FusedAttention(scale=scores.alpha), m["q"], k, m["v"], mask)


def _natural_key(k: Value, b: Builder) -> Value | None:
    """Keys as [..., N, D] from [..., D, N] that a Transpose made; the two transposes merge later."""
    if k.node is None or not isinstance(k.node.op, Transpose):
        return None
    return _made(b(Transpose(swap_last(len(k.node.op.perm))), k))


def _made(value: Any) -> Value:
    assert isinstance(value, Value), "an operator of one output"
    return value


def _fits(q: TensorType, k: TensorType, v: TensorType, scores: TensorType, mask: TensorType | None) -> bool:
    """Whether q, k and v share their batch axes and the mask broadcasts into the scores."""
    if q.shape is None or k.shape is None or v.shape is None or scores.shape is None:
        return False
    same = q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and q.dtype.kind == "f"
    if mask is None or not same:
        return same
    if mask.shape is None or len(mask.shape) > len(scores.shape):
        return False
    return all(d in (1, s) for d, s in zip(reversed(mask.shape), reversed(scores.shape), strict=False))


@rule(Pat(FusedAttention, (Pat((Mul, Div), (Pat(name="x"), const("c")), name="q", sole_use=True),)))
def scale_into_attention_q(m: Match, b: Builder) -> Result:
    return _rescaled(m, b, "q", (m["x"], *m.root.inputs[1:]))


@rule(Pat(FusedAttention, (Pat(name="q"), Pat((Mul, Div), (Pat(name="x"), const("c")), name="k", sole_use=True))))
def scale_into_attention_k(m: Match, b: Builder) -> Result:
    return _rescaled(m, b, "k", (m["q"], m["x"], *m.root.inputs[2:]))


def _rescaled(m: Match, b: Builder, name: str, operands: Sequence[Value | None]) -> Result:
    c, op = scalar_of(m["c"]), cast(Any, m.root.op)
    if c is None or not is_mild(c, m[name].type.dtype):
        return m.refuse("the factor is no number or far from 1")
    number = c if isinstance(m.op(name), Mul) else 1 / c
    return b(dataclasses.replace(op, scale=op.scale * number), *operands)


def _other_layout(layout: str) -> str:
    return "SHD" if layout == "HSD" else "HSD"


def _exchanged(value: Value | None) -> Value | None:
    """``x`` when the value is x with its axes of heads and positions exchanged."""
    if value is None or value.node is None or not isinstance(value.node.op, Transpose):
        return None
    perm = value.node.op.perm
    return value.node.inputs[0] if len(perm) > 2 and perm == swapped(tuple(range(len(perm)))) else None


@rule(Pat(FusedAttention, (Pat(name="q"), Pat(name="k"), Pat(name="v"))))
def transpose_into_attention(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    found = [_exchanged(m[name]) for name in "qkv"]
    if not any(found):
        return None
    layouts = [_other_layout(a) if x else a for a, x in zip(op.layouts, found, strict=True)]
    made = dataclasses.replace(op, **dict(zip(("q_layout", "k_layout", "v_layout"), layouts, strict=True)))
    return b(made, *(x or m[name] for x, name in zip(found, "qkv", strict=True)), *m.root.inputs[3:])


@rule(Pat(Transpose, (Pat(FusedAttention, name="a", sole_use=True),)))
def transpose_from_attention(m: Match, b: Builder) -> Result:
    perm, op = m.root.op.perm, m.op("a")  # type: ignore[attr-defined]
    if len(perm) < 3 or perm != swapped(tuple(range(len(perm)))):
        return m.refuse("it exchanges other axes than those of heads and positions")
    return b(dataclasses.replace(op, y_layout=_other_layout(op.y_layout)), *m.node("a").inputs)


@rule(Pat(Transpose, (Pat((Mul, Div), (Pat(name="x"), const("c")), name="scaled", sole_use=True),)))
def scale_after_transpose(m: Match, b: Builder) -> Result:
    """A scaled key reaches its Transpose, so that the attention patterns see the factor last."""
    if scalar_of(m["c"]) is None:
        return None
    return b(m.op("scaled"), b(m.root.op, m["x"]), m["c"])


@rule(Pat(MatMul, (Pat(name="a"), Pat((Mul, Div), (Pat(Transpose, name="kt"), const("c")), name="k", sole_use=True))))
def key_scale_into_matmul(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    return _operand_scale(m, b, (m["a"], m["kt"]), op, "k")


@rule(Pat(MatMul, (Pat((Mul, Div), (Pat(name="x"), const("c")), name="q", sole_use=True), Pat(name="b"))))
def query_scale_into_matmul(m: Match, b: Builder) -> Result:
    if m["b"].is_const:
        return m.refuse("the factor goes into the weight")
    return _operand_scale(m, b, (m["x"], m["b"]), m.root.op, "q")


def _operand_scale(m: Match, b: Builder, operands: Sequence[Value], op: Any, name: str) -> Result:
    c = scalar_of(m["c"])
    if c is None or m.root.output.type.dtype.kind != "f" or not is_mild(c, m.root.output.type.dtype):
        return m.refuse("the factor is no number or far from 1")
    number = c if isinstance(m.op(name), Mul) else 1 / c
    return b(dataclasses.replace(op, alpha=op.alpha * number), *operands, *m.root.inputs[2:])


@rule(Pat(Softmax, (Pat(Where, (Pat(name="cond"), Pat(name="s"), const("low")), name="where", sole_use=True),)))
def mask_from_where(m: Match, b: Builder) -> Result:
    """Masked scores are added to instead of replaced: the softmax of both is 0 there."""
    low, s = scalar_of(m["low"]), m["s"]
    if low is None or low > MASKED or s.node is None or not isinstance(s.node.op, (MatMul, Div, Mul)):
        return m.refuse("no low number or no scores")
    if s.type.shape != m["where"].type.shape:
        return m.refuse("the scores are broadcast")
    zero, dtype = np.zeros((), s.type.dtype), s.type.dtype
    mask = b(Where(), m["cond"], zero, np.array(low, dtype))
    return b(m.root.op, b(Add(), s, mask))


LATE_RULES: tuple[Rule, ...] = (transpose_into_matmul, transpose_into_attention, transpose_from_attention)
"""After the layout is settled: a Transpose may still have met its inverse."""
_MASKED_SCORES = Pat(Add, (_SCORES, Pat(name="mask")), commutative=True, sole_use=True)


RULES: tuple[Rule, ...] = (
    scale_into_matmul,
    Rule("attention", _attention_pattern(_SCORES), _attention),
    Rule("attention_masked", _attention_pattern(_MASKED_SCORES), _attention),
    Rule("attention_guarded", _attention_pattern(_MASKED_SCORES, guarded=True), _attention),
    scale_into_attention_q,
    scale_into_attention_k,
    transpose_into_attention,
    transpose_from_attention,
    *packed.RULES,
    scale_after_transpose,
    key_scale_into_matmul,
    query_scale_into_matmul,
    mask_from_where,
)
