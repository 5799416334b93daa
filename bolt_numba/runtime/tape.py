"""A plan as a function of the sizes that vary: what one plan decided serves all shapes that decide alike.

A region is planned once with *followed* sizes (`bolt_numba.base.follow`).  What is left of that is a `Tape`: the words of
all parameter records, the places of buffers and the shapes of results as arithmetic on the sizes, and guards, which tell
where inference, a maker or the memory plan would have decided otherwise.  Sizes that fail a guard are planned as before,
and may get a tape of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from bolt_numba.base.budget import ask
from bolt_numba.base.follow import Followed, LostError, Trail
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.prepared import Prepared, clock, ends_of
from bolt_numba.runtime.slots import CONST, TEMP
from bolt_numba.types import Array, Sym, TensorType

if TYPE_CHECKING:
    from bolt_numba.runtime.packs import MakerContext
    from bolt_numba.runtime.region import Region
    from bolt_numba.runtime.runner import Runner

MOST_TAPES = 16
"""Tapes of a region, for one content of the inputs that decide shapes."""
FIRST = 2
"""Plans before the first tape, which costs as much as some ten of them."""


class Tapes:
    """The tapes of a region.

    misses: plans that were made, as no tape held.  tries: to make a tape, in vain or not.
    """

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.misses = self.tries = 0

    def at(self, arrays: Sequence[Array], plan: Callable[[], Prepared]) -> Taped | None:
        """What the first tape gives that holds for these arrays' shapes.  plan: makes the whole plan."""
        shapes = [a.shape for a in arrays]
        for tape in self.tapes:
            found = tape.at(shapes)
            if found is not None:
                return Taped(tape, *found, plan)
        return None

    def follow(
        self, region: Region, context: MakerContext, types: Sequence[TensorType], like: Callable[[Region], Runner]
    ) -> None:
        """Another plan was made: have a tape of it, if that is due.  like: makes the runner of what follows a cut."""
        self.misses += 1
        if self.misses < FIRST + 2 * self.tries or self.tries >= MOST_TAPES:
            return
        self.tries += 1
        try:
            self.tapes.append(Tape(region, context, types, like))
        except (LostError, Exception):  # the ordinary way serves, and says what is wrong if anything is
            return


class Tape:
    """One way to plan a region.

    plan: with followed sizes, for what does not depend on them.  ranks: of the inputs.  program: what its device made.
    """

    def __init__(
        self, region: Region, context: MakerContext, types: Sequence[TensorType], like: Callable[[Region], Runner]
    ) -> None:
        trail = Trail()
        self.ranks = [len(t.dims) for t in types]
        names = [[f"n{i}_{axis}" for axis in range(rank)] for i, rank in enumerate(self.ranks)]
        given = [_followed(trail, *row) for row in zip([v.type for v in region.inputs], types, names, strict=True)]
        self.plan = plan = Planner(region, context, trail=trail).plan(given)
        devices = list({id(job.device): job.device for job in plan.jobs}.values())
        if len(devices) != 1 or any(s.kind == CONST and type(s.const) is Followed for s in plan.results):
            raise LostError(f"a plan of several devices: {[(j.name, j.op.name) for j in plan.jobs if j.device.name != chr(99)+chr(112)+chr(117)]}")
        dims = [d for slot in plan.results if slot.kind == TEMP for d in slot.type.dims]
        arena = plan.memory.arenas.get(HOST, 0)
        self.program = devices[0].followed(plan.jobs, context.threads, trail, [*chain(*names)], dims, arena)
        trail.is_closed = True
        self.results = [(len(s.type.dims), s.type.dtype) if s.kind == TEMP else None for s in plan.results]
        self.reads = 0 if plan.cut is None else sum(1 for s in plan.cut.reads if s is not None)
        self.ends, self.rest = ends_of(plan, self.reads), None if plan.cut is None else like(plan.cut.rest)
        self.idle: list[_Context] = []
        self.overwrites: dict[tuple[int, int], bool] = {}

    def at(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, dict[str, Any]] | None:
        """What the tape gives for these shapes of the inputs; None where it does not hold."""
        if list(map(len, shapes)) != self.ranks:
            return None
        made: tuple[Array, dict[str, Any]] | None = self.program.tape.at([*chain(*shapes)])
        return made


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

    __slots__ = ("make", "objects", "registers", "tape")

    def __init__(self, tape: Tape, registers: Array, objects: dict[str, Any], make: Callable[[], Prepared]) -> None:
        self.tape, self.registers, self.objects, self.make = tape, registers, objects, make
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
        self.used = next(clock)

    def __getattr__(self, name: str) -> Any:
        if name != "plan":
            raise AttributeError(name)
        self.plan: Plan = self.make().plan
        return self.plan

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
