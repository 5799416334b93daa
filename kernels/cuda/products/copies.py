"""How tiles of operands come into shared memory: asynchronous copies, with zeros for what is outside the operand.

An operand is a matrix of rows (of A) or columns (of B), called *lines*, and of terms of the sums.  Its *order* says
what is dense in memory: "k", the terms of a line, or "m", the lines of a term.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import inline
from bolt_numba.kernels.cuda.language.lang import cp_async4_zfill, cp_async16_zfill
from bolt_numba.kernels.cuda.products.tail import log2
from bolt_numba.kernels.extents import Reach, box

u32, i32 = np.uint32, np.int32


@record(frozen=True)
class Order:
    """What is dense, "k" or "m", and whether 16 bytes can be copied at once: all lines begin at a multiple of 16."""

    dense: str
    wide: bool


def operand_reach(order: Order, size: int, lines: int, terms: int, pitch: int) -> Reach:
    """Reach of an operand of elements of ``size`` bytes, ``pitch`` elements from one dense run to the next."""
    run, runs = (terms, lines) if order.dense == "k" else (lines, terms)
    return box(size * run, (runs, size * pitch))


@record(frozen=True)
class Copies:
    """Words about the copies of f32 tiles of ``lines`` lines and ``terms`` terms, by a block of ``threads``.

    begin: ``(tid) -> line, term`` of a thread's first copy.  count: copies of a thread.  ahead: lines ("k") or terms
    ("m") from one to the next.  issue: see `f32_copies`.
    """

    begin: Any
    issue: Any
    count: int
    ahead: int


@functools.cache
def f32_copies(order: Order, lines: int, terms: int, pitch: int, threads: int) -> Copies:
    """Into [terms][pitch] f32, so that neighbours are of one term whatever the order.

    ``issue(to, source, step, lines, terms)``: to, source: of the thread's first copy · step: bytes of the operand from
    one copy to the next · lines, terms: that are left from the first copy's on.
    """
    if order.dense == "k":
        return _turned(lines, terms, pitch, threads)
    vector = 4 if order.wide else 1
    per_term = lines // vector
    MASK, SHIFT, VECTOR = per_term - 1, log2(per_term), vector
    ahead, count = threads // per_term, lines * terms // (vector * threads)
    COUNT, AHEAD, TO = count, ahead, 4 * pitch * ahead
    copy = cp_async16_zfill if order.wide else cp_async4_zfill

    @inline
    def begin(tid):
        return u32((tid & u32(MASK)) * u32(VECTOR)), u32(tid >> u32(SHIFT))

    @inline
    def issue(to, source, step, left, terms_left):
        size = u32(min(max(left, i32(0)), i32(VECTOR)) * i32(4))
        for i in range(COUNT):
            copy(u32(to + u32(i * TO)), source + step * i, size if terms_left > i32(i * AHEAD) else u32(0))

    return Copies(begin, issue, count, ahead)


def _turned(lines: int, terms: int, pitch: int, threads: int) -> Copies:
    """4 bytes at a time: 8 terms of 4 lines by a warp are whole sectors of memory, and go to different banks."""
    LOW, SHIFT, TERMS = 3, 2 + log2(terms), terms - 1
    ahead, count = threads // terms, lines * terms // threads
    COUNT, AHEAD, TO = count, ahead, 4 * ahead

    @inline
    def begin(tid):
        return u32((tid & u32(LOW)) + ((tid >> u32(SHIFT)) << u32(2))), u32((tid >> u32(2)) & u32(TERMS))

    @inline
    def issue(to, source, step, left, terms_left):
        size = u32(4) if terms_left > i32(0) else u32(0)
        for i in range(COUNT):
            cp_async4_zfill(u32(to + u32(i * TO)), source + step * i, size if left > i32(i * AHEAD) else u32(0))

    return Copies(begin, issue, count, ahead)
