"""DynamicQuantizeLinear: numbers as bytes of their own range, in two passes that threads share."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.selects import either
from bolt_numba.kernels.cpu.elementwise.quantize import EXACT, FUSED, LEAST_SCALE, MOST_SCALE, in_fours
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    any_lane,
    ceil_div,
    codes_u8,
    lane,
    load_f32,
    reduce_max,
    reduce_min,
    splat,
    split,
    store_f32,
    store_u8,
    to_i32,
    vload,
    vload_n,
    vmax,
    vmin,
    vround,
    vstore_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.jit import I64, PTR, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.quantize import DynamicQuantizeLinear

ROW_ELEMENTS = 4096
"""Elements that a thread takes at a time, at least."""


@native(
    x=PTR, ranges=PTR, size=I64, parts=I64, extents=lambda a: {"x": 4 * a.size, "ranges": 8 * a.parts},
)  # fmt: skip
def range_of_parts(p, tid, nthreads):
    """Least and greatest number of each of ``parts`` of x, and 0; NaN twice where there is one.  ranges: [parts][2]."""
    rows = ceil_div(p.size, LANES)
    first, last = split(p.parts, tid, nthreads)
    for part in range(first, last):
        lo, hi = split(rows, part, p.parts)
        begin, end = lo * LANES, min(hi * LANES, p.size)
        low, high = splat(np.float32(0)), splat(np.float32(0))
        low2, high2, odd = low, high, low != low
        i = begin
        while i + 2 * LANES <= end:
            v, u = vload(p.x + 4 * i), vload(p.x + 4 * (i + LANES))
            low, high, low2, high2 = vmin(v, low), vmax(v, high), vmin(u, low2), vmax(u, high2)
            odd = odd | (v != v) | (u != u)
            i += 2 * LANES
        while i < end:
            v = vload_n(p.x + 4 * i, end - i)  # the zeros of a tail are in the range anyway
            low, high, odd = vmin(v, low), vmax(v, high), odd | (v != v)
            i += LANES
        found = np.float32(np.nan) if any_lane(odd) else np.float32(0)
        store_f32(p.ranges + 8 * part, reduce_min(vmin(low, low2)) + found)
        store_f32(p.ranges + 8 * part + 4, reduce_max(vmax(high, high2)) + found)


_in_fours = in_fours(0.0, 255.0, codes_u8)


@native(
    fastmath=EXACT, x=PTR, ranges=PTR, parts=I64, y=PTR, scale=PTR, zero=PTR, size=I64,
    extents=lambda a: {"x": 4 * a.size, "ranges": 8 * a.parts, "y": a.size, "scale": 4, "zero": 1},
)  # fmt: skip
def quantize_by_range(p, tid, nthreads):
    """Bytes of x, and their scale and zero point.  Source: ONNX DynamicQuantizeLinear-11.

    x: f32 [size] · ranges: f32 [parts][2] · y: u8 [size] · scale: f32 [1] · zero: u8 [1].
    """
    low, high, odd = np.float32(0), np.float32(0), False
    for part in range(p.parts):
        least, most = load_f32(p.ranges + 8 * part), load_f32(p.ranges + 8 * part + 4)
        low, high, odd = min(low, least), max(high, most), odd or least != least
    scale = (high - low) / np.float32(255) if high > low and not odd else np.float32(1)
    zero = vround(splat(-low) / splat(scale))
    zero = vmin(vmax(zero, splat(np.float32(0))), splat(np.float32(255)))
    if odd:
        zero = splat(np.float32(0))
    rows = ceil_div(p.size, ROW_ELEMENTS)
    first, last = split(rows, tid, nthreads)
    i, end, factor = first * ROW_ELEMENTS, min(last * ROW_ELEMENTS, p.size), splat(scale)
    if FUSED and not odd and LEAST_SCALE < scale < MOST_SCALE:
        i += _in_fours(p.x + 4 * i, p.y + i, end - i, factor, zero)
    while i < end:
        level = vround(vload_n(p.x + 4 * i, end - i) / factor) + zero
        vstore_u8_n(p.y + i, to_i32(vmin(vmax(level, splat(np.float32(0))), splat(np.float32(255)))), end - i)
        i += LANES
    if tid == 0:
        store_f32(p.scale, scale)
        store_u8(p.zero, np.uint8(lane(to_i32(zero), 0)))


def range_steps(x: Argument, y: Argument, scale: Argument, zero: Argument, size: int, context: Context) -> list[Step]:
    """The range of ``size`` numbers, then their bytes."""
    parallel = size >= 4 * PAYS_ELEMENTS
    parts = either(parallel, context.threads, 1)
    shared: dict[str, Argument] = {"x": x, "ranges": Scratch(8 * parts), "size": size, "parts": parts}
    made = Step(range_of_parts, shared, parallel)
    return [made, Step(quantize_by_range, shared | {"y": y, "scale": scale, "zero": zero}, parallel)]


@kernel(DynamicQuantizeLinear)
def dynamic_quantize(op: DynamicQuantizeLinear, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Two passes: the range, then the bytes."""
    x = ins[0]
    return range_steps(In(0), Out(0), Out(1), Out(2), x.size, context)
