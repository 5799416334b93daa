"""A part of a graph that a device of a plug-in computes: stage ``partition`` makes it of nodes that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bolt_numba.base.types import NestedType, TensorType
from bolt_numba.ops.control import ControlFlow, run_by_references
from bolt_numba.ops.evaluate import infer_types
from bolt_numba.ops.registry import Op, op, want_dtype
from bolt_numba.ops.shapes import want_dims

if TYPE_CHECKING:  # operators know nothing of graphs at run time
    from bolt_numba.ir.graph import Graph, Value

FEW_NUMBERS = 8
"""Floats of a value that may be sizes or scales; more are data."""


@op("Foreign")
class Foreign(Op):
    """What a graph computes, as one step of a device; any other device computes it by the graph's own nodes.

    Operands are the inputs of the graph, in order, and results are its outputs.  device: the name of the device that it
    was cut out for.  The graph has all its values as inputs or constants, its channels first, and nothing in it is
    fused: passes do not enter it.
    """

    graph: Graph
    device: str
    opaque = True

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if node.op.opaque or isinstance(node.op, ControlFlow):
                raise self.fail("graph", f"a {node.op.name} ({node.name})", "operators without graphs of their own")
        wanted = deciding(self.graph)
        places = tuple(i for i, value in enumerate(self.graph.inputs) if id(value) in wanted)
        if places:
            object.__setattr__(self, "value_inputs", places)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        self.fail_if(len(operands) != len(self.graph.inputs), "operands", len(operands), len(self.graph.inputs))
        for i, (value, t) in enumerate(zip(self.graph.inputs, operands, strict=True)):
            _want_type(self, f"operand {i}", t, value.type)
        known = dict(zip(map(id, self.graph.inputs), operands, strict=True))

        def types(values: Sequence[Value | None]) -> list[Any]:
            return [None if v is None else known.get(id(v), v.type) for v in values]

        for node in self.graph.nodes:
            known.update(zip(map(id, node.outputs), infer_types(node.op, types(node.operands)), strict=True))
        return tuple(types(self.graph.outputs))

    def reference(self, *operands: Any) -> tuple[Any, ...]:
        return tuple(run_by_references(self.graph, operands))


def _want_type(owner: Op, what: str, got: TensorType, wanted: TensorType) -> None:
    """Raise unless an operand may be an input of this type."""
    if isinstance(wanted, NestedType) or isinstance(got, NestedType):
        if type(got) is not type(wanted):
            raise owner.fail(what, got, wanted)
        return
    want_dtype(owner, what, got.dtype, wanted.dtype)
    if wanted.shape is None:
        return
    want_dims(owner, what, got, *(d if isinstance(d, int) else None for d in wanted.shape))
    sizes = got.shape or (None,) * len(wanted.shape)
    if any(isinstance(w, int) and not isinstance(d, int) for d, w in zip(sizes, wanted.shape, strict=True)):
        raise owner.fail(f"shape of {what}", got, f"the sizes of {wanted}, which nothing checks in a run")


def deciding(graph: Graph) -> set[int]:
    """By ``id``: values from which shapes are computed, by way of integers and of few floats."""
    wanted: set[int] = set()
    for node in reversed(graph.nodes):
        reached = not node.op.reads_only_shape and any(id(v) in wanted for v in node.outputs)
        for i, value in enumerate(node.operands):
            if value is not None and (i in node.op.value_inputs or (reached and _may_decide(value.type))):
                wanted.add(id(value))
    return wanted


def _may_decide(t: TensorType) -> bool:
    return t.dtype.kind in "iub" or (t.is_static and t.size <= FEW_NUMBERS)
