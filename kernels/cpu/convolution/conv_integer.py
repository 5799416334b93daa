"""ConvInteger and QLinearConv, channels last, any number of spatial axes: filters of bytes by `sweep_bytes`.

Images of few channels are copied into ones with zero points around them, so that a row of a filter sees one run of
bytes.  Depthwise convolutions have a kernel of their own.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.selects import either
from bolt_numba.base.types import I8, U8, Array, TensorType
from bolt_numba.kernels.cpu.convolution.conv import MOST_PIXELS, ConvBlocks, geometry, padded
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    load_i32,
    load_u8,
    splat,
    split,
    vload_i8,
    vload_i32,
    vload_u8,
    vload_u8_n,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.epilogue import can_finish
from bolt_numba.kernels.cpu.products.epilogue_bytes import FIELDS, FLOAT_RESIDUAL, finish_stored
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.cpu.products.pack_bytes import BYTE_RESULTS, COLUMN_ROWS, ENDS, EXACT, flips
from bolt_numba.kernels.cpu.products.products_bytes import (
    NO_ZERO,
    Panels,
    RowTables,
    column_step,
    finish_args,
    panels_of,
    product_steps,
)
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.bytes import are_plain, are_single, given, places_of, sides, sums_are_exact
from bolt_numba.kernels.jit import I64, PTR, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.integer_products import ByteConv, ConvInteger, QLinearConv


def _accepts(op: ConvInteger | QLinearConv, ins: Types) -> bool:
    """Channels last, constant filters, one zero point of an image."""
    at = places_of(op)
    if op.layout != "NHWC" or not are_plain(ins, at) or not can_finish(getattr(op, "activation", None)):
        return False
    x, w = sides(ins, at)
    if not sums_are_exact(ins, at, math.prod(w.dims[1:])):
        return False
    if not x.size or w.known is None or math.prod(x.dims[:-1]) > MOST_PIXELS:
        return False
    return all(t is None or t.size in (1, w.dims[0]) for t in (given(ins, at.zero_b), given(ins, at.scale_b)))


# ---------------------------------------------------------------------------------------------------- general and dense


FEW_CHANNELS = 16
"""Channels under which the taps of a filter's row are one run."""


def _joins_taps(op: ByteConv, x: TensorType, w: TensorType) -> bool:
    """Whether the taps of a filter's row should be one run: few channels, side by side in memory."""
    dilation = op.dilations[-1] if op.dilations else 1
    width = w.dims[1] * w.dims[-1]
    return op.group == 1 and dilation == 1 and w.dims[1] < FEW_CHANNELS and width >= 4 and len(x.dims) in (3, 4)


def _rows(op: ByteConv, g: ConvBlocks, w: TensorType, c: int, width: int, image: Any, separate: bool) -> RowTables:
    """Blocks are the groups of the images; ``width`` taps are a run.  separate: images have their own numbers."""
    count, cg = w.dims[:2]
    taps = math.prod(w.dims[2:])
    i, group = (v.reshape(-1) for v in np.mgrid[: g.images, : op.group])
    image_of = i if separate else 0 * i
    offsets = np.stack([i * g.rows * c + group * cg, group, group * (count // op.group), i * g.m, image_of], axis=1)
    table = None if g.is_matrix else np.ascontiguousarray(g.taps.table[::width])
    return RowTables(offsets, g.m, taps * cg, c, table, taps // width, cg * width, image, g.taps.inside)


def _of_each(op: ByteConv, x: TensorType, w: TensorType, y: TensorType) -> ConvBlocks:
    """`geometry` where each image is a block of its own."""
    one = (TensorType(t.dtype, (1, *t.dims[1:])) for t in (x, y))
    return replace(geometry(op, next(one), w, next(one)), images=x.dims[0])


@kernel(ConvInteger, QLinearConv, accepts=_accepts)
def conv_bytes(op: ByteConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of filters under tiles of output pixels."""
    at = places_of(op)
    x, w = sides(ins, at)
    steps: list[Step] = []
    image: Argument = None
    width, groups = 1, op.group
    if _joins_taps(op, x, w):
        zero = given(ins, at.zero_a)
        point, points = (NO_ZERO, 1) if zero is None else (In(at.zero_a), zero.size)
        width = w.dims[-1]
        if any(op.windows(w.dims[2:]).resolved(x.dims[1:-1]).pads):
            op, x, step = padded(op, x, w, point, points)
            image, steps = step.args["to"], [step]
    separate = not are_single(ins, at.zero_a, at.scale_a)
    g = _of_each(op, x, w, outs[0]) if separate else geometry(op, x, w, outs[0])
    rows = _rows(op, g, w, x.dims[-1], width, image, separate)
    panels = panels_of(rows, groups, w.dims[0] // groups)

    def matrix(filters: Array) -> Array:
        return filters.reshape(groups, panels.n, w.dims[1], -1).transpose(0, 3, 2, 1)

    packed = panels.packed(context, w, ("filters", groups), matrix)
    return [*steps, *product_steps(op, ins, at, rows, panels, packed, context)]


# ----------------------------------------------------------------------------------------------------------- depthwise


def _seen(a: Any) -> dict[str, Reach]:
    vectors, pixels = -(-a.n // LANES), a.images * a.m

    def rows(ld: int, item: int) -> int:
        return item * (ld * (pixels - 1) + a.n) if pixels else 0

    return {
        "a": ((a.images - 1) * a.rows + int(a.table.max(initial=-1)) + 1) * a.n,
        "b": a.taps * vectors * LANES,
        "c": rows(a.ldc, 1 if a.kind == BYTE_RESULTS else 4),
        "res": rows(a.ldr, 4 if a.residual == FLOAT_RESIDUAL else 1),
        "table": 4 * a.taps * a.m,
        "columns": ENDS + COLUMN_ROWS * vectors * BYTES,
        "scratch": (a.threads - 1) * a.scratch_step + BYTES,
        "flip": BYTES,
        "zero_a": 1,
        "scale_a": 4 * a.scales_a,
    }


@native(
    fastmath=EXACT, a=PTR, b=PTR, c=PTR, ldc=I64, images=I64, rows=I64, m=I64, n=I64, table=PTR, taps=I64, columns=PTR,
    sums=I64, flip=PTR, flip_a=I64, zero_a=PTR, zeros_a=I64, scratch=PTR, scratch_step=I64, extents=_seen, **FIELDS,
)  # fmt: skip
def depthwise_bytes(p, tid, nthreads):
    """One filter for each of ``n`` channels.

    Fields are those of `sweep_bytes`, but b: i8 [taps][channels of whole vectors]; images of ``rows`` input and ``m``
    output pixels; scratch: a vector of sums.  The sums are of x less its zero point, so columns' addends lack it.
    """
    n, width, m = p.n, (p.n + LANES - 1) // LANES * LANES, p.m
    flip = vload_i32(p.flip) & splat(np.int32(255))
    zero = splat(np.int32(load_u8(p.zero_a) ^ p.flip_a))
    tile, size, size_r = p.scratch + p.scratch_step * tid, (1 if p.kind == BYTE_RESULTS else 4), 1
    if p.residual == FLOAT_RESIDUAL:
        size_r = 4
    lo, hi = split(p.images * m, tid, nthreads)
    for pixel in range(lo, hi):
        image, seen = p.a + pixel // m * p.rows * n, p.table + 4 * (pixel % m)
        for j in range(0, n, LANES):
            columns = p.columns + ENDS + 4 * j
            acc, inside = vload_i32(columns), splat(np.int32(0))
            for t in range(p.taps):
                at = load_i32(seen + 4 * m * t)
                if at >= 0:
                    source = image + at * n + j
                    x = ((vload_u8(source) if n - j >= LANES else vload_u8_n(source, n - j)) ^ flip) - zero
                    acc = acc + x * vload_i8(p.b + t * width + j)
                    inside = inside + x
            if p.sums:
                acc = acc - inside * vload_i32(columns + 4 * width)
            vstore(tile, acc)
            c, res = p.c + size * (p.ldc * pixel + j), p.res + size_r * (p.ldr * pixel + j)
            finish_stored(p, tile, 1, min(n - j, LANES), columns, 4 * width, c, res, 0)


def is_depthwise(op: ByteConv, ins: Types) -> bool:
    if not _accepts(op, ins):
        return False
    at = places_of(op)
    w = sides(ins, at)[1]
    is_one = are_single(ins, at.zero_a, at.scale_a)
    return bool(is_one and op.group > 1 and w.dims[1] == 1 and w.dims[0] == op.group)


@kernel(ConvInteger, QLinearConv, accepts=is_depthwise, rank=10)
def conv_bytes_depthwise(op: ByteConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """One filter a channel."""
    at = places_of(op)
    x, w = sides(ins, at)
    g, n, taps = geometry(replace(op, group=1), x, w, outs[0]), w.dims[0], math.prod(w.dims[2:])
    width = -(-n // LANES) * LANES

    def pack(filters: Array) -> Array:
        packed = np.zeros((taps, width), np.uint8)
        packed[:, :n] = filters.reshape(n, taps).T.view(np.uint8) ^ np.uint8(128 if w.dtype == U8 else 0)
        return packed

    columns = column_step(op, ins, at, Panels(1, 1, taps, n), 0, np.zeros(width, np.int32), 0)
    threads = either(is_parallel(context, g.images * g.m * n * taps, x.nbytes), context.threads, 1)
    table = g.taps.table if not g.is_matrix else np.arange(g.m, dtype=np.int32)
    args: dict[str, Argument] = {
        "a": In(at.a), "b": context.packed(w.known, "depthwise bytes", pack), "c": Out(0), "ldc": Pitch(Out(0)),
        "images": g.images, "rows": g.rows, "m": g.m, "n": n, "table": table, "taps": taps,
        "columns": columns.args["to"], **finish_args(op, ins, at), "flip": flips(x.dtype == I8),
        "scratch": Scratch(threads * 256), "scratch_step": 256,
    }  # fmt: skip
    return [columns, Step(depthwise_bytes, args, threads > 1)]
