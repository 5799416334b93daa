"""QuantizeRows: each row as bytes of its own range; both passes over a row follow each other, so it stays in cache."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.selects import either
from bolt_numba.kernels.cpu.elementwise.quantize import EXACT
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    all_lanes,
    ceil_div,
    fma,
    lane,
    pack_u8,
    reduce_add,
    reduce_max,
    reduce_min,
    round_i32,
    select,
    splat,
    split,
    store_f32,
    store_u8,
    vload,
    vload_n,
    vmax,
    vmin,
    vstore,
    vstore_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.arrays.quantize import QuantizeRows

LOW, HIGH = np.float32(-128), np.float32(127)


@inline
def level(x, by, zero):
    """The levels of numbers as i32, which may lie a little beyond a byte."""
    return round_i32(x * by) + zero


@native(
    fastmath=EXACT, x=PTR, y=PTR, scale=PTR, zero=PTR, rows=I64, size=I64, parts=I64,
    extents=lambda a: {"x": 4 * a.rows * a.size, "y": a.rows * a.size, "scale": 4 * a.rows, "zero": a.rows},
)  # fmt: skip
def quantize_rows(p, tid, nthreads):
    """Bytes of rows of ``size`` numbers, their scales and zero points.

    parts: that a row's bytes are made in; each finds the range of the row anew, so none waits for another.
    x: f32 [rows][size] · y: bytes [rows][size] · scale: f32 [rows] · zero: bytes [rows].
    """
    size, nothing = p.size, splat(np.float32(0))
    first, last = split(p.rows * p.parts, tid, nthreads)
    for unit in range(first, last):
        row, lo, hi = unit, 0, ceil_div(size, 4 * LANES)
        if p.parts > 1:  # a row may be short, and a division takes long
            row = unit // p.parts
            lo, hi = split(hi, unit % p.parts, p.parts)
        x, y = p.x + 4 * size * row, p.y + size * row
        low, high, broken = nothing, nothing, nothing
        low2, high2, broken2, i = nothing, nothing, nothing, 0
        while i + 2 * LANES <= size:
            v, u = vload(x + 4 * i), vload(x + 4 * (i + LANES))
            low, high, low2, high2 = vmin(v, low), vmax(v, high), vmin(u, low2), vmax(u, high2)
            broken, broken2 = fma(v, nothing, broken), fma(u, nothing, broken2)
            i += 2 * LANES
        while i < size:
            v = vload_n(x + 4 * i, size - i)  # the zeros of a tail are in the range anyway
            low, high, broken = vmin(v, low), vmax(v, high), fma(v, nothing, broken)
            i += LANES
        least, most = splat(reduce_min(vmin(low, low2))), splat(reduce_max(vmax(high, high2)))
        by = splat(np.float32(127.5)) / (most * np.float32(0.5) - least * np.float32(0.5))
        if all_lanes((by > nothing) & (by < splat(np.float32(np.inf)))):
            least, most = least * by, most * by
            place = select(least + most > splat(np.float32(1)), splat(LOW) - least, splat(HIGH) - most)
            place = vmax(vmin(place, splat(HIGH)), splat(LOW))
        else:
            by, place = splat(np.float32(1)), splat(LOW)
        add = round_i32(place) + splat(np.int32(128))
        i, end = lo * 4 * LANES, min(hi * 4 * LANES, size)
        while i + 4 * LANES <= end:
            at = x + 4 * i
            a, b = level(vload(at), by, add), level(vload(at + BYTES), by, add)
            c, d = level(vload(at + 2 * BYTES), by, add), level(vload(at + 3 * BYTES), by, add)
            vstore(y + i, pack_u8(a, b, c, d))
            i += 4 * LANES
        while i < end:
            v = level(vload_n(x + 4 * i, end - i), by, add)
            vstore_u8_n(y + i, vmin(vmax(v, splat(np.int32(0))), splat(np.int32(255))), end - i)
            i += LANES
        if lo == 0:
            store_f32(p.scale + 4 * row, np.float32(1) / lane(by, 0) + reduce_add(broken + broken2))
            store_u8(p.zero + row, np.uint8(lane(add, 0)))


@kernel(QuantizeRows, accepts=lambda op, ins: ins[0] is not None and ins[0].is_static)
def quantize_by_rows(op: QuantizeRows, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Threads share rows, or parts of few ones."""
    x = ins[0]
    rows = outs[1].size
    parallel = context.threads > 1 and x.size >= 4 * PAYS_ELEMENTS
    args: dict[str, Argument] = {
        "x": In(0), "y": Out(0), "scale": Out(1), "zero": Out(2), "rows": rows, "size": x.size // max(rows, 1),
        "parts": either(parallel & (rows < 4 * context.threads), context.threads, 1),
    }  # fmt: skip
    return [Step(quantize_rows, args, parallel)]
