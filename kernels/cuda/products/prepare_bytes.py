"""The table of `tail_bytes`, made at run time: sums of rows of bytes, and numbers of columns."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    cuda,
    dp4a,
    dp4a_uu,
    load4_u32,
    load_f32,
    load_i32,
    static,
    store_f32,
    store_i32,
)
from bolt_numba.kernels.cuda.language.warp import warp_sum
from bolt_numba.kernels.cuda.products.tail import size_of
from bolt_numba.kernels.cuda.products.tail_bytes import COLUMN
from bolt_numba.kernels.extents import Numbers, box
from bolt_numba.ops.dtypes import MAX_F32
from bolt_numba.ops.layers.products.integer_products import RAISED, SMALL_SCALE

u32, i32, i64, f32 = np.uint32, np.int32, np.int64, np.float32
WARPS = BLOCK // 32
ONES = 0x01010101
"""Four bytes of 1: a product with them is a sum of four."""
LEAST_SCALE, UP, INF = float(SMALL_SCALE), float(RAISED), float("inf")


@functools.cache
def sums_of_rows(dtype: str, wide: bool) -> CudaKernel:
    """The sum of the k bytes of each row of x, i32, to ``skip`` bytes behind ``to`` and on; a warp takes a row.

    wide: rows begin at multiples of 16, and have such a number of bytes.
    """
    load, add = getattr(lang, f"load_{dtype}"), dp4a_uu if dtype == "u8" else dp4a
    STEP, WIDE = (16, 1) if wide else (1, 0)

    @cuda_kernel(
        threads=BLOCK, blocks=lambda a: ceil_div(a.rows, WARPS), x=PTR, to=PTR, rows=I64, k=I64, pitch=I64, skip=I64,
        unrolled=True, extents=lambda a: {"x": box(a.k, (a.rows, a.pitch)), "to": a.skip + 4 * a.rows},
    )  # fmt: skip
    def sum_rows(x, to, rows, k, pitch, skip):
        """x: bytes [rows][pitch], of which k count · to: i32 [rows], behind ``skip`` bytes."""
        row = i64(cuda.blockIdx.x) * WARPS + (cuda.threadIdx.x >> 5)
        if row < rows:
            total, q, at = u32(0), i64(cuda.threadIdx.x & 31) * STEP, x + row * pitch
            while q < k:
                if static(WIDE):
                    a, b, c, d = load4_u32(at + q)
                    total = add(a, u32(ONES), add(b, u32(ONES), total))
                    total = add(c, u32(ONES), add(d, u32(ONES), total))
                else:
                    total = u32(total + u32(load(at + q)))
                q += 32 * STEP
            sums = warp_sum(i32(total))
            if cuda.threadIdx.x & 31 == 0:
                store_i32(to + skip + 4 * row, sums)

    return sum_rows


@inline
def ratio(a, b, y):
    """`ops.layers.products.integer_products.scale_ratio`."""
    is_small, is_first = abs(a * b) < f32(LEAST_SCALE), abs(a) < abs(b)
    low, high, up = a if is_first else b, b if is_first else a, f32(UP) if is_small else f32(1)
    made = (low * up) * high / (y * up)
    made = f32(-MAX_F32) if made < f32(-MAX_F32) else made
    made = f32(MAX_F32) if made > f32(MAX_F32) else made
    return made if abs(a) < f32(INF) and abs(b) < f32(INF) else f32(np.nan)


COLUMN_FIELDS: dict[str, Any] = {
    "sums": PTR, "a_zero": PTR_OR_0, "b_zero": PTR_OR_0, "a_scale": PTR_OR_0, "b_scale": PTR_OR_0, "y_scale": PTR_OR_0,
    "y_zero": PTR_OR_0, "bias": PTR_OR_0, "rest_scale": PTR_OR_0, "rest_zero": PTR_OR_0, "table": PTR,
    "first": I64, "columns": I64, "n": I64, "k": I64, "zero_step": I64, "scale_step": I64, "fused": I64,
}  # fmt: skip
"""sums: of the columns of B, i32 [columns] · zero points, scales: one number, or of B [n] where a step is 1 ·
bias: [n] · first: bytes of the table before its columns · columns: of all matrices · fused: whether y_scale is no part
of the factor."""


@functools.cache
def numbers_of_columns(a: str, b: str, y: str, bias: str, rest: str) -> CudaKernel:
    """Fills the table but for the sums of rows; dtypes of zero points and of the bias."""
    zero_a, zero_b, zero_y, zero_r = (getattr(lang, f"load_{dtype}") for dtype in (a, b, y, rest))
    load_bias, INTEGER, B, BIAS = getattr(lang, f"load_{bias}"), int(bias == "i32"), size_of(b), size_of(bias)

    def extents(a: Numbers) -> dict[str, int]:
        one = {"a_zero": 1, "a_scale": 4, "y_scale": 4, "y_zero": 1, "rest_scale": 4, "rest_zero": 1}
        along = {"b_zero": B * (1 + (a.n - 1) * a.zero_step), "b_scale": 4 * (1 + (a.n - 1) * a.scale_step)}
        reach = {**one, **along, "sums": 4 * a.columns, "bias": BIAS * a.n, "table": a.first + COLUMN * a.columns}
        return {name: 0 if getattr(a, name) is None else nbytes for name, nbytes in reach.items()}

    @cuda_kernel(threads=BLOCK, blocks=lambda a: ceil_div(a.columns, BLOCK), extents=extents, **COLUMN_FIELDS)
    def column_numbers(sums, a_zero, b_zero, a_scale, b_scale, y_scale, y_zero, bias, rest_scale, rest_zero, table,
                       first, columns, n, k, zero_step, scale_step, fused):  # fmt: skip
        column = i64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
        if column == 0:
            store_f32(table, load_f32(y_scale) if y_scale != 0 else f32(1))
            store_f32(table + 4, f32(zero_y(y_zero)) if y_zero != 0 else f32(0))
            store_f32(table + 8, load_f32(rest_scale) if rest_scale != 0 else f32(1))
            store_f32(table + 12, f32(zero_r(rest_zero)) if rest_zero != 0 else f32(0))
        if column < columns:
            inner, at = column % n, table + first + COLUMN * column
            left = i64(zero_a(a_zero)) if a_zero != 0 else i64(0)
            right = i64(zero_b(b_zero + B * zero_step * inner)) if b_zero != 0 else i64(0)
            begin, add = left * (k * right - load_i32(sums + 4 * column)), f32(0)
            if bias != 0:
                if INTEGER:
                    begin += i64(load_bias(bias + BIAS * inner))
                else:
                    add = f32(load_bias(bias + BIAS * inner))
            factor = f32(1)
            if a_scale != 0:
                divisor = load_f32(y_scale) if y_scale != 0 and fused == 0 else f32(1)
                factor = ratio(load_f32(a_scale), load_f32(b_scale + 4 * scale_step * inner), divisor)
            store_i32(at, i32(begin))
            store_i32(at + 4, i32(right))
            store_f32(at + 8, factor)
            store_f32(at + 12, add)

    return column_numbers
