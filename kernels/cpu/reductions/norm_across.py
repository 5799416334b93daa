"""Norms across neighbouring channels (LRN) and by the p-norm of a line."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    F32,
    I64,
    LANES,
    PTR,
    any_lane,
    fma,
    inline,
    native,
    reduce_add,
    select,
    splat,
    split,
    store_f32,
    vabs,
    vload_n,
    vsqrt,
    vstore_n,
)
from bolt_numba.kernels.cpu.language.vmath import vpow
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.norm import has_image, image_dims, x_and_y
from bolt_numba.kernels.cpu.reductions.reduce import axis_form
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.layers import norm as ops


@inline
def decay(v, beta):
    """``v ** -beta``; the usual 0.75 by two square roots, whose sum of errors is 2 ulp."""
    if beta == np.float32(0.75):
        root = vsqrt(v)
        return select(v == np.inf, splat(0.0), 1.0 / (root * vsqrt(root)))  # the reciprocal root makes NaN of infinity
    return vpow(v, splat(-beta))


@native(
    x=PTR, y=PTR, outer=I64, c=I64, inner=I64, before=I64, after=I64, alpha=F32, beta=F32, bias=F32,
    extents=lambda a: x_and_y(a.outer * a.c * a.inner),
)  # fmt: skip
def response_columns(p, tid, nthreads):
    """LRN over axis 1 of ``[outer, c, inner]``, a vector of neighbouring columns at a time."""
    c, inner = p.c, p.inner
    alpha, beta, bias = splat(p.alpha), p.beta, splat(p.bias)
    first, last = split(p.outer * c, tid, nthreads)
    for row in range(first, last):
        channel = row % c
        low, high = max(channel - p.before, 0), min(channel + p.after, c - 1)
        base = p.x + 4 * (row - channel) * inner
        for i in range(0, inner, LANES):
            total = splat(0.0)
            for k in range(low, high + 1):
                v = vload_n(base + 4 * (k * inner + i), inner - i)
                total = fma(v, v, total)
            v = vload_n(p.x + 4 * (row * inner + i), inner - i)
            vstore_n(p.y + 4 * (row * inner + i), v * decay(fma(alpha, total, bias), beta), inner - i)


@native(
    x=PTR, y=PTR, padded=PTR, rows=I64, c=I64, size=I64, before=I64, alpha=F32, beta=F32, bias=F32,
    extents=lambda a: x_and_y(a.rows * a.c, padded=(a.c + a.size) * a.threads),
)  # fmt: skip
def response_pixels(p, tid, nthreads):
    """LRN along rows of ``c`` channels; each thread has a row of squares with zeros around it (c + size elements).

    x, y: f32 [rows][c] · padded: f32 [threads][c + size].
    """
    c, size = p.c, p.size
    alpha, beta, bias = splat(p.alpha), p.beta, splat(p.bias)
    squares = p.padded + 4 * (c + size) * tid
    for i in range(c + size):
        store_f32(squares + 4 * i, np.float32(0.0))
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * c, p.y + 4 * row * c
        for i in range(0, c, LANES):
            v = vload_n(x + 4 * i, c - i)
            vstore_n(squares + 4 * (p.before + i), v * v, c - i)
        for i in range(0, c, LANES):
            total = splat(0.0)
            for k in range(size):
                total = total + vload_n(squares + 4 * (i + k), c - i)
            vstore_n(y + 4 * i, vload_n(x + 4 * i, c - i) * decay(fma(alpha, total, bias), beta), c - i)


@kernel(ops.LRN, accepts=has_image)
def local_response_normalisation(op: ops.LRN, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Sums of squares over neighbouring channels."""
    n, c, spatial = tested(image_dims(op, ins))
    before = (op.size - 1) // 2
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "c": c, "before": before, "alpha": op.alpha / op.size}
    args |= {"beta": op.beta, "bias": op.bias}
    parallel = n * c * spatial > PAYS_ELEMENTS // 2
    if op.layout == "NCHW":
        args |= {"outer": n, "inner": spatial, "after": op.size - 1 - before}
        return [Step(response_columns, args, parallel & (n * c > 1))]
    args |= {"padded": Scratch(4 * (c + op.size) * context.threads), "rows": n * spatial, "size": op.size}
    return [Step(response_pixels, args, parallel & (n * spatial > 1))]


@inline
def norm_of(total, squared):
    """The norm of a sum, its inverse, and whether that is too small for a normal number: then elements are divided."""
    norm = vsqrt(total) if squared else total
    return norm, 1.0 / norm, any_lane(norm > np.float32(2.0**100))


@native(fastmath={"contract"}, x=PTR, y=PTR, outer=I64, n=I64, inner=I64, blocks=I64, squared=I64,
        extents=lambda a: x_and_y(a.outer * a.n * a.inner))  # fmt: skip
def lp_columns(p, tid, nthreads):
    """Divide by the norm over axis 1 of ``[outer, n, inner]``; 0 where it is 0."""
    n, inner, blocks, squared = p.n, p.inner, p.blocks, p.squared
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        o = item // blocks
        column = (item - o * blocks) * LANES
        width = inner - column
        at = 4 * (o * n * inner + column)
        total = splat(0.0)
        for i in range(n):
            v = vload_n(p.x + at + 4 * i * inner, width)
            total = fma(v, v, total) if squared else total + vabs(v)
        norm, inverse, is_far = norm_of(total, squared)
        for i in range(n):
            v = vload_n(p.x + at + 4 * i * inner, width)
            v = v / norm if is_far else v * inverse
            vstore_n(p.y + at + 4 * i * inner, select(norm == 0.0, splat(0.0), v), width)


@native(fastmath={"contract"}, x=PTR, y=PTR, rows=I64, n=I64, squared=I64, extents=lambda a: x_and_y(a.rows * a.n))
def lp_rows(p, tid, nthreads):
    """Divide rows by their norm; 0 where it is 0.  x, y: f32 [rows][n]."""
    n = p.n
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * n, p.y + 4 * row * n
        total = splat(0.0)
        for i in range(0, n, LANES):
            v = vload_n(x + 4 * i, n - i)
            total = fma(v, v, total) if p.squared else total + vabs(v)
        norm, inverse, is_far = norm_of(splat(reduce_add(total)), p.squared)
        for i in range(0, n, LANES):
            v = vload_n(x + 4 * i, n - i)
            v = v / norm if is_far else v * inverse
            vstore_n(y + 4 * i, select(norm == 0.0, splat(0.0), v), n - i)


def _has_axis(op: ops.LpNormalization, ins: Types) -> bool:
    return axis_form(op, ins) is not None


@kernel(ops.LpNormalization, accepts=_has_axis, inplace=(0,))
def lp_normalisation(op: ops.LpNormalization, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Two passes, along rows or columns."""
    outer, n, inner = tested(axis_form(op, ins))
    parallel = outer * n * inner > 2 * PAYS_ELEMENTS
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "n": n, "squared": int(op.p == 2)}
    if inner == 1:
        return [Step(lp_rows, {**args, "rows": outer}, parallel & (outer > 1))]
    blocks = -(-inner // LANES)
    args |= {"outer": outer, "inner": inner, "blocks": blocks}
    return [Step(lp_columns, args, parallel & (outer * blocks > 1))]
