"""The device of the runtime for a plug-in: nodes that hold a part of the graph for it, run by requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bolt_numba.base.types import TensorType
from bolt_numba.devices.parts.bound import BoundPart
from bolt_numba.devices.parts.opened import Opened
from bolt_numba.devices.parts.own import Settings
from bolt_numba.devices.parts.part import Part
from bolt_numba.ops.foreign import Foreign
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import HOST, Arenas, Device
from bolt_numba.runtime.slots import Job


class Plugin(Device):
    """A plug-in in one session, in the host's memory."""

    def __init__(self, opened: Opened, settings: Settings) -> None:
        self.name, self.opened, self.settings = opened.name, opened, settings
        self.parts: dict[int, Part] = {}
        self._ops: list[Foreign] = []

    def runs(self, op: Op) -> str:
        return self.name if isinstance(op, Foreign) and op.device == self.name else ""

    def part(self, op: Any, name: str) -> Part:
        """Of a node, the same for all plans."""
        found = self.parts.get(id(op))
        if found is None:
            self._ops.append(op)  # so that its id stays its own
            found = self.parts.setdefault(id(op), Part(name, op.graph, self.opened, self.settings))
        return found

    def build(self, jobs: Sequence[Job], threads: int) -> ForeignProgram:
        return ForeignProgram([(job, self.part(job.op, job.name)) for job in jobs])

    def uploads(self, executable: ForeignProgram) -> Mapping[int, int]:
        return {key: nbytes for _, part, _ in executable.jobs for key, nbytes in part.held().items()}

    def counts(self, job: Job) -> Mapping[str, int]:
        return self.part(job.op, job.name).last

    def facts(self, job: Job) -> Mapping[str, Any]:
        return self.part(job.op, job.name).facts(_types(job))

    def forget(self) -> None:
        """Let go what is compiled for all parts."""
        for part in list(self.parts.values()):
            part.forget()

    def describe(self) -> str:
        return f"{self.name} {self.opened.version}".rstrip()


class ForeignProgram:
    """Jobs that are parts for one device; what they need is compiled when this is made."""

    nbytes = 0

    def __init__(self, jobs: Sequence[tuple[Job, Part]]) -> None:
        self.jobs = [(job, part, part.asked(_types(job))) for job, part in jobs]
        for _, part, wanted in self.jobs:
            part.prepare(wanted)

    def bind(self, arenas: Arenas) -> ForeignRun:
        arena = arenas.get(HOST)
        return ForeignRun([BoundPart(job, part, wanted, arena) for job, part, wanted in self.jobs])


class ForeignRun:
    """The jobs in the memory of one run."""

    def __init__(self, jobs: Sequence[BoundPart]) -> None:
        self.jobs = jobs

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for job in self.jobs:
            job.run(inputs, outputs)

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        seconds = []
        for job in self.jobs:
            start = time.perf_counter()
            job.run(inputs, outputs)
            seconds.append(time.perf_counter() - start)
        return seconds


def _types(job: Job) -> list[TensorType]:
    return [slot.type for slot in job.ins if slot is not None]
