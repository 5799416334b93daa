"""A plan as a function of the sizes that vary: what one plan decided serves all shapes that decide alike.

A region is planned once with *followed* sizes (`bolt_numba.base.follow`).  What is left of that is a `Tape`: the words
of all parameter records, the places of buffers and the shapes of results as arithmetic on the sizes, and guards, which
tell where inference, a maker or the memory plan would have decided otherwise.  Sizes that fail a guard are planned as
before, and may get a tape of their own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import accumulate, chain, product
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.budget import GRANTED_BYTES, ask, limit_in_force, unasked
from bolt_numba.base.follow import LostError, Trail
from bolt_numba.base.turns import StoppedError
from bolt_numba.base.types import I32, I64, AnyDType, Array, Sym, TensorType
from bolt_numba.ops.control import Trips
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.packs import MakerContext
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.prepared import MAX_IDLE_CONTEXTS, Prepared, can_overwrite, clock, ends_of, finish
from bolt_numba.runtime.slots import INPUT, TEMP

if TYPE_CHECKING:
    from bolt_numba.runtime.runner import Runner

Turn = Callable[[], Any]
"""Lets others have Python's lock; raises StoppedError where nobody wants a tape any more; `tuple` does nothing."""

MOST_TAPES = 16
"""Tapes of a region that are tried to be made, and of those that are kept."""
MOST_REFUSED = 4 * MOST_TAPES
"""Ways to make a tape in vain from which on none is tried behind a cut, as all other tries come to no more."""
FIRST, NEXT = 4, 3
"""Plans before the first tape, and between two: a tape costs as much as some ten of them."""
TRIAL, PAYS = 4, 1
"""Tapes that are made in any case; then each must have served as many sizes."""
ALIKE = 3
"""Plans from which on a size that was the same in all of them is none that varies."""
ROOMY = 4
"""Memory this many times larger than what a run needed is not kept."""


class Tapes:
    """The tapes of a region.

    misses: plans that were made, as no tape held; hits: sizes that one served.  tries: to make a tape, in vain or not;
    refused: why it was in vain.  plan_s: seconds that the last plan took, for which a run waits for a tape.  arenas:
    memory that no run has, for runs by any of them.  nbytes: of all that no run has.  shapes: that were planned.
    """

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.last: Tape | None = None
        self.misses = self.hits = self.tries = 0
        self.arenas: list[Array] = []
        self.refused: list[str] = []
        self.plan_s = 0.0
        self.shapes: dict[tuple[tuple[int, ...], ...], None] = {}

    @property
    def nbytes(self) -> int:
        idle: list[int] = [run.nbytes for tape in self.tapes for run in list(tape.idle)]
        return sum(arena.nbytes for arena in list(self.arenas)) + sum(idle)

    def in_turn(self) -> Iterator[Tape]:
        """All, the last that held first, as the next sizes are likely to be near."""
        last, tapes = self.last, self.tapes
        if last is not None:
            yield last
        yield from [tape for tape in tapes if tape is not last]

    def at(self, arrays: Sequence[Array]) -> Taped | None:
        """What the first tape gives that holds for these inputs."""
        for tape in self.in_turn():
            found = tape.at(arrays)
            if found is not None:
                self.last = tape
                self.hits += 1
                return found
        return None

    def run(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]], targets: Sequence[Array | None] | None
    ) -> tuple[Tape, list[Array]] | None:
        """One run by the first tape that holds for these inputs."""
        for tape in self.in_turn():
            outputs = tape.run(arrays, shapes, targets)
            if outputs is not None:
                self.last, self.hits = tape, self.hits + 1
                plain = tape.plain or type(outputs) is Final
                return tape, outputs if plain else finish(tape.plan, arrays, outputs)
        return None

    def note(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Note what was planned, the last few."""
        self.shapes[tuple(shapes)] = None
        if len(self.shapes) > MOST_TAPES:
            self.shapes.pop(next(iter(self.shapes)), None)

    def same(self) -> set[tuple[int, int]]:
        """Sizes that do not vary, by input and axis."""
        shapes = list(self.shapes)
        if len(shapes) < ALIKE:
            return set()
        first, *others = shapes
        return {
            (i, axis) for i, shape in enumerate(first) for axis, size in enumerate(shape)
            if all(len(other[i]) == len(shape) and other[i][axis] == size for other in others)
        }  # fmt: skip

    def is_due(self, behind_cuts: bool) -> bool:
        """Whether to try another tape, now that one more plan was made, or runs have often gone on behind a cut."""
        if behind_cuts:
            return len(self.refused) < MOST_REFUSED
        self.misses += 1
        are_many = self.misses >= FIRST + NEXT * self.tries and self.tries < MOST_TAPES
        return are_many and (self.tries < TRIAL or self.hits >= PAYS * self.tries)

    def follow(
        self, runner: Runner, types: Sequence[TensorType], behind_cuts: bool = False, turn: Turn = tuple
    ) -> None:
        """Try to have a tape of a plan.  behind_cuts: only one that goes on where data decide."""
        self.tries += not behind_cuts
        reads = (True,) if behind_cuts else (True, False) if runner.data else (False,)
        opens = (True, False) if any(t.value is not None for t in types) else (True,)
        context = MakerContext(runner.threads, runner.packs, runner.devices, chooses=True)
        same = self.same()
        try:
            for stops, is_open in product(reads, opens):
                try:
                    with np.errstate(all="ignore"):
                        made = Tape(runner, context, types, is_open, turn, stops, same)
                    kept = sorted(self.tapes, key=lambda tape: tape is not self.last)
                    made.arenas, self.tapes, self.last = self.arenas, [made, *kept][:MOST_TAPES], None
                    if made.stops:
                        runner.drop_cuts()
                    return
                except StoppedError:
                    raise
                except (LostError, Exception) as error:  # the ordinary way serves, and says what is wrong
                    self.refused.append(f"{type(error).__name__}: {error}")
        finally:
            context.packs.done()


class Final(list[Any]):
    """All results of a region, whatever its plan would leave for others."""


class Tape:
    """One way to plan a region.

    is_open: whether the integers that decide shapes are followed, too, and not held to what they are.  stops: whether
    it reads what data decide on the way.  same: sizes, by input and axis, that are held to what they are.
    served, stopped: runs that it served to the end, and those that another runner had to end (`runtime.stops`); ahead:
    iterations that ran natively.  granted: a limit, and bytes that a run may take under it.
    plan: with followed sizes, for what does not depend on them.  ranks: of the inputs.  open: inputs whose content is
    followed, and how much there is; fixed: what the content of others must be.  program: what its device made.
    """

    def __init__(
        self, runner: Runner, context: MakerContext, types: Sequence[TensorType], is_open: bool = True,
        turn: Turn = tuple, stops: bool = True, same: Set[tuple[int, int]] = frozenset(),
    ) -> None:  # fmt: skip
        trail, self.runner, region = Trail(turn), weakref.ref(runner), runner.region
        self.ranks = [len(t.dims) for t in types]
        decided = [(i, t.value) for i, t in enumerate(types) if t.value is not None]
        self.open = [(i, v.size) for i, v in decided if is_open and v.dtype in (I32, I64)]
        followed = {i for i, _ in self.open}
        self.fixed = [(i, v.tobytes()) for i, v in decided if i not in followed]
        self.values = [t.value for t in types]
        names = [[f"n{i}_{axis}" for axis in range(rank)] for i, rank in enumerate(self.ranks)]
        more = {i: [f"n{i}_{self.ranks[i] + k}" for k in range(size)] for i, size in self.open}
        inputs = zip([v.type for v in region.inputs], types, names, strict=True)
        alike = [{axis for j, axis in same if j == i} for i in range(len(types))]
        given = [_followed(trail, *row, more.get(i), alike[i]) for i, row in enumerate(inputs)]
        self.plan = plan = Planner(region, context, trail=trail, data=runner.data if stops else None).plan(given)
        numbers = [*chain(*names), *chain(*more.values()), *chain(*(stop.names for stop in plan.stops))]
        devices = [*{id(job.device): job.device for job in plan.jobs}.values()] or context.devices[:1]
        if len(devices) != 1:
            others = dict.fromkeys(f"{j.op.name} on {j.device.name}" for j in plan.jobs if j.device is not devices[0])
            raise LostError(f"a plan of several devices: {', '.join(others)}")
        made = [slot for slot in plan.results if slot.kind == TEMP]
        dims = [d for slot in made for d in slot.type.dims]
        arena = plan.memory.arenas.get(HOST, 0)
        first = [b.nbytes for b in plan.memory.blocks if not b.stage]
        given_bytes = [] if plan.stops else [slot.type.nbytes for slot in made]
        sums = arena, sum(first), arena + sum(given_bytes)
        self.device, self.stops = devices[0], bool(plan.stops)
        self.program = self.device.followed(plan.jobs, context.threads, trail, numbers, dims, sums, plan.stops)
        trail.is_closed, trail.turn = True, tuple
        ends = [*accumulate([len(s.type.dims) if s.kind == TEMP else 0 for s in plan.results], initial=0)]
        rows = zip(ends, ends[1:], plan.results, strict=False)
        self.results = [(first, end, s.type.dtype) if s.kind == TEMP else None for first, end, s in rows]
        self.late = self.program.take_results(self.results)
        self.made = [None if i in self.late else row for i, row in enumerate(self.results)]
        self.plain = None not in self.results
        before = len(sums)
        self.rows = [None if r is None else (slice(before + r[0], before + r[1]), r[2]) for r in self.made]
        self.granted = limit_in_force(), -1
        self.reads = 0 if plan.cut is None else sum(1 for s in plan.cut.reads if s is not None)
        self.cut, self.ends = plan.cut, ends_of(plan, self.reads)
        self.rest = None if plan.cut is None else runner.like(plan.cut.rest)
        self.behind = [runner.like(stop.rest) for stop in plan.stops]
        self.served = self.stopped = self.passed = self.ahead = 0
        self.stands_in = False
        self.idle: list[Any] = []
        self.arenas: list[Array] = []
        self.overwrites: dict[tuple[int, int], bool] = {}

    def _sizes(self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[int] | None:
        """Dimensions of all inputs, then the content that is followed; None where the tape cannot hold."""
        if [*map(len, shapes)] != self.ranks:
            return None
        sizes = [*chain(*shapes)]
        for i, size in self.open:
            if arrays[i].size != size:
                return None
            sizes += arrays[i].reshape(-1).tolist()
        for i, content in self.fixed:
            if arrays[i].tobytes() != content:
                return None
        return sizes

    def at(self, arrays: Sequence[Array]) -> Taped | None:
        """What the tape gives for these inputs; None where it does not hold."""
        sizes = self._sizes(arrays, [a.shape for a in arrays])
        found = None if sizes is None else self.program.tape.at(sizes)
        return None if found is None else Taped(self, sizes, found)  # type: ignore[arg-type]

    def run(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]], targets: Sequence[Array | None] | None
    ) -> list[Any] | None:
        """The results of one run, for sizes that nobody keeps; None where something does not hold."""
        sizes = self._sizes(arrays, shapes)
        if sizes is None:
            return None
        context, nbytes = self.context(), 0
        try:
            told = context.at(sizes)
            if told is None:
                return None
            nbytes, _, given, *dims = told
            self.ask(given, dims)
            context.take(self.arenas, nbytes)
            outputs = [row and np.empty(told[row[0]], row[1]) for row in self.rows]
            if targets is not None and self.cut is None:
                outputs = [made if t is None else t for made, t in zip(outputs, targets, strict=True)]
            context.run(arrays, outputs)
            return outputs if context.stages is None else self.ended(context, arrays, outputs, targets)
        finally:
            self.take_back(context, nbytes)

    def ended(
        self, context: Any, arrays: Sequence[Array], outputs: list[Any], targets: Sequence[Array | None] | None
    ) -> list[Any]:
        """The results of a run with stages; `Final` where another runner went on from a stop."""
        stage = context.stages.stopped
        if stage:
            self.stopped += 1
            return Final(self.behind[stage - 1].run(context.stages.needed(arrays, outputs), targets))
        self.served += 1
        for i, target in enumerate(targets or ()):
            if target is not None and target is not outputs[i]:
                target[...] = outputs[i]
                outputs[i] = target
        return outputs

    def ask(self, nbytes: int, dims: Sequence[int]) -> None:
        """Raise BudgetError unless a run may take so much memory; results that are told on the way ask then."""
        if self.stops:
            rows = [row for row in self.made if row is not None]
            nbytes += sum(math.prod(dims[first:end]) * dtype.itemsize for first, end, dtype in rows)
        limit = limit_in_force()
        told, most = self.granted  # together: another thread may have another limit
        if nbytes > most or limit != told:  # who is asked each time looks at the environment
            if nbytes > unasked():
                ask(nbytes, f"plan of {len(self.plan.jobs)} steps: intermediate values and results")
            self.granted = limit, max(nbytes, unasked())

    def context(self) -> Any:
        """Memory of one run at a time."""
        try:
            return self.idle.pop()
        except IndexError:
            return self.program.bind()

    def take_back(self, context: Any, nbytes: int) -> None:
        """Its memory serves another run; an arena that is far too large for one of ``nbytes`` does not."""
        arena, context.arena = context.arena, None
        is_fit = arena is not None and arena.nbytes <= max(ROOMY * nbytes, GRANTED_BYTES)
        if is_fit and len(self.arenas) < MAX_IDLE_CONTEXTS:
            self.arenas.append(arena)
        if len(self.idle) < MAX_IDLE_CONTEXTS:
            self.idle.append(context)

    def planned_for(self, sizes: Sequence[int]) -> Plan:
        """The plan that it stands for.  sizes: dimensions of all inputs, then the content that is followed."""
        runner, values, rest = self.runner(), list(self.values), iter(sizes)
        assert runner is not None, "who has the plan's runner asks"
        shapes = [tuple([next(rest) for _ in range(rank)]) for rank in self.ranks]
        for i, size in self.open:
            value = values[i]
            assert value is not None, "its content is followed"
            values[i] = np.array([next(rest) for _ in range(size)], value.dtype).reshape(value.shape)
        inputs = zip(runner.region.inputs, shapes, values, strict=True)
        return runner.planned_for([TensorType(v.type.dtype, shape, value) for v, shape, value in inputs])


def _followed(
    trail: Trail, declared: TensorType, t: TensorType, names: Sequence[str], content: Sequence[str] | None,
    same: Set[int],
) -> TensorType:  # fmt: skip
    """The type of an input whose sizes are followed, where the graph does not say them, and perhaps its content.

    same: axes whose sizes are not.
    """
    rank = len(names)
    shape = declared.shape if declared.shape is not None and len(declared.shape) == rank else (None,) * rank
    dims: list[Any] = []
    for axis, (name, size, said) in enumerate(zip(names, t.dims, shape, strict=True)):
        number = trail.number(name, size)
        is_said = axis in same or (said is not None and not isinstance(said, Sym))
        first = trail.symbols.setdefault(said, number) if isinstance(said, Sym) and not is_said else number
        dims.append(size if is_said else first)
        bool(number == dims[-1])  # a guard
    if content is None or t.value is None:
        return TensorType(t.dtype, tuple(dims), t.value)
    value = np.empty(t.value.size, object)
    for k, (name, number) in enumerate(zip(content, t.value.reshape(-1).tolist(), strict=True)):
        value[k] = trail.number(name, number)
    return TensorType(t.dtype, tuple(dims), value.reshape(t.value.shape))


class Taped(Prepared):
    """A tape at certain sizes; ``plan`` is made when somebody asks for it."""

    __slots__ = ("arena", "found", "naive", "registers", "sizes", "tables", "tape")

    def __init__(self, tape: Tape, sizes: Sequence[int], found: tuple[Array, dict[str, Any], Any]) -> None:
        self.tape, self.sizes, self.found, self.registers = tape, sizes, found, found[0]
        self.cut, self.rest, self.stands_in = tape.plan.cut, tape.rest, False
        self.reads, self.ends, self.results, self.late = tape.reads, tape.ends, tape.plan.results, tape.stops
        self.idle = tape.idle
        self.arena, self.naive, given, *dims = self.registers[tape.program.asked].tolist()
        self.empties = [None if r is None else (tuple(dims[r[0] : r[1]]), r[2]) for r in tape.made]
        self.plain = tape.plain
        self.overwrites, self.homes = tape.overwrites, None
        self.used, self.pace, self.passed = next(clock), 0, 0
        self.strays = self.late or self.cut is not None  # a plan knows more at the cut of a tape, and may go on
        tape.ask(given, dims)
        self.tables = tape.program.tables_of(self.registers)

    def __getattr__(self, name: str) -> Any:
        if name != "plan":
            raise AttributeError(name)
        self.plan: Plan = self.tape.planned_for(self.sizes)
        return self.plan

    def type_of(self, index: int) -> tuple[tuple[int, ...], AnyDType]:
        slot, ranks = self.results[index], self.tape.ranks
        if slot.kind != INPUT:
            return super().type_of(index)
        first = sum(ranks[: slot.index])
        return tuple(self.sizes[first : first + ranks[slot.index]]), slot.type.dtype

    def overwrites_in(self, output: int, source: int) -> bool:
        if self.late:  # an iteration that stops half way is run again
            return False
        try:
            return can_overwrite(self.tape.plan, output, source)
        except LostError:  # it depends on the sizes
            return False

    def turned(self) -> Any:
        """Memory for one run, turned to these sizes."""
        found = self.tape.context()
        found.take(self.tape.arenas, self.arena)
        found.turn_to(self.found, self.tables)
        return found

    def run_ahead(self, trips: Trips, arrays: Sequence[Array], by_value: Iterable[int]) -> int:
        if self.cut is not None:
            return 0
        context = self.turned()
        try:
            done = self.tape.device.run_ahead(context, self, trips, arrays, [i for i, _ in self.tape.fixed])
            self.tape.ahead += done
            return done
        finally:
            self.take_back(context)

    def take_back(self, context: Any) -> None:
        """Its memory serves another run; what Python gave on the way is kept for these sizes."""
        if context.stages is not None and context.stages.told is not None:
            self.found, context.stages.told = context.stages.told, None
        self.tape.take_back(context, self.arena)

    def synchronise(self) -> None:
        """Nothing goes on behind a run of the CPU."""

    @property
    def arenas_nbytes(self) -> tuple[int, int]:
        return self.arena, self.naive

    @property
    def uploaded(self) -> dict[tuple[str, int], int]:
        return {}

    @property
    def nbytes(self) -> int:
        return int(self.registers.nbytes + self.tables.nbytes)
