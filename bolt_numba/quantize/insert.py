"""Puts QuantizeLinear and DequantizeLinear around the layers of a float graph.

The operands of a layer are quantised.  All quantised readers of a tensor share one pair.  Where a convolution reads the
bytes, other operators read them too (the shortcut of a residual block), so that the tensor need not be stored twice.

The result of a convolution is quantised as well, behind a Relu or Clip if there is one, and so are sums, joins and
activations on the way to the next layer.  Other engines want it: one that finds no QuantizeLinear behind a convolution
computes it in float.  What a graph gives is not rounded, nor are results of other products: norms read floats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.shape import Concat, Reshape, Split, Transpose
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.pointwise import Add, Clip, HardSigmoid, Mul, Relu, Sigmoid
from bolt_numba.quantize.calibrate import Ranges
from bolt_numba.quantize.layers import BIAS, QuantLayer, Scheme
from bolt_numba.quantize.methods import KINDS, Affine, StoredWeight, affine, range_of, stored_bias, stored_weight


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
        return self.pair_of(layer, layer.operand(operand).name)

    def pair_of(self, layer: QuantLayer, tensor: str) -> Pair:
        """Scale and zero point of a tensor, as a layer beside it wishes."""
        scheme = self.scheme(layer)
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
    for value, (layer, tensor) in rounded_results(made, layers).items():
        scheme = plan.scheme(layer)
        if scheme.results and KINDS[scheme.activations].itemsize == 1 and tensor in plan.ranges.tensors:
            readers = [n for n in value.uses.times if n not in products]
            pair = plan.pair_of(layer, tensor)
            wanted[value.name] = [(n, i, pair) for n in readers for i, v in enumerate(n.inputs) if v is value]
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


def rounded_results(graph: Graph, layers: Mapping[Node, QuantLayer]) -> dict[Value, tuple[QuantLayer, str]]:
    """Values on the way from a convolution to another layer that are rounded, though no layer reads them.

    With each the layer whose wishes hold, and the tensor whose range it has.
    """
    read = {layer.operand(i).name: (layer, layer.operand(i).name) for layer in layers.values() for i in layer.inputs}
    needed = _before(graph, read)
    known: dict[Value, tuple[QuantLayer, str]] = {}
    for node in graph.nodes:
        given = [v for v in node.inputs if v is not None and v.const is None]
        sources = [known.get(v) or read.get(v.name) for v in given]
        if node in layers and isinstance(node.op, Conv):
            value = _limited(node.output)
            known[value] = layers[node], value.name
        elif isinstance(node.op, MOVES) and sources and sources[0] is not None:
            known.update(dict.fromkeys(node.outputs, sources[0]))
        elif isinstance(node.op, SPREADING) and given and None not in sources:
            value = _limited(node.output)
            known[value] = sources[0][0], value.name  # type: ignore[index]
    wanted = {_limited(node.output) for node in layers if isinstance(node.op, Conv)} | needed
    return {v: found for v, found in known.items() if v in wanted and v.name not in read and v not in graph.outputs}


SPREADING = (Add, Mul, Sigmoid, HardSigmoid, Concat)
"""Operators that engines have on bytes, if operands and results are bytes."""
MOVES = (MaxPool, Split, Reshape, Transpose)
"""Operators whose results are numbers of their operand."""


def _limited(value: Value) -> Value:
    """A value behind what limits it alone."""
    while len(value.uses.times) == 1:
        reader = next(iter(value.uses.times))
        if not isinstance(reader.op, (Relu, Clip)):
            break
        value = reader.output
    return value


def _before(graph: Graph, names: Collection[str]) -> set[Value]:
    """Tensors of these names, and what they are computed from."""
    left = [v for node in graph.nodes for v in node.outputs if v.name in names]
    seen = set(left)
    while left:
        node = left.pop().node
        new = {v for v in (node.inputs if node is not None else ()) if v is not None} - seen
        seen |= new
        left += new
    return seen


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
    return b(DequantizeLinear(0), data, scale)
