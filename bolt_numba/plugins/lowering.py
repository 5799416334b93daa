"""Rules that take operators apart for devices that lack them: a driver lists those that it wants.

Each is tried on what the device refuses, and on nothing else.  What an operator is in terms of others stands in
`bolt_numba.ops.decomposed`; docs/plugins/operators.md has all of them.  Here are the rules besides:

unfused(Conv[activation](x, w, b, r)) -> activation(Conv(x, w, b) + r)          also ConvTranspose, MatMul
signed_weights(QLinearConv(w[u8]))    -> QLinearConv(w[i8] - 128)               also QLinearMatMul
channels_first(Conv[NHWC](x))         -> Transpose(Conv[NCHW](Transpose(x)))    every operator with a layout
channels_last(Conv[NCHW](x))          -> Transpose(Conv[NHWC](Transpose(x)))    the rule of the stage ``layout``
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, I8, U8
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.decomposed import decompose as d
from bolt_numba.ops.layers import norm as n
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.distances import Distances
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_forms import MatMulForm
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import Op
from bolt_numba.passes.layout.channels_last import SPATIAL_RULES
from bolt_numba.passes.layout.transposes import move_transposes
from bolt_numba.passes.pipeline import CLEAN, PipelineRun
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rewrite, rule


def apart(*kinds: type[Op]) -> tuple[Rule, ...]:
    """A rule for each of these operators, called like it: the operator as its decomposition has it."""
    return tuple(Rule(kind.name, Pat(kind), _apart) for kind in kinds)


def _apart(m: Match, b: Builder) -> Result:
    reason = _changes(m.root)
    return m.refuse(reason) if reason else _tried(d.decompose, m, b)


def _tried(function: Any, m: Match, b: Builder) -> Result:
    try:
        return function(m.root.op, b, *m.root.inputs)
    except d.WholeError as error:
        return m.refuse(str(error))


def _changes(node: Node) -> str:
    """Why a decomposition may give other numbers than the operator, or do what the operator refuses."""
    op, given = node.op, [v for v in node.inputs if v is not None]
    fourth = node.inputs[3].type if len(node.inputs) > 3 and node.inputs[3] is not None else None
    kinds = {v.type.dtype for v in given if v.type.dtype.kind not in "iub"}
    if not isinstance(op, Pointwise) and not kinds <= {F32, F64}:
        return "narrow floats are computed as wide ones and rounded once"
    if type(op) not in d.WHOLE and (getattr(op, "activation", None) is not None or getattr(op, "residual", False)):
        return "other operators are fused to it"
    content = None if fourth is None else fourth.known
    if isinstance(op, FusedAttention) and fourth is not None and (content is None or not np.isfinite(content).all()):
        return "rows that see nothing may be hidden"
    if isinstance(op, RotaryEmbedding) and fourth is not None and content is None:
        return "positions that only the run tells are held to the tables"
    return ""


@rule(Pat((Conv, ConvTranspose, MatMul)))
def unfused(m: Match, b: Builder) -> Result:
    return _tried(d.unfused, m, b)


@rule(Pat(where=lambda value: value.node is not None and getattr(value.node.op, "layout", "") == "NHWC"))
def channels_first(m: Match, b: Builder) -> Result:
    return _tried(d.channels_first, m, b)


@rule(Pat((QLinearConv, QLinearMatMul)))
def signed_weights(m: Match, b: Builder) -> Result:
    operands: list[Any] = list(m.root.inputs)
    w, zero = (None if v is None else v.const for v in (operands[3], operands[5]))
    if w is None or zero is None or w.dtype != U8:
        return m.refuse("the weights are signed, or no constants")
    operands[3], operands[5] = ((array.astype(np.int16) - 128).astype(I8) for array in (w, zero))
    return b(m.root.op, *operands)


ACTIVATIONS = apart(
    p.Gelu, p.Swish, p.Mish, p.HardSwish, p.HardSigmoid, p.Softplus, p.Softsign, p.LeakyRelu, p.PRelu, p.Clip,
    p.Reciprocal,
)  # fmt: skip
BYTES = apart(QLinearConv, QLinearMatMul, BetweenBytes, ByteTable)
CONVERSIONS = apart(DequantizeLinear, QuantizeLinear)
SIGNED: tuple[Rule, ...] = (signed_weights,)
"""For devices whose weights are signed; before the others."""
FUSED: tuple[Rule, ...] = (
    unfused,
    *apart(MatMul, ConvTranspose, Chain, FusedAttention, RotaryEmbedding, Distances, MatMulForm),
)
NORMS = apart(
    n.BatchNormalization, n.LayerNormalization, n.RMSNormalization, n.InstanceNormalization, n.GroupNormalization,
    n.LpNormalization,
)  # fmt: skip
SUMS = apart(r.Softmax, r.LogSoftmax, r.ReduceL1, r.ReduceL2, r.ReduceSumSquare, r.ReduceLogSum)
STEPS_FIRST = apart(LSTM, GRU, RNN)
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
