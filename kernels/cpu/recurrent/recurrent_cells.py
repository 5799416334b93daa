"""One time step of LSTM, GRU and RNN for one block of hidden units: the parts of `recurrent_walk`.

A block is ``vectors`` vectors of units; the gates of a block are one register tile of ``rows`` sequences, so that each
weight that is read serves several sums, and there are enough of them to hide the latency of an addition.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    fma,
    load_f32,
    load_i32,
    rows_strided,
    splat,
    tile_dot_rows_bf16,
    tile_dot_rows_bytes,
    tile_load,
    tile_rank1,
    tile_rank1_rows_f16,
    tile_row,
    tile_store,
    tile_zeros,
    to_f32,
    vabs,
    vload,
    vload_i32,
    vload_n,
    vmax,
    vmin,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.vmath import vsigmoid, vtanh
from bolt_numba.kernels.cpu.machine import PREFETCH_STEPS
from bolt_numba.kernels.jit import Inline, inline

GATES = {"lstm": 4, "rnn": 1, "gru_after": 3, "gru": 3}
"""Kinds of layers, and the gates of their input products."""


@inline
def softsign(v):
    return v / (vabs(v) + 1.0)


@inline
def relu(v):
    return vmax(splat(np.float32(0)), v)


@inline
def hard_sigmoid(v):
    return vmin(splat(np.float32(1)), vmax(splat(np.float32(0)), v * np.float32(0.2) + np.float32(0.5)))


FUNCTIONS = {"sigmoid": vsigmoid, "tanh": vtanh, "relu": relu, "softsign": softsign, "hardsigmoid": hard_sigmoid}
"""Activations that walks know, by the lower-case names of ONNX, with its defaults of alpha and beta."""


@inline
def bounded(p, v):
    return vmin(splat(p.clip), vmax(splat(-p.clip), v))


NUMBERS, PAIRS, FOURS, HALVES = 1, 2, 4, -2
"""How deep packed weights are: what a lane holds of K, one f32, two bfloat16 or four bytes; or of two rows of f16."""


def products(rows: int, nv: int, deep: int = NUMBERS) -> Inline:
    """``run(count, to, ldt, start, lds, x, ldx, n, w)``: to = start + x times w, for ``count`` rows of ``nv`` vectors.

    x: ``n`` numbers a row, or twice as many of `HALVES`; w: [n][nv] vectors; ldt, lds, ldx: bytes between rows.  count:
    1 or ``rows``.  deep: x is of what the lanes of w hold; `FOURS` are multiplied by `state_products` alone.
    """

    def of_pairs(height: int) -> Inline:
        @inline
        def tile(to, ldt, start, lds, x, ldx, n, w):
            t, at = tile_load(height, nv, start, lds), rows_strided(height, x, ldx)
            for q in range(n):
                t = tile_dot_rows_bf16(t, at, 4 * q, w)
                w += nv * BYTES
            tile_store(t, to, ldt)

        return tile

    def of(height: int) -> Inline:
        @inline
        def tile(to, ldt, start, lds, x, ldx, n, w):
            t = tile_load(height, nv, start, lds)
            for _ in range(n):
                t = tile_rank1(t, x, ldx, w)
                x += 4
                w += nv * BYTES
            tile_store(t, to, ldt)

        return tile

    def of_halves(height: int) -> Inline:
        @inline
        def tile(to, ldt, start, lds, x, ldx, n, w):
            t, at = tile_load(height, nv, start, lds), rows_strided(height, x, ldx)
            for q in range(n):
                t = tile_rank1_rows_f16(t, at, 8 * q, w)
                t = tile_rank1_rows_f16(t, at, 8 * q + 4, w + nv * BYTES // 2)
                w += nv * BYTES
            tile_store(t, to, ldt)

        return tile

    make = {PAIRS: of_pairs, HALVES: of_halves}.get(deep, of)
    all_rows, one_row = make(rows), make(1)

    @inline
    def run(count, to, ldt, start, lds, x, ldx, n, w):
        if count == rows:
            all_rows(to, ldt, start, lds, x, ldx, n, w)
        else:
            one_row(to, ldt, start, lds, x, ldx, n, w)

    return run


def depth_of(deep: int) -> Inline:
    """Rows of packed weights for n numbers."""
    each = abs(deep)

    @inline
    def depth(n):
        return ceil_div(n, each)

    return depth


STATE_HEAD = 16
"""Bytes before a state in bytes: its scale (f32), zero point, and sum of what its bytes are over that (i32)."""


def products_of_bytes(rows: int, nv: int) -> Inline:
    """``run(p, block, count, to, ldt, start, lds, h, ldh, n, w)``: as `products`, of states by `quantize_state`.

    n: fours of a state.
    """

    def of(height: int) -> Inline:
        @inline
        def tile(to, ldt, h, ldh, n, w):
            t, at = tile_zeros(height, nv), rows_strided(height, h + STATE_HEAD, ldh)
            for q in range(n):
                t = tile_dot_rows_bytes(t, at, 4 * q, 0, w)
                w += nv * BYTES
            tile_store(t, to, ldt)

        return tile

    all_rows, one_row = of(rows), of(1)

    @inline
    def run(p, block, count, to, ldt, start, lds, h, ldh, n, w):
        if count == rows:
            all_rows(to, ldt, h, ldh, n, w)
        else:
            one_row(to, ldt, h, ldh, n, w)
        width = nv * BYTES
        for i in range(count):
            state, at, begin = h + i * ldh, to + i * ldt, start + i * lds
            scale, zero = splat(load_f32(state)), splat(load_i32(state + 4))
            total = splat(np.float32(load_i32(state + 8)))
            for v in range(0, width, BYTES):
                column = block * width + v
                exact = to_f32(vload_i32(at + v) - vload_i32(p.r_sums + column) * zero)
                exact = exact - vload(p.r_zeros + column) * total
                vstore(at + v, fma(exact, scale * vload(p.r_scales + column), vload(begin + v)))

    return run


@record(frozen=True)
class Pipelining:
    """Input products made while the state's products wait for their weights to come from the second-level cache.

    In each step a visit of a block multiplies the inputs of the next ``steps`` steps with one vector of the columns of
    its gates, packed as [direction][block][vector][input][LANES], until all ``vectors`` of the block are done.  The
    first ones are made before the walk, in steps of negative numbers.  More steps read w less often, but need
    registers.
    """

    steps: int
    vectors: int

    @staticmethod
    def of(kind: str, vectors: int) -> Pipelining:
        return Pipelining(PREFETCH_STEPS, GATES[kind] * vectors)


UNPIPELINED = Pipelining(0, 0)


def state_products(rows: int, nv: int, pipelining: Pipelining, stage: int, deep: int = NUMBERS) -> Inline:
    """``run(p, d, block, t, count, ...)``: `products`, with a part of what is to be made early in step ``t``.

    block: its number among those of all directions.
    """
    alone, height, per = products(rows, nv, deep), pipelining.steps, pipelining.vectors
    whole: Any = products_of_bytes(rows, nv) if deep == FOURS else None

    @inline
    def of_bytes(p, d, block, t, count, to, ldt, start, lds, h, ldh, n, w):
        whole(p, block, count, to, ldt, start, lds, h, ldh, n, w)

    @inline
    def plain(p, d, block, t, count, to, ldt, start, lds, h, ldh, n, w):
        alone(count, to, ldt, start, lds, h, ldh, n, w)

    @inline
    def fused(p, d, block, t, count, to, ldt, start, lds, h, ldh, n, w):
        vector, begin = stage * height + t % height, (t // height + 1) * height
        if begin >= p.steps or vector >= per:
            alone(count, to, ldt, start, lds, h, ldh, n, w)
        else:
            begin, place = min(begin, p.steps - height), (block * per + vector) * BYTES
            time, step = (p.steps - 1 - begin, -1) if p.backward or d == 1 else (begin, 1)
            x, ldx, m, v = p.x + time * p.xt, step * p.xt, p.inputs, p.w_pipelined + place * p.inputs
            state, inputs = tile_load(1, nv, start, lds), tile_row(height, 1, p.bias + place)
            for _ in range(min(n, m)):
                state, inputs = tile_rank1(state, h, ldh, w), tile_rank1(inputs, x, ldx, v)
                h, x, w, v = h + 4, x + 4, w + nv * BYTES, v + BYTES
            for _ in range(m, n):
                state = tile_rank1(state, h, ldh, w)
                h, w = h + 4, w + nv * BYTES
            for _ in range(n, m):
                inputs = tile_rank1(inputs, x, ldx, v)
                x, v = x + 4, v + BYTES
            tile_store(state, to, ldt)
            tile_store(inputs, p.start + time * p.pt + place, step * p.pt)

    return of_bytes if deep == FOURS else fused if height else plain


@inline
def put(p, y, state, at, out, n, is_last):
    """Store a part of the new state."""
    vstore_n(y + at, out, n)
    if is_last:
        vstore_n(p.last_h + state + at, out, n)


def lstm_cell(vectors: int, rows: int, functions: tuple[Any, ...], pipelining: Pipelining, deep: int) -> Inline:
    """Gates in the order input, output, forget, cell."""
    f, g, act = functions
    run, nv = products(rows, 4 * vectors), 4 * vectors
    state_run, depth = state_products(rows, nv, pipelining, 0, deep), depth_of(deep)

    @inline
    def finish(p, d, j, gates, c, y, state, is_last):
        for u in range(vectors):
            unit = (j * vectors + u) * LANES
            at, n, gate, width = 4 * unit, min(p.hidden - unit, LANES), gates + u * BYTES, vectors * BYTES
            if n > 0:
                gi, go, gf, gc = vload(gate), vload(gate + width), vload(gate + 2 * width), vload(gate + 3 * width)
                old = vload_n(c + at, n)
                peep, peep_step = p.peepholes + 12 * d * p.hidden + at, 4 * p.hidden
                if p.peepholes != 0:
                    gi, gf = gi + vload_n(peep, n) * old, gf + vload_n(peep + 2 * peep_step, n) * old
                i = f(bounded(p, gi))
                forget = 1.0 - i if p.input_forget else f(bounded(p, gf))
                cell = forget * old + i * g(bounded(p, gc))
                if p.peepholes != 0:
                    go = go + vload_n(peep + peep_step, n) * cell
                vstore_n(p.last_c + state + at, cell, n)
                put(p, y, state, at, f(bounded(p, go)) * act(cell), n, is_last)

    @inline
    def cell(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state):
        blocks = ceil_div(p.hidden, vectors * LANES)
        width, block = nv * BYTES, d * blocks + j
        start, start_step = start + j * width, p.pb
        if p.w != 0:
            run(count, work, width, start, start_step, x, p.xb, p.inputs, p.w + block * p.inputs * width)
            start, start_step = work, width
        k = depth(p.hidden)
        r = p.r + block * k * width
        state_run(p, d, block, t, count, work, width, start, start_step, h, h_step, k, r)
        c = p.c0 if t == 0 else p.last_c
        for i in range(count):
            offset = state + i * p.sb
            finish(p, d, j, work + i * width, c + offset, y + i * p.yb, offset, t == steps - 1)

    return cell


def rnn_cell(vectors: int, rows: int, functions: tuple[Any, ...], pipelining: Pipelining, deep: int) -> Inline:
    """One gate."""
    (f,) = functions
    run, depth = products(rows, vectors), depth_of(deep)
    state_run = state_products(rows, vectors, pipelining, 0, deep)

    @inline
    def cell(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state):
        width, block = vectors * BYTES, d * ceil_div(p.hidden, vectors * LANES) + j
        start, start_step = start + j * width, p.pb
        if p.w != 0:
            run(count, work, width, start, start_step, x, p.xb, p.inputs, p.w + block * p.inputs * width)
            start, start_step = work, width
        k = depth(p.hidden)
        r = p.r + block * k * width
        state_run(p, d, block, t, count, work, width, start, start_step, h, h_step, k, r)
        for i in range(count):
            for u in range(vectors):
                unit = (j * vectors + u) * LANES
                n = min(p.hidden - unit, LANES)
                if n > 0:
                    out = f(bounded(p, vload(work + i * width + u * BYTES)))
                    put(p, y + i * p.yb, state + i * p.sb, 4 * unit, out, n, t == steps - 1)

    return cell


def gru_after_cell(vectors: int, rows: int, functions: tuple[Any, ...], pipelining: Pipelining, deep: int) -> Inline:
    """GRU with linear_before_reset: gates update, reset, hidden."""
    f, g = functions
    run, part = products(rows, 3 * vectors), vectors * BYTES
    state_run, depth = state_products(rows, 3 * vectors, pipelining, 0, deep), depth_of(deep)

    @inline
    def finish(p, j, gates, h, y, state, is_last):
        for u in range(vectors):
            unit, gate = (j * vectors + u) * LANES, gates + u * BYTES
            at, n = 4 * unit, min(p.hidden - unit, LANES)
            if n > 0:
                update, reset = f(bounded(p, vload(gate))), f(bounded(p, vload(gate + part)))
                fresh = g(bounded(p, vload(gate + 3 * part) + reset * vload(gate + 2 * part)))
                put(p, y, state, at, (1.0 - update) * fresh + update * vload_n(h + at, n), n, is_last)

    @inline
    def cell(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state):
        block, width, ld = d * ceil_div(p.hidden, vectors * LANES) + j, 3 * part, 4 * part
        start += j * width
        if p.w != 0:
            run(count, work, ld, start, p.pb, x, p.xb, p.inputs, p.w + block * p.inputs * width)
        for i in range(count):  # the hidden gate's own part goes behind the sums with the state
            to = work + i * ld
            source = to if p.w != 0 else start + i * p.pb
            copy_bytes(to + 3 * part, source + 2 * part, part)
            if p.w == 0:
                copy_bytes(to, source, 2 * part)
            copy_bytes(to + 2 * part, p.reset_bias + block * part, part)
        k = depth(p.hidden)
        r = p.r + block * k * width
        state_run(p, d, block, t, count, work, ld, work, ld, h, h_step, k, r)
        back = 1 if p.backward or d == 1 else -1  # h may be rounded
        old, old_step = (p.h0 + state, p.sb) if t == 0 else (y + back * p.yt, p.yb)
        for i in range(count):
            finish(p, j, work + i * ld, old + i * old_step, y + i * p.yb, state + i * p.sb, t == steps - 1)

    return cell


def gru_cells(vectors: int, rows: int, functions: tuple[Any, ...], pipelining: Pipelining, deep: int) -> Any:
    """GRU whose reset gate acts on the state: first the gates, then the new state.  Weights are numbers.

    ``p.gates`` holds, for each sequence, update gates, states times reset gates, and sums of the hidden gate.
    """
    f, g = functions
    inputs, part = products(rows, 3 * vectors), vectors * BYTES
    both, last = (state_products(rows, (2 - stage) * vectors, pipelining, stage) for stage in (0, 1))

    @inline
    def gates(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state):
        blocks, width = ceil_div(p.hidden, vectors * LANES), 3 * part
        start, start_step, block = start + j * width, p.pb, d * blocks + j
        if p.w != 0:
            inputs(count, work, width, start, start_step, x, p.xb, p.inputs, p.w + block * p.inputs * width)
            start, start_step = work, width
        kept = p.gates + group * rows * 3 * blocks * part
        for i in range(count):
            copy_bytes(kept + (3 * i + 2) * blocks * part + j * part, start + i * start_step + 2 * part, part)
        r = p.r + block * p.hidden * 2 * part
        both(p, d, block, t, count, work, width, start, start_step, h, h_step, p.hidden, r)
        for i in range(count):
            for u in range(vectors):
                at, gate = j * part + u * BYTES, work + i * width + u * BYTES
                old, to = vload_n(h + i * h_step + at, p.hidden - at // 4), kept + 3 * i * blocks * part + at
                vstore(to, f(bounded(p, vload(gate))))
                vstore(to + blocks * part, f(bounded(p, vload(gate + part))) * old)

    @inline
    def blend(p, work, d, group, j, t, steps, count, x, h, h_step, start, y, state):
        blocks = ceil_div(p.hidden, vectors * LANES)
        row, block = blocks * part, d * blocks + j
        kept = p.gates + group * rows * 3 * row
        sums = kept + 2 * row + j * part
        r = p.r_hidden + block * p.hidden * part
        last(p, d, block, t, count, sums, 3 * row, sums, 3 * row, kept + row, 3 * row, p.hidden, r)
        for i in range(count):
            for u in range(vectors):
                at = j * part + u * BYTES
                n = p.hidden - at // 4
                if n > 0:
                    update = vload(kept + 3 * i * row + at)
                    fresh = g(bounded(p, vload(kept + (3 * i + 2) * row + at)))
                    out = (1.0 - update) * fresh + update * vload_n(h + i * h_step + at, n)
                    put(p, y + i * p.yb, state + i * p.sb, at, out, n, t == steps - 1)

    return gates, blend


CELLS: dict[str, Any] = {"lstm": lstm_cell, "rnn": rnn_cell, "gru_after": gru_after_cell, "gru": gru_cells}
