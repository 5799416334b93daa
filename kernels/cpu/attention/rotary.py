"""Rotary position embedding, one head of one position at a time."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cpu.faults import FAULT_AT, report
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    even_lanes,
    interleave_high,
    interleave_low,
    load_f32,
    load_i64,
    native,
    odd_lanes,
    split,
    store_f32,
    vload,
    vload_n,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Step, Types, kernel
from bolt_numba.ops.layers.rotary import RotaryEmbedding
from bolt_numba.types import F32, TensorType

PARALLEL_ELEMENTS = 2 * PAYS_ELEMENTS
"""Elements from which a second thread pays."""


@inline
def turn_halves(x, y, cos, sin, half):
    """Elements i and i + half are a pair."""
    for i in range(0, half, LANES):
        left = half - i
        a, b = vload_n(x + 4 * i, left), vload_n(x + 4 * (half + i), left)
        c, s = vload_n(cos + 4 * i, left), vload_n(sin + 4 * i, left)
        vstore_n(y + 4 * i, a * c - b * s, left)
        vstore_n(y + 4 * (half + i), a * s + b * c, left)


@inline
def turn_neighbours(x, y, cos, sin, half):
    """Elements 2 i and 2 i + 1 are a pair."""
    i = 0
    while i + LANES <= half:
        u, v = vload(x + 8 * i), vload(x + 8 * i + BYTES)
        a, b = even_lanes(u, v), odd_lanes(u, v)
        c, s = vload(cos + 4 * i), vload(sin + 4 * i)
        first, second = a * c - b * s, a * s + b * c
        vstore(y + 8 * i, interleave_low(first, second))
        vstore(y + 8 * i + BYTES, interleave_high(first, second))
        i += LANES
    while i < half:
        one, two = load_f32(x + 8 * i), load_f32(x + 8 * i + 4)
        cosine, sine = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
        store_f32(y + 8 * i, one * cosine - two * sine)
        store_f32(y + 8 * i + 4, one * sine + two * cosine)
        i += 1


def _turned(a: Any) -> dict[str, Reach]:
    places = (a.n - 1) * a.image + (a.outer if a.is_outer else a.inner)
    count = 4 * a.n * a.outer * a.inner * a.d
    table = 4 * a.half * (places if a.positions is None else a.rows) if count else 0
    return {"x": count, "y": count, "cos": table, "sin": table, "positions": 8 * places if count else 0}


@native(x=PTR, y=PTR, cos=PTR, sin=PTR, positions=PTR_OR_0, fault=FAULT_AT, n=I64, outer=I64, inner=I64, d=I64,
        half=I64, is_outer=I64, neighbours=I64, rows=I64, image=I64, extents=_turned)  # fmt: skip
def rotate(p, tid, nthreads):
    """Heads ``x [n, outer, inner, d]``; the position is the outer index if ``is_outer``, else the inner one.

    positions: i64 rows of the tables, 0…rows - 1, or 0: the row is the position.  image: positions (or rows)
    from one of the n to the next, 0 where all share them.
    """
    d, half = p.d, p.half
    first, last = split(p.n * p.outer * p.inner, tid, nthreads)
    for item in range(first, last):
        image = item // (p.outer * p.inner)
        at = (item // p.inner) % p.outer if p.is_outer else item % p.inner
        row = image * p.image + at
        if p.positions:
            given = load_i64(p.positions + 8 * row)
            if given < 0 or given >= p.rows:
                report(p.fault, row, given, 0, p.rows - 1)
                return
            row = given
        x, y = p.x + 4 * item * d, p.y + 4 * item * d
        cos, sin = p.cos + 4 * row * half, p.sin + 4 * row * half
        if p.neighbours:
            turn_neighbours(x, y, cos, sin, half)
        else:
            turn_halves(x, y, cos, sin, half)
        for i in range(2 * half, d, LANES):
            vstore_n(y + 4 * i, vload_n(x + 4 * i, d - i), d - i)


def _accepts(op: RotaryEmbedding, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or not t.size) for t in ins):
        return False
    return all(t is not None and t.dtype == F32 for t in ins[:3])


@kernel(RotaryEmbedding, accepts=_accepts, inplace=(0,))
def rotary_embedding(op: RotaryEmbedding, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Pairs in vectors, one read and one write."""
    x, cos = ins[0], ins[1]
    assert x is not None, "accepts() has tested this"
    assert cos is not None, "accepts() has tested this"
    n, outer, inner, d = x.dims
    positions = ins[3] if len(ins) > 3 else None
    is_outer = op.layout == "SHD"
    shared = (cos if positions is None else positions).dims[0] == 1
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "cos": In(1), "sin": In(2)}
    args |= {"fault": None if positions is None else Fault(3)}
    args |= {"positions": None if positions is None else In(3), "n": n, "outer": outer, "inner": inner, "d": d}
    args |= {"half": cos.dims[-1], "is_outer": int(is_outer), "neighbours": int(op.interleaved)}
    args |= {"rows": cos.size // max(cos.dims[-1], 1), "image": 0 if shared else outer if is_outer else inner}
    return [Step(rotate, args, x.size > PARALLEL_ELEMENTS)]
