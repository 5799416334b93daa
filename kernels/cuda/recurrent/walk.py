"""Kernels that walk along the sequences of recurrent layers.

A block has some sequences and some hidden units of one direction.  A warp multiplies one row of weights for each gate
of its unit with the states of all sequences of the block, which lie in shared memory.  Then one lane for each sequence
applies the activations.  A launch is either one step of time, shared by many blocks, or all of them, where a block has
all hidden units and nobody else needs to know its state.

States are f32 whatever the dtype of the operands, so rounding does not add up along the sequence.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import (
    F32,
    I64,
    PTR,
    PTR_OR_0,
    WIDE_BLOCK,
    CudaKernel,
    Macro,
    ceil_div,
    cuda_kernel,
    inline,
)
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    cuda,
    load4_shared_f32,
    load_f32,
    load_i32,
    load_shared_f32,
    shared_address,
    static,
    store_f32,
)
from bolt_numba.kernels.cuda.language.warp import warp_sum
from bolt_numba.kernels.cuda.recurrent.functions import FUNCTIONS
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers, Reach, box

WARPS = WIDE_BLOCK // 32

FIELDS: dict[str, Any] = (
    dict.fromkeys(("pre", "r", "h0", "hs", "y", "last_h"), PTR)
    | dict.fromkeys(("b", "lengths"), PTR_OR_0)
    | dict.fromkeys(("t0", "t1", "steps", "n", "h", "directions", "d0", "count", "backward", "units", "pt", "pb", "yt",
                     "yd", "yb", "sd", "sb"), I64)
    | dict.fromkeys(("clip", "fa", "fb", "ga", "gb"), F32)
)  # fmt: skip
"""Fields of all walks.

pre: f32 [rows][directions][gates][h], input products; pt, pb: rows from step to step and from sequence to sequence.
r: [directions][gates][h][h] · b: [directions][2 gates][h], or 0 · lengths: i32 [n], or 0 · h0: first states, or 0 ·
hs: f32 [2][directions][n][h], states after odd and after even steps.  yt, yd, yb; sd, sb: bytes between steps,
directions and sequences of y and of the states that are operands or results.  t0, t1: steps of this launch, of
``steps``; d0, count: its directions; units: those of a block.  fa, fb, ga, gb: alpha and beta of the first two
activations.
"""
FIELDS["h0"] = PTR_OR_0


def products_with(gates: int, rows: int, dtype: str, vector: int) -> tuple[Any, Any]:
    """Helpers: sums of ``gates`` products of a unit with ``rows`` states in every lane; one sum of a lane's row.

    vector: weights that a lane loads at once, 1 or 4; h is a multiple of it.
    """
    load, size, is_vector = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype], vector == 4
    load4, weights, states = getattr(lang, f"load4_{dtype}"), gates * vector, rows * vector
    dots, clear = Macro("dots", gates, rows, vector), Macro("fill", gates * rows, 0.0)

    @inline
    def multiply(acc, r, gate_step, state, h, lane):
        """acc[gate * rows + row] = r[gate] · state[row]; gates lie ``gate_step`` bytes apart."""
        a, b = cuda.local.array(weights, np.float32), cuda.local.array(states, np.float32)
        shared = shared_address(state)
        clear(acc)
        for k in range(vector * lane, np.uint32(h), np.uint32(32 * vector)):
            at = r + size * np.int64(k)
            for g in range(gates):
                if static(is_vector):
                    a[4 * g], a[4 * g + 1], a[4 * g + 2], a[4 * g + 3] = load4(at + g * gate_step)
                else:
                    a[g] = load(at + g * gate_step)
            for row in range(rows):
                to = np.uint32(shared + 4 * (row * np.uint32(h) + k))
                if static(is_vector):
                    b[4 * row], b[4 * row + 1], b[4 * row + 2], b[4 * row + 3] = load4_shared_f32(to)
                else:
                    b[row] = load_shared_f32(to)
            dots(acc, a, b)
        for i in range(gates * rows):
            acc[i] = warp_sum(acc[i])

    @inline
    def mine(acc, gate, lane):
        v = acc[gate * rows]
        for row in range(1, rows):
            v = acc[gate * rows + row] if lane == row else v
        return v

    return multiply, mine


def states_to_shared(rows: int, dtype: str) -> Inline:
    """Helper that copies the states of a block's sequences to shared memory."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def fetch(state, h0, hs, t, first, n, h, directions, d, sd, sb):
        cuda.syncthreads()
        for row in range(rows):
            b = first + row
            for k in range(np.uint32(cuda.threadIdx.x), np.uint32(h), np.uint32(WIDE_BLOCK)):
                v = np.float32(0)
                if b < n:
                    if t > 0:
                        v = load_f32(hs + 4 * ((((t & 1) * directions + d) * n + b) * h + k))
                    elif h0 != 0:
                        v = load(h0 + d * sd + b * sb + size * np.int64(k))
                state[np.uint32(row) * np.uint32(h) + k] = v
        cuda.syncthreads()

    return fetch


@inline
def whereabouts(d0, rows, units):
    """Lane and warp of a thread; direction, first sequence and first unit of its block."""
    lane, warp = np.uint32(cuda.threadIdx.x) & np.uint32(31), cuda.threadIdx.x >> 5
    return lane, warp, d0 + cuda.blockIdx.z, np.int64(cuda.blockIdx.x) * rows, cuda.blockIdx.y * units


@inline
def bounded(x, clip):
    x = clip if x > clip else x
    return -clip if x < -clip else x


@inline
def moment(lengths, b, t, steps, backwards):
    """Whether a sequence has a step ``t``, and its index in time."""
    length = np.int64(load_i32(lengths + 4 * b)) if lengths != 0 else steps
    active = t < length
    if backwards and active:
        return active, length - 1 - t
    return active, t


def _reach(size: int, gates: int, kind: str) -> Callable[[Any], dict[str, Reach]]:
    def reach(a: Numbers) -> dict[str, Reach]:
        row = size * a.h
        state = box(row, (a.directions, a.sd), (a.n, a.sb))
        every = a.directions * a.n * a.h
        found: dict[str, Reach] = {
            "pre": 4 * a.steps * a.n * a.directions * gates * a.h,
            "r": a.directions * gates * a.h * row,
            "b": a.directions * 2 * gates * row,
            "lengths": 4 * a.n,
            "h0": state,
            "hs": 8 * every,
            "y": box(row, (a.steps, a.yt), (a.directions, a.yd), (a.n, a.yb)),
            "last_h": state,
        }
        if kind == "lstm":
            found |= {"c0": state, "cs": 4 * every, "last_c": state, "p": 3 * a.directions * row}
        if kind == "gru":
            found |= {"kept": 8 * every}
        return found

    return reach


def declared(kind: str, gates: int, rows: int, dtype: str, **more: Any) -> Callable[[Callable[..., None]], CudaKernel]:
    """Decorator of a walk's body."""

    def wrap(body: Callable[..., None]) -> CudaKernel:
        body.__name__ = f"{kind}_{rows}_{dtype}"
        return cuda_kernel(
            threads=WIDE_BLOCK, blocks=lambda a: (ceil_div(a.n, rows), ceil_div(a.h, a.units), a.count),
            shared=lambda a: 4 * rows * a.h, extents=_reach(lang.SIZES[dtype], gates, kind), **FIELDS, **more,
        )(body)  # fmt: skip

    return wrap


@functools.cache
def rnn_walk(rows: int, names: tuple[str, ...], dtype: str, vector: int) -> CudaKernel:
    """One gate: h = f(x + h r^T + biases) for blocks of ``rows`` sequences."""
    (multiply, mine), f = products_with(1, rows, dtype, vector), FUNCTIONS[names[0]]
    fetch = states_to_shared(rows, dtype)
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype]

    @declared("rnn", 1, rows, dtype)
    def rnn(
        pre, r, h0, hs, y, last_h, b, lengths, t0, t1, steps, n, h, directions, d0, count, backward, units, pt, pb, yt,
        yd, yb, sd, sb, clip, fa, fb, ga, gb,
    ):  # fmt: skip
        state, acc = cuda.shared.array(0, np.float32), cuda.local.array(rows, np.float32)
        lane, warp, d, first, begin = whereabouts(d0, rows, units)
        q = first + lane
        for t in range(t0, t1):
            fetch(state, h0, hs, t, first, n, h, directions, d, sd, sb)
            for u in range(begin + warp, min(begin + units, h), WARPS):
                multiply(acc, r + size * (d * h + u) * h, 0, state, h, lane)
                if lane < rows and q < n:
                    active, time = moment(lengths, q, t, steps, backward != 0 or d == 1)
                    v, out = state[lane * np.uint32(h) + np.uint32(u)], np.float32(0)
                    if active:
                        s = load_f32(pre + 4 * (((time * pt + q * pb) * directions + d) * h + u)) + mine(acc, 0, lane)
                        if b != 0:
                            s += load(b + size * (2 * d * h + u)) + load(b + size * ((2 * d + 1) * h + u))
                        out = f(bounded(s, clip), fa, fb)
                        v = out
                    store(y + time * yt + d * yd + q * yb + size * u, out)
                    store_f32(hs + 4 * (((((t + 1) & 1) * directions + d) * n + q) * h + u), v)
                    if t == steps - 1:
                        store(last_h + d * sd + q * sb + size * u, v)

    return rnn


@functools.cache
def lstm_walk(rows: int, names: tuple[str, ...], dtype: str, vector: int) -> CudaKernel:
    """Gates i, o, f, c; c0, last_c: as h0, last_h; cs: f32 [directions][n][h]; p: [directions][3][h], or 0."""
    (multiply, mine), fetch = products_with(4, rows, dtype, vector), states_to_shared(rows, dtype)
    f, g, act = (FUNCTIONS[name] for name in names)
    load, store = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}")
    size, sums = lang.SIZES[dtype], 4 * rows

    @inline
    def gate(acc, pre, b, at, row, k, h, u, lane):
        """Gate ``k`` before its activation, but for peepholes."""
        s = load_f32(pre + 4 * ((4 * row + k) * h + u)) + mine(acc, k, lane)
        if b != 0:
            s += load(b + size * ((8 * at + k) * h + u)) + load(b + size * ((8 * at + 4 + k) * h + u))
        return s

    @inline
    def peephole(p, d, k, h, u, c):
        return load(p + size * ((3 * d + k) * h + u)) * c if p != 0 else np.float32(0)

    @declared(
        "lstm", 4, rows, dtype, c0=PTR_OR_0, cs=PTR, last_c=PTR, p=PTR_OR_0, input_forget=I64, aa=F32, ab=F32
    )  # fmt: skip
    def lstm(
        pre, r, h0, hs, y, last_h, b, lengths, t0, t1, steps, n, h, directions, d0, count, backward, units, pt, pb, yt,
        yd, yb, sd, sb, clip, fa, fb, ga, gb, c0, cs, last_c, p, input_forget, aa, ab,
    ):  # fmt: skip
        state, acc = cuda.shared.array(0, np.float32), cuda.local.array(sums, np.float32)
        lane, warp, d, first, begin = whereabouts(d0, rows, units)
        q = first + lane
        for t in range(t0, t1):
            fetch(state, h0, hs, t, first, n, h, directions, d, sd, sb)
            for u in range(begin + warp, min(begin + units, h), WARPS):
                multiply(acc, r + size * (4 * d * h + u) * h, size * h * h, state, h, lane)
                if lane < rows and q < n:
                    active, time = moment(lengths, q, t, steps, backward != 0 or d == 1)
                    v, out = state[lane * np.uint32(h) + np.uint32(u)], np.float32(0)
                    c, cell = np.float32(0), cs + 4 * ((d * n + q) * h + u)
                    if t > 0:
                        c = load_f32(cell)
                    elif c0 != 0:
                        c = load(c0 + d * sd + q * sb + size * u)
                    if active:
                        row = (time * pt + q * pb) * directions + d
                        i = gate(acc, pre, b, d, row, 0, h, u, lane) + peephole(p, d, 0, h, u, c)
                        e = gate(acc, pre, b, d, row, 2, h, u, lane) + peephole(p, d, 2, h, u, c)
                        i = f(bounded(i, clip), fa, fb)
                        e = np.float32(1) - i if input_forget != 0 else f(bounded(e, clip), fa, fb)
                        c = e * c + i * g(bounded(gate(acc, pre, b, d, row, 3, h, u, lane), clip), ga, gb)
                        o = gate(acc, pre, b, d, row, 1, h, u, lane) + peephole(p, d, 1, h, u, c)
                        out = f(bounded(o, clip), fa, fb) * act(c, aa, ab)
                        v = out
                    store(y + time * yt + d * yd + q * yb + size * u, out)
                    store_f32(hs + 4 * (((((t + 1) & 1) * directions + d) * n + q) * h + u), v)
                    store_f32(cell, c)
                    if t == steps - 1:
                        store(last_h + d * sd + q * sb + size * u, v)
                        store(last_c + d * sd + q * sb + size * u, c)

    return lstm
