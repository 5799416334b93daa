"""STFT of real signals: as many frames as a vector has lanes are transformed together, so no step shuffles lanes.

Frames are transposed on their way in and out.  A real frame of even length is a complex one of half the length.
Source: Stockham's algorithm without reordering, with radices 4, 2 and odd primes; Cooley and Tukey 1965, Cochran et
al. 1967.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    fma,
    interleave_high,
    interleave_low,
    load_f32,
    load_i64,
    splat,
    split,
    vload,
    vload_n,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.signal import STFT
from bolt_numba.types import F32, Array, TensorType

ROUNDS = LANES.bit_length() - 1
"""Rounds of interleaving that transpose a square of vectors."""
SQUARE = LANES * BYTES
GREATEST_PRIME, LONGEST = 61, 1 << 14
STAGE = 5
"""Numbers of a stage: radix, parts, stride, and where its turns and the waves of its radix begin, in bytes."""


@inline
def transpose_square(a, b):
    """Lanes become vectors in a square of `LANES` vectors at a; b: workspace.  Gives the one where the result is."""
    for _ in range(ROUNDS):
        for i in range(0, SQUARE // 2, BYTES):
            one, two = vload(a + i), vload(a + SQUARE // 2 + i)
            vstore(b + 2 * i, interleave_low(one, two))
            vstore(b + 2 * i + BYTES, interleave_high(one, two))
        a, b = b, a
    return a


@inline
def gather_frames(x, hop, last, window, n, step, to, square):
    """Samples of `LANES` frames times the window, those of one time in a vector each, ``step`` bytes apart.

    last: the last frame there is, counted from the first of these; it stands for those behind it.
    """
    for i in range(0, n, LANES):
        left = n - i
        for f in range(LANES):
            at = x + 4 * (min(f, last) * hop + i)
            v = vload(at) if left >= LANES else vload_n(at, left)
            if window:
                v = v * (vload(window + 4 * i) if left >= LANES else vload_n(window + 4 * i, left))
            vstore(square + f * BYTES, v)
        made = transpose_square(square, square + SQUARE)
        for j in range(min(left, LANES)):
            vstore(to + (i + j) * step, vload(made + j * BYTES))


@inline
def radix_two(x, y, m, s, turns):
    for p in range(m):
        c, d = splat(load_f32(turns + 16 * p + 8)), splat(load_f32(turns + 16 * p + 12))
        for q in range(s):
            at, far, to = x + 2 * BYTES * (q + s * p), 2 * BYTES * s * m, y + 2 * BYTES * (q + 2 * s * p)
            re, im, re2, im2 = vload(at), vload(at + BYTES), vload(at + far), vload(at + far + BYTES)
            vstore(to, re + re2)
            vstore(to + BYTES, im + im2)
            u, v, to = re - re2, im - im2, to + 2 * BYTES * s
            vstore(to, fma(u, c, -(v * d)))
            vstore(to + BYTES, fma(u, d, v * c))


@inline
def turned(to, re, im, turn):
    """Store a complex number times a turn."""
    c, d = splat(load_f32(turn)), splat(load_f32(turn + 4))
    vstore(to, fma(re, c, -(im * d)))
    vstore(to + BYTES, fma(re, d, im * c))


@inline
def radix_four(x, y, m, s, turns):
    far, next_one = 2 * BYTES * s * m, 2 * BYTES * s
    for p in range(m):
        turn = turns + 32 * p
        for q in range(s):
            at, to = x + 2 * BYTES * (q + s * p), y + 2 * BYTES * (q + 4 * s * p)
            a, b, e, f = vload(at), vload(at + BYTES), vload(at + 2 * far), vload(at + 2 * far + BYTES)
            sum_re, sum_im, less_re, less_im = a + e, b + f, a - e, b - f
            at += far
            a, b, e, f = vload(at), vload(at + BYTES), vload(at + 2 * far), vload(at + 2 * far + BYTES)
            odd_re, odd_im, other_re, other_im = a + e, b + f, a - e, b - f
            vstore(to, sum_re + odd_re)
            vstore(to + BYTES, sum_im + odd_im)
            turned(to + next_one, less_re + other_im, less_im - other_re, turn + 8)
            turned(to + 2 * next_one, sum_re - odd_re, sum_im - odd_im, turn + 16)
            turned(to + 3 * next_one, less_re - other_im, less_im + other_re, turn + 24)


@inline
def radix_any(x, y, r, m, s, turns, waves):
    """waves: cosines and sines of the r-th parts of a circle."""
    far = 2 * BYTES * s * m
    for p in range(m):
        for q in range(s):
            at, to = x + 2 * BYTES * (q + s * p), y + 2 * BYTES * (q + r * s * p)
            for j in range(r):
                re, im, step = vload(at), vload(at + BYTES), 0
                for k in range(1, r):
                    step += j
                    step -= r if step >= r else 0
                    c, d = splat(load_f32(waves + 8 * step)), splat(load_f32(waves + 8 * step + 4))
                    u, v = vload(at + k * far), vload(at + k * far + BYTES)
                    re, im = fma(u, c, fma(-v, d, re)), fma(u, d, fma(v, c, im))
                turned(to + 2 * BYTES * s * j, re, im, turns + 8 * (p * r + j))


@inline
def transform(a, b, stages, count, tables):
    """Fourier transform of complex vectors at a; b: workspace.  Gives the one where the result is."""
    for i in range(count):
        row = stages + 8 * STAGE * i
        r, m, s = load_i64(row), load_i64(row + 8), load_i64(row + 16)
        turns, waves = tables + load_i64(row + 24), tables + load_i64(row + 32)
        if r == 4:
            radix_four(a, b, m, s, turns)
        elif r == 2:
            radix_two(a, b, m, s, turns)
        else:
            radix_any(a, b, r, m, s, turns, waves)
        a, b = b, a
    return a


@inline
def real_spectrum(z, y, n, bins, halves):
    """Frequencies of a real frame of ``n`` samples from those of its complex half; halves: turns by n-th parts."""
    half = n // 2
    for k in range(bins):
        place, sign = (k, np.float32(0.5)) if k <= half else (n - k, np.float32(-0.5))
        one, two = z + 2 * BYTES * (place if place < half else 0), z + 2 * BYTES * ((half - place) if place else 0)
        re, im, re2, im2 = vload(one), vload(one + BYTES), vload(two), -vload(two + BYTES)
        c, d = splat(load_f32(halves + 8 * place)), splat(load_f32(halves + 8 * place + 4))
        u, v = im - im2, re2 - re
        vstore(y + 2 * BYTES * k, (re + re2 + fma(u, c, -(v * d))) * np.float32(0.5))
        vstore(y + 2 * BYTES * k + BYTES, (im + im2 + fma(u, d, v * c)) * sign)


@inline
def scatter_frames(x, n, frames, y, step, square):
    """Vectors of ``n`` times to rows of so many frames, ``step`` bytes apart."""
    for i in range(0, n, LANES):
        for j in range(min(n - i, LANES)):
            vstore(square + j * BYTES, vload(x + (i + j) * BYTES))
        made = transpose_square(square, square + SQUARE)
        for f in range(frames):
            if n - i >= LANES:
                vstore(y + f * step + 4 * i, vload(made + f * BYTES))
            else:
                vstore_n(y + f * step + 4 * i, vload(made + f * BYTES), n - i)


def _reached(a: Any) -> dict[str, Reach]:
    return {
        "x": 4 * ((a.signals - 1) * a.length + (a.frames - 1) * a.hop + a.n),
        "window": 4 * a.n,
        "y": 8 * a.signals * a.frames * a.bins,
        "stages": 8 * STAGE * a.count,
        "tables": a.tables.nbytes,
        "room": a.threads * a.room_step,
    }


@native(
    fastmath=None, extents=_reached, x=PTR, y=PTR, stages=PTR, tables=PTR, room=PTR, window=PTR_OR_0,
    **dict.fromkeys(("signals", "length", "frames", "hop", "n", "bins", "count", "halves_at", "room_step"), I64),
)  # fmt: skip
def stft_frames(p, tid, nthreads):
    """[signals, length] f32 to [signals, frames, bins] pairs.

    room: for each thread two squares, and three times 2 n vectors and a square more.
    """
    n, bins, frames = p.n, p.bins, p.frames
    square = p.room + tid * p.room_step
    a = square + 2 * SQUARE
    b, c = a + 2 * n * BYTES + SQUARE, a + 2 * (2 * n * BYTES + SQUARE)
    is_odd = n % 2
    blocks = ceil_div(frames, LANES)
    lo, hi = split(p.signals * blocks, tid, nthreads)
    for at in range(lo, hi):
        signal = at // blocks
        first = (at - signal * blocks) * LANES
        x = p.x + 4 * (signal * p.length + first * p.hop)
        y = p.y + 8 * (signal * frames + first) * bins
        gather_frames(x, p.hop, frames - 1 - first, p.window, n, BYTES * (1 + is_odd), a, square)
        if is_odd:
            for i in range(n):
                vstore(a + (2 * i + 1) * BYTES, splat(np.float32(0)))
        z = transform(a, b, p.stages, p.count, p.tables)
        if not is_odd:
            real_spectrum(z, c, n, bins, p.tables + p.halves_at)
            z = c
        scatter_frames(z, 2 * bins, min(LANES, frames - first), y, 8 * bins, square)


@record(frozen=True)
class Stages:
    """What `transform` reads: rows of `STAGE` numbers, and all turns and waves; halves_at: those of `real_spectrum`."""

    rows: Array
    tables: Array
    halves_at: int


def factors(n: int) -> list[int]:
    """Radices of a transform, fours first."""
    made = []
    for r in (4, 2, *range(3, GREATEST_PRIME + 1, 2)):
        while n % r == 0:
            made.append(r)
            n //= r
    return [*made, n] if n > 1 else made


def turns_of(steps: Array, n: int) -> Array:
    """Cosine and sine of minus so many n-th parts of a circle."""
    angles = steps.reshape(-1) % n * (-2 * np.pi / n)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(F32)


@pure
@lru_cache(maxsize=32)
def stages(n: int, is_real: bool = True) -> Stages:
    """Of frames of ``n`` samples; those of real numbers and even length are complex ones of half the length."""
    rest = n // 2 if is_real and n % 2 == 0 else n
    rows: list[tuple[int, ...]] = []
    parts, stride, at = [turns_of(np.arange(n // 2 + 1), n)], 1, 8 * (n // 2 + 1)
    for r in factors(rest):
        m = rest // r
        turns, waves = turns_of(np.outer(np.arange(m), np.arange(r)), rest), turns_of(np.arange(r), r)
        rows.append((r, m, stride, at, at + turns.nbytes))
        parts += [turns, waves]
        at += turns.nbytes + waves.nbytes
        rest, stride = m, stride * r
    return Stages(np.array(rows, np.int64).reshape(-1, STAGE), np.concatenate(parts), 0)


def _accepts(op: Any, ins: Types) -> bool:
    signal, step = ins[0], ins[1]
    if signal is None or not signal.is_static or signal.dtype != F32 or signal.dims[-1] != 1:
        return False
    if step is None or step.known is None or not signal.size:
        return False
    n = _frame(ins)
    return n is not None and 1 < n <= LONGEST and factors(n)[-1] <= GREATEST_PRIME


def _frame(ins: Types) -> int | None:
    """Samples of a frame, as far as known."""
    window, length = (ins[i] if i < len(ins) else None for i in (2, 3))
    if window is not None:
        return window.dims[0] if window.dtype == F32 and window.is_static else None
    if length is not None:
        return None if length.known is None else int(length.known.reshape(-1)[0])
    return None if ins[0] is None else ins[0].dims[1]


@kernel(STFT, accepts=_accepts)
def stft(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Real f32 signals; frames of known length without large prime factors."""
    signal, step, n = ins[0], ins[1], _frame(ins)
    assert signal is not None
    assert step is not None
    assert step.known is not None
    assert n is not None
    signals, frames, bins, _ = outs[0].dims
    made = stages(n)
    room = 2 * SQUARE + 3 * (2 * n * BYTES + SQUARE)
    return [
        Step(
            stft_frames,
            {
                "x": In(0), "y": Out(0), "window": In(2) if len(ins) > 2 and ins[2] is not None else None,
                "stages": made.rows, "tables": made.tables, "room": Scratch(room * context.threads),
                "signals": signals, "length": signal.dims[1], "frames": frames, "hop": int(step.known.reshape(-1)[0]),
                "n": n, "bins": bins, "count": made.rows.shape[0], "halves_at": made.halves_at, "room_step": room,
            },
            signals * frames * n * 20 >= PAYS_FLOPS,
        )
    ]  # fmt: skip
