"""Which tile, terms and matrices a block of threads works on."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I32, I64, PTR, PTR_OR_0, ceil_div, inline
from bolt_numba.kernels.cuda.language.lang import load_i64
from bolt_numba.kernels.cuda.products.copies import Order, operand_reach
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Reach, ends

u32, i64 = np.uint32, np.int64
NEAR = 8
"""Tiles below each other that run together, so that they find the same columns of B in the second-level cache."""

PLACE: dict[str, Any] = {
    "a": PTR, "b": PTR, "table": PTR_OR_0, "m": I32, "n": I32, "k": I32, "lda": I64, "ldb": I64, "a_block": I64,
    "b_block": I64, "matrices": I32, "splits": I32, "split_bytes": I64,
}  # fmt: skip
"""Fields of every product that say what is multiplied: m x k times k x n, in so many pairs of ``matrices``.

lda, ldb: elements from one dense run to the next · a_block, b_block: bytes from one matrix to the next; or table: i64
[matrices, 2], bytes from the first one · splits: parts of the sums, whose results are split_bytes apart.
"""


@functools.cache
def tile_place(rows: int, columns: int) -> Inline:
    """``(row, column, block) = place(x, m, n)``: of block x of the grid's first axis, for tiles of rows x columns."""
    ROWS, COLUMNS = rows, columns

    @inline
    def place(x, m, n):
        down, across = u32((u32(m) + u32(ROWS - 1)) // u32(ROWS)), u32((u32(n) + u32(COLUMNS - 1)) // u32(COLUMNS))
        tiles = u32(down * across)
        block = u32(x // tiles)
        tile, together = u32(x - block * tiles), u32(u32(NEAR) * across)
        group = u32(tile // together)
        inside, above = u32(tile - group * together), u32(group * u32(NEAR))
        height = u32(min(u32(down - above), u32(NEAR)))
        return u32(u32(above + inside % height) * u32(ROWS)), u32(u32(inside // height) * u32(COLUMNS)), block

    return place


@functools.cache
def shared_out(terms: int) -> Inline:
    """``(first, count) = share(k, splits, split)``: tiles of ``terms`` terms of one part of the sums."""
    TERMS = terms

    @inline
    def share(k, splits, split):
        all_tiles = u32((u32(k) + u32(TERMS - 1)) // u32(TERMS))
        each = u32((all_tiles + u32(splits - 1)) // u32(splits))
        first = min(i64(split) * i64(each), i64(all_tiles))
        return first, min(i64(each), i64(all_tiles) - first)

    return share


@inline
def matrix(table, block, apart, which):
    """Bytes from an operand's first matrix to that of a block; which: 0 for A, 8 for B."""
    return load_i64(table + 16 * i64(block) + which) if table != 0 else i64(block) * apart


@inline
def element_k(line, term, pitch):
    return i64(line) * pitch + i64(term)


@inline
def element_m(line, term, pitch):
    return i64(term) * pitch + i64(line)


def element(order: Order) -> Inline:
    """``element(line, term, pitch)``: index of an element of an operand."""
    return element_k if order.dense == "k" else element_m


def operand_extents(a: Any, size: int, a_order: Order, b_order: Order) -> dict[str, Reach]:
    """Reaches of the operands in `PLACE`, whose elements have ``size`` bytes."""
    found: dict[str, Reach] = {}
    for i, (name, order, lines, pitch, apart) in enumerate(
        (("a", a_order, a.m, a.lda, a.a_block), ("b", b_order, a.n, a.ldb, a.b_block))
    ):
        last = int(a.table[:, i].max()) if isinstance(a.table, np.ndarray) else (a.matrices - 1) * apart
        end = ends(operand_reach(order, size, lines, a.k, pitch))[1]
        found[name] = end + last if end and a.matrices else 0
    return found | {"table": a.table.nbytes if isinstance(a.table, np.ndarray) else 0}


def grid(rows: int, columns: int) -> Any:
    """``blocks`` of a kernel of such tiles."""
    return lambda a: (ceil_div(a.m, rows) * ceil_div(a.n, columns) * a.matrices, a.splits)


def reaches_of(size: int, a_order: Order, b_order: Order, stored: Any) -> Any:
    """``extents`` of a kernel whose fields are `PLACE` and `tail.TAIL`."""
    return lambda a: operand_extents(a, size, a_order, b_order) | stored.extents(a, a.m * a.matrices, a.splits)
