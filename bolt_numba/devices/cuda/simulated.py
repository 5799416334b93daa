"""A GPU that is not there: the interpreter of PTX runs the very code that NVVM makes for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cuda.declare import SM_80, CudaKernel
from bolt_numba.kernels.cuda.code import ptx
from bolt_numba.ptx import GlobalMemory, Module
from bolt_numba.types import Array


class SimulatedGpu:
    """See `interface.Driver`; everything is done when a call returns, so streams are nothing."""

    name = "cuda-sim"

    def __init__(self, arch: str = SM_80) -> None:
        self.arch, self._memory = arch, GlobalMemory()

    def allocate(self, nbytes: int) -> int:
        return self._memory.allocate(nbytes)

    def free(self, address: int) -> None:
        self._memory.free(address)

    def stream(self) -> None:
        return None

    def write(self, address: int, array: Array, stream: None) -> None:
        self._memory.write(address, array)

    def read(self, address: int, array: Array, stream: None) -> None:
        self._memory.read(address, array)

    def function(self, kernel: CudaKernel) -> Module:
        return Module(ptx(kernel, self.arch))

    def launch(
        self, function: Module, grid: tuple[int, int, int], threads: int, shared: int, values: Sequence[Any],
        stream: None,
    ) -> None:  # fmt: skip
        function.launch(self._memory, grid, threads, [value.value for value in values], shared)

    def synchronise(self, stream: None) -> None:
        pass

    def describe(self) -> str:
        return f"simulated GPU ({self.arch})"
