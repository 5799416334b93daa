"""A plan as a function of the sizes that vary: what one plan decided serves all shapes that decide alike.

A region is planned once with *followed* sizes (`bolt_numba.base.follow`).  What is left of that is a `Tape`: the words
of all parameter records, the places of buffers and the shapes of results as arithmetic on the sizes, and guards, which
tell where inference, a maker or the memory plan would have decided otherwise.  Sizes that fail a guard are planned as
before, and may get a tape of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from bolt_numba.base.budget import ask
from bolt_numba.base.follow import LostError, Trail, is_followed
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.prepared import Prepared, can_overwrite, clock, ends_of
from bolt_numba.runtime.slots import CONST, TEMP
from bolt_numba.types import Array, Sym, TensorType

if TYPE_CHECKING:
    from bolt_numba.runtime.packs import MakerContext
    from bolt_numba.runtime.runner import Runner

MOST_TAPES = 16
"""Tapes of a region, for one content of the inputs that decide shapes."""
FIRST, NEXT = 4, 3
"""Plans before the first tape, and between two: a tape costs as much as some ten of them."""


class Tapes:
    """The tapes of a region.

    misses: plans that were made, as no tape held.  tries: to make a tape, in vain or not.
    """

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.misses = self.tries = 0

    def at(self, shapes: Sequence[tuple[int, ...]]) -> Taped | None:
        """What the first tape gives that holds for these shapes of the inputs."""
        for tape in self.tapes:
            found = tape.at(shapes)
            if found is not None:
                return found
        return None

    def follow(self, runner: Runner, context: MakerContext, types: Sequence[TensorType]) -> None:
        """Another plan was made: have a tape of it, if that is due."""
        self.misses += 1
        if self.misses < FIRST + NEXT * self.tries or self.tries >= MOST_TAPES:
            return
        self.tries += 1
        try:
            self.tapes.append(Tape(runner, context, types))
        except (LostError, Exception):  # the ordinary way serves, and says what is wrong if anything is
            return


class Tape:
    """One way to plan a region.

    plan: with followed sizes, for what does not depend on them.  ranks: of the inputs.  program: what its device made.
    """

    def __init__(self, runner: Runner, context: MakerContext, types: Sequence[TensorType]) -> None:
        trail, region = Trail(), runner.region
        self.runner, self.values = weakref.ref(runner), [t.value for t in types]
        self.ranks = [len(t.dims) for t in types]
        names = [[f"n{i}_{axis}" for axis in range(rank)] for i, rank in enumerate(self.ranks)]
        given = [_followed(trail, *row) for row in zip([v.type for v in region.inputs], types, names, strict=True)]
        self.plan = plan = Planner(region, context, trail=trail).plan(given)
        devices = list({id(job.device): job.device for job in plan.jobs}.values())
        if len(devices) != 1 or any(s.kind == CONST and is_followed(s.const) for s in plan.results):
            raise LostError("a plan of several devices, or of none")
        dims = [d for slot in plan.results if slot.kind == TEMP for d in slot.type.dims]
        arena = plan.memory.arenas.get(HOST, 0)
        self.program = devices[0].followed(plan.jobs, context.threads, trail, [*chain(*names)], dims, arena)
        trail.is_closed = True
        self.results = [(len(s.type.dims), s.type.dtype) if s.kind == TEMP else None for s in plan.results]
        self.reads = 0 if plan.cut is None else sum(1 for s in plan.cut.reads if s is not None)
        self.ends, self.rest = ends_of(plan, self.reads), None if plan.cut is None else runner.like(plan.cut.rest)
        self.idle: list[_Context] = []
        self.overwrites: dict[tuple[int, int], bool] = {}

    def at(self, shapes: Sequence[tuple[int, ...]]) -> Taped | None:
        """What the tape gives for these shapes of the inputs; None where it does not hold."""
        if list(map(len, shapes)) != self.ranks:
            return None
        found = self.program.tape.at([*chain(*shapes)])
        return None if found is None else Taped(self, shapes, *found)

    def planned_for(self, shapes: Sequence[tuple[int, ...]]) -> Plan:
        """The plan that it stands for."""
        runner = self.runner()
        assert runner is not None, "who has the plan's runner asks"
        inputs = zip(runner.region.inputs, shapes, self.values, strict=True)
        return runner.planned_for([TensorType(v.type.dtype, shape, value) for v, shape, value in inputs])


def _followed(trail: Trail, declared: TensorType, t: TensorType, names: Sequence[str]) -> TensorType:
    """The type of an input whose sizes are followed, where the graph does not say them."""
    rank = len(names)
    shape = declared.shape if declared.shape is not None and len(declared.shape) == rank else (None,) * rank
    dims = []
    for name, size, said in zip(names, t.dims, shape, strict=True):
        number = trail.number(name, size)
        first = trail.symbols.setdefault(said, number) if isinstance(said, Sym) else number
        if said is not None and not isinstance(said, Sym):
            bool(number == size)
            dims.append(size)
        else:
            bool(number == first)
            dims.append(first)
    return TensorType(t.dtype, tuple(dims), t.value)


class _Context:
    """Memory of one run at a time; taped: the sizes that it is turned to."""

    __slots__ = ("run", "runs", "taped")

    def __init__(self, tape: Tape) -> None:
        self.run = tape.program.bind()
        self.runs = [self.run.run]
        self.taped: Taped | None = None


class Taped(Prepared):
    """A tape at certain sizes; ``plan`` is made when somebody asks for it."""

    __slots__ = ("objects", "registers", "shapes", "tape")

    def __init__(
        self, tape: Tape, shapes: Sequence[tuple[int, ...]], registers: Array, objects: dict[str, Any]
    ) -> None:
        self.tape, self.shapes, self.registers, self.objects = tape, shapes, registers, objects
        self.cut, self.rest, self.stands_in = tape.plan.cut, tape.rest, False
        self.reads, self.ends, self.results = tape.reads, tape.ends, tape.plan.results
        self.idle = tape.idle  # type: ignore[assignment]
        self.empties, at = [], 0
        dims = registers[tape.program.dims].tolist()
        for found in tape.results:
            if found is not None:
                rank, dtype = found
                self.empties.append((tuple(dims[at : at + rank]), dtype))
                at += rank
            else:
                self.empties.append(None)
        self.plain = at == len(dims) and None not in tape.results
        self.overwrites, self.homes = tape.overwrites, None
        self.used = self.kept = next(clock)
        ask(int(registers[tape.program.arena]), "intermediate values of a plan")

    def __getattr__(self, name: str) -> Any:
        if name != "plan":
            raise AttributeError(name)
        self.plan: Plan = self.tape.planned_for(self.shapes)
        return self.plan

    def overwrites_in(self, output: int, source: int) -> bool:
        try:
            return can_overwrite(self.tape.plan, output, source)
        except LostError:  # it depends on the sizes
            return False

    def context(self) -> Any:
        try:
            found: Any = self.idle.pop()
        except IndexError:
            found = _Context(self.tape)
        if found.taped is not self:
            found.run.turn_to(self.registers, self.objects)
            found.taped = self
        return found

    def synchronise(self) -> None:
        """Nothing goes on behind a run of the CPU."""

    @property
    def nbytes(self) -> int:
        return int(self.registers.nbytes)
