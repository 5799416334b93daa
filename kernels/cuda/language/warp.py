"""Helpers of threads that work together: sums and maxima of a warp and of a block.

A block is one row of threads, a multiple of 32 of them.  Every thread of the warp or block calls, and every one gets
the result.  The order of a sum depends on nothing but the number of threads.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.language.lang import cuda, max_f32
from bolt_numba.kernels.declare import inline

ALL = 0xFFFFFFFF
"""Every lane of a warp."""


@inline
def add_of(a, b):  # type: ignore[no-untyped-def]
    return a + b


@inline
def max_of(a, b):  # type: ignore[no-untyped-def]
    return b if b > a else a


@functools.cache
def warp_reduction(combine: Any) -> Any:
    """``f(value)``: `combine` (a helper of two values) of all lanes of a warp; i32, i64, f32 or f64."""

    @inline
    def reduce_warp(value):  # type: ignore[no-untyped-def]
        for distance in (16, 8, 4, 2, 1):
            value = combine(value, cuda.shfl_xor_sync(ALL, value, distance))
        return value

    return reduce_warp


@functools.cache
def block_reduction(combine: Any, dtype: type[np.generic], neutral: float) -> Any:
    """``f(value)``: `combine` of all threads of a block; neutral: what changes nothing.  Two barriers."""
    reduce_warp = warp_reduction(combine)
    none = dtype(neutral)

    @inline
    def reduce_block(value):  # type: ignore[no-untyped-def]
        parts = cuda.shared.array(32, dtype)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread & 31), np.uint32(thread >> 5)
        value = reduce_warp(value)
        if lane == 0:
            parts[warp] = value
        cuda.syncthreads()
        value = none
        if lane < (cuda.blockDim.x >> 5):
            value = parts[lane]
        value = reduce_warp(value)
        cuda.syncthreads()  # the array serves again
        return value

    return reduce_block


warp_sum, warp_max = warp_reduction(add_of), warp_reduction(max_f32)
"""Of numbers; of f32, without NaN."""
block_sum, block_max = block_reduction(add_of, np.float32, 0.0), block_reduction(max_f32, np.float32, -np.inf)
block_max_i64 = block_reduction(max_of, np.int64, -(2**63))
