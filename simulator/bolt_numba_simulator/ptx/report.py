"""What kernels do, as far as it can be counted without a GPU: instructions, bank conflicts, sectors."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import field
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.state.text import Statement

SECTOR, BANKS = 32, 32


@record(eq=False)
class Counts:
    """Of one instruction, or of many.

    wavefronts: passes over the banks of shared memory; ideal: without conflicts; worst: of one access.
    sectors: pieces of 32 bytes of global memory; nbytes: that were asked for.
    """

    wavefronts: int = 0
    ideal: int = 0
    worst: int = 0
    sectors: int = 0
    nbytes: int = 0

    def add(self, other: Counts) -> None:
        self.wavefronts += other.wavefronts
        self.ideal += other.ideal
        self.worst = max(self.worst, other.worst)
        self.sectors += other.sectors
        self.nbytes += other.nbytes


@record(eq=False)
class SimulationReport:
    """Counts of the launches that were given this report.

    instructions: executed by a warp, by opcode.  accesses: by line of the PTX and opcode.
    """

    instructions: Counter[str] = field(default_factory=Counter)
    accesses: dict[tuple[int, str], Counts] = field(default_factory=lambda: defaultdict(Counts))

    def shared(self, ins: Statement, offsets: Any, lanes: Any, nbytes: int) -> None:
        """One access of shared memory: phases of 128 bytes, each as long as its fullest bank."""
        per = max(1, min(32, 128 // max(nbytes, 4)))
        phase = (lanes >> 5) * 64 + (lanes & 31) // per
        words = (offsets[:, None] // 4 + np.arange(max(nbytes // 4, 1))).reshape(-1)
        phases = np.repeat(np.unique(phase, return_inverse=True)[1], max(nbytes // 4, 1))
        both = np.unique(phases.astype(np.int64) << 40 | words)
        full = np.bincount((both >> 40) * BANKS + both % BANKS, minlength=(int(phases.max()) + 1) * BANKS)
        longest = full.reshape(-1, BANKS).max(1)
        self._enter(ins, Counts(wavefronts=int(longest.sum()), ideal=longest.size, worst=int(longest.max())))

    def global_memory(self, ins: Statement, writes: bool, offsets: Any, warps: Any, nbytes: int) -> None:
        """One access of global memory."""
        sectors = np.unique(warps.astype(np.int64) << 44 | offsets // SECTOR).size
        self._enter(ins, Counts(sectors=sectors, nbytes=nbytes * offsets.size))

    def _enter(self, ins: Statement, counts: Counts) -> None:
        self.accesses[ins.line, ".".join([ins.op, *ins.modifiers])].add(counts)

    def total(self, *prefixes: str) -> Counts:
        """Of all accesses whose opcode begins so; of all where none is named."""
        found = Counts()
        for (_, name), counts in self.accesses.items():
            if not prefixes or name.startswith(prefixes):
                found.add(counts)
        return found

    def executed(self, *prefixes: str) -> int:
        """Instructions whose opcode begins so, each counted once for a warp."""
        return sum(count for name, count in self.instructions.items() if not prefixes or name.startswith(prefixes))

    def efficiency(self, *prefixes: str) -> float:
        """Share of the bytes of sectors that was asked for."""
        found = self.total(*prefixes)
        return found.nbytes / (SECTOR * found.sectors) if found.sectors else 1.0

    def __str__(self) -> str:
        lines = [f"instructions of warps: {self.executed()}"]
        lines += [f"  {count:>10} {name}" for name, count in self.instructions.most_common(12)]
        for name in sorted({name for _, name in self.accesses}):
            found = self.total(name)
            if found.sectors:
                share = 100 * found.nbytes / (SECTOR * found.sectors)
                lines.append(f"{name}: {found.nbytes} bytes asked, {found.sectors} sectors ({share:.0f} %)")
            if found.wavefronts:
                lines.append(f"{name}: {found.wavefronts} wavefronts, ideal {found.ideal}, worst {found.worst}-way")
        return "\n".join(lines)
