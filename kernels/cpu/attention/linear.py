"""Linear attention: the state of a head, some of its columns at a time, stays in the nearest cache for all positions.

As a position changes it, its products with that position's query and with the next one's key are made, so each number
of it is read once a position.  Whole blocks of positions would take as many multiply-adds, and this is bound by them.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    load_f32,
    prefetch,
    splat,
    split,
    tile_add_tile,
    tile_load,
    tile_load_n,
    tile_scale,
    tile_store,
    tile_store_n,
    tile_zeros,
    vload_n,
    vstore,
)
from bolt_numba.kernels.cpu.language.vmath import vexp
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import F32 as NUMBER
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.linear import LinearAttention

VECTORS = 4 if LANES == 16 else 2
COLUMNS = VECTORS * LANES
"""Of a state that a thread takes at a time: 128 rows of them fit the nearest cache."""
FACTORS = 2
"""Rows that a position has: of decay, of decay times key."""


def _pitch(d: int) -> int:
    """Bytes of a row of a key's elements in workspace."""
    return -(-d // LANES) * BYTES


def _room(d: int) -> int:
    """Bytes of workspace of a thread: columns of a state, the factors of two positions."""
    return 4 * d * COLUMNS + 2 * FACTORS * _pitch(d)


def _reach(a: Numbers) -> dict[str, Reach]:
    rows, state = 4 * a.n * a.t, 4 * a.n * a.states * a.d * a.e
    return {
        "q": rows * a.q_heads * a.d, "k": rows * a.k_heads * a.d, "v": rows * a.states * a.e, "past": state,
        "present": state, "decay": rows * a.decays, "beta": rows * a.betas, "y": rows * a.heads * a.e,
        "work": a.threads * _room(a.d),
    }  # fmt: skip


@inline
def factors(to, pitch, decay, each, k, following, d):
    """Rows exp(decay), and that times k.  each: of one decay, whether by element.  following: where the next key is."""
    kept = splat(np.float32(1.0))
    if decay and not each:
        kept = vexp(splat(load_f32(decay)))
    for i in range(0, d, LANES):
        prefetch(following + 4 * i)
        if each:
            kept = vexp(vload_n(decay + 4 * i, d - i))
        vstore(to + 4 * i, kept)
        vstore(to + pitch + 4 * i, kept * vload_n(k + 4 * i, d - i))


@inline
def plus(t, row, factor):
    return tile_add_tile(t, tile_scale(row, factor))


@native(
    q=PTR, k=PTR, v=PTR, past=PTR_OR_0, decay=PTR_OR_0, beta=PTR_OR_0, y=PTR, present=PTR, work=PTR, n=I64, t=I64,
    heads=I64, q_heads=I64, k_heads=I64, states=I64, d=I64, e=I64, decays=I64, betas=I64, scale=NUMBER, extents=_reach,
)  # fmt: skip
def linear_attention(p, tid, nthreads):
    """Of q [n, t, q_heads * d], k [n, t, k_heads * d], v [n, t, states * e] -> y [n, t, heads * e].

    past, present: [n, states, d, e], may be one.  decay: [n, t, decays] · beta: [n, t, betas] · work: see `_room`.
    """
    q_heads, k_heads, states, heads, d, e, t = p.q_heads, p.k_heads, p.states, p.heads, p.d, p.e, p.t
    pitch, blocks, group, scale = ceil_div(d, LANES) * BYTES, ceil_div(e, COLUMNS), heads // states, p.scale
    state = p.work + (4 * d * COLUMNS + 2 * FACTORS * pitch) * tid
    each = p.decays > states
    first, last = split(p.n * states * blocks, tid, nthreads)
    for item in range(first, last):
        pair, column = item // blocks, item % blocks * COLUMNS
        b, h = pair // states, pair % states
        left = e - column
        q = p.q + 4 * d * (b * t * q_heads + h * q_heads // states)
        k = p.k + 4 * d * (b * t * k_heads + h * k_heads // states)
        v, y = p.v + 4 * (e * (b * t * states + h) + column), p.y + 4 * (e * (b * t * heads + h * group) + column)
        now, after = state + 4 * d * COLUMNS, state + 4 * d * COLUMNS + FACTORS * pitch
        decay = p.decay + 4 * (b * t * p.decays + h * (p.decays // states)) if p.decay else 0
        beta = p.beta + 4 * (b * t * p.betas + h * p.betas // states) if p.beta else 0
        next_k, next_q, next_v = 4 * d * k_heads, 4 * d * q_heads, 4 * e * states
        factors(now, pitch, decay, each, k, k + next_k, d)
        old = tile_zeros(1, VECTORS)
        for i in range(d):
            row = tile_zeros(1, VECTORS)
            if p.past:
                row = tile_load_n(1, VECTORS, p.past + 4 * ((pair * d + i) * e + column), 0, left)
            tile_store(row, state + 4 * i * COLUMNS, 0)
            old = plus(old, row, load_f32(now + pitch + 4 * i))
        for step in range(t):
            new = tile_load_n(1, VECTORS, v + step * next_v, 0, left)
            for j in range(VECTORS):
                prefetch(v + (step + 1) * next_v + j * BYTES)
            if beta:
                new = tile_scale(plus(new, old, np.float32(-1.0)), load_f32(beta + 4 * step * p.betas))
            key, query = k + step * next_k, q + step * next_q
            if step + 1 < t:
                following = decay + 4 * (step + 1) * p.decays if decay else 0
                factors(after, pitch, following, each, key + next_k, key + 2 * next_k, d)
            old, seen = tile_zeros(1, VECTORS), tile_zeros(1, VECTORS)
            for i in range(d):
                row = tile_scale(tile_load(1, VECTORS, state + 4 * i * COLUMNS, 0), load_f32(now + 4 * i))
                row = plus(row, new, load_f32(key + 4 * i))
                tile_store(row, state + 4 * i * COLUMNS, 0)
                old = plus(old, row, load_f32(after + pitch + 4 * i))
                seen = plus(seen, row, load_f32(query + 4 * i))
            tile_store_n(tile_scale(seen, scale), y + 4 * step * e * heads, 0, left)
            for other in range(1, group):
                seen = tile_zeros(1, VECTORS)
                for i in range(d):
                    row = tile_load(1, VECTORS, state + 4 * i * COLUMNS, 0)
                    seen = plus(seen, row, load_f32(query + 4 * (other * d + i)))
                tile_store_n(tile_scale(seen, scale), y + 4 * e * (step * heads + other), 0, left)
            now, after = after, now
        for i in range(d):
            row = tile_load(1, VECTORS, state + 4 * i * COLUMNS, 0)
            tile_store_n(row, p.present + 4 * ((pair * d + i) * e + column), 0, left)


def _accepts(op: LinearAttention, ins: Types) -> bool:
    return all(t is None or (t.is_static and t.dtype == F32) for t in ins)


@kernel(
    LinearAttention, accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1)}),  # the state is changed where it lies
)  # fmt: skip
def linear(op: LinearAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    (n, t, _), (_, states, d, e) = ins[0].dims, outs[1].dims
    past, decay, beta = (i if len(ins) > i and ins[i] is not None else None for i in (3, 4, 5))
    decay, beta = decay if op.is_gated else None, beta if op.is_delta else None
    given = {"past": past, "decay": decay, "beta": beta}
    args: dict[str, Argument] = {"q": In(0), "k": In(1), "v": In(2), "y": Out(0), "present": Out(1)}
    args |= {name: None if at is None else In(at) for name, at in given.items()}
    args |= {"work": Scratch(context.threads * _room(d)), "n": n, "t": t, "heads": op.heads, "q_heads": op.q_num_heads}
    args |= {"k_heads": ins[1].dims[2] // d, "states": states, "d": d, "e": e, "scale": op.scale or 1 / math.sqrt(d)}
    args |= {"decays": ins[4].dims[2] if decay else 0, "betas": ins[5].dims[2] if beta else 0}
    return [Step(linear_attention, args, outs[1].nbytes * (t + 1) > PAYS_BYTES)]
