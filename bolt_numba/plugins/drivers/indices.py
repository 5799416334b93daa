"""Operators that read or write where an operand says, for SDKs that do not hold its content to what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.types import Dim, Sym
from bolt_numba.ir.graph import Node

Bounds: TypeAlias = "Callable[[Any, Sequence[Dim], int], tuple[Sequence[Dim], bool]]"
"""By the operator, the shape of what it reads or writes and the numbers in a tuple: sizes of the axes, and whether
negative numbers count from their ends."""
_ONE_AXIS: Bounds = lambda op, dims, depth: ([dims[op.axis]], True)  # noqa: E731 - as its neighbours below
INDICES: Mapping[str, tuple[int, int, Bounds]] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), (1, 0, _ONE_AXIS)),
    "GatherND": (1, 0, lambda op, dims, depth: (dims[op.batch_dims : op.batch_dims + depth], True)),
    "ScatterND": (1, 0, lambda op, dims, depth: (dims[:depth], True)),
    "ReverseSequence": (1, 0, lambda op, dims, depth: ([_after(dims[op.time_axis])], False)),
    "RoiAlign": (2, 0, lambda op, dims, depth: ([dims[0]], False)),
    "RotaryEmbedding": (3, 1, lambda op, dims, depth: ([dims[0]], False)),
}
"""By operator: the operand that says where, the one in which that is, and what it has to keep to."""


def _after(size: Dim) -> Dim:
    """A length may be all of an axis."""
    return size + 1


def reach(node: Node) -> tuple[int, Sequence[Dim], bool] | None:
    """Which operand says where, the sizes to which its numbers have to keep, and whether negative ones wrap around.

    None for an operator that reads and writes nothing by content, or whose ranks are not known.
    """
    found = INDICES.get(node.op.name)
    if found is None or len(node.inputs) <= found[0]:
        return None
    place, where, bounds = found
    indices, data = node.inputs[place], node.inputs[where]
    if indices is None or data is None or data.type.shape is None or indices.type.shape is None:
        return None
    depth = indices.type.shape[-1] if indices.type.shape else 1
    if not isinstance(depth, int):
        return None
    return place, *bounds(node.op, data.type.shape, depth)


def loose(node: Node, sizes_come: bool) -> str:
    """Why a node might read or write beyond its operands; "" where its indices are constants that do not.

    sizes_come: whether it is asked once more when all sizes are known; else an index of an axis without one is loose.
    """
    found = INDICES.get(node.op.name)
    if found is None or len(node.inputs) <= found[0]:
        return ""
    indices = node.inputs[found[0]]
    if indices is None:
        return ""
    known, reached = indices.type.known, reach(node)
    if known is None:
        return "indices that only the run tells, which it does not hold to their axis"
    if reached is None or not known.size:
        return ""
    _, sizes, wraps = reached
    if any(isinstance(size, Sym) for size in sizes):
        return "" if sizes_come else "indices of an axis whose size only the run tells"
    limits = np.array(sizes, np.int64)
    inside = (known >= (-limits if wraps else 0)) & (known < limits)
    return "" if inside.all() else "indices beyond their axis"
