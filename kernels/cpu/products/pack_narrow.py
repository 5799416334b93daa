"""Packing of weights as bfloat16 and as float16, two bytes each: sources are read in f32, some rows at a time."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.types import AnyDType, Array
from bolt_numba.kernels.cpu.language.lang import LANES, split
from bolt_numba.kernels.cpu.products.pack import PANEL, packable, panel_columns, read_columns, run_shares, source_rows
from bolt_numba.kernels.extents import Reach, box
from bolt_numba.kernels.jit import F32, I64, PTR, Native, native

FIELDS: dict[str, Any] = {
    "b": PTR, "to": PTR, "blocks": I64, "block": I64, "rows": PTR, "k": I64, "n": I64, "row": I64, "column": I64,
    "alpha": F32, "part": I64, "work": PTR, "work_step": I64,
}  # fmt: skip
"""Parameters: those of `pack.pack_b`, and
part: source rows that are read at a time, even, or k, which it must be where rows are permuted · work: f32
[part + 1][PANEL] of each thread, ``work_step`` bytes apart."""
ROWS_READ = 32
"""Source rows read at a time where they keep their order; see `pack.ROWS_AT_ONCE`."""


def _packed_reach(ranks: int, a: Any) -> dict[str, Reach]:
    part = min(a.part, a.k)
    depth = 1 + int(a.rows[:part].max(initial=-1))
    return {
        "b": box(4, (a.blocks, a.block), (a.k, a.row), (a.n, a.column)),
        "to": 2 * ranks * a.blocks * -(-a.k // ranks) * panel_columns(a.n),
        "rows": 4 * part,
        "work": (a.threads - 1) * a.work_step + 4 * PANEL * max(depth, part),
    }


def packing(name: str, ranks: int, put: Any) -> Native:
    """As `pack.pack_b`, to panels of which ``ranks`` rows of B stand side by side.

    put: helper ``(to, rows, width, count)`` that rounds so many rows of f32 of so many columns.
    """

    def body(p, tid, nthreads):
        k, n, row, column, part, work = p.k, p.n, p.row, p.column, p.part, p.work + p.work_step * tid
        full = n // PANEL
        rest = n - full * PANEL
        tail = 0 if rest == 0 else (LANES if rest <= LANES else PANEL)
        panels = full + (1 if rest > 0 else 0)
        deep = (k + ranks - 1) // ranks * ranks
        lo, hi = split(p.blocks * panels, tid, nthreads)
        for begin in range(0, k, max(part, 1)):
            count = min(part, k - begin)
            for unit in range(lo, hi):
                block, j = unit // panels, unit % panels
                source = p.b + p.block * block + column * PANEL * j + row * begin
                width = PANEL if j < full else tail
                to = p.to + 2 * (deep * ((full * PANEL + tail) * block + PANEL * j) + width * begin)
                read_columns(source, row, column, count, min(n - PANEL * j, width), width, p.alpha, work, p.rows)
                put(to, work, width, count)

    body.__name__ = name
    return native(extents=partial(_packed_reach, ranks), **FIELDS)(body)


def pack_narrow(
    kernel: Native, dtype: AnyDType, ranks: int, source: Array, rows: Array | None = None, alpha: float = 1.0,
    threads: int = 1,
) -> Array:  # fmt: skip
    """As `pack.pack_panels`, by a kernel of `packing`: [..., K, N] of any strides to [..., elements of ``dtype``]."""
    *lead, k, n = source.shape
    size = -(-k // ranks) * panel_columns(n)
    out: Array = line_aligned(dtype.itemsize * math.prod(lead) * size).view(dtype).reshape(*lead, size)
    if out.size == 0:
        return out
    blocks, order = math.prod(lead), source_rows(1, k) if rows is None else rows
    source, (block, row, column) = packable(source.reshape(blocks, k, n))
    part = ROWS_READ if column == 4 and np.array_equal(order, np.arange(k)) else k
    work = np.empty((threads, (part + 1) * PANEL), np.float32)
    run_shares(
        kernel, threads, out.nbytes, b=source, to=out, blocks=blocks, block=block, rows=order, k=k, n=n, row=row,
        column=column, alpha=alpha, part=part, work=work, work_step=work.strides[0],
    )  # fmt: skip
    return out
