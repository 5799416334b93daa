"""Histograms of f32: parts of the elements are counted in tables of their own, which are then summed."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    bits_of,
    f32_of_bits,
    fill_bytes,
    load_f32,
    load_i32,
    splat,
    split,
    store_i32,
    to_i32,
    vload,
    vload_i32,
    vload_n,
    vmax,
    vmin,
    vstore,
)
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.histogram import HALF, LEAST_EXPONENT, Histogram

BINS = 2 * HALF
TABLE = 4 * BINS
"""Bytes of a table."""
ROOM = 2 * TABLE + BYTES
"""Workspace of a part: a vector of places, and two tables, so that neighbours in one bin do not wait for each other."""
PART = 1 << 16
"""Elements from which a further part pays: it costs two tables to clear and to add."""
PARTS = 16
LEAST_NUMBER = 2.0 ** (LEAST_EXPONENT - 1)
"""The smallest number whose exponent is the least one."""
SCALE_BITS = 264
"""Less the exponent field of the greatest magnitude: that of ``HALF / bound``."""
FIELD = 23
"""Bits below the exponent field."""


@inline
def scale_of(low, high):
    """``HALF / bound``, as a vector."""
    greatest = vmax(vmax(splat(high), -splat(low)), splat(LEAST_NUMBER))
    return f32_of_bits((SCALE_BITS - (bits_of(greatest) >> FIELD & 255)) << FIELD)


@native(
    x=PTR,
    low=PTR,
    high=PTR,
    room=PTR,
    n=I64,
    parts=I64,
    extents=lambda a: {"x": 4 * a.n, "low": 4, "high": 4, "room": ROOM * a.parts},
)
def count_parts(p, tid, nthreads):
    """x: f32 [n] · low, high: f32 [1] · room: [parts] of `ROOM` bytes, whose tables are i32 [2][BINS]."""
    n, parts = p.n, p.parts
    scale = scale_of(load_f32(p.low), load_f32(p.high))
    half, top, zero = splat(1.0 * HALF), splat(BINS - 1.0), splat(0.0)
    lo, hi = split(parts, tid, nthreads)
    for part in range(lo, hi):
        tables = p.room + ROOM * part
        places = tables + 2 * TABLE
        fill_bytes(tables, 0, 2 * TABLE)
        first, last = split(n, part, parts)
        for i in range(first, last, LANES):
            left = last - i
            v = vload(p.x + 4 * i) if left >= LANES else vload_n(p.x + 4 * i, left)
            vstore(places, to_i32(vmin(vmax(v * scale + half, zero), top)))
            for j in range(min(left, LANES)):
                at = tables + TABLE * (j & 1) + 4 * load_i32(places + 4 * j)
                store_i32(at, load_i32(at) + 1)


@native(room=PTR, counts=PTR, parts=I64, extents=lambda a: {"room": ROOM * a.parts, "counts": TABLE})
def add_parts(p, tid, nthreads):
    """room: as `count_parts` fills it, [parts] · counts: i32 [BINS]."""
    lo, hi = split(BINS // LANES, tid, nthreads)
    for i in range(lo, hi):
        at = p.room + i * BYTES
        total = vload_i32(at) + vload_i32(at + TABLE)
        for part in range(1, p.parts):
            total = total + vload_i32(at + ROOM * part) + vload_i32(at + ROOM * part + TABLE)
        vstore(p.counts + i * BYTES, total)


def _is_static(op: Histogram, ins: Types) -> bool:
    return ins[0].is_static


@kernel(Histogram, accepts=_is_static)
def histogram(op: Histogram, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tables of parts, then their sum."""
    n = ins[0].size
    parts = min(PARTS, max(1, n // PART))
    room = Scratch(ROOM * parts)
    args: dict[str, Argument] = {"x": In(0), "low": In(1), "high": In(2), "room": room, "n": n, "parts": parts}
    return [
        Step(count_parts, args, parts > 1),
        Step(add_parts, {"room": room, "counts": Out(0), "parts": parts}, parallel=False),
    ]
