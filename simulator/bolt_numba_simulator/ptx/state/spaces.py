"""Shared and local memory of a batch of blocks, and the checks that every access passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.state.memory import BASE
from bolt_numba_simulator.ptx.state.order import ATOMIC, AccessOrder, RaceError
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import U8, Checks, FaultError

SHARED_WINDOW, LOCAL_WINDOW, WINDOW_END = 0x0A00_0000_0000, 0x0B00_0000_0000, 0x0C00_0000_0000
"""Generic addresses of shared and of local memory begin here."""
RESERVED = 1024
"""Bytes of shared memory before a kernel's own, as on a GPU of the Hopper kind."""
READ, WRITE, ATOM = "reads", "writes", "atom"


def fault(ins: Statement, what: str, lane: int | None = None) -> FaultError:
    made = FaultError(what, lane)
    made.instruction = ins  # type: ignore[attr-defined]
    return made


def _flags(written: Any, nbytes: int) -> Any:
    """A byte for each byte, as rows of ``nbytes``."""
    step = min(nbytes, 8)
    return written.view(np.dtype(f"u{step}")).reshape(-1, nbytes // step)


def mark(written: Any, offsets: Any, nbytes: int, value: int = 255) -> None:
    """Enter that these bytes were written."""
    flags = _flags(written, nbytes)
    flags[offsets // nbytes] = np.full(8, value, U8).view(np.uint64).astype(flags.dtype)


def unwritten(written: Any, offsets: Any, nbytes: int) -> int | None:
    """The first access that reads a byte which was never written."""
    flags = _flags(written, nbytes)
    found = flags[offsets // nbytes] != np.array(-1).astype(flags.dtype)
    return int(np.argwhere(found)[0, 0]) if found.any() else None


class SharedMemory:
    """Bytes of all blocks one after another, ``size`` of each."""

    def __init__(self, machine: Any, program: Any) -> None:
        self.machine, self.program = machine, program
        self.size = 0
        self.base: Any = 0
        self.bytes = self.written = np.zeros(0, U8)
        self.order: Any = None
        self.limit = 0

    def restart(self, dynamic: int, checks: Checks) -> None:
        """Memory of a new batch: nothing in it is written."""
        m = self.machine
        self.limit = self.program.dynamic_base + dynamic if dynamic else self.program.static_end
        size = -(-self.limit // 128) * 128
        used = self.program.shared_used
        if size != self.size:
            self.size, count = size, m.blocks * size if used else 0
            self.bytes, self.written = np.zeros(count, U8), np.zeros(count, U8)
            self.base = m.block * size
            self.order = None
        if used:
            self.bytes[...] = 0xCD
            self.written[...] = 0
        if used and checks.races and self.order is None:
            self.order = AccessOrder(m.blocks, m.warps, size, self.program.granule)
        self.races: Any = self.order if checks.races else None
        if self.races is not None:
            self.races.restart()

    def offsets(self, address: Any, lanes: Any, nbytes: int, ins: Statement) -> Any:
        """Places in `bytes`; faults beyond the block's memory."""
        if int(address.min()) < RESERVED or int(address.max()) + nbytes > self.limit:
            at = int(np.flatnonzero((address < RESERVED) | (address + nbytes > self.limit))[0])
            a = int(address[at])
            raise fault(ins, f"shared memory out of bounds, {_describe(a, self.limit - RESERVED)}", int(lanes[at]))
        return self.base[lanes] + address

    def check(self, how: str, offsets: Any, lanes: Any, nbytes: int, ins: Statement, by: int | None = None) -> None:
        m = self.machine
        if how == WRITE:
            mark(self.written, offsets, nbytes)
        elif m.checks.uninitialised:
            at = unwritten(self.written, offsets, nbytes)
            if at is not None:
                raise fault(ins, self._unwritten(int(offsets[at]), nbytes), int(lanes[at]))
        if self.races is not None:
            self.ordered(how, offsets, lanes, nbytes, ins, by)
        if m.report is not None:
            m.report.shared(ins, offsets, lanes, nbytes)

    def ordered(self, how: str, offsets: Any, lanes: Any, nbytes: int, ins: Statement, by: int | None = None) -> None:
        """Faults where another warp's access is not ordered with this one."""
        m = self.machine
        words, blocks, warps = self.races.granules(offsets, nbytes), m.block[lanes], m.warp[lanes]
        try:
            if how == READ:
                self.races.read(words, blocks, warps)
            elif how == ATOM:
                self.races.write(words, blocks, warps, ATOMIC)
            else:
                self.races.write(words, blocks, warps, by)
        except RaceError as e:
            raise fault(ins, f"shared-memory race, {e.what}", int(lanes[e.lane or 0])) from None

    def _unwritten(self, offset: int, nbytes: int) -> str:
        for copy in self.machine.copies:
            if ((copy.offsets < offset + nbytes) & (copy.offsets + copy.nbytes > offset)).any():
                return "shared memory read before cp.async has been waited for"
        return "read of uninitialised shared memory"


class LocalMemory:
    """Bytes of each lane, one lane after another."""

    def __init__(self, nbytes: int, lanes: int) -> None:
        self.limit, self.size = nbytes, -(-nbytes // 16) * 16
        self.bytes, self.written = np.zeros(self.size * lanes, U8), np.zeros(self.size * lanes, U8)

    def restart(self) -> None:
        self.written[...] = 0


class Access:
    """Translates addresses for one instruction: an array of bytes and the places of the lanes' elements in it."""

    def __init__(self, machine: Any, space: str, nbytes: int, how: str, ins: Statement) -> None:
        self.m, self.space, self.nbytes, self.how, self.ins = machine, space, nbytes, how, ins

    def __call__(self, address: Any, idx: Any) -> tuple[Any, Any]:
        lanes = self.m.every[idx]
        if int(np.bitwise_or.reduce(address)) & (self.nbytes - 1):
            at = int(np.flatnonzero(address & (self.nbytes - 1))[0])
            raise fault(self.ins, f"misaligned access of {self.nbytes} bytes at 0x{int(address[at]):x}", int(lanes[at]))
        space = self.space
        if space == "generic":
            space, address = self._generic(address, lanes)
        if space == "global":
            return self._global(address - BASE, lanes)
        if space == "shared":
            offsets = self.m.shared.offsets(address, lanes, self.nbytes, self.ins)
            self.m.shared.check(self.how, offsets, lanes, self.nbytes, self.ins)
            return self.m.shared.bytes, offsets
        return self._local(address, lanes)

    def _generic(self, address: Any, lanes: Any) -> tuple[str, Any]:
        low, high = int(address.min()), int(address.max())
        if low >= BASE:
            return "global", address
        for name, start, end in (("shared", SHARED_WINDOW, LOCAL_WINDOW), ("local", LOCAL_WINDOW, WINDOW_END)):
            if low >= start and high < end:
                return name, address - start
        if low < SHARED_WINDOW:
            at = int(address.argmin())
            raise fault(self.ins, f"access at 0x{low:x}, which is in no memory", int(lanes[at]))
        raise fault(self.ins, "generic addresses of several kinds of memory at once are not modelled", int(lanes[0]))

    def _global(self, offset: Any, lanes: Any) -> tuple[Any, Any]:
        memory, nbytes = self.m.memory, self.nbytes
        found = memory.find(int(offset.min()), int(offset.max()) + nbytes)
        many = [found] if found is not None else self._several(offset, lanes)
        if self.m.report is not None:
            self.m.report.global_memory(
                self.ins, self.how != READ, offset, self.m.block[lanes] * 64 + self.m.warp[lanes], nbytes
            )
        if all(each.full for each in many):
            return memory.bytes, offset
        if self.how != READ:
            mark(memory.written, offset, nbytes)
        elif self.m.checks.uninitialised:
            at = unwritten(memory.written, offset, nbytes)
            if at is not None:
                where = memory.near(int(offset[at]))
                raise fault(self.ins, f"read of uninitialised global memory, {where}", int(lanes[at]))
        for each in many:
            each.touched = each.touched or self.how != READ
        return memory.bytes, offset

    def _several(self, offset: Any, lanes: Any) -> list[Any]:
        memory = self.m.memory
        starts = np.array(memory.starts or [0])
        ends = np.array([start + memory.live[start].nbytes for start in memory.starts] or [0])
        at = np.searchsorted(starts, offset, "right") - 1
        bad = (at < 0) | (offset + self.nbytes > ends[at])
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            raise fault(self.ins, f"global memory out of bounds, {self._where(int(offset[k]))}", int(lanes[k]))
        return [memory.live[memory.starts[i]] for i in np.unique(at)]

    def _where(self, offset: int) -> str:
        address = offset + BASE
        if SHARED_WINDOW <= address < LOCAL_WINDOW:
            return "at an address of shared memory"
        if LOCAL_WINDOW <= address < WINDOW_END:
            return "at an address of local memory"
        if 0 <= address < 1 << 20:
            return f"at 0x{address:x}, which is no global memory (a null pointer, or of another kind)"
        return f"{self.nbytes} bytes at 0x{address:x}, {self.m.memory.near(offset)}"

    def _local(self, address: Any, lanes: Any) -> tuple[Any, Any]:
        local = self.m.local
        bad = (address < 0) | (address + self.nbytes > local.limit)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise fault(
                self.ins, f"local memory out of bounds, {_describe(int(address[at]), local.limit)}", int(lanes[at])
            )
        return local.bytes, lanes * local.size + address


def _describe(address: int, limit: int) -> str:
    if address >= BASE:
        return f"at 0x{address:x}, an address of global memory"
    return f"at byte {address} of {limit}"
