"""The kernel that reads memory, and nothing else."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.huge_pages import LINE
from bolt_numba.kernels.cpu.language.lang import BYTES, prefetch, splat, split, vload, vstore
from bolt_numba.kernels.jit import I64, PTR, native

STREAMS = 4
"""Vectors that are read in a round, and added up apart."""
AHEAD = 16 << 10
"""Bytes between what is read and what is fetched for later; two cores gain a sixth by it."""


@native(x=PTR, y=PTR, n=I64, extents=lambda a: {"x": STREAMS * BYTES * a.n, "y": BYTES * a.threads})
def read_all(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Reads x and adds it up.  x: f32[n, 4, LANES]; y: f32[threads, LANES]."""
    x = p.x
    lo, hi = split(p.n, tid, nthreads)
    a, b, c, d = splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0))
    for i in range(lo, hi):
        at = x + STREAMS * BYTES * i
        for line in range(0, STREAMS * BYTES, LINE):
            prefetch(at + AHEAD + line)
        a = a + vload(at)
        b = b + vload(at + BYTES)
        c = c + vload(at + 2 * BYTES)
        d = d + vload(at + 3 * BYTES)
    vstore(p.y + tid * BYTES, a + b + (c + d))
