"""Nodes alike are planned once: the layers of a network repeat, with other weights.

Two nodes are alike when their operators are equal and their operands have equal types, constants in the same places,
and small constants (axes, shapes, exponents) the same content.  Types and steps of the first then serve the second;
only what was packed from constants is packed anew.  This holds for makers registered ``by_types``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from bolt_numba.base.follow import UnpackedError
from bolt_numba.base.records import record
from bolt_numba.errors import ShapeError
from bolt_numba.ir.graph import Node
from bolt_numba.kernels.registry import KEYED_ELEMENTS, Context, Entry, Step, is_exact
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Device
from bolt_numba.types import Array, TensorType


def number_operators(nodes: Iterable[Node]) -> dict[int, int]:
    """``id(op)`` to a number that equal operators share; operators that cannot be compared have none."""
    numbers: dict[int, int] = {}
    first: dict[Op, tuple[int, str]] = {}
    for node in nodes:
        op = node.op
        if op.has_side_state or id(op) in numbers:
            continue
        try:
            seen = first.get(op)
        except TypeError:  # an attribute without a hash
            continue
        text = "" if seen is None else repr(op)  # equal is not the same: 0.0 and -0.0, 1 and True
        if seen is None:
            numbers[id(op)] = len(first)
            first[op] = len(first), repr(op)
        elif seen[1] == text:
            numbers[id(op)] = seen[0]
    return numbers


def node_key(
    number: int, ins: Sequence[TensorType | None], named: Callable[[Any], Hashable] | None = None
) -> Hashable | None:
    """What nodes alike have in common; None where too little is known to say.  named: gives what stands for a shape."""
    parts: list[Hashable] = [number]
    for t in ins:
        if t is None:
            parts.append(None)
            continue
        if not t.is_static:
            return None
        value, shape = t.value, t.shape if named is None else named(t.shape)
        if value is None:
            parts.append((t.dtype, shape))
        elif value.dtype != t.dtype:
            return None
        elif value.size <= KEYED_ELEMENTS:
            parts.append((t.dtype, shape, value.tobytes()))
        else:
            parts.append((t.dtype, shape, True))
    return tuple(parts)


@record(eq=False)
class Packed:
    """An argument of a step that was packed of an operand: which step and field, which operand, and how."""

    step: int
    field: str
    operand: int
    layout: Hashable
    make: Callable[[Array], Array]


@record(eq=False)
class Selection:
    """How a node was planned: what a node like it takes over.

    steps: None when its device runs it without.  direct: operands of which more is read than packs.  others: makers of
    some of the steps, of which sizes decide which run (`runtime.opaque`).  refused: makers that were not exact enough.
    """

    types: tuple[TensorType, ...]
    device: Device
    steps: list[Step] | None
    runner: str
    inplace: tuple[int, ...] = ()
    states: frozenset[tuple[int, int]] = frozenset()
    by_types: bool = False
    entry: Entry | None = None
    direct: frozenset[int] = frozenset()
    packs: Sequence[Packed] = ()
    others: Sequence[Entry] = ()
    refused: Sequence[Entry] = ()

    def holds(self, op: Op, ins: Sequence[TensorType | None], context: Context) -> bool:
        """Whether the same kernels are exact enough for these operands, too."""
        entries = self.others if self.entry is None else [self.entry, *self.others]
        try:
            return all(entry.error is None or is_exact(entry, op, ins, context) for entry in entries) and not any(
                is_exact(entry, op, ins, context) for entry in self.refused
            )
        except UnpackedError:  # no plan has asked that yet
            return False

    def steps_for(self, ins: Sequence[TensorType | None], context: Context) -> list[Step] | None:
        """The steps with what is packed from these operands."""
        if self.steps is None or not self.packs:
            return self.steps
        arrays: dict[int, dict[str, Array]] = {}
        for p in self.packs:
            known, first = ins[p.operand].value, self.steps[p.step].args[p.field]  # type: ignore[union-attr]
            packed = context.packed(known, p.layout, p.make)  # type: ignore[arg-type]
            if packed.nbytes < first.nbytes:  # type: ignore[union-attr]
                what = f"{self.steps[p.step].kernel.name}: packed operand {p.operand}"
                raise ShapeError(f"{what}: got {packed.nbytes} bytes, wanted {first.nbytes}")  # type: ignore[union-attr]
            arrays.setdefault(p.step, {})[p.field] = packed
        made = list(self.steps)
        for number, given in arrays.items():
            made[number] = made[number].with_arrays(given)
        return made
