"""Tiles of tensor cores in shared memory, as `ldmatrix` wants them: 16 bytes are swizzled so that no banks meet.

A tile whose order is "k" has rows of lines, `ROW` bytes of terms each; one of order "m" has rows of terms.  The latter
serves 2-byte elements only, of which `ldmatrix.trans` turns 8 x 8.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import inline
from bolt_numba.kernels.cuda.language.lang import (
    cp_async16_zfill,
    load_u8_nc,
    load_u16_nc,
    load_u32_nc,
    store4_shared_u32,
)
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.tail import log2
from bolt_numba.kernels.declare import Inline

u32, i32, i64 = np.uint32, np.int32, np.int64
ROW = 64
"""Bytes of the terms of a line in one stage: 4 times 16, of which each multiplication of a warp takes two."""


@record(frozen=True)
class SwizzledCopies:
    """Words about the copies of a tile by all threads of a block.

    begin: ``(tid) -> line, term`` of a thread's first copy.  place: ``(line, term)`` -> bytes into the tile.
    issue: ``(to, source, step, lines, terms)``, see `copies.f32_copies`.  ahead: lines ("k") or terms ("m") from copy
    to copy.
    """

    begin: Any
    place: Any
    issue: Any
    ahead: int


@inline
def word_of_1(source, left, at):
    a = u32(load_u8_nc(source)) if left > at else u32(0)
    b = u32(load_u8_nc(source + 1)) if left > at + 1 else u32(0)
    c = u32(load_u8_nc(source + 2)) if left > at + 2 else u32(0)
    d = u32(load_u8_nc(source + 3)) if left > at + 3 else u32(0)
    return u32(a | (b << u32(8)) | (c << u32(16)) | (d << u32(24)))


@inline
def word_of_2(source, left, at):
    low = u32(load_u16_nc(source)) if left > at else u32(0)
    high = u32(load_u16_nc(source + 2)) if left > at + 2 else u32(0)
    return u32(low | (high << u32(16)))


@inline
def word_of_4(source, left, at):
    return load_u32_nc(source) if left > at else u32(0)


_WORD = {1: word_of_1, 2: word_of_2, 4: word_of_4}


@functools.cache
def _copy(size: int, wide: bool) -> Inline:
    """``copy(to, source, left)``: the first ``left`` of 16 bytes; zeros for the others.  Wide: 0 or 16."""
    if wide:

        @inline
        def copy_wide(to, source, left):
            cp_async16_zfill(to, source, left)

        return copy_wide
    word = _WORD[size]

    @inline
    def copy_elements(to, source, left):
        a, b = word(source, left, 0), word(source + 4, left, 4)
        store4_shared_u32(to, a, b, word(source + 8, left, 8), word(source + 12, left, 12))

    return copy_elements


@functools.cache
def swizzled_copies(order: Order, size: int, lines: int, threads: int) -> SwizzledCopies:
    """Of a tile of ``lines`` lines and `ROW` bytes of terms, of elements of ``size`` bytes."""
    copy, PER = _copy(size, order.wide), 16 // size
    if order.dense == "k":
        CHUNKS, SIZE, AHEAD, COUNT = ROW // 16, size, threads * 16 // ROW, lines * ROW // (16 * threads)
        SHIFT, MASK, TO = log2(CHUNKS), CHUNKS - 1, AHEAD * ROW

        @inline
        def begin_k(tid):
            return u32(tid >> u32(SHIFT)), u32((tid & u32(MASK)) * u32(PER))

        @inline
        def place_k(line, term):
            chunk = u32(term // u32(PER)) ^ ((line >> u32(1)) & u32(MASK))
            return u32(line * u32(ROW) + (chunk << u32(4)))

        @inline
        def issue_k(to, source, step, left, terms):
            size = u32(min(max(terms, i32(0)), i32(PER)) * i32(SIZE))
            for i in range(COUNT):
                copy(u32(to + u32(i * TO)), source + step * i, size if left > i32(i * AHEAD) else u32(0))

        return SwizzledCopies(begin_k, place_k, issue_k, AHEAD)
    TERMS, BYTES = ROW // size, lines * size
    CHUNKS, SIZE, AHEAD, COUNT = BYTES // 16, size, threads * 16 // BYTES, TERMS * BYTES // (16 * threads)
    SHIFT, MASK, TO = log2(CHUNKS), CHUNKS - 1, AHEAD * BYTES
    assert AHEAD % 8 == 0, "copies of a thread share their swizzle"

    @inline
    def begin_m(tid):
        return u32((tid & u32(MASK)) * u32(PER)), u32(tid >> u32(SHIFT))

    @inline
    def place_m(line, term):
        return u32(term * u32(BYTES) + ((u32(line // u32(PER)) ^ (term & u32(7))) << u32(4)))

    @inline
    def issue_m(to, source, step, left, terms):
        size = u32(min(max(left, i32(0)), i32(PER)) * i32(SIZE))
        for i in range(COUNT):
            copy(u32(to + u32(i * TO)), source + step * i, size if terms > i32(i * AHEAD) else u32(0))

    return SwizzledCopies(begin_m, place_m, issue_m, AHEAD)
