"""Attention whose products are those of bfloat16, summed in f32; the softmax is that of f32.

Queries, keys, values and the exponentials of scores are rounded on their way into packed rows and panels, which hold
pairs of positions of the sum: see `products.sweep_bf16`.  Few queries are left to `attention_f32`, which reads keys
and values where they lie.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial

import numpy as np

from bolt_numba.kernels.cpu.attention.attention import (
    FIELDS,
    BlockForm,
    Workspace,
    accepts_attention,
    attention_steps,
    blocks_reach,
    laid_out,
)  # fmt: skip
from bolt_numba.kernels.cpu.attention.few import FEW_QUERIES
from bolt_numba.kernels.cpu.attention.score_rows import PANEL, VECTORS, exp_scores, find_top, write_block
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    fill_bytes,
    load_f32,
    load_i64,
    pair_bf16,
    rows_strided,
    splat,
    split,
    store_f32,
    tile_dot_rows_bf16,
    tile_store,
    tile_zeros,
    vload,
    vload_n,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.pack import transpose
from bolt_numba.kernels.cpu.products.sweep_bf16 import round_run
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import Native, inline, native
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel
from bolt_numba.ops.layers.attention.attention import FusedAttention

BLOCK = (LANES + 1) * BYTES
"""Bytes of a transposed block of keys, and a row of zeros."""


@inline
def pack_key_pairs(k, step, panels, n, d, scale, order, block):
    """``panels [n / PANEL][d / 2][PANEL][2]`` of ``scale * k [n, d]``, rows ``step`` bytes apart; 0 beyond n and d.

    order: i32 0, 1, …, d - 1.  block: `BLOCK` bytes of workspace.
    """
    pairs = ceil_div(d, 2)
    for vector in range(ceil_div(n, PANEL) * VECTORS):
        at = panels + 4 * ((vector // VECTORS) * pairs * PANEL + (vector % VECTORS) * LANES)
        row = vector * LANES
        for i in range(0, d, LANES):
            count = min(d - i, LANES)
            vstore(block + BYTES * count, splat(np.float32(0)))
            transpose(k + step * row + 4 * i, step, n - row, count, scale, block, order, BYTES)
            for q in range(0, count, 2):
                pair = pair_bf16(vload(block + BYTES * q), vload(block + BYTES * (q + 1)))
                vstore(at + 2 * PANEL * (i + q), pair)


@inline
def pack_value_pairs(v, step, panels, n, width):
    """``panels [width / PANEL][n / 2][PANEL][2]`` of ``v [n, width]``, rows ``step`` bytes apart; 0 beyond them."""
    pairs = ceil_div(n, 2)
    for column in range(0, ceil_div(width, PANEL) * PANEL, LANES):
        at = panels + 4 * ((column // PANEL) * pairs * PANEL + column % PANEL)
        source, left = v + 4 * column, width - column
        for i in range(0, n, 2):
            following = left if i + 1 < n else 0
            pair = pair_bf16(vload_n(source + i * step, left), vload_n(source + (i + 1) * step, following))
            vstore(at + 2 * PANEL * i, pair)


@inline
def row_bytes(n):
    """Of n bfloat16 as `round_run` writes them."""
    return ceil_div(n, 2 * LANES) * BYTES


@cache
def attention_bf16_kernel(mr: int) -> Native:
    """As `attention_kernel`, without windows, caps and sinks.

    work: key panels, value panels, a block of queries and one of keys, scores, which are followed by what is made of
    them in place, and the result block.
    """

    @native(extents=partial(blocks_reach, mr), **FIELDS)
    def attention_bf16(p, tid, nthreads):
        m, d, width, pitch, row = p.m, p.d, p.width, p.pitch, row_bytes(p.d)
        keys = p.work + p.work_size * tid
        values, rows = keys + p.values_at, keys + p.rows_at
        scores, result = keys + p.scores_at, keys + p.result_at
        result_pitch, key_pairs = 4 * ceil_div(width, PANEL) * PANEL, ceil_div(d, 2)
        inverses = result + mr * result_pitch
        packed_k, packed_v = -1, -1
        first, last = split(p.items, tid, nthreads)
        fill_bytes(rows, np.uint8(0), mr * row)
        for item in range(first, last):
            head = item // p.chunks
            entry = p.table + 8 * ENTRY * head
            n, before = load_i64(entry + 40), load_i64(entry + 48)
            k, v = p.k + load_i64(entry + 8), p.v + load_i64(entry + 16)
            if k != packed_k or v != packed_v:
                pack_key_pairs(k, p.k_step, keys, n, d, p.scale, p.order, rows + mr * row)
                pack_value_pairs(v, p.v_step, values, n, width)
                packed_k, packed_v = k, v
            begin = (item - head * p.chunks) * p.chunk
            for block in range(begin, min(begin + p.chunk, m), mr):
                count = min(mr, m - block)
                q = p.q + load_i64(entry) + block * p.q_step
                for i in range(count):
                    round_run(rows + i * row, q + i * p.q_step, d)
                limit = before + block + 1
                seen = min(n, limit + count - 1)
                for j in range(ceil_div(seen, PANEL)):
                    acc, at = tile_zeros(mr, VECTORS), rows_strided(mr, rows, row)
                    panel = keys + 4 * j * key_pairs * PANEL
                    for i in range(key_pairs):
                        acc = tile_dot_rows_bf16(acc, at, 4 * i, panel + 4 * i * PANEL)
                    tile_store(acc, scores + 4 * j * PANEL, pitch)
                mask = p.mask + load_i64(entry + 24) + block * p.mask_step if p.mask else 0
                for i in range(count):
                    at = mask + i * p.mask_step if mask else 0
                    top = find_top(scores + i * pitch, 0, min(limit + i, seen), at, np.float32(0.0), 0)
                    store_f32(inverses + 4 * i, top)
                for i in range(count):
                    at, line = inverses + 4 * i, scores + i * pitch
                    store_f32(at, exp_scores(line, 0, min(limit + i, seen), seen, load_f32(at), 0))
                    round_run(line, line, seen)
                for j in range(ceil_div(width, PANEL)):
                    acc, at = tile_zeros(mr, VECTORS), rows_strided(mr, scores, pitch)
                    panel = values + 4 * j * ceil_div(n, 2) * PANEL
                    for i in range(ceil_div(seen, 2)):
                        acc = tile_dot_rows_bf16(acc, at, 4 * i, panel + 4 * i * PANEL)
                    tile_store(acc, result + 4 * j * PANEL, result_pitch)
                y = p.y + load_i64(entry + 32) + block * p.y_step
                write_block(result, result_pitch, y, p.y_step, width, count, inverses)

    return attention_bf16


def workspace_bf16(mr: int, n: int, d: int, width: int, packs_values: bool = True) -> Workspace:
    """As `attention.workspace`; values are always packed."""
    rows = mr * -(-d // (2 * LANES)) * BYTES + BLOCK
    return laid_out(mr, n, width, 4 * -(-d // 2), 4 * -(-n // 2), rows)


PAIRS = BlockForm(attention_bf16_kernel, workspace_bf16)


def works_blocks(op: FusedAttention, ins: Types) -> bool:
    """More than a few queries."""
    if not accepts_attention(op, ins):
        return False
    return ins[0].dims[-3 if op.q_layout == "SHD" else -2] > FEW_QUERIES


def accepts_blocks(op: FusedAttention, ins: Types) -> bool:
    """Where the processor multiplies pairs."""
    return target().has_bf16 and works_blocks(op, ins)


@kernel(FusedAttention, accepts=accepts_blocks, works=works_blocks, precision="bf16", rank=1)
def attention_bf16(op: FusedAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Register tiles of dot products of pairs over packed queries, keys and values."""
    return attention_steps(op, ins, outs, context, PAIRS)
