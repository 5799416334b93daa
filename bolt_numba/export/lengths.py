"""Stages behind a result whose length data decide: planned for each length, and kept as what differs between them.

Kernels take sizes as numbers of their parameter records.  So plans of most lengths have the same steps, and their
records differ in few words, each of which mostly grows with the length by the same amount.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.devices.program import Program, laid_out
from bolt_numba.export.stages import MOST_LENGTHS, Lengths, NotAheadError, Place, RunStage, StagedPlan, problems
from bolt_numba.kernels.registry import Scratch
from bolt_numba.runtime.slots import INPUT, TEMP, Job, Slot
from bolt_numba.types import Array, TensorType

if TYPE_CHECKING:
    from bolt_numba.runtime.plan import Plan
    from bolt_numba.runtime.region import Region


@record(eq=False)
class _Way:
    """Lengths that are planned alike: plan and program of the longest, and the words of all."""

    plan: Plan
    program: Program
    arena_nbytes: int
    ns: list[int]
    words: list[Array]


def stages_by_length(chain: StagedPlan, region: Region, numbers: list[int], length: int) -> list[tuple[int, int, int]]:
    """Add the stages of a region that reads results of this length; which of them is for which lengths."""
    most = max(p.type.dims[p.axis] for p in (chain.types[n] for n in numbers) if p.length == length)
    if most >= MOST_LENGTHS:
        raise NotAheadError(f"what follows depends on a length of up to {most}: wanted less than {MOST_LENGTHS}")
    ways: dict[Hashable, _Way] = {}
    longest_first = range(most, -1, -1)
    order = [_add(chain, region, _at(chain, numbers, length, n), ways, n) for n in longest_first]
    return list(_choices(chain, numbers, ways, order[::-1]))


def _at(chain: StagedPlan, numbers: Sequence[int], length: int, n: int) -> list[Place]:
    """The inputs where a length is n."""

    def of(place: Place) -> Place:
        if place.length != length:
            return place
        dims = [min(n, d) if axis == place.axis else d for axis, d in enumerate(place.type.dims)]
        return Place(TensorType(place.type.dtype, tuple(dims)))

    return [of(chain.types[i]) for i in numbers]


def _add(
    chain: StagedPlan, region: Region, inputs: Sequence[Place], ways: dict[Hashable, _Way], n: int
) -> Hashable:
    """Plan a region for a length, and put it to those that are planned alike; the key of these."""
    types = [place.type for place in inputs]
    with chain.cpu.only_planned():
        plan = chain.plan(region, types)
    if plan.cut is not None:
        raise NotAheadError("what follows depends on a length, and data decide in it once more")
    found = list(problems(plan))
    if found:
        raise NotAheadError("what follows has other nodes that need Python: " + "; ".join(found))
    chain.ends(plan.results, inputs)
    key, arena = _form(plan), sum(plan.memory.arenas.values())
    known = ways.get(key)
    if known is not None:
        if _moved(known.plan, plan):
            arena = max(arena, known.arena_nbytes)
            program = laid_out(plan.jobs, chain.threads)
            if _names(program) == _names(known.program):
                known.ns.append(n)
                known.words.append(_words(program, plan, types))
                return key
        key = key, n
    program = laid_out(plan.jobs, chain.threads)
    ways[key] = _Way(plan, program, arena, [n], [_words(program, plan, types)])
    return key


def _slots(jobs: Sequence[Job]) -> Iterator[Slot]:
    for job in jobs:
        for slot in (*job.ins, *job.outs):
            if slot is not None:
                yield slot


def _form(plan: Plan) -> Hashable:
    """What plans alike have in common: kernels, who reads what, and how results come about."""
    roots: dict[int, int] = {}
    places = tuple(roots.setdefault(id(slot.root()[0]), len(roots)) for slot in _slots(plan.jobs))
    steps = tuple((id(step.kernel), step.parallel) for job in plan.jobs for step in job.steps or ())
    results = tuple((s.kind, s.index) if s.kind != "const" else _digest(s.const) for s in plan.results)
    return steps, places, results, tuple(len(job.scratch) for job in plan.jobs)


def _moved(model: Plan, plan: Plan) -> bool:
    """Put buffers of a plan where those of another are that is planned alike and larger; whether they fit there."""
    moves = []
    for theirs, mine in zip(_slots(model.jobs), _slots(plan.jobs), strict=True):
        from_, to = theirs.root()[0], mine.root()[0]
        if to.kind == TEMP and to.result < 0:
            if to.type.nbytes > from_.type.nbytes or from_.kind != TEMP:
                return False
            moves.append((to, from_.place))
        elif (to.kind, to.index, to.result) != (from_.kind, from_.index, from_.result):
            return False
    scratch = []
    for job, other in zip(plan.jobs, model.jobs, strict=True):
        sizes, theirs_of = _scratch_sizes(job), _scratch_sizes(other)
        if any(a > b for a, b in zip(sizes, theirs_of, strict=True)):
            return False
        scratch.append(dict(zip(job.scratch, other.scratch.values(), strict=True)))
    for root, at in moves:
        root.place = at
    for job, places in zip(plan.jobs, scratch, strict=True):
        job.scratch = places
    return True


def _scratch_sizes(job: Job) -> list[int]:
    args = [arg for step in job.steps or () for arg in step.args.values()]
    found = {id(arg): arg.nbytes for arg in args if isinstance(arg, Scratch)}
    return [found[key] for key in job.scratch]


def _names(program: Program) -> Hashable:
    """All that a program refers to, without how far into it."""
    links = program.links
    kernels = tuple(kernel.symbol for kernel in links.kernels)
    ports = tuple((i, tuple(at for at, _ in rows)) for side in (program.inputs, program.outputs)
                  for i, rows in side.items())  # fmt: skip
    tables = [links.steps, program.record_offsets, program.flags, links.in_kernels[:, :2], links.in_arrays[:, :2],
              program.arena_places, program.own_places, program.own_offsets]  # fmt: skip
    arrays = tuple(map(_digest, links.arrays))
    faults = tuple((job.name, operand) for job, operand in program.faults)
    return kernels, ports, arrays, faults, len(program.image), tuple(t.tobytes() for t in tables)


def _digest(array: Array | None) -> bytes:
    assert array is not None
    return blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()


def _words(program: Program, plan: Plan, types: Sequence[TensorType]) -> Array:
    """The image, what is added to addresses in their words, and behind it the sizes of all outputs."""
    made = with_sizes(program, [t.dims for t in result_types(plan, types)]).view(np.int64)
    for rows in (*program.inputs.values(), *program.outputs.values()):
        for word, offset in rows:
            made[word] = offset
    made[program.arena_places] = program.arena_offsets
    for table in (program.links.in_kernels, program.links.in_arrays):
        made[table[:, 0]] = table[:, 2]
    made[program.own_places] = program.own_offsets
    return made


def result_types(plan: Plan, types: Sequence[TensorType]) -> list[TensorType]:
    return [types[slot.index] if slot.kind == INPUT else slot.type for slot in plan.results]


def with_sizes(program: Program | None, shapes: Sequence[Sequence[int]]) -> Array:
    """A copy of an image with shapes behind it, as bytes; they begin where the image ended."""
    image = b"" if program is None else program.image.tobytes()
    sizes = np.array([d for dims in shapes for d in dims] or [0], np.int64).tobytes()
    return np.frombuffer(bytearray(image + sizes), np.uint8)


def _choices(
    chain: StagedPlan, numbers: list[int], ways: dict[Hashable, _Way], order: Sequence[Hashable]
) -> Iterator[tuple[int, int, int]]:
    stages: dict[Hashable, int] = {}
    for key, way in ways.items():
        way.ns.reverse()
        lengths = Lengths(np.array(way.ns, np.int64), np.stack(way.words[::-1]))
        outputs = [chain.first_output + i for i in range(chain.outputs)]
        plan, arena = way.plan, way.arena_nbytes
        made = RunStage(way.program, plan.jobs, arena, numbers, outputs, plan.results, lengths=lengths)
        stages[key] = chain.stage(made)
    low = 0
    for n in range(1, len(order) + 1):
        if n == len(order) or order[n] != order[low]:
            yield low, n - 1, stages[order[low]]
            low = n


def runs(ns: Array, values: Array) -> Iterator[tuple[int, int, int]]:
    """What values are by their numbers: (first, value, slope), of which each holds up to the next."""
    start, count = 0, len(ns)
    while start < count:
        first, value = int(ns[start]), values[start]
        if start + 1 == count:
            yield first, int(value), 0
            return
        step = int(ns[start + 1]) - first
        slope = (int(values[start + 1]) - int(value)) // step
        with np.errstate(over="ignore"):
            good = values[start:] == value + np.int64(slope) * (ns[start:] - first) if _is_small(slope) else None
        end = start + 1 if good is None or not good[1] else count if good.all() else start + int(np.argmin(good))
        yield first, int(value), slope if end > start + 1 else 0
        start = end


def _is_small(number: int) -> bool:
    return -(1 << 62) < number < 1 << 62
