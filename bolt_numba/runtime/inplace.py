"""Whether an output may be written over an input: read off the jobs of a plan, for state that is passed in and out."""

from __future__ import annotations

from collections.abc import Iterator

from bolt_numba.kernels.registry import In, Out
from bolt_numba.runtime.plan import Plan
from bolt_numba.runtime.slots import INPUT, TEMP, Job, Slot

Moment = tuple[int, int]
"""Job and step; moments are ordered as they run, all that happens in one moment may be interleaved."""


def can_overwrite(plan: Plan, output: int, source: int) -> bool:
    """Whether nothing reads input ``source`` after the first write to result ``output``, if both are one buffer.

    What one step does in its own order counts only where its kernel promises to read an element before it writes it.
    """
    result = plan.results[output]
    for index, other in enumerate(plan.results):
        if index != output and other.kind == INPUT and other.index == source:
            return False  # it is filled in after the run
    if result.kind != TEMP:
        return True
    root = result.root()[0]
    last_read: Moment = (-1, -1)
    first_write: Moment | None = None
    for number, job in enumerate(plan.jobs):
        reads = [i for i, slot in enumerate(job.ins) if slot is not None and _reads(slot, source)]
        writes = [i for i, slot in enumerate(job.outs) if slot.root()[0] is root]
        if reads and writes and _element_by_element(job, reads, writes, result):
            # Reads and writes keep in step; only what runs earlier or later counts.
            first_write = first_write or (number, len(job.steps or ()))
            last_read = max(last_read, (number, -1))
        else:
            last_read = max([last_read, *_moments(job, number, reads, In)])
            first_write = first_write or min(_moments(job, number, writes, Out), default=None)
    return first_write is None or last_read < first_write


def _reads(slot: Slot, source: int) -> bool:
    root = slot.root()[0]
    return root.kind == INPUT and root.index == source


def _moments(job: Job, number: int, operands: list[int], kind: type[In] | type[Out]) -> Iterator[Moment]:
    """When a job touches these operands."""
    if not operands:
        return
    if job.steps is None:
        yield number, 0
        return
    for step, made in enumerate(job.steps):
        if any(isinstance(arg, kind) and arg.index in operands for arg in made.args.values()):
            yield number, step


def _element_by_element(job: Job, reads: list[int], writes: list[int], result: Slot) -> bool:
    """Whether the job reads each element of the input no later than it writes it, and both have one form."""
    if job.steps is None or len(writes) != 1:
        return False
    out = job.outs[writes[0]]
    slots = [job.ins[i] for i in reads]
    for slot in (out, *slots):
        assert slot is not None
        same = slot.type.dtype == result.type.dtype and slot.type.size == result.type.size
        if not same or slot.pitch is not None or slot.root()[1]:
            return False
    if len(job.outs) == 1:
        return set(reads) <= set(job.inplace)
    return len(reads) == 1 and (reads[0], writes[0]) in job.states
