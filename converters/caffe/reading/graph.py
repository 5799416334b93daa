"""Layers in order become a graph: blobs by name, weights from the file or from their fillers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import F32, Array, Dim, Sym, TensorType
from bolt_numba.converters.builder import ForeignBuilder, ForeignNode
from bolt_numba.converters.caffe.binary import Blob
from bolt_numba.converters.caffe.message import Message, last, messages, number, text
from bolt_numba.converters.caffe.net import Layer, Net
from bolt_numba.converters.caffe.reading.attributes import attributes_of
from bolt_numba.converters.caffe.reading.registry import CAFFE, described
from bolt_numba.converters.nodes import NodeReader
from bolt_numba.converters.scope import Scope
from bolt_numba.ir.graph import Graph, Value

SHOWN_LAYERS = 5
"""Layers without weights that a message names."""


class LayerBuilder(ForeignBuilder):
    """The builder a reader gets: what the layer says besides bottoms and parameters, and its weights.

    layer: the layer.  blobs: how many the file of weights has for it, None where it has none.
    """

    def __init__(self, graph: Graph, node: ForeignNode, what: str, weights: LayerWeights) -> None:
        super().__init__(graph, node, what)
        self.layer: Layer = node.raw
        self._weights = weights
        found = weights.blobs.get(self.layer.name)
        self.blobs = None if found is None else len(found)

    def axis_of(self, x: Value, axis: int) -> int:
        """An axis of x, counted from the first; a scalar has none."""
        self.dim_of(x, axis)
        return super().axis_of(x, axis)

    def filler(self, name: str) -> Message | None:
        """The filler of this name among the layer's parameters."""
        for _, param in self.layer.parameters(self.what):
            for found in messages(param, name, self.what):
                return found
        return None

    def blob(self, index: int, shape: Sequence[Dim], filler: str = "", default: float | None = None) -> Value:
        """The layer's weights number ``index``; without any in a file, what the filler says.

        shape: one size may be -1 or a symbol where the file is to say it.  default: the value where there is no filler
        either; None: weights must be there.
        """
        sizes = tuple(-1 if isinstance(d, Sym) else int(d) for d in shape)
        return self.const(self.weights(index, sizes, filler, default), f"{self.layer.name}/blob{index}")

    def weights(self, index: int, shape: tuple[int, ...], filler: str = "", default: float | None = None) -> Array:
        """`blob` as an array."""
        found = self._weights.find(self.layer, index, self.what)
        if found is not None:
            return found.to_shape(shape, f"{self.what}: blob {index}")
        given = self.filler(filler) if filler else None
        if any(d < 0 for d in shape):
            given, default, shape = None, None, tuple(max(d, 0) for d in shape)
        ask(4 * math.prod(shape), f"{self.what}: blob {index}")
        made = _filled(given, shape, default, f"{self.what}: {filler}")
        if made is None:
            self._weights.missing.setdefault(self.layer.name)
            made = np.broadcast_to(np.zeros((), F32), shape)
        return self._weights.share(self.layer, index, made)


def _filled(filler: Message | None, shape: tuple[int, ...], default: float | None, what: str) -> Array | None:
    """What a filler makes, where that is no matter of chance; None where it is, or where there is nothing to say."""
    if filler is None:
        return None if default is None else np.full(shape, default, F32)
    kind = text(last(filler, "type", "constant"), what)
    if kind == "constant":
        return np.full(shape, number(last(filler, "value", 0.0), what), F32)
    if kind == "bilinear" and len(shape) == 4:
        steps = [_bilinear(n) for n in shape[2:]]
        return np.broadcast_to(np.outer(*steps).astype(F32), shape).copy()
    return None


def _bilinear(size: int) -> Array:
    """LayerWeights of an axis for enlarging by interpolation.  Source: BVLC's bilinear filler."""
    factor = math.ceil(size / 2)
    centre = (2 * factor - 1 - factor % 2) / (2 * factor)
    return np.asarray(1 - np.abs(np.arange(size) / factor - centre))


class LayerWeights:
    """Blobs of all layers: those of a file by the layer's name, and those that layers share by a name of their own.

    missing: names of layers that have none.
    """

    def __init__(self, blobs: dict[str, list[Blob]]) -> None:
        self.blobs = blobs
        self.shared: dict[str, Blob] = {}
        self.missing: dict[str, None] = {}

    def find(self, layer: Layer, index: int, what: str) -> Blob | None:
        """A blob of the file; what another layer shares under the same name, where the file has none for this one."""
        name = _shared_name(layer, index, what)
        own = self.blobs.get(layer.name)
        if own is not None and index < len(own):
            if name:
                return self.shared.setdefault(name, own[index])
            return own[index]
        if own is not None and name not in self.shared:
            raise InvalidModelError(f"{what}: weights: got {len(own)} blobs, wanted at least {index + 1}")
        return self.shared.get(name)

    def share(self, layer: Layer, index: int, made: Array) -> Array:
        """Keep what a filler made for the layers that share it."""
        name = _shared_name(layer, index, layer.name)
        if name:
            self.shared[name] = Blob(made.shape, made.reshape(-1))
        return made


def _shared_name(layer: Layer, index: int, what: str) -> str:
    found = list(messages(layer.fields, "param", what))
    return str(last(found[index], "name", "")) if index < len(found) else ""


class CaffeReader(NodeReader[Scope]):
    """Reads a net with its weights.  where: where weights were looked for, for the message that some are missing."""

    def __init__(self, file: str, blobs: dict[str, list[Blob]], where: str) -> None:
        super().__init__(file)
        self.weights, self.where = LayerWeights(blobs), where

    def describe(self, node: ForeignNode, scope: Scope) -> str:
        return described(node.op, node.label)

    def results(self, node: ForeignNode, inputs: list[Value | None], scope: Scope, what: str) -> Sequence[Value | None]:
        found = CAFFE.find("", node.op)
        if found is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        builder = LayerBuilder(scope.graph, node, what, self.weights)
        made: Any = found.read(builder, inputs, attributes_of(node.raw, found, what), what)
        return made if isinstance(made, (tuple, list)) else (made,)

    def unknown(self, net: Net) -> list[str]:
        """A line for each layer of a type that has no reader."""
        return [described(v.type, v.name or v.type) for v in net.layers if CAFFE.find("", v.type) is None]

    def read(self, net: Net) -> Graph:
        """The graph of a net.  Raises InvalidModelError where layers lack weights."""
        scope = Scope(Graph(net.name or self.file))
        for name, shape in net.inputs.items():
            self.add_input(scope, name, TensorType(F32, _input_shape(name, shape)))
        scope.reserve(top for layer in net.layers for top in layer.tops)
        nodes = (ForeignNode(v.name or v.type, v.type, v.bottoms, v.tops, v) for v in net.layers)
        self.read_nodes(nodes, scope)
        missing = list(self.weights.missing)
        if missing:
            rest = f" and {len(missing) - SHOWN_LAYERS} more" if len(missing) > SHOWN_LAYERS else ""
            names = ", ".join(f"'{name}'" for name in missing[:SHOWN_LAYERS])
            raise InvalidModelError(f"{self.file}: weights of layers {names}{rest}: got none{self.where}")
        self.add_outputs(scope, net.outputs)
        return scope.graph


def _input_shape(name: str, shape: tuple[int, ...] | None) -> tuple[Dim, ...] | None:
    if shape is None:
        return None
    return tuple(Sym(f"{name}_{i}") if d < 0 else d for i, d in enumerate(shape))
