"""Global memory of the simulated GPU: allocations with gaps between them, and which bytes were ever written."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from bolt_numba.base.errors import BudgetError, SimulationError
from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.state.types import U8

BASE = 0x7F00_0000_0000
"""Address of the first byte; windows of shared and local memory lie below (`ptx.state.spaces`)."""
ALIGN = 256
GAP = 256
"""Least bytes between two allocations: what reaches a little too far ends there."""
_FIRST = 1 << 20
_KEPT = 64
"""So many freed places wait before one is given again, so that a use after freeing meets no new allocation."""


@record(eq=False)
class Allocation:
    """Bytes from ``start`` (an offset).  full: whether all of them were written once; touched: in this launch."""

    start: int
    nbytes: int
    full: bool = False
    touched: bool = False


class GlobalMemory:
    """Bytes at addresses from `BASE` on; grows on demand.

    limit: bytes; an allocation beyond raises BudgetError, a copy from or to where nothing is a SimulationError.
    """

    def __init__(self, limit: int = 1 << 34) -> None:
        self.limit = limit
        self.bytes = np.zeros(_FIRST, U8)
        self.written = np.zeros(_FIRST, U8)
        """255 for each byte that was written since its allocation, else 0."""
        self.top = GAP
        self.starts: list[int] = []
        self.live: dict[int, Allocation] = {}
        self.freed: list[tuple[int, int]] = []

    def allocate(self, nbytes: int) -> int:
        """Address of new bytes of any content; a multiple of 256."""
        room = -(-max(nbytes, 1) // ALIGN) * ALIGN + GAP
        start = self._reused(room)
        if start is None:
            start = self.top
            self._grow(start + room)
            self.top = start + room
        self.written[start : start + nbytes] = 0
        bisect.insort(self.starts, start)
        self.live[start] = Allocation(start, nbytes)
        return BASE + start

    def _reused(self, room: int) -> int | None:
        for i, (start, size) in enumerate(self.freed[:-_KEPT]):
            if size == room:
                del self.freed[i]
                return start
        return None

    def _grow(self, nbytes: int) -> None:
        if nbytes > self.limit:
            raise BudgetError(f"simulated GPU: memory: got {nbytes} bytes, wanted at most {self.limit}")
        if nbytes <= self.bytes.size:
            return
        for name in ("bytes", "written"):
            old = getattr(self, name)
            new = np.zeros(max(2 * old.size, -(-nbytes // 4096) * 4096), U8)
            new[: self.top] = old[: self.top]
            setattr(self, name, new)

    def free(self, address: int) -> None:
        """End an allocation: its bytes may be used by nobody."""
        start = address - BASE
        found = self.live.pop(start)
        self.starts.remove(start)
        self.freed.append((start, -(-max(found.nbytes, 1) // ALIGN) * ALIGN + GAP))

    def find(self, low: int, high: int) -> Allocation | None:
        """The allocation that holds all bytes of these offsets."""
        at = bisect.bisect_right(self.starts, low) - 1
        if at < 0:
            return None
        found = self.live[self.starts[at]]
        return found if high <= found.start + found.nbytes else None

    def write(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copy the elements of an array to an address."""
        low, found = self._whole(address, array.nbytes)
        self.bytes[low : low + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(U8)
        self.written[low : low + array.nbytes] = 255
        found.full = found.full or array.nbytes == found.nbytes or bool(self._all_written(found))

    def read(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Fill a dense array."""
        low, _ = self._whole(address, array.nbytes)
        array.reshape(-1).view(U8)[...] = self.bytes[low : low + array.nbytes]

    def _whole(self, address: int, nbytes: int) -> tuple[int, Allocation]:
        low = address - BASE
        found = self.find(low, low + nbytes)
        if found is None:
            raise SimulationError(
                f"simulated GPU: copy at 0x{address:x}: got {nbytes} bytes, {self.near(low)}, wanted all within"
            )
        return low, found

    def _all_written(self, found: Allocation) -> Any:
        return (self.written[found.start : found.start + found.nbytes] == 255).all()

    def settle(self) -> None:
        """After a launch: see which allocations are written as a whole by now."""
        for found in self.live.values():
            if found.touched:
                found.touched, found.full = False, bool(self._all_written(found))

    def near(self, offset: int) -> str:
        """Words on where an offset lies."""
        for start, room in self.freed:
            if start <= offset < start + room - GAP:
                return f"{offset - start} bytes into memory that was freed"
        at = bisect.bisect_right(self.starts, offset) - 1
        if at < 0:
            return "which is in no allocation"
        found = self.live[self.starts[at]]
        return f"{offset - found.start} bytes into an allocation of {found.nbytes}"
