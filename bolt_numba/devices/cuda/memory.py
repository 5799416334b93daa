"""Memory of a GPU: buffers of runs, each with the stream that all work on it goes to, and constants, uploaded once."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.devices.cuda.interface import Driver
from bolt_numba.types import Array


@record(eq=False)
class Buffer:
    """Bytes of a GPU, freed with this object."""

    address: int
    nbytes: int
    stream: Any


class CudaMemory:
    """What `runtime.device.Memory` asks for."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.name = driver, driver.name

    def allocate(self, nbytes: int) -> Buffer:
        made = Buffer(self.driver.allocate(nbytes), nbytes, self.driver.stream())
        weakref.finalize(made, self.driver.free, made.address)
        return made

    def write(self, buffer: Buffer, offset: int, array: Array) -> None:
        self.driver.write(buffer.address + offset, np.ascontiguousarray(array), buffer.stream)

    def read(self, buffer: Buffer, offset: int, array: Array) -> None:
        if array.flags.c_contiguous:
            self.driver.read(buffer.address + offset, array, buffer.stream)
        else:
            dense = np.empty(array.shape, array.dtype)
            self.driver.read(buffer.address + offset, dense, buffer.stream)
            array[...] = dense

    def upload(self, array: Array) -> Buffer:
        """A constant, on the GPU when this returns."""
        made = self.allocate(max(array.nbytes, 1))
        self.write(made, 0, array)
        self.driver.synchronise(made.stream)
        return made
