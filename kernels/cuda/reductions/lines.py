"""Rows that a warp or a block holds in registers: how they are read and written, and what makes sums of them.

A thread holds ``per`` elements of a row in an array of f32: runs of neighbours, as many as 16 bytes hold where rows
divide so, at intervals of what all threads of the row hold.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import ceil_div, inline, inline_source
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.warp import block_max, block_sum, warp_max, warp_sum

LONGEST_ROW = 8192
"""Elements of rows that fit."""
_WARPS = 128
"""Threads of a block whose warps have a row each."""


@record(frozen=True)
class Held:
    """lanes: threads of a row.  per: elements of a thread.  run: of them side by side."""

    lanes: int
    per: int
    run: int

    @property
    def threads(self) -> int:
        return max(self.lanes, _WARPS)

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.threads // self.lanes

    @property
    def sum(self) -> Any:
        """Sum over the threads of a row."""
        return warp_sum if self.lanes == 32 else block_sum

    @property
    def max(self) -> Any:
        """Their greatest; NaN is left out."""
        return warp_max if self.lanes == 32 else block_max

    def blocks(self, rows: int) -> int:
        return ceil_div(rows, self.rows)


def held(n: int, itemsize: int) -> Held:
    """For rows of ``n`` elements; of more than `LONGEST_ROW` the part that a block takes at a time."""
    run = max(1, min(8, 16 // itemsize))
    while n % run:
        run //= 2
    lanes = 32 if n <= 512 else 128 if n <= 2048 else 512
    if n > LONGEST_ROW:
        return Held(lanes, run, run)
    per = max(run, 1 << (ceil_div(n, lanes) - 1).bit_length())
    return Held(lanes, per, run)


@functools.cache
def _run(kind: str, count: int) -> tuple[Any, Any]:
    """``load(held, at, address)`` and ``store(held, at, address)`` of one run."""
    if count == 1:
        loads = f"    held[at] = load_{kind}(address)\n"
        stores = f"    store_{kind}(address, held[at])\n"
    else:
        loads = f"    q = load{count}_{kind}(address)\n"
        loads += "".join(f"    held[at + {i}] = q[{i}]\n" for i in range(count))
        stores = f"    store{count}_{kind}(address, {', '.join(f'held[at + {i}]' for i in range(count))})\n"
    n = "" if count == 1 else str(count)
    load, store = (f"{word}{n}_{kind}" for word in ("load", "store"))
    return (
        inline_source(f"def load_run(held, at, address):\n{loads}", "load_run", **{load: getattr(lang, load)}),
        inline_source(f"def store_run(held, at, address):\n{stores}", "store_run", **{store: getattr(lang, store)}),
    )


@functools.cache
def row_access(kind: str, itemsize: int, held: Held) -> tuple[Any, Any]:
    """``load(registers, address, n, lane, fill)`` and ``store(registers, address, n, lane)`` of one row."""
    lanes, per, run = held.lanes, held.per, held.run
    load_run, store_run = _run(kind, run)
    load_one, store_one = _run(kind, 1)
    mask = run * itemsize - 1

    @inline
    def load_row(registers, address, n, lane, fill):
        wide = address & mask == 0
        for c in range(per // run):
            i = (c * lanes + lane) * run
            if wide and i < n:
                load_run(registers, c * run, address + i * itemsize)
            else:
                for e in range(run):
                    if i + e < n:
                        load_one(registers, c * run + e, address + (i + e) * itemsize)
                    else:
                        registers[c * run + e] = fill

    @inline
    def store_row(registers, address, n, lane):
        wide = address & mask == 0
        for c in range(per // run):
            i = (c * lanes + lane) * run
            if wide and i < n:
                store_run(registers, c * run, address + i * itemsize)
            else:
                for e in range(run):
                    if i + e < n:
                        store_one(registers, c * run + e, address + (i + e) * itemsize)

    return load_row, store_row
