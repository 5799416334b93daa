"""Which tile, and in how many parts the sums: a model of the time of a product, in cycles of a multiprocessor.

`PROCESSORS` of them take blocks of threads as they become free.  So time is that of the fullest one.  A tile should be
large, as it loads less for each sum, yet so small that all are busy until the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from bolt_numba.kernels.cuda.declare import ceil_div

PROCESSORS = 132
"""Of an H100 or H200; others have 108 to 142, which changes few choices."""
FIXED_TERMS = 96
"""What a tile costs beside its sums, its first loads and its stores, in terms."""
BYTES = 2000
"""Of memory in a cycle."""
LAUNCH = 4000
"""Cycles of one more kernel, which adds the parts."""
FULL = 2 * PROCESSORS
"""Blocks of threads that keep all memory busy."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Tiled(Protocol):
    """m, n: rows and columns of a tile.  rate: products that a busy multiprocessor adds to sums in a cycle."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def rate(self) -> float: ...


Tile = TypeVar("Tile", bound=Tiled)


def cycles(tile: Tiled, splits: int, m: int, n: int, k: int, matrices: int) -> float:
    """Time of a product of so many matrices."""
    blocks = ceil_div(m, tile.m) * ceil_div(n, tile.n) * matrices * splits
    own = ceil_div(blocks, PROCESSORS) * tile.m * tile.n * (ceil_div(k, splits) + FIXED_TERMS) / tile.rate
    return own if splits == 1 else own + LAUNCH + 8 * splits * m * n * matrices / BYTES


def choose(tiles: Sequence[Tile], m: int, n: int, k: int, matrices: int, least: int) -> tuple[Tile, int]:
    """A tile and the number of parts, of which none has less than ``least`` terms."""
    fits = [s for s in SPLITS if s == 1 or k // s >= least]
    return min(((t, s) for t in tiles for s in fits), key=lambda c: cycles(c[0], c[1], m, n, k, matrices))


def splits_to_fill(blocks: int, k: int, least: int) -> int:
    """Parts of sums that give enough blocks to keep the memory busy, none of less than ``least`` terms."""
    fits = [s for s in SPLITS if s == 1 or k // s >= least]
    return next((s for s in fits if blocks * s >= FULL), fits[-1])
