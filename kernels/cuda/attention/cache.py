"""Attention with a cache of keys and values: new rows are appended, then queries meet what is valid."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, dtype_name
from bolt_numba.kernels.common.cache import appended, cached, fits
from bolt_numba.kernels.cuda.attention.attention import MOST_UNITS, flash_fits, flash_steps, tiles_for
from bolt_numba.kernels.cuda.attention.flash import ALL_ROWS, NO_MASK
from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, load_i64, static
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.heads import ENTRY
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention

TOGETHER = 64
"""Rows of scores up to which all heads of queries that share keys are one unit."""


def _rows_written(a: Numbers) -> int:
    """Of a head: new ones alone where past and present are one memory."""
    return int(a.s if a.past_k == a.present_k and a.past_v == a.present_v else a.room)


@functools.cache
def append_kernel(words: int) -> CudaKernel:
    """``present [n, heads, room, row]``: the valid rows of ``past [n, heads, held, row]``, s new ones, zeros.

    New rows are ``[n, s, heads, row]``, of ``row`` bytes, copied by ``words`` of 4 bytes, or by 2 bytes (0).
    """
    unit = 4 * words or 2
    load = lang.load4_u32 if words == 4 else lang.load_u32 if words else lang.load_u16
    store = lang.store4_u32 if words == 4 else lang.store_u32 if words else lang.store_u16
    is_wide = words == 4

    @cuda_kernel(
        threads=BLOCK, blocks=lambda a: (ceil_div(_rows_written(a) * (a.row // unit), BLOCK), 2 * a.n * a.heads),
        unrolled=True, extents=appended, k=PTR, v=PTR, past_k=PTR_OR_0, past_v=PTR_OR_0, present_k=PTR, present_v=PTR,
        table=PTR, n=I64, heads=I64, units=I64, s=I64, row=I64, held=I64, room=I64,
    )  # fmt: skip
    def append(k, v, past_k, past_v, present_k, present_v, table, n, heads, units, s, row, held, room):
        parts, pair = np.uint32(row // unit), np.int64(cuda.blockIdx.y) >> 1
        index = np.uint32(cuda.blockIdx.x) * np.uint32(BLOCK) + np.uint32(cuda.threadIdx.x)
        new, past, present = k, past_k, present_k
        if (cuda.blockIdx.y & 1) != 0:
            new, past, present = v, past_v, present_v
        b = np.int64(np.uint32(pair) // np.uint32(heads))
        before = load_i64(table + 8 * ENTRY * b * units + 48)
        at = np.uint32(index // parts)
        offset, position = unit * np.int64(index - at * parts), np.int64(at)
        if past_k == present_k and past_v == present_v:
            position += before
        if position >= room or (past == present and (position < before or position >= before + s)):
            return
        source = np.int64(0)
        if position >= before and position < before + s:
            source = new + ((b * s + position - before) * heads + pair - b * heads) * row
        elif position < min(before, held):
            source = past + (pair * held + position) * row
        to = present + (pair * room + position) * row + offset
        if static(is_wide):
            zero = np.uint32(0)
            a, c, d, e = load(source + offset) if source != 0 else (zero, zero, zero, zero)
            store(to, a, c, d, e)
        else:
            store(to, load(source + offset) if source != 0 else 0)

    return append


def _accepts(op: GroupQueryAttention, ins: Types) -> bool:
    if not fits(op, ins):
        return False
    q = ins[0]
    if any(t is not None and t.dtype != q.dtype for t in ins[3:5]):
        return False
    if q.dtype not in (F32, F16, BF16) or q.dims[2] // op.num_heads > MOST_UNITS:
        return False
    return bool(q.dims[0] * max(op.num_heads, 2 * op.kv_num_heads) <= MOST_UNITS)  # of keys and of values


@kernel(
    GroupQueryAttention, device="cuda", accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1), (4, 2)}),  # a cache is appended to where it lies
)  # fmt: skip
def attention_cached(op: GroupQueryAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Table of heads, append, attention over what is valid."""
    q, group = ins[0], op.num_heads // op.kv_num_heads
    (n, s, width), dtype = q.dims, dtype_name(q.dtype)
    together = group if s * group <= TOGETHER else 1
    made = cached(op, ins, outs, together, PARTS)
    args = made.args | made.head | {"group": together, "units": n * made.units}
    row, d = q.dtype.itemsize * (width // op.num_heads), width // op.num_heads
    copies = append_kernel(next(words for words in (4, 1, 0) if row % (4 * words or 2) == 0))
    first = [made.first, Step(copies, made.rows)]
    if q.dtype != F32 and flash_fits(d, d) and (op.scale or 1) > 0:
        return first + flash_steps(args, dtype, NO_MASK if args["mask"] is None else ALL_ROWS, outs[1].dims[2])
    return [*first, Step(tiles_for(dtype, d, d), args)]
