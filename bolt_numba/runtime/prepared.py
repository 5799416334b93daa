"""Plans ready to run: with the idle memory of their runs and, after a cut, the runner of what follows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from bolt_numba.runtime.inplace import can_overwrite
from bolt_numba.runtime.plan import Plan
from bolt_numba.runtime.region import resolved
from bolt_numba.runtime.slots import TEMP
from bolt_numba.types import NestedType

if TYPE_CHECKING:
    from bolt_numba.runtime.copies import Home
    from bolt_numba.runtime.runner import Runner

clock = itertools.count()
"""Tells which plan was used last."""


class RunMemory:
    """Memory for one run of a plan at a time: its arenas, and what its segments keep beside them."""

    __slots__ = ("runs",)

    def __init__(self, plan: Plan) -> None:
        arenas = {memory: memory.allocate(nbytes) for memory, nbytes in plan.memory.arenas.items()}
        self.runs = [segment.executable.bind(arenas).run for segment in plan.segments]


class Prepared:
    """A plan with the idle memory of its runs and, after a cut, the runner of what follows.

    stands_in: whether the plan does without kernels that it should have.
    """

    __slots__ = (
        "cut", "empties", "ends", "homes", "idle", "kept", "overwrites", "plain", "plan", "reads", "rest", "results",
        "stands_in", "used",
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
        self.used = self.kept = next(clock)

    def context(self) -> Any:
        """Memory for one run."""
        try:
            return self.idle.pop()
        except IndexError:
            return RunMemory(self.plan)

    def synchronise(self) -> None:
        """Wait until all that a run began is done."""
        for segment in self.plan.segments:
            segment.device.synchronise()

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


def ends_of(plan: Plan, reads: int) -> list[int] | None:
    """Which of the values behind a cut are the outputs, if nothing runs there and nobody else has these values."""
    if plan.cut is None or plan.cut.rest.nodes:
        return None
    region, fresh = plan.cut.rest, plan.results[reads:]
    places = {id(v): i for i, v in enumerate(region.inputs)}
    found = [places.get(id(resolved(v, region.alias)), -1) for v in region.outputs]
    own = [s.kind == TEMP for s in fresh] + [isinstance(v.type, NestedType) for v in region.inputs[len(fresh) :]]
    return found if len(set(found)) == len(found) and all(i >= 0 and own[i] for i in found) else None
