"""Products with up to 4 rows, which wait for the memory of B alone: every byte of it is read once, 16 at a time.

B by columns ("k"): a warp takes four columns, and its lanes their terms.  B by terms ("m"): lanes take columns, and the
warps of a block terms.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from bolt_numba.kernels.cuda.declare import CudaKernel, Macro, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, static, static_range
from bolt_numba.kernels.cuda.language.warp import warp_sum
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.place import PLACE, matrix, reaches_of, shared_out
from bolt_numba.kernels.cuda.products.tail import TAIL, TailForm, size_of

u32, i64, f32 = np.uint32, np.int64, np.float32
ROWS = (1, 2, 4)
"""Rows of a kernel; it takes fewer, too."""
WARPS_OF_COLUMNS, WARPS_OF_TERMS, DEEP = 4, 8, 4
"""Warps of a block, and terms of a lane at once where B lies by terms."""


def columns_of(order: Order) -> int:
    """Columns of a block."""
    return 4 * WARPS_OF_COLUMNS if order.dense == "k" else 128 if order.wide else 32


def _declared(
    columns: int, warps: int, size: int, orders: tuple[Order, Order], stored: TailForm
) -> Callable[[Callable[..., None]], CudaKernel]:
    """Decorator of a body whose blocks make ``columns`` columns."""
    return cuda_kernel(
        threads=32 * warps, blocks=lambda a: (ceil_div(a.n, columns) * a.matrices, a.splits), unrolled=True,
        extents=reaches_of(size, *orders, stored), **PLACE, **TAIL,
    )  # fmt: skip


@inline
def opening(n, columns):
    """Lane and warp of a thread; matrix and first column of its block."""
    across = u32((u32(n) + u32(columns - 1)) // u32(columns))
    block = u32(u32(cuda.blockIdx.x) // across)
    column0 = i64(u32(cuda.blockIdx.x) - block * across) * columns
    return u32(cuda.threadIdx.x & 31), u32(cuda.threadIdx.x >> 5), block, column0


@functools.cache
def few_columns(rows: int, dtype: str, wide: bool, stored: TailForm) -> CudaKernel:
    """For both operands in order "k"; its fields are `PLACE` and `TAIL`."""
    SIZE, M, COLUMNS = size_of(dtype), rows, 4 * WARPS_OF_COLUMNS
    V = 16 // SIZE if wide else 1
    STEP, NARROW, SUMS, ALL = 32 * V, int(V == 1), rows * 4, WARPS_OF_COLUMNS * rows * 4
    load = getattr(lang, f"load{V if wide else ''}_{dtype}_nc")
    dots, fill = Macro("dots", rows, 4, V), Macro("fill", SUMS, 0)
    four, share, XS, WS, order = stored.four, shared_out(STEP), rows * V, 4 * V, Order("k", wide)

    @_declared(COLUMNS, WARPS_OF_COLUMNS, SIZE, (order, order), stored)
    def product_few(a, b, table, m, n, k, lda, ldb, a_block, b_block, matrices, splits, split_bytes, bias, residual, y,
                    ldy, alpha, lo, hi, act0, act1):  # fmt: skip
        lane, warp, block, column0 = opening(n, COLUMNS)
        column = column0 + i64(warp) * 4
        first, tiles = share(k, splits, cuda.blockIdx.y)
        at, end = first * STEP + i64(lane) * V, min((first + tiles) * STEP, i64(k))
        pa, pb = a + matrix(table, block, a_block, 0), b + matrix(table, block, b_block, 8)
        sums, xs, ws = cuda.local.array(SUMS, f32), cuda.local.array(XS, f32), cuda.local.array(WS, f32)
        parts = cuda.shared.array(ALL, f32)
        fill(sums)
        while at < end:
            for c in static_range(4):
                w = load(pb + SIZE * (min(column + c, i64(n) - 1) * ldb + at))
                if static(NARROW):
                    ws[c] = w
                else:
                    for v in static_range(V):
                        ws[c * V + v] = w[v]
            for r in static_range(M):
                x = load(pa + SIZE * (min(i64(r), i64(m) - 1) * lda + at))
                if static(NARROW):
                    xs[r] = x
                else:
                    for v in static_range(V):
                        xs[r * V + v] = x[v]
            dots(sums, xs, ws)
            at += STEP
        for i in static_range(SUMS):
            total = warp_sum(sums[i])
            if lane == 0:
                parts[warp * u32(SUMS) + u32(i)] = total
        cuda.syncthreads()
        if lane < m and column < n:
            of = u32(warp * u32(SUMS) + lane * u32(4))
            v4 = (parts[of], parts[of + u32(1)], parts[of + u32(2)], parts[of + u32(3)])
            four(
                v4, i64(block) * m + i64(lane), column, block, i64(m) * matrices, i64(n), bias, residual,
                y + i64(cuda.blockIdx.y) * split_bytes, ldy, alpha, lo, hi, act0, act1,
            )  # fmt: skip

    return product_few


@functools.cache
def few_terms(rows: int, dtype: str, wide: bool, stored: TailForm) -> CudaKernel:
    """For A in order "k" and B in order "m"; its fields are `PLACE` and `TAIL`."""
    SIZE, M, V = size_of(dtype), rows, 4 if wide else 1
    COLUMNS, W, SUMS, NARROW = 32 * V, WARPS_OF_TERMS, rows * V, int(V == 1)
    FOURS, ALL, PLANE, STEP, ACROSS = rows * 8 * V, W * rows * 32 * V, rows * 32 * V, W * DEEP, 8 * V
    load, load_w = getattr(lang, f"load_{dtype}_nc"), getattr(lang, f"load{V if wide else ''}_{dtype}_nc")
    dots, fill = Macro("dots", rows, V, DEEP, True), Macro("fill", SUMS, 0)
    four, share, XS, WS = stored.four, shared_out(STEP), rows * DEEP, DEEP * V

    @_declared(COLUMNS, W, SIZE, (Order("k", False), Order("m", wide)), stored)
    def product_few(a, b, table, m, n, k, lda, ldb, a_block, b_block, matrices, splits, split_bytes, bias, residual, y,
                    ldy, alpha, lo, hi, act0, act1):  # fmt: skip
        lane, warp, block, column0 = opening(n, COLUMNS)
        column = column0 + i64(lane) * V
        first, tiles = share(k, splits, cuda.blockIdx.y)
        at, end = first * STEP + i64(warp), min((first + tiles) * STEP, i64(k))
        pa, pb = a + matrix(table, block, a_block, 0), b + matrix(table, block, b_block, 8)
        sums, xs, ws = cuda.local.array(SUMS, f32), cuda.local.array(XS, f32), cuda.local.array(WS, f32)
        parts = cuda.shared.array(ALL, f32)
        fill(sums)
        inside = column < n
        while at < end:
            for d in static_range(DEEP):
                term, there = at + d * W, at + d * W < end
                if static(NARROW):
                    ws[d] = load_w(pb + SIZE * (term * ldb + column)) if there and inside else f32(0)
                else:
                    w = (f32(0), f32(0), f32(0), f32(0))
                    if there and inside:
                        w = load_w(pb + SIZE * (term * ldb + column))
                    for v in static_range(V):
                        ws[d * V + v] = w[v]
                for r in static_range(M):
                    xs[r * DEEP + d] = load(pa + SIZE * (min(i64(r), i64(m) - 1) * lda + term)) if there else f32(0)
            dots(sums, xs, ws)
            at += STEP
        for r in static_range(M):
            for v in static_range(V):
                parts[warp * u32(PLANE) + u32(r * COLUMNS + v) + lane * u32(V)] = sums[r * V + v]
        cuda.syncthreads()
        c = u32(cuda.threadIdx.x)
        row, inner = i64(c // u32(ACROSS)), u32(c % u32(ACROSS)) * u32(4)
        if c < u32(FOURS) and row < m and column0 + inner < n:
            t0, t1, t2, t3, of = f32(0), f32(0), f32(0), f32(0), u32(u32(row) * u32(COLUMNS) + inner)
            for _ in range(W):
                t0, t1 = t0 + parts[of], t1 + parts[of + u32(1)]
                t2, t3 = t2 + parts[of + u32(2)], t3 + parts[of + u32(3)]
                of = u32(of + u32(PLANE))
            four(
                (t0, t1, t2, t3), i64(block) * m + row, column0 + inner, block, i64(m) * matrices, i64(n), bias,
                residual, y + i64(cuda.blockIdx.y) * split_bytes, ldy, alpha, lo, hi, act0, act1,
            )  # fmt: skip

    return product_few
