"""Kernels that walk along the sequences of GRU layers; see `kernels.cuda.recurrent.walk`."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, load_f32, store_f32
from bolt_numba.kernels.cuda.recurrent.functions import FUNCTIONS
from bolt_numba.kernels.cuda.recurrent.walk import (
    WARPS,
    bounded,
    declared,
    moment,
    products_with,
    states_to_shared,
    whereabouts,
)
from bolt_numba.kernels.declare import Inline


def _biases(dtype: str) -> Inline:
    """Helper: gate ``k`` of a unit without the state's part, and with both biases or with the input's alone."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def entering(pre, b, d, row, k, h, u, both):
        s = load_f32(pre + 4 * ((3 * row + k) * h + u))
        if b != 0:
            s += load(b + size * ((6 * d + k) * h + u))
            if both:
                s += load(b + size * ((6 * d + 3 + k) * h + u))
        return s

    return entering


@functools.cache
def gru_after_walk(rows: int, names: tuple[str, ...], dtype: str, vector: int) -> CudaKernel:
    """Gates z, r, h, where r multiplies the product of the state (linear_before_reset)."""
    (multiply, mine), entering = products_with(3, rows, dtype, vector), _biases(dtype)
    fetch = states_to_shared(rows, dtype)
    f, g = (FUNCTIONS[name] for name in names)
    load, store = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}")
    size, sums = lang.SIZES[dtype], 3 * rows

    @declared("gru_after", 3, rows, dtype)
    def gru_after(
        pre, r, h0, hs, y, last_h, b, lengths, t0, t1, steps, n, h, directions, d0, count, backward, units, pt, pb, yt,
        yd, yb, sd, sb, clip, fa, fb, ga, gb,
    ):  # fmt: skip
        state, acc = cuda.shared.array(0, np.float32), cuda.local.array(sums, np.float32)
        lane, warp, d, first, begin = whereabouts(d0, rows, units)
        q = first + lane
        for t in range(t0, t1):
            fetch(state, h0, hs, t, first, n, h, directions, d, sd, sb)
            for u in range(begin + warp, min(begin + units, h), WARPS):
                multiply(acc, r + size * (3 * d * h + u) * h, size * h * h, state, h, lane)
                if lane < rows and q < n:
                    active, time = moment(lengths, q, t, steps, backward != 0 or d == 1)
                    v, out = state[lane * np.uint32(h) + np.uint32(u)], np.float32(0)
                    if active:
                        row, seen = (time * pt + q * pb) * directions + d, mine(acc, 2, lane)
                        z = f(bounded(entering(pre, b, d, row, 0, h, u, True) + mine(acc, 0, lane), clip), fa, fb)
                        reset = f(bounded(entering(pre, b, d, row, 1, h, u, True) + mine(acc, 1, lane), clip), fa, fb)
                        if b != 0:
                            seen += load(b + size * ((6 * d + 5) * h + u))
                        fresh = g(bounded(entering(pre, b, d, row, 2, h, u, False) + reset * seen, clip), ga, gb)
                        out = (np.float32(1) - z) * fresh + z * v
                        v = out
                    store(y + time * yt + d * yd + q * yb + size * u, out)
                    store_f32(hs + 4 * (((((t + 1) & 1) * directions + d) * n + q) * h + u), v)
                    if t == steps - 1:
                        store(last_h + d * sd + q * sb + size * u, v)

    return gru_after


@functools.cache
def gru_walk(rows: int, names: tuple[str, ...], dtype: str, vector: int) -> CudaKernel:
    """Gates z, r, h, where r multiplies the state, so a step has two stages: z and r * h, then the new state.

    kept: f32 [2][directions][n][h], z and r * h.  s0, s1: stages of this launch.
    """
    (multiply, mine), (once, own) = products_with(2, rows, dtype, vector), products_with(1, rows, dtype, vector)
    fetch = states_to_shared(rows, dtype)
    f, g = (FUNCTIONS[name] for name in names)
    entering, store, size, sums = _biases(dtype), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype], 2 * rows

    @declared("gru", 3, rows, dtype, kept=PTR, s0=I64, s1=I64)
    def gru(
        pre, r, h0, hs, y, last_h, b, lengths, t0, t1, steps, n, h, directions, d0, count, backward, units, pt, pb, yt,
        yd, yb, sd, sb, clip, fa, fb, ga, gb, kept, s0, s1,
    ):  # fmt: skip
        state, acc = cuda.shared.array(0, np.float32), cuda.local.array(sums, np.float32)
        lane, warp, d, first, begin = whereabouts(d0, rows, units)
        q, every = first + lane, 4 * directions * n * h
        for turn in range(2 * t0 + s0, 2 * (t1 - 1) + s1):
            t, second = turn >> 1, (turn & 1) != 0
            if second:
                fetch(state, 0, kept + every, 2, first, n, h, directions, d, sd, sb)
            else:
                fetch(state, h0, hs, t, first, n, h, directions, d, sd, sb)
            for u in range(begin + warp, min(begin + units, h), WARPS):
                base = r + size * (3 * d * h + u) * h
                if second:
                    once(acc, base + 2 * size * h * h, 0, state, h, lane)
                else:
                    multiply(acc, base, size * h * h, state, h, lane)
                if lane < rows and q < n:
                    active, time = moment(lengths, q, t, steps, backward != 0 or d == 1)
                    row, cell = (time * pt + q * pb) * directions + d, kept + 4 * ((d * n + q) * h + u)
                    if second:
                        out, v = np.float32(0), load_f32(hs + 4 * ((((t & 1) * directions + d) * n + q) * h + u))
                        if active:
                            z = load_f32(cell)
                            new = entering(pre, b, d, row, 2, h, u, True) + own(acc, 0, lane)
                            fresh = g(bounded(new, clip), ga, gb)
                            out = (np.float32(1) - z) * fresh + z * v
                            v = out
                        store(y + time * yt + d * yd + q * yb + size * u, out)
                        store_f32(hs + 4 * (((((t + 1) & 1) * directions + d) * n + q) * h + u), v)
                        if t == steps - 1:
                            store(last_h + d * sd + q * sb + size * u, v)
                    else:
                        v = state[lane * np.uint32(h) + np.uint32(u)]
                        z = f(bounded(entering(pre, b, d, row, 0, h, u, True) + mine(acc, 0, lane), clip), fa, fb)
                        reset = f(bounded(entering(pre, b, d, row, 1, h, u, True) + mine(acc, 1, lane), clip), fa, fb)
                        store_f32(cell, z)
                        store_f32(cell + every, reset * v)
                        if t == 0:
                            store_f32(hs + 4 * ((d * n + q) * h + u), v)

    return gru
