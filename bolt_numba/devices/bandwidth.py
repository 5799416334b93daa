"""What cores read from memory: the bound of whatever goes through more weights than the caches hold."""

from __future__ import annotations

import threading
import time

import numpy as np

from bolt_numba.kernels.cpu.bandwidth import STREAMS, read_all
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES

READ_BYTES = 512 << 20
"""What is read at once: beyond every cache."""


def read_gbs(threads: int = 1, repeat: int = 7) -> float:
    """GB/s that so many cores read from memory together: the best of some rounds through `READ_BYTES`."""
    given, out = np.ones(READ_BYTES // 4, np.float32), np.zeros(threads * LANES, np.float32)
    record = read_all.record(x=given, y=out, n=READ_BYTES // (STREAMS * BYTES))
    read_all.compile()
    best = float("inf")
    for _ in range(repeat):
        workers = [threading.Thread(target=read_all.call, args=(record, i, threads)) for i in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - start)
    return READ_BYTES / best / 1e9
