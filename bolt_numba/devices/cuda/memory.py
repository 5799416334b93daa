"""Memory of a GPU: buffers of runs, each with the stream that all work on it goes to, and constants, uploaded once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from bolt_numba.base.files.mapped import drop_pages
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.devices.cuda.interface import Driver
from bolt_numba.runtime.device import allocated
from bolt_numba.runtime.slots import Job


@record(eq=False)
class Buffer:
    """Bytes of a GPU, freed with this object."""

    address: int
    nbytes: int
    stream: Any


@record(eq=False)
class Constant:
    """An array of the host and its copy on a GPU, for as long as a program has this."""

    array: Array
    buffer: Buffer


class CudaMemory:
    """What `runtime.device.Memory` asks for."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.name = driver, driver.name
        self._constants: weakref.WeakValueDictionary[tuple[int, int], Constant] = weakref.WeakValueDictionary()
        self._stream: Any = None
        self.counts: weakref.WeakKeyDictionary[Job, Mapping[str, int]] = weakref.WeakKeyDictionary()
        """What the steps of a job did when they were timed last, for people."""
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock", threading.RLock)

    def allocate(self, nbytes: int) -> Buffer:
        return self._made(nbytes, self.driver.stream())

    def _made(self, nbytes: int, stream: Any) -> Buffer:
        made = Buffer(allocated(lambda: self.driver.allocate(nbytes), self), nbytes, stream)
        weakref.finalize(made, self.driver.free, made.address).atexit = False
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

    def constant(self, array: Array) -> Constant:
        """An array that nobody changes, on the GPU when this returns: one copy for all who hold what this gives."""
        key = (array.ctypes.data, array.nbytes) if array.flags.c_contiguous else (id(array), -1)
        with self._lock:
            found = self._constants.get(key)
            if found is None:
                found = self._constants[key] = Constant(array, self.upload(array))
                drop_pages(array)
            return found

    def upload(self, array: Array) -> Buffer:
        """A copy of an array, on the GPU when this returns."""
        with self._lock:
            made = self.buffer(max(array.nbytes, 1))
            self.put(made.address, np.ascontiguousarray(array))
            return made

    # --- arrays of callers, and what belongs to no run: all through one stream

    def _own(self) -> Any:
        """The stream, for who holds the lock."""
        if self._stream is None:
            self._stream = self.driver.stream()
        return self._stream

    def buffer(self, nbytes: int) -> Buffer:
        """Bytes of no run."""
        with self._lock:
            return self._made(nbytes, self._own())

    def put(self, address: int, array: Array, after: Any = None) -> None:
        """Copy a dense array to the GPU, once the stream ``after`` is done, if one is given; done when this returns."""
        with self._lock:
            self.driver.after(self._own(), after)
            self.driver.write(address, array, self._own())
            self.driver.synchronise(self._own())

    def fetch(self, address: int, array: Array, after: Any = None) -> None:
        """Fill a dense array from the GPU, once the stream ``after`` is done, if one is given."""
        with self._lock:
            self.driver.after(self._own(), after)
            self.driver.read(address, array, self._own())

    def copy(self, target: int, source: int, nbytes: int, after: Any = None) -> None:
        """Copy within the GPU, once the stream ``after`` is done, if one is given; done when this returns."""
        with self._lock:
            self.driver.after(self._own(), after)
            self.driver.move(target, source, nbytes, self._own())
            self.driver.synchronise(self._own())

    def take(self, buffer: Buffer, offset: int, given: Any, at: int, nbytes: int) -> None:
        self.driver.after(buffer.stream, given.stream)
        self.driver.move(buffer.address + offset, given.address + at, nbytes, buffer.stream)

    def give(self, buffer: Buffer, offset: int, wanted: Any, at: int, nbytes: int) -> None:
        self.driver.after(buffer.stream, wanted.stream)
        self.driver.move(wanted.address + at, buffer.address + offset, nbytes, buffer.stream)
        self.driver.synchronise(buffer.stream)

    @property
    def uploaded(self) -> int:
        """Bytes of all constants."""
        return sum(constant.buffer.nbytes for constant in list(self._constants.values()))
