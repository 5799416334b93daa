"""What packing weights as bfloat16 and as float16 share: how it is called, and how far it reaches.

Sources are read in f32, some rows at a time, and are rounded from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.products.pack import PANEL, panel_columns, run_shares
from bolt_numba.kernels.extents import Reach, box
from bolt_numba.kernels.jit import F32, I64, PTR, Native

FIELDS: dict[str, Any] = {
    "b": PTR, "to": PTR, "blocks": I64, "block": I64, "rows": PTR, "k": I64, "n": I64, "row": I64, "column": I64,
    "alpha": F32, "part": I64, "work": PTR, "work_step": I64,
}  # fmt: skip
"""Parameters: those of `pack.pack_b`, and
part: source rows that are read at a time, even, or k, which it must be where rows are permuted · work: f32
[part + 1][PANEL] of each thread, ``work_step`` bytes apart."""
ROWS_READ = 32
"""Source rows read at a time where they keep their order; see `pack.ROWS_AT_ONCE`."""


def packed_reach(ranks: int, a: Any) -> dict[str, Reach]:
    """Extents; ranks: rows of B that stand side by side in panels."""
    part = min(a.part, a.k)
    depth = 1 + int(a.rows[:part].max(initial=-1))
    return {
        "b": box(4, (a.blocks, a.block), (a.k, a.row), (a.n, a.column)),
        "to": 2 * ranks * a.blocks * -(-a.k // ranks) * panel_columns(a.n),
        "rows": 4 * part,
        "work": (a.threads - 1) * a.work_step + 4 * PANEL * max(depth, part),
    }


def pack_into(out: Array, kernel: Native, source: Array, rows: Array, alpha: float, threads: int) -> None:
    """Pack ``source`` [blocks, K, N] of any dtype and strides by a kernel of `FIELDS`; rows: i32 [K], where rows go."""
    if out.size == 0:
        return
    blocks, k, n = source.shape
    source = source.astype(np.float32, copy=False)
    block, row, column = (4 if count == 1 else s for count, s in zip(source.shape, source.strides, strict=True))
    if row != 4 and column not in (0, 4):
        source = np.ascontiguousarray(source)
        block, row, column = source.strides
    part = ROWS_READ if column == 4 and np.array_equal(rows, np.arange(k)) else k
    work = np.empty((threads, (part + 1) * PANEL), np.float32)
    run_shares(
        kernel, threads, out.nbytes, b=source, to=out, blocks=blocks, block=block, rows=rows, k=k, n=n, row=row,
        column=column, alpha=alpha, part=part, work=work, work_step=work.strides[0],
    )  # fmt: skip


__all__ = ["FIELDS", "pack_into", "packed_reach"]
