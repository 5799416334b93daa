"""Attention within rows that lie one after another: `attention_kernel`'s blocks, for heads of unequal lengths."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.types import F32 as F32_TYPE
from bolt_numba.kernels.cpu.attention.attention import (
    PARALLEL_FLOPS,
    attend_blocks,
    is_packed,
    workspace,
)
from bolt_numba.kernels.cpu.attention.score_rows import PANEL, pack_keys, pack_values
from bolt_numba.kernels.cpu.faults import report
from bolt_numba.kernels.cpu.language.lang import LANES, ceil_div, load_i64, native
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT
from bolt_numba.kernels.geometry.heads import UNBOUNDED, heads_first, position_step
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import F32, I64, PTR, Native
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.ragged import RaggedAttention

KEY_COST = 64
"""What packing a key and writing a result take, in products of a query with keys."""


def _reach(mr: int, a: Numbers) -> dict[str, Reach]:
    def reach(step: int, head: int, size: int) -> int:
        return (a.positions - 1) * step + (a.heads - 1) * head + 4 * size

    made: dict[str, Reach] = {"q": reach(a.q_step, a.q_head, a.d), "y": reach(a.y_step, a.y_head, a.width)}
    made |= {"k": a.k_at + reach(a.k_step, a.k_head, a.d), "v": a.v_at + reach(a.v_step, a.v_head, a.width)}
    used = a.result_at + 4 * mr * (-(-a.width // PANEL) * PANEL + 1)
    return made | {"lengths": 8 * a.rows, "order": 4 * a.d, "work": (a.threads - 1) * a.work_size + used}


@cache
def ragged_kernel(mr: int) -> Native:
    """Kernel for blocks of ``mr`` queries.

    q, k [heads][positions][d], v, y [heads][positions][width], positions and heads so many bytes apart, k and v from
    ``k_at`` and ``v_at`` on.  lengths: i64 [rows], positions of each row; those that do not fit what is left are
    reported, and taken for 0.  causal: 1 where a query sees no later key.  work, order: as of `attention_kernel`.  A
    thread takes heads of rows, by what they cost.
    """
    attend = attend_blocks(mr)

    @native(
        extents=partial(_reach, mr), q=PTR, k=PTR, v=PTR, y=PTR, lengths=PTR, fault=FAULT, work=PTR, order=PTR,
        rows=I64, positions=I64, heads=I64, d=I64, width=I64, causal=I64, scale=F32, q_step=I64, k_step=I64,
        v_step=I64, y_step=I64, q_head=I64, k_head=I64, v_head=I64, y_head=I64, k_at=I64, v_at=I64,
        work_size=I64, values_at=I64, rows_at=I64, scores_at=I64, result_at=I64,
    )  # fmt: skip
    def ragged(p, tid, nthreads):
        d, width = p.d, p.width
        keys = p.work + p.work_size * tid
        values, rows = keys + p.values_at, keys + p.rows_at
        scores, result = keys + p.scores_at, keys + p.result_at
        packs = width if is_packed(width, p.v_step) else 0
        total = 1
        for row in range(p.rows):
            n = load_i64(p.lengths + 8 * row)
            total += min(max(n, 0), p.positions) * (n + KEY_COST) * p.heads
        at, cost = 0, 0
        for row in range(p.rows):
            n, left = load_i64(p.lengths + 8 * row), p.positions - at
            least = left if row == p.rows - 1 else 0
            if n < least or n > left:
                report(p.fault, row, n, least, left)
                n = 0
            for head in range(p.heads):
                share = cost * nthreads
                cost += n * (n + KEY_COST)
                if n > 0 and share >= tid * total and share < (tid + 1) * total:
                    q, y = p.q + at * p.q_step + head * p.q_head, p.y + at * p.y_step + head * p.y_head
                    k = p.k + p.k_at + at * p.k_step + head * p.k_head
                    v = p.v + p.v_at + at * p.v_step + head * p.v_head
                    pack_keys(k, p.k_step, keys, n, d, p.scale, p.order)
                    pack_values(v, p.v_step, values, n, packs)
                    pitch = 4 * (ceil_div(n, PANEL) * PANEL + LANES)
                    before = 0 if p.causal else n
                    attend(
                        q, p.q_step, v, p.v_step, y, p.y_step, 0, 0, 0, n, before, UNBOUNDED, np.float32(0.0), 0, n,
                        d, width, keys, values, rows, scores, pitch, result,
                    )  # fmt: skip
            at += n

    return ragged


def _shapes(op: RaggedAttention, ins: Types) -> list[tuple[int, ...]]:
    """Of q, k and v, as [..., heads, positions, elements]."""
    operands: Any = ins[1:]
    return heads_first(_of(op), operands)


def _accepts(op: RaggedAttention, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or not t.size) for t in ins):
        return False
    q, k, v = _shapes(op, ins)
    return ins[1].dtype == F32_TYPE and len(q) > 2 and q == k and v[:-1] == q[:-1]


def _of(op: RaggedAttention) -> FusedAttention:
    assert isinstance(op.op, FusedAttention), "infer() has tested this"
    return op.op


@kernel(RaggedAttention, accepts=_accepts)
def attention_ragged(op: RaggedAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Blocks of queries of each row and head, as `attention_f32` has them."""
    of, mr = _of(op), target().rows
    q, _, v = _shapes(op, ins)
    heads, positions, d, width = *q[-3:], v[-1]
    layout = workspace(mr, positions, d, width)
    args: dict[str, Any] = {"lengths": In(0), "fault": Fault(0), "rows": ins[0].dims[0], "positions": positions}
    args |= {"heads": heads, "d": d, "width": width, "causal": int(of.causal), "scale": of.scale}
    args |= {"work": Scratch(layout.size * context.threads), "work_size": layout.size, "values_at": layout.values_at}
    args |= {"rows_at": layout.rows_at, "scores_at": layout.scores_at, "result_at": layout.result_at}
    args |= {"order": np.arange(d, dtype=np.int32)}
    places: list[tuple[str, Argument, tuple[int, ...], str]] = [("y", Out(0), outs[0].dims, of.y_layout)]
    args |= {"k_at": 4 * d * heads, "v_at": 8 * d * heads} if of.packed else {"k_at": 0, "v_at": 0}
    if of.packed:
        places += [(name, In(1), ins[1].dims, "SHD") for name in "qkv"]
    else:
        places += [(n, In(1 + i), ins[1 + i].dims, at) for i, (n, at) in enumerate(zip("qkv", of.layouts, strict=True))]
    for name, argument, dims, at in places:
        head = 4 * dims[-1] * (1 if at == "SHD" else dims[-2])
        args |= {name: argument, f"{name}_step": position_step(dims, at), f"{name}_head": head}
    return [Step(ragged_kernel(mr), args, heads * positions * (d + width) * KEY_COST > PARALLEL_FLOPS)]
