"""The only way to make nodes: types are inferred, never given; small known integers are carried along.

Used by converters and rewrites.  It never optimises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

import numpy as np

from bolt_numba.base.types import Array, Dim, Sym, TensorType, type_of
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.dtypes import plain_bools
from bolt_numba.ops.evaluate import infer_types
from bolt_numba.ops.registry import Op

__all__ = ["Builder", "Operand", "infer_types", "merged_type"]

Operand: TypeAlias = "Value | Array | int | float | bool | None"
_MADE_UP = re.compile(r"_\d+\b")
"""What `ops.registry.fresh_dim` puts behind a symbol: such a dimension says nothing."""

if TYPE_CHECKING:

    class One(Protocol):
        """An operator with one output, as its `infer` says."""

        @property
        def infer(self) -> Callable[..., TensorType]: ...


def _merged_dim(old: Dim, new: Dim) -> Dim | None:
    """The more precise of two names for one dimension; None when they differ as far as can be told."""
    if old == new or (isinstance(new, Sym) and not isinstance(old, Sym)):
        return old
    if not isinstance(old, Sym):
        return None
    return new if not isinstance(new, Sym) or _MADE_UP.search(str(old)) else None


def merged_type(old: TensorType, new: TensorType) -> TensorType | None:
    """The more precise of two types of one value, ``new`` itself where that is it; None when they contradict."""
    if old.dtype != new.dtype:
        return None
    if old.shape == new.shape and (old.value is None or new.value is not None):
        return new
    if old.shape is None or new.shape is None:
        shape = old.shape if new.shape is None else new.shape
    else:
        if len(old.shape) != len(new.shape):
            return None
        dims = [_merged_dim(a, b) for a, b in zip(old.shape, new.shape, strict=True)]
        if any(d is None for d in dims):
            return None
        shape = tuple(d for d in dims if d is not None)
    return replace(new, shape=shape, value=old.value if new.value is None else new.value)


class Builder:
    """Adds nodes to ``graph`` (or to the list ``into``); call it with an operator and its operands.

    ``b(Relu(), x)`` returns the output value, a tuple of values when the operator has several outputs.  NumPy arrays
    and Python scalars among the operands become constants (a scalar takes the dtype of the first array operand).
    """

    def __init__(self, graph: Graph, into: list[Node] | None = None, prefix: str = "") -> None:
        self.graph = graph
        self.nodes = graph.nodes if into is None else into
        self.prefix = prefix

    def const(self, array: Any, name: str = "const") -> Value:
        data = plain_bools(np.asarray(array))
        return Value(self.graph.unique_name(name), type_of(data), const=data)

    def node(self, op: Op, *operands: Operand, name: str = "") -> Node:
        """Add a node and return it; operands as for a call."""
        like = next((x.type.dtype for x in operands if isinstance(x, Value)), None)
        values = [self._value(x, like) for x in operands]
        while len(values) > op.least_operands and values[-1] is None:
            values.pop()
        types = infer_types(op, [None if v is None else v.type for v in values])
        label = self.graph.unique_name(name or f"{self.prefix}{op.name}")
        node = Node(op, values, types, label)
        for out in node.outputs[1:]:
            out.name = self.graph.unique_name(out.name)
        self.nodes.append(node)
        return node

    @overload
    def __call__(self, op: One, *operands: Operand, name: str = "") -> Value: ...
    @overload
    def __call__(self, op: Op, *operands: Operand, name: str = "") -> Any: ...
    def __call__(self, op: Any, *operands: Operand, name: str = "") -> Any:
        node = self.node(op, *operands, name=name)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def _value(self, x: Operand, like: Any) -> Value | None:
        if x is None or isinstance(x, Value):
            return x
        if isinstance(x, (bool, int, float)):
            return self.const(np.array(x, dtype=like))
        return self.const(x)
