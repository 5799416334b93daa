"""Input products of recurrent layers for all steps of time at once: x w^T, in f32."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, store_f32

TILE, DEEP = 64, 16
PITCH = TILE + 1
"""Rows of a tile are an odd number of words apart, so that 16 of them lie in 16 banks."""


@inline
def keep(acc, y, rows, columns, top, left):
    """Store 4 x 4 sums, 16 rows and columns apart."""
    for i in range(16):
        row, column = top + 16 * (i >> 2), left + 16 * (i & 3)
        if row < rows and column < columns:
            store_f32(y + 4 * (row * columns + column), acc[i])


@functools.cache
def products_kernel(dtype: str) -> CudaKernel:
    """``y [rows, columns] = x [rows, k] w [columns, k]^T`` in tiles of 64 x 64, 4 x 4 a thread."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def fetch(tile, x, first, rows, k0, k, tx, ty):
        """tile[deep, row] = x[first + row, k0 + deep], 0 beyond its end."""
        for i in range(4):
            row, at, v = ty + np.uint32(16 * i), k0 + tx, np.float32(0)
            if at < k and first + row < rows:
                v = load(x + size * ((first + row) * k + at))
            tile[tx, row] = v

    @cuda_kernel(
        threads=WIDE_BLOCK, blocks=lambda a: (ceil_div(a.rows, TILE), ceil_div(a.columns, TILE)),
        extents=lambda a: {"x": size * a.rows * a.k, "w": size * a.columns * a.k, "y": 4 * a.rows * a.columns},
        x=PTR, w=PTR, y=PTR, rows=I64, columns=I64, k=I64,
    )  # fmt: skip
    def input_products(x, w, y, rows, columns, k):
        xs, ws = cuda.shared.array((DEEP, PITCH), np.float32), cuda.shared.array((DEEP, PITCH), np.float32)
        acc = cuda.local.array(16, np.float32)
        thread = np.uint32(cuda.threadIdx.x)
        tx, ty = thread & np.uint32(15), thread >> np.uint32(4)
        left, top = np.int64(cuda.blockIdx.y) * TILE, np.int64(cuda.blockIdx.x) * TILE
        for i in range(16):
            acc[i] = np.float32(0)
        for k0 in range(0, k, DEEP):
            fetch(xs, x, top, rows, k0, k, tx, ty)
            fetch(ws, w, left, columns, k0, k, tx, ty)
            cuda.syncthreads()
            for deep in range(np.uint32(DEEP)):
                for i in range(4):
                    a = xs[deep, ty + np.uint32(16 * i)]
                    for j in range(4):
                        acc[4 * i + j] += a * ws[deep, tx + np.uint32(16 * j)]
            cuda.syncthreads()
        keep(acc, y, rows, columns, top + ty, left + tx)

    return input_products
