"""Channels last for everything that slides a window or has channels; transposes end where they cost least.

channels_last(Conv[NCHW](x))             -> Transpose(Conv[NHWC](Transpose(x)))   every operator with a layout
transpose_to_reshape(Transpose(x))       -> Reshape(x)      when only axes of length 1 move

Between the two, `transposes.move_transposes` carries permutations through what does not care about the order of axes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.shape import Transpose
from bolt_numba.passes.carry import inverse, moves_data
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, Trace, nested, rewrite, rule
from bolt_numba.passes.transposes import move_transposes
from bolt_numba.passes.views import reshaped

RANKS = (3, 4, 5)
RESIDUAL = 3
"""Operand of a convolution that has the result's layout."""


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from [n, c, spatial...] to [n, spatial..., c]."""
    return (0, *range(2, rank), 1)


@rule(Pat(where=lambda value: value.node is not None and getattr(value.node.op, "layout", "") == "NCHW"))
def channels_last(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x = m.root.inputs[0]
    if x is None or x.type.shape is None or len(x.type.shape) not in RANKS:
        return m.refuse("the rank is not 3, 4 or 5")
    if len(m.root.outputs) > 1:
        return m.refuse("the indices count in the layout of the model")
    perm = to_last(len(x.type.shape))
    operands: list[Value | None] = [
        b(Transpose(perm), v) if v is not None and i in (0, RESIDUAL if getattr(op, "residual", False) else 0) else v
        for i, v in enumerate(m.root.inputs)
    ]
    return b(Transpose(inverse(perm)), b(dataclasses.replace(op, layout="NHWC"), *operands))


@rule(Pat(Transpose, (Pat(name="x"),)))
def transpose_to_reshape(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    shape = m["x"].type.shape
    if shape is None or moves_data(op.perm, shape):
        return None
    made = reshaped(b, m["x"], m.root.output.type.shape)
    return m.refuse("the shape cannot be a constant") if made is None else made


SPATIAL_RULES: tuple[Rule, ...] = (channels_last,)
FINAL_RULES: tuple[Rule, ...] = (transpose_to_reshape,)


def layout_stage(graph: Graph, clean: Sequence[Rule], trace: Trace | None = None, strict: bool = False) -> None:
    """Rewrite spatial operators to channels last, settle the transposes, and turn the free ones into Reshapes."""
    rewrite(graph, (*SPATIAL_RULES, *clean), trace=trace, strict=strict)
    for g in nested(graph):
        move_transposes(g)
    rewrite(graph, (*FINAL_RULES, *clean), trace=trace, strict=strict)
