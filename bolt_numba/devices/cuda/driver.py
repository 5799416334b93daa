"""A GPU by NVIDIA's driver: memory, streams with pinned memory for copies, launches, graphs; descriptors of tensors.

`cuda.bindings` has the function that makes them, but lets it write into an object of Python, which begins at any
multiple of 16 bytes.  The driver wants `ALIGN`, so it is called by its address here.  Source: cuda.h of CUDA 13, and
NVIDIA/cuda-python#1692, whose processes crash.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bolt_numba.base.errors import BudgetError, DeviceError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.devices.cuda.interface import Call
from bolt_numba.devices.cuda.library import REFUSED, Health, arch_of, library, name_of, text_of, version_text, want_arch
from bolt_numba.devices.cuda.limits import check_launch
from bolt_numba.kernels.cuda.code import CUBIN, code_of
from bolt_numba.kernels.cuda.declare import CudaKernel, MappedTensor

NAME, SINCE = "cuTensorMapEncodeTiled", 12000
"""The function, and the version of CUDA that brought it."""
ALIGN = MAP_BYTES = 128
_U32, _U64 = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)
Encode = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _U64, _U64, _U32, _U32,
    *(ctypes.c_int,) * 4,
)  # fmt: skip
"""Descriptor, kind of elements, rank, address, dims, strides, box, steps; interleaving, swizzle, use of L2, fill."""


def encoded(cu: Any, address: int, tensor: MappedTensor) -> tuple[Any, Array]:
    """Status of the driver, whose function stands at ``address``, and the descriptor; for the calling thread's GPU."""
    t, rank = tensor, len(tensor.dims)
    room = np.zeros(MAP_BYTES + ALIGN, np.uint8)
    made = room[-room.ctypes.data % ALIGN :][:MAP_BYTES]
    dims, strides = (ctypes.c_uint64 * rank)(*t.dims), (ctypes.c_uint64 * max(rank - 1, 1))(*t.strides)
    box, steps = (ctypes.c_uint32 * rank)(*t.box), (ctypes.c_uint32 * rank)(*(1,) * rank)
    status = Encode(address)(
        made.ctypes.data, int(getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_UINT{8 * t.itemsize}")), rank,
        t.address, dims, strides, box, steps,
        int(cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        int(cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )  # fmt: skip
    return status, made


PIECE = 1 << 23
"""Bytes of the largest single copy: a longer one goes piece by piece through pinned memory."""
FIRST_PINNED, MOST_PINNED = 1 << 16, 4 * PIECE
"""Bytes of pinned memory of a stream: at first, and at most."""
NON_BLOCKING, RELAXED, WITHOUT_TIME = 1, 2, 2
"""Of streams that do not wait for the default stream; captures during which memory may be freed; events."""


class Stream:
    """Work in order, and the pinned memory that copies of it go through."""

    def __init__(self, gpu: Gpu) -> None:
        self.handle = gpu.done(gpu.cu.cuStreamCreate(NON_BLOCKING), "making a stream")
        self.pinned = np.empty(0, np.uint8)
        self.used = 0
        weakref.finalize(self, gpu.end, _ended, gpu.cu, self.handle).atexit = False


def _ended(cu: Any, handle: Any) -> None:
    """The pinned memory goes next, so nothing may be under way."""
    cu.cuStreamSynchronize(handle)
    cu.cuStreamDestroy(handle)


@record(eq=False)
class Function:
    """A kernel's code in the GPU's memory.  shared: bytes of dynamic shared memory that it was allowed so far."""

    name: str
    module: Any
    handle: Any
    shared: int = 0


class _Here:
    """``with`` it the calling thread's driver calls are for this GPU; what was so before is so again afterwards."""

    __slots__ = ("context", "gpu")

    def __init__(self, gpu: Gpu, context: Any) -> None:
        self.gpu, self.context = gpu, context

    def __enter__(self) -> None:
        self.gpu.health.check()
        (status,) = self.gpu.cu.cuCtxPushCurrent(self.context)
        if status:
            raise self.gpu.health.failure(status, "turning to the GPU")

    def __exit__(self, *error: object) -> None:
        self.gpu.cu.cuCtxPopCurrent()


class Gpu:
    """See `interface.Driver`.

    number: which GPU, as the driver counts them.  cu: the functions of the driver.  kind: of the code that they take.
    Raises DeviceError where there is no such GPU.
    """

    def __init__(self, number: int = 0, cu: Any = None, kind: str = CUBIN) -> None:
        self.cu = cu = library() if cu is None else cu
        self.name, self.kind = f"cuda:{number}" if number else "cuda", kind
        self.number: int | None = number
        self.health = Health(cu, self.name)
        self.version = self.done(cu.cuDriverGetVersion(), "asking for its version")
        gpus = self.done(cu.cuDeviceGetCount(), "counting GPUs")
        if number >= gpus:
            raise DeviceError(f"device: got 'cuda:{number}', wanted a number below {gpus}, as many GPUs as there are")
        self.device = device = self.done(cu.cuDeviceGet(number), "finding the GPU")
        name_there = self.done(cu.cuDeviceGetName(256, device), "asking for its name")
        self.model, self.arch = text_of(name_there), arch_of(cu, device)
        want_arch(self.arch, self.name)
        optin = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self.shared = int(self.done(cu.cuDeviceGetAttribute(optin, device), "asking what it can do"))
        count = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self.processors = int(self.done(cu.cuDeviceGetAttribute(count, device), "asking how large it is"))
        self.here = _Here(self, self.done(cu.cuDevicePrimaryCtxRetain(device), "starting to use the GPU"))
        self._encode = 0
        self._pinned_bytes: dict[int, int] = {}
        self._functions: dict[str, Function] = {}
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock", threading.RLock)

    def done(self, result: Sequence[Any], what: str) -> Any:
        """What a function of the driver gives besides its status."""
        if result[0]:
            raise self.health.failure(result[0], what)
        return result[1] if len(result) == 2 else result[1:]

    def end(self, how: Callable[..., Any], *what: Any) -> None:
        """Give something back to the driver, for finalisers: where the GPU failed there is nothing left to do."""
        with suppress(DeviceError), self.here:
            how(*what)

    # --- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        with self.here:
            status, address = self.cu.cuMemAlloc(nbytes)
            if self._is_full(status):
                free, total = self.done(self.cu.cuMemGetInfo(), "asking for free memory")
                raise BudgetError(f"{self.name}: memory: got {free:,} of {total:,} bytes free, wanted {nbytes:,}")
            return int(self.done((status, address), f"allocating {nbytes} bytes"))

    def _is_full(self, status: Any) -> bool:
        return bool(status) and name_of(self.cu, status) == "CUDA_ERROR_OUT_OF_MEMORY"

    def free(self, address: int) -> None:
        self.end(self.cu.cuMemFree, address)

    def stream(self) -> Stream:
        with self.here:
            return Stream(self)

    def _room(self, stream: Stream, nbytes: int) -> int:
        """Where in the stream's pinned memory so many bytes are free."""
        begin = stream.used
        if begin + nbytes > stream.pinned.nbytes:
            self._wait(stream)
            begin = 0
            if stream.pinned.nbytes < MOST_PINNED:  # it was too small once, so it may be again
                wanted = max(FIRST_PINNED, 2 * stream.pinned.nbytes, 1 << (nbytes - 1).bit_length())
                stream.pinned = self._pinned(min(wanted, MOST_PINNED))
        stream.used = -(-(begin + nbytes) // 64) * 64
        return begin

    def _pinned(self, nbytes: int) -> Array:
        address = int(self.done(self.cu.cuMemHostAlloc(nbytes, 0), f"pinning {nbytes} bytes of the host's memory"))
        owner = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(owner, self._unpin, address).atexit = False
        self._pinned_bytes[address] = nbytes
        return np.ctypeslib.as_array(owner)

    def _unpin(self, address: int) -> None:
        """Free it; by the garbage collector at any moment, so no lock is taken."""
        del self._pinned_bytes[address]
        self.end(self.cu.cuMemFreeHost, address)

    @property
    def pinned(self) -> int:
        return sum(self._pinned_bytes.copy().values())

    def write(self, address: int, array: Array, stream: Stream) -> None:
        data = array.reshape(-1).view(np.uint8)
        with self.here:
            for begin in range(0, data.size, PIECE):
                part = data[begin : begin + PIECE]
                at = self._room(stream, part.size)
                place = stream.pinned[at : at + part.size]
                place[...] = part
                copied = self.cu.cuMemcpyHtoDAsync(address + begin, place.ctypes.data, part.size, stream.handle)
                self.done(copied, "copying to the GPU")

    def read(self, address: int, array: Array, stream: Stream) -> None:
        data = array.reshape(-1).view(np.uint8)
        with self.here:
            for begin in range(0, data.size, PIECE):
                part = data[begin : begin + PIECE]
                at = self._room(stream, part.size)
                place = stream.pinned[at : at + part.size]
                copied = self.cu.cuMemcpyDtoHAsync(place.ctypes.data, address + begin, part.size, stream.handle)
                self.done(copied, "copying from the GPU")
                self._wait(stream)
                part[...] = place

    def move(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        with self.here:
            self.done(self.cu.cuMemcpyDtoDAsync(target, source, nbytes, stream.handle), "copying on the GPU")

    def after(self, stream: Stream, handle: int | None) -> None:
        if handle is None:
            return
        what = "waiting for a stream of others"
        with self.here:
            event = self.done(self.cu.cuEventCreate(WITHOUT_TIME), what)
            try:
                self.done(self.cu.cuEventRecord(event, handle), what)
                self.done(self.cu.cuStreamWaitEvent(stream.handle, event, 0), what)
            finally:
                self.cu.cuEventDestroy(event)

    def owns(self, address: int) -> bool:
        kind = self.cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self.here:
            status, number = self.cu.cuPointerGetAttribute(kind, address)
        return not status and int(number) == self.number

    def synchronise(self, stream: Stream) -> None:
        with self.here:
            self._wait(stream)

    def _wait(self, stream: Stream) -> None:
        self.done(self.cu.cuStreamSynchronize(stream.handle), "waiting for the GPU")
        stream.used = 0

    # --- launches ----------------------------------------------------------------------------------------------------

    def function(self, kernel: CudaKernel) -> Function:
        with self._lock:
            found = self._functions.get(kernel.digest)
            if found is None:
                found = self._functions[kernel.digest] = self._loaded(kernel)
            return found

    def _loaded(self, kernel: CudaKernel) -> Function:
        code = code_of(kernel, self.arch, self.kind).data
        with self.here:
            status, module = self.cu.cuModuleLoadData(code)
            if status and name_of(self.cu, status) in REFUSED:
                got = f"got a driver of CUDA {version_text(self.version)}"
                wanted = f"wanted one that takes code of CUDA 13 for {self.arch}"
                raise DeviceError(f"{self.name}: kernel {kernel.name}: {name_of(self.cu, status)}: {got}, {wanted}")
            self.done((status, module), f"loading kernel {kernel.name}")
            functions = self.done(self.cu.cuModuleEnumerateFunctions(1, module), f"looking into kernel {kernel.name}")
            return Function(kernel.name, module, functions[0])

    def tensor_map(self, tensor: MappedTensor) -> Array:
        t = tensor
        with self.here:
            if not self._encode:
                found = self.cu.cuGetProcAddress(NAME.encode(), SINCE, 0)
                self._encode = int(self.done(found, f"looking for {NAME}")[0])
            status, made = encoded(self.cu, self._encode, t)
        if status:
            what = f"describing a tensor of {t.dims} with strides {t.strides} at {t.address:#x}"
            raise self.health.failure(status, what)
        return made

    def call(
        self, function: Function, grid: tuple[int, int, int], threads: int, shared: int, values: Sequence[Any],
        stream: Stream,
    ) -> Call:  # fmt: skip
        check_launch(f"{self.name}: kernel {function.name}", grid, threads, shared, self.shared)
        if shared > function.shared:
            self._allow(function, shared)
        block = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        arguments = ctypes.addressof(block) if values else 0
        launch, handle, queue, health, (x, y, z) = (
            self.cu.cuLaunchKernel, function.handle, stream.handle, self.health, grid,
        )  # fmt: skip

        def go(kept: object = (function, values, block, stream)) -> None:
            (status,) = launch(handle, x, y, z, threads, 1, 1, shared, queue, arguments, 0)
            if status:
                raise health.failure(status, f"launching kernel {function.name}")

        return go

    def _allow(self, function: Function, shared: int) -> None:
        """Let a kernel have so much dynamic shared memory, which the driver does not do by itself."""
        kind = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self._lock, self.here:
            most = max(shared, function.shared)  # another thread may have asked for more meanwhile
            self.done(self.cu.cuFuncSetAttribute(function.handle, kind, most), f"preparing kernel {function.name}")
            function.shared = most

    def run(self, calls: Sequence[Call]) -> None:
        with self.here:
            for call in calls:
                call()

    def repeated(self, calls: Sequence[Call], stream: Stream) -> Call:
        """A CUDA graph: the driver replays all launches by one call; one by one where it has no memory for that."""
        cu, what = self.cu, "making a graph of launches"
        with self.here:
            try:
                self.done(cu.cuStreamBeginCapture(stream.handle, cu.CUstreamCaptureMode(RELAXED)), what)
                for call in calls:
                    call()
            except BaseException:
                cu.cuStreamEndCapture(stream.handle)
                raise
            graph = self.done(cu.cuStreamEndCapture(stream.handle), what)
            try:
                status, made = cu.cuGraphInstantiate(graph, 0)
            finally:
                cu.cuGraphDestroy(graph)
        if self._is_full(status):
            return lambda: self.run(calls)
        self.done((status, made), what)
        launch, here, queue, health = cu.cuGraphLaunch, self.here, stream.handle, self.health

        def replay(kept: object = stream) -> None:
            with here:
                (status,) = launch(made, queue)
                if self._is_full(status):  # the first one brings the graph to the GPU
                    self.run(calls)
                elif status:
                    raise health.failure(status, "replaying a graph of launches")

        weakref.finalize(replay, self.end, cu.cuGraphExecDestroy, made).atexit = False
        return replay

    # --- time --------------------------------------------------------------------------------------------------------

    def timed(self, groups: Sequence[Sequence[Call]], stream: Stream, counts: Any = None) -> list[float]:
        cu, what, events = self.cu, "measuring time", []
        with self.here:
            try:
                for calls in ((), *groups):
                    for call in calls:
                        call()
                    events.append(self.done(cu.cuEventCreate(0), what))
                    self.done(cu.cuEventRecord(events[-1], stream.handle), what)
                self.done(cu.cuEventSynchronize(events[-1]), what)
                pairs = itertools.pairwise(events)
                return [self.done(cu.cuEventElapsedTime(*pair), what) / 1000 for pair in pairs]
            finally:
                for event in events:
                    cu.cuEventDestroy(event)

    def describe(self) -> str:
        with self.here:
            _, total = self.done(self.cu.cuMemGetInfo(), "asking for its memory")
        return f"{self.model} ({self.arch}, {total / 2**30:.0f} GiB, CUDA {version_text(self.version)})"
