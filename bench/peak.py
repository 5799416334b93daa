"""The arithmetic peak of one core, measured: independent fused multiply-adds on registers, nothing else."""

from __future__ import annotations

import time

import numpy as np

from bolt_numba.kernels.cpu.lang import LANES, fma, splat, tile_get, tile_set, tile_store, tile_zeros
from bolt_numba.kernels.jit import I64, PTR, native

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
    record = fma_peak.record(y=out, n=20_000)
    flop = 20_000 * _CHAINS * LANES * 2
    fma_peak.call(record)
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        fma_peak.call(record)
        best = min(best, time.perf_counter() - start)
    return flop / best / 1e9
