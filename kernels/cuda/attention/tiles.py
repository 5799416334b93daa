"""Attention in f32 arithmetic: tiles of 64 rows of scores and 64 keys, whose softmax goes along with the keys.

Products are sums in f32, 4 x 4 a thread.  A block keeps its queries in shared memory, and takes keys 16 elements and
values 16 positions at a time.  Queries that are too wide for it come 16 elements at a time too, again for each tile.
Source: Dao 2023, FlashAttention-2, algorithm 1.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.attention.rows import (
    FIELDS,
    LOG2_E,
    block_keys,
    inverse,
    lanes_max,
    lanes_sum,
    place,
    reach_of,
    score_of,
    seen,
    shifted,
)
from bolt_numba.kernels.cuda.declare import WIDE_BLOCK, CudaKernel, Macro, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    cuda,
    ex2,
    load4_shared_f32,
    load_i64,
    max_f32,
    shared_address,
    store_shared_f32,
)
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.geometry.heads import ENTRY

TILE, DEEP = 64, 16
KEY_PITCH, SCORE_PITCH = 4 * (DEEP + 4), 4 * (TILE + 4)
"""Bytes from row to row, so that 8 rows' quarters of a line lie in different banks."""


def shared_bytes(vectors: int, d: int, again: bool = False) -> int:
    """Bytes of a block; again: whether queries of ``d`` elements come for each tile of keys."""
    query_pitch = KEY_PITCH if again else 4 * (ceil_div(d, DEEP) * DEEP + 4)
    return TILE * (query_pitch + KEY_PITCH + SCORE_PITCH) + DEEP * 4 * TILE * vectors


def _copying(dtype: str) -> Inline:
    """Helper: one element of global memory to shared memory as f32, 0 where there is none."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def copy(to, source, column, is_there):
        v = np.float32(0)
        if is_there:
            v = load(source + size * column)
        store_shared_f32(np.uint32(to), v)

    return copy


def _queries(dtype: str) -> Inline:
    """Helper that copies the queries of a block, their elements from ``begin`` to ``end``, in whole steps."""
    copy = _copying(dtype)

    @inline
    def fetch(to, pitch, begin, end, q, first, rows, m, q_head, q_step, d, tx, ty):
        for i in range(4):
            row = ty + np.uint32(16 * i)
            source = q + place(first + row, m, q_head, q_step)
            for k0 in range(begin, end, DEEP):
                column = k0 + np.int64(tx)
                spot = to + row * np.uint32(pitch) + 4 * (column - begin)
                copy(spot, source, column, first + row < rows and column < d)

    return fetch


def _scores(dtype: str, again: bool) -> Any:
    """Helper: products of 4 rows next to each other and of 4 keys that are 16 apart.

    again: whether the queries come now; given: what their helper takes behind ``end``.
    """
    copy, dots, lds = _copying(dtype), Macro("dots", 4, 4, 4), Macro("lds", 4, 16 * KEY_PITCH)
    fetch = _queries(dtype)

    @inline
    def multiply(s, a, b, queries, pitch, given, to, k, k_step, first, keys, d, tx, ty):
        for i in range(16):
            s[i] = np.float32(0)
        for k0 in range(0, d, DEEP):
            column, from_k0 = k0 + np.int64(tx), 4 * k0
            cuda.syncthreads()
            if again:
                fetch(queries, pitch, k0, k0 + DEEP, *given, d, tx, ty)
                from_k0 = 0
            for i in range(4):
                row = ty + np.uint32(16 * i)
                key = first + row
                copy(to + row * KEY_PITCH + 4 * tx, k + key * k_step, column, key < keys and column < d)
            cuda.syncthreads()
            for deep in range(4):
                for i in range(4):
                    at = queries + (4 * ty + i) * pitch + from_k0 + 16 * deep
                    a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = load4_shared_f32(np.uint32(at))
                lds(b, np.uint32(to + tx * KEY_PITCH + 16 * deep), 0)
                dots(s, a, b)

    return multiply


def _softmax(dtype: str, vectors: int) -> Inline:
    """Helper that makes powers of scores, and lets sums and results so far follow a new maximum."""
    scored, columns = score_of(dtype), 4 * vectors

    @inline
    def follow(s, out, tops, totals, starts, ends, masks, first, scale, cap, to, tx, ty):
        for i in range(4):
            top = tops[i]
            for j in range(4):
                key, score = first + tx + 16 * j, np.float32(-np.inf)
                if starts[i] <= key and key < ends[i]:
                    score = scored(s[4 * i + j], key, masks[i], scale, cap)
                s[4 * i + j] = score
                top = max_f32(top, score)
            top = lanes_max(top, 16)
            base = shifted(top)
            factor, total = ex2(tops[i] - base), np.float32(0)
            for j in range(4):
                power = ex2(s[4 * i + j] - base)
                total += power
                store_shared_f32(np.uint32(to + (4 * ty + i) * SCORE_PITCH + 4 * (tx + 16 * j)), power)
            tops[i], totals[i] = top, totals[i] * factor + total
            for j in range(columns):
                out[columns * i + j] *= factor

    return follow


def _values(dtype: str, vectors: int) -> Inline:
    """Helper that adds the values of a tile of keys: ``vectors`` times 4 columns a thread, 64 apart."""
    copy, pitch = _copying(dtype), 4 * TILE * vectors
    dots, lds = Macro("dots", 4, 4 * vectors, 4, True), Macro("lds", 4 * vectors, 4 * TILE)
    lds_p = Macro("lds", 4, SCORE_PITCH)

    @inline
    def add(out, a, b, scores, to, v, v_step, first, keys, left, width, tx, ty):
        for c0 in range(0, TILE, DEEP):
            key = first + c0 + np.int64(ty)
            cuda.syncthreads()
            for i in range(4 * vectors):
                column = left + np.int64(tx) + 16 * i
                copy(to + ty * pitch + 4 * (tx + 16 * i), v + key * v_step, column, key < keys and column < width)
            cuda.syncthreads()
            for deep in range(4):
                lds_p(a, np.uint32(scores + 4 * ty * SCORE_PITCH + 4 * (c0 + 4 * deep)), 0)
                lds(b, np.uint32(to + 4 * deep * pitch + 16 * tx), 0)
                dots(out, a, b)

    return add


def _results(dtype: str, vectors: int) -> Inline:
    """Helper that divides by the sums, the sink among them, and stores."""
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype]

    @inline
    def write(out, i, top, total, sink, y, left, width, tx):
        if sink != 0:
            drain = load(sink) * np.float32(LOG2_E)
            base = shifted(max_f32(top, drain))
            factor = ex2(top - base)
            by = factor * inverse(total * factor + ex2(drain - base))
        else:
            by = inverse(total)
        for j in range(4 * vectors):
            column = left + 4 * np.int64(tx) + 64 * (j >> 2) + (j & 3)
            if column < width:
                store(y + size * column, out[4 * vectors * i + j] * by)

    return write


@functools.cache
def attention_tiles(dtype: str, vectors: int, again: bool = False) -> CudaKernel:
    """Kernel for values of which a block makes 64 * ``vectors`` columns; see `rows.FIELDS`, and `shared_bytes`."""
    size, sums = lang.SIZES[dtype], 16 * vectors
    parts = max(16, sums)
    fetch, multiply, follow = _queries(dtype), _scores(dtype, again), _softmax(dtype, vectors)
    add, write = _values(dtype, vectors), _results(dtype, vectors)

    @cuda_kernel(
        threads=WIDE_BLOCK, shared=lambda a: shared_bytes(vectors, a.d, again), extents=reach_of(size), **FIELDS,
        blocks=lambda a: (ceil_div(a.group * a.m, TILE), a.units, ceil_div(a.width, TILE * vectors)),
    )  # fmt: skip
    def attention_tiles(
        q, k, v, mask, sink, y, table, units, group, m, d, width, q_step, k_step, v_step, y_step, mask_step, q_head,
        y_head, mask_head, window, scale, cap,
    ):  # fmt: skip
        memory = shared_address(cuda.shared.array(0, np.uint8))
        s, out = cuda.local.array(16, np.float32), cuda.local.array(sums, np.float32)
        a, b = cuda.local.array(16, np.float32), cuda.local.array(parts, np.float32)
        tops, totals = cuda.local.array(4, np.float32), cuda.local.array(4, np.float32)
        starts, ends = cuda.local.array(4, np.int64), cuda.local.array(4, np.int64)
        masks = cuda.local.array(4, np.int64)
        thread = np.uint32(cuda.threadIdx.x)
        tx, ty = thread & np.uint32(15), thread >> np.uint32(4)
        entry, rows = table + 8 * ENTRY * np.int64(cuda.blockIdx.y), group * m
        first, left = np.int64(cuda.blockIdx.x) * TILE, np.int64(cuda.blockIdx.z) * TILE * vectors
        keys, before = load_i64(entry + 40), load_i64(entry + 48)
        pitch = np.int64(KEY_PITCH) if again else 4 * (-(-d // DEEP) * DEEP + 4)
        key_tile = memory + TILE * pitch
        score_tile = key_tile + TILE * KEY_PITCH
        value_tile = score_tile + TILE * SCORE_PITCH
        queries = q + load_i64(entry), first, rows, m, q_head, q_step
        if not again:
            fetch(memory, pitch, 0, d, *queries, d, tx, ty)
        for i in range(4):
            row = first + 4 * np.int64(ty) + i
            tops[i], totals[i], masks[i] = np.float32(-np.inf), np.float32(0), 0
            starts[i], ends[i] = seen(np.uint32(row) % np.uint32(m), before, window, keys)
            if row >= rows:
                ends[i] = 0
            elif mask != 0:
                masks[i] = mask + load_i64(entry + 24) + place(row, m, mask_head, mask_step)
        for i in range(sums):
            out[i] = np.float32(0)
        low, high = block_keys(first, min(TILE, rows - first), group, m, before, window, keys)
        k, v = k + load_i64(entry + 8), v + load_i64(entry + 16)
        for at in range(low, high, TILE):
            multiply(s, a, b, memory, pitch, queries, key_tile, k, k_step, at, high, d, tx, ty)
            follow(s, out, tops, totals, starts, ends, masks, at, scale, cap, score_tile, tx, ty)
            add(out, a, b, score_tile, value_tile, v, v_step, at, high, left, width, tx, ty)
        for i in range(4):
            row, total = first + 4 * np.int64(ty) + i, lanes_sum(totals[i], 16)
            if row < rows:
                drain = sink + load_i64(entry + 56) + size * (row // m) if sink != 0 else sink
                to = y + load_i64(entry + 32) + place(row, m, y_head, y_step)
                write(out, i, tops[i], total, drain, to, left, width, tx)

    return attention_tiles
