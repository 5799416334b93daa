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
from bolt_numba.kernels.cuda.language.lang import add_apart, bits_f32, load4_u32_nc, load_f32, load_i32, multiply_apart
from bolt_numba.kernels.cuda.products.tail import four_stored, size_of, unchanged
from bolt_numba.kernels.extents import Reach, box

u32, i32, i64, f32 = np.uint32, np.int32, np.int64, np.float32
HEAD = 16
"""Bytes of the table's first numbers: y_scale, y_zero_point, residual_scale, residual_zero_point, all f32."""
COLUMN = 16
"""Bytes of a column: what its sums begin with, zero point of B (both i32), factor, bias (both f32)."""
SUMS, BYTES, FUSED = "sums", "bytes", "fused"
"""What results are: the sums; sums times one factor, as bytes; a chain of numbers in f32, and then bytes or f32."""
LIMITS = {"u8": (0.0, 255.0), "i8": (-128.0, 127.0)}


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
    def four(self) -> Any:
        return four_of_bytes(self)

    def extents(self, a: Any, rows: int, splits: int) -> dict[str, Reach]:
        """Reaches of the addresses of `tail.TAIL`; rows: of y, those of all matrices."""
        n, y = a.n, size_of(self.y)
        return {
            "bias": table_bytes(rows, n * (a.matrices if self.each else 1)),
            "residual": size_of(self.residual) * rows * n, "y": box(y * n, (rows, y * a.ldy)),
        }  # fmt: skip


@functools.cache
def _one(form: ByteForm) -> Any:
    """One element: from its sum and the numbers of its row and column to what is stored."""
    act = form.act or unchanged
    LOW, HIGH = LIMITS.get(form.y, (0.0, 0.0))

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
def four_of_bytes(form: ByteForm) -> Any:
    """As `tail.four_finished`; bias: the table."""
    finish, Y, R, EACH = _one(form), size_of(form.y), size_of(form.residual), int(form.each)
    OFFSET, keep = int(form.offset), four_stored(form.y)
    FLOAT_RESIDUAL = form.residual == "f32"
    load_residual = getattr(lang, f"load_{form.residual}")
    as_y = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}[form.y]

    @inline
    def residual_of(residual, table, place):
        made = f32(load_residual(residual + R * place))
        if FLOAT_RESIDUAL:
            return made
        return multiply_apart(made - load_f32(table + 12), load_f32(table + 8))

    @inline
    def one(v, row, column, of_row, at, n, table, residual, lo, hi, act0, act1):
        column = min(column, n - 1)
        base, zero, factor, add = load4_u32_nc(at + COLUMN * column)
        t = i32(i64(v) + i64(i32(base)) - i64(i32(zero)) * of_row)
        seen = residual != 0
        rest = residual_of(residual, table, row * n + column) if seen else f32(0)
        return as_y(finish(t, seen, bits_f32(factor), bits_f32(add), rest, table, lo, hi, act0, act1))

    @inline
    def store_four(v, row, column, block, rows, n, table, residual, y, ldy, alpha, lo, hi, act0, act1):
        of_row = i64(load_i32(table + HEAD + 4 * row)) if OFFSET else i64(0)
        at = table + HEAD + 16 * ((rows + 3) // 4) + (COLUMN * n * i64(block) if EACH else 0)
        o0 = one(v[0], row, column, of_row, at, n, table, residual, lo, hi, act0, act1)
        o1 = one(v[1], row, column + 1, of_row, at, n, table, residual, lo, hi, act0, act1)
        o2 = one(v[2], row, column + 2, of_row, at, n, table, residual, lo, hi, act0, act1)
        o3 = one(v[3], row, column + 3, of_row, at, n, table, residual, lo, hi, act0, act1)
        keep(y + Y * (row * ldy + column), o0, o1, o2, o3, n - column)

    return store_four
