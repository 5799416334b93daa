"""The device of the runtime: kernels of ``kernels/cuda``, on a GPU or on the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import DeviceError, DTypeError
from bolt_numba.base.types import AnyDType, TensorType, dtype_name
from bolt_numba.devices import device as device_by_name
from bolt_numba.devices.cuda.arrays import DeviceArray, empty, imported
from bolt_numba.devices.cuda.interface import Driver
from bolt_numba.devices.cuda.memory import CudaMemory
from bolt_numba.devices.cuda.program import CudaProgram
from bolt_numba.kernels import registry
from bolt_numba.kernels.cuda import code
from bolt_numba.kernels.registry import Context, Entry, Given, Step
from bolt_numba.ops.costs import bytes_of, work_of
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.slots import Job

KERNELS = "cuda"
"""The folder of kernels, whatever the session calls the device."""

LAUNCH_S, BYTES_A_S, WORK_A_S = 3e-6, 1.5e12, 1e13
"""Seconds of a small launch in a graph, and what a GPU of a server does in one: bytes, and multiply-adds of f32."""
COPY_S, COPIED_A_S = 1e-5, 1e10
"""Seconds of a small copy that somebody waits for, and bytes in one through pinned memory."""


class Cuda(Device):
    """Programs in the memory of one GPU."""

    halves = True

    def __init__(self, name: str, driver: Driver, weighs: bool = True) -> None:
        self.name, self.driver, self.weighs = name, driver, weighs
        self.memory: CudaMemory = CudaMemory(driver)

    @property
    def pack_form(self) -> str:
        return KERNELS

    def select(self, op: Op, ins: Given, context: Context) -> Entry | None:
        return registry.select(op, ins, context, KERNELS, self.driver.arch)

    def candidates(self, op: Op, ins: Given, context: Context) -> list[Entry]:
        return registry.candidates(op, ins, context, KERNELS, self.driver.arch)

    def seconds(self, op: Op, ins: Given, outs: Sequence[TensorType], threads: int) -> float:
        return LAUNCH_S + max(bytes_of(ins, outs) / BYTES_A_S, work_of(op, ins, outs) / WORK_A_S)

    def copy_seconds(self, nbytes: int) -> float:
        return COPY_S + nbytes / COPIED_A_S

    def lacking(self, steps: Sequence[Step]) -> list[Any]:
        kernels: list[Any] = [step.kernel for step in steps]
        return code.lacking(kernels, self.driver.arch, self.driver.kind)

    def prepare(self, jobs: Sequence[Job]) -> None:
        kernels: list[Any] = [step.kernel for job in jobs for step in job.steps or ()]
        code.prepare(kernels, self.driver.arch, self.driver.kind)

    def build(self, jobs: Sequence[Job], threads: int) -> CudaProgram:
        return CudaProgram(jobs, self.memory)

    def uploads(self, executable: CudaProgram) -> dict[int, int]:
        return {c.buffer.address: c.buffer.nbytes for c in executable.constants.values()}

    def array(self, dims: Sequence[int], dtype: AnyDType) -> DeviceArray:
        return empty(self.memory, dims, dtype)

    @property
    def pinned(self) -> int:
        return self.driver.pinned

    def counts(self, job: Job) -> Mapping[str, int]:
        return self.memory.counts.get(job, {})

    def imported(self, value: Any) -> DeviceArray | None:
        return imported(self.memory, value)

    def describe(self) -> str:
        return self.driver.describe()


def gpu(which: str) -> Cuda:
    """The GPU of a number, ``""`` for the first.  Raises DeviceError when there is none."""
    from bolt_numba.devices.cuda.driver import Gpu

    if which and not which.isdecimal():
        raise DeviceError(f"device: got 'cuda:{which}', wanted the number of a GPU such as 'cuda:1'")
    driver = Gpu(int(which or 0))
    return Cuda(driver.name, driver)


@border("device_array")
def device_array(content: Any, dtype: Any = np.float32, *, device: Any = "cuda") -> DeviceArray:
    """An array on a GPU: a copy of an array of the host, or one of any content for a shape, which is a tuple.

    A session on this device takes it as an input, and writes results to it with `Session.run_into`, without a way
    through the host.  Other packages take it by ``from_dlpack`` or ``__cuda_array_interface__``.  dtype: for a shape.
    Raises DeviceError for a device without a memory of its own, DTypeError for what are no numbers.
    """
    found = device_by_name(device) if isinstance(device, str) else None
    if not isinstance(found, Cuda):
        raise DeviceError(f"device_array: device: got {device!r}, wanted one of a GPU such as 'cuda'")
    given = None if isinstance(content, tuple) else np.asarray(content)
    kind = np.dtype(dtype) if given is None else given.dtype
    if kind.kind in "OUSTcmM" or kind.type is np.void or not kind.isnative:
        raise DTypeError(f"device_array: dtype: got {dtype_name(kind)}, wanted real numbers or bools")
    if given is None:
        return empty(found.memory, _sizes(content), kind)
    made = empty(found.memory, given.shape, given.dtype)
    made.write(given)
    return made


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape):
        raise DeviceError(f"device_array: shape: got {shape!r}, wanted sizes")
    return tuple(map(int, shape))
