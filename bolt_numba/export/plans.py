"""Plans of a model for a target that need not be this machine: nothing of them is run, and none has an address."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.records import record
from bolt_numba.base.types import TensorType
from bolt_numba.devices import device
from bolt_numba.export.loops import loop_stages
from bolt_numba.export.stages import StagedPlan
from bolt_numba.export.tapes import Served, Sizes, shared
from bolt_numba.export.targets import PlannedCpu
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import sized
from bolt_numba.sessions.guesses import complete_shapes
from bolt_numba.sessions.session import Session

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device

Shapes = Mapping[str, Sequence[int]]
MOST_PLANS = 1000
"""Sets of shapes that have a plan each."""


def _order(sizes: Sizes) -> tuple[int, Sizes]:
    """By how much there is: a tape places buffers as they are best for the sizes that it is made of."""
    return sum(map(math.prod, sizes)), sizes


@record(eq=False)
class PlannedSets:
    """What runs for some sets of shapes.

    greatest: shapes of the inputs at most.  begin: those with which a session begins.  sets: how many there are.
    """

    plan: StagedPlan
    greatest: Sizes
    begin: Sizes
    sets: int


class _PlanningSession(Session):
    """A session that plans and never runs."""

    def __init__(self, graph: Graph, cpu: PlannedCpu, threads: int, precision: str, numerics: str) -> None:
        self._cpu = cpu
        super().__init__(graph, threads=threads, precision=precision, numerics=numerics, stand_ins=False)

    def _devices_of(self, name: str | Sequence[str]) -> tuple[Device, ...]:
        self.device, self._plugins, self._computes_halves = self._cpu.name, None, False
        return self._cpu, device("host")

    def chains(self, sets: Sequence[Shapes]) -> list[PlannedSets]:
        """What runs for these shapes of the inputs, for the first of them first: tapes, and plans where none serves."""
        states = [array.shape for array in self.graph.states]
        dims = [(*(tuple(shapes[spec.name]) for spec in self.inputs), *states) for shapes in sets]
        begin, region, new = dims[0], self._runner.region, self._new()
        largest_first = sorted(dict.fromkeys(dims), key=_order, reverse=True)
        tapes, alone = shared(largest_first, lambda sizes: new.tape(region, self._types(sizes)))
        made = [self._taped(served, begin if begin in taken else taken[0], taken) for served, taken in tapes]
        if len(alone) > MOST_PLANS:
            what = f"got {len(alone)} that differ in what they run, wanted up to {MOST_PLANS}"
            raise ShapeError(f"{self.graph.called}: export: sets of shapes: {what}")
        made += map(self._planned, alone)
        return sorted(made, key=lambda chain: chain.begin != begin)

    def _new(self) -> StagedPlan:
        runner = self._runner
        return StagedPlan(self._cpu, runner.threads, runner.packs, runner.devices, loop_stages)

    def _types(self, dims: Sizes) -> list[TensorType]:
        return [TensorType(v.type.dtype, d) for v, d in zip(self._runner.region.inputs, dims, strict=True)]

    def _planned(self, dims: Sizes) -> PlannedSets:
        """The stages for inputs of these shapes."""
        made = self._new()
        made.build(self._runner.region, self._types(dims))
        return PlannedSets(made, dims, dims, 1)

    def _taped(self, served: Served, begin: Sizes, taken: Sequence[Sizes]) -> PlannedSets:
        made = self._new()
        greatest = tuple([tuple(map(max, *dims)) for dims in zip(*taken, strict=True)])
        made.take(served, self._types(greatest))
        return PlannedSets(made, greatest, begin, len(taken))

    def deciding(self) -> list[str]:
        """Inputs whose content decides shapes."""
        return [self._runner.region.inputs[i].name for i in self._runner.by_value]


@record(eq=False)
class Planned:
    """Plans of a graph, for the first set of shapes first.  threads: at most."""

    graph: Graph
    cpu: PlannedCpu
    chains: list[PlannedSets]
    threads: int


def planned(
    graph: Graph, shapes: Sequence[Shapes], target: str, threads: int, precision: str = "f32", numerics: str = "default"
) -> Planned:
    """Plans of a graph for a target and sets of shapes, of which each may leave out what the model fixes or hints at.

    Raises BoltError that lists all nodes which cannot leave Python.
    """
    graph = sized(graph, *shapes)
    session = _PlanningSession(graph, PlannedCpu(target), threads, precision, numerics)
    if strings := [spec.name for spec in (*session.inputs, *session.outputs) if spec.dtype == object]:
        raise BoltError(f"{graph.called}: export: values: got {', '.join(map(repr, strings))}, wanted only numbers")
    chains = session.chains([complete_shapes(graph, told) for told in shapes or ({},)])
    lacking = list(dict.fromkeys(text for chain in chains for text in chain.plan.problems))
    lines = "".join(f"\n  {text}" for text in lacking)
    if lacking and (deciding := session.deciding()):
        wanted = "wanted them fixed (--set NAME=VALUE), as shapes follow from what they hold"
        raise BoltError(f"{graph.called}: export: inputs: got {', '.join(map(repr, deciding))}, {wanted}:{lines}")
    if lacking:
        raise BoltError(f"{graph.called}: export: got {len(lacking)} nodes that have no native steps:{lines}")
    for chain in chains:
        _check_states(graph, chain.plan, chain.greatest)
    return Planned(graph, session._cpu, chains, threads)


def _check_states(graph: Graph, chain: StagedPlan, sizes: Sizes) -> None:
    """Raises ShapeError for a state that changes its size from run to run."""
    first = len(sizes) - len(graph.states)
    after = list(zip(chain.least, chain.greatest, strict=True))[len(chain.least) - len(graph.states) :]
    for value, size, ends in zip(graph.inputs[first:], sizes[first:], after, strict=True):
        if other := [dims for dims in ends if dims != size]:
            shown = f"{list(size)} at first and {list(other[0])} after a run"
            raise ShapeError(f"{graph.called}: export: state {value.name!r}: got {shown}, wanted one size for all runs")
