"""STFT of real signals: as many frames as a vector has f64 are transformed together, so no step shuffles lanes.

Frames are transposed on their way in and out.  A real frame of even length is a complex one of half the length.  All is
computed in f64: in f32 the small frequencies beside a large one would be lost, and a logarithm shows them.
Source: Stockham's algorithm without reordering, with radices 8, 4, 2 and odd primes; Cooley and Tukey 1965, Cochran et
al. 1967.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    even_lanes,
    fma,
    interleave_high,
    interleave_low,
    load_f32,
    load_f64,
    load_i64,
    odd_lanes,
    prefetch_write,
    splat_f64,
    split,
    vload,
    vload_f64,
    vload_n,
    vload_widened,
    vstore,
    vstore_n,
    vstore_narrowed,
)
from bolt_numba.kernels.cpu.machine import L1, PAYS_FLOPS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.signal import STFT

LINES = LANES // 2
"""f64 of a vector: lines or frames that are transformed together."""
ROUNDS = LINES.bit_length() - 1
"""Rounds of shuffling that transpose `LINES` vectors of f32."""
SQUARE = LINES * BYTES
GREATEST_PRIME, LONGEST_LINE = 61, 1 << 14
STAGE = 14
COUNT, SIDE, STEP, FAR, Y_SIDE, Y_STEP, NEXT, TURN, TURNS, WAVES, PARTS, BLOCKS, ASIDE = range(8, 8 * STAGE, 8)
"""Where a row of `STAGE` numbers has what follows its radix; all but counts are bytes.

The parts of a stage, and groups of each; in x from part to part, and between numbers of a group; in y from group to
group, from part to part, and between results of a group; from part to part in the turns; where these and the waves of
the radix begin.  Then stages that run block by block, one or two, and blocks one behind and one beside the other.
"""
PAIR = 64
"""Numbers of a block at most: of two stages, between which it stays in the first cache."""
NEAR = PAIR * 2 * BYTES


@inline
def gather_frames(x, hop, last, window, n, step, to, square, y, y_step):
    """Samples of `LINES` frames times the window, f64: those of one time in a vector each, ``step`` bytes apart.

    last: the last frame there is, counted from the first of these; it stands for those behind it.  y: where results
    will go, ``y_step`` bytes apart, which come into the cache meanwhile.
    """
    for i in range(0, n, LANES):
        left, made, free = n - i, square, square + SQUARE
        for f in range(LINES):
            at = x + 4 * (min(f, last) * hop + i)
            prefetch_write(y + min(f, last) * y_step + 4 * i)
            vstore(made + f * BYTES, vload(at) if left >= LANES else vload_n(at, left))
        for _ in range(ROUNDS):
            for k in range(0, SQUARE // 2, BYTES):
                one, two = vload(made + k), vload(made + SQUARE // 2 + k)
                vstore(free + 2 * k, interleave_low(one, two))
                vstore(free + 2 * k + BYTES, interleave_high(one, two))
            made, free = free, made
        for j in range(min(left, LANES)):
            v = vload_widened(made + j * BYTES // 2)
            if window:
                v = v * splat_f64(np.float64(load_f32(window + 4 * (i + j))))
            vstore(to + (i + j) * step, v)


@inline
def scatter_frames(x, n, frames, y, step, square):
    """Half vectors of ``n`` times, f32, to rows of so many frames, ``step`` bytes apart; reads up to a square more."""
    for i in range(0, n, LANES):
        made, free = x + i * BYTES // 2, square
        for _ in range(ROUNDS):
            for k in range(0, SQUARE // 2, BYTES):
                one, two = vload(made + 2 * k), vload(made + 2 * k + BYTES)
                vstore(free + k, even_lanes(one, two))
                vstore(free + SQUARE // 2 + k, odd_lanes(one, two))
            made, free = free, square + SQUARE if free == square else square
        for f in range(frames):
            if n - i >= LANES:
                vstore(y + f * step + 4 * i, vload(made + f * BYTES))
            else:
                vstore_n(y + f * step + 4 * i, vload(made + f * BYTES), n - i)


@inline
def turned(to, re, im, turn, is_last):
    """Store a complex number times a turn; in the last stage all turns are 1."""
    if is_last:
        vstore(to, re)
        vstore(to + BYTES, im)
    else:
        c, d = splat_f64(load_f64(turn)), splat_f64(load_f64(turn + 8))
        vstore(to, fma(re, c, -(im * d)))
        vstore(to + BYTES, fma(re, d, im * c))


@inline
def places(x, y, row, p, q):
    """Of the first number and the first result of group ``q`` of part ``p``."""
    at = x + p * load_i64(row + STEP) + 2 * BYTES * q
    return at, y + p * load_i64(row + Y_STEP) + q * load_i64(row + Y_SIDE)


@inline
def radix_two(x, y, row, turns, is_last):
    far, next_one = load_i64(row + FAR), load_i64(row + NEXT)
    for p in range(load_i64(row + COUNT)):
        for q in range(load_i64(row + SIDE)):
            at, to = places(x, y, row, p, q)
            re, im, re2, im2 = vload_f64(at), vload_f64(at + BYTES), vload_f64(at + far), vload_f64(at + far + BYTES)
            vstore(to, re + re2)
            vstore(to + BYTES, im + im2)
            turned(to + next_one, re - re2, im - im2, turns + p * load_i64(row + TURN) + 16, is_last)


@inline
def radix_four(x, y, row, turns, is_last):
    far, next_one = load_i64(row + FAR), load_i64(row + NEXT)
    for p in range(load_i64(row + COUNT)):
        turn = turns + p * load_i64(row + TURN)
        for q in range(load_i64(row + SIDE)):
            at, to = places(x, y, row, p, q)
            a, b, e, f = vload_f64(at), vload_f64(at + BYTES), vload_f64(at + 2 * far), vload_f64(at + 2 * far + BYTES)
            sum_re, sum_im, less_re, less_im = a + e, b + f, a - e, b - f
            at += far
            a, b, e, f = vload_f64(at), vload_f64(at + BYTES), vload_f64(at + 2 * far), vload_f64(at + 2 * far + BYTES)
            odd_re, odd_im, other_re, other_im = a + e, b + f, a - e, b - f
            vstore(to, sum_re + odd_re)
            vstore(to + BYTES, sum_im + odd_im)
            turned(to + next_one, less_re + other_im, less_im - other_re, turn + 16, is_last)
            turned(to + 2 * next_one, sum_re - odd_re, sum_im - odd_im, turn + 32, is_last)
            turned(to + 3 * next_one, less_re - other_im, less_im + other_re, turn + 48, is_last)


@inline
def radix_eight(x, y, row, turns, is_last):
    far, next_one, root = load_i64(row + FAR), load_i64(row + NEXT), splat_f64(0.5**0.5)
    for p in range(load_i64(row + COUNT)):
        turn = turns + p * load_i64(row + TURN)
        for q in range(load_i64(row + SIDE)):
            at, to = places(x, y, row, p, q)
            a, b = vload_f64(at), vload_f64(at + BYTES)
            e, f = vload_f64(at + 4 * far), vload_f64(at + 4 * far + BYTES)
            sum_re, sum_im, less_re, less_im = a + e, b + f, a - e, b - f
            a, b = vload_f64(at + 2 * far), vload_f64(at + 2 * far + BYTES)
            e, f = vload_f64(at + 6 * far), vload_f64(at + 6 * far + BYTES)
            re0, im0, re2, im2 = sum_re + a + e, sum_im + b + f, sum_re - (a + e), sum_im - (b + f)
            re1, im1, re3, im3 = less_re + (b - f), less_im - (a - e), less_re - (b - f), less_im + (a - e)
            at += far
            a, b = vload_f64(at), vload_f64(at + BYTES)
            e, f = vload_f64(at + 4 * far), vload_f64(at + 4 * far + BYTES)
            sum_re, sum_im, less_re, less_im = a + e, b + f, a - e, b - f
            a, b = vload_f64(at + 2 * far), vload_f64(at + 2 * far + BYTES)
            e, f = vload_f64(at + 6 * far), vload_f64(at + 6 * far + BYTES)
            u, v = sum_re + (a + e), sum_im + (b + f)
            vstore(to, re0 + u)
            vstore(to + BYTES, im0 + v)
            turned(to + 4 * next_one, re0 - u, im0 - v, turn + 64, is_last)
            u, v = sum_im - (b + f), (a + e) - sum_re
            turned(to + 2 * next_one, re2 + u, im2 + v, turn + 32, is_last)
            turned(to + 6 * next_one, re2 - u, im2 - v, turn + 96, is_last)
            sum_re, sum_im = less_re + (b - f), less_im - (a - e)
            u, v = (sum_re + sum_im) * root, (sum_im - sum_re) * root
            turned(to + next_one, re1 + u, im1 + v, turn + 16, is_last)
            turned(to + 5 * next_one, re1 - u, im1 - v, turn + 80, is_last)
            sum_re, sum_im = less_re - (b - f), less_im + (a - e)
            u, v = (sum_im - sum_re) * root, -(sum_re + sum_im) * root
            turned(to + 3 * next_one, re3 + u, im3 + v, turn + 48, is_last)
            turned(to + 7 * next_one, re3 - u, im3 - v, turn + 112, is_last)


@inline
def radix_odd(x, y, row, turns, waves, is_last):
    """waves: cosines and sines of the r-th parts of a circle.  Numbers k and r - k share theirs, but for a sign.

    So their sums and differences, which take their places in x, serve results j and r - j.
    """
    far, next_one, r = load_i64(row + FAR), load_i64(row + NEXT), load_i64(row)
    half = r // 2
    for p in range(load_i64(row + COUNT)):
        turn = turns + p * load_i64(row + TURN)
        for q in range(load_i64(row + SIDE)):
            at, to = places(x, y, row, p, q)
            first_re, first_im = vload_f64(at), vload_f64(at + BYTES)
            re, im = first_re, first_im
            for k in range(1, half + 1):
                one, two = at + k * far, at + (r - k) * far
                a, b, e, f = vload_f64(one), vload_f64(one + BYTES), vload_f64(two), vload_f64(two + BYTES)
                re, im = re + (a + e), im + (b + f)
                vstore(one, a + e)
                vstore(one + BYTES, b + f)
                vstore(two, a - e)
                vstore(two + BYTES, b - f)
            vstore(to, re)
            vstore(to + BYTES, im)
            for j in range(1, half + 1):
                re, im, less_re, less_im, step = first_re, first_im, splat_f64(0.0), splat_f64(0.0), 0
                for k in range(1, half + 1):
                    step += j
                    step -= r if step >= r else 0
                    c, d = splat_f64(load_f64(waves + 16 * step)), splat_f64(load_f64(waves + 16 * step + 8))
                    one, two = at + k * far, at + (r - k) * far
                    re, im = fma(vload_f64(one), c, re), fma(vload_f64(one + BYTES), c, im)
                    less_re, less_im = fma(vload_f64(two), d, less_re), fma(vload_f64(two + BYTES), d, less_im)
                turned(to + j * next_one, re - less_im, im + less_re, turn + 16 * j, is_last)
                turned(to + (r - j) * next_one, re + less_im, im - less_re, turn + 16 * (r - j), is_last)


@inline
def stage(x, y, row, turns, waves, is_last):
    r = load_i64(row)
    if r == 8:
        radix_eight(x, y, row, turns, is_last)
    elif r == 4:
        radix_four(x, y, row, turns, is_last)
    elif r == 2:
        radix_two(x, y, row, turns, is_last)
    else:
        radix_odd(x, y, row, turns, waves, is_last)


@inline
def transform(a, b, near, stages, count, tables):
    """Fourier transform of complex vectors of f64 at a; b, near: workspace.  Gives the one of a, b where the result is.

    near: `NEAR` bytes, where a pair of stages has what is between them, block after block.
    """
    i = 0
    while i < count:
        pair = stages + 8 * STAGE * i
        parts, side = load_i64(pair + PARTS), load_i64(pair + ASIDE)
        blocks = load_i64(pair + BLOCKS)
        for first in range(blocks):
            for aside in range(0, 2 * BYTES * side, 2 * BYTES):
                for part in range(parts):
                    row = pair + 8 * STAGE * part
                    step = load_i64(row) * first
                    x = near if part else a + 2 * BYTES * side * first + aside
                    y = near if part + 1 < parts else b + load_i64(row + NEXT) * step + aside
                    turns, waves = tables + load_i64(row + TURNS) + 16 * step, tables + load_i64(row + WAVES)
                    if blocks * load_i64(row + COUNT) == 1:  # code of its own
                        stage(x, y, row, turns, waves, True)
                    else:
                        stage(x, y, row, turns, waves, False)
        a, b = b, a
        i += parts
    return a


@inline
def give_frequency(y, re, im):
    """Store half vectors of f32; where a part is not finite, both become NaN."""
    nothing = fma(re, splat_f64(0.0), im * 0.0)
    vstore_narrowed(y, re + nothing)
    vstore_narrowed(y + BYTES // 2, im + nothing)


@inline
def real_spectrum(z, y, n, bins, halves):
    """Frequencies of real frames of ``n`` samples from those of their complex halves; halves: turns by n-th parts.

    y: half vectors of f32.  Frequencies k and n / 2 - k come from the same two numbers.
    """
    half = n // 2
    for k in range(half // 2 + 1):
        one, two = z + 2 * BYTES * k, z + 2 * BYTES * ((half - k) if k else 0)
        re, im, re2, im2 = vload_f64(one), vload_f64(one + BYTES), vload_f64(two), vload_f64(two + BYTES)
        c, d = splat_f64(load_f64(halves + 16 * k)), splat_f64(load_f64(halves + 16 * k + 8))
        u, v, re, im = im + im2, re2 - re, (re + re2) * 0.5, (im - im2) * 0.5
        turned_re, turned_im = fma(u, c, -(v * d)) * 0.5, fma(u, d, v * c) * 0.5
        give_frequency(y + BYTES * k, re + turned_re, im + turned_im)
        give_frequency(y + BYTES * (half - k), re - turned_re, turned_im - im)
    for k in range(half + 1, bins):
        at = y + BYTES * (n - k)
        vstore_narrowed(y + BYTES * k, vload_widened(at))
        vstore_narrowed(y + BYTES * k + BYTES // 2, -vload_widened(at + BYTES // 2))


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

    room: for each thread `NEAR`, which holds two squares, samples, as much again, and frequencies.
    """
    n, bins, frames = p.n, p.bins, p.frames
    is_odd = n % 2
    square = p.room + tid * p.room_step
    a = square + NEAR
    b, c = a + n * BYTES * (1 + is_odd), a + 2 * n * BYTES * (1 + is_odd)
    blocks = ceil_div(frames, LINES)
    lo, hi = split(p.signals * blocks, tid, nthreads)
    for at in range(lo, hi):
        signal = at // blocks
        first = (at - signal * blocks) * LINES
        x = p.x + 4 * (signal * p.length + first * p.hop)
        y = p.y + 8 * (signal * frames + first) * bins
        gather_frames(x, p.hop, frames - 1 - first, p.window, n, BYTES * (1 + is_odd), a, square, y, 8 * bins)
        if is_odd:
            for i in range(n):
                vstore(a + (2 * i + 1) * BYTES, splat_f64(0.0))
        z = transform(a, b, square, p.stages, p.count, p.tables)
        if is_odd:
            for k in range(bins):
                give_frequency(c + BYTES * k, vload_f64(z + 2 * BYTES * k), vload_f64(z + 2 * BYTES * k + BYTES))
        else:
            real_spectrum(z, c, n, bins, p.tables + p.halves_at)
        scatter_frames(c, 2 * bins, min(LINES, frames - first), y, 8 * bins, square)


@record(frozen=True)
class Stages:
    """What `transform` reads: rows of `STAGE` numbers, and all turns and waves; halves_at: those of `real_spectrum`."""

    rows: Array
    tables: Array
    halves_at: int


def factors(n: int) -> list[int]:
    """Radices of a transform, a prime that is too large first, powers of two last: the last stage has no turns."""
    twos, odd = (n & -n).bit_length() - 1, []
    n >>= twos
    for r in range(3, GREATEST_PRIME + 1, 2):
        while n % r == 0:
            odd.append(r)
            n //= r
    few = [2] if twos == 1 else [4] * (2 if twos % 3 == 1 else twos % 3 == 2)
    return [n] * (n > 1) + odd + few + [8] * ((twos - sum(r.bit_length() - 1 for r in few)) // 3)


def turns_of(steps: Array, n: int) -> Array:
    """Cosine and sine of minus so many n-th parts of a circle, f64."""
    angles = steps.reshape(-1) % n * (-2 * np.pi / n)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pure
@lru_cache(maxsize=32)
def stages(n: int, is_real: bool = True) -> Stages:
    """Of frames of ``n`` samples; those of real numbers and even length are complex ones of half the length."""
    rest = n // 2 if is_real and n % 2 == 0 else n
    rows: list[tuple[int, ...]] = []
    parts, stride, at = [turns_of(np.arange(n // 2 + 1), n)], 1, 16 * (n // 2 + 1)
    radices, unit = factors(rest), 2 * BYTES
    while radices:
        pair = radices[: 2 if 4 * BYTES * rest > L1 and math.prod(radices[:2]) <= PAIR else 1]
        blocks, side = (rest // math.prod(pair), stride) if len(pair) == 2 else (1, 1)
        for i, r in enumerate(pair):
            m = rest // r
            turns, waves = turns_of(np.outer(np.arange(m), np.arange(r)), rest), turns_of(np.arange(r), r)
            far, y_side, y_step, after = unit * stride * m, unit, unit * r * stride, unit * stride
            counts = m, stride, unit * stride
            if len(pair) == 2 and i == 0:
                counts, y_step, after = (pair[1], 1, unit * stride * blocks), unit * r, unit
            elif len(pair) == 2:
                counts, far, y_side = (1, pair[0], 0), unit * pair[0], unit * side
            turn = 16 * r * blocks if i == 0 and len(pair) == 2 else 16 * r
            rows.append((r, *counts, far, y_side, y_step, after, turn, at, at + turns.nbytes, len(pair), blocks, side))
            parts += [turns, waves]
            at += turns.nbytes + waves.nbytes
            rest, stride = m, stride * r
        radices = radices[len(pair) :]
    return Stages(np.array(rows, np.int64).reshape(-1, STAGE), np.concatenate(parts), 0)


def _accepts(op: STFT, ins: Types) -> bool:
    signal, step = ins[0], ins[1]
    if not signal.is_static or signal.dtype != F32 or signal.dims[-1] != 1:
        return False
    if step.known is None or not signal.size:
        return False
    n = _frame(ins)
    return n is not None and 1 < n <= LONGEST_LINE and max(factors(n)) <= GREATEST_PRIME


def _frame(ins: Types) -> int | None:
    """Samples of a frame, as far as known."""
    window, length = (ins[i] if i < len(ins) else None for i in (2, 3))
    if window is not None:
        return window.dims[0] if window.dtype == F32 and window.is_static else None
    if length is not None:
        return None if length.known is None else int(length.known.reshape(-1)[0])
    return ins[0].dims[1]


@kernel(STFT, accepts=_accepts)
def stft(op: STFT, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Real f32 signals; frames of known length without large prime factors."""
    signal, step, n = ins[0], tested(ins[1].known), tested(_frame(ins))
    signals, frames, bins, _ = outs[0].dims
    counts = signals, signal.dims[1], frames, int(step.reshape(-1)[0])
    return [frames_step(n, bins, counts, In(2) if len(ins) > 2 and ins[2] is not None else None, context)]


def frames_step(n: int, bins: int, counts: tuple[int, int, int, int], window: In | None, context: Context) -> Step:
    """Transforms of frames of ``n`` samples; counts: signals, samples of each, frames of each, samples between them."""
    signals, length, frames, hop = counts
    made = stages(n)
    room = NEAR + SQUARE + 2 * n * BYTES * (1 + n % 2) + bins * BYTES
    return Step(
        stft_frames,
        {
            "x": In(0), "y": Out(0), "window": window, "stages": made.rows, "tables": made.tables,
            "room": Scratch(room * context.threads), "signals": signals, "length": length, "frames": frames,
            "hop": hop, "n": n, "bins": bins, "count": made.rows.shape[0], "halves_at": made.halves_at,
            "room_step": room,
        },
        signals * frames * n * 20 >= PAYS_FLOPS,
    )  # fmt: skip
