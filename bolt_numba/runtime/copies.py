"""Values on their way between the memories of devices: jobs of their own, which memory plan and profile see."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import HOST, Arenas, Device, Memory
from bolt_numba.runtime.slots import TEMP, Job, Slot, view
from bolt_numba.types import Array, TensorType


class Copy(Op):
    """y = x in another place.  Only plans have it."""

    name = "Copy"

    def infer(self, x: TensorType) -> TensorType:
        return x.with_value(None)

    def reference(self, x: Array) -> Array:
        return x


class _Copies:
    """Executable and run of copies between the host and another memory."""

    nbytes = 0

    def __init__(self, jobs: Sequence[Job], arenas: Arenas) -> None:
        self.jobs, self.arenas = jobs, arenas

    def bind(self, arenas: Arenas) -> _Copies:
        return _Copies(self.jobs, arenas)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for job in self.jobs:
            self._copy(job, inputs, outputs)

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        clock = [time.perf_counter()]
        for job in self.jobs:
            self._copy(job, inputs, outputs)
            clock.append(time.perf_counter())
        return np.diff(clock).tolist()

    def _copy(self, job: Job, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        source, target = job.ins[0], job.outs[0]
        assert source is not None
        near, far = (source, target) if source.memory is HOST else (target, source)
        array = view(near, self.arenas.get(HOST), inputs, outputs)
        root, offset = far.root()
        move = far.memory.write if near is source else far.memory.read
        move(self.arenas[far.memory], root.place + offset, array)


class Mover(Device):
    """Runs copies between the host and other memories, by the methods of these."""

    name = "mover"

    def build(self, jobs: Sequence[Job], threads: int) -> _Copies:
        return _Copies(jobs, {})


MOVER = Mover()


def copied(source: Slot, memory: Memory, jobs: list[Job]) -> Slot:
    """A slot in ``memory`` with the value of another one, and the jobs that bring it there, by way of the host."""
    if source.memory is not HOST and memory is not HOST:
        source = copied(source, HOST, jobs)
    target = Slot(source.name, source.type.with_value(None), TEMP, memory=memory)
    where = f"to {memory.name}" if source.memory is HOST else f"from {source.memory.name}"
    jobs.append(Job(f"{source.name} (copy {where})", Copy(), MOVER, [source], [target], None, f"copy {where}"))
    return target
