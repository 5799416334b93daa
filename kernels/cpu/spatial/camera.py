"""YuvToRgba: pictures of half as many colours as light; a pixel of the result is one number of 32 bits."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    even_lanes,
    interleave_low,
    odd_lanes,
    splat,
    split,
    vload_u8,
    vload_u8_n,
    vmax,
    vmin,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.data.camera import BLUE_U, GREEN_U, GREEN_V, LUMA, RED_V, YUV_BITS, YuvToRgba

HALF = np.int32(1 << (YUV_BITS - 1))
OPAQUE = np.int32(-1 << 24)


@inline
def level(total):
    """Without the bits behind the point, limited."""
    return vmin(vmax(total >> YUV_BITS, splat(np.int32(0))), splat(np.int32(255)))


@inline
def colours(light, pairs, swapped):
    """Pixels as red, green, blue and 255 from the lowest byte on; pairs: U and V in turns, or V and U."""
    light = vmax(light - 16, splat(np.int32(0))) * LUMA + HALF
    pairs = pairs - 128
    even, odd = even_lanes(pairs, pairs), odd_lanes(pairs, pairs)
    first, second = interleave_low(even, even), interleave_low(odd, odd)
    u, v = (second, first) if swapped else (first, second)
    green = level(light + v * GREEN_V + u * GREEN_U)
    return level(light + v * RED_V) | (green << 8) | (level(light + u * BLUE_U) << 16) | OPAQUE


def _reached(a: Numbers) -> dict[str, Reach]:
    return {"x": a.pictures * a.high // 2 * 3 * a.wide, "y": 4 * a.pictures * a.high * a.wide}


@native(fastmath=None, extents=_reached, x=PTR, y=PTR, **dict.fromkeys(("pictures", "high", "wide", "swapped"), I64))
def yuv_lines(p, tid, nthreads):
    """[pictures, 3 high / 2, wide] to [pictures, high, wide] pixels of four bytes."""
    high, wide = p.high, p.wide
    lo, hi = split(p.pictures * high, tid, nthreads)
    for at in range(lo, hi):
        picture = at // high
        row = at - picture * high
        x, y = p.x + picture * (high // 2 * 3) * wide, p.y + 4 * at * wide
        line, pairs = x + row * wide, x + (high + row // 2) * wide
        for j in range(0, wide, LANES):
            left = wide - j
            if left >= LANES:
                vstore(y + 4 * j, colours(vload_u8(line + j), vload_u8(pairs + j), p.swapped))
            else:
                made = colours(vload_u8_n(line + j, left), vload_u8_n(pairs + j, left), p.swapped)
                vstore_n(y + 4 * j, made, left)


def _accepts(op: YuvToRgba, ins: Types) -> bool:
    return ins[0].is_static


@kernel(YuvToRgba, accepts=_accepts)
def yuv(op: YuvToRgba, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Pictures of any size."""
    *lead, high, wide, _ = outs[0].dims
    pictures = lead[0] if lead else 1
    args = {"pictures": pictures, "high": high, "wide": wide, "swapped": int(op.format == "NV21")}
    return [Step(yuv_lines, {"x": In(0), "y": Out(0), **args}, outs[0].size * 2 >= PAYS_BYTES)]
