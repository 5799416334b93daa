"""A model's way through a run where data decide sizes or branches: stages, of which each is planned ahead.

A stage runs up to where data decide how it goes on.  What it leaves is in *places*, arrays of the greatest size, and a
number among them says which stage is next.  Values and places have one numbering: inputs, outputs, then places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.mapped import check_intact
from bolt_numba.base.follow import LostError
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowed
from bolt_numba.base.types import I64, AnyDType, Array, TensorType, type_of
from bolt_numba.devices.program import Program, laid_out
from bolt_numba.export.tapes import Served, Sizes, Slices, runs, shared
from bolt_numba.ir.graph import Node, Value
from bolt_numba.kernels.data_sized import Sized, select_sized
from bolt_numba.kernels.extents import check_steps
from bolt_numba.ops.control import ControlFlow
from bolt_numba.runtime.memory import plan_memory
from bolt_numba.runtime.packs import MakerContext
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.region import Cut, Region, resolved
from bolt_numba.runtime.runner import Runner
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot
from bolt_numba.runtime.tape import Tape

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
    served: Served | Slices | None = None


Loops = Callable[
    ["StagedPlan", Cut, "Sequence[int | Array | None]"], "tuple[RunStage, list[int], Region, tuple[RunStage, RunStage]]"
]


class StagedPlan:
    """The stages of one set of shapes, the first of them first, and what is between them.

    problems: a line for each node that keeps the model from leaving Python.  least, greatest: sizes of the outputs.
    loops: adds the stages of a loop but what follows it.
    """

    def __init__(self, cpu: PlannedCpu, threads: int, packs: Packs, devices: Any, loops: Loops) -> None:
        self.cpu, self.threads, self.packs, self.devices, self.loops = cpu, threads, packs, devices, loops
        self.stages: list[RunStage] = []
        self.types: list[Place] = []
        self.problems: list[str] = []
        self.least, self.greatest = list[tuple[int, ...]](), list[tuple[int, ...]]()

    def build(self, region: Region, types: Sequence[TensorType]) -> None:
        """Plan a region and all that follows for inputs of these types."""
        self._begin(types, len(region.outputs))
        self._next(region, list(range(len(types))))

    def take(self, served: Served, types: Sequence[TensorType]) -> None:
        """The one stage of a tape.  types: of the inputs, with the greatest sizes."""
        self._begin(types, len(served.tape.plan.results))
        self.stage(self._taken(served, list(range(len(types)))))

    def _begin(self, types: Sequence[TensorType], outputs: int) -> None:
        self.first_output, self.outputs = len(types), outputs
        self.types = [*map(Place, types), *(Place(TensorType(I64, ())) for _ in range(outputs))]

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
            context = MakerContext(self.threads, self.packs, self.devices)
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
        """The stages of a region that reads results of a length; what tells it, and which of them is for which."""
        found = self._length_read(region, numbers) if length is None else length
        if found == TWO:
            raise NotAheadError("what follows depends on two lengths at once")
        most = max(p.type.dims[p.axis] for p in (self.types[n] for n in numbers) if p.length == found)
        if most >= MOST_LENGTHS:
            raise NotAheadError(f"what follows depends on a length of up to {most}: wanted less than {MOST_LENGTHS}")
        lengths = {self._sizes_at(numbers, found, n): n for n in range(most, -1, -1)}
        self._planned_at(region, numbers, next(iter(lengths)))
        tapes, alone = shared(list(lengths), lambda sizes: self.tape(region, self._types_at(numbers, sizes)))
        outputs = [self.first_output + i for i in range(self.outputs)]
        choices = list[tuple[int, int, int]]()
        for served, taken in tapes:
            stage = self.stage(self._taken(served, numbers))
            ns = np.array(sorted(lengths[sizes] for sizes in taken))
            choices += [(low, high, stage) for low, high, _, _ in runs(ns, np.zeros(len(ns), np.int64))]
        for sizes in alone:
            plan, n = self._planned_at(region, numbers, sizes), lengths[sizes]
            self.ends(_results(plan.results, [Place(t) for t in self._types_at(numbers, sizes)]))
            made = RunStage(program_of(plan), plan.jobs, arena_of(plan), numbers, outputs, plan.results)
            choices.append((n, n, self.stage(made)))
        return found, sorted(choices)

    def _sizes_at(self, numbers: Sequence[int], length: int, n: int) -> Sizes:
        """The shapes of inputs where a length is n."""

        def of(place: Place) -> tuple[int, ...]:
            at = place.axis if place.length == length else -1
            return tuple([min(n, d) if axis == at else d for axis, d in enumerate(place.type.dims)])

        return tuple([of(self.types[number]) for number in numbers])

    def _types_at(self, numbers: Sequence[int], sizes: Sizes) -> list[TensorType]:
        return [TensorType(self.types[n].type.dtype, dims) for n, dims in zip(numbers, sizes, strict=True)]

    def _planned_at(self, region: Region, numbers: Sequence[int], sizes: Sizes) -> Plan:
        """The plan of a region for these sizes.  Raises NotAheadError where C cannot run it."""
        plan = self.plan(region, self._types_at(numbers, sizes))
        if plan.cut is not None:
            raise NotAheadError("what follows depends on a length, and data decide in it once more")
        if found := list(problems(plan)):
            raise NotAheadError("what follows has other nodes that need Python: " + "; ".join(found))
        return plan

    def tape(self, region: Region, types: Sequence[TensorType]) -> Tape | None:
        """The tape of a region that is made for inputs of these types; None where there is none that C can run."""
        runner = Runner(region, self.threads, self.packs, self.devices)
        try:
            with np.errstate(all="ignore"):
                made = Tape(runner, MakerContext(self.threads, self.packs, self.devices), types, False)
        except (LostError, Exception) as error:  # what is wrong with the sizes is told where they are planned
            swallowed("tape", error, LostError, ArithmeticError, ValueError)
            return None
        finally:
            self.packs.done()
        return None if made.plan.cut is not None or any(problems(made.plan)) else made

    def _taken(self, served: Served, numbers: list[int]) -> RunStage:
        """The stage of a tape, of which all sets of shapes are known that it serves."""
        plan, outputs = served.tape.plan, [self.first_output + i for i in range(self.outputs)]
        self.ends((slot.type.dtype, *served.result_dims(i)) for i, slot in enumerate(plan.results))
        program = served.tape.program.program
        return RunStage(program, plan.jobs, served.arena_nbytes, numbers, outputs, plan.results, served=served)

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
            self.ends(_results(plan.results, [self.types[n] for n in numbers]))
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

    def ends(self, results: Iterable[tuple[AnyDType, tuple[int, ...], tuple[int, ...]]]) -> None:
        """Take note of what a last stage gives: the dtype of each output, its least sizes and its greatest."""
        for i, (dtype, least, dims) in enumerate(results):
            if i == len(self.greatest):
                self.least.append(least)
                self.greatest.append(dims)
            if len(self.greatest[i]) != len(dims):
                raise NotAheadError(f"output {i} has rank {len(self.greatest[i])} or {len(dims)}")
            self.least[i] = tuple(map(min, least, self.least[i]))
            self.greatest[i] = tuple(map(max, dims, self.greatest[i]))
            self.types[self.first_output + i] = Place(TensorType(dtype, self.greatest[i]))

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


def _results(
    slots: Sequence[Slot], inputs: Sequence[Place]
) -> Iterator[tuple[AnyDType, tuple[int, ...], tuple[int, ...]]]:
    """Of results their dtype, their least sizes and their greatest."""
    for slot in slots:
        place = inputs[slot.index] if slot.kind == INPUT else Place(slot.type)
        dims = place.type.dims
        least = tuple([0 if place.length >= 0 and axis == place.axis else d for axis, d in enumerate(dims)])
        yield place.type.dtype, least, dims


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
