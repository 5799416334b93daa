"""What happens to sums of products of bytes: zero points, bias, scales, residual, activation, bytes or f32.

Everything that is one number, or one of a column, is prepared by a small kernel in a table, with the sums of the rows
of A.  So zero points cost a product two numbers of a column and one of a row.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import inline
from bolt_numba.kernels.cuda.elementwise.scalars import quantised
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    add_apart,
    bits_f32,
    load4_shared_i32,
    load4_u32_nc,
    load_f32,
    load_i32,
    multiply_apart,
)
from bolt_numba.kernels.cuda.products.tail import VECTOR, TileSlice, four_stored, log2, size_of, unchanged
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers, Reach, box

u32, i32, i64, f32 = np.uint32, np.int32, np.int64, np.float32
HEAD = 16
"""Bytes of the table's first numbers: y_scale, y_zero_point, residual_scale, residual_zero_point, all f32."""
COLUMN = 16
"""Bytes of a column: what its sums begin with, zero point of B (both i32), factor, bias (both f32)."""
SUMS, BYTES, FUSED = "sums", "bytes", "fused"
"""What results are: the sums; sums times one factor, as bytes; a chain of numbers in f32, and then bytes or f32."""
BYTE_RANGES = {"u8": (0.0, 255.0), "i8": (-128.0, 127.0)}


def table_bytes(rows: int, columns: int) -> int:
    """Of the table for so many rows and columns of all matrices."""
    return columns_at(rows) + COLUMN * columns


def columns_at(rows: int) -> int:
    """Bytes from the table's begin to the first column; between are the sums of the rows of A, i32."""
    return HEAD + 4 * (-(-rows // 4) * 4)


@record(frozen=True)
class ByteForm:
    """What follows sums of bytes: dtypes of y and residual, `SUMS` .., whether matrices have columns of their own, act.

    offset: whether a zero point of B may be other than 0, so that the sums of the rows of A count.
    The field ``bias`` of a kernel is the table.
    """

    y: str
    residual: str
    result: str
    each: bool
    offset: bool
    act: Any = None

    @property
    def four(self) -> Inline:
        return four_of_bytes(self)

    def run(self, part: TileSlice) -> Any:
        return run_of_bytes(part, self)

    def extents(self, a: Numbers, rows: int, splits: int) -> dict[str, Reach]:
        """Reaches of the addresses of `tail.TAIL`; rows: of y, those of all matrices."""
        n, y = a.n, size_of(self.y)
        return {
            "bias": table_bytes(rows, n * (a.matrices if self.each else 1)),
            "residual": size_of(self.residual) * rows * n, "y": box(y * n, (rows, y * a.ldy)),
        }  # fmt: skip


@functools.cache
def _one(form: ByteForm) -> Inline:
    """One element: from its sum and the numbers of its row and column to what is stored."""
    act = form.act or unchanged
    LOW, HIGH = BYTE_RANGES.get(form.y, (0.0, 0.0))

    @inline
    def whole(v, seen, factor, add, rest, table, lo, hi, act0, act1):
        return v

    @inline
    def scaled(v, seen, factor, add, rest, table, lo, hi, act0, act1):
        real = multiply_apart(f32(v), factor)
        return quantised(real, f32(1), load_f32(table + 4), f32(LOW), f32(HIGH))

    @inline
    def real(v, seen, factor, add, rest, table, lo, hi, act0, act1):
        made = add_apart(multiply_apart(f32(v), factor), add)
        if seen:
            made = add_apart(made, rest)
        made = act(made, act0, act1)
        made = lo if made < lo else made
        return hi if made > hi else made

    @inline
    def stored(v, seen, factor, add, rest, table, lo, hi, act0, act1):
        made = real(v, seen, factor, add, rest, table, lo, hi, act0, act1)
        return quantised(made, load_f32(table), load_f32(table + 4), f32(LOW), f32(HIGH))

    return {SUMS: whole, BYTES: scaled, FUSED: real if form.y == "f32" else stored}[form.result]


@functools.cache
def _element(form: ByteForm) -> Inline:
    """``one(v, numbers, of_row, table, residual, rest, ...)``: what is stored of a sum.

    numbers: of the column · of_row: sum of the row of A · rest: address in the residual.
    """
    finish, load_residual, FLOAT = _one(form), getattr(lang, f"load_{form.residual}"), form.residual == "f32"
    as_y = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}[form.y]

    @inline
    def residual_of(residual, table, rest):
        if residual == 0:
            return f32(0)
        made = f32(load_residual(rest))
        if FLOAT:
            return made
        return multiply_apart(made - load_f32(table + 12), load_f32(table + 8))

    @inline
    def one(v, numbers, of_row, table, residual, rest, lo, hi, act0, act1):
        base, zero, factor, add = numbers
        t = i32(u32(u32(u32(v) + base) - u32(zero * of_row)))  # only the last 32 bits stay
        added = residual_of(residual, table, rest)
        return as_y(finish(t, residual != 0, bits_f32(factor), bits_f32(add), added, table, lo, hi, act0, act1))

    return one


@functools.cache
def _beginning(form: ByteForm) -> Inline:
    """``at, to, rest, one, two, three = begin(...)``: addresses of numbers of the column, of y and of the residual.

    one, two, three: columns from the first to the others that are there.
    """
    Y, R, EACH = size_of(form.y), size_of(form.residual), int(form.each)

    @inline
    def begin(row, column, block, rows, n, table, residual, y, ldy):
        at = table + HEAD + 16 * ((rows + 3) // 4) + COLUMN * (column + (n * i64(block) if EACH else 0))
        last = n - 1 - column
        to, rest = y + Y * (row * ldy + column), residual + R * (row * n + column)
        return at, to, rest, min(i64(1), last), min(i64(2), last), min(i64(3), last)

    return begin


@functools.cache
def four_of_bytes(form: ByteForm) -> Inline:
    """As `tail.four_finished`; bias: the table."""
    begin, one, put = _beginning(form), _element(form), four_stored(form.y)
    R, OFFSET = size_of(form.residual), int(form.offset)

    @inline
    def store_four(v, row, column, block, rows, n, table, residual, y, ldy, alpha, lo, hi, act0, act1):
        at, to, rest, i, j, k = begin(row, column, block, rows, n, table, residual, y, ldy)
        of_row = u32(load_i32(table + HEAD + 4 * row)) if OFFSET else u32(0)
        c0, c1 = load4_u32_nc(at), load4_u32_nc(at + COLUMN * i)
        c2, c3 = load4_u32_nc(at + COLUMN * j), load4_u32_nc(at + COLUMN * k)
        o0 = one(v[0], c0, of_row, table, residual, rest, lo, hi, act0, act1)
        o1 = one(v[1], c1, of_row, table, residual, rest + R * i, lo, hi, act0, act1)
        o2 = one(v[2], c2, of_row, table, residual, rest + R * j, lo, hi, act0, act1)
        o3 = one(v[3], c3, of_row, table, residual, rest + R * k, lo, hi, act0, act1)
        put(to, o0, o1, o2, o3, n - column)

    return store_four


@functools.cache
def run_of_bytes(part: TileSlice, form: ByteForm) -> Inline:
    """As `tail.run_drained`: the numbers of its columns are read once by a thread."""
    begin, one, put = _beginning(form), _element(form), four_stored(form.y)
    R, OFFSET = size_of(form.residual), int(form.offset)
    STEP, PITCH, IN_ROW, Y = part.step, 4 * part.pitch, part.columns // VECTOR - 1, size_of(form.y)
    ROW, COUNT, SHIFT = log2(part.columns // VECTOR), part.rows // STEP, log2(STEP)

    @inline
    def drained_run(
        tid, sums, row0, column0, block, matrices, m, n, table, residual, y, ldy, alpha, lo, hi, act0, act1,
    ):  # fmt: skip
        r, q = u32(tid >> u32(ROW)), u32((tid & u32(IN_ROW)) << u32(2))
        left, below, source = i32(n - column0 - q), i32(m - row0 - r), u32(sums + r * u32(PITCH) + (q << u32(2)))
        if left > 0 and below > 0:
            row, column, rows = i64(block) * m + row0 + r, i64(column0) + q, i64(m) * matrices
            at, to, rest, i, j, k = begin(row, column, block, rows, i64(n), table, residual, y, ldy)
            of_rows, y_step, rest_step = table + HEAD + 4 * row, STEP * Y * i64(ldy), STEP * R * i64(n)
            c0, c1 = load4_u32_nc(at), load4_u32_nc(at + COLUMN * i)
            c2, c3 = load4_u32_nc(at + COLUMN * j), load4_u32_nc(at + COLUMN * k)
            for _ in range(min(u32(COUNT), u32(u32(below + i32(STEP - 1)) >> u32(SHIFT)))):
                v, of_row = load4_shared_i32(source), u32(load_i32(of_rows)) if OFFSET else u32(0)
                o0 = one(v[0], c0, of_row, table, residual, rest, lo, hi, act0, act1)
                o1 = one(v[1], c1, of_row, table, residual, rest + R * i, lo, hi, act0, act1)
                o2 = one(v[2], c2, of_row, table, residual, rest + R * j, lo, hi, act0, act1)
                o3 = one(v[3], c3, of_row, table, residual, rest + R * k, lo, hi, act0, act1)
                put(to, o0, o1, o2, o3, left)
                to, rest, source = to + y_step, rest + rest_step, u32(source + u32(STEP * PITCH))
                of_rows += 4 * STEP

    return drained_run
