"""Depthwise convolution of bytes, channels last: dot products of four pixels side by side, for each channel.

The bytes of four neighbouring pixels of a row are interleaved, so that an instruction that adds four products of bytes
does a row of a filter of three taps.  A tile is a few pixels of one row by 64, 32 or 16 channels.  Pixels outside the
image are read from zero points.  Where columns are dilated, a tile is pixels that far apart.

Weights less their zero points may need nine bits.  What a byte cannot hold is then the weights of more rows, which read
the same pixels; only blocks of channels that need them have such rows.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.selects import either
from bolt_numba.base.types import U8, Array
from bolt_numba.kernels.cpu.convolution.conv_integer import is_depthwise
from bolt_numba.kernels.cpu.convolution.depthwise import plane_fields
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    load_i32,
    load_i64,
    pixels_dot,
    pixels_row,
    pixels_store,
    pixels_store_bytes,
    split,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.epilogue_bytes import FIELDS, FLOAT_RESIDUAL, finish_stored
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.cpu.products.pack_bytes import BYTE_RESULTS, COLUMN_ROWS, ENDS, EXACT, UNSAFE, whole_vectors
from bolt_numba.kernels.cpu.products.products_bytes import Panels, columns_of, finish_args, unsigned_step
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.bytes import given, places_of, sides
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.layers.products.integer_products import ByteConv, ConvInteger, QLinearConv

PIXELS = 4 if target().registers >= 32 and target().is_x86 else 2
"""Pixels of a tile."""
WIDTHS = tuple(w for w in (64, 32, 16) if w <= 4 * LANES)
"""Channels of a tile."""
PART_ROWS = 3
"""Rows of numbers of a block's columns: addend, factor, addend behind it."""


BLOCK_FIELDS = 5
"""Entries of a block: its first channel, its channels, byte offsets of weights and of the numbers of its columns, rows
of weights."""
SUMS_BYTES = 4 * PIXELS * WIDTHS[0]
"""Workspace for the sums of a tile."""
MOST_PARTS = 3
"""Bytes of which any weight less any zero point is the sum."""
MOST_TAPS = 7
"""Columns of a filter up to which there is a kernel."""


def chunks_of(cols: int, stride: int) -> tuple[int, int]:
    """Fours of pixels under a row of a filter, and forms of its weights, see `pixels_dot`."""
    forms = 2 if stride == 1 else 1
    return -(-(cols + forms - 1) // 4), forms


@cache
def cut(c: int) -> tuple[tuple[int, int], ...]:
    """Blocks of channels, first one and width; a block that would pass the last channel overlaps the one before."""
    made, done = [], 0
    while done < c:
        left = c - done
        width = next((w for w in WIDTHS if w <= c and 4 * left > 3 * w - 4), WIDTHS[-1])
        made.append((min(done, c - width), width))
        done = made[-1][0] + width
    return tuple(made)


def _tile(lanes: int, cols: int, stride: int, guarded: int) -> Inline:
    """A few pixels by ``4 * lanes`` channels."""
    chunks, forms = chunks_of(cols, stride)
    filter_row = 16 * chunks * forms

    @inline
    def tile(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums):
        acc, h, outside = pixels_row(PIXELS, lanes, numbers), p.h, p.outside
        row, far, size = p.wd * p.c, p.dw * p.c, filter_row * lanes
        at, end = up, up + p.rows * p.dh
        for _ in range(rows):
            base, step = outside, 0
            if at >= 0 and at < h:
                base, step = x + at * row, far
            acc = pixels_dot(acc, base, step, first, last, outside, w, cols, stride, chunks, guarded)
            w += size
            at = at + p.dh if at + p.dh < end else up
        if quick:
            pixels_store_bytes(acc, y, p.ldc * p.dw, pixels, numbers + 16 * lanes, p.columns)
        else:
            pixels_store(acc, sums)

    return tile


def _tiles(cols: int, stride: int) -> Inline:
    """A tile of any of `WIDTHS`, whole or at an edge of the image."""
    whole16, whole8, whole4 = (_tile(lanes, cols, stride, 0) for lanes in (16, 8, 4))
    edge16, edge8, edge4 = (_tile(lanes, cols, stride, 1) for lanes in (16, 8, 4))

    @inline
    def tile(p, rows, channels, whole, x, y, up, first, last, pixels, w, numbers, quick, sums):
        if channels == 64 and LANES >= 16:
            if whole:
                whole16(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums)
            else:
                edge16(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums)
        elif channels == 32 and LANES >= 8:
            if whole:
                whole8(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums)
            else:
                edge8(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums)
        elif whole:
            whole4(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums)
        else:
            edge4(p, rows, x, y, up, first, last, pixels, w, numbers, quick, sums)

    return tile


@inline
def finish_pixels(p, sums, channels, skip, pixel, pixels):
    """Sums of ``pixels`` from the ``pixel``-th result on, at channel ``skip``, to results that are no bytes yet."""
    size, size_r = (1 if p.kind == BYTE_RESULTS else 4), (4 if p.residual == FLOAT_RESIDUAL else 1)
    columns, width = p.columns + ENDS + 4 * skip, ceil_div(p.c, LANES) * BYTES
    for i in range(pixels):
        at = pixel + p.dw * i
        y, res = p.y + size * (at * p.ldc + skip), p.res + size_r * (at * p.ldr + skip)
        finish_stored(p, sums + 4 * channels * i, 1, channels, columns, width, y, res, 0)


@inline
def arrange(p, scratch):
    """Numbers of each block's columns in the order of its lanes, f32 or i32 [3][4][lanes]."""
    width = (p.c + LANES - 1) // LANES * BYTES
    for k in range(p.count):
        entry = p.blocks + 8 * BLOCK_FIELDS * k
        channels, to = load_i64(entry + 8), scratch + load_i64(entry + 24)
        for row in range(PART_ROWS):
            source = p.columns + ENDS + 2 * row * width + 4 * load_i64(entry)
            for q in range(4):
                for part in range(0, channels, 16):
                    copy_bytes(to, source + 4 * (part + 4 * q), 16)
                    to += 16


def _seen(a: Any) -> dict[str, Reach]:
    pixels, channels = a.images * a.oh * a.ow, int(a.blocks[: a.count, 1].sum())

    def rows(ld: int, item: int) -> int:
        return item * (ld * (pixels - 1) + a.c) if pixels else 0

    return {
        "x": a.images * a.h * a.wd * a.c,
        "w": 4 * math.prod(chunks_of(a.cols, a.sw)) * int((a.blocks[: a.count, 1] * a.blocks[: a.count, 4]).sum()),
        "y": rows(a.ldc, 1 if a.kind == BYTE_RESULTS else 4),
        "res": rows(a.ldr, 4 if a.residual == FLOAT_RESIDUAL else 1),
        "outside": 4 * WIDTHS[0],
        "columns": ENDS + COLUMN_ROWS * whole_vectors(a.c),
        "blocks": 8 * BLOCK_FIELDS * a.count,
        "scale_a": 4 * a.scales_a,
        "scratch": (a.threads - 1) * a.scratch_step + SUMS_BYTES + 4 * PART_ROWS * channels,
    }


@cache
def depthwise_kernel(cols: int, stride: int) -> Native:
    """The kernel for filters of ``cols`` columns at a stride of 1 or 2."""
    tile = _tiles(cols, stride)
    reach = (PIXELS - 1) * stride + cols

    def depthwise_pixels(p, tid, nthreads):
        """x: bytes [images, h, wd, c]; w: see `pack_taps`; y: [images, oh, ow, c], pixels ``ldc`` apart.

        rows, cols: of the filter; sh, sw: strides; dh, dw: dilations, one of sw and dw is 1; top, left: begin pads.
        outside: zero points.  columns: see `prepare_columns`.  blocks: i64 [count][`BLOCK_FIELDS`].  scratch:
        ``scratch_step`` bytes a thread, the numbers of columns by blocks.
        """
        c, ldc, oh, ow, wd, count, sw = p.c, p.ldc, p.oh, p.ow, p.wd, p.count, p.sw
        sums = p.scratch + p.scratch_step * tid
        scratch, quick = sums + SUMS_BYTES, p.quick != 0 and p.residual == 0 and load_i32(p.columns + UNSAFE) == 0
        arrange(p, scratch)
        lines, dw = p.images * oh, p.dw
        many = lines >= 4 * nthreads
        lo, hi = split(lines, tid, nthreads) if many else (0, lines)
        b_lo, b_hi = (0, count) if many else split(count, tid, nthreads)
        for line in range(lo, hi):
            image, up = p.x + line // oh * p.h * wd * c, line % oh * p.sh - p.top
            for turn in range(min(dw, ow)):
                here, j = ceil_div(ow - turn, dw), 0
                while j < here:
                    pixels = min(here, PIXELS)
                    j = min(j, here - pixels)
                    at = turn + j * dw * sw - p.left
                    first, last = max(ceil_div(-at, dw), 0), ceil_div(wd - at, dw)
                    whole = first == 0 and last >= reach and pixels == PIXELS
                    place = line * ow + turn + j * dw
                    for k in range(b_lo, b_hi):
                        entry = p.blocks + 8 * BLOCK_FIELDS * k
                        skip, channels, w = load_i64(entry), load_i64(entry + 8), p.w + load_i64(entry + 16)
                        x, y, all_rows = image + at * c + skip, p.y + place * ldc + skip, load_i64(entry + 32)
                        numbers = scratch + load_i64(entry + 24)
                        tile(p, all_rows, channels, whole, x, y, up, first, last, pixels, w, numbers, quick, sums)
                        if not quick:
                            finish_pixels(p, sums, channels, skip, place, pixels)
                    j += pixels

    return native(
        fastmath=EXACT, x=PTR, w=PTR, y=PTR, ldc=I64, images=I64, h=I64, wd=I64, c=I64, oh=I64, ow=I64, rows=I64,
        cols=I64, sh=I64, sw=I64, dh=I64, dw=I64, top=I64, left=I64, outside=PTR, columns=PTR, blocks=PTR, count=I64,
        scratch=PTR, scratch_step=I64, extents=_seen, **FIELDS,
    )(depthwise_pixels)  # fmt: skip


def parts_of(filters: Array, zero: Array | None) -> Array:
    """Weights [c, 1, ..., cols] less their zero points as bytes [3, c, rows, cols], whose sums they are."""
    c, cols = filters.shape[0], filters.shape[-1]
    left = filters.reshape(c, -1, cols).astype(np.int16)
    if zero is not None:
        left -= zero.reshape(-1, 1, 1).astype(np.int16)
    made = np.zeros((MOST_PARTS, *left.shape), np.int8)
    for part in made:
        part[:] = np.clip(left, -128, 127)
        left -= part
    return made


def rows_of_blocks(parts: Array) -> list[int]:
    """Rows of weights of each block of channels: the filter's, as often as some weight needs another byte."""
    _, c, rows, _ = parts.shape
    return [rows * max(1, int(parts[:, i : i + n].any(axis=(1, 2, 3)).sum())) for i, n in cut(c)]


def pack_taps(cols: int, stride: int, zero: Array | None) -> Callable[[Array], Array]:
    """Weights [c, 1, ..., cols] to i8 [blocks][rows][chunks][forms][4][lanes][4], see `pixels_dot`."""
    chunks, forms = chunks_of(cols, stride)

    def pack(filters: Array) -> Array:
        parts = parts_of(filters, zero)
        _, c, rows, _ = parts.shape
        taps = np.zeros((c, MOST_PARTS * rows, forms, 4 * chunks), np.int8)
        for form in range(forms):
            taps[:, :, form, form : form + cols] = np.concatenate(list(parts), axis=1)
        made = []
        for (first, width), count in zip(cut(c), rows_of_blocks(parts), strict=True):
            block = taps[first : first + width, :count].reshape(width // 16, 4, 4, count, forms, chunks, 4)
            made.append(block.transpose(3, 5, 4, 1, 0, 2, 6).reshape(-1))  # lane 4 L + i of vector q: 16 L + 4 q + i
        return np.concatenate(made)

    return pack


def block_table(filters: Array, zero: Array | None, stride: int) -> Array:
    """Blocks of channels, see `BLOCK_FIELDS`."""
    c, cols = filters.shape[0], filters.shape[-1]
    table = np.zeros((len(cut(c)), BLOCK_FIELDS), np.int64)
    table[:, :2], table[:, 4] = cut(c), math.prod(filters.shape[1:-1])
    if filters.dtype == U8 or (zero is not None and zero.any()):
        table[:, 4] = rows_of_blocks(parts_of(filters, zero))
    sizes = 4 * math.prod(chunks_of(cols, stride)) * table[:, 1] * table[:, 4]
    table[:, 2] = np.cumsum(sizes) - sizes
    table[:, 3] = 4 * PART_ROWS * (np.cumsum(table[:, 1]) - table[:, 1])
    return table


def _accepts(op: ByteConv, ins: Types) -> bool:
    """Filters of up to `MOST_TAPS` columns on a line or a plane, of known zero points."""
    if not is_depthwise(op, ins):
        return False
    at = places_of(op)
    x, w = sides(ins, at)
    zero = given(ins, at.zero_b)
    if len(x.dims) not in (3, 4) or x.dims[-1] < WIDTHS[-1] or w.dims[-1] > MOST_TAPS:
        return False
    if zero is not None and zero.known is None:
        return False
    strides, dilations = op.strides or (1,), op.dilations or (1,)
    return strides[-1] in (1, 2) and (dilations[-1] == 1 or strides[-1] == 1)


@kernel(ConvInteger, QLinearConv, accepts=_accepts, rank=20)
def conv_bytes_pixels(op: ByteConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tiles of pixels by vectors of channels."""
    at = places_of(op)
    x, w = sides(ins, at)
    plane = plane_fields(op, x, w, outs[0])
    c, rows, cols, sw = (plane[name] for name in ("c", "rows", "cols", "sw"))
    given_zero = given(ins, at.zero_b)
    zero = None if given_zero is None else content(given_zero.known)

    def sums(filters: Array) -> Array:
        made = np.zeros(whole_vectors(c) // 4, np.int32)
        made[:c] = filters.reshape(c, -1).sum(axis=1, dtype=np.int32) - (128 * rows * cols if w.dtype == U8 else 0)
        return made

    source, steps = unsigned_step(x, In(at.a), context)
    table = block_table(content(w.known), zero, sw)
    key = None if zero is None else zero.tobytes()
    total = context.packed(w.known, "sums of filters", sums)
    panels = Panels(1, 1, rows * cols, c)
    columns, outside, made = columns_of(op, ins, at, panels, rows * cols, total, 4 * WIDTHS[0], context)
    parallel = is_parallel(context, 2 * outs[0].size * rows * cols, x.nbytes)
    step = SUMS_BYTES + -(-4 * PART_ROWS * int(table[:, 1].sum()) // 64) * 64
    args: dict[str, Argument] = {
        "x": source, "w": context.packed(w.known, ("pixels", sw, key), pack_taps(cols, sw, zero)),
        "y": Out(0), "ldc": Pitch(Out(0)), **plane, "outside": outside, "columns": columns, "blocks": table,
        "count": len(table),
        "scratch": Scratch(either(parallel, context.threads, 1) * step), "scratch_step": step,
        **{name: arg for name, arg in finish_args(op, ins, at).items() if name in FIELDS},
    }  # fmt: skip
    return [*steps, *made, Step(depthwise_kernel(cols, sw), args, parallel)]
