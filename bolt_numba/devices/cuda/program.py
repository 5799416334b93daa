"""Consecutive steps on a GPU: launches whose arguments are made once for the buffers of a run.

What steps refuse in the content of operands is recorded in the memory of the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from bolt_numba.base.errors import InternalError
from bolt_numba.base.types import Array
from bolt_numba.devices.cuda.interface import Call
from bolt_numba.devices.cuda.memory import Buffer, Constant, CudaMemory
from bolt_numba.devices.program import fault_of
from bolt_numba.kernels.cuda.faults import FAULT
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.registry import Fault, In, Out, Pitch, Scratch, Step
from bolt_numba.kernels.unseen import Packed
from bolt_numba.runtime.device import Arenas
from bolt_numba.runtime.slots import CONST, Job, Slot

_WORDS = {
    "ptr": ctypes.c_int64,
    "map": ctypes.c_int64,
    "fault": ctypes.c_int64,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
REPEATED = 2
"""Launches of a segment from which the driver makes one of them."""


class CudaProgram:
    """The jobs of a segment, and the constants that their steps read, on the GPU."""

    def __init__(self, jobs: Sequence[Job], memory: CudaMemory) -> None:
        self.jobs, self.memory = jobs, memory
        self.constants: dict[int, Constant] = {}
        for job in jobs:
            for step in job.steps or ():
                for arg in step.args.values():
                    array = _constant(job, arg)
                    if array is not None and id(array) not in self.constants:
                        self.constants[id(array)] = memory.constant(array)

    @property
    def nbytes(self) -> int:
        """Of a run, beside the arenas."""
        return 0

    def bind(self, arenas: Arenas) -> CudaRun:
        return CudaRun(self, arenas[self.memory] if self.memory in arenas else self.memory.allocate(1))


def _constant(job: Job, arg: Any) -> Array | None:
    """The array that an argument of a step is, or that its operand is."""
    if isinstance(arg, np.ndarray):
        return arg
    if type(arg) is Packed:
        return job.arrays[arg]
    slot = job.ins[arg.index] if type(arg) is In else None
    root = None if slot is None else slot.root()[0]
    return root.const if root is not None and root.kind == CONST else None


class CudaRun:
    """Launches over the buffers of one run, in its stream: the second run and all later ones do them in one call."""

    def __init__(self, program: CudaProgram, arena: Buffer) -> None:
        self.program, self.arena = program, arena
        self.driver = program.memory.driver
        self.faults = Faults(program.jobs, program.memory, arena.stream)
        self.maps: list[Buffer] = []
        self.calls = [self._calls(job) for job in program.jobs]
        self._all = [call for calls in self.calls for call in calls]
        self._repeated: Call | None = None
        self._has_run = False

    def _calls(self, job: Job) -> list[Call]:
        return [call for step in job.steps or () for call in self._call(job, step)]

    def _call(self, job: Job, step: Step) -> list[Call]:
        """The launch of a step; none where there is nothing to do."""
        kernel: Any = step.kernel
        numbers = Numbers()
        numbers.__dict__ = {name: self._value(job, arg) for name, arg in step.args.items()}
        numbers.__dict__["processors"] = self.driver.processors
        grid = kernel.grid(numbers)
        if 0 in grid:
            return []
        for name, tensor in kernel.maps(numbers).items():
            self.maps.append(self.program.memory.upload(self.driver.tensor_map(tensor)))
            numbers.__dict__[name] = self.maps[-1].address
        values = [_WORDS[field.kind](numbers.__dict__[name]) for name, field in kernel.fields.items()]
        function, shared = self.driver.function(kernel), kernel.shared_bytes(numbers)
        return [self.driver.call(function, grid, kernel.threads, shared, values, self.arena.stream)]

    def _value(self, job: Job, arg: Any) -> Any:
        match arg:
            case In(index=index, offset=offset):
                return self._address(job.ins[index], offset)
            case Out(index=index, offset=offset):
                return self._address(job.outs[index], offset)
            case Scratch():
                return self.arena.address + job.scratch[id(arg)]
            case Pitch(of=In(index=index)):
                slot = job.ins[index]
                return 0 if slot is None else slot.row
            case Pitch(of=Out(index=index)):
                return job.outs[index].row
            case np.ndarray():
                return self.program.constants[id(arg)].buffer.address
            case Packed():
                return self.program.constants[id(job.arrays[arg])].buffer.address
            case Fault(operand=operand):
                return self.faults.address(job, operand)
            case None:
                return 0
            case int() | float() | np.number():
                return arg
        raise InternalError(f"{job.name}: argument of a step: got {arg!r}, wanted an operand, an array or a number")

    def _address(self, slot: Slot | None, offset: int) -> int:
        if slot is None:
            return 0
        root, within = slot.root()
        if root.kind == CONST:
            return self.program.constants[id(root.const)].buffer.address + within + offset
        return self.arena.address + root.place + within + offset

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.faults.begin()
        if self._repeated is not None:
            self._repeated()
        elif self._has_run and len(self._all) >= REPEATED:
            self._repeated = self.driver.repeated(self._all, self.arena.stream)
            self._repeated()
        else:
            self.driver.run(self._all)
            self._has_run = True
        self.faults.check()

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        self.faults.begin()
        counts: list[dict[str, int]] = []
        seconds = self.driver.timed(self.calls, self.arena.stream, counts)
        for job, calls, counted in zip_longest(self.program.jobs, self.calls, counts):
            self.program.memory.counts[job] = {"launches": len(calls), **(counted or {})}
        self.faults.check()
        return seconds


class Faults:
    """One record for each operand that a step of these jobs checks; of one run at a time."""

    def __init__(self, jobs: Sequence[Job], memory: CudaMemory, stream: Any) -> None:
        found = [(job, arg.operand) for job in jobs for s in job.steps or () for arg in s.args.values()
                 if isinstance(arg, Fault)]  # fmt: skip
        self.checked = list({(id(job), operand): (job, operand) for job, operand in found}.values())
        self.driver, self.stream = memory.driver, stream
        self.none = np.zeros((len(self.checked), FAULT), np.int64)
        self.records: Buffer | None = memory.upload(self.none) if self.checked else None
        self.is_clean = True

    def address(self, job: Job, operand: int) -> int:
        assert self.records is not None
        number = next(i for i, (other, of) in enumerate(self.checked) if other is job and of == operand)
        return self.records.address + 8 * FAULT * number

    def begin(self) -> None:
        """Before a run: forget what one that was interrupted has left."""
        if self.records is not None:
            if not self.is_clean:
                self.driver.write(self.records.address, self.none, self.stream)
            self.is_clean = False

    def check(self) -> None:
        """Wait for the run if it checks anything; raises the DataError of the first record."""
        if self.records is None:
            return
        found = np.empty_like(self.none)
        self.driver.read(self.records.address, found, self.stream)
        self.is_clean = not found[:, 0].any()
        if not self.is_clean:
            number = int(found[:, 0].argmax())
            raise fault_of(*self.checked[number], found[number, 1:].tolist())
