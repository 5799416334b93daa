"""The device: its memory, the DMA to and from it, and loaded graphs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np

from simnpu_sdk import blob as blobs
from simnpu_sdk.chips import CHIPS
from simnpu_sdk.errors import LostError, MemoryFullError, SimError
from simnpu_sdk.graph import DTYPES
from simnpu_sdk.operators import Call

_lock = threading.Lock()
_counted: Counter[str] = Counter()
_live: Counter[str] = Counter()


def counters() -> Counter[str]:
    """What was done in this process: "loads", "runs", "dma_in", "dma_out", "bytes_in", "bytes_out"."""
    with _lock:
        return Counter(_counted)


def live() -> dict[str, int]:
    """What is not given back: "runtimes", "graphs", "buffers" and "bytes"; empty where all is."""
    with _lock:
        return {what: n for what, n in _live.items() if n}


def _count(**done: int) -> None:
    with _lock:
        _counted.update(done)


class Buffer:
    """Memory of the device.  Only DMA reaches it: the host has no pointer into it."""

    def __init__(self, runtime: Runtime, nbytes: int) -> None:
        runtime.take(nbytes)
        self.runtime, self.nbytes, self._data = runtime, nbytes, np.full(nbytes, 0xA5, np.uint8)
        self.is_open = True
        with _lock:
            _live["buffers"] += 1

    def write(self, array: np.ndarray) -> None:
        """Copy an array of the host to the begin of the buffer."""
        self._want(array.nbytes)
        self._data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        _count(dma_in=1, bytes_in=array.nbytes)

    def read(self, array: np.ndarray) -> None:
        """Fill an array of the host from the begin of the buffer."""
        self._want(array.nbytes)
        array[...] = self._data[: array.nbytes].view(array.dtype).reshape(array.shape)
        _count(dma_out=1, bytes_out=array.nbytes)

    def _want(self, nbytes: int) -> None:
        self.runtime.answer()
        if not self.is_open or nbytes > self.nbytes:
            raise SimError(
                f"buffer: got {nbytes} bytes, wanted {self.nbytes if self.is_open else 'none: it is closed'}"
            )

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.runtime.take(-self.nbytes)
            with _lock:
                _live["buffers"] -= 1


class Loaded:
    """A graph on the device, with its constants there."""

    def __init__(self, runtime: Runtime, blob: bytes) -> None:
        self.runtime = runtime
        self.graph = blobs.unpack(blob, runtime.chip.name, runtime.sdk_version)
        constants = [(i, t.data) for i, t in enumerate(self.graph.tensors) if t.data is not None]
        self.nbytes = sum(data.nbytes for _, data in constants)
        runtime.take(self.nbytes)
        self._constants = {i: data.copy() for i, data in constants}
        self._calls = [Call(self.graph, op, runtime.chip.arithmetic) for op in self.graph.ops]
        self.is_open = True
        _count(loads=1, dma_in=len(constants), bytes_in=self.nbytes)
        with _lock:
            _live["graphs"] += 1

    def run(
        self, inputs: Sequence[tuple[Buffer, tuple[int, ...]]], outputs: Sequence[tuple[Buffer, tuple[int, ...]]]
    ) -> None:
        """Compute on the device: buffers, each with the shape of what is in it."""
        self.runtime.answer()
        if not self.is_open or any(b.runtime is not self.runtime or not b.is_open for b, _ in (*inputs, *outputs)):
            raise SimError("run: got what is closed or of another device, wanted buffers of this one")
        graph, values = self.graph, dict(self._constants)
        for i, (buffer, shape) in zip(graph.inputs, inputs, strict=True):
            declared, dtype = graph.tensors[i].shape, DTYPES[graph.tensors[i].dtype]
            if len(shape) != len(declared) or any(d not in (None, n) for d, n in zip(declared, shape, strict=True)):
                raise SimError(f"run: got an input {shape}, wanted {declared}")
            count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            values[i] = buffer._data[:count].view(dtype).reshape(shape)
        for call in self._calls:
            values[call.op.outputs[0]] = call([values[i] for i in call.op.inputs])
        for i, (buffer, shape) in zip(graph.outputs, outputs, strict=True):
            if values[i].shape != shape or values[i].nbytes > buffer.nbytes:
                raise SimError(f"run: got a buffer for {shape}, wanted one for {values[i].shape}")
            buffer._data[: values[i].nbytes] = np.ascontiguousarray(values[i]).reshape(-1).view(np.uint8)
        _count(runs=1)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.runtime.take(-self.nbytes)
            self._constants.clear()
            with _lock:
                _live["graphs"] -= 1


class Runtime:
    """An opened device with so many bytes of memory."""

    def __init__(self, chip: str, sdk_version: str, memory: int = 1 << 28) -> None:
        if chip not in CHIPS:
            raise SimError(f"chip: got {chip!r}, wanted one of {', '.join(CHIPS)}")
        self.chip, self.sdk_version, self.memory = CHIPS[chip], sdk_version, memory
        self.used, self.is_lost, self.is_open = 0, False, True
        with _lock:
            _live["runtimes"] += 1

    def answer(self) -> None:
        """Raises LostError once the device is lost, SimError once it is closed."""
        if self.is_lost:
            raise LostError(f"{self.chip.name} does not answer")
        if not self.is_open:
            raise SimError(f"{self.chip.name} is closed")

    def take(self, nbytes: int) -> None:
        """Count memory that is taken, or given back.  Raises MemoryFullError."""
        if nbytes > 0:
            self.answer()
        with _lock:
            if self.used + nbytes > self.memory:
                raise MemoryFullError(f"{self.chip.name}: got {self.used + nbytes:,} bytes, wanted {self.memory:,}")
            self.used += nbytes
            _live["bytes"] += nbytes

    def alloc(self, nbytes: int) -> Buffer:
        return Buffer(self, nbytes)

    def load(self, blob: bytes) -> Loaded:
        self.answer()
        return Loaded(self, blob)

    def lose(self) -> None:
        """Pull the plug: whatever is asked from now on raises LostError."""
        self.is_lost = True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            with _lock:
                _live["runtimes"] -= 1
