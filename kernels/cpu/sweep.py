"""The one loop behind matrix products and convolutions: register tiles swept over rows of A and packed panels of B.

C[i, :] = clamp(sum over K of A-row(i) * B + bias + residual).  A row is either strided memory (a matrix, a 1x1
convolution) or the values that a filter sees at one output pixel; those are read in place where all taps lie inside the
image and are copied to workspace first where some do not.

Shapes: M rows and N columns per block; a block is one batch, image or group.  B is packed: panels of `PANEL` columns,
each [K][PANEL]; the last one is half as wide where half is enough.  Sums run over K in order, so results do not depend
on tiles or threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.cpu.lang import (
    BYTES,
    LANES,
    call_kernel,
    ceil_div,
    load_i32,
    load_i64,
    prefetch,
    rows_load,
    splat,
    split,
    store_i64,
    tile_finish,
    tile_prefetch,
    tile_rank1_rows,
    tile_row,
    vload,
    vload_n,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.pack import PANEL, aligned_zeros
from bolt_numba.kernels.jit import F32, I64, PTR, inline, inline_source, native
from bolt_numba.types import Array

MR = target().rows
INSIDE, COPIED, EDGE = 0, 1, 2
"""Kinds of tiles: A read in place by runs, from a copy, or in place tap by tap with zeros outside."""

BLOCK_FIELDS = 6
"""Entries of a block: first row and column of A, byte offsets of B and bias, first row and column of C."""


def _variants() -> tuple[int, ...]:
    """Tile heights that are compiled: few, yet any count of rows is nearly a sum of tall ones."""
    return (12, 8, 6, 4, 3, 2, 1) if MR == 12 else tuple(r for r in (8, 6, 5, 4, 3, 2, 1) if r <= MR)


VARIANTS = _variants()


def _plan_rows() -> Array:
    """steps[r]: height of the tile to take when r rows are left (r < 2 MR), by least total cost.

    A tile of few rows costs more than its share: it is bound by loads and by the latency of the adds.
    """
    cost, step = [0.0], [0]
    for r in range(1, 2 * MR):
        options = [(cost[r - v] + max(2 * v, 4) + 1.5, -v) for v in VARIANTS if v <= r]
        best = min(options)
        cost.append(best[0])
        step.append(-best[1])
    return np.array(step, np.int64)


STEPS = _plan_rows()


def _tile(mr: int, nv: int) -> Any:
    """The micro-kernel: one tile of C."""
    thin = mr <= 2

    @inline
    def tile(rows, run_step, runs, length, b, ahead, step, bias, c, ldc, res, ldr, n, lo, hi):
        acc = tile_row(mr, nv, bias)
        tile_prefetch(acc, c, ldc, 1)
        tile_prefetch(acc, res, ldr, 0)
        for r in range(runs):
            at = rows_load(mr, rows + run_step * r, 8, 0)
            for q in range(length):
                acc = tile_rank1_rows(acc, at, 4 * q, b)
                prefetch(ahead)
                if thin:
                    prefetch(ahead + 64)
                b += BYTES * nv
                ahead += step
        tile_finish(acc, c, ldc, n, res, ldr, lo, hi)

    return tile


def _dispatch() -> Any:
    """``tile_any(mr, wide, ...)``: the micro-kernel of that height, with two vectors or one."""
    arguments = "rows, run_step, runs, length, b, ahead, step, bias, c, ldc, res, ldr, n, lo, hi"
    lines, scope = [f"def tile_any(mr, {arguments}):"], {"LANES": LANES}
    for nv, test in ((2, "    if n > LANES:"), (1, "    else:")):
        lines.append(test)
        for mr in VARIANTS:
            scope[f"tile{mr}x{nv}"] = _tile(mr, nv)
            lines.append(f"        {'if' if mr == VARIANTS[0] else 'elif'} mr == {mr}:")
            lines.append(f"            tile{mr}x{nv}({arguments})")
    return inline_source("\n".join(lines) + "\n", "tile_any", **scope)


tile_any = _dispatch()


@inline
def copy_row(to, source, n):
    """Copy n f32."""
    q = 0
    while q + LANES <= n:
        vstore(to + 4 * q, vload(source + 4 * q))
        q += LANES
    if q < n:
        vstore_n(to + 4 * q, vload_n(source + 4 * q, n - q), n - q)


@inline
def zero_row(to, n):
    q = 0
    while q + LANES <= n:
        vstore(to + 4 * q, splat(np.float32(0)))
        q += LANES
    if q < n:
        vstore_n(to + 4 * q, splat(np.float32(0)), n - q)


@inline
def gather_pixel(to, a, lda, table, pixels, taps, depth):
    """Copy what a filter sees at one pixel: ``depth`` values for each tap, zeros outside the image."""
    for t in range(taps):
        row = load_i32(table + 4 * pixels * t)
        if row >= 0:
            copy_row(to + 4 * depth * t, a + lda * row, depth)
        else:
            zero_row(to + 4 * depth * t, depth)


@inline
def place_tile(p, a, first, mr, kind, rows, packed):
    """Write where the tile's rows of A are, run by run, as addresses; `COPIED` tiles are copied first.

    first: the tile's first row.  rows: its place in the table of addresses, whose runs are ``8 * span`` bytes apart.
    """
    table, lda, m, pack_ld, run_step = p.table, 4 * p.lda, p.m, p.pack_ld, 8 * p.span
    for r in range(mr):
        at, row = first + r, rows + 8 * r
        if table == 0:
            store_i64(row, a + lda * at)
            if kind == COPIED:
                copy_row(packed + pack_ld * r, a + lda * at, p.k)
        elif kind == INSIDE:
            pixel = a + lda * load_i32(table + 4 * at)
            for q in range(p.runs):
                store_i64(row + run_step * q, pixel + lda * load_i64(p.run_rows + 8 * q))
        elif kind == EDGE:
            for t in range(p.taps):
                pixel = load_i32(table + 4 * (m * t + at))
                store_i64(row + run_step * t, a + lda * pixel if pixel >= 0 else p.zeros)
        else:
            gather_pixel(packed + pack_ld * r, a, lda, table + 4 * at, m, p.taps, p.depth)
        if kind == COPIED:
            store_i64(row, packed + pack_ld * r)


@inline
def place_rows(p, tid, a, i0, count):
    """Cut the A rows i0…i0+count-1 into tiles and place them in the thread's workspace; the number of tiles.

    Workspace: one word a tile (height, and kind above bit 32), addresses of rows by run, copied rows.
    """
    edges, span = p.edges, p.span
    tiles = p.scratch + p.scratch_step * tid
    rows = tiles + 8 * span
    packed = rows + 8 * span * max(p.runs, p.taps)
    i, found = 0, 0
    while i < count:
        left = count - i
        mr = MR if left >= 2 * MR else STEPS[left]
        kind = p.kind
        if kind == EDGE and load_i32(edges + 4 * (i0 + i + mr)) == load_i32(edges + 4 * (i0 + i)):
            kind = INSIDE
        store_i64(tiles + 8 * found, mr + (kind << 32))
        place_tile(p, a, i0 + i, mr, kind, rows + 8 * i, packed + p.pack_ld * i)
        i += mr
        found += 1
    return found


@native(
    a=PTR, lda=I64, b=PTR, bias=PTR, c=PTR, ldc=I64, res=PTR, ldr=I64,
    blocks=I64, offsets=PTR, m=I64, n=I64, k=I64,
    table=PTR, edges=PTR, taps=I64, depth=I64, runs=I64, length=I64, run_rows=PTR,
    kind=I64, zeros=PTR, scratch=PTR, pack_ld=I64, scratch_step=I64, span=I64, share=I64, lo=F32, hi=F32, act=PTR,
)  # fmt: skip
def sweep(p, tid, nthreads):
    """Fields.

    lda, ldc, ldr: elements between rows.  offsets: i64 [blocks][6], see `BLOCK_FIELDS`.
    table: i32 [taps][m], input row of each tap at each pixel or -1; 0 when row i of A is simply its i-th row.
    edges: i32 [m + 1], how many pixels before this one have a tap outside.  taps, depth: K = taps * depth.
    runs, length, run_rows: the same K as runs of contiguous values, i64 input rows from a pixel's first tap.
    kind: how tiles read A: `INSIDE` in place, by runs; `COPIED` from a copy; `EDGE` in place, by taps where some tap is
    outside.  zeros: ``depth`` zeros, what a tap outside reads.
    span: rows that meet a panel of B while it is in cache.  share: what threads divide: 0 rows, 1 panels, 2 blocks.
    act: machine function ``f(address, columns + (rows << 32), bytes between rows)`` applied to finished tiles, or 0.
    """
    ldc, ldr, m, n, k, span, share = 4 * p.ldc, 4 * p.ldr, p.m, p.n, p.k, p.span, p.share
    offsets, lo, hi, act = p.offsets, p.lo, p.hi, p.act
    words = p.scratch + p.scratch_step * tid
    rows, run_step = words + 8 * span, 8 * span
    block_lo, block_hi = (0, p.blocks) if share != 2 else split(p.blocks, tid, nthreads)
    i_lo, i_hi = (0, m) if share != 0 else split(m, tid, nthreads)
    j_lo, j_hi = (0, ceil_div(n, PANEL)) if share != 1 else split(ceil_div(n, PANEL), tid, nthreads)
    step = ceil_div(ceil_div(i_hi - i_lo, max(ceil_div(i_hi - i_lo, span), 1)), MR) * MR
    for block in range(block_lo, block_hi):
        entry = offsets + 8 * BLOCK_FIELDS * block
        a = p.a + 4 * p.lda * load_i64(entry) + 4 * load_i64(entry + 8)
        b, bias = p.b + load_i64(entry + 16), p.bias + load_i64(entry + 24)
        c_row, c_col = load_i64(entry + 32), load_i64(entry + 40)
        c = p.c + ldc * c_row + 4 * c_col
        res = 0 if p.res == 0 else p.res + ldr * c_row + 4 * c_col
        for i0 in range(i_lo, i_hi, max(step, 1)):
            tiles = place_rows(p, tid, a, i0, min(step, i_hi - i0))
            for j in range(j_lo, j_hi):
                col = 4 * PANEL * j
                i, at = i0, rows
                # While this panel is swept, the next one is brought closer, a part with every tile.
                ahead, ahead_step = b + col * k, 0
                if j + 1 < j_hi:
                    ahead, ahead_step = ahead + 4 * PANEL * k, 4 * PANEL // tiles
                for t in range(tiles):
                    word = load_i64(words + 8 * t)
                    mr, kind = word & 0xFFFFFFFF, word >> 32
                    runs, length = p.runs, p.length
                    if kind == COPIED:
                        runs, length = 1, k
                    elif kind == EDGE:
                        runs, length = p.taps, p.depth
                    to = c + ldc * i + col
                    tile_any(
                        mr, at, run_step, runs, length, b + col * k, ahead, ahead_step, bias + col, to, ldc,
                        0 if res == 0 else res + ldr * i + col, ldr, n - PANEL * j, lo, hi,
                    )  # fmt: skip
                    if act != 0:
                        call_kernel(act, to, min(n - PANEL * j, PANEL) + (mr << 32), ldc)
                    i += mr
                    at += 8 * mr
                    ahead += ahead_step * k


B_BYTES, A_BYTES = 448 * 1024, 320 * 1024
"""What of packed B, or else of A, is kept in a second-level cache beside the rest."""


def choose_span(m: int, n: int, k: int) -> int:
    """Rows swept over each panel: one tile when all of B stays in cache, else as many as stay there themselves."""
    if 4 * k * n <= B_BYTES:
        return MR
    rows = min(A_BYTES // max(4 * k, 1), 16 * MR, m + MR)
    return max(rows // MR, 1) * MR


def pack_stride(k: int) -> int:
    """Bytes between copied rows: an odd number of cache lines, so that rows do not share a cache set."""
    lines = -(-4 * k // 64)
    return 64 * (lines | 1)


def scratch_bytes(k: int, span: int, runs: int, copies: bool) -> int:
    """Workspace of one thread; runs: of the rows' addresses, at least the taps."""
    used = 8 * span * (1 + runs) + (span * pack_stride(k) if copies else 0)
    return -(-used // 64) * 64


def choose_share(blocks: int, m: int, n: int, threads: int, b_larger: bool) -> int:
    """How threads divide the work: the way with the least uneven shares."""

    def load(count: int, unit: int) -> float:
        whole = -(-count // unit)
        return -(-whole // threads) * threads / max(whole, 1)

    loads = [load(m, max(MR // 2, 1)), load(n, PANEL), load(blocks, 1) if blocks > 1 else 1e9]
    loads[1] += -0.02 if b_larger else 0.02
    loads[2] -= 0.05
    return int(np.argmin(loads))


__all__ = [
    "BLOCK_FIELDS",
    "COPIED",
    "EDGE",
    "INSIDE",
    "MR",
    "aligned_zeros",
    "choose_share",
    "choose_span",
    "pack_stride",
    "scratch_bytes",
    "sweep",
]
