"""Attention with a cache of keys and values: new rows are appended, then queries meet what is valid."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial

import numpy as np

from bolt_numba.base.types import F16, F32, I8, dtype_name
from bolt_numba.kernels.common.cache import appended, cached, fits
from bolt_numba.kernels.cpu.attention.attention import (
    PARALLEL_FLOPS,
    BlockForm,
    attention_kernel,
    block_steps,
    narrow_workspace,
    workspace,
)
from bolt_numba.kernels.cpu.attention.few import FEW_QUERIES, PART, few_steps
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    copy_bytes,
    fill_bytes,
    inline,
    load_i64,
    native,
    reduce_max,
    round_i32,
    splat,
    split,
    store_f32,
    vabs,
    vload_n,
    vmax,
    vmaximum,
    vmin,
    vstore_f16_n,
    vstore_u8_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Native
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel
from bolt_numba.ops.layers.attention.cache import LARGEST_CODE, LEAST_OF_A_ROW, ONE_CODE, GroupQueryAttention


def _appended(a: Numbers) -> dict[str, Reach]:
    return appended(a) | dict.fromkeys("kv", a.n * a.heads * a.s * a.new)


@inline
def half_row(to, source, row, new):
    """A row of f16 of f32."""
    for i in range(0, row // 2, LANES):
        vstore_f16_n(to + 2 * i, vload_n(source + 4 * i, row // 2 - i), row // 2 - i)


@inline
def byte_row(to, source, row, new):
    """A row of i8 of f32, with their scale where there is place for it."""
    d, factor = new // 4, np.float32(1.0)
    if row > d:
        top = splat(LEAST_OF_A_ROW)
        for i in range(0, d, LANES):
            top = vmaximum(top, vabs(vload_n(source + 4 * i, d - i)))
        greatest = reduce_max(top)
        factor = LARGEST_CODE / greatest
        store_f32(to + d, greatest * ONE_CODE + (greatest - greatest))
    for i in range(0, d, LANES):
        x = vmin(vmax(vload_n(source + 4 * i, d - i) * factor, splat(-128.0)), splat(127.0))
        vstore_u8_n(to + i, round_i32(x), d - i)


@inline
def same_row(to, source, row, new):
    copy_bytes(to, source, row)


_PUTS = {"f32": same_row, "f16": half_row, "i8": byte_row}


@cache
def append_kernel(held: str) -> Native:
    """``present [n, heads, room, row]``: the valid rows of ``past [n, heads, held, row]``, s new ones, zeros.

    Rows have ``row`` bytes; new ones are f32 [n, s, heads] of ``new`` bytes, that become what is held.  Only they are
    written where past and present are one memory.
    """
    put = _PUTS[held]

    @native(
        k=PTR, v=PTR, past_k=PTR_OR_0, past_v=PTR_OR_0, present_k=PTR, present_v=PTR, table=PTR, n=I64, heads=I64,
        units=I64, s=I64, row=I64, held=I64, room=I64, new=I64, extents=_appended,
    )  # fmt: skip
    def append(p, tid, nthreads):
        heads, s, row, room, size = p.heads, p.s, p.row, p.room, p.new
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
            source = new + (b * s * heads + pair % heads) * size
            for i in range(min(s, room - before)):
                put(to + (before + i) * row, source + i * heads * size, row, size)

    return append


def _accepts(op: GroupQueryAttention, ins: Types) -> bool:
    caches = {t.dtype for t in ins[3:5] if t is not None}
    others = {t.dtype for i, t in enumerate(ins) if t is not None and i not in (3, 4, 5, 6)}
    return fits(op, ins) and others == {F32} and caches <= {F32, F16, I8}


@kernel(
    GroupQueryAttention, accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1), (4, 2)}),  # a cache is appended to where it lies
)  # fmt: skip
def attention_cached(op: GroupQueryAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Table of heads, append, attention over what is valid: in place for few queries, in blocks for more."""
    (n, s, width), room, held = ins[0].dims, outs[1].dims[2], dtype_name(outs[1].dtype)
    group, is_few = op.num_heads // op.kv_num_heads, s <= FEW_QUERIES
    made = cached(op, ins, outs, group if is_few else 1, PARTS)
    rows = made.rows | {"new": 4 * (width // op.num_heads)}
    steps = [made.first, Step(append_kernel(held), rows, outs[1].nbytes > PAYS_BYTES)]
    heads, parallel = n * made.units, 2 * n * s * room * width > PARALLEL_FLOPS
    if is_few:
        return steps + few_steps(context.threads, heads, group, room, made.args, made.head, parallel, held, PART)
    form = BlockForm(partial(attention_kernel, held=held), workspace if held == "f32" else narrow_workspace)
    return steps + block_steps(context.threads, heads, made.args, room, parallel, form)

