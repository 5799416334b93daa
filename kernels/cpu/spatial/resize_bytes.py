"""Linear and cubic Resize from bytes to bytes, channels last: lines are blended in cache as f32."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8, Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    fma,
    load_f32,
    load_i64,
    pack_i8,
    pack_u8,
    splat,
    split,
    to_f32,
    vload,
    vstore,
    vstore_u8_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.rows_of_bytes import NUMBERS, OPERANDS, SCALES, code_of, loads, name_of
from bolt_numba.kernels.extents import Reach, ends, offsets
from bolt_numba.kernels.geometry.resample import is_inside, is_untouched, plans_of, useful
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, Operands, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.resize import Resize

NOTHING = np.float32(0)


def _seen(a: Any) -> dict[str, Reach]:
    width, taps, rows = a.size * a.c, a.out * a.taps, a.outer * a.high
    low, end = ends(offsets(a.lines, width))
    return {
        "x": (low, end + (a.outer - 1) * a.tall * width) if rows else 0,
        "y": (rows * a.out - 1) * a.pitch + a.c if rows else 0,
        "index": 8 * taps,
        "weights": 4 * taps,
        "lines": 8 * a.high * a.line_taps,
        "line_weights": 4 * a.high * a.line_taps,
        "room": a.threads * a.room_step,
        **NUMBERS,
    }


@inline
def blend_line(load_row, load_part, x, lines, weights, taps, room, width):
    """A line of ``width`` f32 from lines of bytes."""
    for k in range(0, width, LANES):
        j, a = (k if width < LANES else min(k, width - LANES)), splat(NOTHING)
        for t in range(taps):
            at = x + load_i64(lines + 8 * t) + j
            v = load_row(at) if width >= LANES else load_part(at, width)
            a = fma(splat(load_f32(weights + 4 * t)), to_f32(v), a)
        vstore(room + 4 * j, a)


@inline
def blend_pixels(room, index, weights, taps, line, out, c):
    """``out`` pixels of f32 from a line; the last vector of one is overwritten by the next."""
    for i in range(out):
        at, w, y = index + 8 * taps * i, weights + 4 * taps * i, line + 4 * c * i
        for j in range(0, 4 * c, BYTES):
            a = splat(NOTHING)
            for t in range(taps):
                a = fma(splat(load_f32(w + 4 * t)), vload(room + load_i64(at + 8 * t) + j), a)
            vstore(y + j, a)


@cache
def resize_bytes(x_signed: bool, y_signed: bool) -> Native:
    """[outer, tall, size, c] to [outer, high, out, c]: lines, then pixels are blended; then they become bytes.

    room: for each thread a line of x and one of y, f32, and a vector behind each.
    """
    load_one, load_row, load_part = loads(x_signed)
    load_zero, code, pack = loads(y_signed)[0], code_of(y_signed), pack_i8 if y_signed else pack_u8

    @inline
    def store_codes(y, line, n, factor, less, zero):
        j = 0
        while j + 4 * LANES <= n:
            at = line + 4 * j
            a, b = code(fma(vload(at), factor, less), zero), code(fma(vload(at + BYTES), factor, less), zero)
            c = code(fma(vload(at + 2 * BYTES), factor, less), zero)
            vstore(y + j, pack(a, b, c, code(fma(vload(at + 3 * BYTES), factor, less), zero)))
            j += 4 * LANES
        while j < n:
            vstore_u8_n(y + j, code(fma(vload(line + 4 * j), factor, less), zero), n - j)
            j += LANES

    def body(p, tid, nthreads):
        high, out, taps, c, width = p.high, p.out, p.taps, p.c, p.size * p.c
        ratio = load_f32(p.x_scale) / load_f32(p.y_scale)
        factor, less = splat(ratio), splat(-ratio * np.float32(load_one(p.x_zero)))
        zero, room = splat(np.int32(load_zero(p.y_zero))), p.room + p.room_step * tid
        made = room + 4 * width + BYTES
        lo, hi = split(p.outer * high, tid, nthreads)
        for line in range(lo, hi):
            o = line // high
            at, x, y = (line - o * high) * p.line_taps, p.x + o * p.tall * width, p.y + p.pitch * out * line
            if p.line_taps == 2:
                blend_line(load_row, load_part, x, p.lines + 8 * at, p.line_weights + 4 * at, 2, room, width)
            else:
                blend_line(load_row, load_part, x, p.lines + 8 * at, p.line_weights + 4 * at, p.line_taps, room, width)
            if taps == 2:
                blend_pixels(room, p.index, p.weights, 2, made, out, c)
            else:
                blend_pixels(room, p.index, p.weights, taps, made, out, c)
            if p.pitch == c:
                store_codes(y, made, out * c, factor, less, zero)
            else:
                for i in range(out):
                    store_codes(y + p.pitch * i, made + 4 * c * i, c, factor, less, zero)

    body.__name__ = name_of("resize", x_signed, y_signed)
    pointers = dict.fromkeys(("index", "weights", "lines", "line_weights", "room"), PTR)
    sizes = dict.fromkeys(("outer", "tall", "high", "size", "out", "c", "taps", "line_taps", "pitch", "room_step"), I64)
    return native(fastmath=None, extents=_seen, **SCALES, **pointers, **sizes)(body)


def _blends(op: Resize, ins: Types) -> dict[int, tuple[Array, Array]] | None:
    """Index and weights of each axis, counted from the end without the channels; None where one has no kernel."""
    x = ins[0]
    plans, made = plans_of(op, Operands([TensorType(F32, x.shape), *ins[5:]])), {}
    for plan in plans:
        index, weights = useful(*op.taps(plan))
        if plan.axis >= 2:
            made[plan.axis - len(x.dims)] = index, weights
        elif not is_untouched(index, weights, plan.size):
            return None
    return made if is_inside(op, plans) else None


def _accepts(op: BetweenBytes, ins: Types) -> bool:
    """Blends of lines and pixels, channels last; nothing extrapolated."""
    x, inner = ins[0], op.op
    if not isinstance(inner, Resize) or not x.is_static or not x.size or inner.mode == "nearest":
        return False
    if inner.layout != "NHWC" or len(x.dims) not in (3, 4) or max(x.dims) > MAX_I32:
        return False
    if any(t is not None and t.known is None for t in ins[5:]):
        return False
    return _blends(inner, ins) is not None


@kernel(BetweenBytes, accepts=_accepts, rank=1)
def resize_of_bytes(op: BetweenBytes, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Linear and cubic Resize of lines and pixels."""
    x, y = ins[0], outs[0]
    if not y.size:
        return []
    outer, tall, size, c = x.dims if len(x.dims) == 4 else (x.dims[0], 1, *x.dims[1:])
    tables = {n: (np.arange(s)[:, None], np.ones((s, 1), F32)) for n, s in ((-2, tall), (-1, size))}
    tables |= _blends(tested(op.op if isinstance(op.op, Resize) else None), ins) or {}
    (lines, line_weights), (index, weights) = tables[-2], tables[-1]
    (high, line_taps), (out, taps) = lines.shape, index.shape
    step = 4 * (size + out) * c + 2 * BYTES
    args: dict[str, Argument] = {
        **OPERANDS, "pitch": Pitch(Out(0)), "index": _table(index * (4 * c)), "weights": np.ascontiguousarray(weights),
        "lines": _table(lines * (size * c)), "line_weights": np.ascontiguousarray(line_weights),
        "room": Scratch(step * context.threads), "room_step": step, "outer": outer, "tall": tall, "high": high,
        "size": size, "out": out, "c": c, "taps": taps, "line_taps": line_taps,
    }  # fmt: skip
    work = outer * high * c * (out * taps + size * line_taps)
    return [Step(resize_bytes(x.dtype == I8, y.dtype == I8), args, work >= 2 * PAYS_ELEMENTS)]


def _table(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.int64)
