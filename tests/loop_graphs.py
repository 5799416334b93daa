"""Graphs with a Loop, as frameworks write them: what reads and writes rows, counts, and recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bolt_numba import ops
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.control import Loop
from bolt_numba.ops.registry import OPS
from bolt_numba.types import BOOL, F32, I64, Array, Sym, TensorType

ops.load_all()


def o(name: str, *args: Any, **attributes: Any) -> Any:
    maker: Any = OPS[name]
    return maker(*args, **attributes)


def i64(*numbers: int) -> Array:
    return np.array(numbers, I64)


Body = Callable[..., tuple[Any, Sequence[Value], Sequence[Value]]]
"""Builder, number, condition, carried values and captures -> condition, carried values, scanned ones."""


def looped(
    b: Builder, body: Body, trips: Any, carried: Sequence[Any], captures: Sequence[Value] = (), condition: Any = None,
    open_axes: Sequence[int | None] = (),
) -> Any:
    """A Loop whose body is built by ``body``.

    open_axes: of carried values, the axis whose size the body does not know.
    """
    values = [v if isinstance(v, Value) else b.const(v) for v in carried]
    g = Graph("body")
    inputs = [g.add_input("trip", TensorType(I64, ())), g.add_input("going_on", TensorType(BOOL, ()))]
    for number, v in enumerate(values):
        axis = open_axes[number] if number < len(open_axes) else None
        dims = [Sym(f"loop_{900 + number}") if i == axis else d for i, d in enumerate(v.type.shape or ())]
        kind = v.type if v.type.shape is None else TensorType(v.type.dtype, tuple(dims))
        inputs.append(g.add_input(f"carried{number}", kind))
    for number, v in enumerate(captures):
        inputs.append(g.add_input(f"capture{number}", v.type))
    again, after, scanned = body(Builder(g), *inputs)
    for i, v in enumerate([inputs[1] if again is None else again, *after, *scanned]):
        g.add_output(v, f"result{i}")
    return b.node(Loop(g, len(values)), trips, condition, *values, *captures).outputs


def written(b: Builder, x: Value, place: Value, row: Value, axis: int) -> Value:
    """A row put in by slices; place: i64 of shape [1]."""
    behind = b(o("Add"), place, i64(1))
    head = b(o("Slice"), x, i64(0), place, i64(axis))
    return b(o("Concat", axis), head, row, b(o("Slice"), x, behind, i64(np.iinfo(I64).max), i64(axis)))  # type: ignore[no-any-return]


def line(b: Builder, trip: Value, slope: int, offset: int) -> Value:
    """slope * trip + offset, of shape [1]."""
    return b(o("Add"), b(o("Mul"), b(o("Reshape"), trip, i64(1)), i64(slope)), i64(offset))  # type: ignore[no-any-return]


def row_at(b: Builder, x: Value, place: Value, axis: int) -> Value:
    return b(o("Slice"), x, place, b(o("Add"), place, i64(1)), i64(axis))  # type: ignore[no-any-return]


def matrix(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.integers(-8, 9, shape) / 16).astype(F32)
