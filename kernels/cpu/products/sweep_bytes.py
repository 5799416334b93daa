"""The loop behind products of bytes: register tiles of i32 swept over rows of A and packed panels of B.

A is taken as u8 and B as i8, which is what the processor multiplies: the other signedness has its highest bit flipped,
and the zero points with it.  `prepare_columns` says what makes that right.

A row of A is one or several runs of ``length`` bytes at any addresses (the taps of a convolution; outside the image
they read the zero point).  B is packed as panels of `PANEL` columns, [fours of K][PANEL][4]; zeros fill up the last
four of a run.  Sums are exact, so nothing depends on tiles or threads.  A tile that becomes bytes does so in registers.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    dot_bytes,
    load_i32,
    load_i64,
    load_u8,
    reduce_add,
    rows_load,
    splat,
    split,
    store_f32,
    store_i32,
    store_i64,
    store_u8,
    tile_dot_rows_centred,
    tile_finish_bytes,
    tile_row,
    tile_store,
    tile_take_outer,
    vload_i32,
    vload_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.epilogue_bytes import FIELDS, FLOAT_RESIDUAL, finish_stored, row_scale, scaled
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.pack_bytes import (
    BYTE_RESULTS,
    COLUMN_ROWS,
    EXACT,
    FLOATS,
    ONES,
    UNSAFE,
    whole_vectors,
)
from bolt_numba.kernels.cpu.products.sweep import by_height
from bolt_numba.kernels.cpu.products.sweep_extents import greatest
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Inline, inline, inline_source, native

VARIANTS: tuple[int, ...] = (12, 8, 4, 2, 1) if target().registers >= 32 else (4, 2, 1)
"""Heights of tiles."""
HEIGHT = VARIANTS[0]
SINGLE: tuple[int, ...] = VARIANTS if target().is_x86 and HEIGHT > 8 else (2 * HEIGHT, *VARIANTS)
"""Heights of tiles of one vector.  The addresses of more rows would not stay in the 16 registers of x86."""
TALL = SINGLE[0]
FEW_ROWS, AHEAD = 4, 32 * BYTES
"""Rows whose products wait for memory, and bytes from what they are multiplied with to what is fetched."""

# ------------------------------------------------------------------------------------------------------------ the tile


def _putting_floats(mr: int, nv: int) -> Inline:
    """``put(acc, p, columns, width, scales, c, n)``: a tile of sums, whose rows have ``scales``, to limited f32."""
    lines = ["def put(acc, p, columns, width, scales, c, n):", "    lo, hi = splat(p.lo), splat(p.hi)"]
    for j in range(nv):
        places = (f"vload(columns + {k} * width + {j} * BYTES)" for k in (2, 4))
        lines.append(f"    f{j}, a{j} = {', '.join(places)}")
    for whole in (True, False):
        lines.append(f"    {f'if n >= {nv} * LANES' if whole else 'else'}:")
        for i in range(mr):
            lines.append(f"        to, scale = c + 4 * p.ldc * {i}, load_f32(scales + 4 * {i})")
            for j in range(nv):
                made = f"fma(to_f32(bits_of(tile_get(acc, {i}, {j}))), scaled(f{j}, scale), a{j})"
                end = "" if whole else f", min(n - {j} * LANES, LANES)"
                stored = f"(to + {j} * BYTES, vmin(hi, vmax(lo, {made})){end})"
                lines.append(f"        vstore{'_n' * (not whole)}{stored}")
    text = "\n".join(lines) + "\n"
    return inline_source(text, "put", scaled=scaled, **scope_of(text))


def _adding_fours(mr: int, nv: int) -> Inline:
    """``add(acc, at, length, b)``: a tile and the sums of the whole fours of a run.

    Few rows are bound by memory, and by how long a sum waits for the one before: several are made beside each other.
    """
    sums = max(1, min(4, IN_FLIGHT // (mr * nv)))
    names = ["acc", *(f"acc{i}" for i in range(1, sums))]
    lines = ["def add(acc, at, length, b):", *(f"    {name} = tile_cleared(acc)" for name in names[1:])]
    lines.append(f"    for q in range(0, length - {4 * sums - 1}, {4 * sums}):")
    if mr <= FEW_ROWS:
        lines += [f"        prefetch(b + AHEAD + {i} * BYTES)" for i in range(sums * nv)]
    for i, name in enumerate(names):
        lines.append(f"        {name} = tile_dot_rows_centred({name}, at, q + {4 * i}, 0, b + {i * nv} * BYTES)")
    lines.append(f"        b += {sums * nv} * BYTES")
    if sums > 1:
        lines += [
            f"    for q in range(length // {4 * sums} * {4 * sums}, length - 3, 4):",
            "        acc = tile_dot_rows_centred(acc, at, q, 0, b)",
            f"        b += {nv} * BYTES",
        ]
    lines += [f"    acc = tile_add_sums(acc, {name})" for name in names[1:]] + ["    return acc"]
    text = "\n".join(lines) + "\n"
    return inline_source(text, "add", AHEAD=AHEAD, **scope_of(text))


IN_FLIGHT = target().registers // 2 if target().registers >= 32 else 4
"""Vectors of sums that are made beside each other, as far as registers serve."""


def _tile(mr: int, nv: int) -> Inline:
    """The micro-kernel: one tile of sums, which become bytes or floats or are stored at ``sums``."""
    put_floats, add_fours = _putting_floats(mr, nv), _adding_fours(mr, nv)

    @inline
    def tile(p, rows, run_step, runs, length, b, columns, width, seen, n, quick, sums, c, res):
        acc = tile_row(mr, nv, columns)
        rest = length & 3
        for r in range(runs):
            at = rows_load(mr, rows + run_step * r, 8, 0 if p.shifts == 0 else load_i64(p.shifts + 8 * r))
            acc = add_fours(acc, at, length, b)
            b += BYTES * nv * (length >> 2)
            if rest:
                acc = tile_dot_rows_centred(acc, at, length - 4, 32 - 8 * rest, b)
                b += BYTES * nv
        if p.sums:
            acc = tile_take_outer(acc, seen, columns + width)
        if p.zeros_a > 0:
            acc = tile_take_outer(acc, seen + 4 * (p.span + HEIGHT), columns + 3 * width)
        if quick == FLOATS:
            put_floats(acc, p, columns, width, seen + 8 * (p.span + HEIGHT), c, n)
        elif quick:
            tile_finish_bytes(acc, columns, width, c, p.ldc, n, res, p.ldr, np.int32(p.flip_r), p.columns)
        else:
            tile_store(acc, sums, 2 * BYTES)

    return tile


TILE_ARGUMENTS = "p, rows, run_step, runs, length, b, columns, width, seen, n, quick, sums, c, res"
tile_any_bytes = by_height("tile_any_bytes", TILE_ARGUMENTS, _tile, VARIANTS, single=SINGLE)


@inline
def height(left):
    """Height of the next tile when ``left`` rows are to be done."""
    return HEIGHT if left >= HEIGHT else (8 if left >= 8 else 4 if left >= 4 else 2 if left >= 2 else 1)


@inline
def single_height(left):
    """`height` of a tile of one vector."""
    return TALL if left >= TALL else height(left)


# ------------------------------------------------------------------------------------------------------------ the rows


@inline
def copy_taps(p, a, row, to, outside):
    """Copy what a filter sees at one pixel; taps that lie side by side in memory at once."""
    depth, t = p.depth, 0
    while t < p.taps:
        pixel = load_i32(p.table + 4 * (p.m * t + row))
        end = t + 1
        if pixel < 0:
            copy_bytes(to + depth * t, outside, depth)
        else:
            while p.lda == depth and end < p.taps and load_i32(p.table + 4 * (p.m * end + row)) == pixel + end - t:
                end += 1
            copy_bytes(to + depth * t, a + p.lda * pixel, depth * (end - t))
        t = end


@inline
def place_rows(p, a, outside, first, count, rows, copies):
    """Write the addresses of the runs of rows to ``rows``; a row whose runs are short is copied first."""
    run_step, lda, m = 8 * (p.span + HEIGHT), p.lda, p.m
    if p.copied != 0:
        for i in range(count):
            copy = copies + p.copy_step * i
            if p.table == 0:
                copy_bytes(copy, a + lda * (first + i), p.depth)
            else:
                copy_taps(p, a, first + i, copy, outside)
            for q in range(p.depth * p.taps, p.length):
                store_u8(copy + q, np.uint8(0))
            store_i64(rows + 8 * i, copy)
    elif p.table == 0:
        for i in range(count):
            store_i64(rows + 8 * i, a + lda * (first + i))
    else:
        for t in range(p.taps if p.shifts == 0 else 1):
            seen, to = p.table + 4 * (m * t + first), rows + run_step * t
            for i in range(count):
                pixel = load_i32(seen + 4 * i)
                store_i64(to + 8 * i, a + lda * pixel if pixel >= 0 else outside)


@inline
def row_sum(p, rows):
    """Sum of the bytes of a row."""
    runs = 1 if p.copied != 0 else p.taps
    size = p.depth * p.taps // runs
    total, run_step, one = splat(np.int32(0)), 8 * (p.span + HEIGHT) if p.shifts == 0 else 0, splat(np.int32(ONES))
    for r in range(runs):
        at, q = load_i64(rows + run_step * r) + (0 if p.shifts == 0 else load_i64(p.shifts + 8 * r)), 0
        while q + 4 * LANES <= size:
            total = dot_bytes(total, vload_i32(at + q), one)
            q += 4 * LANES
        while q < size:
            total = total + vload_u8_n(at + q, size - q)
            q += LANES
    return reduce_add(total)


@inline
def place_numbers(p, rows, first, count, totals, quick):
    """Sums, zero points and scales of ``count`` rows, where tiles need them; first: the number of the first one."""
    zeros = totals + 4 * (p.span + HEIGHT)
    scales = zeros + 4 * (p.span + HEIGHT)
    if p.sums:
        for i in range(count):
            store_i32(totals + 4 * i, row_sum(p, rows + 8 * i))
    if p.zeros_a > 0:
        at = first % p.zeros_a
        for i in range(count):
            store_i32(zeros + 4 * i, load_u8(p.zero_a + at) ^ p.flip_a)
            at = at + 1 if at + 1 < p.zeros_a else 0
    if quick == FLOATS:
        at = 0 if p.scale_a == 0 else first % p.scales_a
        for i in range(count):
            store_f32(scales + 4 * i, row_scale(p, at))
            at = at + 1 if at + 1 < p.scales_a else 0


def _swept(a: Any) -> dict[str, Reach]:
    runs, size, some = (1 if a.copied else a.taps), (1 if a.kind == BYTE_RESULTS else 4), a.blocks * a.m * a.n > 0
    fours, last = runs * -(-a.length // 4), a.m - 1 if a.table is None else int(a.table.max(initial=-1))
    b, columns = (greatest(a.offsets, a.blocks, 0, i, i) if some else 0 for i in (1, 2))
    used = TALL * 2 * BYTES + (a.span + HEIGHT) * (12 + 8 * runs + a.copy_step)

    def rows(ld: int, item: int) -> int:
        return item * (greatest(a.offsets, a.blocks, ld, 4, 3) + ld * (a.m - 1) + a.n) if some else 0

    return {
        "a": greatest(a.offsets, a.blocks, 0, 0, 0) + a.lda * last + a.depth if some else 0,
        "b": b + whole_vectors(a.n) * fours,
        "c": rows(a.ldc, size),
        "res": rows(a.ldr, 4 if a.residual == FLOAT_RESIDUAL else 1),
        "offsets": 8 * BLOCK_FIELDS * a.blocks,
        "table": 4 * a.taps * a.m,
        "shifts": 8 * a.taps,
        "outside": greatest(a.offsets, a.blocks, 0, 5, 5) + a.depth,
        "columns": columns + COLUMN_ROWS * whole_vectors(a.n),
        "scratch": (a.threads - 1) * a.scratch_step + used,
        "zero_a": a.zeros_a,
        "scale_a": 4 * a.scales_a,
    }


@native(
    fastmath=EXACT, a=PTR, lda=I64, b=PTR, c=PTR, ldc=I64, blocks=I64, offsets=PTR, m=I64, n=I64, table=PTR_OR_0,
    shifts=PTR_OR_0, taps=I64, depth=I64, length=I64, copied=I64, outside=PTR_OR_0, columns=PTR, sums=I64, flip_a=I64,
    zero_a=PTR, zeros_a=I64, scratch=PTR, scratch_step=I64, copy_step=I64, span=I64, share=I64, extents=_swept,
    **FIELDS,
)  # fmt: skip
def sweep_bytes(p, tid, nthreads):
    """Fields.

    lda: bytes between rows (pixels); ldc: elements between rows.  offsets: i64 [blocks][`BLOCK_FIELDS`].
    table: i32 [taps][m], input pixel of each tap at each output pixel or -1; 0 when row i of A is its i-th row.
    shifts: i64 [taps], bytes from the first tap to each, where no tap of any pixel is outside; or 0.
    depth: bytes of a tap; length: of a run as packed.  copied: whether a row is copied to one run of ``length`` bytes.
    outside: ``depth`` zero points of each image.  columns: see `prepare_columns`; sums: whether a zero point of B is
    not 0.  zeros_a: zero points of rows, 0 when `prepare_columns` has used the one.
    scratch: ``scratch_step`` bytes a thread: a tile, sums, zero points and scales of rows, addresses of runs, copies
    (`scratch_bytes`).  The rest: see `epilogue_bytes.FIELDS`;
    quick is `FLOATS` where they become these in registers.
    """
    m, n, span = p.m, p.n, p.span
    quick = p.quick if p.quick == FLOATS or load_i32(p.columns + UNSAFE) == 0 else 0
    runs, size, size_r = (1 if p.copied != 0 else p.taps), (1 if p.kind == BYTE_RESULTS else 4), 1
    if p.residual == FLOAT_RESIDUAL:
        size_r = 4
    tile = p.scratch + p.scratch_step * tid
    totals, width = tile + TALL * 2 * BYTES, ceil_div(n, LANES) * BYTES
    rows, run_step = totals + 12 * (span + HEIGHT), 8 * (span + HEIGHT) if p.shifts == 0 else 0
    copies, fours = rows + 8 * (span + HEIGHT) * runs, runs * ceil_div(p.length, 4)
    block_lo, block_hi = (0, p.blocks) if p.share != 2 else split(p.blocks, tid, nthreads)
    i_lo, i_hi = (0, m) if p.share != 0 else split(m, tid, nthreads)
    j_lo, j_hi = (0, ceil_div(n, PANEL)) if p.share != 1 else split(ceil_div(n, PANEL), tid, nthreads)
    for block in range(block_lo, block_hi):
        entry = p.offsets + 8 * BLOCK_FIELDS * block
        a, b, first = p.a + load_i64(entry), p.b + load_i64(entry + 8), load_i64(entry + 32)
        columns, c = p.columns + load_i64(entry + 16), p.c + size * (p.ldc * first + load_i64(entry + 24))
        outside = p.outside + load_i64(entry + 40)
        res = 0 if p.res == 0 else p.res + size_r * (p.ldr * first + load_i64(entry + 24))
        i0 = i_lo
        while i0 < i_hi:
            count = span if i_hi - i0 >= span + HEIGHT else i_hi - i0
            place_rows(p, a, outside, i0, count, rows, copies)
            place_numbers(p, rows, first + i0, count, totals, quick)
            for j in range(PANEL * j_lo, PANEL * j_hi, PANEL):
                i, left = 0, min(n - j, PANEL)
                while i < count:
                    mr = single_height(count - i) if left <= LANES else height(count - i)
                    to = c + size * (p.ldc * (i0 + i) + j)
                    more = 0 if res == 0 else res + size_r * (p.ldr * (i0 + i) + j)
                    tile_any_bytes(
                        mr, p, rows + 8 * i, run_step, runs, p.length, b + 4 * j * fours, columns + 4 * j, width,
                        totals + 4 * i, left, quick, tile, to, more,
                    )  # fmt: skip
                    if not quick:
                        finish_stored(p, tile, mr, left, columns + 4 * j, width, to, more, first + i0 + i)
                    i += mr
            i0 += count


BLOCK_FIELDS = 6
"""Entries of a block: byte offsets of A, B and columns; first column and row of C; byte offset of zero points."""
A_BYTES = L2 // 4
"""What of A is kept in a second-level cache beside the rest."""


def choose_span(m: int, k: int) -> int:
    """Rows of ``k`` bytes swept over each panel: as many as stay in cache."""
    rows = min(A_BYTES // max(k, 1), 16 * HEIGHT, m + HEIGHT)
    return max(rows // HEIGHT, 1) * HEIGHT


def scratch_bytes(span: int, runs: int, copy_step: int) -> int:
    """Workspace of one thread."""
    used = TALL * 2 * BYTES + (span + HEIGHT) * (12 + 8 * runs + copy_step)
    return -(-used // 64) * 64
