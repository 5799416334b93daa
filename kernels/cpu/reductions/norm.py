"""Normalisations: along rows, over groups of channels in both layouts, with given statistics.

Variances are sums of squared differences from a point near the mean, never differences of large sums.  The same pass
sums the differences themselves: their mean is how far the point is off, and it puts mean and variance right
("corrected two-pass algorithm", Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983).  So
rows far from zero, whose rounded mean is off by many deviations, come out as well as others, and a sample's mean is a
point near enough.  Channels-last groups are found from column sums, so that vectors run along channels, whatever
their size.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import F32 as F32_TYPE
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
    vmax,
    vsqrt,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.reduce import FOLD, FOLDS, fold_step
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.jit import PTR_OR_0
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.layers import norm as ops
from bolt_numba.ops.registry import normalise_axis

# ----------------------------------------------------------------------------------------------------------- row sums


@inline
def sample_mean(x, n):
    """Mean of four vectors spread over ``n`` contiguous f32; exact where all are equal and fill the vectors.

    A power of two comes before the sums, so that they stay in the range.
    """
    part = splat(np.float32(1.0) / np.float32(4 * LANES))
    width = min(n, LANES)
    gap = (n - width) // 3 * 4
    low = vload_n(x, width) * part + vload_n(x + gap, width) * part
    high = vload_n(x + 2 * gap, width) * part + vload_n(x + 3 * gap, width) * part
    return reduce_add(low + high) / (np.float32(width) / np.float32(LANES))


@inline
def row_moments(x, n, centre):
    """Mean of ``x - centre`` and sum of its squares over ``n`` contiguous f32, in parts of `FOLD` vectors."""
    m, share = splat(centre), splat(np.float32(1.0) / np.float32(n))
    rest = splat(0.0)
    squares = rest
    i = 0
    while i + 4 * LANES <= n:
        stop = min(i + 4 * FOLD * LANES, n)
        a = splat(0.0)
        b, c, d, e, f = a, a, a, a, a
        while i + 4 * LANES <= stop:
            at = x + 4 * i
            s, t = vload(at) - m, vload(at + BYTES) - m
            u, v = vload(at + 2 * BYTES) - m, vload(at + 3 * BYTES) - m
            a, b, c, d = fma(s, s, a), fma(t, t, b), fma(u, u, c), fma(v, v, d)
            e, f = fma(s + t, share, e), fma(u + v, share, f)
            i += 4 * LANES
        rest, squares = rest + (e + f), squares + ((a + b) + (c + d))
    while i < n:
        u = select(lanes_below(n - i), vload_n(x + 4 * i, n - i) - m, splat(0.0))
        rest, squares = fma(u, share, rest), fma(u, u, squares)
        i += LANES
    return reduce_add(rest), reduce_add(squares)


@inline
def row_squares(x, n):
    """Sum of the squares of ``n`` contiguous f32, in parts of `FOLD` vectors for each of four sums."""
    total = splat(0.0)
    i = 0
    while i + 4 * LANES <= n:
        stop = min(i + 4 * FOLD * LANES, n)
        a = splat(0.0)
        b, c, d = a, a, a
        while i + 4 * LANES <= stop:
            at = x + 4 * i
            s, t, u, v = vload(at), vload(at + BYTES), vload(at + 2 * BYTES), vload(at + 3 * BYTES)
            a, b, c, d = fma(s, s, a), fma(t, t, b), fma(u, u, c), fma(v, v, d)
            i += 4 * LANES
        total = total + ((a + b) + (c + d))
    while i < n:
        v = vload_n(x + 4 * i, n - i)
        total = fma(v, v, total)
        i += LANES
    return reduce_add(total)


@inline
def row_statistics(x, n):
    """A point near the mean of ``n`` contiguous f32, how far the mean is from it, the sum of squares around it.

    A point further off than 1.7 deviations, or with an infinite sum around it, is replaced by the mean.
    """
    point = sample_mean(x, n)
    off, squares = row_moments(x, n, point)
    if off * off * np.float32(n) > np.float32(0.75) * squares or squares == np.inf:
        point += off
        off, squares = row_moments(x, n, point)
    return point, off, squares


@inline
def inverse_spread(squares, count, off, epsilon):
    """``1 / sqrt(variance + epsilon)`` in all lanes; squares: their sum around a point ``off`` from the mean.

    0 where finite numbers have an infinite sum.
    """
    least, distance = splat(epsilon), splat(off)
    around = fma(splat(squares), splat(np.float32(1.0) / count), least)
    spread = vmax(least, fma(-distance, distance, around))
    return select((around == np.inf) & (vabs(distance) < np.inf), splat(0.0), 1.0 / vsqrt(spread))


# ------------------------------------------------------------------------------------ layer and RMS normalisation


def x_and_y(count: int, **others: int) -> dict[str, Reach]:
    """Extents of x and y of ``count`` elements and of others of theirs, all f32."""
    return {name: 4 * n for name, n in {"x": count, "y": count, **others}.items()}


@native(
    x=PTR, scale=PTR, bias=PTR_OR_0, y=PTR, mean=PTR_OR_0, inverse=PTR_OR_0, rows=I64, n=I64, epsilon=F32, centred=I64,
    extents=lambda a: x_and_y(a.rows * a.n, scale=a.n, bias=a.n, mean=a.rows, inverse=a.rows),
)  # fmt: skip
def normalise_rows(p, tid, nthreads):
    """Y = (x - mean) / sqrt(variance + epsilon) * scale + bias along rows of ``n``.

    bias, mean and inverse may be 0 (none).  centred: 0 takes the mean as 0 (RMS normalisation).
    All f32: x, y [rows][n] · scale, bias [n] · mean, inverse [rows].
    """
    scale, bias, n, epsilon, count = p.scale, p.bias, p.n, p.epsilon, np.float32(p.n)
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * n, p.y + 4 * row * n
        mean, off = np.float32(0.0), np.float32(0.0)
        if p.centred:
            mean, off, squares = row_statistics(x, n)
        else:
            squares = row_squares(x, n)
        k = inverse_spread(squares, count, off, epsilon)
        if p.mean:
            store_f32(p.mean + 4 * row, mean + off)
            store_f32(p.inverse + 4 * row, lane(k, 0))
        m, shift = splat(mean), splat(-off) * k
        i = 0
        while i + LANES <= n:
            v = fma(vload(x + 4 * i) - m, k, shift)
            b = vload(bias + 4 * i) if bias else splat(-0.0)
            vstore(y + 4 * i, fma(v, vload(scale + 4 * i), b))
            i += LANES
        if i < n:
            v = fma(vload_n(x + 4 * i, n - i) - m, k, shift)
            b = vload_n(bias + 4 * i, n - i) if bias else splat(-0.0)
            vstore_n(y + 4 * i, fma(v, vload_n(scale + 4 * i, n - i), b), n - i)


def _row_length(op: ops.RowNorm, ins: Types) -> int | None:
    """Elements of a normalised row when all operands are f32 of known and full length, along the same axes."""
    x = ins[0]
    if not x.is_static or not x.size or not x.dims:
        return None
    row = x.dims[normalise_axis(op, op.axis, len(x.dims)) :]
    n, k = math.prod(row), len(row)
    for t in ins[1:]:
        if t is not None and not (t.is_static and t.dtype == F32_TYPE and t.size == n == math.prod(t.dims[-k:])):
            return None
    return n if x.dtype == F32_TYPE else None


def _has_rows(op: ops.RowNorm, ins: Types) -> bool:
    return _row_length(op, ins) is not None


@kernel(ops.LayerNormalization, ops.RMSNormalization, accepts=_has_rows, inplace=(0,))
def row_normalisation(op: ops.RowNorm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Three passes over a row that stays in cache."""
    n, x = tested(_row_length(op, ins)), ins[0]
    has_bias = len(ins) > 2 and ins[2] is not None
    args: dict[str, Argument] = {"x": In(0), "scale": In(1), "bias": In(2) if has_bias else None, "y": Out(0)}
    stats = len(outs) > 1
    args |= {"mean": Out(1) if stats else None, "inverse": Out(2) if stats else None}
    args |= {"rows": x.size // n, "n": n, "epsilon": op.epsilon}
    args["centred"] = int(isinstance(op, ops.LayerNormalization))
    return [Step(normalise_rows, args, (x.size > 2 * PAYS_ELEMENTS) & (x.size > n))]


# ----------------------------------------------------------------------------------- groups of channels, channels first


def _planes(a: Numbers) -> dict[str, Reach]:
    channels = min(a.rows, a.groups) * a.channels
    return x_and_y(a.rows * a.channels * a.spatial, scale=channels, bias=channels)


@native(x=PTR, scale=PTR, bias=PTR, y=PTR, rows=I64, channels=I64, groups=I64, spatial=I64, epsilon=F32,
        extents=_planes)  # fmt: skip
def normalise_planes(p, tid, nthreads):
    """Groups of an NCHW tensor: a row is the ``channels`` planes of one group; scale and bias by channel.

    All f32: x, y [rows][channels][spatial] · scale, bias [groups][channels].
    """
    channels, spatial, groups, epsilon = p.channels, p.spatial, p.groups, p.epsilon
    n = channels * spatial
    count = np.float32(n)
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y = p.x + 4 * row * n, p.y + 4 * row * n
        mean, off, squares = row_statistics(x, n)
        inverse = inverse_spread(squares, count, off, epsilon)
        m = splat(mean)
        for c in range(channels):
            channel = (row % groups) * channels + c
            a = inverse * load_f32(p.scale + 4 * channel)
            b = fma(splat(-off), a, splat(load_f32(p.bias + 4 * channel)))
            for i in range(0, spatial, LANES):
                at = 4 * (c * spatial + i)
                vstore_n(y + at, fma(vload_n(x + at, spatial - i) - m, a, b), spatial - i)


# ------------------------------------------------------------------------------------ groups of channels, channels last


def _moments(a: Numbers) -> dict[str, Reach]:
    return {"x": 4 * a.n * a.spatial * a.c, **dict.fromkeys(("mean", "sums", "squares"), 4 * a.n * a.c)}


@native(x=PTR, mean=PTR, sums=PTR, squares=PTR, n=I64, spatial=I64, c=I64, blocks=I64, extents=_moments)
def column_moments(p, tid, nthreads):
    """Sums over the pixels of ``x - mean[n, c]`` and of its squares, both [n, c], for ``x [n, spatial, c]``."""
    spatial, c, blocks = p.spatial, p.c, p.blocks
    first, last = split(p.n * blocks, tid, nthreads)
    for item in range(first, last):
        image = item // blocks
        column = (item - image * blocks) * LANES
        left = c - column
        to = 4 * (image * c + column)
        mean = vload_n(p.mean + to, left)
        total = splat(0.0)
        rest = total
        for low in range(0, spatial, 2 * FOLD):
            squares = splat(0.0)
            part = squares
            for i in range(low, min(low + 2 * FOLD, spatial)):
                v = vload_n(p.x + 4 * ((image * spatial + i) * c + column), left) - mean
                part, squares = part + v, fma(v, v, squares)
            rest, total = rest + part, total + squares
        vstore_n(p.sums + to, rest, left)
        vstore_n(p.squares + to, total, left)


@inline
def group_sum(at, size):
    """Sum of ``size`` f32, as f64."""
    total = 0.0
    for i in range(size):
        total += np.float64(load_f32(at + 4 * i))
    return total


@native(sums=PTR, mean=PTR, n=I64, c=I64, groups=I64, count=F32,
        extents=lambda a: dict.fromkeys(("sums", "mean"), 4 * a.n * a.c))  # fmt: skip
def group_means(p, tid, nthreads):
    """Sums by channel to the mean of each group of ``count`` elements, written to all its channels.

    sums, mean: f32 [n][c].
    """
    size = p.c // p.groups
    for group in range(p.n * p.groups):
        at = 4 * group * size
        mean = np.float32(group_sum(p.sums + at, size) / p.count)
        for i in range(size):
            store_f32(p.mean + at + 4 * i, mean)


def _factors(a: Numbers) -> dict[str, Reach]:
    by_image = dict.fromkeys(("sums", "squares", "factor", "shift"), 4 * a.n * a.c)
    return {**by_image, "scale": 4 * a.c, "bias": 4 * a.c}


@native(sums=PTR, squares=PTR, scale=PTR, bias=PTR, factor=PTR, shift=PTR, n=I64, c=I64, groups=I64, count=F32,
        epsilon=F32, extents=_factors)  # fmt: skip
def group_factors(p, tid, nthreads):
    """What `column_moments` gives to ``(x - mean) * factor + shift``, both [n, c]; scale and bias are [c]."""
    size, groups = p.c // p.groups, p.groups
    for group in range(p.n * groups):
        at, channel = 4 * group * size, 4 * (group % groups) * size
        off = np.float32(group_sum(p.sums + at, size) / p.count)
        squares = np.float32(group_sum(p.squares + at, size))
        inverse = lane(inverse_spread(squares, p.count, off, p.epsilon), 0)
        for i in range(0, 4 * size, 4):
            factor = inverse * load_f32(p.scale + channel + i)
            store_f32(p.factor + at + i, factor)
            store_f32(p.shift + at + i, load_f32(p.bias + channel + i) - off * factor)


def _pixels(a: Numbers) -> dict[str, Reach]:
    given = box(4 * a.c, (-(-a.rows // a.spatial), 4 * a.step))
    return {**x_and_y(a.rows * a.c), "mean": given, "factor": given, "bias": given}


@native(x=PTR, mean=PTR, factor=PTR, bias=PTR, y=PTR, rows=I64, c=I64, spatial=I64, step=I64, extents=_pixels)
def affine_pixels(p, tid, nthreads):
    """Y = (x - mean) * factor + bias for rows of ``c`` channels.

    mean, factor and bias advance by ``step`` channels from one image of ``spatial`` rows to the next.
    All f32: x, y [rows][c] · mean, factor, bias [rows / spatial][step].
    """
    c, spatial = p.c, p.spatial
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        x, y, offset = p.x + 4 * row * c, p.y + 4 * row * c, 4 * (row // spatial) * p.step
        mean, factor, bias = p.mean + offset, p.factor + offset, p.bias + offset
        i = 0
        while i + LANES <= c:
            v = vload(x + 4 * i) - vload(mean + 4 * i)
            vstore(y + 4 * i, fma(v, vload(factor + 4 * i), vload(bias + 4 * i)))
            i += LANES
        if i < c:
            v = vload_n(x + 4 * i, c - i) - vload_n(mean + 4 * i, c - i)
            vstore_n(y + 4 * i, fma(v, vload_n(factor + 4 * i, c - i), vload_n(bias + 4 * i, c - i)), c - i)


def image_dims(op: ops.ChannelNorm | ops.LRN, ins: Types) -> tuple[int, int, int] | None:
    """(n, c, pixels) when every operand is static f32 and the image is not empty."""
    if any(t is None or not t.is_static or t.dtype != F32_TYPE for t in ins):
        return None
    dims = ins[0].dims
    if len(dims) < 2 or not math.prod(dims):
        return None
    c = dims[1] if op.layout == "NCHW" else dims[-1]
    if any(t.size != c for t in ins[1:]):  # type: ignore[union-attr]
        return None
    return dims[0], c, math.prod(dims) // (dims[0] * c)


def has_image(op: ops.InstanceNormalization | ops.GroupNormalization | ops.BatchNormalization, ins: Types) -> bool:
    return image_dims(op, ins) is not None


@kernel(ops.InstanceNormalization, ops.GroupNormalization, accepts=has_image, inplace=(0,))
def group_normalisation(op: ops.GroupNorm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rows of planes for channels first; column sums, their groups, and a row-wise pass for channels last."""
    n, c, spatial = tested(image_dims(op, ins))
    groups = c if isinstance(op, ops.InstanceNormalization) else op.num_groups
    parallel = n * c * spatial > 2 * PAYS_ELEMENTS
    if op.layout == "NCHW":
        planes: dict[str, Argument] = {"x": In(0), "scale": In(1), "bias": In(2), "y": Out(0), "rows": n * groups}
        planes |= {"channels": c // groups, "groups": groups, "spatial": spatial, "epsilon": op.epsilon}
        return [Step(normalise_planes, planes, parallel & (n * groups > 1))]
    sums, squares, mean, factor, shift = (Scratch(4 * n * c) for _ in range(5))
    blocks = -(-c // LANES)
    common: dict[str, Argument] = {"sums": sums, "n": n, "c": c}
    grouped = common | {"groups": groups, "count": float(c // groups * spatial)}
    moments = common | {"x": In(0), "mean": mean, "squares": squares, "spatial": spatial, "blocks": blocks}
    factors = grouped | {"squares": squares, "scale": In(1), "bias": In(2), "factor": factor, "shift": shift}
    affine: dict[str, Argument] = {"x": In(0), "mean": mean, "factor": factor, "bias": shift, "y": Out(0)}
    affine |= {"rows": n * spatial, "c": c, "spatial": spatial, "step": c}
    return [
        fold_step(FOLDS[ReduceSum], In(0), sums, (n, spatial, c)),
        Step(group_means, {**grouped, "mean": mean}, False),
        Step(column_moments, moments, parallel & (n * blocks > 1)),
        Step(group_factors, {**factors, "epsilon": op.epsilon}, False),
        Step(affine_pixels, affine, parallel & (n * spatial > 1)),
    ]


# ------------------------------------------------------------------------------------------------- given statistics


@native(fastmath={"contract"}, scale=PTR, var=PTR, factor=PTR, c=I64, epsilon=F32,
        extents=lambda a: dict.fromkeys(("scale", "var", "factor"), 4 * a.c))  # fmt: skip
def factors_of_variance(p, tid, nthreads):
    """``factor = scale / sqrt(var + epsilon)``; no reciprocal, whose root makes NaN of infinity.  All f32 [c]."""
    for i in range(0, p.c, LANES):
        left = p.c - i
        spread = vsqrt(vload_n(p.var + 4 * i, left) + splat(p.epsilon))
        vstore_n(p.factor + 4 * i, vload_n(p.scale + 4 * i, left) / spread, left)


@native(
    x=PTR, mean=PTR, factor=PTR, bias=PTR, y=PTR, rows=I64, c=I64, spatial=I64,
    extents=lambda a: x_and_y(a.rows * a.spatial, **dict.fromkeys(("mean", "factor", "bias"), min(a.rows, a.c))),
)  # fmt: skip
def affine_planes(p, tid, nthreads):
    """Y = (x - mean) * factor + bias for planes of ``spatial`` elements; the operands by channel.

    All f32: x, y [rows][spatial] · mean, factor, bias [c].
    """
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


@kernel(ops.BatchNormalization, accepts=has_image, inplace=(0,))
def batch_normalisation(op: ops.BatchNormalization, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """The factor of each channel, then one pass."""
    n, c, spatial = tested(image_dims(op, ins))
    factor = Scratch(4 * c)
    prepare: dict[str, Argument] = {"scale": In(1), "var": In(4), "factor": factor, "c": c, "epsilon": op.epsilon}
    args: dict[str, Argument] = {"x": In(0), "mean": In(3), "factor": factor, "bias": In(2), "y": Out(0), "c": c}
    parallel = n * c * spatial > 2 * PAYS_ELEMENTS
    if op.layout == "NCHW":
        args |= {"rows": n * c, "spatial": spatial}
        return [Step(factors_of_variance, prepare, False), Step(affine_planes, args, parallel & (n * c > 1))]
    args |= {"rows": n * spatial, "spatial": spatial, "step": 0}
    return [Step(factors_of_variance, prepare, False), Step(affine_pixels, args, parallel & (n * spatial > 1))]
