"""Puts QuantizeLinear and DequantizeLinear around the layers of a float graph.

The operands of a layer are quantised, and its result is not.  So a sum, an activation or a norm behind it computes in
float from what was not rounded, and what a fused kernel stores as bytes is rounded once.  All quantised readers of a
tensor share one pair.  Where a convolution reads the bytes, other operators read them too (the shortcut of a residual
block), so that the tensor need not be stored twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.layers.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.quantize.calibrate import Ranges
from bolt_numba.quantize.layers import BIAS, QuantLayer, Scheme
from bolt_numba.quantize.methods import (
    KINDS,
    Affine,
    StoredWeight,
    affine,
    range_of,
    stored_bias,
    stored_weight,
)
from bolt_numba.types import F32, Array


@record(frozen=True)
class Pair:
    """How one tensor is quantised for layers of equal wishes."""

    tensor: str
    affine: Affine


class QuantPlan:
    """What each layer would be stored as, computed once for all graphs that a search makes."""

    def __init__(
        self, layers: Sequence[QuantLayer], schemes: Mapping[str, Scheme | None], ranges: Ranges, correct: bool
    ) -> None:
        self.layers = [layer for layer in layers if schemes[layer.name] is not None and _is_seen(layer, ranges)]
        self.schemes, self.ranges, self.correct = schemes, ranges, correct
        self._weights: dict[tuple[int, int | None, str], StoredWeight] = {}
        self._affines: dict[tuple[str, str, bool, str], Affine] = {}

    def scheme(self, layer: QuantLayer) -> Scheme:
        found = self.schemes[layer.name]
        assert found is not None, "layers that stay float have been left out"
        return found

    def pair(self, layer: QuantLayer, operand: int) -> Pair:
        """Scale and zero point of an operand of a layer."""
        scheme, tensor = self.scheme(layer), layer.operand(operand).name
        key = tensor, scheme.activations, scheme.symmetric, scheme.method
        if key not in self._affines:
            dtype = KINDS[scheme.activations]
            low, high = range_of(self.ranges.tensors[tensor], scheme.method, dtype)
            self._affines[key] = affine(low, high, dtype, scheme.symmetric)
        return Pair(tensor, self._affines[key])

    def weight(self, layer: QuantLayer) -> StoredWeight | None:
        """The integers of a layer's weight; None for a product of two activations."""
        const = layer.weights
        if const is None:
            return None
        scheme = self.scheme(layer)
        key = id(const), layer.axis if scheme.per_channel else None, scheme.weights
        if key not in self._weights:
            self._weights[key] = stored_weight(const, *key[1:])
        return self._weights[key]

    def bias_change(self, layer: QuantLayer) -> Array | None:
        """What rounding the weight adds to the mean of each result, which the bias takes away; None: not known."""
        mean = self.ranges.means.get(layer.operand(layer.inputs[0]).name) if layer.inputs else None
        stored, const = self.weight(layer), layer.weights
        if not self.correct or mean is None or stored is None or const is None:
            return None
        return added_mean(layer, stored.real - const, mean)


def added_mean(layer: QuantLayer, error: Array, mean: Array) -> Array | None:
    """[k]: the products of an error of the weight with the mean of each channel of the input, summed."""
    op = layer.node.op
    if isinstance(op, Conv):
        taps = error.reshape(*error.shape[:2], -1).sum(axis=2)
        groups = mean.reshape(op.group, -1)
        return np.asarray(np.einsum("gkc,gc->gk", taps.reshape(op.group, -1, taps.shape[1]), groups).reshape(-1))
    if isinstance(op, ConvTranspose) or error.ndim != 2 or layer.axis is None:
        return None
    return np.asarray(getattr(op, "alpha", 1.0) * (mean @ (error if layer.axis == 1 else error.T)), error.dtype)


def _is_seen(layer: QuantLayer, ranges: Ranges) -> bool:
    """Whether calibration saw values of all operands."""
    return all(layer.operand(i).name in ranges.tensors for i in layer.inputs)


def with_pairs(graph: Graph, plan: QuantPlan, chosen: Collection[QuantLayer] | None = None) -> Graph:
    """A copy of the float graph in which the chosen layers of the plan are quantised; None: all."""
    made = graph.clone()
    twins = dict(zip(graph.nodes, made.nodes, strict=True))
    layers = {twins[layer.node]: layer for layer in plan.layers if chosen is None or layer in chosen}
    wanted: dict[str, list[tuple[Node, int, Pair]]] = {}
    for node, layer in layers.items():
        for i in layer.inputs:
            wanted.setdefault(layer.operand(i).name, []).append((node, i, plan.pair(layer, i)))
    products = {twins[layer.node] for layer in plan.layers}
    nodes, made.nodes = made.nodes, []
    b = Builder(made)
    for value in list(made.inputs):
        _quantise_reads(b, value, wanted.get(value.name, ()), products)
    for node in nodes:
        if node in layers:
            _quantise_weight(b, node, layers[node], plan)
        made.nodes.append(node)
        for value in node.outputs:
            _quantise_reads(b, value, wanted.get(value.name, ()), products)
    return made


def _quantise_reads(b: Builder, value: Value, readers: Sequence[tuple[Node, int, Pair]], products: set[Node]) -> None:
    """Have the readers read the value from integers, others too where a convolution does."""
    others = [node for node in value.uses.times if node not in products]
    results: dict[Pair, Value] = {}
    for _, _, pair in readers:
        if pair not in results:
            scale, zero = pair.affine.scale_array, pair.affine.zero_array
            stored = b(QuantizeLinear(), value, scale, zero, name=f"{value.name}/quantize")
            results[pair] = b(DequantizeLinear(), stored, scale, zero, name=f"{value.name}/dequantize")
    for node, operand, pair in readers:
        node.set_input(operand, results[pair])
    if len(results) == 1 and any(isinstance(node.op, Conv) for node, _, _ in readers):
        for node in others:
            node.replace_input(value, next(iter(results.values())), node.inputs.count(value))


def _quantise_weight(b: Builder, node: Node, layer: QuantLayer, plan: QuantPlan) -> None:
    """Weight and bias of one layer as integers behind DequantizeLinear."""
    stored = plan.weight(layer)
    if stored is None or layer.weight is None:
        return
    name = layer.operand(layer.weight).name
    zeros = np.zeros(stored.scale.shape, stored.data.dtype)
    made = b(DequantizeLinear(stored.axis), b.const(stored.data, f"{name}/stored"), stored.scale, zeros)
    node.set_input(layer.weight, made)
    bias = node.inputs[BIAS] if len(node.inputs) > BIAS else None
    if bias is not None and bias.const is None:
        return
    change = plan.bias_change(layer)
    if bias is None:
        if change is None or not isinstance(node.op, Conv):
            return
        whole: Array = -change.astype(F32)
        node.operands.extend([None] * (BIAS + 1 - len(node.operands)))
    else:
        assert bias.const is not None, "it has been tested"
        whole = bias.const if change is None else (bias.const - change).astype(F32)
    node.set_input(BIAS, _integer_bias(b, layer, plan, whole, stored.scale))


def _integer_bias(b: Builder, layer: QuantLayer, plan: QuantPlan, bias: Array, w_scale: Array) -> Value:
    """The bias in the steps of the sums where it fits into i32, else as it is."""
    found = stored_bias(bias, plan.pair(layer, layer.inputs[0]).affine.scale, w_scale)
    if found is None or getattr(layer.node.op, "alpha", 1.0) != 1.0:
        return b.const(bias)
    data, scale = found
    made: Value = b(DequantizeLinear(0), data, scale)
    return made
