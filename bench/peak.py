"""The arithmetic peak of one core, measured: independent fused multiply-adds on registers, nothing else.

    python -m bench.peak

prints those of f32, and of products of bfloat16 and of bytes, and what one and two cores read from memory.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from bolt_numba.devices.bandwidth import read_gbs
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    fma,
    rows_strided,
    splat,
    tile_dot_rows_bf16,
    tile_dot_rows_bytes,
    tile_get,
    tile_set,
    tile_store,
    tile_zeros,
)  # fmt: skip
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.types import Array

_CHAINS = 12


@native(y=PTR, n=I64)
def fma_peak(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """``n`` rounds of 12 independent multiply-adds of one vector each; y: 12 vectors, so that none is dropped."""
    t = tile_zeros(12, 1)
    a, b = splat(np.float32(0.999)), splat(np.float32(0.001))
    for _ in range(p.n):
        t = tile_set(t, 0, 0, fma(tile_get(t, 0, 0), a, b))
        t = tile_set(t, 1, 0, fma(tile_get(t, 1, 0), a, b))
        t = tile_set(t, 2, 0, fma(tile_get(t, 2, 0), a, b))
        t = tile_set(t, 3, 0, fma(tile_get(t, 3, 0), a, b))
        t = tile_set(t, 4, 0, fma(tile_get(t, 4, 0), a, b))
        t = tile_set(t, 5, 0, fma(tile_get(t, 5, 0), a, b))
        t = tile_set(t, 6, 0, fma(tile_get(t, 6, 0), a, b))
        t = tile_set(t, 7, 0, fma(tile_get(t, 7, 0), a, b))
        t = tile_set(t, 8, 0, fma(tile_get(t, 8, 0), a, b))
        t = tile_set(t, 9, 0, fma(tile_get(t, 9, 0), a, b))
        t = tile_set(t, 10, 0, fma(tile_get(t, 10, 0), a, b))
        t = tile_set(t, 11, 0, fma(tile_get(t, 11, 0), a, b))
    tile_store(t, p.y, 4 * LANES)


def peak_gflops(seconds: float = 0.3) -> float:
    """GFLOP/s of one core: the best of many short runs."""
    out = np.zeros(_CHAINS * LANES, np.float32)
    return 20_000 * _CHAINS * LANES * 2 / _shortest(fma_peak, fma_peak.record(y=out, n=20_000), seconds) / 1e9


@native(x=PTR, y=PTR, n=I64)
def dot_peak(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """``n`` rounds of 24 independent vectors of dot products of pairs of bfloat16, from the first-level cache.

    x: 2 vectors; y: 24 vectors.
    """
    t, rows = tile_zeros(12, 2), rows_strided(12, p.x, 0)
    for _ in range(p.n):
        t = tile_dot_rows_bf16(t, rows, 0, p.x)
    tile_store(t, p.y, 8 * LANES)


def bf16_peak_gflops(seconds: float = 0.3) -> float:
    """As `peak_gflops`, for products of bfloat16 summed in f32."""
    pairs, out = np.zeros(2 * LANES, np.float32), np.zeros(24 * LANES, np.float32)
    record = dot_peak.record(x=pairs, y=out, n=20_000)
    return 20_000 * 24 * LANES * 4 / _shortest(dot_peak, record, seconds) / 1e9


@native(x=PTR, y=PTR, n=I64)
def byte_peak(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """`dot_peak` of fours of bytes.  x: 2 vectors; y: 24 vectors."""
    t, rows = tile_zeros(12, 2), rows_strided(12, p.x, 0)
    for _ in range(p.n):
        t = tile_dot_rows_bytes(t, rows, 0, 0, p.x)
    tile_store(t, p.y, 8 * LANES)


def byte_peak_gops(seconds: float = 0.3) -> float:
    """As `peak_gflops`, for products of bytes summed in i32."""
    fours, out = np.zeros(2 * LANES, np.int32), np.zeros(24 * LANES, np.int32)
    record = byte_peak.record(x=fours, y=out, n=20_000)
    return 20_000 * 24 * LANES * 8 / _shortest(byte_peak, record, seconds) / 1e9


def _shortest(kernel: Native, record: Array, seconds: float) -> float:
    kernel.call(record)
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        kernel.call(record)
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    sys.stdout.write(f"f32 {peak_gflops():.1f} GFLOP/s, bf16 {bf16_peak_gflops():.1f} GFLOP/s, ")
    sys.stdout.write(f"bytes {byte_peak_gops():.1f} GOP/s, ")
    sys.stdout.write(f"read {read_gbs(1):.1f} GB/s by one core, {read_gbs(2):.1f} by two\n")
