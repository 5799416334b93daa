# ruff: noqa: N802
"""A stand-in for `cuda.bindings.driver`: GPUs by the interpreter of PTX, whose work happens as late as it may.

What is asked of a stream is done when somebody waits for it, so a result that is read too early, or pinned memory that
is used again too early, is wrong here, too.  ``failing`` makes functions fail by name.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver as real

from bolt_numba.devices.cuda.driver import Encode
from bolt_numba_simulator.ptx import GlobalMemory, Module, TensorMap

Result = real.CUresult
_KINDS = {"u64": "q", "b64": "q", "s64": "q", "u32": "i", "b32": "i", "s32": "i", "f32": "f", "f64": "d"}
_TYPES = {"q": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float, "d": ctypes.c_double}


class FakeStream:
    """Work that is not done yet; while it is captured, what was launched."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.work: list[Callable[[], None]] = []
        self.captured: list[Callable[[], None]] | None = None
        self.is_busy = False

    def finish(self) -> None:
        """Do the work in order; not once more where the garbage collector frees memory in the middle of it."""
        if self.is_busy:
            return
        self.is_busy = True
        try:
            while self.work:
                self.work.pop(0)()
        finally:
            self.is_busy = False


class FakeFunction:
    """An entry of PTX text."""

    def __init__(self, text: str) -> None:
        self.module, self.most_shared = Module(text), 48 << 10
        head = text[text.index(".entry") :]
        head = head[: head.index("{")]
        self.kinds = [_KINDS[kind] for kind in re.findall(r"\.param\s+\.(\w+)\s", head)]

    def arguments(self, address: int) -> list[Any]:
        places = (ctypes.c_void_p * len(self.kinds)).from_address(address) if self.kinds else ()
        return [_TYPES[kind].from_address(place).value for kind, place in zip(self.kinds, places, strict=True)]


def _ok(*made: Any) -> tuple[Any, ...]:
    return (Result.CUDA_SUCCESS, *made)


class FakeDriver:
    """The functions that `devices.cuda.driver` calls.

    gpus: how many there are.  nbytes: memory of each.  failing: status by name of the function, for all its calls from
    now on.  counts: calls of each function.  Every function that needs a context refuses a thread that has none.
    """

    CUresult = Result
    CUdevice_attribute = real.CUdevice_attribute
    CUfunction_attribute = real.CUfunction_attribute
    CUpointer_attribute = real.CUpointer_attribute
    CUstreamCaptureMode = real.CUstreamCaptureMode
    CUtensorMapDataType = real.CUtensorMapDataType
    CUtensorMapInterleave = real.CUtensorMapInterleave
    CUtensorMapSwizzle = real.CUtensorMapSwizzle
    CUtensorMapL2promotion = real.CUtensorMapL2promotion
    CUtensorMapFloatOOBfill = real.CUtensorMapFloatOOBfill
    cuuint32_t = real.cuuint32_t
    cuuint64_t = real.cuuint64_t

    def __init__(self, gpus: int = 1, nbytes: int = 1 << 24, version: int = 13000, capability: int = 80) -> None:
        self.gpus, self.nbytes, self.version, self.capability = gpus, nbytes, version, capability
        self.failing: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.memory = GlobalMemory()
        self.sizes: dict[int, int] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: list[FakeStream] = []
        self.lock = threading.RLock()
        self.local = threading.local()
        self.encode = Encode(self._encoded)
        self.legacy = FakeStream(0)
        """The default stream, in which other packages work."""

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return found

        def called(*args: Any) -> Any:
            with self.lock:
                self.counts[name] = self.counts.get(name, 0) + 1
                if name in self.failing:
                    return (Result(self.failing[name]), None)[: 1 + (name in _WITH_RESULT)]
                if self._needs_context(name) and not self._contexts():
                    return (Result.CUDA_ERROR_INVALID_CONTEXT, None)[: 1 + (name in _WITH_RESULT)]
                return found(*args)

        return called

    def _needs_context(self, name: str) -> bool:
        return not name.startswith(("cuDevice", "cuDriver", "cuInit", "cuCtxPush"))

    def _contexts(self) -> list[int]:
        if not hasattr(self.local, "contexts"):
            self.local.contexts = []
        found: list[int] = self.local.contexts
        return found

    # --- devices and contexts

    def cuInit(self, flags: int) -> Any:
        return _ok()

    def cuDriverGetVersion(self) -> Any:
        return _ok(self.version)

    def cuDeviceGetCount(self) -> Any:
        return _ok(self.gpus)

    def cuDeviceGet(self, number: int) -> Any:
        return _ok(number)

    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return _ok(b"NVIDIA Fake".ljust(length, b"\0"))

    def cuDeviceTotalMem(self, device: int) -> Any:
        return _ok(self.nbytes)

    def cuDeviceGetAttribute(self, kind: Any, device: int) -> Any:
        major, minor = divmod(self.capability, 10)
        kinds = real.CUdevice_attribute
        return _ok({
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: major,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: minor,
            kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: 227 << 10,
            kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 3,
        }[kind])  # fmt: skip

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return _ok(1000 + device)

    def cuCtxPushCurrent(self, context: int) -> Any:
        self._contexts().append(context)
        return _ok()

    def cuCtxPopCurrent(self) -> Any:
        return _ok(self._contexts().pop())

    # --- memory

    def cuMemAlloc(self, nbytes: int) -> Any:
        if sum(self.sizes.values()) + nbytes > self.nbytes:
            return Result.CUDA_ERROR_OUT_OF_MEMORY, None
        address = self.memory.allocate(nbytes)
        self.sizes[address] = nbytes
        return _ok(address)

    def cuMemFree(self, address: int) -> Any:
        for stream in self.streams:
            stream.finish()
        del self.sizes[address]
        self.memory.free(address)
        return _ok()

    def cuMemGetInfo(self) -> Any:
        return _ok(self.nbytes - sum(self.sizes.values()), self.nbytes)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        array = np.full(nbytes, 0xEE, np.uint8)
        self.pinned[array.ctypes.data] = array
        return _ok(array.ctypes.data)

    def cuMemFreeHost(self, address: int) -> Any:
        self.pinned.pop(address)[...] = 0xDD
        return _ok()

    def _host(self, address: int, nbytes: int) -> Any:
        owner = next(p for at, p in self.pinned.items() if at <= address and address + nbytes <= at + p.size)
        start = address - owner.ctypes.data
        return owner[start : start + nbytes]

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: FakeStream) -> Any:
        return self._later(stream, lambda: self.memory.write(target, self._host(source, nbytes).copy()), copies=True)

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: FakeStream) -> Any:
        return self._later(stream, lambda: self.memory.read(source, self._host(target, nbytes)), copies=True)

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: FakeStream) -> Any:
        def copy() -> None:
            data = np.empty(nbytes, np.uint8)
            self.memory.read(source, data)
            self.memory.write(target, data)

        return self._later(stream, copy)

    # --- streams

    def cuStreamCreate(self, flags: int) -> Any:
        self.streams.append(FakeStream(self._contexts()[-1]))
        return _ok(self.streams[-1])

    def cuStreamDestroy(self, stream: FakeStream) -> Any:
        self.streams.remove(stream)
        return _ok()

    def cuStreamSynchronize(self, stream: FakeStream) -> Any:
        if stream.captured is not None:
            return (Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        stream.finish()
        return _ok()

    def _later(self, stream: FakeStream, work: Callable[[], None], copies: bool = False) -> Any:
        if stream.context != self._contexts()[-1]:
            return (Result.CUDA_ERROR_INVALID_HANDLE,)
        if stream.captured is not None:
            if copies:
                return (Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
            stream.captured.append(work)
        else:
            stream.work.append(work)
        return _ok()

    # --- code and launches

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:
        assert name == b"cuTensorMapEncodeTiled"
        return _ok(ctypes.cast(self.encode, ctypes.c_void_p).value, 0)

    def _encoded(
        self, place: int, kind: int, rank: int, address: int, dims: Any, strides: Any, box: Any, steps: Any, *how: int
    ) -> int:
        sizes = (tuple(one[:n]) for one, n in ((dims, rank), (strides, rank - 1), (box, rank), (steps, rank)))
        status, made = self.cuTensorMapEncodeTiled(real.CUtensorMapDataType(kind), rank, address, *sizes, *how)
        if status or place % 128:
            return int(status or Result.CUDA_ERROR_INVALID_VALUE)
        ctypes.memmove(place, made.ctypes.data, 128)
        return 0

    def cuTensorMapEncodeTiled(
        self, kind: Any, rank: int, address: int, dims: Any, strides: Any, box: Any, steps: Any, interleave: Any,
        swizzle: Any, promotion: Any, fill: Any,
    ) -> Any:  # fmt: skip
        size = {1: 1, 2: 2, 4: 4}[int(kind.name.rpartition("UINT")[2]) // 8]
        whole, apart, part, each = (tuple(map(int, one)) for one in (dims, strides, box, steps))
        is_right = len(whole) == len(part) == len(each) == rank == len(apart) + 1 and set(each) == {1}
        is_right &= address % 16 == 0 and not any(s % 16 or not 0 < s < 1 << 40 for s in apart)
        is_right &= all(0 < d <= 1 << 32 for d in whole) and all(0 < b <= 256 for b in part)
        if not is_right or part[0] * size > 128 or int(swizzle) != 3:
            return Result.CUDA_ERROR_INVALID_VALUE, None
        return _ok(TensorMap(address, size, whole, apart, part, 128).encoded())

    def cuModuleLoadData(self, image: bytes) -> Any:
        return _ok(FakeFunction(image.decode()))

    def cuModuleEnumerateFunctions(self, count: int, module: FakeFunction) -> Any:
        return _ok([module])

    def cuFuncSetAttribute(self, function: FakeFunction, kind: Any, value: int) -> Any:
        function.most_shared = value
        return _ok()

    def cuLaunchKernel(
        self, function: FakeFunction, x: int, y: int, z: int, threads: int, ty: int, tz: int, shared: int,
        stream: FakeStream, arguments: int, extra: int,
    ) -> Any:  # fmt: skip
        if shared > function.most_shared:
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        values = function.arguments(arguments)
        return self._later(stream, lambda: function.module.launch(self.memory, (x, y, z), threads, values, shared))

    def cuStreamBeginCapture(self, stream: FakeStream, mode: Any) -> Any:
        stream.captured = []
        return _ok()

    def cuStreamEndCapture(self, stream: FakeStream) -> Any:
        made, stream.captured = stream.captured, None
        return _ok(made)

    def cuGraphInstantiate(self, graph: list[Callable[[], None]], flags: int) -> Any:
        return _ok(list(graph))

    def cuGraphDestroy(self, graph: Any) -> Any:
        graph.clear()
        return _ok()

    def cuGraphExecDestroy(self, graph: Any) -> Any:
        graph.clear()
        return _ok()

    def cuGraphLaunch(self, graph: list[Callable[[], None]], stream: FakeStream) -> Any:
        for work in graph:
            self._later(stream, work)
        return _ok()

    # --- events

    def cuEventCreate(self, flags: int) -> Any:
        return _ok({"time": None, "stream": None})

    def cuEventRecord(self, event: dict[str, Any], stream: FakeStream | int) -> Any:
        if stream == 1:
            event["stream"] = self.legacy
            return _ok()
        assert isinstance(stream, FakeStream)
        event["stream"] = stream
        return self._later(stream, lambda: event.update(time=self._tick()))

    def _tick(self) -> float:
        self.counts["ticks"] = self.counts.get("ticks", 0) + 1
        return float(self.counts["ticks"])

    def cuEventSynchronize(self, event: dict[str, Any]) -> Any:
        event["stream"].finish()
        return _ok()

    def cuEventElapsedTime(self, begin: dict[str, Any], end: dict[str, Any]) -> Any:
        if begin["time"] is None or end["time"] is None:
            return Result.CUDA_ERROR_NOT_READY, None
        return _ok(end["time"] - begin["time"])

    def cuEventDestroy(self, event: Any) -> Any:
        return _ok()

    def cuPointerGetAttribute(self, kind: Any, address: int) -> Any:
        is_known = any(at <= address < at + n for at, n in self.sizes.items())
        return _ok(0) if is_known else (Result.CUDA_ERROR_INVALID_VALUE, None)

    def cuStreamWaitEvent(self, stream: FakeStream, event: dict[str, Any], flags: int) -> Any:
        return self._later(stream, lambda: event["stream"].finish())


_WITH_RESULT = frozenset((
    "cuDriverGetVersion", "cuDeviceTotalMem", "cuDeviceGetCount",
    "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain", "cuCtxPopCurrent", "cuMemAlloc", "cuMemHostAlloc", "cuStreamCreate",
    "cuModuleLoadData", "cuModuleEnumerateFunctions", "cuStreamEndCapture", "cuGraphInstantiate", "cuEventCreate",
    "cuEventElapsedTime", "cuPointerGetAttribute", "cuTensorMapEncodeTiled",
))  # fmt: skip
"""Functions that give something besides a status."""
