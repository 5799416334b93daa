"""MatMulInteger: products of bytes summed in i32, on vectors of i32 (no dot-product instructions)."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.lang import (
    LANES,
    ceil_div,
    load_i8,
    load_u8,
    splat,
    split,
    vload_i8,
    vload_i8_n,
    vload_u8,
    vload_u8_n,
    vstore_n,
)
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.quantize import MatMulInteger
from bolt_numba.types import I8, TensorType

ROWS = 4
PARALLEL_PRODUCTS = 1 << 19
"""Products of bytes that one thread sums in about 20 us."""


def _words(signed: bool) -> tuple[Any, Any, Any]:
    return (load_i8, vload_i8, vload_i8_n) if signed else (load_u8, vload_u8, vload_u8_n)


def _sums(a_signed: bool, b_signed: bool) -> tuple[Any, Any]:
    """Helpers that sum one row and `ROWS` rows of a against a vector of columns.

    The zero point of b is taken off at the end, times the row's sum.
    """
    load_a, _, _ = _words(a_signed)
    load_zero, load_b, load_b_n = _words(b_signed)

    @inline
    def column(p, j, width):
        """Zero points of b."""
        if p.per_column:
            return load_b_n(p.zero_b + j, width)
        return splat(np.int32(load_zero(p.zero_b)))

    @inline
    def finish(p, row, j, width, total, rest):
        vstore_n(p.y + 4 * (row * p.n + j), total - splat(np.int32(rest)) * column(p, j, width), width)

    @inline
    def one_row(p, row, j, width):
        zero = np.int32(load_a(p.zero_a))
        total = splat(np.int32(0))
        rest: Any = 0
        for i in range(p.k):
            x = np.int32(load_a(p.a + row * p.k + i)) - zero
            b = p.b + i * p.n + j
            total = total + splat(np.int32(x)) * (load_b(b) if width == LANES else load_b_n(b, width))
            rest += x
        finish(p, row, j, width, total, rest)

    @inline
    def four_rows(p, row, j, width):
        zero = np.int32(load_a(p.zero_a))
        t0, t1, t2, t3 = splat(np.int32(0)), splat(np.int32(0)), splat(np.int32(0)), splat(np.int32(0))
        s0: Any = 0
        s1, s2, s3 = s0, s0, s0
        for i in range(p.k):
            a, b = p.a + row * p.k + i, p.b + i * p.n + j
            v = load_b(b) if width == LANES else load_b_n(b, width)
            x0, x1 = np.int32(load_a(a)) - zero, np.int32(load_a(a + p.k)) - zero
            x2, x3 = np.int32(load_a(a + 2 * p.k)) - zero, np.int32(load_a(a + 3 * p.k)) - zero
            t0, t1 = t0 + splat(np.int32(x0)) * v, t1 + splat(np.int32(x1)) * v
            t2, t3 = t2 + splat(np.int32(x2)) * v, t3 + splat(np.int32(x3)) * v
            s0, s1, s2, s3 = s0 + x0, s1 + x1, s2 + x2, s3 + x3
        finish(p, row, j, width, t0, s0)
        finish(p, row + 1, j, width, t1, s1)
        finish(p, row + 2, j, width, t2, s2)
        finish(p, row + 3, j, width, t3, s3)

    return one_row, four_rows


@cache
def matmul_bytes(a_signed: bool, b_signed: bool) -> Native:
    """Kernel of (a - zero_a) @ (b - zero_b), [m, n]; ``per_column``: whether b has a zero point for each column.

    A task is `ROWS` rows by one vector of columns.
    """
    one_row, four_rows = _sums(a_signed, b_signed)

    def body(p, tid, nthreads):
        columns = ceil_div(p.n, LANES)
        lo, hi = split(ceil_div(p.m, ROWS) * columns, tid, nthreads)
        for task in range(lo, hi):
            row, j = task // columns * ROWS, task % columns * LANES
            width = min(p.n - j, LANES)
            if row + ROWS <= p.m:
                four_rows(p, row, j, width)
            else:
                for r in range(row, p.m):
                    one_row(p, r, j, width)

    body.__name__ = f"matmul_{'i8' if a_signed else 'u8'}_{'i8' if b_signed else 'u8'}"
    pointers = dict.fromkeys(("a", "b", "y", "zero_a", "zero_b"), PTR)
    return native(fastmath=None, **pointers, **dict.fromkeys(("m", "n", "k", "per_column"), I64))(body)


def _accepts(op: Any, ins: Types) -> bool:
    """One matrix b; one zero point for a, one for b or for each of its columns."""
    a, b, zero_a, zero_b = (*ins, None, None)[:4]
    if a is None or b is None or not (a.is_static and b.is_static) or len(b.dims) != 2 or len(a.dims) < 2:
        return False
    if zero_a is not None and zero_a.size != 1:
        return False
    return zero_b is None or zero_b.size == 1 or zero_b.dims == b.dims[1:]


@kernel(MatMulInteger, accepts=_accepts)
def matmul_integer(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    a, b, zero_a, zero_b = (*ins, None, None)[:4]
    assert a is not None
    assert b is not None
    if not outs[0].size:
        return []
    m, (k, n) = math.prod(a.dims[:-1]), b.dims
    none = np.zeros(1, np.uint8)
    args: dict[str, Argument] = {
        "a": In(0),
        "b": In(1),
        "y": Out(0),
        "zero_a": none if zero_a is None else In(2),
        "zero_b": none if zero_b is None else In(3),
        "m": m,
        "n": n,
        "k": k,
        "per_column": int(zero_b is not None and zero_b.size > 1),
    }
    return [Step(matmul_bytes(a.dtype == I8, b.dtype == I8), args, m * n * k >= PARALLEL_PRODUCTS)]
