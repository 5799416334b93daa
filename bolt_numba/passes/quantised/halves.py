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
from bolt_numba.base.errors import BoltError
from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.types import BF16, F16, F32, VALUES_WERE, AnyDType, Array, TensorType, dtype_name
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph, Node, Value, graph_attributes
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.pointwise import Cast
from bolt_numba.passes.rewrite import nested

HALVES = (F16, BF16)


def widen_halves(graph: Graph) -> bool:
    """Compute in f32 throughout a graph and its subgraphs; whether anything changed."""
    found = False
    for each in nested(graph):
        narrow = {v.type.dtype for node in each.nodes if _computes(node) for v in node.outputs if is_half(v)}
        if narrow:
            Retyping(each, HALVES, F32).run()
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


class Retyping:
    """Builds the nodes of a graph again, with values of dtype ``new`` where they were of one of ``old``.

    made: by ``id`` of an old value that is no more, the new one in its place.  Nodes that `takes` refuses keep their
    dtypes, and so do inputs and outputs of the graph.
    """

    def __init__(self, graph: Graph, old: tuple[AnyDType, ...], new: AnyDType) -> None:
        self.graph, self.b, self.old, self.new = graph, Builder(graph, []), old, new
        self.made: dict[int, Value] = {}
        self.changed: dict[int, Value] = {}
        self.restored: dict[int, Value] = {}
        self.constants: dict[int, Array] = {}

    def run(self) -> None:
        replaced = []
        for node in self.graph.nodes:
            source = node.operands[0] if node.operands else None
            if isinstance(node.op, Cast) and self.is_old(node.output) and _dtype(source) == self.new:
                assert source is not None
                self.made[id(node.output)] = source
                replaced.append(node)
            elif isinstance(node.op, Cast) and node.op.to == self.new and id(source) in self.made:
                self.graph.replace_uses(node.output, self.made[id(source)])
                replaced.append(node)
            elif self.takes(node) and self._retype(node):
                replaced.append(node)
            else:
                for i, v in enumerate(node.inputs):
                    if v is not None and id(v) in self.made:
                        node.set_input(i, self._restored(v))
                self.b.nodes.append(node)
        self.graph.outputs = [self._restored(v) if id(v) in self.made else v for v in self.graph.outputs]
        self.graph.nodes = self.b.nodes
        for node in replaced:
            node.detach()
        self.graph.drop_dead()

    def is_old(self, value: Value | None) -> bool:
        return _dtype(value) in self.old

    def takes(self, node: Node) -> bool:
        """Whether a node has old operands or results to be replaced."""
        is_back = isinstance(node.op, Cast) and node.op.to in self.old
        if is_back or node.op.has_side_state or graph_attributes(node.op):
            return False
        found = [v for v, c in zip(node.inputs, self.changes(node), strict=True) if c]
        return bool(found) and (not _moves(node) or any(id(v) in self.made for v in found))

    def changes(self, node: Node) -> list[bool]:
        """Whether each operand of a node that `takes` accepts is replaced."""
        stay = node.op.narrow_inputs if self.old == HALVES else ()
        olds = [(i, v) for i, v in enumerate(node.inputs) if self.is_old(v)]
        changed = {i for i, v in olds if i not in stay or _dtype(v) != F16 or id(v) in self.made}
        return [i in changed for i in range(len(node.inputs))]

    def _retype(self, node: Node) -> bool:
        """Build a node on new values, unless its results then have other types than they should."""
        changes = self.changes(node)
        ins = [
            None if v is None else self._type(v.type) if c else v.type
            for v, c in zip(node.inputs, changes, strict=True)
        ]
        try:
            types = infer_types(node.op, ins)
        except BoltError:
            return False
        for t, v in zip(types, node.outputs, strict=True):
            is_as_it_was = t.dtype == v.type.dtype and (not self.is_old(v) or bool(node.op.narrow_inputs))
            if t.shape != v.type.shape or not (is_as_it_was or (self.is_old(v) and t.dtype == self.new)):
                return False
        made = self.b.node(node.op, *(self._new(v) if c else v for v, c in zip(node.inputs, changes, strict=True)))
        made.name = node.name
        for old, new in zip(node.outputs, made.outputs, strict=True):
            if self.is_old(old) and new.type.dtype == self.new:
                self.made[id(old)] = new
            else:
                self.graph.replace_uses(old, new)
            new.name, old.name = old.name, new.name
        return True

    def _new(self, value: Value | None) -> Value:
        """What stands for an old value."""
        assert value is not None
        if id(value) in self.made:
            return self.made[id(value)]
        if id(value) not in self.changed:
            if value.const is not None:
                if id(value.const) not in self.constants:
                    self.constants[id(value.const)] = _converted(value.const, self.new)
                self.changed[id(value)] = self.b.const(self.constants[id(value.const)], value.name)
            else:
                self.changed[id(value)] = self.b(Cast(self.new), value)
        return self.changed[id(value)]

    def _restored(self, value: Value) -> Value:
        """An old value again, for who wants it."""
        if id(value) not in self.restored:
            self.restored[id(value)] = self.b(Cast(value.type.dtype), self.made[id(value)])
        return self.restored[id(value)]

    def _type(self, t: TensorType) -> TensorType:
        made = TensorType(self.new, t.shape)
        return made if t.known is None else made.with_value(t.known.astype(self.new))


def _converted(array: Array, dtype: AnyDType) -> Array:
    """In another dtype; what repeats along an axis is stored once."""
    once = array[tuple(slice(1) if step == 0 else slice(None) for step in array.strides)]
    ask(dtype.itemsize * once.size, f"constant in {dtype_name(dtype)}")
    made = line_aligned(dtype.itemsize * once.size).view(dtype).reshape(once.shape)
    with np.errstate(over="ignore"):
        made[...] = once
    return made if made.shape == array.shape else np.broadcast_to(made, array.shape)
