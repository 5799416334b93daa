"""Attention of f16 and bf16 by tensor cores: blocks of rows of scores, 64 keys at a time, sums in f32.

Keys and values come in by cp.async while those before are used, in rows whose 16-byte parts are exchanged by row % 8,
so that ldmatrix meets no bank twice.  Scores stay in registers and become the operand of the second product there.
Few rows share the keys among several blocks, whose sums `combine` puts together.
Source: Dao 2023, FlashAttention-2, algorithm 1 and section 3.2.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.attention.rows import (
    EXTRA,
    FIELDS,
    LOG2_E,
    block_keys,
    inverse,
    lanes_sum,
    place,
    reach_of,
    seen,
)
from bolt_numba.kernels.cuda.declare import I64, PTR_OR_0, CudaKernel, Macro, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    cp_async16_zfill,
    cp_async_commit,
    cp_async_wait,
    cuda,
    ex2,
    load4_shared_u32,
    load_i64,
    load_shared_i32,
    max_f32,
    shared_address,
    static,
    static_range,
    store4_u32,
    store_f32,
    store_shared_i32,
)
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.ops.dtypes import MIN_F32

NO_MASK, ONE_ROW, ALL_ROWS = "", "alike", "rows"


@record(frozen=True)
class FlashForm:
    """What a kernel is made for.

    d: elements of a head, 64 or 128, fewer are filled up with zeros.  tiles: of 16 rows, of each of ``warps``.
    mask: whether there is one, and whether its rows differ.  parts: whether blocks share the keys of a row.  capped:
    whether scores are.  grouped: whether a unit has several heads of queries.
    """

    dtype: str
    d: int
    tiles: int
    warps: int
    mask: str = NO_MASK
    parts: bool = False
    capped: bool = False
    grouped: bool = False

    @property
    def rows(self) -> int:
        return 16 * self.tiles * self.warps

    @property
    def keeps_queries(self) -> bool:
        """Whether registers have room for them."""
        return self.d * self.tiles <= 128 and not self.mask

    @property
    def keys(self) -> int:
        """Of a tile: as many as leave registers for the sums."""
        if self.d * self.tiles > 128:
            return 16 if self.mask else 32
        return 32 if self.mask == ALL_ROWS else 64

    @property
    def pitch(self) -> int:
        """Bytes of a row in shared memory."""
        return 2 * self.d

    @property
    def shared(self) -> int:
        return (self.rows + 4 * self.keys) * self.pitch + 16


def _placing(form: FlashForm) -> tuple[Any, Any]:
    """Helpers: bytes from the beginning of a unit to a row of it; the query that a row is."""
    grouped = form.grouped

    @inline
    def spot(row, m, head, step):
        return place(row, m, head, step) if static(grouped) else row * step

    @inline
    def query_of(row, m):
        return np.int64(np.uint32(row) % np.uint32(m)) if static(grouped) else row

    return spot, query_of


def _fetching(form: FlashForm) -> tuple[Any, Any]:
    """Helpers that begin to copy rows to shared memory, queries and a tile of keys or values.

    What is not there becomes 0.  left: rows that are there, of the thread's first one on.  is_in: whether its
    columns are there.  A tile's helper gives where the next tile begins.
    """
    pitch, chunks, threads = form.pitch, form.pitch // 16, 32 * form.warps
    rows, turns, query_turns = threads // chunks, form.keys * chunks // threads, form.rows * chunks // threads
    is_same = rows % 8 == 0  # the place in a row, for all rows of a thread: fewer registers

    spot, _ = _placing(form)

    @inline
    def copy(to, source, row, first, chunk, is_there):
        part = np.uint32((chunk ^ ((first if static(is_same) else row) & np.uint32(7))) << np.uint32(4))
        cp_async16_zfill(np.uint32(to + row * np.uint32(pitch) + part), source, np.uint32(16 if is_there else 0))

    @inline
    def fetch_queries(to, q, m, head, step, first, end, nbytes, thread):
        row, chunk = np.uint32(thread // np.uint32(chunks)), np.uint32(thread % np.uint32(chunks))
        for turn in range(query_turns):
            at = np.uint32(row + np.uint32(turn * rows))
            there = first + np.int64(at) < end and 16 * np.int64(chunk) < nbytes
            copy(to, q + spot(first + np.int64(at), m, head, step) + 16 * np.int64(chunk), at, row, chunk, there)

    @inline
    def fetch_tile(to, source, step, left, row, chunk, is_in):
        for turn in range(turns):
            is_there = is_in and np.int32(turn * rows) < left
            copy(to, source, np.uint32(row + np.uint32(turn * rows)), row, chunk, is_there)
            source += step
        return source

    return fetch_queries, fetch_tile


def _masking(form: FlashForm) -> tuple[Any, Any]:
    """Helpers: the keys that each half of a lane sees; where its mask begins.

    first: row of a warp for the one, of a lane for the other.  before, keys: i32.
    """
    halves, (spot, query_of) = 2 * form.tiles, _placing(form)

    @inline
    def look(starts, ends, first, lane, rows, m, before, window, keys):
        # By a shuffle, which stays where it stands: the compiler would hold all of this in registers over the loop.
        own = first + np.int64(np.uint32(cuda.shfl_xor_sync(0xFFFFFFFF, np.int32(lane), 0)) >> np.uint32(2))
        for half in range(halves):
            row = own + 8 * half
            low, high = seen(query_of(row, m), np.int64(before), window, np.int64(keys))
            starts[half], ends[half] = np.int32(low), np.int32(high if row < rows else 0)

    @inline
    def find(masks, first, rows, m, mask, mask_head, mask_step):
        for half in range(halves):
            masks[half] = mask + spot(min(first + 8 * half, rows - 1), m, mask_head, mask_step)

    return look, find


def _writing(form: FlashForm) -> Inline:
    """Helper that copies the rows of a warp from shared memory to the result."""
    pitch, chunks, turns = form.pitch, form.pitch // 16, form.tiles * form.pitch // 32
    spot, _ = _placing(form)

    @inline
    def write(y, source, first, rows, m, y_head, y_step, nbytes, lane):
        for turn in range(turns):
            at = lane + np.uint32(32 * turn)
            row, chunk = np.uint32(at // np.uint32(chunks)), np.uint32(at % np.uint32(chunks))
            part = np.uint32((chunk ^ (row & np.uint32(7))) << np.uint32(4))
            a, b, c, d = load4_shared_u32(np.uint32(source + row * np.uint32(pitch) + part))
            to = first + np.int64(row)
            if to < rows and np.int64(chunk) * 16 < nbytes:
                store4_u32(y + spot(to, m, y_head, y_step) + 16 * np.int64(chunk), a, b, c, d)

    return write


def _scores(form: FlashForm) -> Any:
    """Helpers: queries of a warp to registers, where there is room; products of a warp's queries with a tile of keys.

    query, base: addresses of the lane's first row of queries and of keys.
    """
    tiles, pitch, steps, keeps, keys = form.tiles, form.pitch, form.d // 16, form.keeps_queries, form.keys
    ldq, ldk = Macro("ldsm_at"), Macro("ldsm", keys // 16, 16 * pitch)
    clear, mma = Macro("fill", 4 * tiles * (keys // 8), 0.0), Macro("mma_row", keys // 8, form.dtype, tiles)

    @inline
    def load(qf, query):
        if static(keeps):
            for step in static_range(steps):
                for i in static_range(tiles):
                    ldq(qf, 4 * (step * tiles + i), np.uint32(query ^ np.uint32(32 * step)), 16 * i * pitch)

    @inline
    def multiply(s, qf, bf, query, base):
        clear(s)
        for step in static_range(steps):
            if static(not keeps):
                for i in static_range(tiles):
                    ldq(qf, 4 * i, np.uint32(query ^ np.uint32(32 * step)), 16 * i * pitch)
            ldk(bf, np.uint32(base ^ np.uint32(32 * step)), 0)
            mma(s, qf, 4 * tiles * step if static(keeps) else 0, bf)

    return load, multiply


def _softmax(form: FlashForm) -> Inline:
    """Helper that makes operands of the scores of a tile, and lets sums so far follow a new maximum.

    Which keys a row sees is found in the tiles where that matters.
    """
    look, _ = _masking(form)
    tiles, columns, has_mask, has_cap = form.tiles, form.keys // 8, form.mask != NO_MASK, form.capped
    hide, soften = Macro("hide", tiles, columns), Macro("soften", tiles, columns)
    bend = Macro("cap_scores", tiles, columns)
    add_mask = Macro("add_mask", tiles, columns, form.dtype, form.mask == ONE_ROW)
    by_rows, pack = Macro("scale_rows", tiles, form.d // 8), Macro("pack_rows", tiles, columns, form.dtype)

    @inline
    def follow(
        s, out, pf, tops, totals, factors, masks, starts, ends, key, is_plain, scale, cap, first, lane, rows, m, before,
        window, keys,
    ):  # fmt: skip
        if static(has_cap):
            own = scale * np.float32(1 / LOG2_E)
            bend(s, own / cap, cap / own)
        if static(has_mask):
            add_mask(s, key, keys, masks, np.float32(LOG2_E) / scale)
        if not is_plain:
            look(starts, ends, first, lane, rows, m, before, window, keys)
            hide(s, key, starts, ends)
        soften(s, tops, totals, factors, scale)
        by_rows(out, factors)
        pack(s, pf)

    return follow


def _values(form: FlashForm) -> Inline:
    """Helper: products of powers with a tile of values; base: address of the lane's first row of them."""
    tiles, pitch, groups, steps = form.tiles, form.pitch, form.d // 16, form.keys // 16
    ldv, mma = Macro("ldsm_at", True), Macro("mma_row", form.d // 8, form.dtype, tiles)

    @inline
    def add(out, pf, bf, base):
        for step in static_range(steps):
            for j in static_range(groups):
                ldv(bf, 4 * j, np.uint32(base ^ np.uint32(32 * j)), 16 * step * pitch)
            mma(out, pf, 4 * tiles * step, bf)

    return add


def _results(form: FlashForm) -> Inline:
    """Helper that divides by the sums, the sink among them, and stores by way of shared memory."""
    halves, load, write = 2 * form.tiles, getattr(lang, f"load_{form.dtype}"), _writing(form)
    by_rows = Macro("scale_rows", form.tiles, form.d // 8)
    keep = Macro("store_rows", form.tiles, form.d // 8, form.dtype, form.pitch)

    @inline
    def finish(out, tops, totals, factors, sink, y, own, place_of, first, rows, m, y_head, y_step, nbytes, scale, lane):
        for half in static_range(halves):
            total = lanes_sum(totals[half], 4)
            if sink != 0:
                row = min(first + np.int64(lane >> np.uint32(2)) + 8 * half, rows - 1)
                drain = load(sink + 2 * (row // m)) * np.float32(LOG2_E)
                factors[half] = drained(tops[half], total, drain, scale)
            else:
                factors[half] = inverse(total)
        by_rows(out, factors)
        keep(out, place_of)
        cuda.syncwarp()
        write(y, own, first, rows, m, y_head, y_step, nbytes, lane)

    return finish


def _partial_results(form: FlashForm) -> Inline:
    """Helper that stores the sums of this block's keys, for `combine`.

    partial: f32 [parts][units * rows][width + EXTRA], sums of powers times values, exponent of the maximum, sum of
    powers.
    """
    halves, store_sums = 2 * form.tiles, Macro("store_sums", form.tiles, form.d // 8)

    @inline
    def finish(out, tops, totals, places, partial, first, rows, width, scale, lane):
        for half in static_range(halves):
            row, total = first + np.int64(lane >> np.uint32(2)) + 8 * half, lanes_sum(totals[half], 4)
            places[half] = partial + 4 * row * (width + EXTRA) if row < rows else 0
            if row < rows and np.uint32(lane & np.uint32(3)) == np.uint32(0):
                store_f32(places[half] + 4 * width, tops[half] * scale)
                store_f32(places[half] + 4 * width + 4, total)
        store_sums(out, places, np.int32(2) * np.int32(lane & np.uint32(3)), np.int32(width))

    return finish


@inline
def drained(top, total, sink, scale):
    """Factor of a row's sums: one over all powers, that of the sink (an exponent of 2) among them; 0 for nothing."""
    base = max_f32(max_f32(top * scale, sink), MIN_F32)
    factor = ex2(top * scale - base)
    return factor / max_f32(total * factor + ex2(sink - base), np.float32(1))  # one power is 1, unless all are 0


@inline
def tile_keys(first, last, group, m, before, window, keys, part, parts, tile):
    """Keys of a block: first one (of a tile) and end of its part, and between which every row sees all of them.

    first, last: its rows.  tile: keys of one.
    """
    low, high = block_keys(first, last - first + 1, group, m, before, window, keys)
    least, most = (np.int64(0), m - 1) if group > 1 else (first, last)
    begin = max(np.int64(0), before + most + 1 - window)
    low = low & ~np.int64(tile - 1)
    share = (((max(high - low, 0) + tile - 1) // tile + parts - 1) // parts) * tile
    low += part * share
    high, end = min(high, low + share), min(keys, before + least + 1)
    return np.int32(low), np.int32(high), np.int32(begin), np.int32(end)


@inline
def fragments(lane, pitch):
    """Offsets of what a lane addresses for ldmatrix: in queries, in keys and in values."""
    row = np.uint32(lane & np.uint32(15))
    q = row * pitch + (((lane >> np.uint32(4)) ^ (row & np.uint32(7))) << np.uint32(4))
    key = np.uint32((lane & np.uint32(7)) + ((lane >> np.uint32(4)) << np.uint32(3)))
    k = key * pitch + ((((lane >> np.uint32(3)) & np.uint32(1)) ^ (key & np.uint32(7))) << np.uint32(4))
    return np.uint32(q), np.uint32(k)


def _extents(form: FlashForm) -> Any:
    reach = reach_of(2)

    def found(a: Numbers) -> dict[str, Any]:
        return {**reach(a), "partial": 4 * a.parts * a.units * a.group * a.m * (a.width + EXTRA) if form.parts else 0}

    return found


@functools.cache
def flash_attention(form: FlashForm) -> CudaKernel:
    """Kernel of a form; d, width, all steps and heads are multiples of 16 bytes; scale: of an exponent of 2."""
    block, pitch, tile_bytes, in_parts = form.rows, form.pitch, form.keys * form.pitch, form.parts
    halves, n_scores, n_p, tile = 2 * form.tiles, form.keys // 2 * form.tiles, form.keys // 4 * form.tiles, form.keys
    n_q, n_b = 4 * form.tiles * (form.d // 16 if form.keeps_queries else 1), max(form.keys, form.d) // 4
    n_out = form.d // 2 * form.tiles
    (fetch_queries, fetch), (_, find), (load, multiply) = _fetching(form), _masking(form), _scores(form)
    follow, add, clear = _softmax(form), _values(form), Macro("fill", n_out, 0.0)
    finish, finish_part, own_rows = _results(form), _partial_results(form), 16 * form.tiles
    chunks, stride, at_once = pitch // 16, np.int32(form.keys), 512 * form.warps // pitch

    @cuda_kernel(
        threads=32 * form.warps, shared=form.shared, unrolled=True, extents=_extents(form), **FIELDS,
        partial=PTR_OR_0, parts=I64, blocks=lambda a: (ceil_div(a.group * a.m, block), a.units, a.parts),
    )  # fmt: skip
    def flash_attention(
        q, k, v, mask, sink, y, table, units, group, m, d, width, q_step, k_step, v_step, y_step, mask_step, q_head,
        y_head, mask_head, window, scale, cap, partial, parts,
    ):  # fmt: skip
        memory, unit = shared_address(cuda.shared.array(0, np.uint8)), np.int64(cuda.blockIdx.y)
        s, out = cuda.local.array(n_scores, np.float32), cuda.local.array(n_out, np.float32)
        qf, bf = cuda.local.array(n_q, np.uint32), cuda.local.array(n_b, np.uint32)
        pf, factors = cuda.local.array(n_p, np.uint32), cuda.local.array(halves, np.float32)
        tops, totals = cuda.local.array(halves, np.float32), cuda.local.array(halves, np.float32)
        starts, ends = cuda.local.array(halves, np.int32), cuda.local.array(halves, np.int32)
        masks = cuda.local.array(halves, np.int64)
        thread, part = np.uint32(cuda.threadIdx.x), np.int64(cuda.blockIdx.z)
        lane, warp = np.uint32(thread & np.uint32(31)), np.uint32(thread >> np.uint32(5))
        entry, rows, first = table + 8 * ENTRY * unit, group * m, np.int64(cuda.gridDim.x - 1 - cuda.blockIdx.x) * block
        keys, before, last = load_i64(entry + 40), load_i64(entry + 48), min(first + block, rows) - 1
        low, high, plain, end = tile_keys(first, last, group, m, before, window, keys, part, parts, tile)
        line, chunk = np.uint32(thread // np.uint32(chunks)), np.uint32(thread % np.uint32(chunks))
        from_k = k + load_i64(entry + 8) + (np.int64(low) + np.int64(line)) * k_step + 16 * np.int64(chunk)
        from_v = v + load_i64(entry + 16) + (np.int64(low) + np.int64(line)) * v_step + 16 * np.int64(chunk)
        left, has_k, has_v = np.int32(high) - np.int32(line), 8 * np.int64(chunk) < d, 8 * np.int64(chunk) < width
        base, other = np.uint32(memory + block * pitch), np.uint32(memory + block * pitch + 2 * tile_bytes)
        inside = np.uint32(memory + block * pitch + 4 * tile_bytes)  # keys that all rows see: registers are short
        if thread == np.uint32(0):
            store_shared_i32(inside, plain)
            store_shared_i32(np.uint32(inside + np.uint32(4)), end)
        fetch_queries(memory, q + load_i64(entry), m, q_head, q_step, first, rows, 2 * d, thread)
        from_k = fetch(base, from_k, at_once * k_step, np.int32(left - low), line, chunk, has_k)
        from_v = fetch(np.uint32(base + tile_bytes), from_v, at_once * v_step, np.int32(left - low), line, chunk, has_v)
        cp_async_commit()
        mine, (in_q, in_k) = first + np.int64(warp) * own_rows, fragments(lane, np.uint32(pitch))
        own = np.uint32(memory + warp * np.uint32(own_rows * pitch))
        query, row = np.uint32(own + in_q), mine + np.int64(lane >> np.uint32(2))
        find(masks, row, rows, m, mask + load_i64(entry + 24), mask_head, mask_step)
        clear(out)
        for half in range(halves):
            tops[half], totals[half] = np.float32(-np.inf), np.float32(0)
        cp_async_wait(0)
        cuda.syncthreads()
        load(qf, query)
        at = low
        while at < high:
            behind = np.int32(at + stride)
            to_v = np.uint32(other + tile_bytes)
            from_k = fetch(other, from_k, at_once * k_step, np.int32(left - behind), line, chunk, has_k)
            from_v = fetch(to_v, from_v, at_once * v_step, np.int32(left - behind), line, chunk, has_v)
            cp_async_commit()
            multiply(s, qf, bf, query, np.uint32(base + in_k))
            key = np.int32(at + np.int32(2) * np.int32(lane & np.uint32(3)))
            is_plain = load_shared_i32(inside) <= at and behind <= load_shared_i32(np.uint32(inside + np.uint32(4)))
            follow(s, out, pf, tops, totals, factors, masks, starts, ends, key, is_plain, scale, cap, mine, lane, rows,
                   m, np.int32(before), window, np.int32(keys))  # fmt: skip
            add(out, pf, bf, np.uint32(base + tile_bytes + in_q))
            base, other, at = other, base, behind
            cp_async_wait(0)
            cuda.syncthreads()
        if static(in_parts):
            to = partial + 4 * (part * units + unit) * rows * (width + EXTRA)
            finish_part(out, tops, totals, masks, to, mine, rows, width, scale, lane)
        else:
            spot = np.uint32(own + (lane >> np.uint32(2)) * np.uint32(pitch + 16) + 4 * (lane & np.uint32(3)))
            sinks = sink + load_i64(entry + 56) if sink != 0 else sink
            finish(out, tops, totals, factors, sinks, y + load_i64(entry + 32), own, spot, mine, rows, m, y_head,
                   y_step, 2 * width, scale, lane)  # fmt: skip

    return flash_attention
