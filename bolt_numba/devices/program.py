"""Native steps as flat memory: parameter records, and all places where addresses go, with what they are of.

One call into the native loop runs all of it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import DataError
from bolt_numba.base.files.mapped import for_kernels
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.devices.threads import run_native
from bolt_numba.kernels.cpu.executor import DATA, run_steps
from bolt_numba.kernels.cpu.faults import COUNTER, FAULT
from bolt_numba.kernels.registry import Fault, In, Out, Pitch, Record, Scratch
from bolt_numba.kernels.unseen import Packed
from bolt_numba.runtime.device import HOST, Arenas
from bolt_numba.runtime.slots import CONST, INPUT, Job, Slot

_RECORD_ALIGN = 64


_word_at = ctypes.c_ssize_t.from_address


def pointer(array: Array) -> int:
    """Address of an array's first element."""
    # Six times as fast as building the array interface, which was a third of the overhead of a small run.
    return _word_at(id(array) + DATA).value


@record(frozen=True)
class Links:
    """What a program refers to outside itself, and where: all that has to be known to link it, here or elsewhere.

    kernels, arrays: what it refers to.  steps: kernel of each step.  in_kernels, in_arrays: rows of i64
    (index of an i64 in the image, which kernel or array, byte offset).  constants: of the arrays, those of the graph.
    """

    kernels: list[Any]
    arrays: list[Array]
    steps: Array
    in_kernels: Array
    in_arrays: Array
    constants: frozenset[int]


@record(eq=False)
class Program:
    """The template that every `NativeRun` copies.

    image: with the addresses that ``links`` names in this process, once it is linked; those of the arena, of the image
    itself and of the arrays of a run are 0 in it.  kernels: then, the address of each step's kernel.
    """

    image: Array
    links: Links
    kernels: Array
    record_offsets: Array
    flags: Array
    threads: int
    arena_places: Array
    """Which i64 of the image are addresses within the arena, and"""
    arena_offsets: Array
    """how many bytes from its beginning each of them is."""
    inputs: dict[int, list[tuple[int, int]]]
    """By number of an input: where in the image (index of an i64) it goes, and byte offset."""
    outputs: dict[int, list[tuple[int, int]]]
    jobs: int
    step_jobs: list[int]
    """Job of each step, by its number among those of the segment."""
    faults: list[tuple[Job, int]]
    """Job and operand of each record of a fault; see `kernels.cpu.faults`."""
    faults_at: int
    """Where they begin in the image: an i64 that counts faults, then, from `FAULT` words on, the records."""
    own_places: Array
    """Which i64 of the image are addresses within the image itself (of faults, of records that are handed on), and"""
    own_offsets: Array
    """how many bytes from its beginning each of them is."""

    @property
    def steps(self) -> int:
        return len(self.record_offsets)

    @property
    def nbytes(self) -> int:
        return self.image.nbytes

    def bind(self, arenas: Arenas) -> NativeRun:
        return NativeRun(self, arenas.get(HOST))


@record(frozen=True)
class _RecordForm:
    """How a parameter record is packed: names and byte offsets of the fields, and the packer of all of it, padded."""

    names: tuple[str, ...]
    offsets: tuple[int, ...]
    packer: struct.Struct


_NUMBERS = frozenset((int, float))
_MAX_F32 = float(np.finfo(np.float32).max)
_CODES = {"i8": "q", "i4": "i", "f4": "f", "f8": "d"}


@functools.cache
def _record_form(dtype: Any) -> _RecordForm:
    text, end = "=", 0
    offsets = []
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]
        text += f"{offset - end}x{_CODES[kind.str[1:]]}"
        end = offset + kind.itemsize
        offsets.append(offset)
    return _RecordForm(dtype.names, tuple(offsets), struct.Struct(f"{text}{-end % _RECORD_ALIGN}x"))


def _as_f32(value: Any) -> Any:
    """A float as f32 holds it; an address or a count as it is."""
    return math.copysign(math.inf, value) if type(value) is float and abs(value) > _MAX_F32 else value


class RecordImage:
    """Fills parameter records one after another."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.forms: dict[int, _RecordForm] = {}
        self.nbytes = 0
        self.arena: list[tuple[int, int]] = []
        self.inputs: dict[int, list[tuple[int, int]]] = {}
        self.outputs: dict[int, list[tuple[int, int]]] = {}
        self.kernels: dict[int, tuple[int, Any]] = {}
        self.arrays: list[Array] = []
        self.constants: list[int] = []
        self.in_kernels: list[tuple[int, int, int]] = []
        self.in_arrays: list[tuple[int, int, int]] = []
        self.records_of: dict[tuple[int, int], tuple[Record, Job, list[int]]] = {}
        self.faults: dict[tuple[int, int], tuple[Job, int, list[int]]] = {}

    def add(self, job: Job, step: Any) -> int:
        """Append the record of a step, or of a kernel that one calls; where it begins."""
        params = step.kernel.params
        form = self.forms.get(id(params))
        if form is None:  # `_record_form` takes the hash of all fields
            form = self.forms[id(params)] = _record_form(params)
        at, args = self.nbytes, step.args
        values = [args[name] for name in form.names]
        for i, arg in enumerate(values):
            if type(arg) not in _NUMBERS:
                values[i] = 0 if arg is None else self._value(job, arg, at + form.offsets[i])
        try:
            self.records.append(form.packer.pack(*values))
        except OverflowError:  # a number beyond f32, which is infinite there
            self.records.append(form.packer.pack(*(_as_f32(v) for v in values)))
        self.nbytes += form.packer.size
        return at

    def _value(self, job: Job, arg: Any, where: int) -> Any:
        kind = type(arg)
        if kind is In:
            return self._slot(job.ins[arg.index], arg.offset, where)
        if kind is Out:
            return self._slot(job.outs[arg.index], arg.offset, where)
        if kind is Pitch:
            slot = (job.ins if type(arg.of) is In else job.outs)[arg.of.index]
            assert slot is not None
            return slot.row
        if kind is Scratch:
            self.arena.append((where // 8, job.scratch[id(arg)]))
            return 0
        if kind is Fault:
            self.faults.setdefault((id(job), arg.operand), (job, arg.operand, []))[2].append(where // 8)
            return 0
        if isinstance(arg, np.ndarray):
            self._array(arg, 0, where)
            return 0
        if kind is Packed:
            self._array(job.arrays[arg], 0, where)
            return 0
        if hasattr(kind, "address"):
            self.in_kernels.append((where // 8, self.kernel(arg), 0))
            return 0
        if kind is Record:
            self.records_of.setdefault((id(job), id(arg)), (arg, job, []))[2].append(where // 8)
            return 0
        return arg

    def places(self) -> Array:
        """Which i64 are addresses within the arena, and how many bytes from its beginning."""
        return np.array(self.arena, np.int64).reshape(-1, 2)

    def flag(self, step: Any) -> bool:
        """Whether all threads run a step."""
        return bool(step.parallel)

    def kernel(self, kernel: Any) -> int:
        """Number of a kernel that the program calls."""
        return self.kernels.setdefault(id(kernel), (len(self.kernels), kernel))[0]

    def links(self, steps: Sequence[int]) -> Links:
        """All that the program refers to."""
        kernels = [kernel for _, kernel in self.kernels.values()]
        one, two = (np.array(found, np.int64).reshape(-1, 3) for found in (self.in_kernels, self.in_arrays))
        return Links(kernels, self.arrays, np.array(steps, np.int64), one, two, frozenset(self.constants))

    def add_faults(self) -> tuple[int, list[tuple[int, int]]]:
        """Room for the records of faults; where it begins, and (i64 in the image, what it is the address of)."""
        own = []
        for made, job, places in self.records_of.values():
            at = self.add(job, made)
            own += [(place, at) for place in places]
        start = self.nbytes
        for number, (_, _, places) in enumerate(self.faults.values()):
            at = start + 8 * FAULT * (number + 1)
            own += [(place, at) for place in places]
            own.append((at // 8 + COUNTER, start))
        if self.faults:
            self.records.append(bytes(8 * FAULT * (len(self.faults) + 1)))
        return start // 8, own

    def _array(self, array: Array, offset: int, where: int) -> None:
        self.in_arrays.append((where // 8, len(self.arrays), offset))
        self.arrays.append(for_kernels(array))

    def _slot(self, slot: Slot | None, offset: int, where: int) -> int:
        if slot is None:
            return 0
        root = slot
        if slot.base is not None:
            root, inner = slot.root()
            offset += inner
        if root.kind == CONST:
            self.constants.append(len(self.arrays))
            self._array(root.const, offset, where)  # type: ignore[arg-type]
        elif root.kind == INPUT:
            self.inputs.setdefault(root.index, []).append((where // 8, offset))
        elif root.result >= 0:
            self.outputs.setdefault(root.result, []).append((where // 8, offset))
        else:
            self.arena.append((where // 8, root.place + offset))
        return 0


def build_program(jobs: Sequence[Job], threads: int) -> Program:
    """Lay out the records of all steps; compiles (or loads) every kernel that is used."""
    made = laid_out(jobs, threads)
    made.image, made.kernels = linked(made.image.tobytes(), made.links)
    return made


def laid_out(jobs: Sequence[Job], threads: int, image: RecordImage | None = None) -> Program:
    """The program without any address: its image is zero at all places that it names, and no kernel has code yet."""
    image = RecordImage() if image is None else image
    steps: list[int] = []
    offsets: list[int] = []
    parallel: list[bool] = []
    step_jobs: list[int] = []
    for number, job in enumerate(jobs):
        for step in job.steps or ():
            offsets.append(image.add(job, step))
            steps.append(image.kernel(step.kernel))
            parallel.append(image.flag(step) and threads > 1)
            step_jobs.append(number)
    faults_at, own_places = image.add_faults()
    own = np.array(own_places, np.int64).reshape(-1, 2)
    links = image.links(steps)
    arena = image.places()
    return Program(
        image=np.frombuffer(b"".join(image.records) or bytes(8), np.uint8),
        links=links,
        kernels=np.empty(0, np.int64),
        record_offsets=np.array(offsets, np.int64),
        flags=np.array(parallel, np.int64),
        threads=threads if any(parallel) else 1,
        arena_places=arena[:, 0],
        arena_offsets=arena[:, 1],
        inputs=image.inputs,
        outputs=image.outputs,
        jobs=len(jobs),
        step_jobs=step_jobs,
        faults=[(job, operand) for job, operand, _ in image.faults.values()],
        faults_at=faults_at,
        own_places=own[:, 0],
        own_offsets=own[:, 1],
    )


def linked(records: bytes, links: Links) -> tuple[Array, Array]:
    """An image with the addresses of what it refers to in this process, and the address of each step's kernel.

    Kernels are compiled, or loaded, here.
    """
    kernels = np.array([kernel.address for kernel in links.kernels], np.int64)
    arrays = np.array([pointer(array) for array in links.arrays], np.int64)
    image = np.frombuffer(bytearray(records), np.int64)
    for addresses, (places, which, offsets) in ((kernels, links.in_kernels.T), (arrays, links.in_arrays.T)):
        image[places] = addresses[which] + offsets
    return image.view(np.uint8), kernels[links.steps]


def fault_of(job: Job, operand: int, found: Sequence[int], dims: tuple[int, ...] | None = None) -> DataError:
    """The error of one record: (position, value, low, high).  dims: of the operand in the run."""
    from bolt_numba.ops.content import refusal

    slot = job.ins[operand]
    assert slot is not None, "a kernel checks what is there"
    position, value, low, high = found
    dims = slot.type.dims if dims is None else dims
    place = np.unravel_index(position, dims) if 0 <= position < math.prod(dims) and dims else ()
    return DataError(f"node {job.name!r}: {refusal(job.op, operand, place, value, low, high)}")


class NativeRun:
    """A program's own parameter image, for one run at a time; weights are shared with all other runs.

    loop: tables of the last loop whose body this was (`devices.loops`).  steps: kernels, parameters and flags, one of
    each for a step.  bound: whose arrays the last run had, if they are always the same.
    """

    __slots__ = ("address", "arena", "bound", "call", "counter", "image", "inputs", "loop", "outputs", "program",
                 "steps", "threads", "ticks", "words")  # fmt: skip

    def __init__(self, program: Program, arena: Array | None, image: Array | None = None) -> None:
        self.program, self.threads, self.arena = program, program.threads, arena
        self.image = HOST.allocate(program.image.nbytes) if image is None else image
        self.image[:] = program.image
        words = self.image.view(np.int64)
        if len(program.arena_places):
            assert arena is not None, "the memory plan has placed workspace"
            words[program.arena_places] = program.arena_offsets + arena.ctypes.data
        if len(program.own_places):
            words[program.own_places] = program.own_offsets + self.image.ctypes.data
        self.words = memoryview(words)  # type: ignore[arg-type]
        self.inputs, self.outputs = list(program.inputs.items()), list(program.outputs.items())
        self.counter = program.faults_at if program.faults else 0  # records of steps come before it
        self.loop: Any = None
        self.bound: object = None
        self.take_steps(program.kernels, program.record_offsets + self.image.ctypes.data, program.flags)

    def take_steps(self, *steps: Array) -> None:
        """Have other steps."""
        self.steps, self.ticks = steps, np.zeros(len(steps[0]) + 1, np.int64)
        self.call = self.calling(0, len(steps[0]))
        self.address = pointer(self.call)

    def calling(self, first: int, end: int) -> Array:
        """A record of `run_steps` for some of the steps."""
        kernels, params, flags = [table[first:end] for table in self.steps]
        ticks = self.ticks[first:]
        return run_steps.record(
            kernels=kernels, params=params, flags=flags, ticks=ticks, steps=end - first, timed=0, stop=None
        )

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Patch in the addresses of this run's arrays, and run all steps; raises the first fault that they report."""
        words, self.bound = self.words, None
        for which, places in self.inputs:
            address = pointer(inputs[which])
            for at, offset in places:
                words[at] = address + offset
        for which, places in self.outputs:
            address = pointer(outputs[which])
            for at, offset in places:
                words[at] = address + offset
        try:
            run_native(self.address, self.threads)
        finally:  # where it was cancelled, too
            if self.counter and words[self.counter]:
                raise self.fault()

    def run_again(self, bound: object, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """The same, for whom these arrays are the same in each run."""
        if self.bound is not bound:
            self.run(inputs, outputs)
            self.bound = bound
            return
        try:
            run_native(self.address, self.threads)
        finally:
            if self.counter and self.words[self.counter]:
                raise self.fault()

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        """The same; the time of the whole is divided by the cycles of each step."""
        self.call["timed"] = 1
        start = time.perf_counter()
        self.run(inputs, outputs)
        spent = time.perf_counter() - start
        self.call["timed"] = 0
        ticks = np.diff(self.ticks)
        scale = spent / max(int(ticks.sum()), 1)
        seconds = [0.0] * self.program.jobs
        for job, tick in zip(self.program.step_jobs, ticks, strict=True):
            seconds[job] += float(tick) * scale
        return seconds

    def fault(self) -> DataError:
        """The first fault that steps reported; all are forgotten."""
        words, at, found = self.words, self.program.faults_at, []
        words[at] = 0
        for number, (job, operand) in enumerate(self.program.faults):
            record = at + FAULT * (number + 1)
            if words[record]:
                words[record] = 0
                given = words[record + 1 : record + COUNTER].tolist()
                found.append(fault_of(job, operand, given, self.dims(job, operand)))
        return found[0]

    def dims(self, job: Job, operand: int) -> tuple[int, ...] | None:
        """Of an operand in the run, where its slot does not tell."""
        return None
