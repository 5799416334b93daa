"""Parts of sums become whole: added in their order, so that results are the same bits in each run."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import BLOCK, I32, I64, PTR, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.language.lang import cuda, load_f32
from bolt_numba.kernels.cuda.products.tail import TAIL, VECTOR, TailForm
from bolt_numba.kernels.extents import Numbers

i64 = np.int64


@functools.cache
def combine(stored: TailForm) -> CudaKernel:
    """Y = tail of the sum of ``parts``, f32 [splits, rows, n] whose rows and parts are dense."""
    four = stored.four

    def extents(a: Numbers) -> dict[str, Any]:
        return {"parts": 4 * a.splits * a.rows * a.n} | stored.extents(a, a.rows, 1)

    @cuda_kernel(
        threads=BLOCK, blocks=lambda a: ceil_div(a.rows * ceil_div(a.n, VECTOR), BLOCK), extents=extents,
        parts=PTR, rows=I64, n=I32, splits=I32, **TAIL,
    )  # fmt: skip
    def combine_parts(parts, rows, n, splits, bias, residual, y, ldy, alpha, lo, hi, act0, act1):
        across = (i64(n) + (VECTOR - 1)) // VECTOR
        place = i64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
        row, column = place // across, place % across * VECTOR
        if row < rows:
            v0, v1, v2, v3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            at, last = parts + 4 * row * n, i64(n) - 1
            for _ in range(splits):
                v0 += load_f32(at + 4 * column)
                v1 += load_f32(at + 4 * min(column + 1, last))
                v2 += load_f32(at + 4 * min(column + 2, last))
                v3 += load_f32(at + 4 * min(column + 3, last))
                at += 4 * rows * n
            four((v0, v1, v2, v3), row, column, 0, rows, i64(n), bias, residual, y, ldy, alpha, lo, hi, act0, act1)

    return combine_parts
