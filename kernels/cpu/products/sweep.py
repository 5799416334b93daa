"""The one loop behind matrix products and convolutions: register tiles swept over rows of A and packed panels of B.

C[i, :] = clamp(sum over K of A-row(i) * B + bias + residual).  A row is either strided memory (a matrix, a 1x1
convolution) or the values that a filter sees at one output pixel; those are read in place where all taps lie inside the
image and are copied to workspace first where some do not.

Shapes: M rows and N columns per block; a block is one batch, image or group.  B is packed: panels of `PANEL` columns,
each [K][PANEL]; the last one is half as wide where half is enough.  Sums run over K in order and are put aside after
every `choose_terms`, so results do not depend on tiles or threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.selects import either, greatest, least
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    call_activation,
    ceil_div,
    lanes_below,
    load_i32,
    load_i64,
    prefetch,
    prefetch_second,
    rows_load,
    splat,
    split,
    store_i64,
    tile_add_stored,
    tile_cleared,
    tile_finish,
    tile_prefetch,
    tile_rank1_rows,
    tile_row,
    tile_row_narrow,
    tile_store,
    vload,
    vload_m,
    vload_n,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import AGAIN, CROSSING, FMA_RATE, IN_FLIGHT, L2, PREFETCH
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.sweep_extents import (
    BLOCK_FIELDS,
    COPIED,
    EDGE,
    FIELDS,
    INSIDE,
    MR,
    PATCHED,
    sweep_reach,
)
from bolt_numba.kernels.jit import Inline, inline, inline_source, native

THIN_ROWS = 4
"""Rows that are bound by reading B."""


def _variants() -> tuple[int, ...]:
    """Tile heights that are compiled: few, yet any count of rows is nearly a sum of tall ones."""
    return (12, 8, 6, 4, 3, 2, 1) if MR == 12 else tuple(r for r in (8, 6, 5, 4, 3, 2, 1) if r <= MR)


VARIANTS = _variants()


def _plan_rows() -> tuple[Array, list[float]]:
    """steps[r]: height of the tile to take when r rows are left (r < 2 MR), by least total cost; that cost.

    A tile of few rows costs more than its share: it is bound by loads and by the latency of the adds.
    """
    cost, step = [0.0], [0]
    for r in range(1, 2 * MR):
        options = [(cost[r - v] + max(2 * v, IN_FLIGHT) + 1.5, -v) for v in VARIANTS if v <= r]
        best = min(options)
        cost.append(best[0])
        step.append(-best[1])
    return np.array(step, np.int64), cost


STEPS, COSTS = _plan_rows()
ROW, TILE = 4 * PANEL, 4 * MR * PANEL
"""Bytes of a row of a tile and of a tile in workspace."""


@inline
def put_aside(acc, sums, before):
    """Add a tile to the one at ``sums``, if there was one ``before``; zeros to go on with."""
    if before != 0:
        acc = tile_add_stored(acc, sums, ROW)
    tile_store(acc, sums, ROW)
    return tile_cleared(acc)


def plain_tile(mr: int, nv: int, first: Any = tile_row, rank1: Any = tile_rank1_rows, unit: int = 4) -> Inline:
    """The micro-kernel: one tile of C.  first: what begins it, `tile_row` or `tile_row_narrow`.  sums: workspace.

    rank1, unit: the word that multiplies, and bytes of the elements of B that it reads.
    """
    thin, width, two_lines = mr <= THIN_ROWS, unit * LANES * nv, unit * PANEL > 64

    @inline
    def tile(rows, reach, shift, apart, runs, length, b, ahead, step, sums, terms, bias, c, ldc, res, ldr, n, lo, hi):
        acc, left, before = first(mr, nv, bias), terms, 0
        tile_prefetch(acc, c, ldc, 1)
        if res != 0:
            tile_prefetch(acc, res, ldr, 0)
        for r in range(runs):
            at, offset, rest = rows_load(mr, rows + reach * r, 8, 0), load_i64(shift + apart * r), length
            while rest > 0:
                if left == 0:
                    acc = put_aside(acc, sums, before)
                    left, before = terms, 1
                count = min(left, rest)
                left -= count
                rest -= count
                for q in range(count):
                    acc = rank1(acc, at, offset + 4 * q, b)
                    if thin:
                        prefetch_second(ahead)
                        if two_lines:
                            prefetch_second(ahead + 64)
                    else:
                        prefetch(ahead)
                    b += width
                    ahead += step
                offset += 4 * count
        if before != 0:
            acc = tile_add_stored(acc, sums, ROW)
        tile_finish(acc, c, ldc, n, res, ldr, lo, hi)

    return tile


def _narrow(mr: int, nv: int) -> Inline:
    """A tile whose last vectors are half as wide: where 512-bit operations are split in two, that halves their cost."""
    return plain_tile(mr, nv, tile_row_narrow)


def by_height(
    name: str, passed: str, tile: Callable[[int, int], Any], variants: Sequence[int] = VARIANTS, narrow: Any = None,
    single: Sequence[int] = (),
) -> Inline:  # fmt: skip
    """Helper ``name(mr, ...)`` that calls the micro-kernel of that height, with two vectors if ``n`` needs them.

    passed: what the micro-kernels ``tile(mr, vectors)`` take, as in a call; if ``n`` is not in it, it comes after mr.
    narrow: makes those of the most common height whose last vector is half as wide; None: there are none.
    single: heights of those of one vector, if others.
    """
    taken = passed if "n" in passed.split(", ") else f"n, {passed}"
    lines, scope = [f"def {name}(mr, {taken}):"], {"LANES": LANES}
    for nv, test in ((2, "    if n > LANES:"), (1, "    else:")):
        lines.append(test)
        made = {f"mr == {mr}": tile(mr, nv) for mr in (single if single and nv == 1 else variants)}
        if narrow is not None:
            made = {f"mr == {MR} and n <= {nv} * LANES - LANES // 2": narrow(MR, nv), **made}
        for i, (which, function) in enumerate(made.items()):
            scope[f"tile{nv}_{i}"] = function
            lines += [f"        {'elif' if i else 'if'} {which}:", f"            tile{nv}_{i}({passed})"]
    return inline_source("\n".join(lines) + "\n", name, **scope)


TILE_ARGUMENTS = (
    "rows, reach, shift, apart, runs, length, b, ahead, step, sums, terms, bias, c, ldc, res, ldr, n, lo, hi"
)
tile_any = by_height("tile_any", TILE_ARGUMENTS, plain_tile, narrow=_narrow if LANES == 16 else None)


def _pair(mr: int, rank1: Any, unit: int) -> Inline:
    """A tile of a few rows and two panels, ``second`` bytes apart: the adds of one hide the latency of the other's."""
    width = unit * PANEL

    @inline
    def tile(rows, k, b, second, sums, terms, bias, c, ldc, res, ldr, lo, hi):
        one, two, at = tile_row(mr, 2, bias), tile_row(mr, 2, bias + 4 * PANEL), rows_load(mr, rows, 8, 0)
        for first in range(0, k, max(terms, 1)):
            if first > 0:
                one, two = put_aside(one, sums, first - terms), put_aside(two, sums + ROW * mr, first - terms)
            for q in range(min(terms, k - first)):
                one = rank1(one, at, 4 * first + 4 * q, b)
                two = rank1(two, at, 4 * first + 4 * q, b + second)
                prefetch_second(b + PREFETCH)
                prefetch_second(b + second + PREFETCH)
                b += width
        if k > terms:
            one, two = tile_add_stored(one, sums, ROW), tile_add_stored(two, sums + ROW * mr, ROW)
        tile_finish(one, c, ldc, PANEL, res, ldr, lo, hi)
        tile_finish(two, c + 4 * PANEL, ldc, PANEL, 0 if res == 0 else res + 4 * PANEL, ldr, lo, hi)

    return tile


PAIRED = 2 if FMA_RATE > 1 else 0
"""Rows up to which two panels are swept at once: in the time of an add caches give more of B than one panel's row.

Kernels are told when they run: they are the same for all processors of a level."""


def pairs_of_panels(rank1: Any, unit: int) -> Inline:
    """``few_rows(...)`` for elements of B of ``unit`` bytes that the word ``rank1`` reads."""
    pair1, pair2, width = _pair(1, rank1, unit), _pair(2, rank1, unit), unit * PANEL

    @inline
    def few_rows(p, rows, count, j, j_hi, b, sums, bias, c, res):
        """Sweep whole panels from j on in pairs under one tile of ``count`` rows; the first panel that is left."""
        ldc, ldr, k, act = 4 * p.ldc, 4 * p.ldr, p.k, p.act
        while j + 1 < j_hi and p.n >= PANEL * (j + 2):
            col, at = 4 * PANEL * j, b + width * j * k
            more = 0 if res == 0 else res + col
            if count == 1:
                pair1(rows, k, at, width * k, sums, p.terms, bias + col, c + col, ldc, more, ldr, p.lo, p.hi)
            else:
                pair2(rows, k, at, width * k, sums, p.terms, bias + col, c + col, ldc, more, ldr, p.lo, p.hi)
            if act != 0:
                call_activation(act, c + col, 2 * PANEL + (count << 32), ldc)
            j += 2
        return j

    made: Inline = few_rows
    return made


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
def copy_run(to, a, lda, seen, m, width, depth):
    """Copy a run of ``width`` taps of ``depth`` values; taps outside, the first or the last ones, are zeros.

    seen: the run's first tap in the table of pixels.  Whole vectors are written.
    """
    begin, end, source = 0, 0, a
    for t in range(width):
        pixel = load_i32(seen + 4 * m * t)
        if pixel >= 0:
            if end == 0:
                begin, source = t, a + lda * pixel - 4 * depth * t
            end = t + 1
    for q in range(0, depth * width, LANES):
        inside = lanes_below(depth * end - q) & ~lanes_below(depth * begin - q)
        vstore(to + 4 * q, vload_m(source + 4 * q, inside))


@inline
def place_copies(p, a, first, mr, rows, packed):
    """Copy the tile's rows of A and write where they are."""
    table, lda = p.table + 4 * first, 4 * p.lda
    for r in range(mr):
        to = packed + p.pack_ld * r
        store_i64(rows + 8 * r, to)
        if p.table == 0:
            copy_row(to, a + lda * (first + r), p.k)
        else:
            gather_pixel(to, a, lda, table + 4 * r, p.m, p.taps, p.depth)


@inline
def place_patched(p, a, first, mr, rows, shifts, packed):
    """Write where the tile's rows of A are, after copying those with a tap outside.  shifts: bytes to each run."""
    table, edges, lda, width = p.table + 4 * first, p.edges + 4 * first, 4 * p.lda, p.taps // p.runs
    for r in range(mr):
        inside, to = load_i32(edges + 4 * r) == load_i32(edges + 4 * r + 4), packed + p.pack_ld * r
        store_i64(rows + 8 * r, a + lda * load_i32(table + 4 * r) if inside else to)
        if not inside:
            for q in range(p.runs):
                seen = table + 4 * (p.m * width * q + r)
                copy_run(to + load_i64(shifts + 8 * q), a, lda, seen, p.m, width, p.depth)


@inline
def place_tile(p, a, first, mr, kind, rows, shifts, packed):
    """Write where the tile's rows of A are, as addresses, and copy those that cannot be read in place.

    first: the tile's first row.  rows: its place in the table of addresses; that of `EDGE` tiles has an entry for each
    tap, ``8 * (span + MR)`` bytes apart.
    """
    table, lda, m = p.table + 4 * first, 4 * p.lda, p.m
    if kind == INSIDE and p.table == 0:
        for r in range(mr):
            store_i64(rows + 8 * r, a + lda * (first + r))
    elif kind == INSIDE:
        for r in range(mr):
            store_i64(rows + 8 * r, a + lda * load_i32(table + 4 * r))
    elif kind == EDGE:
        zeros, run_step = p.zeros, 8 * (p.span + MR)
        for r in range(mr):
            for t in range(p.taps):
                pixel = load_i32(table + 4 * (m * t + r))
                store_i64(rows + 8 * r + run_step * t, a + lda * pixel if pixel >= 0 else zeros)
    elif kind == PATCHED:
        place_patched(p, a, first, mr, rows, shifts, packed)
    else:
        place_copies(p, a, first, mr, rows, packed)


@inline
def place_rows(p, tid, a, i0, count):
    """Cut the A rows i0…i0+count-1 into tiles and place them in the thread's workspace; the number of tiles."""
    edges, room, outside = p.edges, 8 * (p.span + MR), p.kind
    tiles = p.scratch + p.scratch_step * tid
    rows = tiles + room
    shifts = rows + room * p.taps + 8
    packed = shifts + 8 * p.runs
    i, found = 0, 0
    while i < count:
        left = count - i
        mr = MR if left >= 2 * MR else STEPS[left]
        kind = outside
        if outside >= EDGE and load_i32(edges + 4 * (i0 + i + mr)) == load_i32(edges + 4 * (i0 + i)):
            kind = INSIDE
        store_i64(tiles + 8 * found, mr + ((INSIDE if kind == PATCHED else kind) << 32))
        place_tile(p, a, i0 + i, mr, kind, rows + 8 * i, shifts, packed + p.pack_ld * i)
        i += mr
        found += 1
    return found


@inline
def fetched(panel, width, k, tiles, is_followed, is_stream):
    """What is prefetched while a panel is swept: from which address on, and how many bytes with each row of it."""
    if is_stream:  # nothing but reading B
        return panel + PREFETCH, width
    # The next panel is brought closer, a part with every tile.
    return (panel + width * k, width // tiles) if is_followed else (panel, 0)


def sweep_body(name: str, tile_any: Any, few_rows: Any, unit: int) -> Any:
    """The kernel ``name`` of `FIELDS` over panels of elements of ``unit`` bytes.

    tile_any, few_rows: as `by_height` and `pairs_of_panels` make them for such elements.
    """
    width = unit * PANEL

    def sweep(p, tid, nthreads):
        ldc, ldr, m, n, k, span, share = 4 * p.ldc, 4 * p.ldr, p.m, p.n, p.k, p.span, p.share
        offsets, lo, hi, act = p.offsets, p.lo, p.hi, p.act
        words = p.scratch + p.scratch_step * tid
        sums, terms = words + p.scratch_step - TILE, p.terms
        room = 8 * (span + MR)
        rows = words + room
        shifts = rows + room * p.taps
        store_i64(shifts, 0)
        for q in range(p.runs):
            store_i64(shifts + 8 + 8 * q, 4 * p.lda * load_i64(p.run_rows + 8 * q))
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
            i0 = i_lo
            while i0 < i_hi:
                count = step if i_hi - i0 >= step + MR else i_hi - i0
                tiles = place_rows(p, tid, a, i0, count)
                j_next = j_lo
                if tiles == 1 and count <= p.paired and p.taps == 1:
                    over = 0 if res == 0 else res + ldr * i0
                    j_next = few_rows(p, rows, count, j_lo, j_hi, b, sums, bias, c + ldc * i0, over)
                for j in range(j_next, j_hi):
                    col, panel = 4 * PANEL * j, b + width * j * k
                    i, at = i0, rows
                    ahead, ahead_step = fetched(panel, width, k, tiles, j + 1 < j_hi, i_hi - i_lo <= THIN_ROWS)
                    for t in range(tiles):
                        word = load_i64(words + 8 * t)
                        mr, kind = word & 0xFFFFFFFF, word >> 32
                        runs, length, run_step, shift, shift_step = p.runs, p.length, 0, shifts + 8, 8
                        if kind == COPIED:
                            runs, length, shift = 1, k, shifts
                        elif kind == EDGE:
                            runs, length, run_step, shift, shift_step = p.taps, p.depth, room, shifts, 0
                        to = c + ldc * i + col
                        tile_any(
                            mr, at, run_step, shift, shift_step, runs, length, panel, ahead, ahead_step, sums, terms,
                            bias + col, to, ldc, 0 if res == 0 else res + ldr * i + col, ldr, n - PANEL * j, lo, hi,
                        )  # fmt: skip
                        if act != 0:
                            call_activation(act, to, min(n - PANEL * j, PANEL) + (mr << 32), ldc)
                        i += mr
                        at += 8 * mr
                        ahead += ahead_step * k
                i0 += count

    sweep.__name__ = name
    return sweep


sweep = native(extents=sweep_reach, **FIELDS)(sweep_body("sweep", tile_any, pairs_of_panels(tile_rank1_rows, 4), 4))


B_BYTES, A_BYTES = L2 * 7 // 16, L2 * 5 // 16
"""What of packed B, or else of A, is kept in a second-level cache beside the rest."""


def choose_span(m: int, n: int, k: int) -> int:
    """Rows swept over each panel: one tile when all of B stays in cache, else as many as stay there themselves."""
    most = greatest(least(A_BYTES // greatest(4 * k, 1), 16 * MR) // MR, 1)
    return either(4 * k * n <= B_BYTES, MR, least(most, m // MR + 1) * MR)  # type: ignore[no-any-return]


def pack_stride(nbytes: int) -> int:
    """Bytes between copied rows: an odd number of cache lines, so that rows do not share a cache set."""
    return 64 * (-(-nbytes // 64) | 1)


def scratch_bytes(span: int, runs: int, taps: int, pack_ld: int) -> int:
    """Workspace of one thread; pack_ld: bytes between copied rows, 0 if none are copied."""
    used = 8 * ((span + MR) * (1 + taps) + 1 + runs) + (span + MR) * pack_ld + BYTES
    return -(-used // 64) * 64 + TILE


def rows_cost(m: int) -> float:
    """What `STEPS` minimises, for ``m`` rows."""
    whole = max(m // MR - 1, 0)
    return whole * COSTS[MR] + COSTS[m - whole * MR]


PANELS = L2 // 8
"""Bytes of B from which it costs something that every thread reads all of it."""


def rows_or_columns(rows: float, columns: float, sizes: tuple[int, int, int]) -> int:
    """0 if threads divide the rows of a product of ``sizes`` m, n and k, 1 if the columns.

    rows, columns: how much longer the longest share takes than an even one.  Other layers mostly divide rows, so what a
    thread reads then is mostly what it has written.
    """
    m, n, k = sizes
    rows += AGAIN / m if 4 * k * n > PANELS else 0
    columns += CROSSING / n + CROSSING / (2 * max(k, 1))
    return 0 if rows <= columns else 1


def longest(count: int, threads: int) -> float:
    """The longest share of ``count`` units, over an even one."""
    return -(-count // threads) * threads / max(count, 1)


def choose_share(blocks: int, m: int, n: int, k: int, threads: int) -> int:
    """How threads divide the work: 0 rows, 1 columns, 2 blocks."""
    return _choose_share(blocks, m, n, k, threads) if is_followed(threads) or threads > 1 else 0


@pure
def _choose_share(blocks: int, m: int, n: int, k: int, threads: int) -> int:
    if threads > 1 and blocks > 1 and longest(blocks, threads) <= 1.05:
        return 2
    rows = threads * rows_cost(-(-m // threads)) / rows_cost(m)
    return rows_or_columns(rows, longest(-(-n // PANEL), threads), (m, n, k)) if threads > 1 else 0


__all__ = [
    "BLOCK_FIELDS", "COPIED", "EDGE", "INSIDE", "MR", "PAIRED", "PATCHED", "TILE", "choose_share", "choose_span",
    "longest", "pack_stride", "rows_or_columns", "scratch_bytes", "sweep",
]  # fmt: skip
