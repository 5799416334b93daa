"""The host: runs operators by their NumPy references over views of the buffers.  What nothing else takes runs here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.cancelling import IN_FORCE, check
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.runtime.device import HOST, Arenas, Device
from bolt_numba.runtime.slots import Job, view
from bolt_numba.runtime.stand_ins import give_way


class _References:
    """The jobs of a segment; its run has their arena, too."""

    nbytes = 0

    def __init__(self, jobs: Sequence[Job], arena: Any = None) -> None:
        self.jobs, self.arena = jobs, arena

    def bind(self, arenas: Arenas) -> _References:
        return _References(self.jobs, arenas.get(HOST))

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for job in self.jobs:
            if IN_FORCE:
                check()
            give_way(job)
            self._compute(job, inputs, outputs)

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        seconds = []
        for job in self.jobs:
            start = time.perf_counter()
            self._compute(job, inputs, outputs)
            seconds.append(time.perf_counter() - start)
        return seconds

    def _compute(self, job: Job, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run one reference and write its results into their buffers."""
        args = [None if s is None else view(s, self.arena, inputs, outputs) for s in job.ins]
        try:
            with np.errstate(all="ignore"):
                results = result_tuple(job.op.reference(*args))
            for slot, result in zip(job.outs, results, strict=True):
                view(slot, self.arena, inputs, outputs)[...] = result
        except Exception as error:
            raise at_node(error, job.op, job.name) from error


class Host(Device):
    """References, in the memory that the CPU's kernels have, too."""

    name = "host"

    def runs(self, op: Op) -> str:
        return "reference"

    def build(self, jobs: Sequence[Job], threads: int) -> _References:
        return _References(jobs)


DEVICE = Host()
