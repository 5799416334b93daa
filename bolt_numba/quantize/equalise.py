"""Moves the differences between channels to where they do less harm, before anything is rounded.

Cross-layer equalisation: where one convolution reads the other's result through Relu or nothing, a factor of a channel
may move from the filters of the first to those of the second.  Both then have ranges alike.  Source: Nagel et al.,
Data-Free Quantization Through Weight Equalization and Bias Correction, 2019.

Smoothing: a product's input is divided by a factor for each channel that the rows of its weights are multiplied by, so
that a few channels with great values do not spoil the steps of all.  Source: Xiao et al., SmoothQuant, 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import LeakyRelu, Mul, Relu
from bolt_numba.quantize.calibrate import Ranges
from bolt_numba.quantize.layers import BIAS, QuantLayer

ROUNDS = 20
"""Times that all pairs are equalised; most of it happens in the first few."""
SETTLED = 1e-3
"""Greatest change of a factor at which it is done."""
HOMOGENEOUS = (Relu, LeakyRelu)
"""Activations f with f(s * x) = s * f(x) for positive s."""


def equalised(graph: Graph) -> tuple[Graph, list[str]]:
    """A copy with ranges of channels alike, and a note of how many pairs of convolutions that took."""
    made = graph.clone()
    pairs = [(a, c) for a in made.nodes if (c := _reader(made, a)) is not None]
    for _ in range(ROUNDS):
        changes = [_equalise(made, first, second) for first, second in pairs]
        if max(changes, default=0.0) < SETTLED:
            break
    return made, [f"equalised {len(pairs)} pairs of convolutions"]


def _reader(graph: Graph, node: Node) -> Node | None:
    """The convolution that alone reads a convolution's result, directly or behind an activation."""
    if not _is_plain(node):
        return None
    following = graph.sole_use(node.output)
    if following is not None and isinstance(following.op, HOMOGENEOUS):
        following = graph.sole_use(following.output)
    if following is None or not _is_plain(following) or following.inputs[0] is None:
        return None
    channels, taken, group = len(_weights(node)), _weights(following).shape[1], _group(following)
    return following if group in (1, channels) and taken * group == channels else None


def _weights(node: Node) -> Array:
    """The constant of a convolution or product."""
    w = node.operands[1]
    assert w is not None, "they have weights"
    assert w.const is not None, "which are constants"
    return w.const


def _group(node: Node) -> int:
    assert isinstance(node.op, Conv)
    return node.op.group


def _is_plain(node: Node) -> bool:
    """A convolution with constants of its own."""
    if not isinstance(node.op, Conv) or node.op.activation is not None or node.op.residual:
        return False
    rest = [v for v in node.inputs[1:] if v is not None]
    return all(v.const is not None and v.type.dtype == F32 and len(v.uses) == 1 for v in rest)


def _equalise(graph: Graph, first: Node, second: Node) -> float:
    """Make the ranges of one pair alike; returns the greatest change of a factor."""
    w1, w2 = _weights(first), _weights(second)
    side = 0 if _group(second) > 1 else 1
    reach1, reach2 = _reach(w1, 0), _reach(w2, side)
    usable = (reach1 > 0) & (reach2 > 0)
    factor = np.where(usable, np.sqrt(reach1 * reach2) / np.where(usable, reach1, 1), 1).astype(F32)
    b = Builder(graph)
    first.set_input(1, b.const(w1 * _along(factor, w1.ndim, 0), "weight"))
    second.set_input(1, b.const(w2 / _along(factor, w2.ndim, side), "weight"))
    bias = first.inputs[BIAS] if len(first.inputs) > BIAS else None
    if bias is not None and bias.const is not None:
        first.set_input(BIAS, b.const(bias.const * factor, "bias"))
    return float(np.max(np.abs(np.log(factor)), initial=0.0))


def _reach(w: Array, axis: int) -> Array:
    return np.asarray(np.max(np.abs(w), axis=tuple(i for i in range(w.ndim) if i != axis)))


def _along(factor: Array, rank: int, axis: int) -> Array:
    return factor.reshape([-1 if i == axis else 1 for i in range(rank)])


# --- smoothing -------------------------------------------------------------------------------------------------------

AUTO = "auto"
"""The strength that divides the few channels beyond a bound, where that is estimated to pay."""
BOUNDS = 24
"""Bounds tried."""
PAYS = 0.5
"""Of the estimated noise, what has to be left for the multiplication to be worth while."""
STEPS, WEIGHT_LEVELS = 255, 127


def smoothed(graph: Graph, layers: Sequence[QuantLayer], ranges: Ranges, strength: float | str) -> tuple[Graph, int]:
    """A copy in which inputs of products are divided by factors for each channel, and how many inputs that are.

    strength: 0 leaves all differences with the inputs, 1 moves them all to the weights; 0.5 is usual.  ``"auto"``: see
    `factors_beyond`.
    """
    made = graph.clone()
    twins = dict(zip(graph.nodes, made.nodes, strict=True))
    readers: dict[Value, list[Node]] = {}
    for layer in layers:
        node = twins[layer.node]
        x, op = node.inputs[0], node.op
        if not isinstance(op, MatMul) or layer.weight is None or op.trans_a or x is None:
            continue
        if _weights(node).ndim == 2 and x.name in ranges.reaches:
            readers.setdefault(x, []).append(node)
    nodes, made.nodes = made.nodes, []
    b, count = Builder(made), 0
    for value in list(made.inputs):
        count += _smooth(b, value, readers.get(value, ()), ranges, strength)
    for node in nodes:
        made.nodes.append(node)
        for value in node.outputs:
            count += _smooth(b, value, readers.get(value, ()), ranges, strength)
    return made, count


def _smooth(b: Builder, x: Value, readers: Sequence[Node], ranges: Ranges, strength: float | str) -> bool:
    if not readers:
        return False
    rows = [_by_row(node) for node in readers]
    reach, whole = ranges.reaches[x.name].astype(np.float64), np.concatenate(rows, axis=1).astype(np.float64)
    if isinstance(strength, str):
        factor = factors_beyond(reach, ranges.powers[x.name].astype(np.float64), whole)
        if factor is None:
            return False
    else:
        factor = even_factors(reach, np.max(np.abs(whole), axis=1), strength)
    scale = factor.astype(F32)
    divided = b(Mul(), x, (1 / factor).astype(F32), name=f"{x.name}/smooth")
    for node, w in zip(readers, rows, strict=True):
        op: Any = node.op
        wide = w * scale[:, None]
        node.set_input(0, divided)
        node.set_input(1, b.const(np.ascontiguousarray(wide.T) if op.trans_b else wide, "weight"))
    return True


def even_factors(reach: Array, weight: Array, strength: float) -> Array:
    """SmoothQuant's: greatest magnitudes of inputs and rows of weights, to the power of the strength and the rest."""
    usable = (reach > 0) & (weight > 0)
    factor = np.ones(reach.shape)
    factor[usable] = reach[usable] ** strength / weight[usable] ** (1 - strength)
    factor[usable] /= np.exp(np.mean(np.log(factor[usable]))) if usable.any() else 1.0
    return factor


def factors_beyond(reach: Array, power: Array, weight: Array) -> Array | None:
    """Factors that bring channels down to a bound: the one of least noise; None where none pays.

    reach, power: [K] greatest magnitude and mean square of each channel · weight: [K, N].  The noise of a result is
    that of inputs, rounded in steps of their range, and that of weights, rounded in steps of their columns.
    Transformers have a channel or two of great values, often in one token alone.
    """
    squares, most = np.sum(weight * weight, axis=1), float(reach.max(initial=0.0))
    if not most:
        return None

    def noise(factor: Array) -> float:
        step = 2 * np.max(reach / factor) / STEPS
        steps = np.max(np.abs(weight) * factor[:, None], axis=0) / WEIGHT_LEVELS
        return float(step**2 * np.sum(factor**2 * squares) + np.sum(steps**2) * np.sum(power / factor**2))

    tried = [np.maximum(1.0, reach / bound) for bound in most * np.geomspace(1.0, 0.02, BOUNDS)]
    noises = [noise(factor) for factor in tried]
    best = int(np.argmin(noises))
    return tried[best] if noises[best] < PAYS * noises[0] else None


def _by_row(node: Node) -> Array:
    """The weight [K, N] of a product."""
    op: Any = node.op
    return _weights(node).T if op.trans_b else _weights(node)
