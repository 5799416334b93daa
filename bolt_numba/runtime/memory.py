"""Where every buffer lives: views and concatenations share memory, the rest is placed by lifetime.

A lifetime is a range of job indices.  Placement is best fit in order of size (greedy by size): the largest buffers
get the lowest offsets, every later one goes into the smallest gap that is free during its lifetime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from bolt_numba.base.follow import value_of
from bolt_numba.base.records import record
from bolt_numba.base.selects import either, greatest
from bolt_numba.kernels.extents import check_steps
from bolt_numba.kernels.registry import In, Out, Pitch, Scratch, Step
from bolt_numba.kernels.unseen import Packed
from bolt_numba.runtime.device import HOST, Memory
from bolt_numba.runtime.slots import TEMP, Job, Slot

ALIGN = 64
LOOKS = 8_000_000
"""At blocks beside those that are placed, in one plan: two seconds of them."""


@record()
class Block:
    """A piece of an arena: ``nbytes`` at ``offset``, used from job ``first`` to job ``last``.

    stage: how many stops come before its size is known (`runtime.stops`).
    """

    nbytes: int
    first: int
    last: int
    offset: int = -1
    name: str = ""
    memory: Memory = HOST
    stage: int = 0


@record()
class MemoryPlan:
    """The arenas: their size, and each block (for `Session.memory` and for the test that none overlap)."""

    arenas: dict[Memory, int]
    blocks: list[Block]
    naive_nbytes: int
    """What it would take if no two buffers shared memory."""

    @property
    def nbytes(self) -> int:
        """Of all arenas."""
        return sum(self.arenas.values())


def place(blocks: Iterable[Block]) -> int:
    """Give every block an offset so that no two live at once overlap; returns the arena's size in bytes.

    Where thousands live at once, those that are left after `LOOKS` share nothing: they are the smallest.
    """
    ordered = sorted(blocks, key=lambda b: (-b.nbytes, b.first))
    live: list[set[tuple[int, int]]] = [set() for _ in range(max((b.last for b in ordered), default=-1) + 1)]
    total, looks = 0, LOOKS
    for block in ordered:
        size = -(-block.nbytes // ALIGN) * ALIGN
        if looks < 0:
            block.offset, total = total, total + size
            continue
        jobs = live[block.first : block.last + 1]  # what is placed so far, by the jobs during which it is alive
        best, best_gap, end = -1, -1, 0
        looks -= len(jobs) + sum(map(len, jobs))
        for low, high in sorted(set().union(*jobs)):
            gap = low - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            if high > end:
                end = high
        block.offset = end if best < 0 else best
        for job in jobs:
            job.add((block.offset, block.offset + size))
        total = max(total, block.offset + size)
    return total


def stacked(blocks: Iterable[Block], ends: list[Any]) -> int:
    """`place` for sizes that are followed: what lies below what is as `place` has it, and holds for any sizes.

    A block begins behind all that lie below it and live at the same time as it; those of earlier stages lie below it.
    ends: gets the size of the arena in each stage.
    """
    given = list(blocks)
    plain = [Block(max(value_of(b.nbytes), 1), b.first, b.last) for b in given]  # what is empty now may not stay so
    place(plain)
    total: int = 0
    done: list[tuple[Block, int, int]] = []
    for one, block in sorted(zip(plain, given, strict=True), key=lambda pair: (pair[1].stage, pair[0].offset)):
        block.offset, below, one.stage = 0, 0, block.stage
        ends += [total] * (block.stage - len(ends))
        for number in reversed(range(len(done))):  # the highest first: what lies below it lies below this one, too
            other, end, under = done[number]
            meet = other.first <= one.last and one.first <= other.last
            is_under = other.stage < one.stage or other.offset + other.nbytes <= one.offset
            if meet and not below >> number & 1 and is_under:
                block.offset, below = greatest(block.offset, end), below | under | 1 << number
        end = block.offset + -(-block.nbytes // ALIGN) * ALIGN
        done.append((one, end, below))
        total = greatest(total, end)
    ends.append(total)
    return total


def plan_memory(
    jobs: Sequence[Job], outputs: Sequence[Slot], placing: Callable[[Iterable[Block]], int] = place
) -> MemoryPlan:
    """Share what can be shared, then place the rest by ``placing``; writes ``Slot.place`` and ``Job.scratch``."""
    kept = _kept(outputs)
    alias_concats(jobs, kept)
    alias_inplace(jobs, kept)
    blocks: list[Block] = []
    owners: dict[int, Block] = {}
    slots: list[tuple[Slot, Block]] = []
    for number, job in enumerate(jobs):
        for slot in [*job.ins, *job.outs]:
            if slot is None:
                continue
            root, _ = slot.root()
            if root.kind != TEMP or root.result >= 0:
                continue
            block = owners.get(id(root))
            if block is None:
                nbytes, stage = root.type.nbytes, job.stage
                block = Block(nbytes, number, number, name=root.name, memory=root.memory, stage=stage)
                owners[id(root)] = block
                slots.append((root, block))
                blocks.append(block)
            block.first, block.last = min(block.first, number), max(block.last, number)
    pending: list[tuple[Job, int, Block]] = []
    for number, job in enumerate(jobs):
        for scratch, when in _scratches(job):
            name, memory = f"{job.name} (scratch)", job.device.memory
            nbytes = either(when, scratch.nbytes, 0)
            block = Block(nbytes, number, number, name=name, memory=memory, stage=job.stage)
            pending.append((job, id(scratch), block))
            blocks.append(block)
    memories = dict.fromkeys(block.memory for block in blocks)
    arenas = {memory: placing(b for b in blocks if b.memory is memory) for memory in memories}
    for root, block in slots:
        root.place = block.offset
    for job, key, block in pending:
        job.scratch[key] = block.offset
    return MemoryPlan(arenas, blocks, sum(b.nbytes for b in blocks))


def _scratches(job: Job) -> list[tuple[Scratch, Any]]:
    """Workspace of a job, and when a step has it."""
    found: dict[int, tuple[Scratch, Any]] = {}
    for step in job.steps or ():
        for arg in step.args.values():
            if type(arg) is Scratch:
                found[id(arg)] = arg, step.when | found[id(arg)][1] if id(arg) in found else step.when
    return list(found.values())


def _kept(outputs: Sequence[Slot]) -> set[int]:
    return {id(s) for s in outputs}


# --- concatenations without copies -----------------------------------------------------------------------------------


def offers_pitch(steps: Sequence[Step], operand: In | Out) -> bool:
    """Whether every step that touches the operand takes its pitch as an argument."""
    for step in steps:
        args = step.args.values()
        touches = any(isinstance(a, type(operand)) and a.index == operand.index for a in args)
        if touches and not any(isinstance(a, Pitch) and a.of == type(operand)(operand.index) for a in args):
            return False
    return True


class _Users:
    """Who makes and who reads each slot."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.maker: dict[int, tuple[Job, int]] = {}
        self.readers: dict[int, list[tuple[Job, int]]] = {}
        self.shared: set[int] = set()
        for job in jobs:
            for i, slot in enumerate(job.outs):
                self.maker[id(slot)] = (job, i)
            for i, read in enumerate(job.ins):
                if read is not None:
                    self.readers.setdefault(id(read), []).append((job, i))
                    base = read.base
                    while base is not None:
                        self.shared.add(id(base))
                        base = base.base

    def pitched(self, slot: Slot) -> bool:
        """Whether the maker can write rows apart and every reader can read them so."""
        job, index = self.maker[id(slot)]
        if not _joins_rows(job) and (job.steps is None or not offers_pitch(job.steps, Out(index))):
            return False
        return all(
            _joins_rows(reader) or (reader.steps is not None and offers_pitch(reader.steps, In(i)))
            for reader, i in self.readers.get(id(slot), ())
        )


def _is_join(job: Job) -> bool:
    """Whether a job joins its operands along an axis, on a device that may do so by steps on parts of the result."""
    return job.op.joined_axis is not None and job.steps is not None and job.device.aliases


def _joins_rows(job: Job) -> bool:
    """Whether a job joins along the last axis, so that its rows may lie apart."""
    return _is_join(job) and (job.op.joined_axis or 0) % len(job.outs[0].type.dims) == len(job.outs[0].type.dims) - 1


def alias_concats(jobs: Sequence[Job], kept: set[int]) -> None:
    """Let the makers of operands that are joined write straight into the result, last join first (they nest)."""
    if not any(map(_is_join, jobs)):
        return
    users = _Users(jobs)
    for job in reversed(jobs):
        if _is_join(job):
            _alias_concat(job, users, kept)
    for job in jobs:  # what a join reads may since lie apart in another one, and its own kernel cannot read that
        if not _joins_rows(job) or any(s is None or s.base is job.outs[0] for s in job.ins):
            continue
        if any(s is not None and s.pitch is not None for s in job.ins):
            _copy_all(job)


def _alias_concat(job: Job, users: _Users, kept: set[int]) -> None:
    out = job.outs[0]
    dims = out.type.dims
    assert job.op.joined_axis is not None
    axis = job.op.joined_axis % len(dims)
    outer = 1
    for d in dims[:axis]:
        outer *= d
    last = axis == len(dims) - 1
    if outer > 1 and not last:
        return
    inner = out.type.dtype.itemsize
    for d in dims[axis + 1 :]:
        inner *= d
    offset = 0
    copied: list[int] = []
    times = Counter(map(id, job.ins))
    for i, slot in enumerate(job.ins):
        assert slot is not None
        size = slot.type.dims[axis] * inner
        free = (
            slot.kind == TEMP and slot.base is None and slot.result < 0 and id(slot) not in kept
            and times[id(slot)] == 1 and id(slot) in users.maker and users.maker[id(slot)][0].stage == job.stage
        )  # fmt: skip
        dense = outer == 1 and out.pitch is None
        if free and (dense or (last and id(slot) not in users.shared and users.pitched(slot))):
            slot.base, slot.offset = out, offset
            slot.pitch = None if dense else out.row
            users.shared.add(id(out))
        else:
            copied.append(i)
        offset += size
    if len(copied) < len(job.ins) or out.pitch is not None:
        job.steps = _copies(job, copied, axis, outer, inner)
        job.runner = "concat in place" if not copied else "concat (partly in place)"


def _copy_all(job: Job) -> None:
    """Have a join of rows copy each operand by a step of its own."""
    outer = 1
    for d in job.outs[0].type.dims[:-1]:
        outer *= d
    job.steps = _copies(
        job, range(len(job.ins)), len(job.outs[0].type.dims) - 1, outer, job.outs[0].type.dtype.itemsize
    )


def _copies(job: Job, operands: Sequence[int], axis: int, outer: int, inner: int) -> list[Step]:
    """Steps that copy only these operands of a join into its result."""
    itemsize = job.outs[0].type.dtype.itemsize
    offset, steps = 0, []
    for i, slot in enumerate(job.ins):
        assert slot is not None
        size = slot.type.dims[axis] * inner
        if i in operands and size and outer:
            steps.append(job.device.copy_step(In(i), Out(0, offset), outer, size, itemsize))
        offset += size
    return steps


def alias_inplace(jobs: Sequence[Job], kept: set[int]) -> None:
    """Let an output take over the buffer of an operand that nobody reads again."""
    last_read: dict[int, int] = {}
    members: dict[int, int] = {}
    for number, job in enumerate(jobs):
        for slot in job.ins:
            if slot is not None:
                last_read[id(slot.root()[0])] = number
        for slot in job.outs:
            root = slot.root()[0]
            members[id(root)] = members.get(id(root), 0) + 1
    for number, job in enumerate(jobs):
        if not job.inplace or job.steps is None or len(job.outs) != 1:
            continue
        out = job.outs[0]
        if out.base is not None or out.result >= 0 or id(out) in kept:
            continue
        for i in job.inplace:
            slot = job.ins[i] if i < len(job.ins) else None
            if slot is None or slot.pitch is not None:
                continue
            root = slot.root()[0]
            mine = root.kind == TEMP and root.result < 0 and id(root) not in kept and members.get(id(root)) == 1
            mine = mine and not root.is_room
            if not mine or last_read.get(id(root)) != number or root.type.nbytes != out.type.nbytes:
                continue
            # An operand that is read otherwise would be read when it is partly written.
            if all(s is None or k in job.inplace or s.root()[0] is not root for k, s in enumerate(job.ins)):
                out.base, out.offset = root, 0
                last_read[id(root)] = max(last_read[id(root)], last_read.get(id(out), number))
                break


# --- pairs of steps that run a band at a time, with few rows between them -------------------------------------------


def _pairs(one: Job, two: Job, readers: dict[int, int], threads: int, chooses: bool) -> list[Step]:
    """The joined steps of two jobs if they are a pair: each runs when a step of the first would."""
    if not two.steps or not two.steps[0].in_bands or not one.steps or len(two.steps) > 1:
        return []
    between = one.outs[0]
    if two.ins[0] is not between or readers.get(id(between)) != 1 or len(one.outs) > 1:
        return []
    if between.base is not None or between.result >= 0 or one.device is not two.device:
        return []
    if len(one.steps) > 1 and any(step.when is True for step in one.steps):
        return []
    made = []
    for step in one.steps:
        joined = one.device.join(step, two.steps[0], len(one.ins), between.type, threads)
        if joined is not None and joined.when is not False and (chooses or joined.when):
            made.append(replace(joined, when=step.when & joined.when if chooses else True))
    return made


JOINED = " + "
"""Between the names of two nodes that are one step."""


def in_bands(jobs: Sequence[Job], results: Sequence[Slot], threads: int, chooses: bool = False) -> list[Job]:
    """Join steps that can run in bands with those before them, where their device knows one step for both.

    chooses: whether sizes that are followed choose whether they do.
    """
    if not any(job.steps and job.steps[0].in_bands for job in jobs):
        return list(jobs)
    readers: dict[int, int] = {}
    for slot in [s for job in jobs for s in job.ins if s is not None] + list(results):
        root = slot.root()[0]
        readers[id(root)] = readers.get(id(root), 0) + 1
    made: list[Job] = []
    for job in jobs:
        steps = _pairs(made[-1], job, readers, threads, chooses) if made else []
        if not steps:
            made.append(job)
            continue
        one = made.pop()
        leaving = [*one.leaving, *job.leaving]
        name, runner = f"{one.name}{JOINED}{job.name}", f"{one.runner}{JOINED}{job.runner}"
        ins = [*one.ins, *job.ins[1:]]
        check_steps(job.op, steps, [None if s is None else s.type for s in ins], [s.type for s in job.outs], threads)
        if steps[0].when is not True:
            made.append(replace(one, steps=[_unless(step, steps) for step in one.steps or ()], leaving=(), scratch={}))
            ins, steps = [*ins, one.outs[0]], [*steps, *(_unless(step, steps) for step in _moved(job, len(one.ins)))]
        made.append(
            replace(job, name=name, ins=ins, steps=steps, runner=runner, inplace=(), leaving=leaving, scratch={})
        )
    return made


def _unless(step: Step, others: Sequence[Step]) -> Step:
    """A step that runs when none of others does."""
    when = step.when
    for other in others:
        when = when & (other.when ^ True)
    return replace(step, when=when)


def _moved(job: Job, first: int) -> list[Step]:
    """The steps of a job, all of whose operands come ``first`` further but for the first one, which comes last."""
    places = [first + len(job.ins) - 1, *range(first, first + len(job.ins) - 1)]

    def moved(arg: Any) -> Any:
        if type(arg) is Pitch:
            return Pitch(moved(arg.of))
        if type(arg) is Packed:
            return arg.moved(places.__getitem__)
        return replace(arg, index=places[arg.index]) if type(arg) is In else arg

    return [replace(step, args={name: moved(arg) for name, arg in step.args.items()}) for step in job.steps or ()]
