"""Plans ready to run: with the idle memory of their runs and, after a cut, the runner of what follows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.types import AnyDType, Array, NestedType
from bolt_numba.kernels.registry import In, Out
from bolt_numba.ops.control import ControlFlow, Trips
from bolt_numba.runtime.plan import Plan
from bolt_numba.runtime.region import resolved
from bolt_numba.runtime.slots import INPUT, TEMP, Job, Slot

if TYPE_CHECKING:
    from bolt_numba.runtime.copies import Home
    from bolt_numba.runtime.runner import Runner

MAX_IDLE_CONTEXTS = 4
clock = itertools.count()
"""Tells which plan was used last."""


class RunMemory:
    """Memory for one run of a plan at a time: its arenas, and what its segments keep beside them."""

    __slots__ = ("own", "runs")

    def __init__(self, plan: Plan) -> None:
        arenas = {memory: memory.allocate(nbytes) for memory, nbytes in plan.memory.arenas.items()}
        self.own = [segment.executable.bind(arenas) for segment in plan.segments]
        self.runs = [own.run for own in self.own]


class Prepared:
    """A plan with the idle memory of its runs and, after a cut, the runner of what follows.

    stands_in: whether the plan does without kernels that it should have.  gives_way: these are there now, and a run
    that goes on by references begins again.  process: for which they are compiled.  pace: iterations that took as long
    as runs of a loop should before Python looks at limits, as the last loop found.  late: whether runs tell sizes of
    results.  passed: runs that went on behind its cut, where a tape might have.  strays: whether runs end, or go on,
    elsewhere than ``plan`` does, which then is not what they run.
    """

    __slots__ = (
        "cut", "empties", "ends", "gives_way", "homes", "idle", "late", "overwrites", "pace", "passed", "plain", "plan",
        "process", "reads", "rest", "results", "stands_in", "strays", "used",
    )  # fmt: skip

    def __init__(self, plan: Plan, rest: Runner | None = None, stands_in: bool = False) -> None:
        self.plan, self.cut, self.rest, self.stands_in = plan, plan.cut, rest, stands_in
        self.reads = 0 if plan.cut is None else sum(1 for s in plan.cut.reads if s is not None)
        self.results, self.ends = plan.results, ends_of(plan, self.reads)
        self.idle: list[RunMemory] = []
        self.empties = [(s.type.dims, s.type.dtype) if s.kind == TEMP else None for s in plan.results]
        self.plain = all(e is not None for e in self.empties)
        self.overwrites: dict[tuple[int, int], bool] = {}
        self.homes: list[Home | None] | None = None
        self.used, self.pace, self.passed = next(clock), 0, 0
        self.late = self.strays = self.gives_way = False
        self.process: object | None = None

    def ahead(self, trips: Trips, arrays: Sequence[Array], by_value: Iterable[int]) -> int:
        """Run iterations of a loop whose body this is natively, as many as last time: how many, 0 if it cannot be."""
        trips.pace = max(trips.pace, self.pace)
        count = self.run_ahead(trips, arrays, by_value)
        self.pace = trips.pace
        return count

    def run_ahead(self, trips: Trips, arrays: Sequence[Array], by_value: Iterable[int]) -> int:
        """Run iterations of a loop whose body this is natively: how many; 0 where each has to be run by itself.

        arrays: what the first of them is given; by_value: those for whose content it was planned.
        """
        segments = self.plan.segments
        if self.cut is not None or self.stands_in or len(segments) != 1:
            return 0
        try:
            context = self.idle.pop()
        except IndexError:
            context = RunMemory(self.plan)
        try:
            return segments[0].device.run_ahead(context.own[0], self, trips, arrays, by_value)
        finally:
            if len(self.idle) < MAX_IDLE_CONTEXTS:
                self.idle.append(context)

    def type_of(self, index: int) -> tuple[tuple[int, ...], AnyDType]:
        """Shape and dtype of a result."""
        made, slot = self.empties[index], self.results[index]
        return (slot.type.dims, slot.type.dtype) if made is None else made

    def synchronise(self) -> None:
        """Wait until all that a run began is done."""
        for segment in self.plan.segments:
            segment.device.synchronise()

    @property
    def arenas_nbytes(self) -> tuple[int, int]:
        """Bytes of the arenas of a run, and of these without sharing."""
        return self.plan.memory.nbytes, self.plan.memory.naive_nbytes

    @property
    def uploaded(self) -> dict[tuple[str, int], int]:
        """Bytes of constants in memories of devices, by device and address there."""
        rows = [(s.device.name, s.device.uploads(s.executable)) for s in self.plan.segments]
        return {(name, address): n for name, uploads in rows for address, n in uploads.items()}

    @property
    def nbytes(self) -> int:
        """Memory that goes with the plan: its contexts, and one more for a run."""
        return (1 + len(self.idle)) * self.plan.nbytes

    def can_overwrite(self, output: int, source: int) -> bool:
        """Whether a run may write this output over this input.

        Not by a stand-in: the plan that takes its place at any moment may read the input later.
        """
        if self.stands_in:
            return False
        found = self.overwrites.get((output, source))
        if found is None:
            found = self.overwrites[output, source] = self.overwrites_in(output, source)
        return found

    def overwrites_in(self, output: int, source: int) -> bool:
        """The same, worked out."""
        return can_overwrite(self.plan, output, source)


class Targets(list[Any]):
    """For each output the array to write it to, or None for a fresh one.

    prepared: the plan that they were chosen for.  Another one may write an output sooner, over an input that it reads.
    """

    __slots__ = ("prepared",)

    def __init__(self, prepared: Prepared, targets: Iterable[Any]) -> None:
        super().__init__(targets)
        self.prepared = prepared


def finish(prepared: Prepared | Plan, arrays: Sequence[Array], outputs: list[Any]) -> list[Array]:
    """Fill in the results that are inputs or constants themselves; final ones are copied, as they belong to others."""
    for index, slot in enumerate(prepared.results):
        if slot.kind == TEMP:
            continue
        source = arrays[slot.index] if slot.kind == INPUT else slot.const
        if isinstance(slot.type, NestedType):
            outputs[index] = source
            continue
        assert source is not None, slot.kind
        if outputs[index] is None:
            outputs[index] = source if prepared.cut is not None else np.array(source)
        else:
            outputs[index][...] = source
    return outputs


def ends_of(plan: Plan, reads: int) -> list[int] | None:
    """Which of the values behind a cut are the outputs, if nothing runs there and nobody else has these values.

    Those of an operator that runs graphs are its own where they are not its operands.
    """
    if plan.cut is None or plan.cut.rest.nodes:
        return None
    region, fresh = plan.cut.rest, plan.results[reads:]
    places = {id(v): i for i, v in enumerate(region.inputs)}
    found = [places.get(id(resolved(v, region.alias)), -1) for v in region.outputs]
    runs_graphs = isinstance(plan.cut.node.op, ControlFlow)
    own = [s.kind == TEMP for s in fresh]
    own += [runs_graphs or isinstance(v.type, NestedType) for v in region.inputs[len(fresh) :]]
    return found if len(set(found)) == len(found) and all(i >= 0 and own[i] for i in found) else None


def uploaded(plans: Sequence[Prepared]) -> dict[str, int]:
    """Bytes of constants that plans have in memories of devices, as a row of `Session.memory` if there are any."""
    nbytes = {place: n for plan in plans for place, n in plan.uploaded.items()}
    return {"uploaded": sum(nbytes.values())} if nbytes else {}


def real_nbytes(array: Array) -> int:
    """Bytes behind an array; a broadcast constant holds less than it shows."""
    return array.itemsize if 0 in array.strides and array.size > 1 else array.nbytes


# ------------------------------------------------------------------------------------- state that is passed in and out

Moment = tuple[int, int]
"""Job and step; moments are ordered as they run, all that happens in one moment may be interleaved."""


def can_overwrite(plan: Plan, output: int, source: int) -> bool:
    """Whether nothing reads input ``source`` after the first write to result ``output``, if both are one buffer.

    What one step does in its own order counts only where its kernel promises to read an element before it writes it.
    """
    result = plan.results[output]
    for index, other in enumerate(plan.results):
        if index != output and other.kind == INPUT and other.index == source:
            return False  # it is filled in after the run
    if result.kind != TEMP:
        return True
    root = result.root()[0]
    last_read: Moment = (-1, -1)
    first_write: Moment | None = None
    for number in plan.using(source, root):
        job = plan.jobs[number]
        reads = [i for i, slot in enumerate(job.ins) if slot is not None and _reads(slot, source)]
        writes = [i for i, slot in enumerate(job.outs) if slot.root()[0] is root]
        if reads and writes and _element_by_element(job, reads, writes, result):
            # Reads and writes keep in step; only what runs earlier or later counts.
            first_write = first_write or (number, len(job.steps or ()))
            last_read = max(last_read, (number, -1))
        else:
            last_read = max([last_read, *_moments(job, number, reads, In)])
            first_write = first_write or min(_moments(job, number, writes, Out), default=None)
    return first_write is None or last_read < first_write


def _reads(slot: Slot, source: int) -> bool:
    root = slot.root()[0]
    return root.kind == INPUT and root.index == source


def _moments(job: Job, number: int, operands: list[int], kind: type[In] | type[Out]) -> Iterator[Moment]:
    """When a job touches these operands."""
    if not operands:
        return
    if job.steps is None:
        yield number, 0
        return
    for step, made in enumerate(job.steps):
        if any(isinstance(arg, kind) and arg.index in operands for arg in made.args.values()):
            yield number, step


def _element_by_element(job: Job, reads: list[int], writes: list[int], result: Slot) -> bool:
    """Whether the job reads each element of the input no later than it writes it, and both have one form."""
    if job.steps is None or len(writes) != 1:
        return False
    out = job.outs[writes[0]]
    slots = [job.ins[i] for i in reads]
    for slot in (out, *slots):
        assert slot is not None
        same = slot.type.dtype == result.type.dtype and slot.type.size == result.type.size
        if not same or slot.pitch is not None or slot.root()[1]:
            return False
    if len(job.outs) == 1:
        return set(reads) <= set(job.inplace)
    return len(reads) == 1 and (reads[0], writes[0]) in job.states
