"""A GPU that is not there: the interpreter of PTX runs the very code that NVVM makes for one."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.interface import Call
from bolt_numba.devices.cuda.library import want_arch
from bolt_numba.devices.cuda.limits import check_launch, most_shared
from bolt_numba.kernels.cuda.code import PTX, ptx
from bolt_numba.kernels.cuda.declare import SM_80, CudaKernel, MappedTensor
from bolt_numba_simulator.ptx import GlobalMemory, Module, SimulationReport, TensorMap

MODULES = 64
"""How many kernels are kept parsed: each takes megabytes."""
SWIZZLE = 128
"""Bytes within which boxes of tensors are swizzled."""
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


class SimulatedGpu:
    """See `interface.Driver`.  Everything is done when a call returns, so streams are nothing; one thread at a time.

    counts: to which launches add what they do, where it is set.
    """

    number: int | None = None
    processors = 132
    pinned = 0

    def __init__(self, name: str = "cuda-sim", arch: str = SM_80) -> None:
        self.name, self.arch, self.kind, self._memory = name, arch, PTX, GlobalMemory()
        self._freed: deque[int] = deque()
        self._modules: dict[str, Module] = {}
        self.counts: SimulationReport | None = None
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock", threading.RLock)

    def allocate(self, nbytes: int) -> int:
        with self._lock:
            while self._freed:
                self._memory.free(self._freed.popleft())
            return self._memory.allocate(nbytes)

    def free(self, address: int) -> None:
        self._freed.append(address)  # a kernel may be running: the garbage collector calls this at any moment

    def stream(self) -> None:
        return None

    def write(self, address: int, array: Array, stream: None) -> None:
        with self._lock:
            self._memory.write(address, array)

    def read(self, address: int, array: Array, stream: None) -> None:
        with self._lock:
            self._memory.read(address, array)

    def move(self, target: int, source: int, nbytes: int, stream: None) -> None:
        data = np.empty(nbytes, np.uint8)
        with self._lock:
            self._memory.read(source, data)
            self._memory.write(target, data)

    def after(self, stream: None, handle: None) -> None:
        pass

    def owns(self, address: int) -> bool:
        return False

    def function(self, kernel: CudaKernel) -> Module:
        with self._lock:
            found = self._modules.pop(kernel.digest, None) or Module(ptx(kernel, self.arch))
            self._modules[kernel.digest] = found  # the newest stands last
            if len(self._modules) > MODULES:
                del self._modules[next(iter(self._modules))]
            return found

    def tensor_map(self, tensor: MappedTensor) -> Array:
        t = tensor
        return TensorMap(t.address, t.itemsize, t.dims, t.strides, t.box, SWIZZLE).encoded()

    def call(
        self, function: Module, grid: tuple[int, int, int], threads: int, shared: int, values: Sequence[Any],
        stream: None,
    ) -> Call:  # fmt: skip
        whole = function.shared_bytes(shared)
        check_launch(f"{self.name}: kernel {function.name}", grid, threads, whole, most_shared(self.arch))
        numbers = [value.value for value in values]

        def launch() -> None:
            with self._lock:
                function.launch(self._memory, grid, threads, numbers, shared, report=self.counts)

        return launch

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call()

    def repeated(self, calls: Sequence[Call], stream: None) -> Call:
        return lambda: self.run(calls)

    def timed(
        self, groups: Sequence[Sequence[Call]], stream: None, counts: list[dict[str, int]] | None = None
    ) -> list[float]:
        clock = [time.perf_counter()]
        for calls in groups:
            if counts is None:
                self.run(calls)
            else:
                counts.append(self._counted(calls))
            clock.append(time.perf_counter())
        return np.diff(clock).tolist()

    def _counted(self, calls: Sequence[Call]) -> dict[str, int]:
        """What calls do, which are run, for people."""
        with self._lock:
            before, self.counts = self.counts, SimulationReport()
            try:
                self.run(calls)
                report = self.counts
            finally:
                self.counts = before
        found = report.total()
        return {
            "instructions": report.executed(), "% of sectors used": round(100 * report.efficiency()),
            "bank conflicts": found.wavefronts - found.ideal,
        }  # fmt: skip

    def synchronise(self, stream: None) -> None:
        pass

    def describe(self) -> str:
        return f"simulated GPU ({self.arch})"


def simulated(which: str) -> Cuda:
    """The device ``cuda-sim``, or that of an architecture, as ``sm_90a``.  Raises DeviceError where it is none."""
    if which and not _ARCH.fullmatch(which):
        raise DeviceError(f"device: got 'cuda-sim:{which}', wanted an architecture such as 'cuda-sim:sm_90a'")
    arch = which or SM_80
    want_arch(arch, f"cuda-sim:{arch}")
    name = "cuda-sim" if arch == SM_80 else f"cuda-sim:{arch}"
    return Cuda(name, SimulatedGpu(name, arch), weighs=False)
