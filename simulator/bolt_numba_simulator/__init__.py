"""The device ``cuda-sim`` of bolt-numba: CUDA kernels run on an interpreter of PTX.  Importing this registers it."""

from bolt_numba import devices
from bolt_numba.runtime.device import Device


def _make(which: str) -> Device:
    from bolt_numba_simulator.gpu import simulated  # imports much that few sessions want

    return simulated(which)


devices.register_family("cuda-sim", _make)
