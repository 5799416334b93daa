"""Attention: softmax(scale * Q K^T + mask) V for blocks of queries, whose scores never leave the cache.

A work item is some blocks of queries of one head.  Keys are transposed to panels of `PANEL` columns, as register tiles
want them, once for an item; so are values that do not lie as the tiles read them.  Each thread has its own workspace.
Few queries read keys and values where they lie, once for all queries that share them.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.selects import least
from bolt_numba.base.types import F32 as F32_TYPE
from bolt_numba.kernels.cpu.attention.few import FEW_QUERIES, NO_GROUP, SHARED, few_steps, heads_reach
from bolt_numba.kernels.cpu.attention.score_rows import (
    PANEL,
    VECTORS,
    copy_queries,
    exp_scores,
    find_top,
    pack_keys,
    pack_narrow,
    pack_values,
    write_block,
)
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    ceil_div,
    inline,
    load_f32,
    load_i64,
    native,
    split,
    store_f32,
    tile_rank1,
    tile_store,
    tile_zeros,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.heads import (
    ENTRY,
    attention_args,
    heads_first,
    mask_fits,
)
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, Native
from bolt_numba.kernels.registry import Argument, Context, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.attention import FusedAttention

PARALLEL_FLOPS = PAYS_FLOPS * 5 // 4
"""Multiplications from which a second thread pays."""
FIELDS: dict[str, Any] = {
    **SHARED, "order": PTR, "work_size": I64, "chunks": I64, "chunk": I64, "pitch": I64, "values_at": I64,
    "rows_at": I64, "scores_at": I64, "result_at": I64,
}  # fmt: skip


def blocks_reach(mr: int, a: Numbers) -> dict[str, Reach]:
    used = a.result_at + 4 * mr * (-(-a.width // PANEL) * PANEL + 1)
    work = (a.threads - 1) * a.work_size + used
    return {**heads_reach(a, a.items // a.chunks, 1, 0, 0, 0), "work": work, "order": 4 * a.d}


@inline
def is_packed(width, v_step):
    """Whether values do not lie as the tiles read them."""
    return width % PANEL != 0 or v_step != 4 * width


@cache
def attend_blocks(mr: int) -> Inline:
    """Helper for queries ``begin`` to ``end`` of a head, ``mr`` at a time.

    q, v, y, mask, sink: of the head, see `SHARED`; n, before: of its entry.  keys: packed; values: packed where v is
    not read as it lies; rows, scores, result: see `attention_kernel`.
    """

    @inline
    def attend(
        q0, q_step, v, v_step, y, y_step, mask0, mask_step, sink, n, before, window, cap, begin, end, d, width, keys,
        values, rows, scores, pitch, result,
    ):  # fmt: skip
        packs_values = is_packed(width, v_step)
        value_step = 4 * PANEL if packs_values else v_step
        result_pitch = 4 * ceil_div(width, PANEL) * PANEL
        inverses = result + mr * result_pitch
        for block in range(begin, end, mr):
            count = min(mr, end - block)
            q = q0 + block * q_step
            if count < mr or q_step != 4 * d:
                copy_queries(q, q_step, rows, count, mr, d)
                q = rows
            limit = before + block + 1
            seen = min(n, limit + count - 1)
            low = max(0, limit - window) // PANEL * PANEL
            for j in range(low // PANEL, ceil_div(seen, PANEL)):
                acc = tile_zeros(mr, VECTORS)
                panel = keys + 4 * j * d * PANEL
                for i in range(d):
                    acc = tile_rank1(acc, q + 4 * i, 4 * d, panel + 4 * i * PANEL)
                tile_store(acc, scores + 4 * j * PANEL, pitch)
            mask = mask0 + block * mask_step if mask0 else 0
            for i in range(count):
                at, start = mask + i * mask_step if mask else 0, max(0, limit + i - window)
                top = find_top(scores + i * pitch, start, min(limit + i, seen), at, cap, sink)
                store_f32(inverses + 4 * i, top)
            for i in range(count):
                at, start = inverses + 4 * i, max(0, limit + i - window)
                last, top = min(limit + i, seen), load_f32(at)
                store_f32(at, exp_scores(scores + i * pitch, start, last, seen, top, sink))
            for j in range(ceil_div(width, PANEL)):
                acc = tile_zeros(mr, VECTORS)
                panel = values + 4 * j * n * PANEL if packs_values else v + 4 * j * PANEL
                for i in range(low, seen):
                    acc = tile_rank1(acc, scores + 4 * i, pitch, panel + i * value_step)
                tile_store(acc, result + 4 * j * PANEL, result_pitch)
            write_block(result, result_pitch, y + block * y_step, y_step, width, count, inverses)

    return attend


@cache
def attention_kernel(mr: int, held: str = "f32") -> Native:
    """Kernel for blocks of ``mr`` queries.  held: what keys and values are.

    table: i64 [heads][`ENTRY`].  work: ``work_size`` bytes a thread: key panels, then value panels, a block of queries,
    scores (rows ``pitch`` bytes apart) and the result block at the offsets given.  order: i32 0, 1, …, d - 1.
    """
    attend, is_narrow = attend_blocks(mr), held != "f32"
    narrow_keys, narrow_values = pack_narrow(held)

    @native(extents=partial(blocks_reach, mr), **FIELDS)
    def attention(p, tid, nthreads):
        m, d, width, pitch = p.m, p.d, p.width, p.pitch
        keys = p.work + p.work_size * tid
        values, rows = keys + p.values_at, keys + p.rows_at
        scores, result = keys + p.scores_at, keys + p.result_at
        packed_k, packed_v = -1, -1
        first, last = split(p.items, tid, nthreads)
        for item in range(first, last):
            head = item // p.chunks
            entry = p.table + 8 * ENTRY * head
            n, before = load_i64(entry + 40), load_i64(entry + 48)
            k, v = p.k + load_i64(entry + 8), p.v + load_i64(entry + 16)
            if k != packed_k or v != packed_v:
                if is_narrow:
                    narrow_keys(k, p.k_step, keys, n, d, p.scale, p.order, rows)
                    narrow_values(v, p.v_step, values, n, width)
                else:
                    pack_keys(k, p.k_step, keys, n, d, p.scale, p.order)
                    pack_values(v, p.v_step, values, n, width if is_packed(width, p.v_step) else 0)
                packed_k, packed_v = k, v
            sink = p.sink + load_i64(entry + 56) if p.sink else 0
            begin = (item - head * p.chunks) * p.chunk
            attend(
                p.q + load_i64(entry), p.q_step, v, p.v_step, p.y + load_i64(entry + 32), p.y_step,
                p.mask + load_i64(entry + 24) if p.mask else 0, p.mask_step, sink, n, before, p.window, p.cap,
                begin, min(begin + p.chunk, m), d, width, keys, values, rows, scores, pitch, result,
            )  # fmt: skip

    return attention


@record(frozen=True)
class Workspace:
    """Byte offsets in the memory of one thread."""

    values_at: int
    rows_at: int
    scores_at: int
    result_at: int
    pitch: int
    size: int


def workspace(mr: int, n: int, d: int, width: int, packs_values: bool = True) -> Workspace:
    """Layout for heads of ``n`` keys of ``d`` and values of ``width``."""
    return laid_out(mr, n, width, 4 * d, 4 * n if packs_values else 0, 4 * mr * d)


def narrow_workspace(mr: int, n: int, d: int, width: int, packs_values: bool = True) -> Workspace:
    """The same of keys and values that are no f32."""
    return laid_out(mr, n, width, 4 * d, 4 * n, 4 * max(mr, PANEL) * d)


def laid_out(mr: int, n: int, width: int, key: int, value: int, rows: int) -> Workspace:
    """Layout for ``key`` bytes of each of n keys, ``value`` bytes of each column, and a block of queries of so many.

    Rows of scores are an odd number of vectors apart, so that a block of them does not fall into one set of the cache.
    """

    def rounded(nbytes: int) -> int:
        return -(-nbytes // 64) * 64

    columns, result = -(-n // PANEL) * PANEL, -(-width // PANEL) * PANEL
    values_at = rounded(columns * key)
    rows_at = values_at + rounded(result * value)
    scores_at = rows_at + rounded(rows)
    pitch = 4 * (columns + LANES)
    result_at = scores_at + rounded(mr * pitch)
    size = result_at + rounded(4 * mr * result + 4 * mr)
    return Workspace(values_at, rows_at, scores_at, result_at, pitch, size + 64)


def accepts_attention(op: FusedAttention, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or t.dtype != F32_TYPE or not t.size) for t in ins):
        return False
    return mask_fits(op, ins)


def block_rows(m: int) -> list[tuple[int, Any]]:
    """Queries of a block, and when there are so many.

    Those of a register tile or two thirds of them, whichever leaves fewer rows empty.
    """
    most = target().rows
    few = most * 2 // 3
    are_few = -(-m // few) * few < -(-m // most) * most
    return [(most, are_few ^ True), (few, are_few)]


def _chunks(heads: int, m: int, mr: int, threads: int) -> int:
    """Parts of a head that are separate work items: only where heads alone do not share evenly."""
    if heads % threads == 0 or heads >= 4 * threads:
        return 1
    parts: int = least(-(-m // mr), 2 * threads)
    return parts


@record(frozen=True)
class BlockForm:
    """How blocks of queries are computed: the kernel for blocks of so many rows, and its workspace."""

    kernel: Callable[[int], Native]
    workspace: Callable[[int, int, int, int, bool], Workspace]


PLAIN = BlockForm(attention_kernel, workspace)


@kernel(FusedAttention, accepts=accepts_attention)
def attention_f32(op: FusedAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Register tiles over packed keys and values, softmax on scores in cache; products in place for few queries."""
    return attention_steps(op, ins, outs, context, PLAIN)


def attention_steps(op: FusedAttention, ins: Types, outs: Outs, context: Context, form: BlockForm) -> list[Step]:
    """The step of `FusedAttention`."""
    args, n = attention_args(op, ins, outs[0]), heads_first(op, ins)[1][-2]
    heads, m = args.pop("units"), args["m"]
    parallel = heads * m * n * (args["d"] + args["width"]) > PARALLEL_FLOPS
    if m <= FEW_QUERIES:
        return few_steps(context.threads, heads, 1, n, args, NO_GROUP, parallel)
    return block_steps(context.threads, heads, args, n, parallel, form)


def block_steps(
    threads: int, heads: int, args: dict[str, Any], n: int, parallel: bool, form: BlockForm = PLAIN
) -> list[Step]:
    """The step of `attention_kernel` for blocks of either height; ``args``: the shared parameters, n: keys."""
    return [
        Step(form.kernel(mr), args | _blocks(threads, heads, args, n, mr, form), parallel, when=when)
        for mr, when in block_rows(args["m"])
        if when is not False
    ]


def _blocks(threads: int, heads: int, args: dict[str, Any], n: int, mr: int, form: BlockForm) -> dict[str, Argument]:
    """Parameters of `attention_kernel` that say how work and memory are shared."""
    m, d, width = args["m"], args["d"], args["width"]
    layout = form.workspace(mr, n, d, width, width % PANEL != 0 or args["v_step"] != 4 * width)
    chunks = _chunks(heads, m, mr, threads)
    chunk = -(-m // (chunks * mr)) * mr
    chunks = -(-m // chunk)
    made: dict[str, Argument] = {"work": Scratch(layout.size * threads), "work_size": layout.size}
    made |= {"items": heads * chunks, "chunks": chunks, "chunk": chunk, "pitch": layout.pitch}
    made |= {"values_at": layout.values_at, "rows_at": layout.rows_at, "order": np.arange(d, dtype=np.int32)}
    return made | {"scores_at": layout.scores_at, "result_at": layout.result_at}
