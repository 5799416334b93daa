"""The loop behind products of bytes: register tiles of i32 swept over rows of A and packed panels of B.

A is taken as u8 and B as i8, which is what the processor multiplies: the other signedness has its highest bit flipped,
and the zero points with it.  With those a' and b', sum((a' - za)(b' - zb)) is the sum of a' b', less zb times the sum
of the row's a' and less za times the sum of the column's (b' - zb).

A row of A is one or several runs of ``length`` bytes at any addresses (the taps of a convolution; outside the image
they read the zero point).  B is packed as panels of `PANEL` columns, [fours of K][PANEL][4]; zeros fill up the last
four of a run.  Sums are exact, so nothing depends on tiles or threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    dot_bytes,
    fill_bytes,
    lanes_below,
    load_f32,
    load_i8,
    load_i32,
    load_i64,
    load_u8,
    reduce_add,
    rows_load,
    select,
    shift_right_logical,
    splat,
    split,
    store_i32,
    store_i64,
    store_u8,
    tile_dot_rows_bytes,
    tile_store,
    tile_zeros,
    to_f32,
    to_i32,
    vabs,
    vload,
    vload_i32,
    vload_i32_n,
    vload_n,
    vload_u8_n,
    vmax,
    vmin,
    vround,
    vstore,
    vstore_n,
    vstore_u8,
    vstore_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.sweep import by_height
from bolt_numba.kernels.cpu.products.sweep_extents import greatest
from bolt_numba.kernels.extents import Reach, box
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, inline, native
from bolt_numba.ops.layers.integer_products import RAISED, SMALL_SCALE
from bolt_numba.types import Array

EXACT = frozenset({"contract", "nsz"})
"""No reciprocals: the scale of a result decides which way a half is rounded."""
VARIANTS = (12, 8, 4, 2, 1) if target().registers >= 32 else (4, 2, 1)
"""Heights of tiles."""
HEIGHT = VARIANTS[0]
ONES = 0x01010101

FLIPS = np.repeat(np.array([0, -0x7F7F7F80], np.int32), LANES).reshape(2, LANES)
"""Vectors of bits that make signed bytes unsigned ones and back, or leave them: by `flips`."""


def flips(flip: bool) -> Array:
    made: Array = FLIPS[int(flip)]
    return made


# ------------------------------------------------------------------------------------------------------------- packing


def _vectors(n: int) -> int:
    """Bytes of n i32 in whole vectors."""
    return -(-n // LANES) * BYTES


def _packed(a: Any) -> dict[str, Reach]:
    to = a.blocks * _vectors(a.n) * (1 + a.runs * -(-a.length // 4))
    return {"b": box(a.n, (a.blocks, a.block), (a.runs * a.length, a.row)), "to": to, "flip": BYTES}


@native(b=PTR, to=PTR, flip=PTR, blocks=I64, block=I64, row=I64, runs=I64, length=I64, n=I64, extents=_packed)
def pack_bytes(p, tid, nthreads):
    """Sums of columns, i32 [blocks][columns of whole vectors], and panels of ``blocks`` matrices.

    These have runs * length rows, ``row`` bytes apart, and are ``block`` bytes apart.  flip: bits (see `FLIPS`).
    """
    runs, length, n, flip = p.runs, p.length, p.n, vload_i32(p.flip)
    fours, columns = ceil_div(length, 4), ceil_div(n, LANES)
    lo, hi = split(p.blocks * columns, tid, nthreads)
    for unit in range(lo, hi):
        block, v = unit // columns, unit % columns
        j = v * LANES
        width = BYTES if v == columns - 1 and v % 2 == 0 else 2 * BYTES
        source = p.b + p.block * block + j
        panel = block * columns * LANES + j // PANEL * PANEL
        to = p.to + p.blocks * columns * BYTES + panel * runs * fours * 4 + v % 2 * BYTES
        total = splat(np.int32(0))
        for r in range(runs):
            for q in range(0, length, 4):
                four = splat(np.int32(0))
                for i in range(min(length - q, 4)):
                    four = four | (vload_u8_n(source + p.row * (r * length + q + i), n - j) << np.int32(8 * i))
                rest = splat(np.int32(8 * max(q + 4 - length, 0)))
                four = four ^ shift_down(flip, rest)
                vstore(to, four)
                total = dot_bytes(total, splat(np.int32(ONES)), four)
                to += width
        vstore(p.to + 4 * (block * columns * LANES + j), total)


@inline
def shift_down(bits, n):
    """The bits of whole bytes without the last ``n / 8`` of each four."""
    return bits & shift_right_logical(splat(np.int32(-1)), n)


COLUMN_ROWS = 4
"""Rows of `prepare_columns` results: addend, zero point of B, factor (f32), sum of (b' - zb)."""


def _prepared(a: Any) -> dict[str, Reach]:
    def each(given: int) -> int:
        """Columns that ``given`` zero points or scales are read for."""
        return 1 if given == 1 else a.n if given <= a.n else a.blocks * a.n

    sums, one = a.blocks * _vectors(a.n), 4 if a.scale_b is not None else 0
    return {
        "sums": sums, "to": COLUMN_ROWS * sums, "zero_a": 1, "zero_b": each(a.zeros_b), "bias": 4 * a.blocks * a.n,
        "scale_a": one, "scale_b": one * each(a.scales_b), "scale_y": one, "outside": a.length,
    }  # fmt: skip


@inline
def ratio(a, b, y):
    """``a * b / y`` where ``a * b`` alone may be too small for a normal number; see `ops.quantize.scale_ratio`."""
    up = select(vabs(a * b) < splat(np.float32(SMALL_SCALE)), splat(np.float32(RAISED)), splat(np.float32(1)))
    return (a * up) * (b * up) / (y * up * up)


@native(
    fastmath=EXACT, sums=PTR, to=PTR, blocks=I64, n=I64, k=I64, zero_a=PTR, flip_a=I64, zero_b=PTR, zeros_b=I64,
    flip_b=I64, bias=PTR_OR_0, scale_a=PTR, scale_b=PTR_OR_0, scales_b=I64, scale_y=PTR, rows=I64, outside=PTR_OR_0,
    length=I64, extents=_prepared,
)  # fmt: skip
def prepare_columns(p, tid, nthreads):
    """Numbers of each column of each block of B: i32 or f32 [blocks][`COLUMN_ROWS`][columns of whole vectors].

    zero_a: the one zero point of A; ``rows``: each row has its own, which are left to the sweep.  zeros_b, scales_b:
    how many there are, one, one a column, or one a column of each block.  bias, scales: or 0.  flip_a, flip_b: 128 or
    0.  outside: ``length`` bytes that get A's zero point, or 0.
    """
    n, columns = p.n, ceil_div(p.n, LANES)
    zero_a = 0 if p.rows else load_u8(p.zero_a) ^ p.flip_a
    if p.outside != 0:
        fill_bytes(p.outside, load_u8(p.zero_a), p.length)
    for unit in range(p.blocks * columns):
        block, j = unit // columns, unit % columns * LANES
        left, place = n - j, block * n + j if p.zeros_b > n else j
        to, width = p.to + block * COLUMN_ROWS * columns * BYTES + 4 * j, columns * BYTES
        zero = splat(np.int32(load_u8(p.zero_b))) if p.zeros_b == 1 else vload_u8_n(p.zero_b + place, left)
        zero = ((zero ^ splat(np.int32(p.flip_b))) << np.int32(24)) >> np.int32(24)
        sums = vload_i32(p.sums + block * columns * BYTES + 4 * j) - zero * splat(np.int32(p.k))
        bias = splat(np.int32(0)) if p.bias == 0 else vload_i32_n(p.bias + 4 * (block * n + j), left)
        vstore(to, bias - sums * splat(np.int32(zero_a)))
        vstore(to + width, zero)
        vstore(to + 3 * width, sums)
        if p.scale_b != 0:
            place = block * n + j if p.scales_b > n else j
            scale = splat(load_f32(p.scale_b)) if p.scales_b == 1 else vload_n(p.scale_b + 4 * place, left)
            vstore(to + 2 * width, ratio(splat(load_f32(p.scale_a)), scale, splat(load_f32(p.scale_y))))


# ------------------------------------------------------------------------------------------------------------ the tile


def _tile(mr: int, nv: int) -> Any:
    """The micro-kernel: one tile of sums."""

    @inline
    def tile(rows, run_step, runs, length, flip, b, to):
        acc = tile_zeros(mr, nv)
        rest = length & 3
        for r in range(runs):
            at = rows_load(mr, rows + run_step * r, 8, 0)
            for q in range(0, length - 3, 4):
                acc = tile_dot_rows_bytes(acc, at, q, 0, flip, b)
                b += BYTES * nv
            if rest:
                acc = tile_dot_rows_bytes(acc, at, length - 4, 32 - 8 * rest, flip, b)
                b += BYTES * nv
        tile_store(acc, to, 2 * BYTES)

    return tile


tile_any_bytes = by_height("tile_any_bytes", "rows, run_step, runs, length, flip, b, to", _tile, VARIANTS)


@inline
def height(left):
    """Height of the next tile when ``left`` rows are to be done."""
    return HEIGHT if left >= HEIGHT else (8 if left >= 8 else 4 if left >= 4 else 2 if left >= 2 else 1)


@inline
def finish(p, sums, mr, first, row_sums, columns, c, n):
    """Sums of a tile to results: zero points, bias, and for bytes the scale.  first: the tile's first row of A."""
    width = ceil_div(p.n, LANES) * BYTES
    zero_y = np.float32(0)
    if p.zero_y != 0:
        zero_y = np.float32(load_i8(p.zero_y)) if p.low < 0 else np.float32(load_u8(p.zero_y))
    for v in range(0, n, LANES):
        at, m = columns + 4 * v, min(n - v, LANES)
        addend, zero_b, factor, weights = vload_i32(at), vload_i32(at + width), vload(at + 2 * width), at + 3 * width
        for i in range(mr):
            total = vload_i32(sums + 2 * BYTES * i + 4 * v) + addend
            if row_sums != 0:
                total = total - zero_b * splat(load_i32(row_sums + 4 * i))
            if p.zeros_a > 1:
                zero_a = load_u8(p.zero_a + (first + i) % p.zeros_a) ^ p.flip_a
                total = total - vload_i32(weights) * splat(np.int32(zero_a))
            if p.zero_y == 0:
                vstore_n(c + 4 * (p.ldc * i + v), total, m)
            else:
                y = vround(to_f32(total) * factor) + splat(zero_y)
                y = to_i32(vmin(vmax(y, splat(p.low)), splat(p.high)))
                if m == LANES:
                    vstore_u8(c + p.ldc * i + v, y)
                else:
                    vstore_u8_n(c + p.ldc * i + v, y, m)


# ------------------------------------------------------------------------------------------------------------ the rows


@inline
def copy_taps(p, a, row, to):
    """Copy what a filter sees at one pixel; taps that lie side by side in memory at once."""
    depth, t = p.depth, 0
    while t < p.taps:
        pixel = load_i32(p.table + 4 * (p.m * t + row))
        end = t + 1
        if pixel < 0:
            copy_bytes(to + depth * t, p.outside, depth)
        else:
            while p.lda == depth and end < p.taps and load_i32(p.table + 4 * (p.m * end + row)) == pixel + end - t:
                end += 1
            copy_bytes(to + depth * t, a + p.lda * pixel, depth * (end - t))
        t = end


@inline
def place_row(p, a, row, rows, copy):
    """Write the addresses of a row's runs to ``rows``; a row whose runs are short is copied first."""
    run_step = 8 * (p.span + HEIGHT)
    if p.copied != 0:
        if p.table == 0:
            copy_bytes(copy, a + p.lda * row, p.depth)
        else:
            copy_taps(p, a, row, copy)
        for q in range(p.depth * p.taps, p.length):
            store_u8(copy + q, np.uint8(0))
        store_i64(rows, copy)
    elif p.table == 0:
        store_i64(rows, a + p.lda * row)
    else:
        for t in range(p.taps):
            pixel = load_i32(p.table + 4 * (p.m * t + row))
            store_i64(rows + run_step * t, a + p.lda * pixel if pixel >= 0 else p.outside)


@inline
def row_sum(p, rows, flip):
    """Sum of the bytes of a row, flipped."""
    runs = 1 if p.copied != 0 else p.taps
    size = p.depth * p.taps // runs
    total, run_step, one = splat(np.int32(0)), 8 * (p.span + HEIGHT), splat(np.int32(ONES))
    for r in range(runs):
        at, q = load_i64(rows + run_step * r), 0
        while q + 4 * LANES <= size:
            total = dot_bytes(total, vload_i32(at + q) ^ flip, one)
            q += 4 * LANES
        while q < size:
            seen = vload_u8_n(at + q, size - q) ^ (flip & splat(np.int32(255)))
            total = total + select(lanes_below(size - q), seen, splat(np.int32(0)))
            q += LANES
    return reduce_add(total)


def finish_reach(a: Any) -> dict[str, Reach]:
    """Extents of what `finish` and its users read."""
    return {"flip": BYTES, "zero_a": a.zeros_a, "zero_y": 1}


def _swept(a: Any) -> dict[str, Reach]:
    runs, size, some = (1 if a.copied else a.taps), (4 if a.zero_y is None else 1), a.blocks * a.m * a.n > 0
    fours, last = runs * -(-a.length // 4), a.m - 1 if a.table is None else int(a.table.max(initial=-1))
    c = greatest(a.offsets, a.blocks, a.ldc, 4, 3) + a.ldc * (a.m - 1) + a.n if some else 0
    b, columns = (greatest(a.offsets, a.blocks, 0, i, i) if some else 0 for i in (1, 2))
    used = HEIGHT * 2 * BYTES + (a.span + HEIGHT) * (4 + 8 * runs + a.copy_step)
    return {
        "a": greatest(a.offsets, a.blocks, 0, 0, 0) + a.lda * last + a.depth if some else 0,
        "b": b + _vectors(a.n) * fours,
        "c": size * c,
        "offsets": 8 * BLOCK_FIELDS * a.blocks,
        "table": 4 * a.taps * a.m,
        "outside": a.depth,
        "columns": columns + COLUMN_ROWS * _vectors(a.n),
        "scratch": (a.threads - 1) * a.scratch_step + used,
        **finish_reach(a),
    }


@native(
    fastmath=EXACT, a=PTR, lda=I64, b=PTR, c=PTR, ldc=I64, blocks=I64, offsets=PTR, m=I64, n=I64, table=PTR_OR_0,
    taps=I64, depth=I64, length=I64, copied=I64, outside=PTR_OR_0, columns=PTR, sums=I64, flip=PTR, flip_a=I64,
    zero_a=PTR, zeros_a=I64, zero_y=PTR_OR_0, low=F32, high=F32, scratch=PTR, scratch_step=I64, copy_step=I64,
    span=I64, share=I64, extents=_swept,
)  # fmt: skip
def sweep_bytes(p, tid, nthreads):
    """Fields.

    lda: bytes between rows (pixels); ldc: elements between rows.  offsets: i64 [blocks][`BLOCK_FIELDS`].
    table: i32 [taps][m], input pixel of each tap at each output pixel or -1; 0 when row i of A is its i-th row.
    depth: bytes of a tap; length: of a run as packed.  copied: whether a row is copied to one run of ``length`` bytes.
    outside: ``depth`` zero points.  columns: see `prepare_columns`; sums: whether a zero point of B is not 0.
    zeros_a: zero points of rows, 1 when `prepare_columns` has used it.  zero_y: 0 for results of i32; low,
    high: limits of those of bytes.
    scratch: ``scratch_step`` bytes a thread: a tile, sums of rows, addresses of runs, copies (`scratch_bytes`).
    """
    m, n, span, flip = p.m, p.n, p.span, vload_i32(p.flip)
    runs, size = (1 if p.copied != 0 else p.taps), (4 if p.zero_y == 0 else 1)
    tile = p.scratch + p.scratch_step * tid
    totals = tile + HEIGHT * 2 * BYTES
    rows, run_step = totals + 4 * (span + HEIGHT), 8 * (span + HEIGHT)
    copies, fours = rows + run_step * runs, runs * ceil_div(p.length, 4)
    block_lo, block_hi = (0, p.blocks) if p.share != 2 else split(p.blocks, tid, nthreads)
    i_lo, i_hi = (0, m) if p.share != 0 else split(m, tid, nthreads)
    j_lo, j_hi = (0, ceil_div(n, PANEL)) if p.share != 1 else split(ceil_div(n, PANEL), tid, nthreads)
    for block in range(block_lo, block_hi):
        entry = p.offsets + 8 * BLOCK_FIELDS * block
        a, b, first = p.a + load_i64(entry), p.b + load_i64(entry + 8), load_i64(entry + 32)
        columns, c = p.columns + load_i64(entry + 16), p.c + size * (p.ldc * first + load_i64(entry + 24))
        i0 = i_lo
        while i0 < i_hi:
            count = span if i_hi - i0 >= span + HEIGHT else i_hi - i0
            for i in range(count):
                place_row(p, a, i0 + i, rows + 8 * i, copies + p.copy_step * i)
                if p.sums:
                    store_i32(totals + 4 * i, row_sum(p, rows + 8 * i, flip))
            for j in range(PANEL * j_lo, PANEL * j_hi, PANEL):
                i, width = 0, min(n - j, PANEL)
                while i < count:
                    mr = height(count - i)
                    tile_any_bytes(mr, width, rows + 8 * i, run_step, runs, p.length, flip, b + 4 * j * fours, tile)
                    to, seen = c + size * (p.ldc * (i0 + i) + j), totals + 4 * i if p.sums else 0
                    finish(p, tile, mr, first + i0 + i, seen, columns + 4 * j, to, width)
                    i += mr
            i0 += count


BLOCK_FIELDS = 5
"""Entries of a block: byte offsets of A, B and columns; first column and first row of C."""
A_BYTES = L2 // 4
"""What of A is kept in a second-level cache beside the rest."""


def choose_span(m: int, k: int) -> int:
    """Rows swept over each panel: as many as stay in cache."""
    rows = min(A_BYTES // max(k, 1), 16 * HEIGHT, m + HEIGHT)
    return max(rows // HEIGHT, 1) * HEIGHT


def scratch_bytes(span: int, runs: int, copy_step: int) -> int:
    """Workspace of one thread."""
    used = HEIGHT * 2 * BYTES + (span + HEIGHT) * (4 + 8 * runs + copy_step)
    return -(-used // 64) * 64
