"""Regions: the nodes that plans are made of, with what is known of them for all shapes of the inputs.

Some numbers decide a shape only where they outgrow a buffer, as the length of a cache that has room to spare.
An operator names them (`Op.bounds`).  Where the number and the buffer are inputs of a region, one plan serves all
numbers that fit; only a greater one is planned by its value.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import NestedType, TensorType, only_in_python
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.kernels.data_sized import DataSized
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.evaluate import Amounts
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.choices import Choices, number_operators
from bolt_numba.runtime.slots import INPUT, Slot

if TYPE_CHECKING:
    from bolt_numba.runtime.packing import Packing


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


def bound_of(node: Node, index: int, positions: dict[int, int], resolve: Callable[[Value], Value]) -> Bound | None:
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


VALUE_ELEMENTS = 64
"""Elements up to which an input that decides shapes is planned per value."""
VALUE_FLOATS = 8
"""The same for floats, such as the scales of a Resize: a larger input of floats is data."""


@record(eq=False)
class Region:
    """A list of nodes with named boundary values; plans of it are cached by the shapes of its inputs.

    alias: values that stand for others (the operands and results of inlined branches).
    """

    inputs: list[Value]
    nodes: list[Node]
    outputs: list[Value]
    alias: dict[int, Value] = field(default_factory=dict)
    known: dict[int, TensorType] = field(default_factory=dict)
    by_value: frozenset[int] = frozenset()
    operators: dict[int, int] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()
    plans: int = 0
    """How often it was planned."""
    choices: Choices = field(default_factory=Choices)
    """How nodes were planned, for nodes alike, of other shapes of the inputs, too: not all depends on these."""
    packing: tuple[Packing | None, ...] = ()
    """What runs rows of unequal lengths together, None where nothing does; empty until somebody asks."""

    @property
    def is_nested(self) -> bool:
        """Whether an input may be a list, a dictionary or None."""
        return any(isinstance(v.type, NestedType) for v in self.inputs)

    def __post_init__(self) -> None:
        self.by_value = frozenset(self._deciding_inputs())
        self.bounds = tuple(bounds_of(self.inputs, self.nodes, self.resolve))
        self.operators = number_operators(self.nodes)

    def resolve(self, value: Value) -> Value:
        return resolved(value, self.alias)

    def _deciding_inputs(self) -> Iterable[int]:
        """Positions of inputs whose content reaches a shape or a branch condition."""
        wanted: set[int] = set()
        positions = {id(v): i for i, v in enumerate(self.inputs)}
        for node in reversed(self.nodes):
            for i, raw in enumerate(node.inputs):
                if raw is None:
                    continue
                by_value = i in node.op.value_inputs and bound_of(node, i, positions, self.resolve) is None
                deciding = by_value or any(id(v) in wanted for v in node.outputs)
                # What Shape reads does not matter: only its dimensions do, and those are in the key already.
                if deciding and not node.op.reads_only_shape:
                    wanted.add(id(self.resolve(raw)))
            if isinstance(node.op, ControlFlow):
                wanted |= _deciding_captures(node.op, node, self)
        for position, value in enumerate(self.inputs):
            small = value.type.dtype.kind in "iub" or (value.type.is_static and value.type.size <= VALUE_FLOATS)
            if id(value) in wanted and small and not only_in_python(value.type):
                yield position


def _deciding_captures(op: ControlFlow, node: Node, region: Region) -> set[int]:
    found: set[int] = set()
    for branch in op.branches:
        inner = Region(branch.inputs, branch.nodes, branch.outputs)
        for position in inner.by_value:
            operand = node.inputs[1 + position]
            if operand is not None:
                found.add(id(region.resolve(operand)))
    return found


@record(eq=False)
class Cut:
    """Where a plan ends because a shape depends on data, or a value is no number.

    node: runs by ``compute``; without one ``alone``, planned for the content of the operands that decide its shapes;
    without either by its reference (or, an If, by its branch).  reads: its operands; rest: what runs afterwards.
    amounts: what the reference takes, where the plan knows.  is_nested: all its results are lists, dictionaries...
    """

    node: Node
    reads: list[Slot | None]
    rest: Region
    compute: DataSized | None = None
    alone: Region | None = None
    amounts: Amounts | None = None
    is_nested: bool = False

    def is_told(self, data: Container[int]) -> bool:
        """Whether it is known what data decided here (`runtime.stops.Data`)."""
        deciding = [v for i, v in enumerate(self.node.operands) if i in self.node.op.value_inputs and v is not None]
        return id(self.node) in data or any(id(resolved(v, self.rest.alias)) in data for v in deciding)


def resolved(value: Value, alias: dict[int, Value]) -> Value:
    """What a value stands for."""
    while id(value) in alias:
        value = alias[id(value)]
    return value


def region_of(graph: Graph) -> Region:
    return Region(list(graph.inputs), list(graph.nodes), list(graph.outputs))
