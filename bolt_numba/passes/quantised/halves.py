"""Arithmetic on f16 and bf16 is done in f32: each narrow value becomes a wide one, and no step converts it.

Kernels compute in f32 whatever the dtype, so a graph of narrow values would be converted around every node.  Here that
is done once: constants are widened, inputs and outputs keep their dtype.  Results are not rounded between nodes, as a
register would not round them.  Weights are packed narrow again, without loss where nothing was folded into them.

What only moves inputs and constants stays narrow, and so does what has no f32 form.  A graph that does no arithmetic
on narrow values, as one that rounds on purpose, stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph, Node, Value, graph_attributes
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.pointwise import Cast
from bolt_numba.passes.rewrite import nested
from bolt_numba.types import BF16, F16, F32, VALUES_WERE, AnyDType, Array, TensorType, dtype_name

HALVES = (F16, BF16)


def widen_halves(graph: Graph) -> bool:
    """Compute in f32 throughout a graph and its subgraphs; whether anything changed."""
    found = False
    for each in nested(graph):
        narrow = {v.type.dtype for node in each.nodes if _computes(node) for v in node.outputs if is_half(v)}
        if narrow:
            _Widening(each).run()
            found = True
            if len(narrow) == 1:
                graph.metadata[VALUES_WERE] = dtype_name(narrow.pop())
    return found


def _dtype(value: Value | None) -> AnyDType | None:
    """Of a tensor; lists and the like have none."""
    kind: Any = None if value is None else value.type
    return kind.dtype if isinstance(kind, TensorType) else None


def is_half(value: Value | None) -> bool:
    return _dtype(value) in HALVES


def _moves(node: Node) -> bool:
    return node.op.moves_memory or isinstance(node.op, Gather)


def _computes(node: Node) -> bool:
    return not _moves(node) and not isinstance(node.op, Cast) and not graph_attributes(node.op)


class _Widening:
    """Builds the nodes of a graph again.  made: by ``id`` of a narrow value that is no more, the f32 in its place."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, Builder(graph, [])
        self.made: dict[int, Value] = {}
        self.widened: dict[int, Value] = {}
        self.narrowed: dict[int, Value] = {}
        self.constants: dict[int, Array] = {}

    def run(self) -> None:
        replaced = []
        for node in self.graph.nodes:
            if isinstance(node.op, Cast) and is_half(node.output) and _is_f32(node.operands[0]):
                assert node.operands[0] is not None
                self.made[id(node.output)] = node.operands[0]
                replaced.append(node)
            elif isinstance(node.op, Cast) and node.op.to == F32 and id(node.operands[0]) in self.made:
                self.graph.replace_uses(node.output, self.made[id(node.operands[0])])
                replaced.append(node)
            elif self._takes(node) and self._widen(node):
                replaced.append(node)
            else:
                for i, v in enumerate(node.inputs):
                    if v is not None and id(v) in self.made:
                        node.set_input(i, self._narrow(v))
                self.b.nodes.append(node)
        self.graph.outputs = [self._narrow(v) if id(v) in self.made else v for v in self.graph.outputs]
        self.graph.nodes = self.b.nodes
        for node in replaced:
            node.detach()
        self.graph.drop_dead()

    def _takes(self, node: Node) -> bool:
        """Whether a node has narrow operands or results to be widened."""
        if node.op.has_side_state or graph_attributes(node.op) or (isinstance(node.op, Cast) and node.op.to in HALVES):
            return False
        halves = [v for v in node.inputs if is_half(v)]
        return bool(halves) and (not _moves(node) or any(id(v) in self.made for v in halves))

    def _widen(self, node: Node) -> bool:
        """Build a node on f32, unless its results then have other types than they should."""
        wide = [None if v is None else _wide_type(v.type) if is_half(v) else v.type for v in node.inputs]
        try:
            types = infer_types(node.op, wide)
        except BoltError:
            return False
        wanted = [(F32 if is_half(v) else v.type.dtype, v.type.shape) for v in node.outputs]
        if [(t.dtype, t.shape) for t in types] != wanted:
            return False
        made = self.b.node(node.op, *(self._wide(v) if is_half(v) else v for v in node.inputs))
        made.name = node.name
        for old, new in zip(node.outputs, made.outputs, strict=True):
            if is_half(old):
                self.made[id(old)] = new
            else:
                self.graph.replace_uses(old, new)
            new.name, old.name = old.name, new.name
        return True

    def _wide(self, value: Value | None) -> Value:
        """The f32 that stands for a narrow value."""
        assert value is not None
        if id(value) in self.made:
            return self.made[id(value)]
        if id(value) not in self.widened:
            if value.const is not None:
                if id(value.const) not in self.constants:
                    self.constants[id(value.const)] = _widened(value.const)
                self.widened[id(value)] = self.b.const(self.constants[id(value.const)], value.name)
            else:
                self.widened[id(value)] = self.b(Cast(F32), value)
        return self.widened[id(value)]

    def _narrow(self, value: Value) -> Value:
        """A narrow value again, for who wants it."""
        if id(value) not in self.narrowed:
            self.narrowed[id(value)] = self.b(Cast(value.type.dtype), self.made[id(value)])
        return self.narrowed[id(value)]


def _widened(array: Array) -> Array:
    """In f32; what repeats along an axis is stored once."""
    once = array[tuple(slice(1) if step == 0 else slice(None) for step in array.strides)]
    ask(F32.itemsize * once.size, "constant in f32")
    made = line_aligned(F32.itemsize * once.size).view(F32).reshape(once.shape)
    made[...] = once
    return made if made.shape == array.shape else np.broadcast_to(made, array.shape)


def _wide_type(t: TensorType) -> TensorType:
    made = TensorType(F32, t.shape)
    return made if t.known is None else made.with_value(t.known.astype(F32))


def _is_f32(value: Value | None) -> bool:
    return _dtype(value) == F32


__all__ = ["widen_halves"]
