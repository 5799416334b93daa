"""How nodes run: one memo, and what fills it.

Nodes alike are planned once: the layers of a network repeat, with other weights.  Two nodes are alike when their
operators are equal and their operands have equal types, constants in the same places, and small constants (axes,
shapes, exponents) the same content.  Given and steps of the first then serve the second.  What is packed of weights
stands in steps as a reference.  Where content of large constants decided something, nodes are alike that read the same
ones.

A node that is not in the memo takes the best of the makers of its devices.  Where sizes are followed, it has the steps
of all that were used, and sizes choose.  What no plan of the session has packed, or no kernel was compiled for, is not
made for a tape: sizes that would choose it fail a guard, and get a plan of their own.  The next tape then has it, too.

A plan that waits for no kernel has other makers stand in, or the reference.  These are in no memo.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeAlias

from bolt_numba.base.follow import Followed, LostError, Trail, UnpackedError, value_of
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowed
from bolt_numba.base.types import TensorType
from bolt_numba.ir.graph import Node
from bolt_numba.kernels.compiles import LackingError
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.registry import Entry, Given, Operands, Step, is_exact
from bolt_numba.kernels.unseen import KEYED_ELEMENTS, is_unseen
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.copies import NOT_WORTH_IT
from bolt_numba.runtime.device import HOST, Device
from bolt_numba.runtime.opaque import chosen, steps_of
from bolt_numba.runtime.packs import MakerContext, NodeContext, packed_by, unseen
from bolt_numba.runtime.slots import Slot
from bolt_numba.runtime.stand_ins import STANDS_IN

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
    which makers were exact enough for the weights, of those that were asked.  lacking: kernels for which it stands in.
    """

    types: tuple[TensorType, ...]
    device: Device
    steps: list[Step] | None
    runner: str
    inplace: tuple[int, ...] = ()
    states: frozenset[tuple[int, int]] = frozenset()
    looked: frozenset[int] = frozenset()
    exact: Mapping[Entry, bool] = field(default_factory=dict)
    lacking: Sequence[Any] = ()

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


class Chooser:
    """Says how the nodes of one plan run.

    operators: numbers of these (`number_operators`).  waits: for kernels; else others stand in for what is not there.
    trail: of the sizes, where these are followed.
    """

    def __init__(
        self, context: MakerContext, memo: Choices, operators: Mapping[int, int], waits: bool, trail: Trail | None
    ) -> None:
        self.context, self.memo, self.operators = context, memo, operators
        self.waits, self.trail = waits, trail

    def alike(self, op: Op, types: Sequence[TensorType | None]) -> Hashable | None:
        """What the memo knows a node by; None where it cannot."""
        number = self.operators.get(id(op))
        return None if number is None else node_key(number, types, None if self.trail is None else self.trail.text)

    def known(self, alike: Hashable | None, op: Op, slots: Sequence[Slot | None]) -> Selection | None:
        """How a node like this one ran."""
        if alike is None:
            return None
        try:
            how = self.memo.found(alike, op, slots, self.context)
        except LackingError:  # of what tells how exact a maker is: who chooses comes to it again
            return None
        return None if how is None else self._now(how, self.context.devices, op, slots)

    def choose(
        self, alike: Hashable | None, op: Op, slots: Sequence[Slot | None], types: Sequence[TensorType | None],
        outs: tuple[TensorType, ...], is_near: bool = False,
    ) -> Selection:  # fmt: skip
        """The best way to run a node, which the memo gets.  is_near: in the host's memory, whatever is preferred."""
        devices = [d for d in self.context.devices if d.memory is HOST or not is_near]
        try:
            how = self._best(devices, op, slots, types, outs)
        except LackingError as error:
            if self.waits:
                raise
            how = self._stand_in(devices, op, slots, outs, [error.kernel])
        else:
            if alike is not None and all(t.value is None for t in outs):
                self.memo.remember(alike, slots, how)
            how = self._now(how, devices, op, slots)
        return replace(how, runner=how.runner + NOT_WORTH_IT) if is_near else how

    def _best(
        self, devices: Sequence[Device], op: Op, slots: Sequence[Slot | None], types: Sequence[TensorType | None],
        outs: tuple[TensorType, ...],
    ) -> Selection:  # fmt: skip
        """The steps of the best maker."""
        context, tuner = NodeContext(self.context, slots), self.context.tuner
        ins = unseen(types, context, outs)
        for device in devices:
            ways = ways_of(device, op, ins, context, self.trail is not None)
            if ways or device.runs(op):
                break
        if not ways:
            made = Selection(outs, device, None, device.runs(op))
        elif tuner is None:
            made = all_of(ways, context, lambda entry: self._selection(op, ins, outs, device, entry, context))
        else:
            entry, tuned = tuner.choose(op, ins, outs, device, ways[0][1], context)
            made = self._selection(op, ins, outs, device, entry, tuned)
        deciding = {i for i, t in enumerate(ins) if i in op.value_inputs and t is not None and is_unseen(t.value)}
        made.looked, made.exact = frozenset(context.looked | deciding), context.exact
        return made

    def _selection(
        self, op: Op, ins: Operands, outs: tuple[TensorType, ...], device: Device, entry: Entry, context: NodeContext
    ) -> Selection:
        """The steps of a maker."""
        context.device = device.pack_form
        steps = self._steps(entry, op, ins, outs, context)
        steps = [s for s in map(partial(self._decided, device), steps) if s.when is not False]
        if context.threads == 1:  # as measured may be best in a session of several, too
            for step in steps:
                step.parallel = False
        states = frozenset() if entry.states is None else entry.states(op, ins)
        return Selection(outs, device, steps, entry.name, entry.inplace, states)

    def _decided(self, device: Device, step: Step) -> Step:
        """A step as it is where sizes may choose whether it runs, else with a guard that says so."""
        if type(step.when) is bool or (self.context.chooses and not device.lacking([step])):
            return step
        return replace(step, when=bool(step.when))

    def _steps(
        self, entry: Entry, op: Op, ins: Operands, outs: tuple[TensorType, ...], context: NodeContext
    ) -> list[Step]:
        try:
            return made_steps(entry, op, ins, outs, context)
        except LostError as error:
            if self.trail is None or isinstance(error, UnpackedError):
                raise
        return steps_of(lambda ins, outs: made_steps(entry, op, ins, outs, context), ins, outs)

    # --- what stands in ----------------------------------------------------------------------------------------------

    def _now(self, how: Selection, devices: Sequence[Device], op: Op, slots: Sequence[Slot | None]) -> Selection:
        """A way to run a node, or what stands in as long as its kernels are lacking."""
        lacking = [] if self.waits else self._lacking(how, slots)
        return self._stand_in(devices, op, slots, how.types, lacking) if lacking else how

    def _lacking(self, how: Selection, slots: Sequence[Slot | None]) -> list[Any]:
        """Kernels of steps that are not there, those that pack, too, as far as that is known."""
        steps, packs = how.steps or (), self.context.packs
        wanted = packed_by(steps) if packs.lacking else ()
        packing = filter(None, [packs.lacks(packed, slots, how.device.pack_form) for packed in wanted])
        return [*packing] or (how.device.lacking(steps) if steps else [])

    def _stand_in(
        self, devices: Sequence[Device], op: Op, slots: Sequence[Slot | None], outs: tuple[TensorType, ...],
        lacking: list[Any],
    ) -> Selection:  # fmt: skip
        """The best of the other makers whose kernels are there, else the reference."""
        ins = [None if s is None else s.type for s in slots]
        for device in devices:
            context = NodeContext(self.context, slots)
            shown = unseen(ins, context, outs)
            for entry in device.candidates(op, shown, context):
                try:
                    how = self._selection(op, shown, outs, device, entry, context)
                except LackingError:
                    continue
                if not self._lacking(how, slots):
                    return replace(how, runner=how.runner + STANDS_IN, lacking=lacking)
        return Selection(outs, devices[-1], None, f"reference{STANDS_IN}", lacking=lacking)


# --- several makers ---------------------------------------------------------------------------------------------------


Ways: TypeAlias = "list[tuple[Any, Entry]]"
"""Makers that may run a node, each with when it does: one of them; none where a device has none."""


def ways_of(device: Device, op: Op, ins: Given, context: NodeContext, is_followed: bool) -> Ways:
    """How a device may run a node; is_followed: on a trail."""
    try:
        return _ways(device, op, ins, context)
    except LostError:
        if not is_followed:
            raise
        entry = chosen(ins, lambda plain: device.select(op, plain, context))
        return [] if entry is None else [(True, entry)]


def _ways(device: Device, op: Op, ins: Given, context: NodeContext) -> Ways:
    made, rest = [], True  # type: tuple[Ways, Any]
    for accepts, entry in device.ways(op, ins, context):
        may_decide = context.session.chooses and type(accepts) is Followed
        if not may_decide and not accepts:
            continue
        if not _may_be_exact(entry, op, ins, context):
            continue
        if not may_decide:
            made.append((rest, entry))
            return made
        made.append((accepts & rest, entry))
        rest = (accepts ^ True) & rest
    if rest:
        made.clear()
    return made


def _may_be_exact(entry: Entry, op: Op, ins: Given, context: NodeContext) -> bool:
    """Whether it is not known that a maker's results are not exact enough for these weights."""
    try:
        return entry.error is None or is_exact(entry, op, ins, context)
    except UnpackedError:  # nobody has asked that yet
        return True


def all_of(ways: Ways, context: NodeContext, select: Callable[[Entry], Selection]) -> Selection:
    """How a node runs one of several ways."""
    at = 0 if len(ways) == 1 else next(number for number, (when, _) in enumerate(ways) if value_of(when))
    kept = [(ways[at][0], select(ways[at][1]))]
    for number, (when, entry) in enumerate(ways):
        made = None if number == at else _tried(entry, select, kept[0][1])
        if made is not None:
            kept.append((when, made))
        elif number != at:
            bool(when)  # a guard
    if len(kept) == 1:
        return kept[0][1]
    steps = [replace(step, when=when & step.when) for when, how in kept for step in how.steps or ()]
    return replace(kept[0][1], steps=steps)


def _tried(entry: Entry, select: Callable[[Entry], Selection], like: Selection) -> Selection | None:
    """Another way to run a node for which all is there."""
    try:
        made = select(entry)
    except (LostError, Exception) as error:  # weights that were not packed, or it does not work for these very sizes
        swallowed(f"maker {entry.name!r}", error, LostError, ArithmeticError, ValueError)
        return None
    is_alike = (made.inplace, made.states) == (like.inplace, like.states)
    return None if not is_alike or made.device.lacking(made.steps or ()) else made
