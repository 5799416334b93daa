"""What kernels assume of the processor beyond its instructions, each with its unit; nowhere else stand such numbers.

Three kinds, by what may depend on them:

- *Read from the processor* (sizes of caches, by the system's description; how wide its multipliers are, by its name).
  They decide how work is cut into pieces.  No result depends on that, bit for bit, nor does the code of any kernel.
- *Work from which a second thread pays*, scaled by how much a core does in a cycle.  No result depends on that either.
- *Estimates that choose algorithms*, of which results do depend.  They are the same on every processor of an
  instruction set, so that two machines give the same bits, and nothing here is measured while a model runs.

Kernels state what share of a cache they mean; the size is the machine's.
"""

from __future__ import annotations

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.processor import processor

KIB, MIB = 1 << 10, 1 << 20


def _within(least: int, size: int, most: int) -> int:
    """A size that the system told, unless it is out of any proportion."""
    return min(max(size, least), most)


# ------------------------------------------------------------------------------------------- read from the processor

_l1, _ways, _l2, _l3 = processor()[2]

L1 = _within(16 * KIB, _l1, 192 * KIB)
"""Bytes of a core's first-level cache of data."""
L1_WAYS = _within(2, _ways, 32)
"""Lines that one set of it holds; a 13th row that falls into a set of 12 throws out the first."""
L1_STRIDE = L1 // L1_WAYS
"""Bytes after which addresses fall into the same set of it."""
L2 = _within(256 * KIB, _l2, 2 * MIB)
"""Bytes of a core's own second-level cache; of a larger one no more is used than what was tried."""
L3 = _within(4 * MIB, _l3, 64 * MIB)
"""Bytes of the last cache, which cores share; those of a virtual machine may share it with others' work."""

SPLIT = ("AuthenticAMD 25", "znver4")
"""Processors with operations of 512 bits that run one as two of 256: Zen 4, by Linux' name and by LLVM's."""
FMA_LATENCY = 4
"""Cycles from one multiply-add to another that needs its result: Zen 2 to 5, Intel since Skylake, Arm's servers."""
FMA_RATE = 1 if target().lanes == 16 and processor()[0] in SPLIT else 2
"""Multiply-adds of a vector that begin in a cycle."""
IN_FLIGHT = FMA_LATENCY * (1 if target().lanes == 16 else 2)
"""Independent multiply-adds that keep the multipliers busy; a tile with fewer sums waits for itself.  Kernels hold what
follows from it, so it is the same for all processors of a level: for 512 bits, of those that split them."""
PREFETCH = 4 * KIB
"""Bytes ahead of a stream from the last cache that are asked for: 60 GB/s times its latency of 70 ns."""
PREFETCH_STEPS = 12
"""Rows of weights ahead that a recurrent layer asks for from the second-level cache while it multiplies one."""

PAUSES_A_US = 40
"""Pauses of a thread that waits, in a microsecond: 25 ns each on Zen 4, 10 to 40 on others."""
TICKS_A_US = 2_600
"""Ticks of x86's counter in a microsecond: from 2,000 to 4,000."""

# --------------------------------------------------------------------------------------- when a second thread pays

_SPEED = max(target().lanes * FMA_RATE // 16, 1)
"""Multiply-adds of a cycle over the 16 of the processor that the amounts below were measured on (Zen 4, 3.7 GHz)."""
PAYS_FLOPS = 400_000 * _SPEED
"""Operations of products, 3.5 us of one thread.  An awake team begins and ends a step in 0.1 us; the rest of what is
lost is that each thread reads what another one has written."""
PAYS_BYTES = 256 * KIB
"""Bytes that are moved or read."""
PAYS_ELEMENTS = 1 << 15
"""Elements of loops that take one at a time, or for each of which a function is computed: 5 to 20 us."""
PAYS_NS = 4_000.0
"""Work whose time is estimated."""
CROSSING, AGAIN = 22.0 * _SPEED, 12.0 * _SPEED
"""Part of a product's time that it costs to have half of each row of A (or C) come from (go to) another core, times
the columns (terms) that share it; and to have all of B read by every thread, times the rows."""

# ------------------------------------------------------------------- estimates that choose algorithms: cycles, bytes

TRANSFORM_CYCLES = {6: (400, 600), 4: (200, 300), 2: (65, 85)}
"""Cycles to transform one tile of Winograd's algorithm, of one vector of inputs, and of products.  Measured on Zen 4,
in whose unit of one multiply-add of a vector in a cycle the products are estimated, too."""
LINE_CYCLES = {6: (45, 75), 4: (35, 52), 2: (20, 31)}
"""The same of tiles along one axis."""
STREAM = 8
"""Bytes of filters per cycle that come from memory."""
