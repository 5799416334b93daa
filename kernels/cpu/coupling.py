"""Probabilities of classes from those of their pairs: each lane follows the iteration of a row of its own."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.selects import either
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    any_lane,
    ceil_div,
    copy_bytes,
    fma,
    iota,
    select,
    splat,
    split,
    vabs,
    vgather,
    vload,
    vmaximum,
    vmin,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.jit import F32, I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.data.ml import PairwiseCoupling

MAX_CLASSES = 256
"""Classes up to which the matrices of `LANES` rows are 4 MiB."""
ROUNDS = 100
"""Rounds at least that the iteration may take, as in the reference; there are as many as classes if that is more."""


@inline
def matrix(pairs, at, q, k):
    """Q of the rows whose pairs begin at ``pairs + 4 * at``: [k, k] vectors."""
    for i in range(k):
        vstore(q + (i * k + i) * BYTES, splat(np.float32(0)))
    for i in range(k):
        for j in range(i + 1, k):
            wins = vgather(pairs, at)
            loses = np.float32(1) - wins
            both = -(loses * wins)
            vstore(q + (i * k + j) * BYTES, both)
            vstore(q + (j * k + i) * BYTES, both)
            own = q + (i * k + i) * BYTES
            vstore(own, fma(loses, loses, vload(own)))
            own = q + (j * k + j) * BYTES
            vstore(own, fma(wins, wins, vload(own)))
            pairs += 4


@inline
def slopes(q, p, slope, k):
    """Write Q p to slope; gives p Q p and the greatest distance of an element of slope from it."""
    level = splat(np.float32(0))
    for t in range(k):
        total = splat(np.float32(0))
        for j in range(k):
            total = fma(vload(q + (t * k + j) * BYTES), vload(p + j * BYTES), total)
        vstore(slope + t * BYTES, total)
        level = fma(vload(p + t * BYTES), total, level)
    worst = splat(np.float32(0))
    for t in range(k):
        worst = vmaximum(worst, vabs(vload(slope + t * BYTES) - level))
    return level, worst


@inline
def improve(q, p, slope, k, level, live):
    """One round over all classes; rows that are not live stay."""
    none = splat(np.float32(0))
    for t in range(k):
        own, down = vload(q + (t * k + t) * BYTES), vload(slope + t * BYTES)
        move = select(live, (level - down) / own, none)
        vstore(p + t * BYTES, vload(p + t * BYTES) + move)
        scale = np.float32(1) / (move + np.float32(1))
        level = fma(move, fma(move, own, down + down), level) * scale * scale
        for j in range(k):
            to = slope + j * BYTES
            vstore(to, fma(move, vload(q + (t * k + j) * BYTES), vload(to)) * scale)
            vstore(p + j * BYTES, vload(p + j * BYTES) * scale)


@native(
    pairs=PTR, y=PTR, work=PTR, step=I64, n=I64, k=I64, near=F32,
    extents=lambda a: {"pairs": 2 * a.n * a.k * (a.k - 1), "y": 4 * a.n * a.k, "work": a.step * a.threads},
)  # fmt: skip
def couple(p, tid, nthreads):
    """near: distance at which a row has arrived.  work: for each thread matrix, slopes and results of `LANES` rows.

    pairs: f32 [n][k (k - 1) / 2] · y: f32 [n][k].
    """
    n, k, near = p.n, p.k, p.near
    q = p.work + tid * p.step
    slope = q + k * k * BYTES
    found = slope + k * BYTES
    count = k * (k - 1) // 2
    first, last = split(ceil_div(n, LANES), tid, nthreads)
    for row in range(first * LANES, last * LANES, LANES):
        width = min(LANES, n - row)
        matrix(p.pairs + 4 * row * count, vmin(iota(), splat(np.int32(width - 1))) * np.int32(count), q, k)
        for t in range(k):
            vstore(found + t * BYTES, splat(np.float32(1) / np.float32(k)))
        for _ in range(max(ROUNDS, k)):
            level, worst = slopes(q, found, slope, k)
            live = ~(worst < near)
            if not any_lane(live):
                break
            improve(q, found, slope, k, level, live)
        for t in range(k):
            for i in range(width):
                copy_bytes(p.y + 4 * ((row + i) * k + t), found + t * BYTES + 4 * i, 4)


def _accepts(op: PairwiseCoupling, ins: Types) -> bool:
    return 2 <= op.classes <= MAX_CLASSES


@kernel(PairwiseCoupling, accepts=_accepts)
def pairwise_coupling(op: PairwiseCoupling, ins: Types, outs: Outs, context: Context) -> list[Step]:
    n, k = outs[0].dims
    step = (k + 2) * k * BYTES
    parallel = (n > LANES) & (n * k * k > PAYS_ELEMENTS // 16)
    work = Scratch(either(parallel, context.threads, 1) * step)
    args: dict[str, Argument] = {
        "pairs": In(0), "y": Out(0), "work": work, "step": step, "n": n, "k": k, "near": 0.005 / k,
    }  # fmt: skip
    return [Step(couple, args, parallel)]
