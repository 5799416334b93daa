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
from bolt_numba.kernels.cuda.language.lang import load4_shared_f32, maximum, minimum
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers, Reach, box

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

    @property
    def step(self) -> int:
        """Rows that all threads take at once."""
        return self.threads * VECTOR // self.columns


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
    def four(self) -> Inline:
        return four_finished(self)

    def run(self, part: TileSlice) -> Any:
        return run_drained(part, self)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of an element of y, bias and residual."""
        return size_of(self.y), size_of(self.bias), size_of(self.residual)

    def extents(self, a: Numbers, rows: int, splits: int) -> dict[str, Reach]:
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
def finished(stored: TailForm) -> Inline:
    """``finish(sum, bias, residual, ...)`` of one element in f32; NaN stays."""
    act = stored.act or unchanged

    @inline
    def finish(v, b, r, alpha, lo, hi, act0, act1):
        return minimum(maximum(act(f32(v) * alpha + b + r, act0, act1), lo), hi)

    return finish


def size_of(dtype: str) -> int:
    return lang.SIZES[dtype]


@functools.cache
def four_stored(dtype: str) -> Inline:
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
def near_finished(stored: TailForm) -> Inline:
    """``near(v, to, add, rest, left, ...)``: one to four neighbours of a row, of which ``left`` are within it.

    to, add, rest: addresses of the first one in y, bias and residual; add and rest count where bias and residual do.
    """
    finish, Y, B, R = finished(stored), size_of(stored.y), size_of(stored.bias), size_of(stored.residual)
    load_bias, load_residual = getattr(lang, f"load_{stored.bias}_nc"), getattr(lang, f"load_{stored.residual}")
    store = getattr(lang, f"store_{stored.y}")

    @inline
    def one(i, v, to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1):
        if left > i:
            b = load_bias(add + B * i) if bias != 0 else f32(0)
            r = load_residual(rest + R * i) if residual != 0 else f32(0)
            store(to + Y * i, finish(v, b, r, alpha, lo, hi, act0, act1))

    @inline
    def store_near(v, to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1):
        one(0, v[0], to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1)
        one(1, v[1], to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1)
        one(2, v[2], to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1)
        one(3, v[3], to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1)

    return store_near


@inline
def zeros():
    return f32(0), f32(0), f32(0), f32(0)


@functools.cache
def whole_finished(stored: TailForm) -> Inline:
    """``whole(v, to, b, rest, ...)``: four neighbours at once, where they lie so; b: their bias."""
    finish, store4 = finished(stored), getattr(lang, f"store4_{stored.y}")
    load4_residual = getattr(lang, f"load4_{stored.residual}")

    @inline
    def store_whole(v, to, b, rest, residual, alpha, lo, hi, act0, act1):
        r = load4_residual(rest) if residual != 0 else zeros()
        o0 = finish(v[0], b[0], r[0], alpha, lo, hi, act0, act1)
        o1 = finish(v[1], b[1], r[1], alpha, lo, hi, act0, act1)
        o2 = finish(v[2], b[2], r[2], alpha, lo, hi, act0, act1)
        o3 = finish(v[3], b[3], r[3], alpha, lo, hi, act0, act1)
        store4(to, o0, o1, o2, o3)

    return store_whole


@functools.cache
def four_finished(stored: TailForm) -> Inline:
    """Stores four neighbours of a row at once where they fit and lie well, else those that are within the row.

    row: of ``rows`` in all matrices · block: the matrix.
    """
    near, whole, Y, B, R = near_finished(stored), whole_finished(stored), *stored.sizes
    load4_bias = getattr(lang, f"load4_{stored.bias}_nc")

    @inline
    def store_four(v, row, column, block, rows, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1):
        to, add, rest = y + Y * (row * ldy + column), bias + B * column, residual + R * (row * n + column)
        if column + VECTOR <= n and (to & (VECTOR * Y - 1)) | (add & (VECTOR * B - 1)) | (rest & (VECTOR * R - 1)) == 0:
            whole(v, to, load4_bias(add) if bias != 0 else zeros(), rest, residual, alpha, lo, hi, act0, act1)
        else:
            near(v, to, add, rest, n - column, bias, residual, alpha, lo, hi, act0, act1)

    return store_four


@functools.cache
def slice_in_fours(part: TileSlice, sums: str, four: Any) -> Inline:
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
    if part.run == part.rows and part.rows % part.step == 0:
        return stored.run(part)
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


@functools.cache
def run_drained(part: TileSlice, stored: TailForm) -> Inline:
    """`drain` of rows that are neighbours: what is equal for all rows of a thread is worked out once."""
    near, whole, Y, B, R = near_finished(stored), whole_finished(stored), *stored.sizes
    load4_bias = getattr(lang, f"load4_{stored.bias}_nc")
    STEP, PITCH, IN_ROW = part.step, 4 * part.pitch, part.columns // VECTOR - 1
    ROW, COUNT, SHIFT = log2(part.columns // VECTOR), part.rows // STEP, log2(STEP)

    @inline
    def drained_run(tid, sums, row0, column0, block, matrices, m, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1):
        r, q = u32(tid >> u32(ROW)), u32((tid & u32(IN_ROW)) << u32(2))
        left, below, at = i32(n - column0 - q), i32(m - row0 - r), u32(sums + r * u32(PITCH) + (q << u32(2)))
        if left > 0 and below > 0:
            row, column = i64(block) * m + row0 + r, i64(column0) + q
            to, add, rest = y + Y * (row * ldy + column), bias + B * column, residual + R * (row * n + column)
            y_step, rest_step = STEP * Y * i64(ldy), STEP * R * i64(n)
            count = min(u32(COUNT), u32(u32(below + i32(STEP - 1)) >> u32(SHIFT)))
            odd = (to | y_step) & (VECTOR * Y - 1) | add & (VECTOR * B - 1) | (rest | rest_step) & (VECTOR * R - 1)
            if left >= VECTOR and odd == 0:
                b = load4_bias(add) if bias != 0 else zeros()
                for _ in range(count):
                    whole(load4_shared_f32(at), to, b, rest, residual, alpha, lo, hi, act0, act1)
                    to, rest, at = to + y_step, rest + rest_step, u32(at + u32(STEP * PITCH))
            else:
                for _ in range(count):
                    near(load4_shared_f32(at), to, add, rest, left, bias, residual, alpha, lo, hi, act0, act1)
                    to, rest, at = to + y_step, rest + rest_step, u32(at + u32(STEP * PITCH))

    return drained_run
