"""Sums of attention that several blocks made for parts of the keys, put together."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

import numpy as np

from bolt_numba.kernels.cuda.attention.rows import EXTRA, LOG2_E, inverse, place, results_reach, shifted
from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, ex2, load_f32, load_i64, max_f32
from bolt_numba.kernels.geometry.heads import ENTRY


@functools.cache
def combine_parts(dtype: str) -> CudaKernel:
    """A warp for each row; partial: see `kernels.cuda.attention.flash`, the others: see `rows.FIELDS`.

    partial: f32 [parts][units][group][m][width + EXTRA] · y: [m][width] of each head.
    """
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype]
    results = results_reach(size)

    def extents(a):
        return results(a) | {"partial": 4 * a.parts * a.units * a.group * a.m * (a.width + EXTRA)}

    @cuda_kernel(
        threads=BLOCK, blocks=lambda a: ceil_div(a.units * a.group * a.m, BLOCK // 32), extents=extents,
        partial=PTR, sink=PTR_OR_0, y=PTR, table=PTR, units=I64, group=I64, m=I64, width=I64, y_step=I64, y_head=I64,
        parts=I64,
    )  # fmt: skip
    def combine_parts(partial, sink, y, table, units, group, m, width, y_step, y_head, parts):
        thread = np.uint32(cuda.threadIdx.x)
        lane = np.int64(thread & np.uint32(31))
        item = np.int64(cuda.blockIdx.x) * (BLOCK // 32) + np.int64(thread >> 5)
        rows = group * m
        if item < units * rows:
            unit = np.int64(np.uint32(item) // np.uint32(rows))
            row, entry, line = item - unit * rows, table + 8 * ENTRY * unit, 4 * (width + EXTRA)
            at, step, drain = partial + item * line, units * rows * line, np.float32(-np.inf)
            if sink != 0:
                drain = load(sink + load_i64(entry + 56) + size * (row // m)) * np.float32(LOG2_E)
            top = drain
            for part in range(parts):
                top = max_f32(top, load_f32(at + part * step + 4 * width))
            base = shifted(top)
            total = ex2(drain - base)
            for part in range(parts):
                total += ex2(load_f32(at + part * step + 4 * width) - base) * load_f32(at + part * step + 4 * width + 4)
            by, to = inverse(total), y + load_i64(entry + 32) + place(row, m, y_head, y_step)
            for column in range(lane, width, 32):
                out = np.float32(0)
                for part in range(parts):
                    out += ex2(load_f32(at + part * step + 4 * width) - base) * load_f32(at + part * step + 4 * column)
                store(to + size * column, out * by)

    return combine_parts
