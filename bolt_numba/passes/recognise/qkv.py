"""Attention over queries, keys and values that one product makes: they are read where they lie.

split_into_attention(FusedAttention(parts of Split(x)))    -> FusedAttention(x, packed)     x: [.., S, 3 H D]
stack_into_attention(FusedAttention(parts of T(x)))        -> FusedAttention(x, packed)     x: [B, S, 3, H, D]
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.base.types import I64
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Reshape, Split, Transpose
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule, scalar_of

STACKED = (2, 0, 3, 1, 4)
"""The permutation of [B, S, 3, H, D] to [3, B, H, S, D]."""


def _maker(value: Value | None, *ops: Any) -> Any:
    """The node that makes ``value`` when its operator is one of ``ops``."""
    return value.node if value is not None and value.node is not None and isinstance(value.node.op, ops) else None


def _part_of_split(value: Value | None, axis: int) -> tuple[Value, int] | None:
    """(x, i) where the value is a view of part i of three equal ones of x along ``axis``."""
    view = _maker(value, Reshape)
    part = None if view is None else view.inputs[0]
    split = _maker(part, Split)
    if split is None or len(split.outputs) != 3 or part is None or split.inputs[0] is None:
        return None
    shape = split.inputs[0].type.shape
    same = len({v.type.shape for v in split.outputs}) == 1
    if shape is None or not same or split.op.axis % len(shape) != axis % len(shape):
        return None
    return split.inputs[0], part.index


def _common(parts: list[tuple[Value, int] | None]) -> Value | None:
    """What all three are parts of, in order."""
    if any(p is None or p[1] != i for i, p in enumerate(parts)):
        return None
    sources = {id(p[0]): p[0] for p in parts if p is not None}
    return next(iter(sources.values())) if len(sources) == 1 else None


@rule(Pat(FusedAttention, (Pat(name="q"), Pat(name="k"), Pat(name="v"))))
def split_into_attention(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    source = _common([_part_of_split(m[name], -1) for name in "qkv"])
    shapes = [m[name].type.shape for name in "qkv"]
    if source is None or op.layouts != ("SHD",) * 3 or len(set(shapes)) > 1:
        return None
    shape, given = shapes[0], source.type.shape
    if shape is None or given is None or len(shape) != 4 or len(given) != 3 or given[:2] != shape[:2]:
        return m.refuse("the parts are no heads of one length")
    return _packed(m, b, source)


@rule(Pat(FusedAttention, (Pat(name="q"), Pat(name="k"), Pat(name="v"))))
def stack_into_attention(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    if op.layouts != ("HSD",) * 3:
        return None
    stack = _common([_row_of(m[name]) or _part_of_split(m[name], 0) for name in "qkv"])
    turn = _maker(stack, Transpose)
    source = None if turn is None or turn.op.perm != STACKED else turn.inputs[0]
    if stack is None or source is None or stack.type.shape is None or m["q"].type.shape != stack.type.shape[1:]:
        return None
    return _packed(m, b, source)


def _row_of(value: Value | None) -> tuple[Value, int] | None:
    """(x, i) where the value is x[i]."""
    gather = _maker(value, Gather)
    index = None if gather is None else scalar_of(gather.inputs[1])
    if index is None or gather.op.axis != 0 or gather.inputs[1].type.shape != () or gather.inputs[0] is None:
        return None
    return gather.inputs[0], int(index)


def _packed(m: Match, b: Builder, source: Value) -> Result:
    """Attention over ``source`` seen as [B, S, 3 H, D]."""
    op: Any = m.root.op
    heads, size = ((m["q"].type.shape or ())[i] for i in ((-2, -1) if op.q_layout == "SHD" else (-3, -1)))
    if not isinstance(heads, int) or not isinstance(size, int):
        return m.refuse("the sizes of heads are not known")
    made = dataclasses.replace(op, q_layout="SHD", k_layout="SHD", v_layout="SHD", packed=True)
    view = b(Reshape(), source, np.array([0, 0, 3 * heads, size], I64))
    rest = m.root.inputs[3:]
    return b(made, view, None, None, *rest) if rest else b(made, view)


RULES: tuple[Rule, ...] = (split_into_attention, stack_into_attention)
