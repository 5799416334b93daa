"""Normalisations: along rows, over groups of channels in both layouts, with given statistics, across channels.

Variances are sums of squared differences from the mean (two passes), never differences of large sums.  Channels-last
groups are found from column sums, so that vectors run along channels whatever the size of a group.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    F32,
    I64,
    LANES,
    PTR,
    fma,
    inline,
    lane,
    lanes_below,
    load_f32,
    native,
    reduce_add,
    select,
    splat,
    split,
    store_f32,
    vabs,
    vload,
    vload_n,
    vsqrt,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.vmath import vpow
from bolt_numba.kernels.cpu.reductions.reduce import FOLDS, axis_form, fold_step
from bolt_numba.kernels.extents import Reach, box
from bolt_numba.kernels.jit import PTR_OR_0
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops import norm as ops
from bolt_numba.ops.reduce import ReduceSum
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import F32 as F32_TYPE
from bolt_numba.types import TensorType

PARALLEL = 1 << 16
"""Elements from which a second thread pays."""


# ----------------------------------------------------------------------------------------------------------- row sums


@inline
def row_sum(x, n):
    """Sum of ``n`` contiguous f32 in four accumulators."""
    a = splat(0.0)
    b, c, d = a, a, a
    i = 0
    while i + 4 * LANES <= n:
        at = x + 4 * i
        a, b = a + vload(at), b + vload(at + BYTES)
        c, d = c + vload(at + 2 * BYTES), d + vload(at + 3 * BYTES)
        i += 4 * LANES
    while i < n:
        a = a + vload_n(x + 4 * i, n - i)
        i += LANES
    return reduce_add((a + b) + (c + d))


@inline
def row_squares(x, n, centre):
    """Sum of ``(x - centre)**2`` over ``n`` contiguous f32."""
    m, a = splat(centre), splat(0.0)
    b = a
    i = 0
    while i + 2 * LANES <= n:
        u, v = vload(x + 4 * i) - m, vload(x + 4 * i + BYTES) - m
        a, b = fma(u, u, a), fma(v, v, b)
        i += 2 * LANES
    while i < n:
        u = select(lanes_below(n - i), vload_n(x + 4 * i, n - i) - m, splat(0.0))
        a = fma(u, u, a)
        i += LANES
    return reduce_add(a + b)


@inline
def inverse_root(x):
    """1 / sqrt(x) of a scalar."""
    return np.float32(1.0) / lane(vsqrt(splat(x)), 0)


# ------------------------------------------------------------------------------------ layer and RMS normalisation


def _whole(count: int, **others: int) -> dict[str, Reach]:
    """Extents of x and y of ``count`` elements and of others of theirs, all f32."""
    return {name: 4 * n for name, n in {"x": count, "y": count, **others}.items()}


@native(
    x=PTR, scale=PTR, bias=PTR_OR_0, y=PTR, mean=PTR_OR_0, inverse=PTR_OR_0, rows=I64, n=I64, epsilon=F32, centred=I64,
    extents=lambda a: _whole(a.rows * a.n, scale=a.n, bias=a.n, mean=a.rows, inverse=a.rows),
)  # fmt: skip
def normalise_rows(p, tid, nthreads):
    """Y = (x - mean) / sqrt(variance + epsilon) * scale + bias along rows of ``n``.

    bias, mean and inverse may be 0 (none).  centred: 0 takes the mean as 0 (RMS normalisation).
    """
    scale, bias, n, epsilon, count = p.scale, p.bias, p.n, p.epsilon, np.float32(p.n)
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * n, p.y + 4 * row * n
        mean = row_sum(x, n) / count if p.centred else np.float32(0.0)
        inverse = inverse_root(row_squares(x, n, mean) / count + epsilon)
        if p.mean:
            store_f32(p.mean + 4 * row, mean)
            store_f32(p.inverse + 4 * row, inverse)
        m, k = splat(mean), splat(inverse)
        i = 0
        while i + LANES <= n:
            v = (vload(x + 4 * i) - m) * k
            b = vload(bias + 4 * i) if bias else splat(0.0)
            vstore(y + 4 * i, fma(v, vload(scale + 4 * i), b))
            i += LANES
        if i < n:
            v = (vload_n(x + 4 * i, n - i) - m) * k
            b = vload_n(bias + 4 * i, n - i) if bias else splat(0.0)
            vstore_n(y + 4 * i, fma(v, vload_n(scale + 4 * i, n - i), b), n - i)


def _row_length(op: Any, ins: Types) -> int | None:
    """Elements of a normalised row when all operands are f32 of known and full length, along the same axes."""
    x = ins[0]
    if x is None or not x.is_static or not x.size or not x.dims:
        return None
    row = x.dims[normalise_axis(op, op.axis, len(x.dims)) :]
    n, k = math.prod(row), len(row)
    for t in ins[1:]:
        if t is not None and not (t.is_static and t.dtype == F32_TYPE and t.size == n == math.prod(t.dims[-k:])):
            return None
    return n if x.dtype == F32_TYPE else None


def _has_rows(op: Any, ins: Types) -> bool:
    return _row_length(op, ins) is not None


@kernel(ops.LayerNormalization, ops.RMSNormalization, accepts=_has_rows, inplace=(0,), by_types=True)
def row_normalisation(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Three passes over a row that stays in cache."""
    n, x = _row_length(op, ins), ins[0]
    assert n is not None, "accepts() has tested this"
    assert x is not None, "accepts() has tested this"
    has_bias = len(ins) > 2 and ins[2] is not None
    args: dict[str, Argument] = {"x": In(0), "scale": In(1), "bias": In(2) if has_bias else None, "y": Out(0)}
    stats = len(outs) > 1
    args |= {"mean": Out(1) if stats else None, "inverse": Out(2) if stats else None}
    args |= {"rows": x.size // n, "n": n, "epsilon": op.epsilon}
    args["centred"] = int(isinstance(op, ops.LayerNormalization))
    return [Step(normalise_rows, args, x.size > PARALLEL and x.size > n)]


# ----------------------------------------------------------------------------------- groups of channels, channels first


def _planes(a: Any) -> dict[str, Reach]:
    channels = min(a.rows, a.groups) * a.channels
    return _whole(a.rows * a.channels * a.spatial, scale=channels, bias=channels)


@native(x=PTR, scale=PTR, bias=PTR, y=PTR, rows=I64, channels=I64, groups=I64, spatial=I64, epsilon=F32,
        extents=_planes)  # fmt: skip
def normalise_planes(p, tid, nthreads):
    """Groups of an NCHW tensor: a row is the ``channels`` planes of one group; scale and bias by channel."""
    channels, spatial, groups, epsilon = p.channels, p.spatial, p.groups, p.epsilon
    n = channels * spatial
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * n, p.y + 4 * row * n
        mean = row_sum(x, n) / np.float32(n)
        inverse = inverse_root(row_squares(x, n, mean) / np.float32(n) + epsilon)
        m = splat(mean)
        for c in range(channels):
            channel = (row % groups) * channels + c
            a = splat(inverse * load_f32(p.scale + 4 * channel))
            b = splat(load_f32(p.bias + 4 * channel))
            for i in range(0, spatial, LANES):
                at = 4 * (c * spatial + i)
                vstore_n(y + at, fma(vload_n(x + at, spatial - i) - m, a, b), spatial - i)


# ------------------------------------------------------------------------------------ groups of channels, channels last


@native(x=PTR, mean=PTR, sums=PTR, n=I64, spatial=I64, c=I64, blocks=I64,
        extents=lambda a: {"x": 4 * a.n * a.spatial * a.c, "mean": 4 * a.n * a.c, "sums": 4 * a.n * a.c})  # fmt: skip
def square_columns(p, tid, nthreads):
    """``sums[n, c]``: sum over the pixels of ``(x - mean[n, c])**2`` for ``x [n, spatial, c]``."""
    spatial, c, blocks = p.spatial, p.c, p.blocks
    first, last = split(p.n * blocks, tid, nthreads)
    for item in range(first, last):
        image = item // blocks
        column = (item - image * blocks) * LANES
        left = c - column
        mean = vload_n(p.mean + 4 * (image * c + column), left)
        total = splat(0.0)
        for low in range(0, spatial, 128):
            part = splat(0.0)
            for i in range(low, min(low + 128, spatial)):
                v = vload_n(p.x + 4 * ((image * spatial + i) * c + column), left) - mean
                part = fma(v, v, part)
            total = total + part
        vstore_n(p.sums + 4 * (image * c + column), total, left)


@native(sums=PTR, out=PTR, scale=PTR_OR_0, n=I64, c=I64, groups=I64, count=F32, epsilon=F32,
        extents=lambda a: {"sums": 4 * a.n * a.c, "out": 4 * a.n * a.c, "scale": 4 * a.c})  # fmt: skip
def spread_groups(p, tid, nthreads):
    """Sums by channel to one number for each group, written to all its channels.

    Without scale (0): the mean, sum / count.  With it: scale / sqrt(sum / count + epsilon).
    """
    c, groups = p.c, p.groups
    size = c // groups
    for image in range(p.n):
        for group in range(groups):
            at = 4 * (image * c + group * size)
            total = np.float32(0.0)
            for i in range(size):
                total += load_f32(p.sums + at + 4 * i)
            value = total / p.count
            inverse = inverse_root(value + p.epsilon)
            for i in range(size):
                if p.scale:
                    value = inverse * load_f32(p.scale + 4 * (group * size + i))
                store_f32(p.out + at + 4 * i, value)


def _pixels(a: Any) -> dict[str, Reach]:
    given = box(4 * a.c, (-(-a.rows // a.spatial), 4 * a.step))
    return {**_whole(a.rows * a.c, bias=a.c), "mean": given, "factor": given}


@native(x=PTR, mean=PTR, factor=PTR, bias=PTR, y=PTR, rows=I64, c=I64, spatial=I64, step=I64, extents=_pixels)
def affine_pixels(p, tid, nthreads):
    """Y = (x - mean) * factor + bias for rows of ``c`` channels.

    mean and factor advance by ``step`` channels from one image of ``spatial`` rows to the next; bias is [c].
    """
    c, spatial = p.c, p.spatial
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y, offset = p.x + 4 * row * c, p.y + 4 * row * c, 4 * (row // spatial) * p.step
        mean, factor = p.mean + offset, p.factor + offset
        i = 0
        while i + LANES <= c:
            v = vload(x + 4 * i) - vload(mean + 4 * i)
            vstore(y + 4 * i, fma(v, vload(factor + 4 * i), vload(p.bias + 4 * i)))
            i += LANES
        if i < c:
            v = vload_n(x + 4 * i, c - i) - vload_n(mean + 4 * i, c - i)
            vstore_n(y + 4 * i, fma(v, vload_n(factor + 4 * i, c - i), vload_n(p.bias + 4 * i, c - i)), c - i)


def _image(op: Any, ins: Types) -> tuple[int, int, int] | None:
    """(n, c, pixels) when every operand is static f32 and the image is not empty."""
    if any(t is None or not t.is_static or t.dtype != F32_TYPE for t in ins):
        return None
    dims = ins[0].dims  # type: ignore[union-attr]
    if len(dims) < 2 or not math.prod(dims):
        return None
    c = dims[1] if op.layout == "NCHW" else dims[-1]
    if any(t.size != c for t in ins[1:]):  # type: ignore[union-attr]
        return None
    return dims[0], c, math.prod(dims) // (dims[0] * c)


def _has_image(op: Any, ins: Types) -> bool:
    return _image(op, ins) is not None


@kernel(ops.InstanceNormalization, ops.GroupNormalization, accepts=_has_image, inplace=(0,), by_types=True)
def group_normalisation(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Rows of planes for channels first; column sums, their groups, and a row-wise pass for channels last."""
    image = _image(op, ins)
    assert image is not None, "accepts() has tested this"
    n, c, spatial = image
    groups = c if isinstance(op, ops.InstanceNormalization) else op.num_groups
    parallel = n * c * spatial > PARALLEL
    if op.layout == "NCHW":
        planes: dict[str, Argument] = {"x": In(0), "scale": In(1), "bias": In(2), "y": Out(0), "rows": n * groups}
        planes |= {"channels": c // groups, "groups": groups, "spatial": spatial, "epsilon": op.epsilon}
        return [Step(normalise_planes, planes, parallel and n * groups > 1)]
    sums, mean, factor = (Scratch(4 * n * c) for _ in range(3))
    blocks = -(-c // LANES)
    count = float(c // groups * spatial)
    common: dict[str, Argument] = {"n": n, "c": c, "groups": groups, "count": count, "epsilon": op.epsilon}
    squares: dict[str, Argument] = {"x": In(0), "mean": mean, "sums": sums, "n": n, "spatial": spatial, "c": c}
    squares["blocks"] = blocks
    affine: dict[str, Argument] = {"x": In(0), "mean": mean, "factor": factor, "bias": In(2), "y": Out(0)}
    affine |= {"rows": n * spatial, "c": c, "spatial": spatial, "step": c}
    return [
        fold_step(FOLDS[ReduceSum], In(0), sums, (n, spatial, c)),
        Step(spread_groups, {"sums": sums, "out": mean, "scale": None, **common}, False),
        Step(square_columns, squares, parallel and n * blocks > 1),
        Step(spread_groups, {"sums": sums, "out": factor, "scale": In(1), **common}, False),
        Step(affine_pixels, affine, parallel and n * spatial > 1),
    ]


# ------------------------------------------------------------------------------------------------- given statistics


@native(scale=PTR, var=PTR, factor=PTR, c=I64, epsilon=F32,
        extents=lambda a: dict.fromkeys(("scale", "var", "factor"), 4 * a.c))  # fmt: skip
def factors_of_variance(p, tid, nthreads):
    """``factor = scale / sqrt(var + epsilon)``."""
    for i in range(0, p.c, LANES):
        left = p.c - i
        spread = vsqrt(vload_n(p.var + 4 * i, left) + splat(p.epsilon))
        vstore_n(p.factor + 4 * i, vload_n(p.scale + 4 * i, left) / spread, left)


@native(
    x=PTR, mean=PTR, factor=PTR, bias=PTR, y=PTR, rows=I64, c=I64, spatial=I64,
    extents=lambda a: _whole(a.rows * a.spatial, **dict.fromkeys(("mean", "factor", "bias"), min(a.rows, a.c))),
)  # fmt: skip
def affine_planes(p, tid, nthreads):
    """Y = (x - mean) * factor + bias for planes of ``spatial`` elements; the operands by channel."""
    c, spatial = p.c, p.spatial
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y, at = p.x + 4 * row * spatial, p.y + 4 * row * spatial, 4 * (row % c)
        m, f, b = splat(load_f32(p.mean + at)), splat(load_f32(p.factor + at)), splat(load_f32(p.bias + at))
        i = 0
        while i + LANES <= spatial:
            vstore(y + 4 * i, fma(vload(x + 4 * i) - m, f, b))
            i += LANES
        if i < spatial:
            vstore_n(y + 4 * i, fma(vload_n(x + 4 * i, spatial - i) - m, f, b), spatial - i)


@kernel(ops.BatchNormalization, accepts=_has_image, inplace=(0,), by_types=True)
def batch_normalisation(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """The factor of each channel, then one pass."""
    image = _image(op, ins)
    assert image is not None, "accepts() has tested this"
    n, c, spatial = image
    factor = Scratch(4 * c)
    prepare: dict[str, Argument] = {"scale": In(1), "var": In(4), "factor": factor, "c": c, "epsilon": op.epsilon}
    args: dict[str, Argument] = {"x": In(0), "mean": In(3), "factor": factor, "bias": In(2), "y": Out(0), "c": c}
    parallel = n * c * spatial > PARALLEL
    if op.layout == "NCHW":
        args |= {"rows": n * c, "spatial": spatial}
        return [Step(factors_of_variance, prepare, False), Step(affine_planes, args, parallel and n * c > 1)]
    args |= {"rows": n * spatial, "spatial": spatial, "step": 0}
    return [Step(factors_of_variance, prepare, False), Step(affine_pixels, args, parallel and n * spatial > 1)]


# ---------------------------------------------------------------------------------------------------- across channels


@inline
def decay(v, beta):
    """``v ** -beta``; the usual 0.75 by two square roots, whose sum of errors is 2 ulp."""
    if beta == np.float32(0.75):
        root = vsqrt(v)
        return 1.0 / (root * vsqrt(root))
    return vpow(v, splat(-beta))


@native(
    x=PTR, y=PTR, outer=I64, c=I64, inner=I64, before=I64, after=I64, alpha=F32, beta=F32, bias=F32,
    extents=lambda a: _whole(a.outer * a.c * a.inner),
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
    extents=lambda a: _whole(a.rows * a.c, padded=(a.c + a.size) * a.threads),
)  # fmt: skip
def response_pixels(p, tid, nthreads):
    """LRN along rows of ``c`` channels; each thread has a row of squares with zeros around it (c + size elements)."""
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


@kernel(ops.LRN, accepts=_has_image, by_types=True)
def local_response_normalisation(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Sums of squares over neighbouring channels."""
    image = _image(op, ins)
    assert image is not None, "accepts() has tested this"
    n, c, spatial = image
    before = (op.size - 1) // 2
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "c": c, "before": before, "alpha": op.alpha / op.size}
    args |= {"beta": op.beta, "bias": op.bias}
    parallel = n * c * spatial > PARALLEL // 4
    if op.layout == "NCHW":
        args |= {"outer": n, "inner": spatial, "after": op.size - 1 - before}
        return [Step(response_columns, args, parallel and n * c > 1)]
    args |= {"padded": Scratch(4 * (c + op.size) * context.threads), "rows": n * spatial, "size": op.size}
    return [Step(response_pixels, args, parallel and n * spatial > 1)]


@native(x=PTR, y=PTR, outer=I64, n=I64, inner=I64, blocks=I64, squared=I64,
        extents=lambda a: _whole(a.outer * a.n * a.inner))  # fmt: skip
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
        norm = vsqrt(total) if squared else total
        empty = norm == 0.0
        norm = select(empty, splat(1.0), norm)
        for i in range(n):
            v = vload_n(p.x + at + 4 * i * inner, width) / norm
            vstore_n(p.y + at + 4 * i * inner, select(empty, splat(0.0), v), width)


@native(x=PTR, y=PTR, rows=I64, n=I64, squared=I64, extents=lambda a: _whole(a.rows * a.n))
def lp_rows(p, tid, nthreads):
    """Divide rows by their norm; 0 where it is 0."""
    n = p.n
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * n, p.y + 4 * row * n
        total = splat(0.0)
        for i in range(0, n, LANES):
            v = vload_n(x + 4 * i, n - i)
            total = fma(v, v, total) if p.squared else total + vabs(v)
        norm = splat(reduce_add(total))
        norm = vsqrt(norm) if p.squared else norm
        empty = norm == 0.0
        norm = select(empty, splat(1.0), norm)
        for i in range(0, n, LANES):
            v = select(empty, splat(0.0), vload_n(x + 4 * i, n - i) / norm)
            vstore_n(y + 4 * i, v, n - i)


def _has_axis(op: Any, ins: Types) -> bool:
    return axis_form(op, ins) is not None


@kernel(ops.LpNormalization, accepts=_has_axis, inplace=(0,), by_types=True)
def lp_normalisation(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Two passes, along rows or columns."""
    form = axis_form(op, ins)
    assert form is not None, "accepts() has tested this"
    outer, n, inner = form
    parallel = outer * n * inner > PARALLEL
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "n": n, "squared": int(op.p == 2)}
    if inner == 1:
        return [Step(lp_rows, {**args, "rows": outer}, parallel and outer > 1)]
    blocks = -(-inner // LANES)
    args |= {"outer": outer, "inner": inner, "blocks": blocks}
    return [Step(lp_columns, args, parallel and outer * blocks > 1)]
