"""Plans of a model for a target that need not be this machine: nothing of them is run, and none has an address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.devices import device
from bolt_numba.devices.cpu import Cpu
from bolt_numba.devices.program import Program, laid_out
from bolt_numba.errors import BoltError, DeviceError, ShapeError
from bolt_numba.guesses import complete_shapes
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.targets import TARGETS, is_foreign, packs_here
from bolt_numba.ops.control import ControlFlow
from bolt_numba.runtime.slots import Job
from bolt_numba.session import Session
from bolt_numba.types import Array

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device
    from bolt_numba.runtime.plan import Plan

NATIVE = "native"
"""The target that is the instruction set of this process."""
Shapes = Mapping[str, Sequence[int]]


def target_names() -> list[str]:
    """What a target may be called: by the level of its instructions."""
    return [NATIVE, *(target.level for target in TARGETS.values())]


def _own_name(target: str) -> str:
    """What `kernels.targets` calls a target, "" for this process's own.  Raises DeviceError for an unknown one."""
    if target == NATIVE:
        return ""
    found = {name: name for name in TARGETS} | {made.level: name for name, made in TARGETS.items()}
    if target not in found:
        raise DeviceError(f"target: got {target!r}, wanted one of {', '.join(target_names())}")
    return found[target]


class PlannedCpu(Cpu):
    """The processor of a target, for which programs are laid out and not linked."""

    def __init__(self, target: str = NATIVE) -> None:
        self.target = _own_name(target)
        super().__init__(self.target)
        self.is_foreign = bool(self.target) and is_foreign(self.target)
        if self.target and not packs_here(self.target):
            raise DeviceError(f"target: got {target!r}, wanted one whose vectors this processor has: they pack weights")

    def prepare(self, jobs: Sequence[Job]) -> None:
        if not self.is_foreign:
            super().prepare(jobs)

    def build(self, jobs: Sequence[Job], threads: int) -> Program:
        return laid_out(jobs, threads)


class _Planned(Session):
    """A session that plans and never runs."""

    def __init__(self, graph: Graph, cpu: PlannedCpu, threads: int, precision: str, numerics: str) -> None:
        self._cpu = cpu
        super().__init__(graph, threads=threads, precision=precision, numerics=numerics, stand_ins=False)

    def _devices_of(self, name: str | Sequence[str]) -> tuple[Device, ...]:
        self.device, self._plugins, self._computes_halves = self._cpu.name, None, False
        return self._cpu, device("host")

    def plan(self, shapes: Shapes) -> tuple[Plan, list[tuple[int, ...]]]:
        """The plan for inputs of these shapes, and the shapes of all inputs."""
        arrays = [_unread(spec.dtype, shapes[spec.name]) for spec in self.inputs] + self.graph.states
        return self._runner.prepare(arrays, waits=True).plan, [array.shape for array in arrays]

    def deciding(self) -> list[str]:
        """Inputs whose content decides shapes."""
        return [self._runner.region.inputs[i].name for i in self._runner.by_value]


def _unread(dtype: np.dtype[np.generic], shape: Sequence[int]) -> Array:
    """An array that takes no memory: planning looks at its shape."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


@record(eq=False)
class Planned:
    """Plans of a graph, one for each set of shapes.

    inputs: shapes of the inputs of each, states with them.  threads: at most.
    """

    graph: Graph
    cpu: PlannedCpu
    plans: list[Plan]
    inputs: list[list[tuple[int, ...]]]
    threads: int

    @property
    def programs(self) -> list[Program | None]:
        """What each plan runs; None where it runs nothing."""
        return [plan.segments[0].executable if plan.segments else None for plan in self.plans]  # type: ignore[misc]


def planned(
    graph: Graph, shapes: Sequence[Shapes], target: str, threads: int, precision: str = "f32", numerics: str = "default"
) -> Planned:
    """Plans of a graph for a target and sets of shapes, of which each may leave out what the model fixes or hints at.

    Raises BoltError that lists all nodes which cannot leave Python.
    """
    session = _Planned(graph, PlannedCpu(target), threads, precision, numerics)
    if deciding := session.deciding():
        wanted = "wanted them fixed (--set NAME=VALUE), as shapes follow from what they hold"
        raise BoltError(f"{graph.name}: export: inputs: got {', '.join(map(repr, deciding))}, {wanted}")
    if strings := [spec.name for spec in (*session.inputs, *session.outputs) if spec.dtype == object]:
        raise BoltError(f"{graph.name}: export: values: got {', '.join(map(repr, strings))}, wanted tensors of numbers")
    plans, inputs = [], []
    for told in shapes or ({},):
        plan, sizes = session.plan(complete_shapes(graph, told))
        plans.append(plan)
        inputs.append(sizes)
    problems = list(dict.fromkeys(text for plan in plans for text in _problems(plan)))
    if problems:
        lines = "".join(f"\n  {text}" for text in problems)
        raise BoltError(f"{graph.name}: export: got {len(problems)} nodes that have no native steps:{lines}")
    for plan, sizes in zip(plans, inputs, strict=True):
        _check_states(graph, plan, sizes)
    return Planned(graph, session._cpu, plans, inputs, threads)


def _check_states(graph: Graph, plan: Plan, sizes: Sequence[tuple[int, ...]]) -> None:
    """Raises ShapeError for a state that changes its size from run to run."""
    first = len(sizes) - len(graph.states)
    results = plan.results[len(plan.results) - len(graph.states) :]
    for value, size, result in zip(graph.inputs[first:], sizes[first:], results, strict=True):
        if result.type.dims != size:
            shown = f"{list(size)} at first and {list(result.type.dims)} after a run"
            raise ShapeError(f"{graph.name}: export: state {value.name!r}: got {shown}, wanted one size for all runs")


def _problems(plan: Plan) -> Iterator[str]:
    """A line for each node that needs Python."""
    for job in plan.jobs:
        if job.steps is None:
            types = ", ".join("-" if s is None else str(s.type) for s in job.ins)
            yield f"{job.name}: {job.op.name}({types}): no kernel takes it, so its reference runs"
    if plan.cut is not None:
        node = plan.cut.node
        types = ", ".join("-" if v is None else str(v.type) for v in node.operands)
        why = "its branch or count" if isinstance(node.op, ControlFlow) else "the size of its result"
        yield f"{node.name}: {node.op.name}({types}): data decide {why}; what follows is not planned ahead"
