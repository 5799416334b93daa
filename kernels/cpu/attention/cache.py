"""Attention with a cache of keys and values: new rows are appended, then queries meet what is valid."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial

import numpy as np

from bolt_numba.base.types import F16, F32
from bolt_numba.kernels.common.cache import Cached, appended, cached, fits
from bolt_numba.kernels.cpu.attention.attention import PARALLEL_FLOPS, block_steps
from bolt_numba.kernels.cpu.attention.few import FEW_QUERIES, PART, few_steps
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    copy_bytes,
    fill_bytes,
    inline,
    load_i64,
    native,
    split,
    vload_f16_n,
    vload_n,
    vstore_f16_n,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Native
from bolt_numba.kernels.registry import Argument, Context, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention


@inline
def narrow_row(to, source, size):
    """``size`` bytes of f16 of f32."""
    for i in range(0, size // 2, LANES):
        vstore_f16_n(to + 2 * i, vload_n(source + 4 * i, size // 2 - i), size // 2 - i)


@cache
def append_kernel(half: bool) -> Native:
    """``present [n, heads, room, row]``: the valid rows of ``past [n, heads, held, row]``, s new ones, zeros.

    Rows have ``row`` bytes; new ones are ``[n, s, heads]`` of them, of f32 that become f16 (half).  Only they are
    written where past and present are one memory.
    """
    put, times = (narrow_row, 2) if half else (copy_bytes, 1)

    @native(
        k=PTR, v=PTR, past_k=PTR_OR_0, past_v=PTR_OR_0, present_k=PTR, present_v=PTR, table=PTR, n=I64, heads=I64,
        units=I64, s=I64, row=I64, held=I64, room=I64, extents=partial(appended, times=times),
    )  # fmt: skip
    def append(p, tid, nthreads):
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
            source = new + (b * s * heads + pair % heads) * row * times
            for i in range(min(s, room - before)):
                put(to + (before + i) * row, source + i * heads * row * times, row)

    return append


def _widened(a: Numbers) -> dict[str, Reach]:
    rows = a.n * a.heads * a.room * a.d
    return {"table": 8 * ENTRY * a.n * a.units, "k": 2 * rows, "v": 2 * rows, "to_k": 4 * rows, "to_v": 4 * rows}


@native(k=PTR, v=PTR, to_k=PTR, to_v=PTR, table=PTR, n=I64, heads=I64, units=I64, room=I64, d=I64, extents=_widened)
def widen_valid(p, tid, nthreads):
    """The valid rows of caches of f16 (``k, v [n, heads, room, d]``) as f32, each in its place."""
    first, last = split(2 * p.n * p.heads, tid, nthreads)
    for item in range(first, last):
        pair = item // 2
        source, to = p.k, p.to_k
        if item % 2:
            source, to = p.v, p.to_v
        at = p.d * p.room * pair
        count = p.d * load_i64(p.table + 8 * ENTRY * p.units * (pair // p.heads) + 40)
        for i in range(0, count, LANES):
            vstore_n(to + 4 * (at + i), vload_f16_n(source + 2 * (at + i), count - i), count - i)


def _accepts(op: GroupQueryAttention, ins: Types) -> bool:
    caches = {t.dtype for t in ins[3:5] if t is not None}
    others = {t.dtype for i, t in enumerate(ins) if t is not None and i not in (3, 4, 5, 6)}
    return fits(op, ins) and others == {F32} and caches <= {F32, F16}


@kernel(
    GroupQueryAttention, accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1), (4, 2)}),  # a cache is appended to where it lies
)  # fmt: skip
def attention_cached(op: GroupQueryAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Table of heads, append, attention over what is valid: in place for few queries, in blocks for more."""
    (n, s, width), room, half = ins[0].dims, outs[1].dims[2], outs[1].dtype == F16
    group, is_few = op.num_heads // op.kv_num_heads, s <= FEW_QUERIES
    made = cached(op, ins, outs, group if is_few else 1, PARTS, None if is_few else F32.itemsize)
    steps = [made.first, Step(append_kernel(half), made.rows, outs[1].nbytes > PAYS_BYTES)]
    heads, parallel = n * made.units, 2 * n * s * room * width > PARALLEL_FLOPS
    if is_few:
        return steps + few_steps(context.threads, heads, group, room, made.args, made.head, parallel, half, PART)
    if half:
        steps.append(_widen(made, op, outs, parallel))
    return steps + block_steps(context.threads, heads, made.args, room, parallel)


def _widen(made: Cached, op: GroupQueryAttention, outs: Outs, parallel: bool) -> Step:
    """The step before attention in blocks over caches of f16, which reads what it gives."""
    n, heads, room, d = outs[1].dims
    wide = {name: Scratch(4 * n * heads * room * d) for name in "kv"}
    made.args.update(wide)
    sizes: dict[str, Argument] = {"n": n, "heads": heads, "units": made.units, "room": room, "d": d}
    places: dict[str, Argument] = {"k": Out(1), "v": Out(2), "to_k": wide["k"], "to_v": wide["v"]}
    return Step(widen_valid, sizes | places | {"table": made.args["table"]}, parallel)
