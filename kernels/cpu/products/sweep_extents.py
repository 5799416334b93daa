"""Parameters of the sweeps and how far they reach: rows of A seen through tables, packed panels, rows of C."""

from __future__ import annotations

from functools import reduce
from typing import Any
from weakref import ReferenceType, ref

from bolt_numba.base.follow import pure
from bolt_numba.base.selects import greatest as most
from bolt_numba.base.selects import is_filled, is_table
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import BYTES
from bolt_numba.kernels.cpu.products.pack import panel_columns
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0

MR = target().rows
INSIDE, COPIED, EDGE, PATCHED = 0, 1, 2, 3
"""How tiles read A: in place, by runs; from a copy; in place tap by tap, with zeros outside; or in place but for rows
with a tap outside, which are copied to where their runs are as far apart as in the image."""
BLOCK_FIELDS = 6
"""Entries of a block: first row and column of A, byte offsets of B and bias, first row and column of C."""

FIELDS: dict[str, Any] = {
    "a": PTR, "lda": I64, "b": PTR, "bias": PTR, "c": PTR, "ldc": I64, "res": PTR_OR_0, "ldr": I64,
    "blocks": I64, "offsets": PTR, "m": I64, "n": I64, "k": I64,
    "table": PTR_OR_0, "edges": PTR, "taps": I64, "depth": I64, "runs": I64, "length": I64, "run_rows": PTR,
    "kind": I64, "zeros": PTR, "scratch": PTR, "pack_ld": I64, "scratch_step": I64, "span": I64, "share": I64,
    "lo": F32, "hi": F32, "act": CODE, "terms": I64, "paired": I64,
}  # fmt: skip
"""Parameters of the sweeps.

lda, ldc, ldr: elements between rows.  offsets: i64 [blocks][6], see `sweep.BLOCK_FIELDS`.
table: i32 [taps][m], input row of each tap at each pixel or -1; 0 when row i of A is simply its i-th row.
edges: i32 [m + 1], how many pixels before this one have a tap outside.  taps, depth: K = taps * depth.
runs, length, run_rows: the same K as runs of contiguous values, i64 input rows from a pixel's first tap.
kind: how tiles read A: `INSIDE` or `COPIED`; `EDGE` or `PATCHED` are for tiles where some tap is outside, others
are `INSIDE` then.  zeros: ``depth`` zeros, what a tap of an `EDGE` tile reads outside.
scratch: ``scratch_step`` bytes a thread: a word a tile (height, and kind above bit 32), addresses of rows (`EDGE`:
for each tap), 0 and the bytes to each run inside, copied rows ``pack_ld`` bytes apart, a tile; see
`sweep.scratch_bytes`.
span: rows that meet a panel of B while it is in cache, the last time up to ``MR - 1`` more.
share: what threads divide: 0 rows, 1 panels, 2 blocks.
act: see `epilogue.Finish`.
terms: of K that are added in order, see `pack.choose_terms`.
paired: rows up to which two panels are swept at once, see `sweep.PAIRED`; not used by `sweep_bf16`.
"""


_last: dict[int, tuple[ReferenceType[Array], int]] = {}


def last_row(table: Array) -> int:
    """The greatest row in a table of taps; layers share tables, which are large and which nobody changes."""
    return table.greatest if is_filled(table) else _last_row(table)  # type: ignore[attr-defined]


@pure
def _last_row(table: Array) -> int:
    known = _last.get(id(table))
    if known is not None and known[0]() is table:
        return known[1]
    if len(_last) > 512:
        _last.clear()
    return hand_over(table, int(table.max()))


def hand_over(table: Array, last: int) -> int:
    """Let `last_row` know the greatest row of a table from who made it."""
    _last[id(table)] = ref(table), last
    return last


def greatest(offsets: Array, blocks: int, step: int, row: int, column: int) -> int:
    """The greatest sum of ``step`` times one entry of a block and another entry."""
    if blocks == 1:
        only = offsets[0]
        sizes: list[int] = [only[row].item(), only[column].item()]
        return step * sizes[0] + sizes[1]
    if is_table(offsets):
        sums: list[int] = [step * numbers[row] + numbers[column] for numbers in offsets[:blocks].tolist()]
        return reduce(most, sums)
    return _greatest_sum(offsets[:blocks, row], step, offsets[:blocks, column])


@pure
def _greatest_sum(one: Array, step: int, two: Array) -> int:
    return int((step * one + two).max())


def _rows_of(a: Any, b: int, edges: bool, zeros: bool, scratch: int) -> dict[str, Reach]:
    """What both sweeps of f32 results touch but for A; b: bytes of the panels of a block."""
    columns = 4 * panel_columns(a.n)
    made: dict[str, Reach] = {
        "bias": columns, "b": b, "c": 0, "res": 0, "offsets": 8 * BLOCK_FIELDS * a.blocks,
        "table": 4 * a.taps * a.m, "edges": 4 * (a.m + 1) if edges else 0, "run_rows": 8 * a.runs,
        "zeros": 4 * a.depth if zeros else 0,
        "scratch": (a.threads - 1) * a.scratch_step + (a.scratch_step if a.k > a.terms else scratch),
    }  # fmt: skip
    if a.blocks != 1:
        most_b, most_bias = (a.offsets[:, i].max(initial=0).item() for i in (2, 3))
        made |= {"b": b + most_b, "bias": columns + most_bias}
        first, residual = (greatest(a.offsets, a.blocks, ld, 4, 5) if a.blocks else 0 for ld in (a.ldc, a.ldr))
    else:
        _, _, b_at, bias_at, row, column = a.offsets[0].tolist()
        made |= {"b": b + b_at, "bias": columns + bias_at}
        first, residual = a.ldc * row + column, a.ldr * row + column
    if not (a.blocks and a.m and a.n):
        return {**made, "a": 0, "b": 0, "bias": 0}
    made["c"] = 4 * (first + a.ldc * (a.m - 1) + a.n)
    if a.res is not None:
        made["res"] = 4 * (residual + a.ldr * (a.m - 1) + a.n)
    return made


def sweep_reach(a: Any, unit: int = 4) -> dict[str, Reach]:
    """Extents of `sweep`; unit: bytes of an element of B."""
    scratch = 8 * (a.span + MR) * (1 + a.taps) + 8 * (1 + a.runs) + (a.span + MR) * a.pack_ld
    edges = a.table is not None and a.kind >= EDGE
    made = _rows_of(a, unit * a.k * panel_columns(a.n), edges, a.kind == EDGE, scratch)
    if "a" not in made:
        last = a.m - 1 + (a.run_rows.max().item() if a.runs > 1 else 0) if a.table is None else last_row(a.table)
        run = a.length if a.table is None else a.depth
        made["a"] = 4 * (greatest(a.offsets, a.blocks, a.lda, 0, 1) + a.lda * last + run) if a.k else 0
    return made


def sweep_bf16_reach(a: Any) -> dict[str, Reach]:
    """Extents of `sweep_bf16`: rows of A that are bfloat16 already are read in whole vectors."""
    unit, scratch = 2 if a.kind & 1 else 4, (a.span + MR) * a.pack_ld + BYTES
    made = _rows_of(a, 4 * ((a.k + 1) // 2) * panel_columns(a.n), a.table is not None, False, scratch)
    if "a" not in made:
        row = a.lda * (a.m - 1) + a.k if a.table is None else a.lda * last_row(a.table) + a.depth
        made["a"] = unit * (greatest(a.offsets, a.blocks, a.lda, 0, 1) + row) + (BYTES if a.kind & 8 else 0)
    for name, bit in (("c", 2), ("res", 4)):
        reach: Any = made[name]
        made[name] = reach // 2 if a.kind & bit else reach
    if a.kind & 2:
        made["scratch"] = a.threads * a.scratch_step
    return made
