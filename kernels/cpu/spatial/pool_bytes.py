"""MaxPool of bytes, channels last, by whole vectors of bytes; AveragePool from bytes to bytes, by sums in 32 bits."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import I8, U8
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    load_f32,
    load_i64,
    max_i8,
    max_u8,
    pack_i8,
    pack_u8,
    splat,
    split,
    to_f32,
    vload_i32,
    vmax,
    vstore,
    vstore_u8,
    vstore_u8_n,
)
from bolt_numba.kernels.cpu.reductions.rows_of_bytes import NUMBERS, OPERANDS, SCALES, code_of, loads, name_of
from bolt_numba.kernels.cpu.spatial.pool import FIELDS, PARALLEL_LOADS, WINDOW, window_args, window_rows, windows_reach
from bolt_numba.kernels.jit import Inline, Native, inline, native
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.ops.layers.pool import AveragePool, MaxPool

MOST_TAPS = 1 << 22
"""Of a window, so that sums fit 32 bits."""


def _reduction(least: int, load: Any, greater: Any, store: Any) -> Inline:
    """Helper that reduces one window over the channels of a vector, of which n count; most windows are 3x3."""

    @inline
    def three(tap, right, n):
        return greater(greater(load(tap, n), load(tap + right, n)), load(tap + 2 * right, n))

    @inline
    def reduce(x, y, nd, nh, nw, far, down, right, n):
        if nd == 1 and nh == 3 and nw == 3:
            best = greater(greater(three(x, right, n), three(x + down, right, n)), three(x + 2 * down, right, n))
        else:
            best = splat(np.int32(least))
            for u in range(nd):
                for v in range(nh):
                    tap = x + u * far + v * down
                    for _ in range(nw):
                        best, tap = greater(best, load(tap, n)), tap + right
        store(y, best, n)

    return reduce


@inline
def load_raw(tap, n):
    return vload_i32(tap)


@inline
def store_raw(y, best, n):
    vstore(y, best)


@inline
def store_row(y, best, n):
    if n >= LANES:
        vstore_u8(y, best)
    else:
        vstore_u8_n(y, best, n)


@cache
def max_pool_bytes(signed: bool) -> Native:
    """Kernel with the arguments of `pool.window_args`.

    The last vector of a pixel's channels begins earlier where they are no multiple: some are computed twice.
    """
    _, load_row, load_part = loads(signed)

    @inline
    def load_some(tap, n):
        return load_row(tap) if n >= LANES else load_part(tap, n)

    wide = _reduction(-0x7F7F7F80 if signed else 0, load_raw, max_i8 if signed else max_u8, store_raw)
    narrow = _reduction(-128 if signed else 0, load_some, vmax, store_row)

    def body(p, tid, nthreads):
        c, far, down, right = p.c, p.far, p.down, p.right
        at, hi = split(p.rows * p.ow, tid, nthreads)
        while at < hi:
            row = at // p.ow
            first, (base, d, h) = at - row * p.ow, window_rows(p, row)
            nd, nh = load_i64(d + 8), load_i64(h + 8)
            todo = min(p.ow - first, hi - at)
            for t in range(first, first + todo):
                w = p.widths + WINDOW * t
                x, y, nw = base + load_i64(w), p.y + p.pitch * (row * p.ow + t), load_i64(w + 8)
                if c >= BYTES:
                    for k in range(0, c, BYTES):
                        i = min(k, c - BYTES)
                        wide(x + i, y + i, nd, nh, nw, far, down, right, BYTES)
                elif c >= LANES:
                    for k in range(0, c, LANES):
                        i = min(k, c - LANES)
                        narrow(x + i, y + i, nd, nh, nw, far, down, right, LANES)
                else:
                    narrow(x, y, nd, nh, nw, far, down, right, c)
            at += todo

    body.__name__ = f"max_pool_{'i8' if signed else 'u8'}"
    return native(fastmath=set(), extents=lambda a: windows_reach(a, 1), **FIELDS)(body)


def _accepts(op: MaxPool, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or x.dtype not in (U8, I8) or op.layout != "NHWC" or op.indices:
        return False
    return len(op.kernel_shape) <= 3


@kernel(MaxPool, accepts=_accepts, rank=1)
def max_pool_of_bytes(op: MaxPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """u8 and i8, 1 to 3 spatial axes, no indices."""
    x = ins[0]
    if not outs[0].size:
        return []
    parallel = outs[0].size * math.prod(op.kernel_shape) >= 4 * PARALLEL_LOADS
    return [Step(max_pool_bytes(x.dtype == I8), window_args(op, x, outs[0]), parallel)]


# ------------------------------------------------------------------------------------------------------------- means


@cache
def average_pool_bytes(x_signed: bool, y_signed: bool) -> Native:
    """Kernel with the arguments of `pool.window_args`, scales and zero points: exact sums, one factor a window."""
    load_one, load_row, load_part = loads(x_signed)
    load_zero, code, pack = loads(y_signed)[0], code_of(y_signed), pack_i8 if y_signed else pack_u8

    def body(p, tid, nthreads):
        c, far, down, right = p.c, p.far, p.down, p.right
        scale, zero_x = load_f32(p.x_scale) / load_f32(p.y_scale), np.int32(load_one(p.x_zero))
        zero = splat(np.int32(load_zero(p.y_zero)))
        lo, hi = split(p.rows * p.ow, tid, nthreads)
        for at in range(lo, hi):
            row = at // p.ow
            t, (base, d, h) = at - row * p.ow, window_rows(p, row)
            w, nd, nh = p.widths + WINDOW * t, load_i64(d + 8), load_i64(h + 8)
            nw, count = load_i64(w + 8), load_i64(d + 16) * load_i64(h + 16) * load_i64(w + 16)
            x, y = base + load_i64(w), p.y + p.pitch * at
            factor, less = splat(scale / np.float32(max(count, 1))), splat(np.int32(-zero_x * nd * nh * nw))
            for k in range(0, c, 4 * LANES):
                i = k if c < 4 * LANES else min(k, c - 4 * LANES)
                if c >= 4 * LANES:
                    a, b, e, f = less, less, less, less
                    for u in range(nd):
                        for v in range(nh):
                            tap = x + i + u * far + v * down
                            for _ in range(nw):
                                a, b = a + load_row(tap), b + load_row(tap + LANES)
                                e, f = e + load_row(tap + 2 * LANES), f + load_row(tap + 3 * LANES)
                                tap += right
                    a, b = code(to_f32(a) * factor, zero), code(to_f32(b) * factor, zero)
                    vstore(y + i, pack(a, b, code(to_f32(e) * factor, zero), code(to_f32(f) * factor, zero)))
                else:
                    for j in range(0, c, LANES):
                        left, a = c - j, less
                        for u in range(nd):
                            for v in range(nh):
                                tap = x + j + u * far + v * down
                                for _ in range(nw):
                                    a, tap = a + load_part(tap, left), tap + right
                        vstore_u8_n(y + j, code(to_f32(a) * factor, zero), left)

    body.__name__ = name_of("average_pool", x_signed, y_signed)
    return native(fastmath=None, extents=lambda a: windows_reach(a, 1) | NUMBERS, **SCALES | FIELDS)(body)


def _averages(op: BetweenBytes, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or not isinstance(op.op, AveragePool) or op.op.layout != "NHWC":
        return False
    return len(op.op.kernel_shape) <= 3 and math.prod(op.op.kernel_shape) <= MOST_TAPS


@kernel(BetweenBytes, accepts=_averages, rank=1)
def average_pool_of_bytes(op: BetweenBytes, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """AveragePool over 1 to 3 spatial axes."""
    x, y = ins[0], outs[0]
    pool = tested(op.op if isinstance(op.op, AveragePool) else None)
    if not y.size:
        return []
    parallel = y.size * math.prod(pool.kernel_shape) >= 2 * PARALLEL_LOADS
    program = average_pool_bytes(x.dtype == I8, y.dtype == I8)
    return [Step(program, window_args(pool, x, y) | OPERANDS, parallel)]
