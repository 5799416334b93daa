"""The kernels that walk along the sequences of recurrent layers, one block of hidden units after another.

Weights that exceed the cache are read forwards and backwards in turn: the part that was read last is still there.

Threads either walk along different sequences, or share each step of one (``claims``): each takes the blocks of its own
part of the weights first, then what others have not begun, so nobody waits for a thread that is not running.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    atomic_add,
    atomic_compare_exchange,
    atomic_load,
    call_kernel,
    ceil_div,
    copy_bytes,
    fill_bytes,
    lane,
    lanes_below,
    load_i32,
    reduce_add,
    reduce_max,
    reduce_min,
    sched_yield,
    select,
    spin_pause,
    splat,
    split,
    store_f32,
    store_i32,
    store_i64,
    to_i32,
    vload_n,
    vmax,
    vmaximum,
    vmin,
    vminimum,
    vround,
    vstore_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import PAUSES_A_US
from bolt_numba.kernels.cpu.recurrent.recurrent_cells import (
    CELLS,
    FOURS,
    FUNCTIONS,
    GATES,
    HALVES,
    NUMBERS,
    PAIRS,
    STATE_HEAD,
    UNPIPELINED,
    Pipelining,
    state_products,
)
from bolt_numba.kernels.extents import Extents, Reach, box
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0, Inline, Native, inline, native

EXACT = frozenset({"contract", "nsz"})
"""No reciprocals: x / scale decides which way a half is rounded."""
SPINS = 100 * PAUSES_A_US
"""Pauses of a thread that waits for a step of another before it offers its processor."""

FIELDS = dict.fromkeys(
    ("x", "start", "r", "h0", "y", "last_h", "work", "c0", "last_c", "r_hidden", "reset_bias", "gates", "w_pipelined",
     "bias"), PTR
) | dict.fromkeys(
    ("w", "lengths", "claims", "rounded", "peepholes", "r_sums", "r_scales", "r_zeros"), PTR_OR_0
) | {"rounding": CODE} | dict.fromkeys(
    ("hidden", "inputs", "batch", "directions", "steps", "backward", "input_forget", "xt", "xb", "yt", "yd", "yb",
     "sd", "sb", "pd", "pt", "pb", "work_step", "rounded_step", "rounded_row"), I64
) | {"clip": F32}  # fmt: skip
"""Fields of all walks.

start: gates without the state's part: the biases when there is ``w`` (then the walk multiplies x itself), else the
input products, which a walk with `Pipelining` makes from ``w_pipelined`` and ``bias``; pd, pt, pb: bytes from
direction to direction, step to step and sequence to sequence there.  xt, xb; yt, yd, yb; sd, sb: those of x, y, states.
lengths: i32 of each sequence, or 0.  work: the gates of one block, of each thread, ``work_step`` bytes apart.  claims:
`share_lines` cache lines of zeros, or 0 when threads walk alone.  rounding: address of `quantize_state` when products
take the state in bytes, of `round_values` when they take pairs, else 0; rounded: room for that, and 64 bytes, of each
thread, ``rounded_row`` bytes a sequence.  r_sums (i32), r_scales, r_zeros (f32): of the columns of r in bytes, as
they are packed; or 0.
LSTM: c0, last_c, peepholes (gates input, output, forget, each like a state; or 0), input_forget.
GRU: reset_bias, or r_hidden and gates (3 rows of padded states for each sequence).
"""


# ---------------------------------------------------------------------------------------------------- sharing of steps


def share_lines(blocks: int) -> int:
    """Cache lines of `FIELDS` claims: how often each block was taken, then how many were done."""
    return blocks + 1


@inline
def share(p, tid, nthreads, blocks, groups):
    """First and last group of sequences, first and last block of a thread."""
    if p.claims != 0:
        j0, j1 = split(blocks, tid, nthreads)
        return 0, groups, j0, j1
    lo, hi = split(groups, tid, nthreads)
    return lo, hi, 0, blocks


@inline
def visit(q, j0, j1, blocks, step):
    """The q-th block that a thread looks at: its own ones, backwards in odd steps, then those of others."""
    own = j1 - j0
    if q >= own:
        return (j0 + q) % blocks
    return j1 - 1 - q if step & 1 else j0 + q


@inline
def claim(p, phase, j):
    """Whether this thread is the one that computes block ``j`` of a phase."""
    if p.claims == 0:
        return True
    at = p.claims + 64 * j
    return atomic_load(at) == phase and atomic_compare_exchange(at, phase, phase + 1)


@inline
def await_blocks(p, blocks, phase):
    """Wait until all blocks of the phases before are done."""
    if p.claims != 0:
        spins = 0
        while atomic_load(p.claims + 64 * blocks) < blocks * phase:
            spins += 1
            if spins < SPINS:
                spin_pause()
            else:
                sched_yield()


# ------------------------------------------------------------------------------------------------------------ the walk


@inline
def levels(v):
    return vmin(vmax(v, splat(np.float32(0))), splat(np.float32(255)))


@native(fastmath=EXACT, x=PTR, y=PTR, n=I64, extents=lambda a: {"x": 4 * a.n, "y": STATE_HEAD + a.n})
def quantize_state(p, tid, nthreads):
    """The n numbers at x as u8 of their own range and 0, behind a head.  Source: ONNX DynamicQuantizeLinear-11.

    x: f32 [n] · y: bytes [STATE_HEAD + n].
    """
    least, most = splat(np.float32(0)), splat(np.float32(0))
    for i in range(0, p.n, LANES):
        v = vload_n(p.x + 4 * i, p.n - i)  # the zeros of a tail are in the range anyway
        least, most = vminimum(least, v), vmaximum(most, v)
    low, high = reduce_min(least), reduce_max(most)
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero, total = levels(vround(splat(-low) / splat(scale))), splat(np.int32(0))
    for i in range(0, p.n, LANES):
        level = to_i32(levels(vround(vload_n(p.x + 4 * i, p.n - i) / splat(scale)) + zero))
        vstore_u8_n(p.y + STATE_HEAD + i, level, p.n - i)
        total = total + select(lanes_below(p.n - i), level, splat(np.int32(0)))
    store_f32(p.y, scale)
    store_i32(p.y + 4, lane(to_i32(zero), 0))
    store_i32(p.y + 8, reduce_add(total) - np.int32(p.n) * lane(to_i32(zero), 0))


@inline
def round_states(p, h, h_step, count, to):
    """Run the kernel ``p.rounding`` on the states of a tile; where the results are, ``p.rounded_row`` bytes apart."""
    made = to + 64  # behind the kernel's parameters
    for i in range(count):
        store_i64(to, h + i * h_step)
        store_i64(to + 8, made + p.rounded_row * i)
        store_i64(to + 16, p.hidden)
        call_kernel(p.rounding, to, 0, 1)
    return made


@native(to=PTR, nbytes=I64, extents=lambda a: {"to": a.nbytes})
def clear(p, tid, nthreads):
    """Zeros to: bytes [nbytes]."""
    fill_bytes(p.to, np.uint8(0), p.nbytes)


@inline
def moment(p, d, t, steps):
    """Index in time of step ``t``, and the distance to the step before."""
    if p.backward or d == 1:
        return steps - 1 - t, 1
    return t, -1


@inline
def after_end(p, d, b, steps):
    """A sequence shorter than the longest one: zeros behind it; one of no steps keeps its state."""
    for t in range(steps, p.steps):
        fill_bytes(p.y + t * p.yt + d * p.yd + b * p.yb, np.uint8(0), 4 * p.hidden)
    if steps == 0:
        state = d * p.sd + b * p.sb
        copy_bytes(p.last_h + state, p.h0 + state, 4 * p.hidden)
        if p.last_c != 0:
            copy_bytes(p.last_c + state, p.c0 + state, 4 * p.hidden)


def _computing(
    kind: str, vectors: int, rows: int, names: tuple[str, ...], pipelining: Pipelining, deep: int
) -> tuple[Any, int]:
    """Helper that computes one block in one stage of a step, and the number of stages."""
    made = CELLS[kind](vectors, rows, tuple(FUNCTIONS[n] for n in names), pipelining, deep)
    prepare0, prepare1 = (state_products(1, 1, pipelining, stage) for stage in (0, 1))
    first, second = made if isinstance(made, tuple) else (made, made)

    @inline
    def compute(p, work, d, group, j, t, steps, stage, count, x, h, h_step, start, y, state):
        block, nothing = d * ceil_div(p.hidden, vectors * LANES) + j, np.int64(0)
        if t < 0 and stage == 0:
            prepare0(p, d, block, t, 1, work, BYTES, work, BYTES, work, nothing, nothing, work)
        elif t < 0:
            prepare1(p, d, block, t, 1, work, BYTES, work, BYTES, work, nothing, nothing, work)
        elif stage == 0:
            first(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state)
        else:
            second(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state)

    return compute, 2 if isinstance(made, tuple) else 1


def _stepping(compute: Any, vectors: int, rows: int) -> Inline:
    """Helper that does a thread's part of one stage of a step."""

    @inline
    def one_stage(p, work, rounded, d, group, j0, j1, t, steps, stage, phase):
        parts, blocks = ceil_div(p.batch, rows), ceil_div(p.hidden, vectors * LANES)
        b = group % parts * rows
        count, state = min(p.batch - b, rows), d * p.sd + b * p.sb
        time, back = moment(p, d, t, steps)
        x, y = p.x + time * p.xt + b * p.xb, p.y + time * p.yt + d * p.yd + b * p.yb
        start = p.start + d * p.pd + time * p.pt + b * p.pb
        await_blocks(p, blocks, phase)
        h, h_step = (p.h0 + state, p.sb) if t == 0 else (y + back * p.yt, p.yb)
        if p.rounding != 0 and t >= 0:
            h, h_step = round_states(p, h, h_step, count, rounded), p.rounded_row
        done = 0
        for q in range(blocks):
            j = visit(q, j0, j1, blocks, t)
            if claim(p, phase, j):
                compute(p, work, d, group, j, t, steps, stage, count, x, h, h_step, start, y, state)
                done += 1
        if p.claims != 0:
            atomic_add(p.claims + 64 * blocks, done)

    return one_stage


def _walked(kind: str, vectors: int, rows: int, pipelining: Pipelining, deep: int) -> Extents:
    """Extents of `walk`."""
    part, gates = vectors * BYTES, GATES[kind]
    state_gates, kept = {"gru": 2}.get(kind, gates), {"gru_after": 4}.get(kind, gates)

    def reach(a: Any) -> dict[str, Reach]:
        blocks = -(-a.hidden // (vectors * LANES))
        h4, every = 4 * a.hidden, a.directions * blocks * part
        state = box(h4, (a.directions, a.sd), (a.batch, a.sb))
        cells = state if kind == "lstm" else 0
        depth = -(-a.hidden // abs(deep))
        rounded = STATE_HEAD + 4 * depth if deep == FOURS else -(-a.hidden // (2 * LANES)) * BYTES
        groups = a.directions * -(-a.batch // rows)
        return {
            "x": box(4 * a.inputs, (a.steps, a.xt), (a.batch, a.xb)) if pipelining.steps or a.w is not None else 0,
            "start": box(blocks * gates * part, (a.directions, a.pd), (a.steps, a.pt), (a.batch, a.pb)),
            "w": every * gates * a.inputs,
            "r": every * state_gates * depth,
            "h0": state,
            "y": box(h4, (a.steps, a.yt), (a.directions, a.yd), (a.batch, a.yb)),
            "last_h": state,
            "lengths": 4 * a.batch,
            "work": (a.threads - 1) * a.work_step + rows * kept * part,
            "claims": 64 * share_lines(blocks),
            "rounded": (a.threads - 1) * a.rounded_step + 64 + (rows - 1) * a.rounded_row + rounded,
            "c0": cells,
            "last_c": cells,
            "peepholes": 12 * a.directions * a.hidden if kind == "lstm" else 0,
            "r_hidden": every * a.hidden if kind == "gru" else 0,
            "reset_bias": every if kind == "gru_after" else 0,
            "gates": groups * rows * 3 * blocks * part if kind == "gru" else 0,
            "w_pipelined": every * gates * a.inputs if pipelining.steps else 0,
            "bias": every * gates if pipelining.steps else 0,
            **dict.fromkeys(("r_sums", "r_scales", "r_zeros"), every * gates if deep == FOURS else 0),
        }

    return reach


LABELS = {NUMBERS: "", PAIRS: "_bf16", FOURS: "_bytes", HALVES: "_f16"}


@cache
def walk(
    kind: str,
    vectors: int,
    rows: int,
    names: tuple[str, ...],
    pipelining: Pipelining = UNPIPELINED,
    deep: int = NUMBERS,
) -> Native:
    """Kernel of a ``kind`` of layer (a key of `CELLS`) with the given activations; deep: see `products`."""
    compute, stages = _computing(kind, vectors, rows, names, pipelining, deep)
    one_stage, before = _stepping(compute, vectors, rows), pipelining.steps

    def body(p, tid, nthreads):
        blocks, parts = ceil_div(p.hidden, vectors * LANES), ceil_div(p.batch, rows)
        lo, hi, j0, j1 = share(p, tid, nthreads, blocks, p.directions * parts)
        work, rounded, phase = p.work + p.work_step * tid, p.rounded + p.rounded_step * tid, 0
        for group in range(lo, hi):
            d, b = group // parts, group % parts * rows
            steps = p.steps if p.lengths == 0 else load_i32(p.lengths + 4 * b)
            for t in range(-before, steps):
                for stage in range(stages):
                    one_stage(p, work, rounded, d, group, j0, j1, t, steps, stage, phase)
                    phase += 1
            if j0 == 0:
                after_end(p, d, b, steps)

    body.__name__ = f"{kind}_walk_{vectors}x{rows}" + ("_pipelined" if before else "") + LABELS[deep]
    return native(fastmath=None, extents=_walked(kind, vectors, rows, pipelining, deep), **FIELDS)(body)
