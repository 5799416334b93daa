"""Numbers that decide a shape only where they outgrow a buffer, as the length of a cache that has room to spare.

An operator names them (`Op.bounds`).  Where the number and the buffer are inputs of a region, one plan serves all
numbers that fit; only a greater one is planned by its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import TensorType
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.slots import INPUT, Slot


@record(frozen=True)
class Bound:
    """Positions of inputs of a region: the number decides where it is greater than the buffer's axis is long."""

    number: int
    buffer: int
    axis: int


def bounds_of(inputs: Sequence[Value], nodes: Sequence[Node], resolve: Callable[[Value], Value]) -> Iterator[Bound]:
    """The bounds between inputs of a region."""
    positions = {id(v): i for i, v in enumerate(inputs)}
    for node in nodes:
        for index in node.op.bounds:
            found = bound_of(node, index, positions, resolve)
            if found is not None:
                yield found


def bound_of(
    node: Node, index: int, positions: dict[int, int], resolve: Callable[[Value], Value]
) -> Bound | None:
    """The bound of one operand; None where it or its buffer is computed."""
    if index not in node.op.bounds or index >= len(node.inputs):
        return None
    buffer, axis = node.op.bounds[index]
    values = node.inputs[index], node.inputs[buffer]
    places = [None if v is None else positions.get(id(resolve(v))) for v in values]
    return None if places[0] is None or places[1] is None else Bound(places[0], places[1], axis)


def outgrown(bounds: Sequence[Bound], arrays: Sequence[Any]) -> dict[int, bytes]:
    """Content of the numbers that do not fit, or mean nothing, by position."""
    found: dict[int, bytes] = {}
    for bound in bounds:
        number = arrays[bound.number]
        if number.size != 1 or not 0 <= number.item() <= arrays[bound.buffer].shape[bound.axis]:
            found[bound.number] = number.tobytes()
    return found


def fitting(
    op: Op, types: Sequence[TensorType | None], slots: Sequence[Slot | None], bounds: Sequence[Bound]
) -> list[TensorType | None]:
    """Operand types for inference: numbers that are known to fit stand at their bound."""
    made = list(types)
    numbers = {bound.number for bound in bounds}
    for index, (buffer, axis) in op.bounds.items():
        slot, t, room = (slots[index], types[index], types[buffer]) if index < len(types) else (None, None, None)
        if slot is None or t is None or room is None or t.known is not None or slot.kind != INPUT:
            continue
        if slot.index in numbers:
            made[index] = t.with_value(np.full(t.dims, room.dims[axis], t.dtype))
    return made
