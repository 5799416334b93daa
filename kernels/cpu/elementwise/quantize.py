"""QuantizeLinear and DequantizeLinear between f32 and bytes, per tensor or per axis."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8, U8, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    codes_i8,
    codes_u8,
    fma,
    lanes_below,
    load_f32,
    load_i8,
    load_u8,
    round_i32,
    select,
    splat,
    split,
    to_f32,
    to_i32,
    vload,
    vload_i8,
    vload_i8_n,
    vload_n,
    vload_u8,
    vload_u8_n,
    vmax,
    vmin,
    vround,
    vstore,
    vstore_n,
    vstore_u8,
    vstore_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Extents, Numbers, Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.arrays.quantize import Conversion, DequantizeLinear, QuantizeLinear
from bolt_numba.ops.registry import normalise_axis

ROW_ELEMENTS = 4096
"""Elements of a row when there is one scale."""
FUSED = target().has_fma
LEAST_SCALE, MOST_SCALE = np.float32(2.0**-60), np.float32(2.0**60)
"""Scales that are divided by with multiply-adds."""
EXACT = frozenset({"contract", "nsz"})
"""No reciprocals: x / scale decides which way a half is rounded."""

_FIELDS = dict.fromkeys(("x", "y", "scale", "zero"), PTR) | dict.fromkeys(("size", "rows", "n", "scales", "along"), I64)
"""``size`` elements in rows of ``n``; row r has scale and zero point r % scales, or its elements each their own
(``along``)."""


def _converted(x: int, y: int) -> Extents:
    """Extents of kernels from elements of ``x`` bytes to elements of ``y`` bytes."""

    def reach(a: Numbers) -> dict[str, Reach]:
        scales = a.n if a.along else min(a.scales, a.rows)
        return {"x": x * a.size, "y": y * a.size, "scale": 4 * scales, "zero": scales}

    return reach


@inline
def store_bytes(to, v, low, high, m):
    """Store m whole numbers, limited."""
    bounded = to_i32(vmin(vmax(v, splat(np.float32(low))), splat(np.float32(high))))
    if m == LANES:
        vstore_u8(to, bounded)
    else:
        vstore_u8_n(to, bounded, m)


@inline
def quotient(x, scale, inverse):
    """The quotient as division rounds it, but where it lies within 2 ** -22 places of the middle between two.

    inverse: 1 / scale.  Nothing on the way may be infinite, or too small for a normal number.  A half is met exactly.
    """
    made = x * inverse
    return fma(fma(-made, scale, x), inverse, made)


@inline
def levels(at, least, most, scale, inverse):
    """Limits are whole, so what is beyond them may be cut before it is divided; of NaN the least is taken."""
    return round_i32(quotient(vmin(vmax(vload(at), least), most), scale, inverse))


def in_fours(low: float, high: float, pack: Any) -> Inline:
    """Helper that quantises four vectors at once; the number of elements that it did, of ``count``."""

    @inline
    def run(x, y, count, scale, zero):
        i, inverse, point = 0, splat(np.float32(1)) / scale, to_i32(zero)
        least, most = (splat(np.float32(low)) - zero) * scale, (splat(np.float32(high)) - zero) * scale
        while i + 4 * LANES <= count:
            a = levels(x + 4 * i, least, most, scale, inverse)
            b = levels(x + 4 * i + BYTES, least, most, scale, inverse)
            c = levels(x + 4 * i + 2 * BYTES, least, most, scale, inverse)
            d = levels(x + 4 * i + 3 * BYTES, least, most, scale, inverse)
            vstore(y + i, pack(a, b, c, d, point))
            i += 4 * LANES
        return i

    return run


@cache
def quantize_bytes(signed: bool) -> Native:
    """f32 to bytes; kernel for one signedness of the result."""
    load_one, load_row = (load_i8, vload_i8_n) if signed else (load_u8, vload_u8_n)
    low, high = (-128.0, 127.0) if signed else (0.0, 255.0)
    whole = in_fours(low, high, codes_i8 if signed else codes_u8)

    def body(p, tid, nthreads):
        lo, hi = split(p.rows, tid, nthreads)
        for r in range(lo, hi):
            start, k = r * p.n, r % p.scales
            count = min(p.n, p.size - start)
            one, done = load_f32(p.scale + 4 * k), 0
            scale, zero = splat(one), splat(np.float32(load_one(p.zero + k)))
            if FUSED and not p.along and LEAST_SCALE < one < MOST_SCALE:
                done = whole(p.x + 4 * start, p.y + start, count, scale, zero)
            for i in range(done, count, LANES):
                m = min(count - i, LANES)
                if p.along:
                    scale = select(lanes_below(m), vload_n(p.scale + 4 * i, m), splat(np.float32(1)))
                    zero = to_f32(load_row(p.zero + i, m))
                at = p.x + 4 * (start + i)
                x = vload(at) if m == LANES else vload_n(at, m)
                store_bytes(p.y + start + i, vround(x / scale) + zero, low, high, m)

    body.__name__ = f"quantize_{'i8' if signed else 'u8'}"
    return native(fastmath=EXACT, extents=_converted(4, 1), **_FIELDS)(body)


@cache
def dequantize_bytes(signed: bool) -> Native:
    """Bytes to f32."""
    load_one, load_row, load_whole = (load_i8, vload_i8_n, vload_i8) if signed else (load_u8, vload_u8_n, vload_u8)

    def body(p, tid, nthreads):
        lo, hi = split(p.rows, tid, nthreads)
        for r in range(lo, hi):
            start, k = r * p.n, r % p.scales
            count = min(p.n, p.size - start)
            scale, zero = splat(load_f32(p.scale + 4 * k)), splat(np.float32(load_one(p.zero + k)))
            whole = 0 if p.along else count // LANES * LANES
            for i in range(0, whole, LANES):
                vstore(p.y + 4 * (start + i), (to_f32(load_whole(p.x + start + i)) - zero) * scale)
            for i in range(whole, count, LANES):
                m = min(count - i, LANES)
                if p.along:
                    scale, zero = vload_n(p.scale + 4 * i, m), to_f32(load_row(p.zero + i, m))
                vstore_n(p.y + 4 * (start + i), (to_f32(load_row(p.x + start + i, m)) - zero) * scale, m)

    body.__name__ = f"dequantize_{'i8' if signed else 'u8'}"
    return native(fastmath=EXACT, extents=_converted(1, 4), **_FIELDS)(body)


def _rows(op: Conversion, x: TensorType, scale: TensorType) -> dict[str, Argument]:
    """Rows and scales of `_FIELDS`."""
    if scale.size == 1:
        return {"size": x.size, "rows": -(-x.size // ROW_ELEMENTS), "n": ROW_ELEMENTS, "scales": 1, "along": 0}
    axis = normalise_axis(op, op.axis, len(x.dims))
    inner = math.prod(x.dims[axis + 1 :])
    if inner == 1:
        return {"size": x.size, "rows": x.size // x.dims[axis], "n": x.dims[axis], "scales": 1, "along": 1}
    return {"size": x.size, "rows": x.size // inner, "n": inner, "scales": x.dims[axis], "along": 0}


def _steps(program: Native, op: Conversion, ins: Types) -> list[Step]:
    x, scale, zero = ins[0], ins[1], (*ins, None)[2]
    args: dict[str, Argument] = {
        "x": In(0),
        "y": Out(0),
        "scale": In(1),
        "zero": np.zeros(scale.size, np.uint8) if zero is None else In(2),
        **_rows(op, x, scale),
    }
    return [Step(program, args, x.size >= 4 * PAYS_ELEMENTS)] if x.size else []


def _has_plain_scale(op: Conversion, ins: Types) -> bool:
    """One f32 scale, or one for each index of the axis."""
    x, scale = ins[0], ins[1]
    if scale.dtype != F32 or not (x.is_static and scale.is_static):
        return False
    return scale.size == 1 or len(scale.dims) == 1


def _quantizes(op: QuantizeLinear, ins: Types) -> bool:
    x, zero = ins[0], ins[2] if len(ins) > 2 else None
    target = zero.dtype if zero is not None else op.output_dtype or U8
    return x.dtype == F32 and target in (U8, I8) and _has_plain_scale(op, ins)


@kernel(QuantizeLinear, accepts=_quantizes)
def quantize(op: QuantizeLinear, ins: Types, outs: Outs, context: Context) -> list[Step]:
    return _steps(quantize_bytes(outs[0].dtype == I8), op, ins)


def _dequantizes(op: DequantizeLinear, ins: Types) -> bool:
    x = ins[0]
    return x.dtype in (U8, I8) and op.output_dtype in (None, F32) and _has_plain_scale(op, ins)


@kernel(DequantizeLinear, accepts=_dequantizes)
def dequantize(op: DequantizeLinear, ins: Types, outs: Outs, context: Context) -> list[Step]:
    x = ins[0]
    return _steps(dequantize_bytes(x.dtype == I8), op, ins)
