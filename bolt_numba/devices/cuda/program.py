"""Consecutive steps on a GPU: launches whose arguments are made once for the buffers of a run."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bolt_numba.devices.cuda.memory import Buffer, CudaMemory
from bolt_numba.errors import InternalError
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.registry import In, Out, Pitch, Scratch, Step
from bolt_numba.runtime.device import Arenas
from bolt_numba.runtime.slots import CONST, Job, Slot
from bolt_numba.types import Array

_WORDS = {"ptr": ctypes.c_int64, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "f32": ctypes.c_float, "f64": ctypes.c_double}


class CudaProgram:
    """The jobs of a segment, and the constants that they read, on the GPU."""

    def __init__(self, jobs: Sequence[Job], memory: CudaMemory) -> None:
        self.jobs, self.memory = jobs, memory
        self.constants: dict[int, tuple[Array, Buffer]] = {}
        for job in jobs:
            for slot in job.ins:
                root = None if slot is None else slot.root()[0]
                if root is not None and root.kind == CONST and root.const is not None:
                    self._upload(root.const)
            for step in job.steps or ():
                for arg in step.args.values():
                    if isinstance(arg, np.ndarray):
                        self._upload(arg)

    @property
    def nbytes(self) -> int:
        """Of the host, beside the arenas."""
        return 0

    def _upload(self, array: Array) -> None:
        if id(array) not in self.constants:
            self.constants[id(array)] = array, self.memory.upload(array)

    def bind(self, arenas: Arenas) -> CudaRun:
        return CudaRun(self, arenas[self.memory] if self.memory in arenas else self.memory.allocate(1))


class CudaRun:
    """Launches over the buffers of one run, in its stream."""

    def __init__(self, program: CudaProgram, arena: Buffer) -> None:
        self.program, self.arena = program, arena
        self.driver = program.memory.driver
        self.launches = [[self._launch(job, step) for step in job.steps or ()] for job in program.jobs]

    def _launch(self, job: Job, step: Step) -> Callable[[], None]:
        kernel: Any = step.kernel
        numbers = Numbers()
        numbers.__dict__ = {name: self._value(job, arg) for name, arg in step.args.items()}
        values = [_WORDS[field.kind](numbers.__dict__[name]) for name, field in kernel.fields.items()]
        function, grid, shared = self.driver.function(kernel), kernel.grid(numbers), kernel.shared_bytes(numbers)
        if 0 in grid:
            return lambda: None
        return lambda: self.driver.launch(function, grid, kernel.threads, shared, values, self.arena.stream)

    def _value(self, job: Job, arg: Any) -> Any:
        match arg:
            case In(index=index, offset=offset):
                return self._address(job.ins[index]) + offset
            case Out(index=index, offset=offset):
                return self._address(job.outs[index]) + offset
            case Scratch():
                return self.arena.address + job.scratch[id(arg)]
            case Pitch(of=In(index=index)):
                slot = job.ins[index]
                return 0 if slot is None else slot.row
            case Pitch(of=Out(index=index)):
                return job.outs[index].row
            case np.ndarray():
                return self.program.constants[id(arg)][1].address
            case None:
                return 0
            case int() | float() | np.number():
                return arg
        raise InternalError(f"{job.name}: argument of a step: got {arg!r}, wanted an operand, an array or a number")

    def _address(self, slot: Slot | None) -> int:
        if slot is None:
            return 0
        root, offset = slot.root()
        if root.kind == CONST:
            return self.program.constants[id(root.const)][1].address + offset
        return self.arena.address + root.place + offset

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for job in self.launches:
            for launch in job:
                launch()

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        seconds = []
        for job in self.launches:
            start = time.perf_counter()
            for launch in job:
                launch()
            self.driver.synchronise(self.arena.stream)
            seconds.append(time.perf_counter() - start)
        return seconds
