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
from bolt_numba.kernels.cpu.attention.score_rows import (
    KEYS_AT_ONCE,
    PANEL,
    VECTORS,
    add_values,
    copy_queries,
    exp_scores,
    find_top,
    pack_keys,
    pack_values,
    prefetch_rows,
    scale_rows,
    score_keys,
    write_block,
)
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    ceil_div,
    fill_bytes,
    inline,
    load_f32,
    load_i64,
    native,
    split,
    store_f32,
    tile_rank1,
    tile_store,
    tile_zeros,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import KEPT, Numbers, Reach
from bolt_numba.kernels.geometry.heads import (
    ENTRY,
    attention_args,
    heads_first,
    mask_fits,
)
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, Native
from bolt_numba.kernels.registry import Argument, Context, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.attention import FusedAttention

FEW_QUERIES = 4
"""Queries up to which packing keys and values does not pay."""
PARALLEL_FLOPS = PAYS_FLOPS * 5 // 4
"""Multiplications from which a second thread pays."""
SHARED: dict[str, Any] = {
    "q": PTR, "k": PTR, "v": PTR, "mask": PTR_OR_0, "sink": PTR_OR_0, "y": PTR, "table": PTR, "work": PTR,
    "items": I64, "m": I64, "d": I64, "width": I64, "q_step": I64, "k_step": I64, "v_step": I64, "y_step": I64,
    "mask_step": I64, "window": I64, "scale": F32, "cap": F32,
}  # fmt: skip
"""Of each head, where the table says, f32 but for bf16: q [m][d], k [keys][d], v [keys][width], y [m][width], mask
[m][keys].  Steps are bytes from one position to the next.  window: keys that a query sees, the last ones; cap, sink:
see `find_top`."""
FIELDS: dict[str, Any] = {
    **SHARED, "order": PTR, "work_size": I64, "chunks": I64, "chunk": I64, "pitch": I64, "values_at": I64,
    "rows_at": I64, "scores_at": I64, "result_at": I64,
}  # fmt: skip


def _heads_reach(a: Any, heads: int, group: int, q_head: int, y_head: int, mask_head: int) -> dict[str, Reach]:
    """Extents of what both kernels read and write, for ``heads`` rows of the table, each of ``group`` heads."""
    table: dict[str, Reach] = {"table": 8 * ENTRY * heads}
    if not heads * a.m:
        return dict.fromkeys(("q", "k", "v", "mask", "y", "sink"), 0) | table
    if not isinstance(a.table, np.ndarray):  # as `cache_table` makes it: heads lie side by side
        rows, sink = 4 * heads * group * a.m, 4 * (a.q_step // (4 * a.d))
        return {"q": rows * a.d, "y": rows * a.width, **dict.fromkeys("kv", KEPT), "mask": KEPT, "sink": sink} | table
    q, k, v, mask, y, keys, _, sinks = a.table.reshape(-1, ENTRY)[:heads].max(axis=0).tolist()
    more = group - 1
    return {
        "q": q + (a.m - 1) * a.q_step + more * q_head + 4 * a.d,
        "k": k + (keys - 1) * a.k_step + 4 * a.d if keys > 0 else 0,
        "v": v + (keys - 1) * a.v_step + 4 * a.width if keys > 0 else 0,
        "mask": mask + (a.m - 1) * a.mask_step + more * mask_head + 4 * keys if keys > 0 else 0,
        "y": y + (a.m - 1) * a.y_step + more * y_head + 4 * a.width,
        "sink": sinks + 4 * group,
        **table,
    }


def blocks_reach(mr: int, a: Numbers) -> dict[str, Reach]:
    used = a.result_at + 4 * mr * (-(-a.width // PANEL) * PANEL + 1)
    work = (a.threads - 1) * a.work_size + used
    return {**_heads_reach(a, a.items // a.chunks, 1, 0, 0, 0), "work": work, "order": 4 * a.d}


def _few_reach(a: Numbers) -> dict[str, Reach]:
    work = a.threads * a.pitch * a.group * a.m
    return {**_heads_reach(a, a.items, a.group, a.q_head, a.y_head, a.mask_head), "work": work}


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
def attention_kernel(mr: int) -> Native:
    """Kernel for blocks of ``mr`` queries.

    table: i64 [heads][`ENTRY`].  work: ``work_size`` bytes a thread: key panels, then value panels, a block of queries,
    scores (rows ``pitch`` bytes apart) and the result block at the offsets given.  order: i32 0, 1, …, d - 1.
    """
    attend = attend_blocks(mr)

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


@native(extents=_few_reach, **SHARED, group=I64, q_head=I64, y_head=I64, mask_head=I64, pitch=I64)
def attention_few(p, tid, nthreads):
    """A few queries: products with keys and values where they lie, for packing them would cost more.

    A work item is what reads the same keys: m queries of each of ``group`` heads, whose queries, results and masks lie
    ``q_head``, ``y_head`` and ``mask_head`` bytes apart, their sinks 4.  table: i64 [items][`ENTRY`].  work: group * m
    rows of scores a thread, ``pitch`` bytes each.
    """
    m, d, width, pitch = p.m, p.d, p.width, p.pitch
    rows = p.group * m
    scores = p.work + pitch * rows * tid
    first, last = split(p.items, tid, nthreads)
    for item in range(first, last):
        entry = p.table + 8 * ENTRY * item
        n, limit = load_i64(entry + 40), load_i64(entry + 48) + 1
        q, k, v = p.q + load_i64(entry), p.k + load_i64(entry + 8), p.v + load_i64(entry + 16)
        y = p.y + load_i64(entry + 32)
        seen = min(n, limit + m - 1)
        low = min(max(0, limit - p.window), max(seen, 0))
        for j in range(low, seen, LANES):
            following = j + 2 * LANES
            for r in range(rows):
                prefetch_rows(k + following * p.k_step, p.k_step, min(LANES, seen - following), 4 * d, r, rows)
                at = q + (r // m) * p.q_head + (r % m) * p.q_step
                found = score_keys(at, k + j * p.k_step, p.k_step, d, seen - j)
                vstore_n(scores + r * pitch + 4 * j, found * p.scale, seen - j)
        for r in range(rows):
            head, i = r // m, r % m
            mask = p.mask + load_i64(entry + 24) + head * p.mask_head + i * p.mask_step if p.mask else 0
            sink = p.sink + load_i64(entry + 56) + 4 * head if p.sink else 0
            start, end = max(0, limit + i - p.window), min(limit + i, seen)
            top = find_top(scores + r * pitch, start, end, mask, p.cap, sink)
            inverse = exp_scores(scores + r * pitch, start, end, seen, top, sink)
            scale_rows(scores + r * pitch + 4 * low, seen - low, inverse)
            fill_bytes(y + head * p.y_head + i * p.y_step, np.uint8(0), 4 * width)
        for j in range(low, seen, KEYS_AT_ONCE):
            some, following = min(KEYS_AT_ONCE, seen - j), j + KEYS_AT_ONCE
            for r in range(rows):
                ahead = min(KEYS_AT_ONCE, seen - following)
                prefetch_rows(v + following * p.v_step, p.v_step, ahead, 4 * width, r, rows)
                to = y + (r // m) * p.y_head + (r % m) * p.y_step
                add_values(scores + r * pitch + 4 * j, v + j * p.v_step, p.v_step, to, some, width)


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
        return [Step(attention_few, args | few(context.threads, heads, 1, m, n), parallel & (heads > 1))]
    return block_steps(context.threads, heads, args, n, parallel, form)


def few(threads: int, items: int, group: int, m: int, n: int) -> dict[str, Argument]:
    """Parameters of `attention_few` beyond the shared ones, for heads that lie alone."""
    scores: dict[str, Argument] = {"work": Scratch(4 * n * group * m * threads), "pitch": 4 * n}
    return scores | {"items": items, "group": group, "q_head": 0, "y_head": 0, "mask_head": 0}


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
