"""The only way to make nodes: types are inferred, never given; small known integers are carried along.

Used by converters and rewrites.  It never optimises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.budget import Budget, within
from bolt_numba.errors import BoltError, ShapeError
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.dtypes import plain_bools
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.ops.shapes import want_possible
from bolt_numba.types import Array, Dim, Sym, TensorType, type_of

Operand: TypeAlias = "Value | Array | int | float | bool | None"
MAX_KNOWN = 1024
"""Elements up to which a value is computed during inference (shapes, axes, scales; never weights)."""
MAX_WORK = 1 << 20
"""Elementary operations that one such value may take: a small result can hide an endless loop or a large product."""


def infer_types(op: Op, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    """Output types of ``op``, with the values of small outputs whose inputs are all known.

    Raises ShapeError or DTypeError as `Op.infer` does, for an omitted operand that the operator needs, and for results
    that cannot be; any other failure of `infer` becomes a ShapeError.
    """
    for t in inputs:
        if t is None:
            _want_operands(op, inputs)
            break
    try:
        types = result_tuple(op.infer(*inputs))
    except BoltError:
        raise
    except Exception as error:
        got = ", ".join("-" if t is None else str(t) for t in inputs)
        raise ShapeError(f"{op.name}: cannot infer the result of {op} for ({got}): {error}") from error
    is_open = not op.has_side_state and len(inputs) > 0
    for made in types:
        want_possible(op, made)
        is_open &= made.value is None
    return _with_values(op, inputs, types) if is_open else types


def _want_operands(op: Op, inputs: Sequence[TensorType | None]) -> None:
    """Raise ShapeError for an omitted operand whose annotation in `Op.infer` does not allow None."""
    kinds = [(name, kind) for name, kind in op.infer.__annotations__.items() if name != "return"]
    for i, t in enumerate(inputs):
        name, kind = kinds[min(i, len(kinds) - 1)] if kinds else ("", "")
        if t is None and kind == "TensorType":
            raise op.fail(f"operand {i} ({name})", "none", "one")


def _with_values(
    op: Op, inputs: Sequence[TensorType | None], types: tuple[TensorType, ...]
) -> tuple[TensorType, ...]:
    for t in inputs:
        if t is not None and (t.value is None or t.value.size > 64 * MAX_KNOWN):
            return types
    for t in types:
        if not t.is_static or t.size > MAX_KNOWN:
            return types
    args: list[Array | None] = []
    symbolic = False
    for t in inputs:
        if t is None:
            args.append(None)
            continue
        known = t.known
        symbolic |= known is None
        args.append(t.value if known is None else known)
    if symbolic and not op.on_symbols:
        return types
    try:
        with within(Budget(MAX_WORK)):
            values = result_tuple(op.reference(*args))
    except Exception:  # a value that cannot be computed here is simply not known; the run will report the error
        return types
    if symbolic:
        return tuple(
            t.with_value(_tidy(v)) if np.shape(v) == t.shape and _is_small(v) else t
            for t, v in zip(types, values, strict=True)
        )
    return tuple(
        t.with_value(v) if np.shape(v) == t.shape and v.dtype == t.dtype else t
        for t, v in zip(types, values, strict=True)
    )


def _is_small(value: Any) -> bool:
    """Whether integers beside symbols fit into 64 bits: those of Python have no end."""
    return all(not isinstance(v, int) or -(1 << 63) <= v < 1 << 64 for v in np.asarray(value, object).flat)


def _tidy(value: Any) -> Array:
    made = np.empty(np.shape(value), dtype=object)
    made[...] = value
    return made


_MADE_UP = re.compile(r"_\d+\b")
"""What `ops.registry.fresh_dim` puts behind a symbol: such a dimension says nothing."""


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
        while values and values[-1] is None:
            values.pop()
        types = infer_types(op, [None if v is None else v.type for v in values])
        label = self.graph.unique_name(name or f"{self.prefix}{op.name}")
        node = Node(op, values, types, label)
        for out in node.outputs[1:]:
            out.name = self.graph.unique_name(out.name)
        self.nodes.append(node)
        return node

    def __call__(self, op: Op, *operands: Operand, name: str = "") -> Any:
        node = self.node(op, *operands, name=name)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def _value(self, x: Operand, like: Any) -> Value | None:
        if x is None or isinstance(x, Value):
            return x
        if isinstance(x, (bool, int, float)):
            return self.const(np.array(x, dtype=like))
        return self.const(x)
