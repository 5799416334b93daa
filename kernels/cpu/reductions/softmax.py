"""Softmax and its logarithm along any one axis."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    I64,
    LANES,
    PTR,
    inline,
    lane,
    lanes_below,
    native,
    reduce_add,
    reduce_max,
    select,
    splat,
    split,
    vload,
    vload_n,
    vmax,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.language.vmath import exp_negative, vlog
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.reduce import axis_form
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays import reduce as ops


@inline
def row_max(x, n):
    """Greatest of ``n`` contiguous f32; NaN is passed over, -inf for none."""
    low = splat(-math.inf)
    a, b = low, low
    i = 0
    while i + 2 * LANES <= n:
        a, b = vmax(vload(x + 4 * i), a), vmax(vload(x + 4 * i + BYTES), b)
        i += 2 * LANES
    while i < n:
        v = select(lanes_below(n - i), vload_n(x + 4 * i, n - i), low)
        a = vmax(v, a)
        i += LANES
    return reduce_max(vmax(a, b))


@inline
def exp_row(x, y, n, top):
    """``y = exp(x - top)`` for a row; the sum."""
    t = splat(top)
    a = splat(0.0)
    b = a
    i = 0
    while i + 2 * LANES <= n:
        u, v = exp_negative(vload(x + 4 * i) - t), exp_negative(vload(x + 4 * i + BYTES) - t)
        vstore(y + 4 * i, u)
        vstore(y + 4 * i + BYTES, v)
        a, b = a + u, b + v
        i += 2 * LANES
    while i < n:
        u = select(lanes_below(n - i), exp_negative(vload_n(x + 4 * i, n - i) - t), splat(0.0))
        vstore_n(y + 4 * i, u, n - i)
        a = a + u
        i += LANES
    return reduce_add(a + b)


@inline
def finite_or_zero(top):
    """The number to subtract before exp: 0 where a whole line is -inf."""
    return np.float32(0.0) if top == -math.inf else top


@inline
def scale_row(y, n, factor):
    f = splat(factor)
    i = 0
    while i + LANES <= n:
        vstore(y + 4 * i, vload(y + 4 * i) * f)
        i += LANES
    if i < n:
        vstore_n(y + 4 * i, vload_n(y + 4 * i, n - i) * f, n - i)


def _reach(a: Numbers) -> dict[str, int]:
    return dict.fromkeys(("x", "y"), 4 * a.rows * a.n)


@native(x=PTR, y=PTR, rows=I64, n=I64, extents=_reach)
def softmax_rows(p, tid, nthreads):
    """Last axis: maximum, exponentials and their sum, scaling; a row stays in the first-level cache.

    x, y: f32 [rows][n].
    """
    x, y, n = p.x, p.y, p.n
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        source, target = x + 4 * row * n, y + 4 * row * n
        scale_row(target, n, np.float32(1.0) / exp_row(source, target, n, row_max(source, n)))


@native(x=PTR, y=PTR, rows=I64, n=I64, extents=_reach)
def log_softmax_rows(p, tid, nthreads):
    """Last axis: maximum, sum of exponentials (the second pass writes nothing), difference.  x, y: f32 [rows][n]."""
    x, y, n = p.x, p.y, p.n
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        source, target = x + 4 * row * n, y + 4 * row * n
        top = splat(row_max(source, n))
        sums = splat(0.0)
        for i in range(0, n, LANES):
            v = exp_negative(vload_n(source + 4 * i, n - i) - top)
            sums = sums + select(lanes_below(n - i), v, splat(0.0))
        lost = splat(lane(vlog(splat(reduce_add(sums))), 0))
        for i in range(0, n, LANES):
            vstore_n(target + 4 * i, (vload_n(source + 4 * i, n - i) - top) - lost, n - i)


@inline
def load4(at, left):
    """Four vectors of neighbouring columns, of which ``left`` exist."""
    return (
        vload_n(at, left),
        vload_n(at + BYTES, left - LANES),
        vload_n(at + 2 * BYTES, left - 2 * LANES),
        vload_n(at + 3 * BYTES, left - 3 * LANES),
    )


@inline
def store4(at, left, a, b, c, d):
    vstore_n(at, a, left)
    vstore_n(at + BYTES, b, left - LANES)
    vstore_n(at + 2 * BYTES, c, left - 2 * LANES)
    vstore_n(at + 3 * BYTES, d, left - 3 * LANES)


@native(
    x=PTR, y=PTR, outer=I64, n=I64, inner=I64, blocks=I64, logarithm=I64,
    extents=lambda a: dict.fromkeys(("x", "y"), 4 * a.outer * a.n * a.inner),
)  # fmt: skip
def softmax_columns(p, tid, nthreads):
    """Any other axis: four vectors of neighbouring columns at a time.  x, y: f32 [outer][n][inner]."""
    x, y, n, inner, blocks, logarithm = p.x, p.y, p.n, p.inner, p.blocks, p.logarithm
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        o = item // blocks
        column = (item - o * blocks) * 4 * LANES
        left, step = inner - column, 4 * inner
        source, target = x + 4 * (o * n * inner + column), y + 4 * (o * n * inner + column)
        t0 = splat(-math.inf)
        t1, t2, t3 = t0, t0, t0
        for i in range(n):
            a, b, c, d = load4(source + i * step, left)
            t0, t1, t2, t3 = vmax(a, t0), vmax(b, t1), vmax(c, t2), vmax(d, t3)
        s0 = splat(0.0)
        s1, s2, s3 = s0, s0, s0
        for i in range(n):
            a, b, c, d = load4(source + i * step, left)
            a, b = exp_negative(a - t0), exp_negative(b - t1)
            c, d = exp_negative(c - t2), exp_negative(d - t3)
            if not logarithm:
                store4(target + i * step, left, a, b, c, d)
            s0, s1, s2, s3 = s0 + a, s1 + b, s2 + c, s3 + d
        if logarithm:
            s0, s1, s2, s3 = vlog(s0), vlog(s1), vlog(s2), vlog(s3)
            for i in range(n):
                a, b, c, d = load4(source + i * step, left)
                a, b, c, d = (a - t0) - s0, (b - t1) - s1, (c - t2) - s2, (d - t3) - s3
                store4(target + i * step, left, a, b, c, d)
        else:
            s0, s1, s2, s3 = 1.0 / s0, 1.0 / s1, 1.0 / s2, 1.0 / s3
            for i in range(n):
                a, b, c, d = load4(target + i * step, left)
                store4(target + i * step, left, a * s0, b * s1, c * s2, d * s3)


def _has_form(op: ops.Softmax | ops.LogSoftmax, ins: Types) -> bool:
    return axis_form(op, ins) is not None


@kernel(ops.Softmax, ops.LogSoftmax, accepts=_has_form, inplace=(0,))
def softmax_f32(op: ops.LogSoftmax | ops.Softmax, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rows for the last axis, columns for the others; each element is written after its last read."""
    outer, n, inner = tested(axis_form(op, ins))
    logarithm = isinstance(op, ops.LogSoftmax)
    parallel = outer * n * inner > PAYS_ELEMENTS
    if inner == 1:
        made = log_softmax_rows if logarithm else softmax_rows
        return [Step(made, {"x": In(0), "y": Out(0), "rows": outer, "n": n}, parallel & (outer > 1))]
    blocks = -(-inner // (4 * LANES))
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "outer": outer, "n": n, "inner": inner, "blocks": blocks}
    args["logarithm"] = int(logarithm)
    return [Step(softmax_columns, args, parallel & (outer * blocks > 1))]
