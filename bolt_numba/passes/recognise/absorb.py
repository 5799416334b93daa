"""Arithmetic with constants around convolutions and products goes into their weights; padding into their pads.

batch_norm_into_weights(BatchNormalization(Conv(x, w))) -> Conv(x, w * a, bias)   as by the next two, at once
split_batch_norm(BatchNormalization(x))     -> x * a + c                 constant statistics; (x - mean) * a + bias
                                               where the mean is many deviations from 0
affine_into_weights(Conv(x, w) * a + c)     -> Conv(x, w * a, bias)      per channel; also ConvTranspose, MatMul; Neg
affine_before_weights(Conv(x * a, w))       -> Conv(x, a * w)            per channel
shift_before_weights(Conv(x * a + c, w))    -> Conv(x, a * w, bias)      not strict; no pads, c at most 16 times a
pad_into_window(Conv(Pad(x, 0)))            -> Conv(x, pads)             also AveragePool
pad_into_max_pool(MaxPool(Pad(x)))          -> MaxPool(x, pads)          pads that cannot win: edge, -inf, 0 after Relu

All but the last two change the order of rounding.  The bound of a direct sum still holds, since weights lose nothing
(`passes.constants`).  `LAX_RULES` do not keep to it: x may cancel a shift better than its products do.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F64, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Pad
from bolt_numba.ops.layers.norm import BatchNormalization
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.layers.products.binary import BinaryConv, BinaryMatMul
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Clip, Div, HardSigmoid, Mul, Neg, Relu, Sigmoid
from bolt_numba.passes.constants import cancels, fits, scaled_weight
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar_of

AFFINE = (Add, Mul, Div, Neg)
WEIGHTED = (Conv, ConvTranspose, MatMul, BinaryConv, BinaryMatMul)


_STATISTICS = (const("scale"), const("bias"), const("mean"), const("var"))


@rule(Pat(BatchNormalization, (Pat(WEIGHTED, name="x", sole_use=True), *_STATISTICS)))
def batch_norm_into_weights(m: Match, b: Builder) -> Result:
    base = m.node("x")
    op: Any = m.root.op
    channels, axis = _channels(base), _weighted_axis(base)
    shape = base.output.type.shape
    if channels is None or shape is None or not _bare(base.op):
        return m.refuse("the channels are not known or the operator is fused already")
    if axis != (1 if op.layout == "NCHW" else len(shape) - 1):
        return m.refuse("the channels lie along another axis")
    mean, a, bias = _statistics(m, op)
    return _with_affine(m, b, base, a, bias - mean * a)


def _statistics(m: Match, op: Any) -> tuple[Array, Array, Array]:
    """Mean, factor and bias of each channel in f64."""
    scale, bias, mean, var = (np.asarray(m[k].const, F64) for k in ("scale", "bias", "mean", "var"))
    with np.errstate(all="ignore"):
        return mean, scale / np.sqrt(var + op.epsilon), bias


FAR_MEAN = 2.0**8
"""Deviations from 0 up to which the mean is multiplied with the factor: as many units of rounding are lost."""


@rule(Pat(BatchNormalization, (Pat(name="x"), *_STATISTICS)))
def split_batch_norm(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x = m["x"].type
    mean, a, bias = _statistics(m, op)
    channels = None if x.shape is None or len(x.shape) < 2 else x.shape[1 if op.layout == "NCHW" else -1]
    if x.shape is None or any(v.shape != (channels,) for v in (mean, a, bias)):
        return m.refuse("a number for each channel is not certain: broadcasting would hide that they do not fit")
    ones = (1,) * (len(x.shape) - 2) if op.layout == "NCHW" else ()
    deviation = np.sqrt(np.asarray(m["var"].const, F64) + op.epsilon)
    far = not np.all(np.abs(mean) <= FAR_MEAN * deviation)
    terms = (-mean, a, bias) if far else (a, bias - mean * a)
    if not all(fits(v, x.dtype) for v in terms):
        return m.refuse("the numbers of a channel do not fit")
    first, *rest = (v.astype(x.dtype).reshape(-1, *ones) for v in terms)
    y = b(Add() if far else Mul(), m["x"], first)
    return b(Add(), b(Mul(), y, rest[0]) if far else y, rest[-1])


def _weighted_axis(node: Node) -> int:
    """The axis of the output's channels, negative for a product."""
    layout = getattr(node.op, "layout", None)
    rank = len(node.output.type.shape or ())
    return rank - 1 if layout != "NCHW" else 1


def _per_channel(node: Node, axis: int, channels: int) -> Array | None:
    """The constant operand of an Add, Mul or Div as numbers per channel; None when it varies along another axis."""
    c = _constant(node)
    if c is None or node.inputs[0] is None:
        return None
    x = node.inputs[0].type
    if x.shape is None or c.ndim > len(x.shape) or node.output.type.shape != x.shape:
        return None
    if c.dtype.kind != "f":
        return None
    shape = (1,) * (len(x.shape) - c.ndim) + c.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(c.reshape(-1), (channels,)).astype(F64)


def _constant(node: Node) -> Array | None:
    """What a node adds, multiplies by or divides by; None when it does none of these or not by a constant."""
    if isinstance(node.op, Neg):
        return np.array(-1, node.output.type.dtype)
    if not isinstance(node.op, AFFINE) or node.inputs[1] is None:
        return None
    return node.inputs[1].const


def _channels(node: Node) -> int | None:
    """Output channels of a convolution or product, when they are known."""
    shape = node.output.type.shape
    d = None if not shape else shape[_weighted_axis(node)]
    return d if isinstance(d, int) else None


def _affine_chain(graph: Graph, root: Node) -> tuple[Node, list[Node]]:
    """The node below a chain of Add, Mul and Div by constants that ends in ``root``, and the chain in running order."""
    chain = [root]
    while True:
        below = chain[-1].inputs[0]
        node = None if below is None else below.node
        if below is None or node is None or graph.sole_use(below) is None:
            return chain[-1], chain[::-1]
        if _constant(node) is None:
            return node, chain[::-1]
        chain.append(node)


def _composed(chain: list[Node], axis: int, channels: int) -> tuple[Array, Array] | None:
    """The chain as x * a + c per channel, in f64; None when a step is not per channel or takes back a large term."""
    a, c = np.ones(channels), np.zeros(channels)
    for node in chain:
        v = _per_channel(node, axis, channels)
        if v is None or (isinstance(node.op, Div) and not np.all(v)):
            return None
        if isinstance(node.op, Add):
            before, c = c, c + v
            if cancels(before, c) or cancels(v, c):
                return None
        else:
            v = 1 / v if isinstance(node.op, Div) else v
            a, c = a * v, c * v
    return a, c


def _bare(op: Any) -> bool:
    return op.activation is None and not getattr(op, "residual", False)


@rule(Pat(AFFINE))
def affine_into_weights(m: Match, b: Builder) -> Result:
    if _constant(m.root) is None:
        return None
    base, chain = _affine_chain(m.graph, m.root)
    if not isinstance(base.op, WEIGHTED):
        return None
    channels, axis = _channels(base), _weighted_axis(base)
    if channels is None or not _bare(base.op):
        return m.refuse("the channels are not known or the operator is fused already")
    reader = m.graph.sole_use(m.root.output)
    if reader is not None and reader.inputs[0] is m.root.output and _per_channel(reader, axis, channels) is not None:
        return m.refuse("the chain goes on")
    composed = _composed(chain, axis, channels)
    if composed is None:
        return m.refuse("a constant is not per channel, or takes back another")
    return _with_affine(m, b, base, *composed)


def _with_affine(m: Match, b: Builder, base: Node, a: Array, c: Array) -> Result:
    """The convolution or product with ``a`` in its weight and ``c`` in its bias."""
    x, w, bias = (*base.inputs, None, None)[:3]
    if (bias is not None and bias.const is None) or x is None or w is None:
        return m.refuse("the bias is not constant")
    if w.type.shape is None or len(w.type.shape) < 2:
        return m.refuse("a product with a vector has no columns")
    if bias is not None and bias.const is not None:
        moved = bias.const.astype(F64) * a
        before, c = c, c + moved
        if cancels(before, c) or cancels(moved, c):
            return m.refuse("the bias takes back a large term")
    scaled: Value | Array | None = w if np.all(a == 1) else _scaled_outputs(base, a)
    if scaled is None or not fits(c, w.type.dtype):
        return m.refuse("the weight is not constant or loses something")
    return b(base.op, x, scaled, c.astype(w.type.dtype))


def _scaled_outputs(node: Node, a: Array) -> Array | None:
    """The weight with every output channel multiplied; None when that is not possible without loss."""
    op: Any = node.op
    w = node.inputs[1].const if node.inputs[1] is not None else None
    if w is None or w.ndim < 2:
        return None
    ones = (1,) * (w.ndim - 2)
    if isinstance(op, (MatMul, BinaryMatMul)):
        return scaled_weight(w, a[:, None] if getattr(op, "trans_b", False) else a)
    if isinstance(op, (Conv, BinaryConv)):
        return scaled_weight(w, a.reshape(-1, 1, *ones))
    made = scaled_weight(w.reshape(op.group, -1, *w.shape[1:]), a.reshape(op.group, 1, -1, *ones))
    return None if made is None else made.reshape(w.shape)


_AFFINE_BEFORE = Pat(WEIGHTED, (Pat(AFFINE, name="x", sole_use=True), const("w")))


@rule(_AFFINE_BEFORE)
def affine_before_weights(m: Match, b: Builder) -> Result:
    return _before_weights(m, b, shifts=False)


MOST_SHIFT = 16
"""Of x: so many units of rounding of 1 are the most that x * a + c near 0 loses."""


@rule(_AFFINE_BEFORE)
def shift_before_weights(m: Match, b: Builder) -> Result:
    return _before_weights(m, b, shifts=True)


def _before_weights(m: Match, b: Builder, *, shifts: bool) -> Result:
    """The longest part of the chain before a product that ends there, moved into its weight and bias."""
    if _constant(m.node("x")) is None:
        return None
    op, w = m.root.op, m["w"].const
    shape = m["x"].type.shape
    if w is None or shape is None or w.ndim < 2:
        return None
    axis = 1 if getattr(op, "layout", "") == "NCHW" else len(shape) - 1
    channels = shape[axis]
    if not isinstance(channels, int) or getattr(op, "trans_a", False):
        return m.refuse("the channels are not known")
    _, chain = _affine_chain(m.graph, m.node("x"))
    while chain and not _can_move(_composed(chain, axis, channels), shifts):
        chain = chain[1:]
    composed = _composed(chain, axis, channels)
    if not chain or composed is None:
        return m.refuse("the last step is no factor per channel")
    a, c = composed
    scaled, bias = _scaled_inputs(op, w, a), m.root.inputs[2] if len(m.root.inputs) > 2 else None
    if scaled is None:
        return m.refuse("the weight loses something")
    if np.any(c):
        if isinstance(op, ConvTranspose) or any(getattr(op, "pads", ())) or not _no_auto_pad(op):
            return m.refuse("the shift would not reach the pads")
        if bias is not None and bias.const is None:
            return m.refuse("the bias is not constant")
        term = _shifted_outputs(op, w, c) + (0 if bias is None or bias.const is None else bias.const)
        return b(op, chain[0].inputs[0], scaled, term.astype(w.dtype), *m.root.inputs[3:])
    return b(op, chain[0].inputs[0], scaled, *m.root.inputs[2:])


def _can_move(composed: tuple[Array, Array] | None, shifts: bool) -> bool:
    if composed is None:
        return False
    a, c = composed
    return bool(np.all(np.abs(c) <= MOST_SHIFT * np.abs(a))) if shifts else not np.any(c)


def _shifted_outputs(op: Any, w: Array, c: Array) -> Array:
    """What a constant input ``c`` adds to each output, in f64."""
    if isinstance(op, MatMul):
        return np.asarray(op.alpha * (w.astype(F64) * (c if op.trans_b else c[:, None])).sum(-1 if op.trans_b else -2))
    per_group = w.reshape(op.group, -1, *w.shape[1:]).astype(F64)
    shift = c.reshape(op.group, 1, -1, *(1,) * (w.ndim - 2))
    return np.asarray((per_group * shift).sum(axis=tuple(range(2, per_group.ndim))).reshape(-1))


def _no_auto_pad(op: Any) -> bool:
    return getattr(op, "auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _scaled_inputs(op: Any, w: Array, a: Array) -> Array | None:
    """The weight with every input channel multiplied by ``a``; None when that loses something."""
    if isinstance(op, MatMul):
        return scaled_weight(w, a if op.trans_b else a[:, None])
    ones = (1,) * (w.ndim - 2)
    if isinstance(op, ConvTranspose):
        return scaled_weight(w, a.reshape(-1, 1, *ones))
    made = scaled_weight(w.reshape(op.group, -1, *w.shape[1:]), a.reshape(op.group, 1, -1, *ones))
    return None if made is None else made.reshape(w.shape)


def window_pads(m: Match, rank: int, layout: str) -> tuple[int, ...] | None:
    """Pads of the Pad bound to ``pad`` on the spatial axes, begins then ends; None when it pads anything else."""
    node = m.node("pad")
    pads, axes = (None if v is None else v.type.known for v in (*node.inputs, None, None, None)[1:4:2])
    has_axes = len(node.inputs) > 3 and node.inputs[3] is not None
    if pads is None or (has_axes and axes is None):
        return None
    total = rank + 2
    where = list(range(total)) if axes is None else [int(v) % total for v in axes]
    begins, ends = [0] * total, [0] * total
    for i, axis in enumerate(where):
        begins[axis], ends[axis] = int(pads[i]), int(pads[len(where) + i])
    first = 2 if layout == "NCHW" else 1
    spatial = range(first, first + rank)
    outside = [axis for axis in range(total) if axis not in spatial and (begins[axis] or ends[axis])]
    made = [begins[axis] for axis in spatial] + [ends[axis] for axis in spatial]
    return None if outside or min(made) < 0 else tuple(made)


def pad_value(node: Node) -> float | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    return 0.0 if value is None else scalar_of(value)


def with_pads(op: Any, extra: tuple[int, ...]) -> Any:
    pads = tuple(p + e for p, e in zip(op.pads or (0,) * len(extra), extra, strict=True))
    return dataclasses.replace(op, pads=pads, auto_pad="NOTSET")


_ZERO_PAD = Pat(Pad, (Pat(name="x"),), name="pad", sole_use=True, where=lambda op: op.mode == "constant")


@rule(Pat((Conv, AveragePool), (_ZERO_PAD,)))
def pad_into_window(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    rank = len(m["pad"].type.shape or ()) - 2
    extra = window_pads(m, rank, op.layout)
    if extra is None or not _no_auto_pad(op) or pad_value(m.node("pad")) != 0:
        return m.refuse("not a padding of the image by zeros")
    if isinstance(op, AveragePool):
        if op.ceil_mode or (any(op.pads) and not op.count_include_pad):
            return m.refuse("the pool counts its own pads differently")
        return b(dataclasses.replace(with_pads(op, extra), count_include_pad=True), m["x"])
    return b(with_pads(op, extra), m["x"], *m.root.inputs[1:])


@rule(Pat(MaxPool, (Pat(Pad, (Pat(name="x"),), name="pad", sole_use=True),)))
def pad_into_max_pool(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    node = m.node("pad")
    rank = len(op.kernel_shape)
    extra = window_pads(m, rank, op.layout)
    if extra is None or not _no_auto_pad(op) or len(m.root.outputs) > 1:
        return m.refuse("not a padding of the image")
    made = with_pads(op, extra)
    narrow = all(p < k for p, k in zip(made.pads, op.kernel_shape * 2, strict=True))
    if not narrow or any(d != 1 for d in op.dilations) or op.ceil_mode:
        return m.refuse("a window may lie in the padding")
    mode, value = node.op.mode, pad_value(node)  # type: ignore[attr-defined]
    never = mode == "constant" and value == -math.inf
    repeats = mode == "edge" and not any(op.pads)
    below = mode == "constant" and value == 0 and _not_negative(m["x"])
    return b(made, m["x"]) if never or repeats or below else m.refuse("the padding may be the greatest")


def _not_negative(x: Value) -> bool:
    op: Any = None if x.node is None else x.node.op
    if isinstance(op, (Relu, Sigmoid, HardSigmoid, Softmax)):
        return True
    return isinstance(op, Clip) and op.lo is not None and op.lo >= 0


RULES: tuple[Rule, ...] = (
    batch_norm_into_weights,
    split_batch_norm,
    affine_into_weights,
    affine_before_weights,
    pad_into_window,
    pad_into_max_pool,
)
LAX_RULES: tuple[Rule, ...] = (shift_before_weights,)
"""Of every level but ``strict``."""
