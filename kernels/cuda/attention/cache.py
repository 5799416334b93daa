"""Attention with a cache of keys and values: new rows are appended, then queries meet what is valid.

How many keys are valid is data.  A first small step turns it into the table of heads that the attention kernels read.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.attention.attention import MOST_UNITS, flash_fits, flash_steps, tiles_for
from bolt_numba.kernels.cuda.attention.flash import ALL_ROWS, NO_MASK
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.faults import FAULT_AT, report
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, load_i32, load_i64, static, store_i64
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.heads import ENTRY, UNBOUNDED
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.cache import GroupQueryAttention
from bolt_numba.types import BF16, F16, F32, TensorType, dtype_name

THREADS = 128
TOGETHER = 64
"""Rows of scores up to which all heads of queries that share keys are one unit."""


def _listed(a: Any) -> dict[str, Reach]:
    return {"valid": 4 * a.n, "total": 4, "table": 8 * ENTRY * a.n * a.units}


@cuda_kernel(
    threads=THREADS, blocks=lambda a: ceil_div(a.n * a.units, THREADS), extents=_listed,
    valid=PTR, total=PTR, table=PTR, fault=FAULT_AT, n=I64, s=I64, units=I64, share=I64, room=I64, most=I64,
    q_batch=I64, q_unit=I64, kv_head=I64, kv_heads=I64, mask_unit=I64, mask_batch=I64, sink_unit=I64,
)  # fmt: skip
def cache_table(
    valid, total, table, fault, n, s, units, share, room, most, q_batch, q_unit, kv_head, kv_heads, mask_unit,
    mask_batch, sink_unit,
):  # fmt: skip
    """The table of heads (i64 [n * units][`ENTRY`]) for ``units`` rows of each sequence.

    valid: i32 [n], keys less one · total: i32.  share: rows that read one head of keys.  room: positions of the cache;
    most: keys that masks cover.
    """
    item = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
    if item < n * units:
        b = np.int64(np.uint32(item) // np.uint32(units))
        unit, given, before = item - b * units, np.int64(load_i32(valid + 4 * b)), np.int64(0)
        keys, top = given + 1, min(room, most) - 1
        if s == np.int64(load_i32(total)):
            keys = s
        else:
            if given < s - 1 or given > top:
                report(fault, b, given, s - 1, top)
            before = max(np.int64(0), min(keys - s, room - s))
        at = table + 8 * ENTRY * item
        head = kv_head * (b * kv_heads + unit // share)
        q = b * q_batch + unit * q_unit
        store_i64(at, q)
        store_i64(at + 8, head)
        store_i64(at + 16, head)
        store_i64(at + 24, b * mask_batch + unit * mask_unit)
        store_i64(at + 32, q)
        store_i64(at + 40, max(np.int64(0), min(keys, room, most)))
        store_i64(at + 48, before)
        store_i64(at + 56, unit * sink_unit)


def _appended(a: Any) -> dict[str, Reach]:
    head = a.row * a.n * a.heads
    rows = {"": a.s, "past_": a.held, "present_": a.room}
    return {f"{of}{name}": head * count for of, count in rows.items() for name in "kv"} | {
        "table": 8 * ENTRY * a.n * a.units
    }


def _rows_written(a: Any) -> int:
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
        threads=THREADS, blocks=lambda a: (ceil_div(_rows_written(a) * (a.row // unit), THREADS), 2 * a.n * a.heads),
        unrolled=True, extents=_appended, k=PTR, v=PTR, past_k=PTR_OR_0, past_v=PTR_OR_0, present_k=PTR, present_v=PTR,
        table=PTR, n=I64, heads=I64, units=I64, s=I64, row=I64, held=I64, room=I64,
    )  # fmt: skip
    def append(k, v, past_k, past_v, present_k, present_v, table, n, heads, units, s, row, held, room):
        parts, pair = np.uint32(row // unit), np.int64(cuda.blockIdx.y) >> 1
        index = np.uint32(cuda.blockIdx.x) * np.uint32(THREADS) + np.uint32(cuda.threadIdx.x)
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


def _accepts(op: Any, ins: Types) -> bool:
    if any(t is not None and not t.is_static for t in ins):
        return False
    q, k, v, bias = ins[0], ins[1], ins[2], ins[7] if len(ins) > 7 else None
    if q is None or k is None or v is None or not q.size or k.dims != v.dims or k.dims[:2] != q.dims[:2]:
        return False
    if q.dtype not in (F32, F16, BF16) or q.dims[2] // op.num_heads > MOST_UNITS:
        return False
    if q.dims[0] * max(op.num_heads, 2 * op.kv_num_heads) > MOST_UNITS:  # of keys and of values
        return False
    return bias is None or (len(bias.dims) == 4 and bias.dims[2] == q.dims[1] and bias.size > 0)


def _shared(op: Any, ins: Types, room: int, together: int) -> tuple[dict[str, Argument], dict[str, int]]:
    """Arguments for `rows.FIELDS` but the table; bytes from unit to unit and from batch to batch of the mask."""
    q, bias = ins[0], ins[7] if len(ins) > 7 else None
    assert q is not None, "accepts() has tested this"
    (n, s, width), size = q.dims, q.dtype.itemsize
    d = width // op.num_heads
    heads = 1 if bias is None else bias.dims[1]
    plane = 0 if bias is None else size * bias.dims[2] * bias.dims[3]
    mask_head = plane if heads > 1 else 0
    args: dict[str, Argument] = {"q": In(0), "k": Out(1), "v": Out(2), "y": Out(0), "m": s, "d": d, "width": d}
    args |= {"mask": In(7) if bias is not None else None, "mask_step": 0 if bias is None else size * bias.dims[3]}
    drain = np.zeros(op.num_heads, q.dtype) if op.smooth else None
    args["sink"] = In(8) if len(ins) > 8 and ins[8] is not None else drain
    args |= {"q_step": size * width, "y_step": size * width, "k_step": size * d, "v_step": size * d}
    args |= {"q_head": size * d, "y_head": size * d, "mask_head": mask_head, "group": together}
    args |= {"units": n * op.num_heads // together, "cap": op.softcap if op.softcap > 0 else 0.0}
    args |= {"window": op.local_window if op.local_window >= 0 else UNBOUNDED, "scale": op.scale or 1 / math.sqrt(d)}
    batch = plane * heads if bias is not None and bias.dims[0] > 1 else 0
    most = room if bias is None else bias.dims[3]
    return args, {"mask_unit": mask_head * together, "mask_batch": batch, "most": most}


@kernel(
    GroupQueryAttention, device="cuda", accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1), (4, 2)}),  # a cache is appended to where it lies
)  # fmt: skip
def attention_cached(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Table of heads, append, attention over what is valid."""
    q, past = ins[0], ins[3]
    assert q is not None, "accepts() has tested this"
    (n, s, width), room, size = q.dims, outs[1].dims[2], q.dtype.itemsize
    d, kv_heads, group = width // op.num_heads, op.kv_num_heads, op.num_heads // op.kv_num_heads
    together = group if s * group <= TOGETHER else 1
    args, strides = _shared(op, ins, room, together)
    units = op.num_heads // together
    table = args["table"] = Scratch(8 * ENTRY * n * units)
    head: dict[str, Argument] = {"valid": In(5), "total": In(6), "table": table, "fault": Fault(5), "n": n, "s": s}
    head |= {"units": units, "share": group // together, "room": room, "kv_heads": kv_heads, "kv_head": size * d * room}
    head |= {"q_batch": s * size * width, "q_unit": size * d * together, "sink_unit": size * together, **strides}
    rows: dict[str, Argument] = {"k": In(1), "v": In(2), "present_k": Out(1), "present_v": Out(2), "table": table}
    rows |= {"past_k": None if past is None else In(3), "past_v": None if past is None else In(4), "n": n, "s": s}
    rows |= {"heads": kv_heads, "units": units, "row": size * d, "held": 0 if past is None else past.dims[2]}
    copies = append_kernel(next(words for words in (4, 1, 0) if size * d % (4 * words or 2) == 0))
    first = [Step(cache_table, head), Step(copies, {**rows, "room": room})]
    dtype = dtype_name(q.dtype)
    if q.dtype != F32 and flash_fits(d, d) and (op.scale or 1) > 0:
        return first + flash_steps(args, dtype, NO_MASK if args["mask"] is None else ALL_ROWS, room)
    return [*first, Step(tiles_for(dtype, d, d), args)]


def samples() -> list[CudaKernel]:
    """Kernels for the table of resources."""
    return [cache_table, append_kernel(4), append_kernel(0)]
