"""Which accesses of shared memory are ordered: a clock for each warp over the others, moved on by barriers.

A block's time is a number that every synchronisation moves on.  Each access leaves it, with the warp, at the words that
it touches.  A warp knows, for every other, up to which time its accesses came before.  An access conflicts with
another of a later time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.state.types import I32, I64, FaultError

ASYNC, ATOMIC = -2, -1
"""Two warps that are none: copies of the hardware, and atomic operations, which do not conflict with each other."""
PENDING = 1 << 30
"""Time of a read that has not ended, such as that of a product of a warp group."""


class AccessOrder:
    """For a batch of blocks.  words: granules of ``1 << shift`` bytes, over all blocks."""

    def __init__(self, blocks: int, warps: int, nbytes: int, shift: int) -> None:
        self.warps, self.shift = warps + 2, shift
        words = (blocks * nbytes >> shift) + 4
        self.time = 1
        self.known = np.zeros((blocks, self.warps, self.warps), I32)
        self.floor = np.zeros(blocks, I32)
        """Time up to which all is ordered."""
        self.write_time, self.writer = np.zeros(words, I32), np.zeros(words, np.int16)
        self.last_read, self.read_time = np.zeros(words, I32), np.zeros(words * self.warps, I32)

    def restart(self) -> None:
        """A new batch: what older ones left is ordered."""
        self.floor[...] = self.known[...] = self.time
        self.last_read[self.last_read >= PENDING] = 0
        self.read_time[self.read_time >= PENDING] = 0
        self.time += 1

    def granules(self, offsets: Any, nbytes: int) -> Any:
        """Words of accesses that are each ``nbytes`` long: (lanes, words)."""
        return (offsets >> self.shift)[:, None] + np.arange(max(1, nbytes >> self.shift))

    def read(self, words: Any, blocks: Any, warps: Any) -> None:
        self._ordered(words, blocks, warps, "reads what another warp writes")
        self.last_read[words] = self.time
        self.read_time[words * self.warps + warps[:, None]] = self.time

    def done(self, words: Any, warps: Any) -> None:
        """Reads that were pending have ended."""
        self.read_time[words * self.warps + warps] = self.time
        self.last_read[words] = self.read_time.reshape(-1, self.warps)[words].max(1)

    def write(self, words: Any, blocks: Any, warps: Any, by: int | None = None) -> None:
        """``by``: a warp that is none and writes on behalf of these."""
        self._ordered(words, blocks, warps, "writes what another warp writes", by)
        late = self.last_read[words] > self.floor[blocks][:, None]
        if late.any():
            lanes, at = np.nonzero(late)
            self._after_reads(words[lanes, at], blocks[lanes], warps[lanes], lanes)
        self.write_time[words] = self.time
        self.writer[words] = warps[:, None] if by is None else by % self.warps

    def _ordered(self, words: Any, blocks: Any, warps: Any, what: str, by: int | None = None) -> None:
        times = self.write_time[words]
        late = times > self.floor[blocks][:, None]
        if not late.any():
            return
        lanes, at = np.nonzero(late)
        writer, w, b = self.writer[words[lanes, at]], warps[lanes], blocks[lanes]
        bad = (writer != w) & (times[lanes, at] > self.known[b, w, writer])
        if by is not None:
            bad &= writer != by % self.warps
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise RaceError(f"{what}{_whose(int(writer[first]), self.warps)}", int(lanes[first]))

    def _after_reads(self, words: Any, blocks: Any, warps: Any, lanes: Any) -> None:
        times = self.read_time.reshape(-1, self.warps)[words]
        bad = times > self.known[blocks, warps]
        bad[np.arange(words.size), warps] = times[np.arange(words.size), warps] >= PENDING
        if bad.any():
            at, reader = (int(x) for x in np.argwhere(bad)[0])
            raise RaceError(f"writes what another warp reads{_whose(reader, self.warps)}", int(lanes[at]))

    def barrier(self, block: int, warps: Any, arrived: Any) -> None:
        """These warps have waited for each other, and for others that only arrived."""
        everyone = np.union1d(warps, arrived).astype(I64)
        joined = self.known[block, everyone].max(0)
        joined[everyone] = joined[ATOMIC] = self.time
        self.known[block, warps] = np.maximum(self.known[block, warps], joined)
        self.time += 1

    def full_barrier(self, blocks: Any) -> None:
        """All warps of these blocks have waited, and no copy runs."""
        self.known[blocks] = self.time
        self.floor[blocks] = self.time
        self.time += 1

    def arrival(self, block: int, warps: Any) -> Any:
        """What those who wait for these warps get to know."""
        clock = self.known[block, warps].max(0)
        clock[warps] = clock[ATOMIC] = self.time
        self.time += 1
        return clock

    def completion(self) -> Any:
        """The same of a copy that hardware has made."""
        clock = np.zeros(self.warps, I32)
        clock[ASYNC] = self.time
        self.time += 1
        return clock

    def learn(self, block: int, warps: Any, clock: Any) -> None:
        rows = np.unique(np.asarray(warps, I64))
        self.known[block, rows] = np.maximum(self.known[block, rows], clock)


class RaceError(FaultError):
    """``lane`` counts among those of the access."""


def _whose(warp: int, warps: int) -> str:
    if warp == warps + ASYNC:
        return " (a copy of the hardware) without waiting for it"
    return (
        f" (warp {warp}) with no barrier between" if warp != warps + ATOMIC else " atomically, with no barrier between"
    )
