"""The device of the runtime: kernels of ``kernels/cuda``, on a GPU or on the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from bolt_numba.devices.cuda.interface import Driver
from bolt_numba.devices.cuda.memory import CudaMemory
from bolt_numba.devices.cuda.program import CudaProgram
from bolt_numba.kernels import registry
from bolt_numba.kernels.registry import Context, Entry, Types
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.slots import Job

KERNELS = "cuda"
"""The folder of kernels, whatever the session calls the device."""


class Cuda(Device):
    """Programs in the memory of one GPU."""

    halves = True

    def __init__(self, name: str, driver: Driver) -> None:
        self.name, self.driver = name, driver
        self.memory: CudaMemory = CudaMemory(driver)

    @property
    def layout(self) -> str:
        return KERNELS

    def select(self, op: Op, ins: Types, context: Context) -> Entry | None:
        return registry.select(op, ins, context, KERNELS)

    def candidates(self, op: Op, ins: Types, context: Context) -> list[Entry]:
        return registry.candidates(op, ins, context, KERNELS)

    def build(self, jobs: Sequence[Job], threads: int) -> CudaProgram:
        return CudaProgram(jobs, self.memory)

    def uploads(self, executable: CudaProgram) -> dict[int, int]:
        return {c.buffer.address: c.buffer.nbytes for c in executable.constants.values()}

    def describe(self) -> str:
        return self.driver.describe()
