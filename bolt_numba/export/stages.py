"""A model's way through a run where data decide sizes or branches: stages, of which each is planned ahead.

A stage runs up to where data decide how it goes on.  What it leaves is in *places*, arrays of the greatest size, and a
number among them says which stage is next.  Values and places have one numbering: inputs, outputs, then places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.mapped import check_intact
from bolt_numba.base.records import record
from bolt_numba.devices.program import Program, laid_out
from bolt_numba.errors import BoltError
from bolt_numba.export.tapes import Served
from bolt_numba.ir.graph import Node, Value
from bolt_numba.kernels.data_sized import Sized, select_sized
from bolt_numba.kernels.extents import check_steps
from bolt_numba.ops.control import ControlFlow
from bolt_numba.runtime.memory import plan_memory
from bolt_numba.runtime.packs import MakerContext
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.region import Cut, Region, resolved
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot
from bolt_numba.types import I64, Array, TensorType, type_of

if TYPE_CHECKING:
    from bolt_numba.export.targets import PlannedCpu
    from bolt_numba.runtime.packs import Packs

MOST_STAGES = 64
"""Stages of one set of shapes; branches of branches multiply."""
MOST_LENGTHS = 1 << 15
"""Lengths of a result for which what follows is planned, each."""
NONE, TWO = -1, -2
"""In the place of the number of a length."""


class NotAheadError(Exception):
    """Why what follows a node is not planned ahead, as an end of a sentence that begins with the node."""


@record(eq=False)
class Place:
    """An array between stages.  type: its greatest.  length: number of what tells how long its ``axis`` is, or -1."""

    type: TensorType
    length: int = -1
    axis: int = -1


@record(eq=False)
class Lengths:
    """The image of a stage for each length of ``ns``, which ascends: [lengths, words] i64, sizes of outputs at its end.

    Where an address goes, a word has what is added to it.
    """

    ns: Array
    words: Array


@record(eq=False)
class RunStage:
    """What runs between two decisions.

    outputs: number of each result that steps make, -1 of others.  results: of a last stage, a slot for each output.
    inputs: number of each input.  choices: (low, high, stage) of what is next; ``choice`` is the number that decides.
    served: the tape that it runs by, and for which sizes.
    """

    program: Program | None
    jobs: Sequence[Job]
    arena_nbytes: int
    inputs: list[int]
    outputs: list[int]
    results: list[Slot] | None = None
    choice: int = -1
    choices: list[tuple[int, int, int]] = field(default_factory=list)
    lengths: Lengths | None = None
    served: Served | None = None


Loops = Callable[
    ["StagedPlan", Cut, "Sequence[int | Array | None]"],
    "tuple[RunStage, list[int], Region, tuple[RunStage, RunStage]]",
]
ByLength = Callable[["StagedPlan", Region, "list[int]", int], "list[tuple[int, int, int]]"]


class StagedPlan:
    """The stages of one set of shapes, the first of them first, and what is between them.

    problems: a line for each node that keeps the model from leaving Python.  least, greatest: sizes of the outputs.
    by_length: adds the stages of a region that reads results of a length that data decide.  loops: those of a loop but
    what follows it.
    """

    def __init__(
        self, cpu: PlannedCpu, threads: int, packs: Packs, devices: Any, by_length: ByLength, loops: Loops
    ) -> None:
        self.cpu, self.threads, self.packs, self.devices = cpu, threads, packs, devices
        self.by_length, self.loops = by_length, loops
        self.stages: list[RunStage] = []
        self.types: list[Place] = []
        self.problems: list[str] = []
        self.least, self.greatest = list[tuple[int, ...]](), list[tuple[int, ...]]()

    def build(self, region: Region, types: Sequence[TensorType]) -> None:
        """Plan a region and all that follows for inputs of these types."""
        self.first_output, self.outputs = len(types), len(region.outputs)
        self.types = [*map(Place, types), *(Place(TensorType(I64, ())) for _ in range(self.outputs))]
        self._next(region, list(range(len(types))))

    def take(self, served: Served, types: Sequence[TensorType]) -> None:
        """The one stage of a tape.  types: of the inputs, with the greatest sizes."""
        plan, numbers = served.tape.plan, list(range(len(types)))
        self.first_output, self.outputs = len(types), len(plan.results)
        self.least, self.greatest = map(list, zip(*map(served.result_dims, range(self.outputs)), strict=True))
        outputs = zip(plan.results, self.greatest, strict=True)
        self.types = [*map(Place, types), *(Place(TensorType(s.type.dtype, dims)) for s, dims in outputs)]
        made = [self.first_output + i for i in range(self.outputs)]
        program = served.tape.program.program
        self.stage(RunStage(program, plan.jobs, served.arena_nbytes, numbers, made, plan.results, served=served))

    @property
    def first_place(self) -> int:
        return self.first_output + self.outputs

    @property
    def places(self) -> list[Place]:
        return self.types[self.first_place :]

    def plan(self, region: Region, types: Sequence[TensorType]) -> Plan:
        """The plan of a region for inputs of these types, of which no content is known."""
        reads = [v for node in region.nodes for v in node.operands if v is not None]
        check_intact([v.const for v in (*region.outputs, *reads) if v.const is not None])
        try:
            context = MakerContext(self.threads, self.packs, None, self.devices)
            with np.errstate(all="ignore"):
                return Planner(region, context).plan(types)
        finally:
            self.packs.done()

    def place(self, place: Place) -> int:
        """Add a place; its number."""
        self.types.append(place)
        return len(self.types) - 1

    def stage(self, stage: RunStage) -> int:
        """Add a stage; its number."""
        if len(self.stages) >= MOST_STAGES:
            raise NotAheadError(f"it takes more than {MOST_STAGES} stages")
        self.stages.append(stage)
        return len(self.stages) - 1

    # --- regions -----------------------------------------------------------------------------------------------------

    def _next(self, region: Region, numbers: list[int]) -> tuple[int, list[tuple[int, int, int]]]:
        """Stages for a region whose inputs have these numbers: what decides which is next, and the choices."""
        length = self._length_read(region, numbers)
        if length == NONE:
            return -1, [(0, 0, self._fixed(region, numbers))]
        before, behind = self._apart(region, numbers)
        if not before:
            return self._by_length(region, numbers, length)
        made = {id(v) for node in before for v in node.outputs}
        reads = [v for node in behind for v in node.operands if v is not None]
        wanted = {id(v): v for v in (resolved(v, region.alias) for v in (*reads, *region.outputs)) if id(v) in made}
        first = Region(region.inputs, before, list(wanted.values()), region.alias, region.known)
        plan = self.plan(first, [self.types[n].type for n in numbers])
        if plan.cut is not None:  # what does not read the length comes first, up to the next decision
            whole = Region(region.inputs, [*before, *behind], region.outputs, region.alias, region.known)
            return -1, [(0, 0, self._fixed(whole, numbers))]
        stage, results = self.left(plan, numbers)
        rest = Region([*region.inputs, *wanted.values()], behind, region.outputs, region.alias, region.known)
        stage.choice, stage.choices = self._by_length(*with_inputs(rest, [*numbers, *results]))
        return -1, [(0, 0, self.stages.index(stage))]

    def _by_length(
        self, region: Region, numbers: list[int], length: int | None = None
    ) -> tuple[int, list[tuple[int, int, int]]]:
        found = self._length_read(region, numbers) if length is None else length
        if found == TWO:
            raise NotAheadError("what follows depends on two lengths at once")
        return found, self.by_length(self, region, numbers, found)

    def _apart(self, region: Region, numbers: Sequence[int]) -> tuple[list[Node], list[Node]]:
        """The nodes that depend on no length, and the others."""
        sized = {id(v) for v, n in zip(region.inputs, numbers, strict=True) if self.types[n].length >= 0}
        before, behind = list[Node](), list[Node]()
        for node in region.nodes:
            if any(id(resolved(v, region.alias)) in sized for v in node.operands if v is not None):
                sized.update(map(id, node.outputs))
                behind.append(node)
            else:
                before.append(node)
        return before, behind

    def _length_read(self, region: Region, numbers: Sequence[int]) -> int:
        """What tells the length that nodes of a region depend on; `NONE` without any, `TWO` where several do."""
        read = {id(resolved(v, region.alias)) for node in region.nodes for v in node.operands if v is not None}
        found = {self.types[n].length for v, n in zip(region.inputs, numbers, strict=True) if id(v) in read} - {-1}
        return found.pop() if len(found) == 1 else TWO if found else NONE

    def _fixed(self, region: Region, numbers: list[int]) -> int:
        """The stage of a region in which all sizes are known."""
        plan = self.plan(region, [self.types[n].type for n in numbers])
        if plan.cut is None:
            self.problems += problems(plan)
            outputs = [self.first_output + i for i in range(self.outputs)]
            self.ends(plan.results, [self.types[n] for n in numbers])
            return self.stage(RunStage(program_of(plan), plan.jobs, arena_of(plan), numbers, outputs, plan.results))
        stage, made = self.left(plan, numbers)
        try:
            stage.choice, stage.choices = self._behind(plan.cut, made)
        except NotAheadError as error:
            self.problems.append(f"{told(plan.cut)}: {error}")
        return self.stages.index(stage)

    def left(self, plan: Plan, numbers: list[int]) -> tuple[RunStage, list[int | Array]]:
        """The stage of a plan that leaves its results in places, and these by their numbers, or as constants."""
        self.problems += problems(plan)
        stage = RunStage(program_of(plan), plan.jobs, arena_of(plan), numbers, [])
        self.stage(stage)
        made: list[int | Array] = []
        for slot in plan.results:
            if slot.kind == TEMP:
                made.append(self.place(Place(TensorType(slot.type.dtype, slot.type.dims))))
            else:
                made.append(numbers[slot.index] if slot.kind == INPUT else constant(slot))
            stage.outputs.append(made[-1] if slot.kind == TEMP else -1)  # type: ignore[arg-type]
        return stage, made

    def ends(self, slots: Sequence[Slot], inputs: Sequence[Place]) -> None:
        """Take note of what a last stage gives: outputs are as small, and as large."""
        for i, slot in enumerate(slots):
            place = inputs[slot.index] if slot.kind == INPUT else Place(slot.type)
            dims = place.type.dims
            least = tuple(0 if place.length >= 0 and axis == place.axis else d for axis, d in enumerate(dims))
            if i == len(self.greatest):
                self.least.append(least)
                self.greatest.append(dims)
            if len(self.greatest[i]) != len(dims):
                raise NotAheadError(f"output {i} has rank {len(self.greatest[i])} or {len(dims)}")
            self.least[i] = tuple(map(min, least, self.least[i]))
            self.greatest[i] = tuple(map(max, dims, self.greatest[i]))
            self.types[self.first_output + i] = Place(TensorType(place.type.dtype, self.greatest[i]))

    # --- nodes where data decide -------------------------------------------------------------------------------------

    def _behind(self, cut: Cut, made: list[int | Array]) -> tuple[int, list[tuple[int, int, int]]]:
        """What is next behind a cut; made: its operands, then what else the rest needs, by number or as constants."""
        count = sum(1 for slot in cut.reads if slot is not None)
        left = iter(made[:count])
        operands = [None if slot is None else next(left) for slot in cut.reads]
        op = cut.node.op
        if isinstance(op, ControlFlow):
            follow = self._branches if op.branches else self._loop
            return follow(cut, operands, made[count:])
        types = [None if a is None else self._type(a) for a in operands]
        found = select_sized(cut.node.op, types, self.cpu.name)
        if found is None:
            raise NotAheadError("no kernel takes it with a length")
        number, results = self._sized(cut, operands, types, found)
        stage = self.stages[number]
        region, numbers = with_inputs(cut.rest, [*made[count:], *results])
        stage.choice, stage.choices = self._next(region, numbers)
        return -1, [(0, 0, number)]

    def _type(self, operand: int | Array) -> TensorType:
        if isinstance(operand, np.ndarray):
            return type_of(operand)
        return self.types[operand].type

    def _sized(
        self, cut: Cut, operands: Sequence[int | Array | None], types: Sequence[TensorType | None], found: Sized
    ) -> tuple[int, list[int]]:
        """The stage of a node whose results are as long as data say; its number, and those of the results."""
        node, numbers, ins = cut.node, list[int](), list[Slot | None]()
        for operand, t in zip(operands, types, strict=True):
            if operand is None or t is None:
                ins.append(None)
            elif isinstance(operand, np.ndarray):
                ins.append(Slot("constant", t, CONST, const=operand))
            else:
                ins.append(Slot("operand", t, INPUT, len(numbers)))
                numbers.append(operand)
        count = TensorType(I64, (1,))
        outs = [Slot("result", t, TEMP, result=i) for i, t in enumerate((*found.results, count))]
        check_steps(node.op, found.steps, types, [slot.type for slot in outs], self.threads)
        job = Job(node.name, node.op, self.cpu, ins, outs, found.steps)
        memory = plan_memory([job], outs)
        self.cpu.prepare([job])
        program = laid_out([job], self.threads)
        length = self.place(Place(count))
        placed = zip(found.results, found.axes, strict=True)
        results = [self.place(Place(t) if axis is None else Place(t, length, axis)) for t, axis in placed]
        return self.stage(RunStage(program, [job], sum(memory.arenas.values()), numbers, [*results, length])), results

    def _branches(
        self, cut: Cut, operands: Sequence[int | Array | None], rest: list[int | Array]
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """One stage or more for each branch, with all that follows it."""
        node, op = cut.node, cut.node.op
        assert isinstance(op, ControlFlow)
        condition = operands[0]
        assert isinstance(condition, int), "a known one leaves no cut"
        if self.types[condition].type.size != 1:
            raise NotAheadError("its condition is not one number")
        outer = cut.rest
        choices: list[tuple[int, int, int]] = []
        for holds in (False, True):
            branch = op.chosen(np.array(holds))
            alias, captured = dict(outer.alias), list[Value]()
            for inner, given in zip(branch.inputs, node.inputs[1:], strict=True):
                if given is not None:
                    alias[id(inner)] = given
                    captured.append(resolved(given, outer.alias))
            for mine, theirs in zip(node.outputs, branch.outputs, strict=True):
                alias[id(mine)] = theirs
            values = [*outer.inputs[: len(rest)], *captured]
            numbers = [*rest, *(a for a in operands[1:] if a is not None)]
            decided = resolved(node.inputs[0], outer.alias)  # type: ignore[arg-type]
            known = outer.known | {id(decided): type_of(np.full(self.types[condition].type.dims, holds))}
            region = Region(values, [*branch.nodes, *outer.nodes], outer.outputs, alias, known)
            try:
                first = self._first_of(*with_inputs(region, numbers))
            except BoltError as error:  # of a branch that these shapes never take
                raise NotAheadError(f"its {'then' if holds else 'else'} branch: {error}") from error
            choices.append((int(holds), int(holds), first))
        return condition, choices

    def _loop(
        self, cut: Cut, operands: Sequence[int | Array | None], rest: list[int | Array]
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """A body to which runs return, and what follows."""
        first, results, region, choosing = self.loops(self, cut, operands)
        behind = self._first_of(*with_inputs(region, [*rest, *results]))
        for stage in choosing:
            stage.choices.append((0, 0, behind))
        return -1, [(0, 0, self.stages.index(first))]

    def _first_of(self, region: Region, numbers: list[int]) -> int:
        """The stage that a branch begins with: an empty one where a length decides at once."""
        if self._length_read(region, numbers) == NONE:
            return self._next(region, numbers)[1][0][2]
        stage = RunStage(None, (), 0, [], [])
        number = self.stage(stage)
        stage.choice, stage.choices = self._next(region, numbers)
        return number


def with_inputs(region: Region, given: Sequence[int | Array]) -> tuple[Region, list[int]]:
    """A region whose inputs are each there once and are no constants; their numbers."""
    inputs, numbers, known, seen = list[Value](), list[int](), dict(region.known), set[int]()
    for value, operand in zip(region.inputs, given, strict=True):
        if id(value) in seen or id(value) in known or value.const is not None:
            continue
        seen.add(id(value))
        if isinstance(operand, np.ndarray):
            known[id(value)] = type_of(operand)
        else:
            inputs.append(value)
            numbers.append(operand)
    return Region(inputs, region.nodes, region.outputs, region.alias, known), numbers


def constant(slot: Slot) -> Array:
    assert slot.const is not None
    return np.ascontiguousarray(slot.const).reshape(slot.type.dims)


def program_of(plan: Plan) -> Program | None:
    """What a plan of one device runs; None where it runs nothing."""
    return plan.segments[0].executable if plan.segments else None  # type: ignore[return-value]


def arena_of(plan: Plan) -> int:
    return sum(plan.memory.arenas.values())


def problems(plan: Plan) -> Iterator[str]:
    """A line for each node that needs Python."""
    for job in plan.jobs:
        if job.steps is None:
            types = ", ".join("-" if s is None else str(s.type) for s in job.ins)
            yield f"{job.name}: {job.op.name}({types}): no kernel takes it, so its reference runs"


def told(cut: Cut) -> str:
    """The node of a cut, and what data decide there."""
    types = ", ".join("-" if v is None else str(v.type) for v in cut.node.operands)
    why = "its branch or count" if isinstance(cut.node.op, ControlFlow) else "the size of its result"
    return f"{cut.node.name}: {cut.node.op.name}({types}): data decide {why}, and what follows is not planned ahead"

