"""Stops: where a tape reads integers that data decide, and goes on with them as it does with sizes.

A plan ends where a shape depends on data.  A tape does not: it has steps up to there, and behind them a *stop*, which
reads how long a result is, or the content that decides a shape, into numbers of its own.  What follows is a further
*stage* of the tape.  Where a guard on these numbers fails, a runner of its own goes on from what there is at the stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.follow import LostError, Trail, is_followed
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, F64, I32, I64, TensorType, type_of
from bolt_numba.ir.graph import Node, Value
from bolt_numba.kernels.extents import check_steps
from bolt_numba.kernels.registry import In, Out
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.copies import Copy
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.region import Region, resolved
from bolt_numba.runtime.slots import CONST, TEMP, Job, Slot

REPLANNED, DONE = 1, 2
"""How a plan goes on at a node: it is planned with what is known now; it has its steps."""
Data = Mapping[int, Sequence[Sequence[int]]]
"""What data last decided: by id of a node the shapes of its results, by id of a value that decides its content."""


class Read(Op):
    """Read integers for a tape.  Only plans have it."""

    name = "Read"


@record(eq=False)
class Stop:
    """Where a tape reads integers that data decide, and what is to be run where it does not hold for them.

    job: reads operand 0.  names: of the integers in the trail.  needed: slots of what ``rest`` is given.  arena: bytes
    of it in the stage that follows.
    """

    job: Job
    names: list[str]
    needed: list[Slot]
    rest: Region
    arena: Any = 0

    def wanted(self) -> list[Any]:
        """All numbers that say where what is needed is."""
        made = [self.arena]
        for slot in self.needed:
            made += slot.type.dims
            if slot.const is not None:
                made += slot.const.reshape(-1).tolist()
            else:
                root, offset = slot.root()
                made += [offset, root.place, slot.row]
        return made


def behind(
    rest: Sequence[Node], made: Sequence[Value], region: Region, alias: dict[int, Value],
    slot_of: Callable[[Value], Slot | None],
) -> tuple[Region, list[Value]]:  # fmt: skip
    """The region of the nodes behind a place in another one, and which values there it needs.

    made: what the node there makes, whose values come last among its inputs.
    """
    own = {id(resolved(v, alias)) for v in made} | {id(v) for n in rest for v in n.outputs}
    needed: dict[int, Value] = {}
    known: dict[int, TensorType] = {}
    for raw in [*(v for n in rest for v in n.inputs if v is not None), *region.outputs]:
        value = resolved(raw, alias)
        if id(value) in own or value.const is not None:
            continue
        slot = slot_of(value)
        assert slot is not None
        if slot.kind == CONST and not is_followed(slot.const):
            known[id(value)] = type_of(slot.const)  # type: ignore[arg-type]
        else:
            needed[id(value)] = value
    return Region([*needed.values(), *made], list(rest), list(region.outputs), dict(alias), known), [*needed.values()]


class Stops:
    """Makes the stops of one plan, whose lists and tables it is given.

    found: those made so far.
    """

    def __init__(
        self, region: Region, trail: Trail | None, data: Data, alias: dict[int, Value], slots: dict[int, Slot],
        jobs: list[Job], slot_of: Callable[[Value], Slot | None], devices: Sequence[Device],
    ) -> None:  # fmt: skip
        self.region, self.trail, self.data, self.alias = region, trail, data, alias
        self.slots, self.jobs, self.slot_of, self.devices = slots, jobs, slot_of, devices
        self.found: list[Stop] = []

    def goes_on(
        self, node: Node, ins: list[Slot | None], types: Sequence[TensorType | None], queue: Sequence[Node]
    ) -> int:
        """Go on at a node where a plan would end; 0 where that cannot be.  ins: get what is known of them."""
        found = self.data.get(id(node))
        if self.trail is None or isinstance(node.op, ControlFlow):
            return 0
        device = self._device()
        sized = None if found is None else device.sized(node.op, types)
        if sized is None or found is None:
            return self._content(node, ins, queue)
        check_steps(node.op, sized.steps, types, [*sized.results, _COUNT])
        rooms = [Slot(v.name, t, TEMP, is_room=True) for v, t in zip(node.outputs, sized.results, strict=True)]
        count = Slot(f"{node.name} (count)", _COUNT, TEMP)
        self.jobs.append(Job(node.name, node.op, device, ins, [*rooms, count], sized.steps, node.op.name))
        length = next(found[i][axis] for i, axis in enumerate(sized.axes) if axis is not None)
        (number,) = self._numbers([length])
        for value, room, axis in zip(node.outputs, rooms, sized.axes, strict=True):
            dims = tuple([number if at == axis else d for at, d in enumerate(room.type.dims)])
            self.slots[id(value)] = Slot(room.name, TensorType(room.type.dtype, dims), TEMP, base=room)
        self._stop(queue, node.outputs, count)
        return DONE

    def _content(self, node: Node, ins: list[Slot | None], queue: Sequence[Node]) -> int:
        """Read the operands that decide."""
        done = 0
        for i in [i for i in node.op.value_inputs if i < len(ins)]:
            slot, operand = ins[i], node.operands[i]
            if slot is None or operand is None or slot.type.known is not None:
                continue
            cells = self._whole(slot)
            if cells is not None:
                ins[i], done = Slot(slot.name, slot.type.with_value(cells), slot.kind, slot.index, base=slot), REPLANNED
                continue
            value = resolved(operand, self.alias)
            (content,) = self.data.get(id(value), [()])
            if slot.type.dtype not in (I64, I32) or slot.type.size != len(content) or not content:
                return 0
            cells, done = np.empty(len(content), object), REPLANNED
            cells[:] = self._numbers(content)
            self._stop([node, *queue], (), slot)
            known = slot.type.with_value(cells.reshape(slot.type.dims))
            ins[i] = self.slots[id(value)] = Slot(slot.name, known, slot.kind, slot.index, base=slot)
        return done

    def _whole(self, slot: Slot) -> Any:
        """The integers made of sizes of which an operand was converted, where its dtype holds them; else None.

        Only who asks sees them: with floats another node may compute what it would not with integers.
        """
        root = slot.root()[0]
        source = next((j.ins[0] for j in self.jobs if j.op.converts and j.outs[0] is root), None)
        cells = None if source is None or source.type.dtype not in (I64, I32) else source.type.value
        if cells is None or slot.type.dtype not in (F32, F64):
            return None
        exact = 1 << (np.finfo(slot.type.dtype).nmant + 1)
        return cells.reshape(slot.type.dims) if all(-exact < n < exact for n in cells.flat) else None

    def _device(self) -> Device:
        return next(d for d in self.devices if d.aliases)

    def _numbers(self, content: Sequence[int]) -> list[Any]:
        """Numbers of the trail for the next stop, which were so last."""
        assert self.trail is not None, "who asks has one"
        stage, first = 1 + len(self.found), len(self.region.inputs)
        self.names = [f"n{first + stage - 1}_{k}" for k in range(len(content))]
        return [self.trail.number(name, n, stage) for name, n in zip(self.names, content, strict=True)]

    def _stop(self, rest: Sequence[Node], made: Sequence[Value], slot: Slot) -> None:
        """A stop that reads a slot, before the rest."""
        region, needed = behind(rest, made, self.region, self.alias, self.slot_of)
        slots = [s for s in map(self.slot_of, [*needed, *made]) if s is not None]
        reads: list[Slot | None] = [slot, *(s for s in slots if s.kind != CONST)]  # so that they are there
        device = self._device()
        job = Job(f"{slot.name} (read)", Read(), device, reads, [], [device.read_step(In(0))], "tape")
        self.jobs.append(job)
        self.found.append(Stop(job, self.names, slots, region))

    def number(self, jobs: Sequence[Job]) -> None:
        """Have jobs know how many stops come before them."""
        stops, stage = {id(stop.job) for stop in self.found}, 0
        for job in jobs:
            job.stage = stage
            stage += id(job) in stops

    def written(self, numbers: Slot, result: int) -> Slot:
        """A result that is content made of sizes."""
        cells: Any = numbers.type.known
        if numbers.type.dtype.kind not in "iub" or not numbers.type.size:
            raise LostError("results that are sizes")
        made, device = Slot(numbers.name, numbers.type.with_value(None), TEMP, result=result), self._device()
        step = device.numbers_step(cells.reshape(-1), Out(0), made.type.dtype.itemsize)
        self.jobs.append(Job(f"{numbers.name} (copy)", Copy(), device, [], [made], [step], "tape"))
        return made


_COUNT = TensorType(I64, (1,))
