"""Rows of weights as GGUF files store them, made floats where they lie."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache

import numpy as np

from bolt_numba.base.types import BF16, F16, Array
from bolt_numba.base.types import F32 as F32_TYPE
from bolt_numba.kernels.cpu.faults import report
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    f32_of_bits,
    fill_bytes,
    inline,
    lane,
    load_i32,
    load_i64,
    load_u8,
    native,
    splat,
    split,
    store_f32,
    vload_bf16_n,
    vload_f16_n,
    vload_n,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.layers.products.forms import FORMS, Planes
from bolt_numba.ops.layers.products.matmul_forms import GatherForm

F32_ROWS, F16_ROWS, BF16_ROWS, POWERS = 1, 2, 3, 4
"""Kinds of forms: rows without codes, and scales that are powers of two."""
KINDS = {F32_TYPE: F32_ROWS, F16: F16_ROWS, BF16: BF16_ROWS}
ENTRY = 28
"""Bytes of what `places_of` says of a number."""


@cache
def places_of(planes: Planes) -> Array | None:
    """Of each number of a block, i32 [n][7]: byte, shift, mask of its low and of its high bits; 128 for signed ones.

    None where there are no numbers.
    """
    if not planes:
        return None
    low, high = planes[0], planes[-1]
    table = np.zeros((len(low.places), ENTRY // 4), np.int32)
    table[:, 0], table[:, 1], table[:, 2] = low.places, low.shifts, (1 << low.bits) - 1
    if len(planes) > 1:
        table[:, 3], table[:, 4] = high.places, np.array(high.shifts) - low.bits
        table[:, 5] = (1 << high.bits) - 1 << low.bits
    table[:, 6] = 128 * (low.bits == 8)
    return table


@inline
def number(block, entry):
    """What a block has by an entry of `places_of`.  Bits of a byte move up or down to their place."""
    high = np.int32(load_u8(block + load_i32(entry + 12))) << np.int32(8) >> np.int32(load_i32(entry + 16) + 8)
    low = np.int32(load_u8(block + load_i32(entry))) >> load_i32(entry + 4)
    return ((low & load_i32(entry + 8)) | (high & load_i32(entry + 20))) ^ load_i32(entry + 24)


@inline
def half(at):
    return lane(vload_f16_n(at, 1), 0)


@inline
def halved_power(e):
    """2 ** (e - 128); those of 0 and 1 are no normal numbers."""
    bits = np.int32(e) - np.int32(1) << np.int32(23) if e > 1 else np.int32(0x200000) << np.int32(e)
    return lane(f32_of_bits(splat(np.int32(bits))), 0)


@inline
def widen_row(to, at, count, kind):
    """Numbers as f32; kind: which."""
    for j in range(0, count, LANES):
        if kind == F16_ROWS:
            some = vload_f16_n(at + 2 * j, count - j)
        elif kind == BF16_ROWS:
            some = vload_bf16_n(at + 2 * j, count - j)
        else:
            some = vload_n(at + 4 * j, count - j)
        vstore_n(to + 4 * j, some, count - j)


def _gathered(a: Numbers) -> dict[str, Reach]:
    row, groups = a.blocks * a.size, a.block // a.group
    tables = {"codes": ENTRY * a.block, "factors": ENTRY * groups, "others": ENTRY * groups, "table": 16}
    return {"raw": a.rows * row, "index": a.step * a.count, "y": 4 * a.count * a.blocks * a.block, **tables}


@native(raw=PTR, index=PTR, fault=FAULT, y=PTR, rows=I64, count=I64, step=I64, blocks=I64, size=I64, block=I64,
        group=I64, codes=PTR_OR_0, factors=PTR_OR_0, others=PTR_OR_0, scale=I64, offset=I64, middle=F32, less=F32,
        table=PTR_OR_0, kind=I64, extents=_gathered)  # fmt: skip
def gather_form(p, tid, nthreads):
    """y[i] = row index[i] of weights; of one that is out of range it is reported, and y[i] is 0.

    raw: bytes [rows][blocks][size] · index: ``count`` integers of ``step`` bytes · y: f32 [count][blocks * block] ·
    codes, factors, others: by `places_of`, others of offsets · scale, offset: bytes of a block where these lie, offset
    0 where ``middle`` is the code of 0 · less: what factors are more than they mean · kind: see `F32_ROWS` · table: u8
    [16], or 0.
    """
    lo, hi = split(p.count, tid, nthreads)
    width = 4 * p.blocks * p.block
    for i in range(lo, hi):
        row = load_i64(p.index + 8 * i) if p.step == 8 else np.int64(load_i32(p.index + 4 * i))
        at, y = row + p.rows if row < 0 else row, p.y + width * i
        if at < 0 or at >= p.rows:
            report(p.fault, i, row, -p.rows, p.rows - 1)
            fill_bytes(y, np.uint8(0), width)
            continue
        if p.codes == 0:
            widen_row(y, p.raw + p.size * p.blocks * at, p.blocks, p.kind)
            continue
        for b in range(p.blocks):
            block = p.raw + (at * p.blocks + b) * p.size
            whole_scale, whole_offset = half(block + p.scale), half(block + p.offset)
            if p.kind == POWERS:
                whole_scale = halved_power(load_u8(block + p.scale))
            for g in range(p.block // p.group):
                scale = whole_scale
                if p.factors != 0:
                    scale = scale * (np.float32(number(block, p.factors + ENTRY * g)) - p.less)
                offset = -p.middle * scale
                if p.offset != 0:
                    offset = whole_offset
                    if p.others != 0:
                        offset = -offset * np.float32(number(block, p.others + ENTRY * g))
                for j in range(g * p.group, (g + 1) * p.group):
                    code = number(block, p.codes + ENTRY * j)
                    if p.table != 0:
                        code = np.int32(load_u8(p.table + code))
                    store_f32(y, np.float32(code) * scale + offset)
                    y += 4


@kernel(GatherForm, accepts=lambda op, ins: all(t.is_static for t in ins) and ins[0].size > 0)
def gather_rows(op: GatherForm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Number by number: rows are few."""
    raw, index, form = ins[0], ins[1], FORMS[op.form]
    args: dict[str, Argument] = {
        "raw": In(0), "index": In(1), "fault": Fault(1), "y": Out(0), "rows": raw.dims[0], "count": index.size,
        "step": index.dtype.itemsize, "blocks": raw.dims[1] // form.size, "size": form.size, "block": form.block,
        "group": form.group, "codes": places_of(form.codes), "factors": places_of(form.factors),
        "others": places_of(form.offset_factors), "scale": form.scale, "offset": form.offset,
        "middle": float(form.middle or 0), "less": float(form.less),
        "kind": POWERS if form.power else KINDS.get(form.plain, 0),
        "table": np.array(form.table, np.uint8) if form.table else None,
    }  # fmt: skip
    return [Step(gather_form, args, context.threads > 1 and outs[0].size > PAYS_ELEMENTS)] if index.size else []
