"""How far the sweeps reach: extents of rows of A seen through tables, of packed panels, of rows of C."""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.cpu.lang import BYTES
from bolt_numba.kernels.cpu.pack import panel_columns
from bolt_numba.kernels.extents import Reach
from bolt_numba.types import Array

MR = target().rows
EDGE = 2
"""The first kind of A, see `sweep`, for which tiles look for taps outside."""
BLOCK_FIELDS = 6


def greatest(offsets: Array, blocks: int, step: int, row: int, column: int) -> int:
    """The greatest sum of ``step`` times one entry of a block and another entry."""
    if blocks == 1:
        only = offsets[0]
        return step * int(only[row]) + int(only[column])
    return int((step * offsets[:blocks, row] + offsets[:blocks, column]).max())


def _results(a: Any) -> dict[str, Reach]:
    """Bias, C and residual."""
    bias = greatest(a.offsets, a.blocks, 0, 3, 3) + 4 * panel_columns(a.n)
    c, res = (4 * (greatest(a.offsets, a.blocks, ld, 4, 5) + ld * (a.m - 1) + a.n) for ld in (a.ldc, a.ldr))
    return {"bias": bias, "c": c, "res": res}


def _tables(a: Any, edges: bool, zeros: bool) -> dict[str, Reach]:
    return {
        "offsets": 8 * BLOCK_FIELDS * a.blocks,
        "table": 4 * a.taps * a.m,
        "edges": 4 * (a.m + 1) if edges else 0,
        "run_rows": 8 * a.runs,
        "zeros": 4 * a.depth if zeros else 0,
    }


def sweep_reach(a: Any) -> dict[str, Reach]:
    """Extents of `sweep`."""
    room, placed = 8 * (a.span + MR), 8 * (1 + a.runs)
    scratch = (a.threads - 1) * a.scratch_step + room * (1 + a.taps) + placed + (a.span + MR) * a.pack_ld
    tables = _tables(a, a.table is not None and a.kind >= EDGE, a.kind == EDGE)
    if not (a.blocks and a.m and a.n):
        return {**dict.fromkeys(("a", "b", "bias", "c", "res"), 0), **tables, "scratch": scratch}
    if a.table is None:
        row = 4 * (a.lda * (a.m - 1 + (int(a.run_rows.max()) if a.runs > 1 else 0)) + a.length)
    else:
        row = 4 * (a.lda * int(a.table.max()) + a.depth)
    return {
        "a": 4 * greatest(a.offsets, a.blocks, a.lda, 0, 1) + row if a.k else 0,
        "b": greatest(a.offsets, a.blocks, 0, 2, 2) + 4 * a.k * panel_columns(a.n),
        **_results(a),
        **tables,
        "scratch": scratch,
    }


def sweep_bf16_reach(a: Any) -> dict[str, Reach]:
    """Extents of `sweep_bf16`: rows of A that are bfloat16 already are read in whole vectors."""
    unit = 2 if a.kind else 4
    scratch = (a.threads - 1) * a.scratch_step + (a.span + MR) * a.pack_ld + BYTES
    tables = _tables(a, a.table is not None, False)
    if not (a.blocks and a.m and a.n):
        return {**dict.fromkeys(("a", "b", "bias", "c", "res"), 0), **tables, "scratch": scratch}
    row = a.lda * (a.m - 1) + a.k if a.table is None else a.lda * int(a.table.max()) + a.depth
    return {
        "a": unit * (greatest(a.offsets, a.blocks, a.lda, 0, 1) + row) + (BYTES if a.kind else 0),
        "b": greatest(a.offsets, a.blocks, 0, 2, 2) + 4 * ((a.k + 1) // 2) * panel_columns(a.n),
        **_results(a),
        **tables,
        "scratch": scratch,
    }


__all__ = ["greatest", "sweep_bf16_reach", "sweep_reach"]
