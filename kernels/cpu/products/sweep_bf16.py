"""The loop of `sweep` for products of bfloat16: packed weights of two bytes, sums in f32.

Operands and results are f32 or bfloat16 in memory, each by itself.  Rows of A, of a matrix or what filters see at
output pixels, are copied to workspace as bfloat16 (to nearest, ties to even), a span at a time, then meet every panel
of B.  Panels hold the rows of B in pairs: [ceil(K / 2)][columns][2], zero-padded, so that one instruction multiplies
and adds two of them.

Sums run over K in order, whatever the tiles and the threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import partial

import numpy as np

from bolt_numba.base.types import U32
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    call_activation,
    ceil_div,
    load_i32,
    load_i64,
    pair_bf16,
    prefetch,
    rows_strided,
    splat,
    split,
    store_i16,
    tile_add_stored,
    tile_cleared,
    tile_dot_rows_bf16,
    tile_finish_bf16,
    tile_prefetch,
    tile_row,
    tile_store,
    vload,
    vload_bf16_n,
    vload_i32,
    vload_n,
    vstore,
    vstore_bf16_n,
    vstore_bf16_two,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.pack_narrow import pack_narrow, packing
from bolt_numba.kernels.cpu.products.sweep import (
    A_BYTES,
    B_BYTES,
    BLOCK_FIELDS,
    MR,
    ROW,
    STEPS,
    TILE,
    by_height,
    pack_stride,
)
from bolt_numba.kernels.cpu.products.sweep_extents import FIELDS, sweep_bf16_reach
from bolt_numba.kernels.jit import I64, PTR, Inline, inline, native

# ------------------------------------------------------------------------------------------------------------- packing


@inline
def _put_pairs(to, rows, width, count):
    zero = splat(np.float32(0))
    for q in range(0, count, 2):
        for v in range(0, width, LANES):
            at = rows + 4 * (width * q + v)
            high = vload(at + 4 * width) if q + 1 < count else zero
            vstore(to + 4 * v, pair_bf16(vload(at), high))
        to += 4 * width


pack_pairs = packing("pack_pairs", 2, _put_pairs)
pack_panels_bf16 = partial(pack_narrow, pack_pairs, U32, 2)
"""[..., K, N] of any strides to panels of pairs, u32; rows: i32 [K], where each source row goes, or None."""


# --------------------------------------------------------------------------------------------------------------- sweep


def _tile(mr: int, nv: int) -> Inline:
    """The micro-kernel: one tile of C, or what a part of K adds to it; the sums so far are at ``sums``."""
    thin = mr <= 2

    @inline
    def tile(at, ld, pairs, b, ahead, step, sums, begins, ends, bias, c, ldc, res, ldr, n, lo, hi, kind):
        acc = tile_row(mr, nv, bias)
        if begins == 0:
            acc = tile_cleared(acc)
        if ends != 0:
            tile_prefetch(acc, c, ldc, 1)
            if res != 0:
                tile_prefetch(acc, res, ldr, 0)
        rows = rows_strided(mr, at, ld)
        for q in range(pairs):
            acc = tile_dot_rows_bf16(acc, rows, 4 * q, b)
            prefetch(ahead)
            if thin:
                prefetch(ahead + 64)
            b += BYTES * nv
            ahead += step
        if begins == 0:
            acc = tile_add_stored(acc, sums, ROW)
        if ends != 0:
            tile_finish_bf16(acc, c, ldc, n, res, ldr, lo, hi, kind)
        else:
            tile_store(acc, sums, ROW)

    return tile


tile_any_bf16 = by_height(
    "tile_any_bf16", "at, ld, pairs, b, ahead, step, sums, begins, ends, bias, c, ldc, res, ldr, n, lo, hi, kind", _tile
)


@inline
def round_run(to, source, n):
    """N f32 as bfloat16; whole vectors are written, zeros behind the last."""
    q = 0
    while q + 2 * LANES <= n:
        vstore_bf16_two(to + 2 * q, vload(source + 4 * q), vload(source + 4 * q + BYTES))
        q += 2 * LANES
    if q < n:
        vstore_bf16_two(to + 2 * q, vload_n(source + 4 * q, n - q), vload_n(source + 4 * q + BYTES, n - q - LANES))


@inline
def place_run(to, source, n, kind):
    """`round_run`, or a copy of n bfloat16 that writes whole vectors."""
    if kind & NARROW_A == 0:
        round_run(to, source, n)
        return
    q, end = 0, n if kind & PADDED else n - 2 * LANES + 1
    while q < end:
        vstore(to + 2 * q, vload_i32(source + 2 * q))
        q += 2 * LANES
    if q < n:
        low, high = vload_bf16_n(source + 2 * q, n - q), vload_bf16_n(source + 2 * (q + LANES), n - q - LANES)
        vstore_bf16_two(to + 2 * q, low, high)


@inline
def zero_run(to, n):
    """As `round_run` of zeros."""
    zero = splat(np.float32(0))
    for q in range(0, n, 2 * LANES):
        vstore_bf16_two(to + 2 * q, zero, zero)


@native(x=PTR, y=PTR, n=I64, extents=lambda a: {"x": 4 * a.n, "y": BYTES * -(-a.n // (2 * LANES))})
def round_values(p, tid, nthreads):
    """y[i] = bfloat16 nearest to x[i]; y has room for `SLACK` bytes more."""
    lo, hi = split(ceil_div(p.n, 2 * LANES), tid, nthreads)
    begin, end = 2 * LANES * lo, min(2 * LANES * hi, p.n)
    round_run(p.y + 2 * begin, p.x + 4 * begin, end - begin)


AS_F32, NARROW_A, NARROW_C, NARROW_RESIDUAL, PADDED = 0, 1, 2, 4, 8
"""Kinds of a product: which operands are bfloat16; A has `SLACK` behind it."""
SLACK = 4 * BYTES
"""Bytes behind bfloat16 that vectors may reach into."""


@inline
def place_row(p, to, a, i):
    """Copy row i of A.  Runs are written in order, so that each covers what the one before wrote too much."""
    kind, end = p.kind, to + 2 * p.k
    narrow = kind & NARROW_A
    lda, table, edges = (4 - 2 * narrow) * p.lda, p.table + 4 * i, p.edges + 4 * i
    if p.table == 0:
        place_run(to, a + lda * i, p.k, kind)
    elif load_i32(edges) == load_i32(edges + 4):
        a += lda * load_i32(table)
        length, run = p.length, p.run_rows
        if kind & PADDED and length <= 2 * LANES:  # a vector for each run
            for q in range(p.runs):
                vstore(to + 2 * length * q, vload_i32(a + lda * load_i64(run + 8 * q)))
            store_i16(end, 0)
            return
        for _ in range(p.runs):
            place_run(to, a + lda * load_i64(run), length, kind)
            to += 2 * length
            run += 8
    else:
        for t in range(p.taps):
            pixel = load_i32(table + 4 * p.m * t)
            if pixel >= 0:
                place_run(to + 2 * p.depth * t, a + lda * pixel, p.depth, kind)
            else:
                zero_run(to + 2 * p.depth * t, p.depth)
    if narrow != 0:
        store_i16(end, 0)


@inline
def round_tile(to, ld, tile, mr, n):
    """The first n columns of a tile of f32 as bfloat16."""
    for _ in range(mr):
        if n >= PANEL:
            vstore_bf16_two(to, vload(tile), vload(tile + BYTES))
        else:
            vstore_bf16_n(to, vload(tile), n)
            vstore_bf16_n(to + BYTES // 2, vload(tile + BYTES), n - LANES)
        to += ld
        tile += ROW


@native(extents=sweep_bf16_reach, **FIELDS)
def sweep_bf16(p, tid, nthreads):
    """`FIELDS`, but for what follows.

    b: panels of pairs.  scratch: ``scratch_step`` bytes a thread: copied rows, ``pack_ld`` bytes apart, and sums of
    long rows, see `scratch_bytes`.  kind: which operands are bfloat16.  zeros: not used.  terms: a part of K, even: all
    panels are swept for one before the next, so that rows and panels are short enough for caches.
    """
    kind, m, n, span, share, ld = p.kind, p.m, p.n, p.span, p.share, p.pack_ld
    unit, to_unit, res_unit = 4 - 2 * (kind & NARROW_A), 4 - (kind & NARROW_C), 4 - (kind & NARROW_RESIDUAL) // 2
    lda, ldc, ldr = unit * p.lda, to_unit * p.ldc, res_unit * p.ldr
    offsets, lo, hi, act, pairs, part = p.offsets, p.lo, p.hi, p.act, (p.k + 1) // 2, p.terms // 2
    rows, high = p.scratch + p.scratch_step * tid, span + MR
    stored, kept = rows + ld * high + SLACK, ROW if pairs > part else 0
    turned = act != 0 and kind & NARROW_C  # through workspace, where the activation finds f32
    tile_kind = kind & NARROW_RESIDUAL if turned else kind
    block_lo, block_hi = (0, p.blocks) if share != 2 else split(p.blocks, tid, nthreads)
    i_lo, i_hi = (0, m) if share != 0 else split(m, tid, nthreads)
    j_lo, j_hi = (0, ceil_div(n, PANEL)) if share != 1 else split(ceil_div(n, PANEL), tid, nthreads)
    step = ceil_div(ceil_div(i_hi - i_lo, max(ceil_div(i_hi - i_lo, span), 1)), MR) * MR
    for block in range(block_lo, block_hi):
        entry = offsets + 8 * BLOCK_FIELDS * block
        a = p.a + lda * load_i64(entry) + unit * load_i64(entry + 8)
        b, bias = p.b + load_i64(entry + 16), p.bias + load_i64(entry + 24)
        c_row, c_col = load_i64(entry + 32), load_i64(entry + 40)
        c = p.c + ldc * c_row + to_unit * c_col
        res = 0 if p.res == 0 else p.res + ldr * c_row + res_unit * c_col
        i0 = i_lo
        while i0 < i_hi:
            count = step if i_hi - i0 >= step + MR else i_hi - i0
            for i in range(count):
                place_row(p, rows + ld * i, a, i0 + i)
            tiles = ceil_div(count, MR)
            # Where B stays in cache, the rows of the next span are brought closer while this one is swept.
            rows_ahead, rows_step = a + lda * (i0 + count), 0
            if span == MR and p.table == 0:
                rows_step = lda * MR // ((j_hi - j_lo) * tiles * pairs)
            for first in range(0, max(pairs, 1), max(part, 1)):
                some, ends = min(part, pairs - first), 1 if first + part >= pairs else 0
                for j in range(j_lo, j_hi):
                    col, width = 4 * PANEL * j, 4 * PANEL if n > PANEL * j + LANES else BYTES
                    panel, sums = b + col * pairs + width * first, stored + kept * high * (j - j_lo)
                    over = 0 if res == 0 else res + ldr * i0 + res_unit * PANEL * j
                    # Else the next panel is, a part with every tile.
                    ahead, ahead_step = rows_ahead, rows_step
                    rows_ahead += rows_step * tiles * some
                    if rows_step == 0 and j + 1 < j_hi:
                        ahead, ahead_step = panel + 4 * PANEL * pairs, ceil_div(4 * PANEL, tiles)
                    elif rows_step == 0 and ends == 0:
                        ahead, ahead_step = b + 4 * PANEL * (j_lo * pairs + first + some), ceil_div(4 * PANEL, tiles)
                    i = 0
                    while i < count:
                        left = count - i
                        mr = MR if left >= 2 * MR else STEPS[left]
                        to, tile = c + ldc * (i0 + i) + to_unit * PANEL * j, sums + kept * i
                        at, step_at = (tile, ROW) if turned else (to, ldc)
                        tile_any_bf16(
                            mr, rows + ld * i + 4 * first, ld, some, panel, ahead, ahead_step, tile, first == 0, ends,
                            bias + col, at, step_at, 0 if res == 0 else over + ldr * i, ldr, n - PANEL * j, lo, hi,
                            tile_kind,
                        )  # fmt: skip
                        if act != 0 and ends != 0:
                            call_activation(act, at, min(n - PANEL * j, PANEL) + (mr << 32), step_at)
                            if turned:
                                round_tile(to, ldc, tile, mr, n - PANEL * j)
                        i += mr
                        ahead += ahead_step * some
            i0 += count


def choose_span(m: int, n: int, k: int, terms: int) -> int:
    """Rows swept over each panel, or each part of ``terms`` of it: see `sweep.choose_span`."""
    if 2 * k * n <= B_BYTES:
        return MR
    rows = min(A_BYTES // max(2 * min(k, terms), 1), 16 * MR, m + MR)
    return max(rows // MR, 1) * MR


def row_stride(k: int) -> int:
    """Bytes between copied rows."""
    return pack_stride(2 * k + 2)


def scratch_bytes(span: int, n: int, k: int, terms: int) -> int:
    """Workspace of one thread: rows, of which the last vector may reach past its end, and their sums if K has parts."""
    sums = ROW * (span + MR) * -(-n // PANEL) if k > terms else TILE
    return (span + MR) * row_stride(k) + SLACK + sums
