"""Which pairs of jobs run a band of rows at a time: one, and the one that alone reads its large result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bolt_numba.kernels.extents import check_steps
from bolt_numba.kernels.registry import Step
from bolt_numba.runtime.slots import Job, Slot


def _pair(one: Job, two: Job, readers: dict[int, int], threads: int) -> Step | None:
    """The joined step of two jobs, if they are a pair."""
    if not two.steps or not two.steps[0].in_bands or not one.steps or len(one.steps) > 1 or len(two.steps) > 1:
        return None
    between = one.outs[0]
    if two.ins[0] is not between or readers.get(id(between)) != 1 or len(one.outs) > 1:
        return None
    if between.base is not None or between.result >= 0:
        return None
    if one.device is not two.device:
        return None
    return one.device.join(one.steps[0], two.steps[0], len(one.ins), between.type, threads)


def in_bands(jobs: Sequence[Job], results: Sequence[Slot], threads: int) -> list[Job]:
    """Join steps that can run in bands with those before them, where their device knows one step for both."""
    if not any(job.steps and job.steps[0].in_bands for job in jobs):
        return list(jobs)
    readers: dict[int, int] = {}
    for slot in [s for job in jobs for s in job.ins if s is not None] + list(results):
        root = slot.root()[0]
        readers[id(root)] = readers.get(id(root), 0) + 1
    made: list[Job] = []
    for job in jobs:
        step = _pair(made[-1], job, readers, threads) if made else None
        if step is None:
            made.append(job)
            continue
        one = made.pop()
        name, runner = f"{one.name} + {job.name}", f"{one.runner} + {job.runner}"
        ins = [*one.ins, *job.ins[1:]]
        check_steps(job.op, [step], [None if s is None else s.type for s in ins], [s.type for s in job.outs], threads)
        made.append(replace(job, name=name, ins=ins, steps=[step], runner=runner, inplace=(), scratch={}))
    return made
