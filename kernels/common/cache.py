"""Attention with a cache of keys and values, before it attends: what every device does alike.

How many keys are valid is data.  A first small step turns it into the table of heads that attention kernels read, so
that one plan serves every step of a decoder.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.declare import I64, PTR, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, elements
from bolt_numba.kernels.geometry.heads import ENTRY, UNBOUNDED
from bolt_numba.kernels.registry import Argument, Fault, In, Out, Outs, Scratch, Step, Types
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention


def _listed(a: Numbers) -> dict[str, Reach]:
    return {"valid": 4 * a.n, "total": 4, "table": 8 * ENTRY * a.n * a.units}


_NUMBERS: dict[str, Any] = dict.fromkeys(
    ("s", "share", "room", "most", "q_batch", "q_unit", "kv_head", "kv_heads", "mask_unit", "mask_batch", "sink_unit"),
    I64,
)


@elements(
    over={"b": "n", "unit": "units"}, extents=_listed, valid=PTR, total=PTR, table=PTR, fault=FAULT,
    **_NUMBERS,
)  # fmt: skip
def cache_table(on: DeviceParts):
    """Kernel of the table of heads (i64 [n * units][`ENTRY`]) for ``units`` rows of each sequence.

    valid: i32 [n], keys less one · total: i32.  share: rows that read one head of keys.  room: positions of the cache;
    most: keys that masks cover.
    """
    load, store, report = on.load("i32"), on.store("i64"), on.report

    @inline
    def element(
        b, unit, t, valid, total, table, fault, s, share, room, most, q_batch, q_unit, kv_head, kv_heads, mask_unit,
        mask_batch, sink_unit,
    ):  # fmt: skip
        given, before, state = load(valid + 4 * b) + 0, 0, 0  # i64, as a sum
        keys, top = given + 1, min(room, most) - 1
        if s == load(total) + 0:
            keys = s
        else:
            if given < s - 1 or given > top:
                report(fault, b, given, s - 1, top)
                state = -1
            before = max(0, min(keys - s, room - s))
        at, head, q = table + 8 * ENTRY * t, kv_head * (b * kv_heads + unit // share), b * q_batch + unit * q_unit
        store(at, q)
        store(at + 8, head)
        store(at + 16, head)
        store(at + 24, b * mask_batch + unit * mask_unit)
        store(at + 32, q)
        store(at + 40, max(0, min(keys, min(room, most))))
        store(at + 48, before)
        store(at + 56, unit * sink_unit)
        return state

    return element


def appended(a: Any) -> dict[str, Reach]:
    """Extents of the kernels that append rows of ``row`` bytes."""
    head = a.row * a.n * a.heads
    rows = {"": a.s, "past_": a.held, "present_": a.room}
    return {f"{of}{name}": head * count for of, count in rows.items() for name in "kv"} | {
        "table": 8 * ENTRY * a.n * a.units
    }


def fits(op: GroupQueryAttention, ins: Types) -> bool:
    """Whether all sizes are known, keys and values are alike, and a bias has a row for each query."""
    if any(t is not None and not t.is_static for t in ins):
        return False
    q, (k, v), bias = ins[0], ins[1:3], ins[7] if len(ins) > 7 else None
    if k is None or v is None or not q.size or k.dims != v.dims or k.dims[:2] != q.dims[:2]:
        return False
    return bias is None or (len(bias.dims) == 4 and bias.dims[2] == q.dims[1] and bias.size > 0)


@record(frozen=True)
class Cached:
    """What makers go on with.

    args: of attention kernels.  head: bytes from a head to the next, of q and y, and of the mask.  units: rows of the
    table of one sequence.  first: the step that makes the table.  rows: arguments of what appends.
    """

    args: dict[str, Argument]
    head: dict[str, Argument]
    units: int
    first: Step
    rows: dict[str, Argument]


def cached(op: GroupQueryAttention, ins: Types, outs: Outs, together: int, on: DeviceParts) -> Cached:
    """Together: heads of queries that share keys, and are one row of the table."""
    q, past, bias = ins[0], (*ins[3:4], None)[0], ins[7] if len(ins) > 7 else None
    (n, s, width), room, size = q.dims, outs[1].dims[2], q.dtype.itemsize
    row = outs[1].dtype.itemsize * outs[1].dims[3]
    d, kv_heads, units = width // op.num_heads, op.kv_num_heads, op.num_heads // together
    batches, heads, queries, keys = (1, 1, 0, 0) if bias is None else bias.dims
    plane = size * queries * keys
    mask_head, mask_batch = plane if heads > 1 else 0, plane * heads if batches > 1 else 0
    table = Scratch(8 * ENTRY * n * units)
    args: dict[str, Argument] = {"q": In(0), "k": Out(1), "v": Out(2), "y": Out(0), "table": table, "m": s, "d": d}
    args |= {"mask": In(7) if bias is not None else None, "mask_step": size * keys, "width": d}
    drain = np.zeros(op.num_heads, q.dtype) if op.smooth else None
    args["sink"] = In(8) if len(ins) > 8 and ins[8] is not None else drain
    args |= {"q_step": size * width, "y_step": size * width, "k_step": row, "v_step": row}
    args |= {"window": op.local_window if op.local_window >= 0 else UNBOUNDED, "scale": op.scale or 1 / math.sqrt(d)}
    args["cap"] = op.softcap if op.softcap > 0 else 0.0
    lengths: dict[str, Argument] = {"valid": In(5), "total": In(6), "table": table, "fault": Fault(5), "n": n, "s": s}
    lengths |= {"units": units, "share": op.num_heads // kv_heads // together, "room": room, "kv_heads": kv_heads}
    lengths |= {"most": room if bias is None else keys, "kv_head": row * room, "q_batch": size * s * width}
    lengths |= {"q_unit": size * d * together, "sink_unit": size * together, "mask_unit": mask_head * together}
    rows: dict[str, Argument] = {"k": In(1), "v": In(2), "present_k": Out(1), "present_v": Out(2), "table": table}
    rows |= {"past_k": None if past is None else In(3), "past_v": None if past is None else In(4), "n": n, "s": s}
    rows |= {"heads": kv_heads, "units": units, "row": row, "held": 0 if past is None else past.dims[2]}
    first = on.step(cache_table, (), lengths | {"mask_batch": mask_batch}, False)
    head: dict[str, Argument] = {"q_head": size * d, "y_head": size * d, "mask_head": mask_head}
    return Cached(args, head, units, first, rows | {"room": room})
