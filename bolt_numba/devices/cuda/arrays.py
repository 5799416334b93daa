"""Arrays in the memory of a GPU that a caller holds: inputs without a way through the host, and places for results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bolt_numba.base.errors import DTypeError, ShapeError
from bolt_numba.base.types import AnyDType, Array, dtype_name
from bolt_numba.devices import device
from bolt_numba.devices.cuda import dlpack
from bolt_numba.devices.cuda.memory import CudaMemory

LEGACY = 1
"""The stream that others work in unless they say otherwise: CUDA's default stream."""


class Flags(NamedTuple):
    """Of those of NumPy's arrays what is asked for."""

    c_contiguous: bool
    writeable: bool


class DeviceArray:
    """A dense array on a GPU.  `numpy` copies it to the host; other packages take it by DLPack or CUDA's interface.

    shape, dtype: as of NumPy's arrays.  memory: of the GPU.  address: of the first element.  owner: what keeps the
    memory.  stream: handle of the one that makes the content; None: it is there.  flags: as of NumPy's arrays: it is
    dense, and may be written to unless it is another package's that says otherwise.
    """

    is_elsewhere = True

    def __init__(
        self, memory: CudaMemory, address: int, shape: Sequence[int], dtype: AnyDType, owner: Any, stream: Any = None,
        is_read_only: bool = False,
    ) -> None:  # fmt: skip
        self.memory, self.address, self.owner, self.stream = memory, address, owner, stream
        self.shape, self.dtype, self.flags = tuple(shape), dtype, Flags(True, not is_read_only)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def numpy(self) -> Array:
        """A copy in the host's memory."""
        made = np.empty(self.shape, self.dtype)
        self.memory.fetch(self.address, made, self.stream)
        return made

    copy = numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"{self}: got copy=False, wanted a copy: the array is in the memory of a GPU")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tobytes(self) -> bytes:
        return self.numpy().tobytes()

    def item(self) -> Any:
        return self.numpy().item()

    def write(self, array: Array) -> None:
        """Take over the elements of an array of the host.  Raises ShapeError and DTypeError where it is not alike."""
        array = np.asarray(array)
        if array.shape != self.shape:
            raise ShapeError(f"{self}: write: got shape {array.shape}, wanted {self.shape}")
        if array.dtype != self.dtype:
            raise DTypeError(f"{self}: write: got {dtype_name(array.dtype)}, wanted {dtype_name(self.dtype)}")
        if not self.flags.writeable:
            raise ShapeError(f"{self}: got a read-only array, wanted one that may be written to")
        self.memory.put(self.address, np.ascontiguousarray(array), self.stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._lend()
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, not self.flags.writeable),
            "strides": None, "stream": None, "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._number()

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A capsule; what is written to the array was done when the call that wrote it returned.

        copy, dl_device: as the array API standard says; the host is the other device that there can be.
        """
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            if int(dl_device[0]) != dlpack.HOST or copy is False:
                raise BufferError(f"{self}: DLPack: got device {dl_device}, wanted its own, or a copy on the host")
            return self.numpy().__dlpack__()
        if not self.flags.writeable and not copy:
            raise BufferError(f"{self}: DLPack: got a read-only array, wanted copy=True")
        given = self._copied() if copy else self
        return dlpack.exported(given.address, self.shape, self.dtype, given._lend(), given)

    def _copied(self) -> DeviceArray:
        """The same in memory of its own, done when this returns."""
        made = empty(self.memory, self.shape, self.dtype)
        self.memory.copy(made.address, self.address, self.nbytes, self.stream)
        return made

    __copy__ = _copied

    def __deepcopy__(self, memo: object) -> DeviceArray:
        return self._copied()

    def __reduce__(self) -> tuple[Any, ...]:
        """The content, and the GPU by its name, which may be another one in another process."""
        return _restored, (self.memory.name, self.numpy())

    def _lend(self) -> int:
        """Which GPU; others may work on the array in the default stream from now on, for which we then wait."""
        number, self.stream = self._number(), LEGACY
        return number

    def _number(self) -> int:
        """Which GPU, for other packages; AttributeError on a simulated one, which they could not reach."""
        number = self.memory.driver.number
        if number is None:
            raise AttributeError(f"{self.memory.name}: got a simulated GPU, wanted one that others can reach")
        return number

    def __repr__(self) -> str:
        return f"DeviceArray({self.memory.name!r}, shape={self.shape}, dtype={self.dtype})"


def empty(memory: CudaMemory, shape: Sequence[int], dtype: AnyDType) -> DeviceArray:
    """An array of any content."""
    buffer = memory.buffer(max(math.prod(shape) * dtype.itemsize, 1))
    return DeviceArray(memory, buffer.address, shape, dtype, buffer)


def _restored(name: str, content: Array) -> DeviceArray:
    """Raises DeviceError where there is no such GPU."""
    memory: Any = device(name).memory
    made = empty(memory, content.shape, content.dtype)
    made.write(content)
    return made


def imported(memory: CudaMemory, value: Any) -> DeviceArray | None:
    """A foreign array, where it is on this GPU: nothing is copied, and it is read when its stream has made it."""
    if isinstance(value, DeviceArray):
        return value if value.memory is memory else None
    number = memory.driver.number
    if number is None:
        return None
    if hasattr(value, "__dlpack_device__") and hasattr(value, "__dlpack__"):
        if tuple(map(int, value.__dlpack_device__())) != (dlpack.CUDA, number):
            return None
        taken = dlpack.imported(_capsule(value))
        return DeviceArray(memory, *taken[:4], LEGACY, taken.is_read_only)
    found = getattr(value, "__cuda_array_interface__", None)
    if found is None or not memory.driver.owns(found["data"][0]):
        return None
    shape, dtype = tuple(found["shape"]), np.dtype(found["typestr"])
    if found.get("strides") is not None:
        dlpack.check_dense(shape, tuple(found["strides"]), dtype)
    if found.get("mask") is not None:
        raise DTypeError("array on a GPU: got one with a mask, wanted all elements")
    stream = found.get("stream", LEGACY)
    stream = LEGACY if stream == 0 else stream  # which the interface leaves open
    return DeviceArray(memory, found["data"][0], shape, dtype, value, stream, found["data"][1])


def _capsule(value: Any) -> Any:
    """A foreign array's capsule, of the form that says whether it may be written to if its package has that."""
    try:
        return value.__dlpack__(stream=LEGACY, max_version=dlpack.VERSION)
    except TypeError:  # from before that form
        return value.__dlpack__(stream=LEGACY)
