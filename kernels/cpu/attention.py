"""Attention: softmax(scale * Q K^T + mask) V for blocks of queries, whose scores never leave the cache.

A work item is some blocks of queries of one head.  Keys are transposed to panels of `PANEL` columns, as register tiles
want them, once for an item; so are values whose width is no multiple of a panel.  Each thread has its own workspace.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.cpu.lang import (
    LANES,
    ceil_div,
    copy_bytes,
    fill_bytes,
    fma,
    inline,
    iota,
    lanes_below,
    load_f32,
    load_i64,
    native,
    reduce_add,
    reduce_max,
    select,
    splat,
    split,
    store_f32,
    tile_rank1,
    tile_store,
    tile_zeros,
    vgather,
    vload,
    vload_n,
    vmax,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.softmax import exp_row, finite_or_zero
from bolt_numba.kernels.jit import F32, I64, PTR, Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.attention import FusedAttention
from bolt_numba.types import F32 as F32_TYPE
from bolt_numba.types import Array, TensorType

VECTORS = target().vectors
PANEL = VECTORS * LANES
"""Columns of a register tile."""
FEW = 4
"""Queries up to which packing keys and values does not pay."""
PARALLEL = 1 << 19
"""Multiplications from which a second thread pays."""


@inline
def pack_keys(k, panels, n, d):
    """``panels [n / PANEL][d][PANEL]`` of ``k [n, d]``; keys beyond n are 0."""
    index = iota() * d
    for vector in range(ceil_div(n, PANEL) * VECTORS):
        at = panels + 4 * ((vector // VECTORS) * d * PANEL + (vector % VECTORS) * LANES)
        row = vector * LANES
        if row + LANES <= n:
            for i in range(d):
                vstore(at + 4 * i * PANEL, vgather(k + 4 * (row * d + i), index))
        else:
            for i in range(d):
                for j in range(LANES):
                    value = load_f32(k + 4 * ((row + j) * d + i)) if row + j < n else np.float32(0.0)
                    store_f32(at + 4 * (i * PANEL + j), value)


@inline
def pack_values(v, panels, n, width):
    """``panels [width / PANEL][n][PANEL]`` of ``v [n, width]``; columns beyond width are 0."""
    for column in range(0, ceil_div(width, PANEL) * PANEL, LANES):
        at = panels + 4 * ((column // PANEL) * n * PANEL + column % PANEL)
        for i in range(n):
            vstore(at + 4 * i * PANEL, vload_n(v + 4 * (i * width + column), width - column))


@inline
def scale_and_mask(scores, mask, n, scale):
    """``scores = scores * scale + mask`` for a row (mask 0: none); the greatest."""
    low = splat(-math.inf)
    top, factor = low, splat(scale)
    i = 0
    while i + LANES <= n:
        s = fma(vload(scores + 4 * i), factor, vload(mask + 4 * i) if mask else splat(0.0))
        vstore(scores + 4 * i, s)
        top = vmax(s, top)
        i += LANES
    if i < n:
        s = fma(vload_n(scores + 4 * i, n - i), factor, vload_n(mask + 4 * i, n - i) if mask else splat(0.0))
        vstore_n(scores + 4 * i, s, n - i)
        top = vmax(select(lanes_below(n - i), s, low), top)
    return reduce_max(top)


@inline
def softmax_block(scores, pitch, count, seen, limit, mask, mask_step, scale, inverses):
    """Exponentials of ``count`` rows of scores in place; ``inverses``: one over their sums.

    Row i has ``min(limit + i, seen)`` keys; what follows up to ``seen`` becomes 0.
    """
    for i in range(count):
        row = scores + i * pitch
        keys = min(limit + i, seen)
        top = finite_or_zero(scale_and_mask(row, mask + i * mask_step if mask else 0, keys, scale))
        total = exp_row(row, row, keys, top)
        fill_bytes(row + 4 * keys, np.uint8(0), 4 * (seen - keys))
        store_f32(inverses + 4 * i, np.float32(1.0) / (np.float32(1.0) if total == np.float32(0.0) else total))


@inline
def write_block(source, pitch, y, n, count, factors):
    """``y[i] = source[i] * factors[i]`` for rows of ``n``."""
    for i in range(count):
        f = splat(load_f32(factors + 4 * i))
        for j in range(0, n, LANES):
            vstore_n(y + 4 * (i * n + j), vload(source + i * pitch + 4 * j) * f, n - j)


FIELDS: dict[str, Any] = {
    "q": PTR, "k": PTR, "v": PTR, "mask": PTR, "y": PTR, "table": PTR, "work": PTR, "work_size": I64, "items": I64,
    "chunks": I64, "chunk": I64, "m": I64, "n": I64, "d": I64, "width": I64, "mask_step": I64, "pitch": I64,
    "values_at": I64, "rows_at": I64, "scores_at": I64, "result_at": I64, "causal": I64, "scale": F32,
}  # fmt: skip


@cache
def attention_kernel(mr: int) -> Native:
    """Kernel for blocks of ``mr`` queries.

    table: i64 [heads][4], byte offsets of a head in q, k, v and mask; y is dense.  work: ``work_size`` bytes a thread:
    key panels, then value panels, a block of queries, scores (rows ``pitch`` bytes apart) and the result block at the
    offsets given.
    """

    @native(**FIELDS)
    def attention(p, tid, nthreads):
        m, n, d, width, pitch = p.m, p.n, p.d, p.width, p.pitch
        keys = p.work + p.work_size * tid
        values, rows = keys + p.values_at, keys + p.rows_at
        scores, result = keys + p.scores_at, keys + p.result_at
        packs_values = width % PANEL != 0
        value_step = 4 * PANEL if packs_values else 4 * width
        result_pitch = 4 * ceil_div(width, PANEL) * PANEL
        inverses = result + mr * result_pitch
        packed = -1
        first, last = split(p.items, tid, nthreads)
        for item in range(first, last):
            head = item // p.chunks
            entry = p.table + 32 * head
            v = p.v + load_i64(entry + 16)
            if head != packed:
                pack_keys(p.k + load_i64(entry + 8), keys, n, d)
                if packs_values:
                    pack_values(v, values, n, width)
                packed = head
            begin = (item - head * p.chunks) * p.chunk
            for block in range(begin, min(begin + p.chunk, m), mr):
                count = min(mr, m - block)
                q = p.q + load_i64(entry) + 4 * block * d
                if count < mr:
                    copy_bytes(rows, q, 4 * count * d)
                    fill_bytes(rows + 4 * count * d, np.uint8(0), 4 * (mr - count) * d)
                    q = rows
                seen = min(n, block + count) if p.causal else n
                for j in range(ceil_div(seen, PANEL)):
                    acc = tile_zeros(mr, VECTORS)
                    panel = keys + 4 * j * d * PANEL
                    for i in range(d):
                        acc = tile_rank1(acc, q + 4 * i, 4 * d, panel + 4 * i * PANEL)
                    tile_store(acc, scores + 4 * j * PANEL, pitch)
                mask = p.mask + load_i64(entry + 24) + block * p.mask_step if p.mask else 0
                first_limit = block + 1 if p.causal else seen
                softmax_block(scores, pitch, count, seen, first_limit, mask, p.mask_step, p.scale, inverses)
                for j in range(ceil_div(width, PANEL)):
                    acc = tile_zeros(mr, VECTORS)
                    panel = values + 4 * j * n * PANEL if packs_values else v + 4 * j * PANEL
                    for i in range(seen):
                        acc = tile_rank1(acc, scores + 4 * i, pitch, panel + i * value_step)
                    tile_store(acc, result + 4 * j * PANEL, result_pitch)
                write_block(result, result_pitch, p.y + 4 * (head * m + block) * width, width, count, inverses)

    return attention


@inline
def dot_keys(q, k, scores, n, d):
    """``scores[j]``: product of one query with key j, four keys at a time."""
    j = 0
    while j < n:
        some = min(n - j, 4)
        k0 = k + 4 * j * d
        k1 = k0 + 4 * d if some > 1 else k0
        k2 = k0 + 8 * d if some > 2 else k0
        k3 = k0 + 12 * d if some > 3 else k0
        a = splat(0.0)
        b, c, e = a, a, a
        for i in range(0, d, LANES):
            left, x = d - i, vload_n(q + 4 * i, d - i)
            a, b = fma(x, vload_n(k0 + 4 * i, left), a), fma(x, vload_n(k1 + 4 * i, left), b)
            c, e = fma(x, vload_n(k2 + 4 * i, left), c), fma(x, vload_n(k3 + 4 * i, left), e)
        store_f32(scores + 4 * j, reduce_add(a))
        if some > 1:
            store_f32(scores + 4 * j + 4, reduce_add(b))
        if some > 2:
            store_f32(scores + 4 * j + 8, reduce_add(c))
        if some > 3:
            store_f32(scores + 4 * j + 12, reduce_add(e))
        j += 4


@inline
def weigh_values(scores, v, y, n, width, factor):
    """``y = factor * sum of scores[j] * v[j]``, four vectors of columns at a time."""
    for column in range(0, width, 4 * LANES):
        left = width - column
        at = v + 4 * column
        a = splat(0.0)
        b, c, e = a, a, a
        for j in range(n):
            x = splat(load_f32(scores + 4 * j))
            a, b = fma(x, vload_n(at, left), a), fma(x, vload_n(at + 4 * LANES, left - LANES), b)
            c = fma(x, vload_n(at + 8 * LANES, left - 2 * LANES), c)
            e = fma(x, vload_n(at + 12 * LANES, left - 3 * LANES), e)
            at += 4 * width
        f, to = splat(factor), y + 4 * column
        vstore_n(to, a * f, left)
        vstore_n(to + 4 * LANES, b * f, left - LANES)
        vstore_n(to + 8 * LANES, c * f, left - 2 * LANES)
        vstore_n(to + 12 * LANES, e * f, left - 3 * LANES)


@native(q=PTR, k=PTR, v=PTR, mask=PTR, y=PTR, table=PTR, work=PTR, heads=I64, m=I64, n=I64, d=I64, width=I64,
        mask_step=I64, causal=I64, scale=F32)  # fmt: skip
def attention_few(p, tid, nthreads):
    """A few queries: products with keys and values where they lie, for packing them would cost more.

    A work item is one query.  table: as for `attention_kernel`; work: n f32 a thread.
    """
    m, n, d, width = p.m, p.n, p.d, p.width
    scores = p.work + 4 * n * tid
    first, last = split(p.heads * m, tid, nthreads)
    for item in range(first, last):
        head = item // m
        row = item - head * m
        entry = p.table + 32 * head
        seen = min(n, row + 1) if p.causal else n
        dot_keys(p.q + load_i64(entry) + 4 * row * d, p.k + load_i64(entry + 8), scores, seen, d)
        mask = p.mask + load_i64(entry + 24) + row * p.mask_step if p.mask else 0
        total = exp_row(scores, scores, seen, finite_or_zero(scale_and_mask(scores, mask, seen, p.scale)))
        inverse = np.float32(1.0) / (np.float32(1.0) if total == np.float32(0.0) else total)
        weigh_values(scores, p.v + load_i64(entry + 16), p.y + 4 * item * width, seen, width, inverse)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Byte offsets in the memory of one thread."""

    values_at: int
    rows_at: int
    scores_at: int
    result_at: int
    pitch: int
    size: int


def workspace(mr: int, n: int, d: int, width: int) -> Workspace:
    """Layout for heads of ``n`` keys of ``d`` and values of ``width``.

    Rows of scores are an odd number of vectors apart, so that a block of them does not fall into one set of the cache.
    """

    def rounded(nbytes: int) -> int:
        return -(-nbytes // 64) * 64

    columns, result = -(-n // PANEL) * PANEL, -(-width // PANEL) * PANEL
    values_at = rounded(4 * columns * d)
    rows_at = values_at + (rounded(4 * result * n) if width % PANEL else 0)
    scores_at = rows_at + rounded(4 * mr * d)
    pitch = 4 * (columns + LANES)
    result_at = scores_at + rounded(mr * pitch)
    size = result_at + rounded(4 * mr * result + 4 * mr)
    return Workspace(values_at, rows_at, scores_at, result_at, pitch, size + 64)


def head_offsets(heads: Sequence[int], dims: Sequence[int]) -> Array:
    """Byte offset of each head (row-major over ``heads``) in an operand [..., rows, columns] broadcast to them."""
    matrix = math.prod(dims[-2:])
    lead = dims[:-2]
    index = np.arange(math.prod(lead), dtype=np.int64).reshape(lead)
    return np.asarray(np.broadcast_to(index, tuple(heads)).reshape(-1) * (4 * matrix))


def _accepts(op: Any, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or t.dtype != F32_TYPE or not t.size) for t in ins):
        return False
    q, k, v = (t.dims for t in ins[:3] if t is not None)
    mask = ins[3].dims if len(ins) > 3 and ins[3] is not None else None
    if k[-1] * k[-2] >= 1 << 31 or q[-1] != k[-1] or v[-2] != k[-2]:
        return False
    return mask is None or (len(mask) > 1 and mask[-1] == k[-2] and mask[-2] in (1, q[-2])) or mask == (k[-2],)


def _chunks(heads: int, m: int, mr: int, threads: int) -> int:
    """Parts of a head that are separate work items: only where heads alone do not share evenly."""
    if heads % threads == 0 or heads >= 4 * threads:
        return 1
    return min(-(-m // mr), 2 * threads)


@kernel(FusedAttention, accepts=_accepts, by_types=True)
def attention_f32(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Register tiles over packed keys and values, softmax on scores in cache; products in place for few queries."""
    q, k, v = (t.dims for t in ins[:3] if t is not None)
    mask = ins[3].dims if len(ins) > 3 and ins[3] is not None else None
    m, n, d, width = q[-2], k[-2], q[-1], v[-1]
    lead = outs[0].dims[:-2]
    heads = math.prod(lead)
    masks = (1,) * (2 - len(mask)) + tuple(mask) if mask else (1, 1)
    table = np.stack([head_offsets(lead, x) for x in (q, k, v, masks)], axis=1)
    args: dict[str, Argument] = {"q": In(0), "k": In(1), "v": In(2), "mask": In(3) if mask else None, "y": Out(0)}
    args |= {"table": np.ascontiguousarray(table, np.int64), "m": m, "n": n, "d": d, "width": width}
    args |= {"mask_step": 4 * n if masks[-2] > 1 else 0, "causal": int(op.causal), "scale": op.scale}
    parallel = heads * m * n * (d + width) > PARALLEL
    if m <= FEW:
        args |= {"work": Scratch(4 * n * context.threads), "heads": heads}
        return [Step(attention_few, args, parallel and heads * m > 1)]
    args |= _blocks(heads, m, context.threads, workspace(target().rows, n, d, width))
    return [Step(attention_kernel(target().rows), args, parallel)]


def _blocks(heads: int, m: int, threads: int, layout: Workspace) -> dict[str, Argument]:
    """Parameters of `attention_kernel` that say how work and memory are shared."""
    chunks, mr = _chunks(heads, m, target().rows, threads), target().rows
    chunk = math.ceil(math.ceil(m / chunks) / mr) * mr
    chunks = math.ceil(m / chunk)
    args: dict[str, Argument] = {"work": Scratch(layout.size * threads), "work_size": layout.size}
    args |= {"items": heads * chunks, "chunks": chunks, "chunk": chunk, "pitch": layout.pitch}
    args |= {"values_at": layout.values_at, "rows_at": layout.rows_at}
    return args | {"scores_at": layout.scores_at, "result_at": layout.result_at}
