"""Attention with a cache of keys and values: new rows are appended, then queries meet what is valid."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.kernels.common.cache import appended, cached, fits
from bolt_numba.kernels.cpu.attention.attention import (
    FEW_QUERIES,
    PARALLEL_FLOPS,
    attention_few,
    block_steps,
    few,
)
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.language.lang import copy_bytes, fill_bytes, load_i64, native, split
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention


@native(k=PTR, v=PTR, past_k=PTR_OR_0, past_v=PTR_OR_0, present_k=PTR, present_v=PTR, table=PTR, n=I64, heads=I64,
        units=I64, s=I64, row=I64, held=I64, room=I64, extents=appended)  # fmt: skip
def append(p, tid, nthreads):
    """``present [n, heads, room, row]``: the valid rows of ``past [n, heads, held, row]``, s new ones, zeros.

    New rows are ``[n, s, heads, row]``, of ``row`` bytes.  Only they are written where past and present are one memory.
    """
    heads, s, row, room = p.heads, p.s, p.row, p.room
    first, last = split(2 * p.n * heads, tid, nthreads)
    for item in range(first, last):
        pair = item // 2
        new, past, present = p.k, p.past_k, p.present_k
        if item % 2:
            new, past, present = p.v, p.past_v, p.present_v
        b = pair // heads
        before = load_i64(p.table + 8 * ENTRY * b * p.units + 48)
        to = present + pair * room * row
        if past != present:
            some = min(before, p.held)
            if some:
                copy_bytes(to, past + pair * p.held * row, some * row)
            fill_bytes(to + some * row, np.uint8(0), (room - some) * row)
        source = new + (b * s * heads + pair % heads) * row
        for i in range(min(s, room - before)):
            copy_bytes(to + (before + i) * row, source + i * heads * row, row)


def _accepts(op: GroupQueryAttention, ins: Types) -> bool:
    return fits(op, ins) and all(t.dtype == F32 for i, t in enumerate(ins) if t is not None and i not in (5, 6))


@kernel(
    GroupQueryAttention, accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1), (4, 2)}),  # a cache is appended to where it lies
)  # fmt: skip
def attention_cached(op: GroupQueryAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Table of heads, append, attention over what is valid: in place for few queries, in blocks for more."""
    (n, s, width), room = ins[0].dims, outs[1].dims[2]
    group = op.num_heads // op.kv_num_heads
    made = cached(op, ins, outs, group if s <= FEW_QUERIES else 1, PARTS)
    second = Step(append, made.rows, outs[1].nbytes > PAYS_BYTES)
    heads, parallel = n * made.units, 2 * n * s * room * width > PARALLEL_FLOPS
    if s <= FEW_QUERIES:
        more = few(context.threads, heads, group, s, room) | made.head
        return [made.first, second, Step(attention_few, made.args | more, parallel & (heads > 1))]
    return [made.first, second, *block_steps(context.threads, heads, made.args, room, parallel)]
