"""The loop behind binary products: register tiles that count differing bits, swept over rows of words and filters.

A row of A is what a filter sees at an output pixel: one run of words, or one for each tap; taps outside the image read
zeros.  B is packed as panels of `PANEL` filters, [words of K][PANEL].  With bits for -1 and 1 the sum of K products
is K less twice the bits that differ; what stands for other numbers, and for taps outside, is in numbers of the columns.
Sums are exact, so nothing depends on tiles or threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    CODE,
    LANES,
    call_activation,
    ceil_div,
    fill_bytes,
    lanes_below,
    load_i32,
    load_i64,
    mask_bits,
    rows_load,
    split,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
    tile_add_integers,
    tile_count_rows,
    tile_store,
    tile_sum_bytes,
    tile_zeros,
    to_f32,
    vload,
    vload_i32,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.epilogue import put
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.sweep import by_height
from bolt_numba.kernels.cpu.products.sweep_bytes import HEIGHT, VARIANTS, height
from bolt_numba.kernels.cpu.products.sweep_extents import greatest, last_row
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, Inline, inline, native
from bolt_numba.ops.layers.products.binary import WORD

IN_WORDS = target().has_popcount
"""Whether tiles count in i32; else in bytes."""
CHUNK = 31
"""Words whose bits a byte can count."""
WHOLE = frozenset({"nsz"})
"""Freedoms of floating point: sum and bias are two roundings, as in the reference."""
ROW = 2 * BYTES
"""Bytes of a row of a stored tile."""


def _tile(mr: int, nv: int) -> Inline:
    """The micro-kernel: counts of one tile, as i32.  skip: bytes before what counts of each run."""

    @inline
    def in_words(rows, run_step, runs, skip, length, b, to):
        acc = tile_zeros(mr, nv)
        for r in range(runs):
            at = rows_load(mr, rows + run_step * r, 8, 0)
            for q in range(skip, skip + 4 * length, 4):
                acc = tile_count_rows(acc, at, q, b)
                b += BYTES * nv
        tile_store(acc, to, ROW)

    @inline
    def in_bytes(rows, run_step, runs, skip, length, b, to):
        acc, left = tile_zeros(mr, nv), CHUNK
        tile_store(acc, to, ROW)
        for r in range(runs):
            at, q = rows_load(mr, rows + run_step * r, 8, 0), 0
            while q < length:
                count = min(left, length - q)
                for _ in range(count):
                    acc = tile_count_rows(acc, at, skip + 4 * q, b)
                    b += BYTES * nv
                    q += 1
                left -= count
                if left == 0:
                    tile_store(tile_add_integers(tile_sum_bytes(acc), to, ROW), to, ROW)
                    acc, left = tile_zeros(mr, nv), CHUNK
        tile_store(tile_add_integers(tile_sum_bytes(acc), to, ROW), to, ROW)

    return in_words if IN_WORDS else in_bytes


tile_any_bits = by_height("tile_any_bits", "rows, run_step, runs, skip, length, b, to", _tile, VARIANTS)


@inline
def copy_words(p, a, row, to):
    """Copy what a filter sees at one pixel, one or two words a tap."""
    table, step, lda, zeros, taps = p.table + 4 * row, 4 * p.m, p.lda, p.zeros, p.taps
    if p.words == 2:
        for t in range(taps):
            pixel = load_i32(table + step * t)
            store_i64(to + 8 * t, load_i64(a + lda * pixel if pixel >= 0 else zeros))
    else:
        for t in range(taps):
            pixel = load_i32(table + step * t)
            store_i32(to + 4 * t, load_i32(a + lda * pixel if pixel >= 0 else zeros))


@inline
def place_words(p, a, row, rows, copy, run_step, twice):
    """Write the addresses of a row's runs to ``rows``; a row of few words a tap is copied to one run first."""
    if p.table == 0:
        store_i64(rows, a + p.lda * row)
    elif p.copied != 0:
        copy_words(p, a, row, copy)
        if twice:
            copy_words(p, a + p.apart, row, copy + 4 * p.words * p.taps)
        store_i64(rows, copy)
    else:
        table, step, lda, zeros = p.table + 4 * row, 4 * p.m, p.lda, p.zeros
        for t in range(p.taps):
            pixel = load_i32(table + step * t)
            store_i64(rows + run_step * t, a + lda * pixel if pixel >= 0 else zeros)


@inline
def packs_differ(a, lda, pixels, words, apart):
    """Whether the second pack of any pixel, ``apart`` bytes behind the first, is another."""
    for pixel in range(pixels):
        at = a + lda * pixel
        for q in range(0, 4 * words, 4):
            if load_i32(at + q) != load_i32(at + q + apart):
                return True
    return False


@inline
def sums_of(counts, more, base):
    """Sums from counts of bits, which are added up."""
    return vload_i32(base) - vload_i32(counts) - vload_i32(more)


@inline
def finish_sums(p, counts, more, mr, first, columns, base, c, res, n):
    """Sums of a tile to f32.  first: the tile's first row.  columns: scales, then biases, ``p.width`` bytes on."""
    has_res, patterns, width, ldc, ldr, lo, hi = int(p.res != 0), p.patterns, p.width, p.ldc, p.ldr, p.lo, p.hi
    for v in range(0, 4 * n, BYTES):
        scale, bias = vload(columns + v), vload(columns + width + v)
        for i in range(mr):
            at = base + v if patterns == 0 else base + v + width * load_i32(patterns + 4 * (first + i))
            y = to_f32(sums_of(counts + ROW * i + v, more + ROW * i + v, at)) * scale + bias
            put(y, c + 4 * ldc * i + v, res + 4 * ldr * i + v, has_res, n - v // 4, lo, hi)


@inline
def finish_bits(p, counts, more, mr, first, columns, base, to, n):
    """Bits of the sums of a tile that reach their thresholds, as a panel's part of each row's words."""
    patterns, width, ldc = p.patterns, p.width, p.ldc
    for i in range(mr):
        at, found = base if patterns == 0 else base + width * load_i32(patterns + 4 * (first + i)), 0
        for v in range(0, n, LANES):
            total = sums_of(counts + ROW * i + 4 * v, more + ROW * i + 4 * v, at + 4 * v)
            found |= mask_bits((total >= vload_i32(columns + 4 * v)) & lanes_below(n - v)) << v
        row = to + 4 * ldc * i
        if PANEL == 32:
            store_i32(row, np.int32(found))
        elif PANEL == 16:
            store_u16(row, np.uint16(found))
        else:
            store_u8(row, np.uint8(found))


@inline
def fill_words(to, ldc, count, done, whole):
    """Zeros behind the last panel of ``count`` rows, from byte ``done`` of a row to ``whole``."""
    for i in range(count):
        for q in range(done, whole):
            store_u8(to + 4 * ldc * i + q, np.uint8(0))


def _swept(a: Any) -> dict[str, Reach]:
    some = a.blocks * a.m * a.n > 0
    columns = -(-a.n // LANES)
    runs = 1 if a.copied or a.table is None else a.taps
    last = a.m - 1 if a.table is None else last_row(a.table)
    packs = 2 if a.apart else 1
    row = a.apart + 4 * a.words
    a_end = greatest(a.offsets, a.blocks, 0, 0, 0) + a.lda * max(last, a.pixels - 1 if packs > 1 else 0) + row
    at_b, at_columns = (greatest(a.offsets, a.blocks, 0, i, i) if some else 0 for i in (1, 2))
    c, res = (greatest(a.offsets, a.blocks, ld, 4, 3) + ld * (a.m - 1) for ld in (a.ldc, a.ldr)) if some else (0, 0)
    used = 2 * HEIGHT * ROW + (a.span + HEIGHT) * (8 * runs + a.copy_step)
    bits = a.scaled == 0
    return {
        "a": a_end if some and a.words else 0,
        "b": at_b + columns * BYTES * a.words * a.taps if some else 0,
        "c": 4 * (c + (-(-a.n // WORD) if bits else a.n)) if some else 0,
        "res": 4 * (res + a.n) if some and a.res is not None else 0,
        "offsets": 8 * BLOCK_FIELDS * a.blocks,
        "table": 4 * a.taps * a.m,
        "patterns": 4 * a.m,
        "zeros": row,
        "columns": at_columns + columns * BYTES + (0 if bits else a.width) if some else 0,
        "base": at_columns + columns * BYTES + a.width * (a.kinds - 1) if some else 0,
        "scratch": (a.threads - 1) * a.scratch_step + used,
    }


@native(
    fastmath=WHOLE, a=PTR, lda=I64, apart=I64, pixels=I64, b=PTR, c=PTR, ldc=I64, res=PTR_OR_0, ldr=I64, blocks=I64,
    offsets=PTR, m=I64, n=I64, table=PTR_OR_0, patterns=PTR_OR_0, kinds=I64, taps=I64, words=I64, copied=I64,
    zeros=PTR_OR_0, columns=PTR, width=I64, base=PTR, scaled=I64, half=I64, lo=F32, hi=F32, act=CODE, scratch=PTR,
    scratch_step=I64, copy_step=I64, span=I64, share=I64, extents=_swept,
)  # fmt: skip
def sweep_bits(p, tid, nthreads):
    """Fields.

    lda: bytes between pixels of ``words`` words; apart: bytes to their second pack, which counts where it differs, or
    0; pixels: of a block.  ldc, ldr: elements between rows.  offsets: i64 [blocks][`BLOCK_FIELDS`].  table: i32
    [taps][m], input pixel of each tap at each output pixel or -1; 0 when row i of A is its i-th row.
    patterns: i32 [m], which of ``kinds`` rows of ``base`` a pixel has, or 0.  zeros: what taps outside read.
    columns: scales and biases, or thresholds where ``scaled`` is 0 (the result is bits then).  base: i32 sums where no
    bit differs; width: bytes between rows of these.  half: whether a bit that differs counts 1 less, not 2.
    scratch: ``scratch_step`` bytes a thread: two tiles, addresses of runs, copies (`scratch_bytes`).
    """
    m, n, span, words = p.m, p.n, p.span, p.words
    runs, length = (p.taps, words) if p.table != 0 and p.copied == 0 else (1, words * p.taps)
    counts = p.scratch + p.scratch_step * tid
    others = counts + HEIGHT * ROW
    rows, run_step = others + HEIGHT * ROW, 8 * (span + HEIGHT)
    copies, panel_words = rows + run_step * runs, words * p.taps
    block_lo, block_hi = (0, p.blocks) if p.share != 2 else split(p.blocks, tid, nthreads)
    i_lo, i_hi = (0, m) if p.share != 0 else split(m, tid, nthreads)
    j_lo, j_hi = (0, ceil_div(n, PANEL)) if p.share != 1 else split(ceil_div(n, PANEL), tid, nthreads)
    for block in range(block_lo, block_hi):
        entry = p.offsets + 8 * BLOCK_FIELDS * block
        a, b, first = p.a + load_i64(entry), p.b + load_i64(entry + 8), load_i64(entry + 32)
        at, column = load_i64(entry + 16), load_i64(entry + 24)
        columns, base = p.columns + at, p.base + at
        twice = p.apart != 0 and packs_differ(a, p.lda, p.pixels, words, p.apart)
        second = 4 * panel_words if p.copied != 0 else p.apart
        more = others if twice or p.half != 0 else counts
        if p.half != 0:
            fill_bytes(others, np.uint8(0), HEIGHT * ROW)
        i0 = i_lo
        while i0 < i_hi:
            count = span if i_hi - i0 >= span + HEIGHT else i_hi - i0
            for i in range(count):
                place_words(p, a, i0 + i, rows + 8 * i, copies + p.copy_step * i, run_step, twice)
            for j in range(PANEL * j_lo, PANEL * j_hi, PANEL):
                i, width = 0, min(n - j, PANEL)
                while i < count:
                    mr = height(count - i)
                    panel, row = b + 4 * j * panel_words, first + i0 + i
                    tile_any_bits(mr, width, rows + 8 * i, run_step, runs, 0, length, panel, counts)
                    if twice:
                        tile_any_bits(mr, width, rows + 8 * i, run_step, runs, second, length, panel, more)
                    if p.scaled != 0:
                        to, res = p.c + 4 * (p.ldc * row + column + j), p.res + 4 * (p.ldr * row + column + j)
                        finish_sums(p, counts, more, mr, i0 + i, columns + 4 * j, base + 4 * j, to, res, width)
                        if p.act != 0:
                            call_activation(p.act, to, width + (mr << 32), 4 * p.ldc)
                    else:
                        to = p.c + 4 * (p.ldc * row + column) + j // 8
                        finish_bits(p, counts, more, mr, i0 + i, columns + 4 * j, base + 4 * j, to, width)
                    i += mr
            if p.scaled == 0 and j_hi == ceil_div(n, PANEL):
                to = p.c + 4 * (p.ldc * (first + i0) + column)
                fill_words(to, p.ldc, count, PANEL // 8 * j_hi, 4 * ceil_div(n, WORD))
            i0 += count


BLOCK_FIELDS = 5
"""Entries of a block: byte offsets of A, B and columns; first column (or word) and first row of C."""


def scratch_bytes(span: int, runs: int, copy_step: int) -> int:
    """Workspace of one thread."""
    used = 2 * HEIGHT * ROW + (span + HEIGHT) * (8 * runs + copy_step)
    return -(-used // 64) * 64
