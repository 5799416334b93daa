"""Plans of a model for a target that need not be this machine: nothing of them is run, and none has an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bolt_numba.base.records import record
from bolt_numba.devices import device
from bolt_numba.errors import BoltError, ShapeError
from bolt_numba.export.lengths import stages_by_length
from bolt_numba.export.loops import loop_stages
from bolt_numba.export.stages import StagedPlan
from bolt_numba.export.targets import PlannedCpu
from bolt_numba.guesses import complete_shapes
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import sized
from bolt_numba.session import Session
from bolt_numba.types import TensorType

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device

Shapes = Mapping[str, Sequence[int]]


class _Planned(Session):
    """A session that plans and never runs."""

    def __init__(self, graph: Graph, cpu: PlannedCpu, threads: int, precision: str, numerics: str) -> None:
        self._cpu = cpu
        super().__init__(graph, threads=threads, precision=precision, numerics=numerics, stand_ins=False)

    def _devices_of(self, name: str | Sequence[str]) -> tuple[Device, ...]:
        self.device, self._plugins, self._computes_halves = self._cpu.name, None, False
        return self._cpu, device("host")

    def chain(self, shapes: Shapes) -> tuple[StagedPlan, list[tuple[int, ...]]]:
        """The stages for inputs of these shapes, and the shapes of all inputs."""
        runner, dims = self._runner, [tuple(shapes[spec.name]) for spec in self.inputs]
        dims += [array.shape for array in self.graph.states]
        made = StagedPlan(self._cpu, runner.threads, runner.packs, runner.devices, stages_by_length, loop_stages)
        types = [TensorType(v.type.dtype, d) for v, d in zip(runner.region.inputs, dims, strict=True)]
        made.build(runner.region, types)
        return made, dims

    def deciding(self) -> list[str]:
        """Inputs whose content decides shapes."""
        return [self._runner.region.inputs[i].name for i in self._runner.by_value]


@record(eq=False)
class Planned:
    """Plans of a graph, one for each set of shapes.

    inputs: shapes of the inputs of each, states with them.  threads: at most.
    """

    graph: Graph
    cpu: PlannedCpu
    chains: list[StagedPlan]
    inputs: list[list[tuple[int, ...]]]
    threads: int


def planned(
    graph: Graph, shapes: Sequence[Shapes], target: str, threads: int, precision: str = "f32", numerics: str = "default"
) -> Planned:
    """Plans of a graph for a target and sets of shapes, of which each may leave out what the model fixes or hints at.

    Raises BoltError that lists all nodes which cannot leave Python.
    """
    graph = sized(graph, *shapes)
    session = _Planned(graph, PlannedCpu(target), threads, precision, numerics)
    if strings := [spec.name for spec in (*session.inputs, *session.outputs) if spec.dtype == object]:
        raise BoltError(f"{graph.name}: export: values: got {', '.join(map(repr, strings))}, wanted tensors of numbers")
    chains, inputs = [], []
    for told in shapes or ({},):
        chain, sizes = session.chain(complete_shapes(graph, told))
        chains.append(chain)
        inputs.append(sizes)
    problems = list(dict.fromkeys(text for chain in chains for text in chain.problems))
    lines = "".join(f"\n  {text}" for text in problems)
    if problems and (deciding := session.deciding()):
        wanted = "wanted them fixed (--set NAME=VALUE), as shapes follow from what they hold"
        raise BoltError(f"{graph.name}: export: inputs: got {', '.join(map(repr, deciding))}, {wanted}:{lines}")
    if problems:
        raise BoltError(f"{graph.name}: export: got {len(problems)} nodes that have no native steps:{lines}")
    for chain, sizes in zip(chains, inputs, strict=True):
        _check_states(graph, chain, sizes)
    return Planned(graph, session._cpu, chains, inputs, threads)


def _check_states(graph: Graph, chain: StagedPlan, sizes: Sequence[tuple[int, ...]]) -> None:
    """Raises ShapeError for a state that changes its size from run to run."""
    first = len(sizes) - len(graph.states)
    after = list(zip(chain.least, chain.greatest, strict=True))[len(chain.least) - len(graph.states) :]
    for value, size, ends in zip(graph.inputs[first:], sizes[first:], after, strict=True):
        if other := [dims for dims in ends if dims != size]:
            shown = f"{list(size)} at first and {list(other[0])} after a run"
            raise ShapeError(f"{graph.name}: export: state {value.name!r}: got {shown}, wanted one size for all runs")
