"""The devices of this package by name: ``cuda``, ``cuda:1``, ``cuda-sim``, ``cuda-sim:sm_90a``."""

from __future__ import annotations

import re

from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.errors import DeviceError

_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def make(family: str, which: str) -> Cuda:
    """The device ``which`` of a family, ``""`` for the first.  Raises DeviceError when there is none."""
    if family == "cuda-sim":
        from bolt_numba.devices.cuda.library import want_arch
        from bolt_numba.devices.cuda.simulated import SimulatedGpu
        from bolt_numba.kernels.cuda.declare import SM_80

        if which and not _ARCH.fullmatch(which):
            raise DeviceError(f"device: got 'cuda-sim:{which}', wanted an architecture such as 'cuda-sim:sm_90a'")
        arch = which or SM_80
        want_arch(arch, f"cuda-sim:{arch}")
        name = "cuda-sim" if arch == SM_80 else f"cuda-sim:{arch}"
        return Cuda(name, SimulatedGpu(name, arch), weighs=False)
    from bolt_numba.devices.cuda.driver import Gpu

    if which and not which.isdecimal():
        raise DeviceError(f"device: got 'cuda:{which}', wanted the number of a GPU such as 'cuda:1'")
    gpu = Gpu(int(which or 0))
    return Cuda(gpu.name, gpu)
