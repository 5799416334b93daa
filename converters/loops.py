"""The body of a loop, read for what is true of its carried values in every iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bolt_numba.base.types import NestedType, TensorType, dtype_name
from bolt_numba.converters.builder import ForeignBuilder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.control import Loop, joined
from bolt_numba.ops.registry import fresh_dim

T = TypeVar("T")
TRIES = 4
"""Readings of a loop's body after which the shapes of its carried values count as unknown."""


def stable_body(
    b: ForeignBuilder, carried: Sequence[Value], read: Callable[[list[TensorType]], tuple[Graph, T]]
) -> tuple[Graph, T]:
    """The body for types that hold before and after each iteration: dimensions that change become symbols.

    read: makes the body of a `Loop` for these types of its carried values.
    """
    types = [v.type.with_value(None) for v in carried]
    for _ in range(TRIES):
        graph, more = read(types)
        results = [v.type for v in graph.outputs[1 : 1 + len(types)]]
        if len(results) != len(types):
            raise b.invalid("outputs of the body", len(graph.outputs), f"at least {1 + len(types)}")
        stable = [_stable(b, t, made) for t, made in zip(types, results, strict=True)]
        if stable == types:
            return graph, more
        types = stable
    return read([*map(_shapeless, types)])


def _shapeless(t: TensorType) -> TensorType:
    if isinstance(t, NestedType):
        return replace(t, element=_shapeless(t.element))
    return TensorType(t.dtype, None)


def _stable(b: ForeignBuilder, taken: TensorType, given: TensorType) -> TensorType:
    """What is true of a carried value before and after an iteration."""
    if isinstance(taken, NestedType) or isinstance(given, NestedType):
        both = joined(Loop.name, taken, given)
        return taken if both == taken else _shapeless(both)
    if taken.dtype != given.dtype:
        raise b.invalid("dtype of a carried value", dtype_name(given.dtype), dtype_name(taken.dtype))
    if taken.shape is None or given.shape is None or len(taken.shape) != len(given.shape):
        return TensorType(taken.dtype, None)
    dims = zip(taken.shape, given.shape, strict=True)
    return TensorType(taken.dtype, tuple(x if x == y or _is_free(x) else fresh_dim("loop") for x, y in dims))


def _is_free(dim: Any) -> bool:
    """Whether a dimension is a symbol that `_stable` made, which stands for any size."""
    return str(dim).startswith("loop_") and str(dim)[5:].isdigit()
