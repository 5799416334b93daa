"""Attention with a cache of keys and values: new rows are appended, then queries meet what is valid.

How many keys are valid is data.  A first small step turns it into the table of heads that the attention kernels read,
so that one plan serves every step of a decoder.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.attention.attention import (
    FEW_QUERIES,
    PARALLEL_FLOPS,
    attention_few,
    block_steps,
    few,
)
from bolt_numba.kernels.cpu.faults import FAULT_AT, report
from bolt_numba.kernels.cpu.language.lang import copy_bytes, fill_bytes, load_i32, load_i64, native, split, store_i64
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.heads import ENTRY, UNBOUNDED
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.cache import GroupQueryAttention
from bolt_numba.types import F32, TensorType

PARALLEL_BYTES = PAYS_BYTES
"""Bytes of a cache from which a second thread pays."""


def _listed(a: Any) -> dict[str, Reach]:
    return {"valid": 4 * a.n, "total": 4, "table": 8 * ENTRY * a.n * a.units}


@native(valid=PTR, total=PTR, table=PTR, fault=FAULT_AT, n=I64, s=I64, units=I64, share=I64, room=I64, most=I64,
        q_unit=I64, q_step=I64, kv_head=I64, kv_heads=I64, mask_unit=I64, mask_batch=I64, sink_unit=I64,
        extents=_listed)  # fmt: skip
def cache_table(p, tid, nthreads):
    """The table of heads (i64 [n * units][`ENTRY`]) for ``units`` rows of each sequence; see `attention_kernel`.

    valid: i32 [n], keys less one · total: i32.  share: rows that read one head of keys.  room: positions of the cache;
    most: keys that masks cover.
    """
    s, units, total, top = p.s, p.units, load_i32(p.total), min(p.room, p.most) - 1
    for b in range(p.n):
        given, before = load_i32(p.valid + 4 * b) + 0, 0  # an i64, as a sum
        keys = given + 1
        if s == total:
            keys = s
        else:
            if given < s - 1 or given > top:
                report(p.fault, b, given, s - 1, top)
            before = max(0, min(keys - s, p.room - s))
        keys = max(0, min(keys, p.room, p.most))
        for unit in range(units):
            at = p.table + 8 * ENTRY * (b * units + unit)
            head = p.kv_head * (b * p.kv_heads + unit // p.share)
            q = b * s * p.q_step + unit * p.q_unit
            store_i64(at, q)
            store_i64(at + 8, head)
            store_i64(at + 16, head)
            store_i64(at + 24, b * p.mask_batch + unit * p.mask_unit)
            store_i64(at + 32, q)
            store_i64(at + 40, keys)
            store_i64(at + 48, before)
            store_i64(at + 56, unit * p.sink_unit)


def _appended(a: Any) -> dict[str, Reach]:
    head = 4 * a.n * a.heads * a.d
    rows = {"": a.s, "past_": a.held, "present_": a.room}
    return {f"{of}{name}": head * count for of, count in rows.items() for name in "kv"} | {
        "table": 8 * ENTRY * a.n * a.units
    }


@native(k=PTR, v=PTR, past_k=PTR_OR_0, past_v=PTR_OR_0, present_k=PTR, present_v=PTR, table=PTR, n=I64, heads=I64,
        units=I64, s=I64, d=I64, held=I64, room=I64, extents=_appended)  # fmt: skip
def append(p, tid, nthreads):
    """``present [n, heads, room, d]``: the valid rows of ``past [n, heads, held, d]``, s new ones, zeros.

    New rows are ``[n, s, heads, d]``.  Where past and present are one memory, only the new rows are written.
    """
    heads, s, row, room = p.heads, p.s, 4 * p.d, p.room
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


def _accepts(op: Any, ins: Types) -> bool:
    floats = [t for i, t in enumerate(ins) if t is not None and i not in (5, 6)]
    if any(t is not None and not t.is_static for t in ins) or any(t.dtype != F32 for t in floats):
        return False
    q, k, v, bias = ins[0], ins[1], ins[2], ins[7] if len(ins) > 7 else None
    if q is None or k is None or v is None or not q.size or k.dims != v.dims or k.dims[:2] != q.dims[:2]:
        return False
    return bias is None or (len(bias.dims) == 4 and bias.dims[2] == q.dims[1] and bias.size > 0)


def _shares(op: Any, ins: Types, room: int) -> tuple[dict[str, Argument], dict[str, int]]:
    """Parameters that both attention kernels and the table need, and bytes from a head to the next."""
    q, bias = ins[0], ins[7] if len(ins) > 7 else None
    assert q is not None, "accepts() has tested this"
    _, s, width = q.dims
    d = width // op.num_heads
    args: dict[str, Argument] = {"q": In(0), "k": Out(1), "v": Out(2), "y": Out(0), "m": s, "d": d, "width": d}
    args |= {"mask": In(7) if bias is not None else None, "mask_step": 0 if bias is None else 4 * bias.dims[3]}
    sink = len(ins) > 8 and ins[8] is not None
    args["sink"] = In(8) if sink else np.zeros(op.num_heads, np.float32) if op.smooth else None
    args |= {"q_step": 4 * width, "y_step": 4 * width, "k_step": 4 * d, "v_step": 4 * d}
    window = op.local_window if op.local_window >= 0 else UNBOUNDED
    cap = op.softcap if op.softcap > 0 else 0.0
    args |= {"window": window, "scale": op.scale or 1 / math.sqrt(d), "cap": cap}
    heads = 1 if bias is None else bias.dims[1]
    plane = 0 if bias is None else 4 * bias.dims[2] * bias.dims[3]
    strides = {"mask": plane if heads > 1 else 0, "mask_batch": 0, "most": room}
    if bias is not None:
        strides |= {"mask_batch": plane * heads if bias.dims[0] > 1 else 0, "most": bias.dims[3]}
    return args, strides


@kernel(
    GroupQueryAttention, accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1), (4, 2)}),  # a cache is appended to where it lies
)  # fmt: skip
def attention_cached(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Table of heads, append, attention over what is valid: in place for few queries, in blocks for more."""
    q, k, past = ins[0], ins[1], ins[3]
    assert q is not None, "accepts() has tested this"
    assert k is not None, "accepts() has tested this"
    (n, s, width), room = q.dims, outs[1].dims[2]
    d, kv_heads, group = width // op.num_heads, op.kv_num_heads, op.num_heads // op.kv_num_heads
    args, strides = _shares(op, ins, room)
    together = group if s <= FEW_QUERIES else 1
    units = op.num_heads // together
    table = args["table"] = Scratch(8 * ENTRY * n * units)
    head = {"units": units, "share": group // together, "room": room, "most": strides["most"], "kv_heads": kv_heads}
    head |= {"q_unit": 4 * d * together, "q_step": 4 * width, "kv_head": 4 * d * room, "sink_unit": 4 * together}
    head |= {"mask_unit": strides["mask"] * together, "mask_batch": strides["mask_batch"], "n": n, "s": s}
    lengths: dict[str, Argument] = {"valid": In(5), "total": In(6), "table": table, "fault": Fault(5)}
    first = Step(cache_table, lengths | head, parallel=False)
    rows: dict[str, Argument] = {"k": In(1), "v": In(2), "present_k": Out(1), "present_v": Out(2), "table": table}
    rows |= {"past_k": None if past is None else In(3), "past_v": None if past is None else In(4), "n": n, "s": s}
    rows |= {"heads": kv_heads, "units": units, "d": d, "held": 0 if past is None else past.dims[2], "room": room}
    second = Step(append, rows, outs[1].nbytes > PARALLEL_BYTES)
    parallel = 2 * n * op.num_heads * s * room * d > PARALLEL_FLOPS
    if s <= FEW_QUERIES:
        more = few(context.threads, n * units, group, s, room)
        more |= {"q_head": 4 * d, "y_head": 4 * d, "mask_head": strides["mask"]}
        return [first, second, Step(attention_few, args | more, parallel & (n * units > 1))]
    return [first, second, *block_steps(context.threads, n * units, args, room, parallel)]
