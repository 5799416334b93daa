"""What happens to the sums of a tile before anyone else sees them: factor, bias, residual, activation, store.

A tile goes through shared memory a slice of rows at a time.  So each thread stores four neighbours of a row, whatever
places of the tile its registers hold, and an activation is written out four times and not once for each sum.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import F32, I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.extents import Reach, box

u32, i32, i64, f32 = np.uint32, np.int32, np.int64, np.float32
VECTOR = 4
"""Neighbours of a row that a thread stores at once."""


@record(frozen=True)
class TileSlice:
    """Rows of a tile in shared memory: ``rows`` of ``columns`` sums of 4 bytes, ``pitch`` sums apart.

    Rows come in runs of ``run``, which are ``apart`` rows of the tile from each other.  All ``threads`` of a block
    share them.  All sizes but pitch and apart are powers of two.
    """

    rows: int
    columns: int
    pitch: int
    run: int
    apart: int
    threads: int


def log2(n: int) -> int:
    assert n > 0, "a power of two"
    assert n & (n - 1) == 0, "a power of two"
    return n.bit_length() - 1


TAIL: dict[str, Any] = {
    "bias": PTR_OR_0, "residual": PTR_OR_0, "y": PTR, "ldy": I64, "alpha": F32, "lo": F32, "hi": F32, "act0": F32,
    "act1": F32,
}  # fmt: skip
"""Fields of every product that say what follows the sums.

bias: [n] or 0 · residual: like y, dense, or 0 · ldy: elements from one row of y to the next · alpha: factor of the sums
· lo, hi: clamp, behind the activation, whose numbers are act0 and act1.
"""


@record(frozen=True)
class TailForm:
    """Dtypes of what the tail reads and writes, and the activation: an `inline` of (v, act0, act1), or None."""

    y: str = "f32"
    bias: str = "f32"
    residual: str = "f32"
    act: Any = None

    @property
    def four(self) -> Any:
        return four_finished(self)

    def extents(self, a: Any, rows: int, splits: int) -> dict[str, Reach]:
        """Reaches of the addresses of `TAIL`; rows: of y, those of all matrices."""
        n, y = a.n, size_of(self.y)
        return {
            "bias": size_of(self.bias) * n, "residual": size_of(self.residual) * rows * n,
            "y": box(y * n, (rows, y * a.ldy), (splits, 0 if splits == 1 else a.split_bytes)),
        }  # fmt: skip


@inline
def unchanged(v, act0, act1):
    return v


@functools.cache
def finished(stored: TailForm) -> Any:
    """``finish(sum, bias, residual, ...)`` of one element in f32; NaN stays."""
    act = stored.act or unchanged

    @inline
    def finish(v, b, r, alpha, lo, hi, act0, act1):
        v = act(f32(v) * alpha + b + r, act0, act1)
        v = lo if v < lo else v
        return hi if v > hi else v

    return finish


def size_of(dtype: str) -> int:
    return lang.SIZES[dtype]


@functools.cache
def four_stored(dtype: str) -> Any:
    """``keep(to, a, b, c, d, left)``: neighbours of a row, of which ``left`` are within it; at once if they may."""
    SIZE, store, store4 = size_of(dtype), getattr(lang, f"store_{dtype}"), getattr(lang, f"store4_{dtype}")

    @inline
    def keep(to, a, b, c, d, left):
        if left >= VECTOR and to & (VECTOR * SIZE - 1) == 0:
            store4(to, a, b, c, d)
        else:
            store(to, a)
            if left > 1:
                store(to + SIZE, b)
            if left > 2:
                store(to + 2 * SIZE, c)
            if left > 3:
                store(to + 3 * SIZE, d)

    return keep


@functools.cache
def four_finished(stored: TailForm) -> Any:
    """Stores four neighbours of a row at once where they fit and lie well, else those that are within the row.

    row: of ``rows`` in all matrices · block: the matrix.
    """
    finish, keep = finished(stored), four_stored(stored.y)
    Y, B, R = size_of(stored.y), size_of(stored.bias), size_of(stored.residual)
    load_bias, load_residual = getattr(lang, f"load_{stored.bias}_nc"), getattr(lang, f"load_{stored.residual}")

    @inline
    def bias_at(bias, column, n):
        return load_bias(bias + B * min(column, n - 1)) if bias != 0 else f32(0)

    @inline
    def residual_at(residual, row, column, n):
        return load_residual(residual + R * (row * n + min(column, n - 1))) if residual != 0 else f32(0)

    @inline
    def store_four(v, row, column, block, rows, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1):
        b, r = bias_at(bias, column, n), residual_at(residual, row, column, n)
        o0 = finish(v[0], b, r, alpha, lo, hi, act0, act1)
        b, r = bias_at(bias, column + 1, n), residual_at(residual, row, column + 1, n)
        o1 = finish(v[1], b, r, alpha, lo, hi, act0, act1)
        b, r = bias_at(bias, column + 2, n), residual_at(residual, row, column + 2, n)
        o2 = finish(v[2], b, r, alpha, lo, hi, act0, act1)
        b, r = bias_at(bias, column + 3, n), residual_at(residual, row, column + 3, n)
        o3 = finish(v[3], b, r, alpha, lo, hi, act0, act1)
        keep(y + Y * (row * ldy + column), o0, o1, o2, o3, n - column)

    return store_four


@functools.cache
def slice_in_fours(part: TileSlice, sums: str, four: Any) -> Any:
    """``(tid, memory, row0, column0, m, n, given)``: hands a slice to ``four(sums, row, column, given)``.

    Every thread of the block calls it, between two barriers.  sums: "f32" or "i32" · row0, column0: of the slice's
    first element · m, n: rows and columns that there are.
    """
    load = getattr(lang, f"load4_shared_{sums}")
    THREADS, CHUNKS, PITCH, APART = part.threads, part.rows * part.columns // VECTOR, 4 * part.pitch, part.apart
    LOW = part.run - 1
    IN_ROW, ROW, RUN = part.columns // VECTOR - 1, log2(part.columns // VECTOR), log2(part.run)

    @inline
    def drained(tid, memory, row0, column0, m, n, given):
        c = u32(tid)
        while c < u32(CHUNKS):
            r, q = u32(c >> u32(ROW)), u32((c & u32(IN_ROW)) << u32(2))
            row = i64(row0) + i64(r >> u32(RUN)) * APART + i64(r & u32(LOW))
            column = i64(column0) + i64(q)
            if row < m and column < n:
                four(load(u32(memory + r * u32(PITCH) + (q << u32(2)))), row, column, given)
            c = u32(c + u32(THREADS))

    return drained


@functools.cache
def drain(part: TileSlice, stored: Any, integers: bool = False) -> Any:
    """Finishes and stores a slice, as `slice_in_fours` does.

    row0, column0: of matrix ``block`` of y, at the slice's first element · m, n: of a matrix of y.
    """
    store_four = stored.four

    @inline
    def four(v, row, column, given):
        block, matrices, m, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1 = given
        store_four(
            v, i64(block) * m + row, column, block, i64(m) * matrices, i64(n), bias, residual, y, ldy, alpha, lo, hi,
            act0, act1,
        )  # fmt: skip

    hand_out = slice_in_fours(part, "i32" if integers else "f32", four)

    @inline
    def drained(tid, sums, row0, column0, block, matrices, m, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1):
        given = block, matrices, m, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1
        hand_out(tid, sums, row0, column0, m, n, given)

    return drained
