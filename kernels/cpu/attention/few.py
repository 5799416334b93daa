"""Attention of a few queries: products with keys and values where they lie, for packing them would cost more.

Many keys are cut into parts of `PART` that any thread takes, so that few heads share out too.  What the parts give is
joined by their greatest scores and sums, as in Flash-Decoding (https://pytorch.org/blog/flash-decoding).  Where they
are cut depends on the room for keys alone, so results have the same bits for any number of threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.attention.score_rows import (
    KEYS_AT_ONCE,
    UNITS,
    add_values,
    exp_at,
    find_top,
    inverse,
    keys_of,
    prefetch_rows,
    scale_rows,
    score_keys,
    sum_scores,
    weigh_rows,
)
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    fill_bytes,
    fma,
    iota,
    load_f32,
    load_i64,
    native,
    permute,
    splat,
    split,
    store_f32,
    vload_n,
    vstore_n,
)
from bolt_numba.kernels.extents import KEPT, Numbers, Reach
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, Native
from bolt_numba.kernels.registry import Argument, Scratch, Step

FEW_QUERIES = 4
"""Queries up to which packing keys and values does not pay."""
PART = 256
"""Keys of a part."""
KEYS_AHEAD = 64
"""Between keys that are read and those that are fetched; values are fetched with the keys."""
MOST_TOGETHER = min(LANES, 4)
"""Rows that read keys and values at once."""
SHARED: dict[str, Any] = {
    "q": PTR, "k": PTR, "v": PTR, "mask": PTR_OR_0, "sink": PTR_OR_0, "y": PTR, "table": PTR, "work": PTR,
    "items": I64, "m": I64, "d": I64, "width": I64, "q_step": I64, "k_step": I64, "v_step": I64, "y_step": I64,
    "mask_step": I64, "window": I64, "scale": F32, "cap": F32,
}  # fmt: skip
"""Of each head, where the table says, f32 but where a kernel says else: q [m][d], k [keys][d], v [keys][width],
y [m][width], mask [m][keys].  Steps are bytes from one position to the next.  window: keys that a query sees, the last
ones; cap, sink: see `find_top`."""
NUMBERS: dict[str, Any] = {
    "group": I64, "q_head": I64, "y_head": I64, "mask_head": I64, "pitch": I64, "part": I64, "parts": I64,
}  # fmt: skip


def heads_reach(
    a: Any, heads: int, group: int, q_head: int, y_head: int, mask_head: int, unit: int = 4
) -> dict[str, Reach]:
    """Extents of what kernels read and write, for ``heads`` rows of the table, each of ``group`` heads.

    unit: bytes of an element of k and v.
    """
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
        "k": k + (keys - 1) * a.k_step + unit * a.d if keys > 0 else 0,
        "v": v + (keys - 1) * a.v_step + unit * a.width if keys > 0 else 0,
        "mask": mask + (a.m - 1) * a.mask_step + more * mask_head + 4 * keys if keys > 0 else 0,
        "y": y + (a.m - 1) * a.y_step + more * y_head + 4 * a.width,
        "sink": sinks + 4 * group,
        **table,
    }


def _made(a: Numbers) -> int:
    """Bytes of what parts leave."""
    return a.items * a.parts * a.group * a.m * (4 * a.width + 8) if a.parts > 1 else 0


def _few_reach(held: str, a: Numbers) -> dict[str, Reach]:
    work = a.threads * (a.pitch * _rows(held, a.group * a.m) + BYTES)
    heads = heads_reach(a, a.items, a.group, a.q_head, a.y_head, a.mask_head, UNITS[held])
    return {**heads, "work": work, "made": _made(a)}


def _rows(held: str, rows: int) -> int:
    """Rows that a thread has memory for: of scores, and of scales."""
    return rows + 1 if held == "i8" else rows


def together(group: int) -> int:
    """Rows that read keys and values at once, whatever the number of queries: heads of a group of so many."""
    return next(count for count in range(MOST_TOGETHER, 0, -1) if group % count == 0)


@cache
def attention_few(held: str, count: int) -> Native:
    """Kernel for ``m`` queries, whose rows take keys and values ``count`` at once.  held: what these are.

    A work item is a part of what reads the same keys: m queries of each of ``group`` heads, whose queries, results and
    masks lie ``q_head``, ``y_head`` and ``mask_head`` bytes apart, their sinks 4.  table: i64 [items][`ENTRY`].  work:
    group * m rows of scores a thread, ``pitch`` bytes each, a vector, and with i8 a row of scales.  made: where there
    are several parts, their results (f32 [items][parts][group * m][width]), and then of each row the greatest score and
    the sum.
    """
    unit, keys, score, add = UNITS[held], keys_of(count), score_keys(held, count), add_values(held, count)
    are_bytes, more = held == "i8", _rows(held, 0)

    @native(extents=partial(_few_reach, held), **SHARED, **NUMBERS, made=PTR_OR_0)
    def attention_of_few(p, tid, nthreads):
        m, d, width, pitch, parts = p.m, p.d, p.width, p.pitch, p.parts
        rows = p.group * m
        scores, sums = p.work + (pitch * (rows + more) + BYTES) * tid, p.made + 4 * width * rows * p.items * parts
        vector = scores + pitch * rows
        k_rows, k_size = (1, keys * p.k_step) if p.k_step < unit * d + BYTES else (keys, unit * d)
        v_rows, v_size = (1, keys * p.v_step) if p.v_step < unit * width + BYTES else (keys, unit * width)
        first, last = split(p.items * parts, tid, nthreads)
        for item in range(first, last):
            entry, base = p.table + 8 * ENTRY * (item // parts), p.part * (item % parts)
            n, limit = load_i64(entry + 40) - base, load_i64(entry + 48) + 1 - base
            q, y, y_head, y_step = p.q + load_i64(entry), p.y + load_i64(entry + 32), p.y_head, p.y_step
            k, v = p.k + load_i64(entry + 8) + base * p.k_step, p.v + load_i64(entry + 16) + base * p.v_step
            if parts > 1:
                y, y_head, y_step = p.made + 4 * width * rows * item, 4 * width * m, 4 * width
            seen = max(0, min(n, limit + m - 1, p.part))
            low = min(max(0, limit - p.window), seen)
            for j in range(low, seen, keys):
                prefetch_rows(k + (j + KEYS_AHEAD) * p.k_step, p.k_step, k_rows, k_size, 0, 1)
                prefetch_rows(v + j * p.v_step, p.v_step, v_rows, v_size, 0, 1)
                for r in range(0, rows, count):
                    found = score(q, r, m, p.q_head, p.q_step, k + j * p.k_step, p.k_step, d, seen - j)
                    for i in range(count):
                        own = (iota() + np.int32(keys * i)) & np.int32(LANES - 1)
                        vstore_n(scores + (r + i) * pitch + 4 * j, permute(found, own) * p.scale, keys)
            weigh_rows(k, p.k_step, d if are_bytes else p.k_step, vector + BYTES, scores, pitch, rows, low, seen)
            for r in range(rows):
                head, i = r // m, r % m
                mask = p.mask + load_i64(entry + 24) + head * p.mask_head + i * p.mask_step + 4 * base if p.mask else 0
                sink = p.sink + load_i64(entry + 56) + 4 * head if p.sink and parts == 1 else 0
                end = max(0, min(limit + i, seen))
                start = min(max(0, limit + i - p.window), end)
                top = find_top(scores + r * pitch, start, end, mask, p.cap, sink)
                total = sum_scores(scores + r * pitch, start, end, seen, top, sink)
                scale_rows(scores + r * pitch + 4 * low, seen - low, inverse(total))
                fill_bytes(y + head * y_head + i * y_step, np.uint8(0), 4 * width)
                if parts > 1:
                    store_f32(sums + 8 * (rows * item + r), top)
                    store_f32(sums + 8 * (rows * item + r) + 4, total)
            weigh_rows(v, p.v_step, width if are_bytes else p.v_step, vector + BYTES, scores, pitch, rows, low, seen)
            for j in range(low, seen, KEYS_AT_ONCE):
                some, at, values = min(KEYS_AT_ONCE, seen - j), scores + 4 * j, v + j * p.v_step
                for r in range(0, rows, count):
                    add(at, pitch, values, p.v_step, y, r, m, y_head, y_step, some, width)

    return attention_of_few


def _joined_reach(a: Numbers) -> dict[str, Reach]:
    rows = 4 * a.items * a.group * a.m
    return {"y": rows * a.width, "table": 8 * ENTRY * a.items, "sink": a.y_step // a.width, "made": _made(a)}


@native(
    extents=_joined_reach, made=PTR, y=PTR, sink=PTR_OR_0, table=PTR, items=I64, parts=I64, group=I64, m=I64, width=I64,
    y_step=I64, y_head=I64,
)  # fmt: skip
def join_parts(p, tid, nthreads):
    """What the parts of `attention_few` make together: the sum of each by its share of all exponentials.

    made: f32 [items][parts][group * m][width], then of each row its greatest score and its sum · y: f32 [m][width] of
    each head.
    """
    rows, parts, width = p.group * p.m, p.parts, p.width
    sums = p.made + 4 * width * rows * p.items * parts
    first, last = split(p.items * rows, tid, nthreads)
    for number in range(first, last):
        item, r = number // rows, number % rows
        head, i = r // p.m, r % p.m
        entry, whole, step = p.table + 8 * ENTRY * item, sums + 8 * (rows * parts * item + r), 8 * rows
        y = p.y + load_i64(entry + 32) + head * p.y_head + i * p.y_step
        top, total = np.float32(-np.inf), np.float32(0.0)
        if p.sink:
            sink = load_f32(p.sink + load_i64(entry + 56) + 4 * head)
            if sink != top:
                top, total = sink, exp_at(sink - sink)
        fill_bytes(y, np.uint8(0), 4 * width)
        for part in range(parts):
            own, more = load_f32(whole + step * part), load_f32(whole + step * part + 4)
            if more != np.float32(0.0):
                kept, share = np.float32(1.0), np.float32(1.0)
                if own > top:
                    kept = exp_at(top - own)
                    top = own
                else:
                    share = exp_at(own - top)
                source, a, b = p.made + 4 * width * (rows * (parts * item + part) + r), splat(kept), splat(share * more)
                for column in range(0, width, LANES):
                    old = vload_n(y + 4 * column, width - column) * a
                    vstore_n(y + 4 * column, fma(vload_n(source + 4 * column, width - column), b, old), width - column)
                total = total * kept + share * more
        scale_rows(y, width, inverse(total))


def few_steps(
    threads: int, items: int, group: int, n: int, args: dict[str, Any], head: dict[str, Argument], parallel: Any,
    held: str = "f32", part: int = 0,
) -> list[Step]:  # fmt: skip
    """Steps for ``items`` that read the same ``n`` keys at most.

    args: the shared parameters.  head: bytes from a head of a group to the next.  part: keys of a part; 0: all.
    """
    part, parts, rows = part or n, -(-n // part) if part else 1, group * args["m"]
    more: dict[str, Argument] = {"items": items, "group": group, "part": part, "parts": parts}
    more |= {"pitch": 4 * (part + LANES), "work": Scratch((4 * (part + LANES) * _rows(held, rows) + BYTES) * threads)}
    main = args | head | more | {"made": None}
    kernel = attention_few(held, together(group))
    if parts == 1:
        return [Step(kernel, main, parallel & (items > 1))]
    main["made"] = Scratch(items * parts * rows * (4 * args["width"] + 8))
    joined = {name: main[name] for name in join_parts.names}
    return [Step(kernel, main, parallel), Step(join_parts, joined, False)]


NO_GROUP: dict[str, Argument] = {"q_head": 0, "y_head": 0, "mask_head": 0}
"""Of heads that lie alone."""
