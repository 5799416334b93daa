"""Nodes alike are planned once: the layers of a network repeat, with other weights.

Two nodes are alike when their operators are equal and their operands have equal types, constants in the same places,
and small constants (axes, shapes, exponents) the same content.  Types and steps of the first then serve the second.
What is packed of weights stands in steps as a reference.  Where content of large constants decided something, nodes
are alike that read the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from bolt_numba.base.follow import UnpackedError
from bolt_numba.base.records import record
from bolt_numba.ir.graph import Node
from bolt_numba.kernels.registry import KEYED_ELEMENTS, Entry, In, Step, is_exact, unseen
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.packs import MakerContext, NodeContext
from bolt_numba.runtime.slots import Slot
from bolt_numba.types import TensorType

MOST_CHOICES = 1024
"""Ways to plan a node that a region keeps."""


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
class Selection:
    """How a node was planned: what a node like it takes over.

    steps: None when its device runs it without.  looked: large constants whose content decided something.  exact:
    which makers were exact enough for the weights, of those that were asked.
    """

    types: tuple[TensorType, ...]
    device: Device
    steps: list[Step] | None
    runner: str
    inplace: tuple[int, ...] = ()
    states: frozenset[tuple[int, int]] = frozenset()
    looked: frozenset[int] = frozenset()
    exact: Mapping[Entry, bool] = field(default_factory=dict)

    def holds(self, op: Op, slots: Sequence[Slot | None], session: MakerContext) -> bool:
        """Whether the same makers are exact enough for these operands, too, and no others."""
        if not self.exact:
            return True
        context = NodeContext(session, slots)
        ins = unseen([None if s is None else s.type for s in slots], context, self.types)
        try:
            return all(is_exact(entry, op, ins, context) is found for entry, found in self.exact.items())
        except UnpackedError:  # no plan has asked that yet
            return False

    @property
    def direct(self) -> Collection[int]:
        """Operands of which steps read more than what is packed."""
        if self.steps is None:
            return ANY
        return {a.index for step in self.steps for a in step.args.values() if isinstance(a, In)}


ANY = range(1 << 30)
"""All operands."""


class Choices(dict[Hashable, Selection]):
    """How nodes were planned, by what nodes alike have in common.

    looks: where content decides, of which large constants: those of a node are a part of its key then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.looks: dict[Hashable, frozenset[int]] = {}

    def found(self, alike: Hashable, op: Op, slots: Sequence[Slot | None], session: MakerContext) -> Selection | None:
        """How a node like this one was planned."""
        key = self._key(alike, slots)
        how = None if key is None else self.get(key)
        return how if how is not None and how.holds(op, slots, session) else None

    def remember(self, alike: Hashable, slots: Sequence[Slot | None], made: Selection) -> None:
        """Keep a way to plan a node; all others go where there are too many."""
        if len(self) >= MOST_CHOICES:
            self.clear()
            self.looks.clear()
        if made.looked:
            self.looks[alike] = made.looked | self.looks.get(alike, frozenset())
        key = self._key(alike, slots)
        if key is not None:
            self[key] = made

    def _key(self, alike: Hashable, slots: Sequence[Slot | None]) -> Hashable | None:
        looks = self.looks.get(alike)
        if looks is None:
            return alike
        sources = [slot.source for i, slot in enumerate(slots) if i in looks and slot is not None]
        return None if None in sources else (alike, *map(id, sources))
