"""A planned program as flat memory: parameter records, and all places where addresses go, with what they are of.

Native steps between two host steps form one segment, run by one call into the native loop.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from bolt_numba.border import at_node
from bolt_numba.errors import DataError
from bolt_numba.kernels.ahead import prepare
from bolt_numba.kernels.cpu.executor import run_steps
from bolt_numba.kernels.cpu.faults import COUNTER, FAULT
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Fault, In, Out, Pitch, Record, Scratch
from bolt_numba.mapped import for_kernels
from bolt_numba.ops.content import refusal
from bolt_numba.ops.registry import result_tuple
from bolt_numba.records import record
from bolt_numba.runtime.memory import MemoryPlan
from bolt_numba.runtime.slots import CONST, INPUT, Job, Slot
from bolt_numba.types import Array

_RECORD_ALIGN = 64
T = TypeVar("T")


def _interface_pointer(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


_word_at = ctypes.c_ssize_t.from_address


def _struct_pointer(array: Array) -> int:
    # The data pointer is the first field after the object header of NumPy's array struct, part of its stable ABI.
    # Six times as fast as building the array interface, which was a third of the overhead of a small run.
    return _word_at(id(array) + object.__basicsize__).value


_probe = np.arange(3)
pointer = _struct_pointer if _struct_pointer(_probe) == _interface_pointer(_probe) else _interface_pointer
"""Address of an array's first element."""


@record(eq=False)
class Host:
    """A step that Python runs: the operator's reference over views of the buffers."""

    job: Job


@record()
class Segment:
    """Native steps ``first`` to ``last`` (exclusive), then ``host`` if there is one."""

    first: int
    last: int
    host: Host | None = None
    parallel: bool = False


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
    """The template that every `Context` copies.

    image: with the addresses that ``links`` names in this process; those of the arena, of the image itself and of the
    arrays of a run are 0 in it.
    """

    image: Array
    links: Links
    kernels: Array
    record_offsets: Array
    flags: Array
    segments: list[Segment]
    arena_nbytes: int
    arena_places: Array
    """Which i64 of the image are addresses within the arena, and"""
    arena_offsets: Array
    """how many bytes from its beginning each of them is."""
    patches: list[tuple[int, bool, int, int]]
    """(index of an i64 in the image, is it an output, which array, byte offset)."""
    step_jobs: list[int]
    """Job of each native step."""
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
        return len(self.kernels)


@record(frozen=True)
class _Layout:
    """How a parameter record is packed: field names with byte offsets, and the packer of all of it, padded."""

    places: tuple[tuple[str, int], ...]
    packer: struct.Struct


_NUMBERS = frozenset((int, float))
_CODES = {"i8": "q", "i4": "i", "f4": "f", "f8": "d"}


@functools.cache
def _layout(dtype: Any) -> _Layout:
    text, end = "=", 0
    places = []
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]
        text += f"{offset - end}x{_CODES[kind.str[1:]]}"
        end = offset + kind.itemsize
        places.append((name, offset))
    return _Layout(tuple(places), struct.Struct(f"{text}{-end % _RECORD_ALIGN}x"))


class _Image:
    """Fills parameter records one after another."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.nbytes = 0
        self.arena: list[tuple[int, int]] = []
        self.patches: list[tuple[int, bool, int, int]] = []
        self.kernels: dict[int, tuple[int, Any]] = {}
        self.arrays: list[Array] = []
        self.constants: list[int] = []
        self.in_kernels: list[tuple[int, int, int]] = []
        self.in_arrays: list[tuple[int, int, int]] = []
        self.records_of: dict[tuple[int, int], tuple[Record, Job, list[int]]] = {}
        self.faults: dict[tuple[int, int], tuple[Job, int, list[int]]] = {}

    def add(self, job: Job, step: Any) -> int:
        """Append the record of a step, or of a kernel that one calls; where it begins."""
        layout = _layout(step.kernel.params)
        at, args, values = self.nbytes, step.args, []
        for name, offset in layout.places:
            arg = args[name]
            values.append(arg if type(arg) in _NUMBERS else self._value(job, arg, at + offset))
        self.records.append(layout.packer.pack(*values))
        self.nbytes += layout.packer.size
        return at

    def _value(self, job: Job, arg: Any, where: int) -> Any:
        kind = type(arg)
        if arg is None:
            return 0
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
        if kind is Native:
            self.in_kernels.append((where // 8, self.kernel(arg), 0))
            return 0
        if kind is Record:
            self.records_of.setdefault((id(job), id(arg)), (arg, job, []))[2].append(where // 8)
            return 0
        return arg

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
        root, inner = slot.root()
        offset += inner
        if root.kind == CONST:
            self.constants.append(len(self.arrays))
            self._array(root.const, offset, where)  # type: ignore[arg-type]
        elif root.kind == INPUT:
            self.patches.append((where // 8, False, root.index, offset))
        elif root.result >= 0:
            self.patches.append((where // 8, True, root.result, offset))
        else:
            self.arena.append((where // 8, root.place + offset))
        return 0


def build_program(jobs: Sequence[Job], memory: MemoryPlan, threads: int) -> Program:
    """Lay out the records of all native steps; compiles (or loads) every kernel that is used."""
    image = _Image()
    steps: list[int] = []
    offsets: list[int] = []
    parallel: list[bool] = []
    step_jobs: list[int] = []
    segments = [Segment(0, 0)]
    for number, job in enumerate(jobs):
        if job.steps is None:
            segments[-1].host = Host(job)
            segments.append(Segment(len(steps), len(steps)))
            continue
        for step in job.steps:
            offsets.append(image.add(job, step))
            steps.append(image.kernel(step.kernel))
            parallel.append(step.parallel and threads > 1)
            step_jobs.append(number)
        segments[-1].last = len(steps)
        segments[-1].parallel |= any(parallel[segments[-1].first :])
    faults_at, own_places = image.add_faults()
    own = np.array(own_places, np.int64).reshape(-1, 2)
    links = image.links(steps)
    data, kernels = linked(b"".join(image.records) or bytes(8), links)
    arena = np.array(image.arena, np.int64).reshape(-1, 2)
    return Program(
        image=data,
        links=links,
        kernels=kernels,
        record_offsets=np.array(offsets, np.int64),
        flags=np.array(parallel, np.int64),
        segments=segments,
        arena_nbytes=memory.nbytes,
        arena_places=arena[:, 0],
        arena_offsets=arena[:, 1],
        patches=image.patches,
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
    prepare(links.kernels)
    kernels = np.array([kernel.address for kernel in links.kernels], np.int64)
    arrays = np.array([pointer(array) for array in links.arrays], np.int64)
    image = np.frombuffer(bytearray(records), np.int64)
    for addresses, (places, which, offsets) in ((kernels, links.in_kernels.T), (arrays, links.in_arrays.T)):
        image[places] = addresses[which] + offsets
    return image.view(np.uint8), kernels[links.steps]


def aligned_empty(nbytes: int) -> Array:
    """Uninitialised bytes at a 64-byte boundary."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def run_record(context: Context, first: int, last: int) -> Array:
    """Arguments of the native loop for the steps ``first`` to ``last`` (exclusive)."""
    program = context.program
    record = np.zeros((), run_steps.params)
    record["kernels"] = program.kernels.ctypes.data + 8 * first
    record["params"] = context.params.ctypes.data + 8 * first
    record["flags"] = program.flags.ctypes.data + 8 * first
    record["ticks"] = context.ticks.ctypes.data + 8 * first
    record["steps"] = last - first
    return record


def fault_of(job: Job, operand: int, found: Sequence[int]) -> DataError:
    """The error of one record: (position, value, low, high)."""
    slot = job.ins[operand]
    assert slot is not None, "a kernel checks what is there"
    position, value, low, high = found
    dims = slot.type.dims
    place = np.unravel_index(position, dims) if 0 <= position < slot.type.size and dims else ()
    return DataError(f"node {job.name!r}: {refusal(job.op, operand, place, value, low, high)}")


class Context:
    """Memory for one run at a time: an arena and a parameter image; weights are shared with all other contexts."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.image = aligned_empty(program.image.nbytes)
        self.image[:] = program.image
        self.arena = aligned_empty(program.arena_nbytes)
        words = self.image.view(np.int64)
        if len(program.arena_places):
            words[program.arena_places] = program.arena_offsets + self.arena.ctypes.data
        if len(program.own_places):
            words[program.own_places] = program.own_offsets + self.image.ctypes.data
        self.words = memoryview(words)  # type: ignore[arg-type]
        self.params = program.record_offsets + self.image.ctypes.data
        self.patches = program.patches
        self.ticks = np.zeros(program.steps + 1, np.int64)
        self.calls = [run_record(self, s.first, s.last) for s in program.segments]
        self.addresses = [c.ctypes.data for c in self.calls]

    def bind(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Patch in the addresses of this run's arrays."""
        words = self.words
        for at, is_output, which, offset in self.patches:
            words[at] = (outputs if is_output else inputs)[which] + offset

    def take_fault(self) -> DataError:
        """The first fault that native steps reported; all are forgotten."""
        words, at, found = self.words, self.program.faults_at, []
        words[at] = 0
        for number, (job, operand) in enumerate(self.program.faults):
            record = at + FAULT * (number + 1)
            if words[record]:
                words[record] = 0
                found.append(fault_of(job, operand, words[record + 1 : record + COUNTER].tolist()))
        return found[0]

    def view(self, slot: Slot, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> Array:
        """The slot's buffer as an array."""
        root, offset = slot.root()
        dims = slot.type.dims
        if root.kind == CONST:
            array = root.const
            assert array is not None
            return array.reshape(dims)
        if root.kind == INPUT:
            data: Array = inputs[root.index].reshape(-1).view(np.uint8)
        elif root.result >= 0:
            target = outputs[root.result]
            assert target is not None
            data = target.reshape(-1).view(np.uint8)
        else:
            data = self.arena[root.place :]
        if slot.pitch is not None:
            item = slot.type.dtype.itemsize
            strides = [slot.pitch * item] * len(dims)
            strides[-1] = item
            for axis in range(len(dims) - 3, -1, -1):
                strides[axis] = strides[axis + 1] * dims[axis + 1]
            return np.ndarray(dims, slot.type.dtype, data.data, offset, strides)
        return data[offset : offset + slot.type.nbytes].view(slot.type.dtype).reshape(dims)

    def run_host(self, host: Host, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        """Run one reference and write its results into their buffers."""
        job = host.job
        args = [None if s is None else self.view(s, inputs, outputs) for s in job.ins]
        try:
            with np.errstate(all="ignore"):
                results = result_tuple(job.op.reference(*args))
            for slot, result in zip(job.outs, results, strict=True):
                self.view(slot, inputs, outputs)[...] = result
        except Exception as error:
            raise at_node(error, job.op.name, job.name) from error
