"""Convolutions of channels with what stood before: lanes are channels for one position, positions for more."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    fill_bytes,
    fma,
    iota,
    load_f32,
    permute,
    select,
    splat,
    split,
    store_f32,
    vload,
    vload_n,
    vstore_n,
)
from bolt_numba.kernels.cpu.language.vmath import vsigmoid
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.linear import CausalConvWithState


def _reach(a: Numbers) -> dict[str, Reach]:
    rows = 4 * a.n * a.c
    return {
        "x": rows * a.t, "y": rows * a.t, "past": rows * a.held, "present": rows * a.held, "w": 4 * a.c * a.taps,
        "b": 4 * a.c, "work": a.threads * (4 * (a.held + a.t) + BYTES),
    }  # fmt: skip


@inline
def activated(v, active):
    return v * vsigmoid(v) if active else v


@inline
def column(rows, count, width, at):
    """Element number ``at`` of each of ``count`` rows of ``width`` elements, a row a lane: gathers take longer."""
    place, found = iota() * np.int32(width) + np.int32(at), splat(np.float32(0.0))
    for vector in range(width):
        own = place - np.int32(vector * LANES)
        row = vload_n(rows + vector * BYTES, count * width - vector * LANES)
        inside = (own >= np.int32(0)) & (own < np.int32(LANES))
        found = select(inside, permute(row, own & np.int32(LANES - 1)), found)
    return found


@inline
def one_position(p, at, count, w, channel):
    """A position of ``count`` channels, the first of which is number ``at`` of all images; weights by taps."""
    taps, held, old, new = p.taps, p.held, p.past + 4 * at * p.held, p.present + 4 * at * p.held
    total = vload_n(p.b + 4 * channel, count) if p.b else splat(np.float32(0.0))
    for tap in range(taps - 1 if p.past else 0):
        total = fma(vload_n(w + tap * p.w_tap, count), column(old, count, held, tap * p.dilation), total)
    total = fma(vload_n(w + (taps - 1) * p.w_tap, count), vload_n(p.x + 4 * at, count), total)
    vstore_n(p.y + 4 * at, activated(total, p.active), count)
    for i in range(0, count * held - 1, LANES):  # each state moves by one, and the last of all takes its x
        left = count * held - 1 - i
        vstore_n(new + 4 * i, vload_n(old + 4 * i + 4, left) if p.past else splat(np.float32(0.0)), left)
    for i in range(count if held else 0):
        store_f32(new + 4 * (i * held + held - 1), load_f32(p.x + 4 * (at + i)))


@native(
    x=PTR, w=PTR, b=PTR_OR_0, past=PTR_OR_0, y=PTR, present=PTR, work=PTR, n=I64, c=I64, t=I64, taps=I64, held=I64,
    dilation=I64, w_tap=I64, w_channel=I64, active=I64, extents=_reach,
)  # fmt: skip
def causal_convolution(p, tid, nthreads):
    """x, y: [n, c, t] · w: [c, taps] or turned, w_channel and w_tap bytes apart · b: [c] · past, present: [n, c, held].

    work: of each thread, a channel's past and x.
    """
    t, c, taps, held, blocks = p.t, p.c, p.taps, p.held, ceil_div(p.c, LANES)
    work = p.work + (4 * (held + t) + BYTES) * tid
    first, last = split(p.n * blocks, tid, nthreads)
    for item in range(first, last):
        channel = item % blocks * LANES
        count, at = min(LANES, c - channel), item // blocks * c + channel
        w = p.w + channel * p.w_channel
        if t == 1 and p.w_channel == 4:
            one_position(p, at, count, w, channel)
        else:
            for i in range(count):
                row = at + i
                if p.past:
                    copy_bytes(work, p.past + 4 * row * held, 4 * held)
                else:
                    fill_bytes(work, np.uint8(0), 4 * held)
                copy_bytes(work + 4 * held, p.x + 4 * row * t, 4 * t)
                bias = load_f32(p.b + 4 * (channel + i)) if p.b else np.float32(0.0)
                for j in range(0, t, LANES):
                    total = splat(bias)
                    for tap in range(taps):
                        weight, seen = (
                            load_f32(w + i * p.w_channel + tap * p.w_tap),
                            vload(work + 4 * (j + tap * p.dilation)),
                        )
                        total = fma(splat(weight), seen, total)
                    vstore_n(p.y + 4 * (row * t + j), activated(total, p.active), t - j)
                copy_bytes(p.present + 4 * row * held, work + 4 * t, 4 * held)


def _by_taps(w: Array) -> Array:
    return np.ascontiguousarray(w[:, 0].T)


def _accepts(op: CausalConvWithState, ins: Types) -> bool:
    return all(t is None or (t.is_static and t.dtype == F32) for t in ins)


@kernel(
    CausalConvWithState, accepts=_accepts,
    states=lambda op, ins: frozenset({(3, 1)}),  # the state is changed where it lies
)  # fmt: skip
def causal(op: CausalConvWithState, ins: Types, outs: Outs, context: Context) -> list[Step]:
    (n, c, t), held, (taps, weights) = ins[0].dims, outs[1].dims[2], (ins[1].dims[2], ins[1].known)
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "present": Out(1)}
    args |= {name: In(i) if len(ins) > i and ins[i] is not None else None for i, name in ((2, "b"), (3, "past"))}
    args |= {"work": Scratch(context.threads * (4 * (held + t) + BYTES)), "n": n, "c": c, "t": t, "held": held}
    args |= {"w": In(1), "w_tap": 4, "w_channel": 4 * taps}
    if weights is not None:
        args |= {"w": context.packed(weights, "taps", _by_taps), "w_tap": 4 * c, "w_channel": 4}
    args |= {"taps": taps, "dilation": op.dilation, "active": int(op.swish)}
    return [Step(causal_convolution, args, outs[0].nbytes + outs[1].nbytes > PAYS_BYTES)]
