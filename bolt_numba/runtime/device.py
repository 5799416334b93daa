"""What a device owes the runtime, and the memory of the host, in which inputs, results and constants are.

A plan is a list of segments: consecutive jobs of one device, which the device has built into one executable.  The
runtime knows devices by these classes alone; `bolt_numba.devices` has them by name.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from bolt_numba.base.errors import BudgetError
from bolt_numba.base.follow import LostError, Trail
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba.base.types import AnyDType, Array, TensorType

if TYPE_CHECKING:
    from bolt_numba.kernels.data_sized import DataSized, Sized
    from bolt_numba.kernels.registry import Context, Entry, Given, In, Out, Step
    from bolt_numba.ops.registry import Op
    from bolt_numba.runtime.slots import Job
    from bolt_numba.runtime.stops import Stop


Made = TypeVar("Made")


class Memory(Protocol):
    """Where values live.  Devices that have one memory share values; into another one they are copied."""

    name: str

    def allocate(self, nbytes: int) -> Any:
        """A buffer of ``nbytes`` bytes of any content, which begins at a cache line."""
        ...

    def write(self, buffer: Any, offset: int, array: Array) -> None:
        """Copy the elements of an array of the host to ``offset`` bytes into a buffer."""
        ...

    def read(self, buffer: Any, offset: int, array: Array) -> None:
        """Fill an array of the host from a buffer, once the device has done what it was asked before."""
        ...

    def take(self, buffer: Any, offset: int, given: Any, at: int, nbytes: int) -> None:
        """Copy to a buffer from an array that a caller has in this memory (`Device.imported`), ``at`` bytes into it."""
        ...

    def give(self, buffer: Any, offset: int, wanted: Any, at: int, nbytes: int) -> None:
        """Copy from a buffer to such an array; done when this returns."""
        ...


GLIBC_LEARNS_TO = (1 << 25) - (1 << 12)
"""Bytes of the largest block whose end teaches glibc to keep freed memory (`mallopt(3)`, M_MMAP_THRESHOLD)."""


class HostMemory:
    """NumPy arrays."""

    name = "host"

    def allocate(self, nbytes: int) -> Array:
        # Until a large block was freed once, glibc takes each array of this size from the system and gives it back.  A
        # caller's arrays, and the results of runs, then cost a page fault every 4 KiB of each run.
        np.empty(min(nbytes, GLIBC_LEARNS_TO), np.uint8)
        raw = np.empty(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes]

    def write(self, buffer: Array, offset: int, array: Array) -> None:
        buffer[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array

    def read(self, buffer: Array, offset: int, array: Array) -> None:
        array[...] = buffer[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)

    def take(self, buffer: Array, offset: int, given: Array, at: int, nbytes: int) -> None:
        buffer[offset : offset + nbytes] = given.reshape(-1).view(np.uint8)[at : at + nbytes]

    def give(self, buffer: Array, offset: int, wanted: Array, at: int, nbytes: int) -> None:
        wanted.reshape(-1).view(np.uint8)[at : at + nbytes] = buffer[offset : offset + nbytes]


HOST: Memory = HostMemory()
"""The memory of inputs, results and constants."""

# --- buffers that no run has at the moment, and who lets go of them when a memory is full


class Holder(Protocol):
    """Who keeps buffers for runs to come."""

    def let_go(self, memory: Memory) -> bool:
        """Free the buffers in a memory that no run has; whether there were any."""
        ...


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock)


def hold(holder: Holder) -> None:
    """Have a holder asked, for as long as it lives."""
    with _lock:
        _holders.add(holder)


def allocated(allocate: Callable[[], Made], memory: Memory) -> Made:
    """What ``allocate`` gives; after a BudgetError it is called again as long as somebody lets go of something."""
    while True:
        try:
            return allocate()
        except BudgetError:
            with _lock:
                holders = list(_holders)
            were_any = [holder.let_go(memory) for holder in holders]
            gc.collect()  # buffers of sessions that are gone
            if not any(were_any):
                return allocate()


Arenas = Mapping[Memory, Any]
"""The buffer of one run in each memory; slots say by ``place`` where in it they are."""


class Run(Protocol):
    """The jobs of a segment, ready to run again and again in the same buffers, one run at a time."""

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run all jobs, on what the caller gives and gets (arrays of the host, by the numbers in the slots)."""
        ...

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        """The same; seconds of each job."""
        ...


class Executable(Protocol):
    """The jobs of a segment as their device runs them; shared by all runs.

    nbytes: memory of one `Run` beside the arenas.
    """

    @property
    def nbytes(self) -> int: ...

    def bind(self, arenas: Arenas) -> Run:
        """Make it ready to run in these buffers."""
        ...


class Device:
    """A place to run steps; a subclass fills in its duties.

    name: what sessions and makers call it.  memory: where its operands and results must be.  aliases: whether its steps
    may be given parts of buffers, the slices of a concatenation; `copy_step` then fills those that no step writes.
    halves: whether it computes on values of f16 and bf16, which sessions of these precisions then have.  weighs:
    whether nodes for which it has kernels are left to the host where the copies take longer than what they gain
    (`runtime.copies`).
    """

    name: str
    memory: Memory = HOST
    aliases = False
    halves = False
    weighs = False

    @property
    def pack_form(self) -> str:
        """Names how its makers pack weights: devices of one name find each other's; "" in files with packed weights."""
        return self.name

    def select(self, op: Op, ins: Given, context: Context) -> Entry | None:
        """The best maker of steps for a node, or None."""
        return None

    def ways(self, op: Op, ins: Given, context: Context) -> Iterable[tuple[Any, Entry]]:
        """The makers that may be selected, the best first, each with whether it accepts; see `registry.ways`."""
        entry = self.select(op, ins, context)
        return [] if entry is None else [(True, entry)]

    def runs(self, op: Op) -> str:
        """What people are told runs a node without steps, for which `select` gives no maker; "": it does not."""
        return ""

    def candidates(self, op: Op, ins: Given, context: Context) -> list[Entry]:
        """All makers that work, the selected one first: what may be chosen by measurement."""
        entry = self.select(op, ins, context)
        return [] if entry is None else [entry]

    def data_sized(self, op: Op, ins: Given) -> DataSized | None:
        """What computes a node on arrays of the host if the size of its result depends on data, or None."""
        return None

    def sized(self, op: Op, ins: Given) -> Sized | None:
        """Steps of a node whose results are as long as data say, or None."""
        return None

    def seconds(self, op: Op, ins: Given, outs: Sequence[TensorType], threads: int) -> float:
        """Roughly what a node takes here, on so many threads of the host."""
        return 0.0

    def copy_seconds(self, nbytes: int) -> float:
        """Roughly what it takes to copy so much to its memory or from it."""
        return 0.0

    def join(self, one: Step, two: Step, operands: int, between: TensorType, threads: int) -> Step | None:
        """One step for two, the second of which alone reads what the first makes (operand 0), or None.

        operands: of the first; in the joined step those of the second follow, without operand 0.
        """
        return None

    def copy_step(self, source: In, target: Out, rows: int, nbytes: int, itemsize: int) -> Step:
        """A step that copies rows of ``nbytes`` bytes, which lie as far apart as the pitches of both operands say."""
        raise NotImplementedError(self.name)

    def numbers_step(self, table: Any, target: Out, itemsize: int) -> Step:
        """A step that writes a table of i64 as integers of ``itemsize`` bytes."""
        raise LostError(f"numbers of {self.name}")

    def read_step(self, source: In) -> Step:
        """A step that does nothing, in whose record a tape finds the address of integers (`runtime.stops`)."""
        raise LostError(f"stops of {self.name}")

    def besides(self) -> list[Any]:
        """Kernels that every plan may need, of those that would have to be compiled."""
        return []

    def lacking(self, steps: Sequence[Step]) -> list[Any]:
        """Kernels of steps that would have to be compiled before these can run."""
        return []

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Compile what jobs of a plan need, all at once."""

    def build(self, jobs: Sequence[Job], threads: int) -> Executable:
        """Make consecutive jobs into something to run, on so many threads of the host."""
        raise NotImplementedError(self.name)

    def followed(
        self, jobs: Sequence[Job], threads: int, trail: Trail, numbers: Sequence[str], dims: Sequence[Any],
        sums: Sequence[Any], stops: Sequence[Stop],
    ) -> Any:  # fmt: skip
        """A program of jobs whose sizes are followed (`runtime.tape`); raises LostError where there is none.

        numbers: names of the trail's own, of which a tape computes all else; dims: of results; sums: more to compute;
        stops: where it reads more numbers.
        """
        raise LostError(f"a plan of {self.name}")

    def run_ahead(self, run: Any, prepared: Any, trips: Any, arrays: Sequence[Array], deciding: Iterable[int]) -> int:
        """Run iterations of a loop natively (`devices.loops`): how many; 0 where each has to be run by itself.

        run: what `Executable.bind` or a tape gave for the body's only segment.
        """
        return 0

    def uploads(self, executable: Any) -> Mapping[int, int]:
        """Bytes of the constants that one of its executables has in a memory of the device, by address there."""
        return {}

    def array(self, dims: Sequence[int], dtype: AnyDType) -> Any:
        """An array of any content in its memory, as callers have them (`runtime.copies`); None where there are none."""
        return None

    @property
    def pinned(self) -> int:
        """Bytes of the host's memory that copies of all sessions to its own and from it go through."""
        return 0

    def imported(self, value: Any) -> Any:
        """What a caller gives as an array in this device's memory (`runtime.copies`); None if it is none."""
        return None

    def synchronise(self) -> None:
        """Wait until all that was run is done."""

    def counts(self, job: Job) -> Mapping[str, int]:
        """What the last run of a job did beside computing ("copies", "bytes"), as far as the device counts that."""
        return {}

    def facts(self, job: Job) -> Mapping[str, Any]:
        """What reports say of a job beside what they say of all."""
        return {}

    def describe(self) -> str:
        """What it is, for people."""
        return self.name


@record(eq=False)
class Segment:
    """Consecutive jobs of a plan that one device runs."""

    device: Device
    jobs: list[Job]
    executable: Executable


def segments_of(jobs: Sequence[Job], threads: int) -> list[Segment]:
    """The jobs of a plan by runs of one device, each built."""
    groups: list[tuple[Device, list[Job]]] = []
    for job in jobs:
        if not groups or groups[-1][0] is not job.device:
            groups.append((job.device, []))
        groups[-1][1].append(job)
    return [Segment(device, group, device.build(group, threads)) for device, group in groups]
