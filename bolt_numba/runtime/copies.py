"""Values on their way between the memories of devices: jobs of their own, which memory plan and profile see.

Inputs and results that a caller has in the memory of a device are copied there, where only such jobs touch them.  An
array of that kind has NumPy's ``shape``, ``dtype`` and ``flags``, ``is_elsewhere``, its ``memory``, and ``write``;
`np.asarray` copies it to the host.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import DeviceError, DTypeError
from bolt_numba.base.types import Array, TensorType
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import HOST, Arenas, Device, Memory
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot, view

if TYPE_CHECKING:
    from bolt_numba.runtime.plan import Plan
    from bolt_numba.runtime.prepared import Prepared


class Copy(Op):
    """y = x in another place.  Only plans have it."""

    name = "Copy"

    def infer(self, x: TensorType) -> TensorType:
        return x.with_value(None)

    def reference(self, x: Array) -> Array:
        return x


class _CopyRun:
    """Executable and run of copies between the host and another memory."""

    nbytes = 0

    def __init__(self, jobs: Sequence[Job], arenas: Arenas) -> None:
        self.jobs, self.arenas = jobs, arenas

    def bind(self, arenas: Arenas) -> _CopyRun:
        return _CopyRun(self.jobs, arenas)

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
        root, offset = far.root()
        place = self.arenas[far.memory], root.place + offset
        given, at = _of_caller(near, inputs, outputs)
        if given is None or type(given) is np.ndarray:
            move = far.memory.write if near is source else far.memory.read
            move(*place, view(near, self.arenas.get(HOST), inputs, outputs))
        else:  # in that memory, too
            hand = far.memory.take if near is source else far.memory.give
            hand(*place, given, at, near.type.nbytes)


def _of_caller(slot: Slot, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, int]:
    """The array of the caller's that a slot lies in, and where in it; None where it lies in none."""
    root, offset = slot.root()
    if root.kind == INPUT:
        return inputs[root.index], offset
    return (outputs[root.result], offset) if root.result >= 0 else (None, 0)


class Mover(Device):
    """Runs copies between the host and other memories, by the methods of these."""

    name = "mover"

    def build(self, jobs: Sequence[Job], threads: int) -> _CopyRun:
        return _CopyRun(jobs, {})


MOVER = Mover()


def with_copies(jobs: Iterable[Job], wanted: Iterable[Slot]) -> tuple[list[Job], list[Slot]]:
    """The jobs, and others that copy operands to where they are read; ``wanted`` values are on the host then."""
    made: list[Job] = []
    there: dict[tuple[int, Memory], Slot] = {}

    def at(slot: Slot, memory: Memory) -> Slot:
        slot.memory = slot.root()[0].memory
        if slot.kind == CONST or slot.memory is memory:
            return slot
        if (id(slot), memory) not in there:
            there[id(slot), memory] = copied(slot, memory, made)
        return there[id(slot), memory]

    for job in jobs:
        memory = job.device.memory
        for out in job.outs:
            out.memory = memory
        job.ins = [None if s is None else at(s, memory) for s in job.ins]
        made.append(job)
    return made, [at(slot, HOST) for slot in wanted]


def copied(source: Slot, memory: Memory, jobs: list[Job]) -> Slot:
    """A slot in ``memory`` with the value of another one, and the jobs that bring it there, by way of the host."""
    if source.memory is not HOST and memory is not HOST:
        source = copied(source, HOST, jobs)
    target = Slot(source.name, source.type.with_value(None), TEMP, memory=memory)
    where = f"to {memory.name}" if source.memory is HOST else f"from {source.memory.name}"
    jobs.append(Job(f"{source.name} (copy {where})", Copy(), MOVER, [source], [target], None, f"copy {where}"))
    return target


# --- arrays of the caller in the memory of a device ---------------------------------------------------------------


def is_elsewhere(value: Any) -> bool:
    """Whether it is an array in the memory of a device."""
    return type(value) is not np.ndarray and getattr(value, "is_elsewhere", False) is True


def imported(devices: Sequence[Device], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same arrays, those in memories of these devices as such."""
    return {name: v if type(v) is np.ndarray else _imported(devices, name, v) for name, v in values.items()}


def _imported(devices: Sequence[Device], name: str, value: Any) -> Any:
    for device in devices:
        try:
            found = device.imported(value)
        except DeviceError:
            raise
        except Exception as error:  # of any kind: foreign objects convert themselves
            raise DTypeError(f"array {name!r}: got a {type(value).__name__} that cannot be taken: {error}") from error
        if found is not None:
            return found
    return value  # one of another GPU's, too: `on_host` and `write` copy these


def on_host(plan: Plan, arrays: Sequence[Any]) -> Sequence[Any]:
    """Inputs of a run: those that others than copies to their own memory read come to the host."""
    if not any(map(is_elsewhere, arrays)):
        return arrays
    return [
        np.asarray(a) if is_elsewhere(a) and not _is_read_by_copies(plan, i, a.memory) else a
        for i, a in enumerate(arrays)
    ]


def _is_read_by_copies(plan: Plan, index: int, memory: Memory) -> bool:
    found = plan.elsewhere.get((index, memory))
    if found is None:
        is_result = any(s.root()[0].kind == INPUT and s.root()[0].index == index for s in plan.results)
        readers = [job for job in plan.jobs if any(_is_input(s, index) for s in job.ins)]
        found = not is_result and all(_is_copy(job) and job.outs[0].memory is memory for job in readers)
        plan.elsewhere[index, memory] = found
    return found


def is_written_by_copy(plan: Plan, output: int, memory: Memory) -> bool:
    """Whether a result only comes to the host as a copy from this memory, and nobody reads it there."""
    found = plan.elsewhere.get((~output, memory))
    if found is None:
        found = plan.elsewhere[~output, memory] = _is_written_by_copy(plan, output, memory)
    return found


def _is_written_by_copy(plan: Plan, output: int, memory: Memory) -> bool:
    slot = plan.results[output]
    root = slot.root()[0]
    writers = [job for job in plan.jobs if any(s.root()[0] is root for s in job.outs)]
    readers = [job for job in plan.jobs if any(s is not None and s.root()[0] is root for s in job.ins)]
    if slot.kind != TEMP or root.result != output or readers or len(writers) != 1:
        return False
    source = writers[0].ins[0]
    return _is_copy(writers[0]) and source is not None and source.memory is memory


def homes(plan: Plan, inputs: int, count: int, far: Sequence[Device]) -> list[Home | None]:
    """Of each result of a plan: the device that makes it and reads it as an input, if it is one that comes back.

    inputs: of the plan.  count: of results that come back, the last ones; they are the last inputs then.
    """
    found: list[Home | None] = [None] * len(plan.results)
    for back in range(1, 1 + count) if plan.cut is None else ():
        there = (_home(plan, device, len(plan.results) - back, inputs - back) for device in far)
        found[-back] = next((home for home in there if home is not None), None)
    return found


def _home(plan: Plan, device: Device, output: int, index: int) -> Home | None:
    is_there = is_written_by_copy(plan, output, device.memory) and _is_read_by_copies(plan, index, device.memory)
    return Home(device, plan.results[output].type) if is_there else None


def can_write_into(prepared: Prepared, output: int, buffer: Any, inputs: Spans) -> bool:
    """Whether a run may write an output straight into ``buffer``, which may be one of its inputs."""
    if is_elsewhere(buffer):  # copies out follow those into the memory; the plan after a stand-in may have none
        return not prepared.stands_in and is_written_by_copy(prepared.plan, output, buffer.memory)
    return inputs.is_apart(buffer, lambda source: prepared.can_overwrite(output, source))


class Spans:
    """Where arrays lie, in order: to hold each of many buffers against each of many arrays would take milliseconds."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        near = [(*_span(a), i) for i, a in enumerate(arrays) if isinstance(a, np.ndarray) and a.size]
        self.rows = sorted(near)
        self.ends = [*itertools.accumulate((end for _, end, _ in self.rows), max)]

    def is_apart(self, buffer: Array, can_overwrite: Callable[[int], bool]) -> bool:
        """Whether it shares memory with no array, or is one that can be overwritten, by its place among them."""
        begin, end = _span(buffer)
        for at in range(bisect.bisect_left(self.rows, (end,)) - 1, -1, -1):
            first, last, source = self.rows[at]
            if self.ends[at] <= begin:
                break
            if last > begin and not ((first, last) == (begin, end) and can_overwrite(source)):
                return False
        return True


def _span(array: Array) -> tuple[int, int]:
    """The first byte, and the one behind the last."""
    begin: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous or not array.size:
        return begin, begin + array.nbytes
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    return begin + sum(min(0, s) for s in steps), begin + sum(max(0, s) for s in steps) + array.itemsize


def write(buffer: Any, result: Any) -> None:
    """Copy a result to where the caller wants it."""
    if is_elsewhere(buffer):
        buffer.write(np.asarray(result))
    else:
        buffer[...] = result


def _is_input(slot: Any, index: int) -> bool:
    root = None if slot is None else slot.root()[0]
    return root is not None and root.kind == INPUT and root.index == index


def _is_copy(job: Job) -> bool:
    """Whether a job copies between memories."""
    source = job.ins[0] if job.ins else None
    return type(job.op) is Copy and source is not None and source.memory is not job.outs[0].memory


class Home(NamedTuple):
    """Where a value may stay from run to run, and what it is."""

    device: Device
    type: TensorType


def elsewhere(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Those that have a memory of their own."""
    return tuple(device for device in devices if device.memory is not HOST)


# --- what is not worth a copy -------------------------------------------------------------------------------------
#
# Where a region of a far memory takes longer than the same on the host, it is an island, and its nodes are planned for
# the host.  The region with the most work stays where it is, as the caller asked for the device.

NOT_WORTH_IT = " (not worth a copy)"
"""Behind the name of what runs a node that a device could have run, too."""


class _Regions:
    """Sums by region: what jobs of one far memory compute from each other, with the copies into it and out of it.

    A region is a tree of the buffers that its jobs share.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._sums: dict[int, tuple[float, float]] = {}

    def of(self, slot: Slot) -> int:
        found = id(slot.root()[0])
        while found != (parent := self._parents.setdefault(found, found)):
            self._parents[found] = self._parents[parent]
            found = parent
        return found

    def add(self, slots: Sequence[Slot], far: float, near: float) -> None:
        """A job over these buffers: seconds that it takes there, and on the host."""
        first = self.of(slots[0])
        sums = self._sums.get(first, (0.0, 0.0))
        for other in map(self.of, slots[1:]):
            if other != first:
                self._parents[other] = first
                others = self._sums.pop(other, (0.0, 0.0))
                sums = sums[0] + others[0], sums[1] + others[1]
        self._sums[first] = sums[0] + far, sums[1] + near

    def islands(self) -> set[int]:
        """Regions that the host runs as fast, but for that with the most work."""
        most = max(self._sums, key=lambda region: self._sums[region][1], default=None)
        return {region for region, (far, near) in self._sums.items() if far >= near and region != most}


def islands(jobs: Sequence[Job], devices: Sequence[Device], threads: int) -> set[int]:
    """By ``id``: slots that jobs of islands make."""
    home = next(device for device in devices if device.memory is HOST and device.aliases)
    weighing = {device.memory: device for device in devices if device.weighs}
    regions, made = _Regions(), list[Slot]()
    for job in jobs if weighing else ():
        slot = job.ins[0] if job.ins else None
        if job.device.weighs:
            own = [s for s in (*job.outs, *job.ins) if s is not None and s.memory is job.device.memory]
            types = [None if s is None else s.type for s in job.ins], [s.type for s in job.outs]
            far, near = (device.seconds(job.op, *types, threads) for device in (job.device, home))
            regions.add(own, far, near)
            made += job.outs
        elif slot is not None and slot.memory is not job.outs[0].memory:
            there = job.outs[0] if slot.memory is HOST else slot
            device = weighing.get(there.memory)
            if device is not None:
                regions.add([there], device.copy_seconds(there.type.nbytes), 0.0)
    small = regions.islands()
    return {id(s) for s in made if regions.of(s) in small} if small else set()


class Views(list[Array]):
    """Inputs of a run, not all of them contiguous."""


def dense(arrays: Sequence[Array], names: Sequence[str]) -> list[Array]:
    """Contiguous inputs; raises BudgetError before a copy that is not granted."""
    return [_copied(array, name) for array, name in zip(arrays, names, strict=True)]


def _copied(array: Array, name: str) -> Array:
    if type(array) is not np.ndarray or array.flags.c_contiguous:
        return array
    ask(array.nbytes, f"a contiguous copy of input {name!r}")
    return np.ascontiguousarray(array).reshape(array.shape)
