"""Where the channels of images stand.

channels_first(Conv[NHWC](x)) -> Transpose(Conv[NCHW](Transpose(x)))    every operator with a layout
channels_last(Conv[NCHW](x))  -> Transpose(Conv[NHWC](Transpose(x)))    the rule of the stage ``layout``
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.passes.layout import SPATIAL_RULES, to_last
from bolt_numba.passes.permuted import inverse
from bolt_numba.passes.pipeline import CLEAN, PipelineRun
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rewrite, rule
from bolt_numba.passes.transposes import move_transposes


@rule(Pat(where=lambda value: value.node is not None and getattr(value.node.op, "layout", "") == "NHWC"))
def channels_first(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x = m.root.inputs[0]
    if x is None or not x.type.shape:
        return m.refuse("the rank is not known")
    perm = to_last(len(x.type.shape))
    spatial = (0, op.residual_at) if getattr(op, "residual", False) else (0,)
    operands: list[Value | None] = [
        b(Transpose(inverse(perm)), v) if v is not None and i in spatial else v for i, v in enumerate(m.root.inputs)
    ]
    made = b.node(dataclasses.replace(op, layout="NCHW"), *operands).outputs
    return tuple(b(Transpose(perm), v) for v in made)


CHANNELS_FIRST: tuple[Rule, ...] = (channels_first,)
CHANNELS_LAST: tuple[Rule, ...] = SPATIAL_RULES


def with_channels_last(graph: Graph) -> Graph:
    """A copy whose operators on images all have their channels last, with transposes where they cost least.

    For devices that know no other layout: their `compile` begins with it.  Inputs and outputs stay as they are.
    """
    made = graph.clone()
    rewrite(made, CHANNELS_LAST)
    move_transposes(made)
    rewrite(made, PipelineRun().rules(CLEAN))
    return made
