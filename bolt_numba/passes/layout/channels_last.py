"""Channels last for everything that slides a window or has channels; transposes end where they cost least.

channels_last(Conv[NCHW](x))             -> Transpose(Conv[NHWC](Transpose(x)))   every operator with a layout
fit_channels_last(Transpose(FitImage(x))) -> FitImage(x)     that writes its channels last
transpose_to_reshape(Transpose(x))       -> Reshape(x)      when only axes of length 1 move; or Unsqueeze(Squeeze(x))

Between the two, `transposes.move_transposes` carries permutations through what does not care about the order of axes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.shape import Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.data.fit_image import FitImage
from bolt_numba.ops.layers.detection.regions import DeformConv
from bolt_numba.passes.canonical.views import reshaped
from bolt_numba.passes.layout.permuted import inverse, moves_data
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from [n, c, spatial...] to [n, spatial..., c]."""
    return (0, *range(2, rank), 1)


def _rank(node: Node) -> int:
    """Rank of the image: its own, or that of the filters; 0 when neither is known."""
    x = node.inputs[0]
    at: int | None = getattr(node.op, "filters_at", None)
    w = None if at is None else node.inputs[at]
    known = [v.type.shape for v in (x, w) if v is not None and v.type.shape is not None]
    return len(known[0]) if known else 0


@rule(Pat(where=lambda value: value.node is not None and getattr(value.node.op, "layout", "") == "NCHW"))
def channels_last(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = _rank(m.root)
    if not rank:
        return m.refuse("the rank is not known")
    if isinstance(op, DeformConv):
        return m.refuse("the operator has no other layout")
    perm = to_last(rank)
    spatial = (0, op.residual_at) if getattr(op, "residual", False) else (0,)
    operands: list[Value | None] = [
        b(Transpose(perm), v) if v is not None and i in spatial else v for i, v in enumerate(m.root.inputs)
    ]
    made = b.node(dataclasses.replace(op, layout="NHWC"), *operands).outputs
    return tuple(b(Transpose(inverse(perm)), v) for v in made)


@rule(Pat(Transpose, (Pat(name="x"),)))
def transpose_to_reshape(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    shape = m["x"].type.shape
    if shape is None or moves_data(op.perm, shape):
        return None
    made = reshaped(b, m["x"], m.root.output.type.shape)
    if made is not None:
        return made
    ones = [i for i, d in enumerate(shape) if d == 1]
    bare = b(Squeeze(), m["x"], np.array(ones, np.int64))
    return b(Unsqueeze(), bare, np.array([op.perm.index(i) for i in ones], np.int64))


@rule(Pat(Transpose, (Pat(FitImage, name="fit", sole_use=True),)))
def fit_channels_last(m: Match, b: Builder) -> Result:
    op, fit = m.root.op, m.node("fit")
    if not isinstance(op, Transpose) or not isinstance(fit.op, FitImage) or op.perm != (0, 2, 3, 1):
        return None
    if fit.op.channels_last:
        return m.refuse("channels are last already")
    return b(dataclasses.replace(fit.op, channels_last=True), *fit.inputs)


SPATIAL_RULES: tuple[Rule, ...] = (channels_last,)
FINAL_RULES: tuple[Rule, ...] = (transpose_to_reshape, fit_channels_last)
