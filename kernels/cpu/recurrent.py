"""LSTM, GRU and RNN layers of f32 with constant weights: one kernel walks along the sequence.

The hidden units are cut into blocks of LANES.  Weights are packed so that the gates of a block lie side by side for
each input: [block][input][gate][LANES], zero-padded.  Input products of long sequences are one matrix product before
the walk (its columns in the order [direction][block][gate][LANES]); those of a few rows are part of the walk.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.lang import (
    BYTES,
    LANES,
    ceil_div,
    fma,
    load_f32,
    splat,
    split,
    vload,
    vload_n,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.matmul import matmul
from bolt_numba.kernels.cpu.pack import aligned_zeros
from bolt_numba.kernels.cpu.vmath import vsigmoid, vtanh
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.matmul import MatMul
from bolt_numba.ops.recurrent import GRU, LSTM, RNN, Recurrent
from bolt_numba.types import F32, Array, TensorType

FUSED_ROWS = 2
"""Rows of x (steps times batch) up to which the walk computes the input products itself."""
SHARED_BYTES = 1 << 20
"""Recurrent weights of a direction from which the threads share each step of one sequence."""
SHARED_STEPS = 1024
"""Longest sequence that is planned as one program step per time step."""
PARALLEL_FLOPS = 1 << 20


@inline
def products4(a, b, c, d, x, n, w):
    """Four gates += the n numbers at x times the rows at w."""
    for _ in range(n):
        v = splat(load_f32(x))
        a, b = fma(v, vload(w), a), fma(v, vload(w + BYTES), b)
        c, d = fma(v, vload(w + 2 * BYTES), c), fma(v, vload(w + 3 * BYTES), d)
        x += 4
        w += 4 * BYTES
    return a, b, c, d


@inline
def products4x2(a, b, c, d, e, f, g, h, x, step, n, w):
    """`products4` for two rows of numbers, ``step`` bytes apart."""
    for _ in range(n):
        v, u = splat(load_f32(x)), splat(load_f32(x + step))
        w0, w1, w2, w3 = vload(w), vload(w + BYTES), vload(w + 2 * BYTES), vload(w + 3 * BYTES)
        a, b, c, d = fma(v, w0, a), fma(v, w1, b), fma(v, w2, c), fma(v, w3, d)
        e, f, g, h = fma(u, w0, e), fma(u, w1, f), fma(u, w2, g), fma(u, w3, h)
        x += 4
        w += 4 * BYTES
    return a, b, c, d, e, f, g, h


@inline
def products3(a, b, c, x, n, w):
    for _ in range(n):
        v = splat(load_f32(x))
        a, b, c = fma(v, vload(w), a), fma(v, vload(w + BYTES), b), fma(v, vload(w + 2 * BYTES), c)
        x += 4
        w += 3 * BYTES
    return a, b, c


@inline
def products2(a, b, x, n, w):
    for _ in range(n):
        v = splat(load_f32(x))
        a, b = fma(v, vload(w), a), fma(v, vload(w + BYTES), b)
        x += 4
        w += 2 * BYTES
    return a, b


@inline
def products1(a, x, n, w):
    b, c, d = splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0))
    for _ in range(n // 4):  # four sums hide the latency of one
        a = fma(splat(load_f32(x)), vload(w), a)
        b = fma(splat(load_f32(x + 4)), vload(w + BYTES), b)
        c = fma(splat(load_f32(x + 8)), vload(w + 2 * BYTES), c)
        d = fma(splat(load_f32(x + 12)), vload(w + 3 * BYTES), d)
        x += 16
        w += 4 * BYTES
    for _ in range(n % 4):
        a = fma(splat(load_f32(x)), vload(w), a)
        x += 4
        w += BYTES
    return (a + b) + (c + d)


@inline
def share(p, tid, nthreads):
    """First and last sequence, first and last block of a thread."""
    blocks = ceil_div(p.hidden, LANES)
    if p.shared:
        j0, j1 = split(blocks, tid, nthreads)
        return 0, p.directions * p.batch, j0, j1
    lo, hi = split(p.directions * p.batch, tid, nthreads)
    return lo, hi, 0, blocks


@inline
def moment(p, d, t):
    """Index in time of step ``t``, and the distance to the step before."""
    if p.backward or d == 1:
        return p.steps - 1 - t, 1
    return t, -1


_FIELDS = dict.fromkeys(("x", "start", "w", "r", "h0", "y", "last_h"), PTR) | dict.fromkeys(
    ("hidden", "inputs", "batch", "directions", "steps", "begin", "end", "backward", "shared", "fused", "xt", "xb",
     "yt", "yd", "yb", "sd", "sb", "pd", "pt", "pb"), I64
)  # fmt: skip
"""Fields of all walks.

start: gates without the state's part: the biases when ``fused``, else the input products; pd, pt, pb: bytes from
direction to direction, step to step and sequence to sequence there.  xt, xb; yt, yd, yb; sd, sb: the same for x, y and
states.  begin, end: the steps of this call.
"""


@inline
def lstm_finish(p, t, c, y, state, j, gi, go, gf, gc):
    """Store the new cell and output of block ``j``."""
    n = min(p.hidden - j * LANES, LANES)
    cell = vsigmoid(gf) * vload_n(c + j * BYTES, n) + vsigmoid(gi) * vtanh(gc)
    out = vsigmoid(go) * vtanh(cell)
    vstore_n(p.last_c + state + j * BYTES, cell, n)
    vstore_n(y + j * BYTES, out, n)
    if t == p.steps - 1:
        vstore_n(p.last_h + state + j * BYTES, out, n)


@native(fastmath=None, **_FIELDS, c0=PTR, last_c=PTR)
def lstm_walk(p, tid, nthreads):
    """Gates in the order input, output, forget, cell; two sequences of a batch at a time share the weights."""
    first, last, j0, j1 = share(p, tid, nthreads)
    hidden, inputs, blocks = p.hidden, p.inputs, ceil_div(p.hidden, LANES)
    unit = first
    while unit < last:
        d, b = unit // p.batch, unit % p.batch
        pair = b + 1 < p.batch and unit + 1 < last
        state = d * p.sd + b * p.sb
        for t in range(p.begin, p.end):
            time, back = moment(p, d, t)
            x, y = p.x + time * p.xt + b * p.xb, p.y + time * p.yt + d * p.yd + b * p.yb
            h, h_step = (p.h0 + state, p.sb) if t == 0 else (y + back * p.yt, p.yb)
            c = p.c0 + state if t == 0 else p.last_c + state
            start = p.start + d * p.pd + time * p.pt + b * p.pb
            for j in range(j0, j1):
                at = start + j * 4 * BYTES
                w, r = p.w + (d * blocks + j) * inputs * 4 * BYTES, p.r + (d * blocks + j) * hidden * 4 * BYTES
                gi, go, gf, gc = vload(at), vload(at + BYTES), vload(at + 2 * BYTES), vload(at + 3 * BYTES)
                hi, ho, hf, hc = gi, go, gf, gc
                if pair:
                    at += p.pb
                    hi, ho, hf, hc = vload(at), vload(at + BYTES), vload(at + 2 * BYTES), vload(at + 3 * BYTES)
                    if p.fused:
                        gi, go, gf, gc, hi, ho, hf, hc = products4x2(gi, go, gf, gc, hi, ho, hf, hc, x, p.xb, inputs, w)
                    gi, go, gf, gc, hi, ho, hf, hc = products4x2(gi, go, gf, gc, hi, ho, hf, hc, h, h_step, hidden, r)
                else:
                    if p.fused:
                        gi, go, gf, gc = products4(gi, go, gf, gc, x, inputs, w)
                    gi, go, gf, gc = products4(gi, go, gf, gc, h, hidden, r)
                for q in range(2 if pair else 1):
                    lstm_finish(p, t, c + q * p.sb, y + q * p.yb, state + q * p.sb, j, gi, go, gf, gc)
                    gi, go, gf, gc = hi, ho, hf, hc
        unit += 2 if pair else 1


@inline
def gru_blend(p, t, h, y, state, j, update, fresh):
    """Store (1 - update) * fresh + update * h."""
    n = min(p.hidden - j * LANES, LANES)
    out = (1.0 - update) * fresh + update * vload_n(h + j * BYTES, n)
    vstore_n(y + j * BYTES, out, n)
    if t == p.steps - 1:
        vstore_n(p.last_h + state + j * BYTES, out, n)


@native(fastmath=None, **_FIELDS, reset_bias=PTR)
def gru_reset_after_walk(p, tid, nthreads):
    """GRU with linear_before_reset: gates update, reset, hidden; ``reset_bias``: the hidden gate's recurrent bias."""
    first, last, j0, j1 = share(p, tid, nthreads)
    hidden, inputs, blocks = p.hidden, p.inputs, ceil_div(p.hidden, LANES)
    for unit in range(first, last):
        d, b = unit // p.batch, unit % p.batch
        state = d * p.sd + b * p.sb
        for t in range(p.begin, p.end):
            time, back = moment(p, d, t)
            y = p.y + time * p.yt + d * p.yd + b * p.yb
            h = p.h0 + state if t == 0 else y + back * p.yt
            start = p.start + d * p.pd + time * p.pt + b * p.pb
            for j in range(j0, j1):
                at = start + j * 3 * BYTES
                gz, gr, gh = vload(at), vload(at + BYTES), vload(at + 2 * BYTES)
                if p.fused:
                    w = p.w + (d * blocks + j) * inputs * 3 * BYTES
                    gz, gr, gh = products3(gz, gr, gh, p.x + time * p.xt + b * p.xb, inputs, w)
                seen = vload(p.reset_bias + (d * blocks + j) * BYTES)
                r = p.r + (d * blocks + j) * hidden * 3 * BYTES
                gz, gr, seen = products3(gz, gr, seen, h, hidden, r)
                gru_blend(p, t, h, y, state, j, vsigmoid(gz), vtanh(gh + vsigmoid(gr) * seen))


@native(fastmath=None, **_FIELDS, r_hidden=PTR, gates=PTR)
def gru_walk(p, tid, nthreads):
    """GRU whose reset gate acts on the state; ``gates``: workspace of 2 * blocks vectors for each sequence."""
    first, last, _, _ = share(p, tid, nthreads)
    hidden, inputs, blocks = p.hidden, p.inputs, ceil_div(p.hidden, LANES)
    for unit in range(first, last):
        d, b = unit // p.batch, unit % p.batch
        state = d * p.sd + b * p.sb
        update = p.gates + unit * 2 * blocks * BYTES
        kept = update + blocks * BYTES
        for t in range(p.begin, p.end):
            time, back = moment(p, d, t)
            x, y = p.x + time * p.xt + b * p.xb, p.y + time * p.yt + d * p.yd + b * p.yb
            h = p.h0 + state if t == 0 else y + back * p.yt
            start = p.start + d * p.pd + time * p.pt + b * p.pb
            for j in range(blocks):
                at, n = start + j * 3 * BYTES, min(hidden - j * LANES, LANES)
                gz, gr, gh = vload(at), vload(at + BYTES), vload(at + 2 * BYTES)
                if p.fused:
                    w = p.w + (d * blocks + j) * inputs * 3 * BYTES
                    gz, gr, gh = products3(gz, gr, gh, x, inputs, w)
                gz, gr = products2(gz, gr, h, hidden, p.r + (d * blocks + j) * hidden * 2 * BYTES)
                vstore(update + j * BYTES, vsigmoid(gz))
                vstore(kept + j * BYTES, vsigmoid(gr) * vload_n(h + j * BYTES, n))
                vstore_n(y + j * BYTES, gh, n)  # until the second pass has read it
            for j in range(blocks):
                r = p.r_hidden + (d * blocks + j) * hidden * BYTES
                gh = products1(vload_n(y + j * BYTES, min(hidden - j * LANES, LANES)), kept, hidden, r)
                gru_blend(p, t, h, y, state, j, vload(update + j * BYTES), vtanh(gh))


@native(fastmath=None, **_FIELDS)
def rnn_walk(p, tid, nthreads):
    """One tanh gate."""
    first, last, j0, j1 = share(p, tid, nthreads)
    hidden, inputs, blocks = p.hidden, p.inputs, ceil_div(p.hidden, LANES)
    for unit in range(first, last):
        d, b = unit // p.batch, unit % p.batch
        state = d * p.sd + b * p.sb
        for t in range(p.begin, p.end):
            time, back = moment(p, d, t)
            y = p.y + time * p.yt + d * p.yd + b * p.yb
            h = p.h0 + state if t == 0 else y + back * p.yt
            start = p.start + d * p.pd + time * p.pt + b * p.pb
            for j in range(j0, j1):
                g, n = vload(start + j * BYTES), min(hidden - j * LANES, LANES)
                if p.fused:
                    g = products1(g, p.x + time * p.xt + b * p.xb, inputs, p.w + (d * blocks + j) * inputs * BYTES)
                out = vtanh(products1(g, h, hidden, p.r + (d * blocks + j) * hidden * BYTES))
                vstore_n(y + j * BYTES, out, n)
                if t == p.steps - 1:
                    vstore_n(p.last_h + state + j * BYTES, out, n)


# ------------------------------------------------------------------------------------------------------------- packing


def pack_gates(w: Array, gates: Sequence[int], count: int) -> Array:
    """[d, count * h, k] -> [d, block, k, gate, LANES] of the given gates, zero-padded."""
    d, rows, k = w.shape
    hidden = rows // count
    blocks = ceil_blocks(hidden)
    padded = np.zeros((d, len(gates), blocks * LANES, k), np.float32)
    padded[:, :, :hidden] = w.reshape(d, count, hidden, k)[:, list(gates)]
    packed = aligned_zeros((d, blocks, k, len(gates), LANES))
    packed[:] = padded.reshape(d, len(gates), blocks, LANES, k).transpose(0, 2, 4, 1, 3)
    return packed


def pack_columns(w: Array, count: int) -> Array:
    """[d, count * h, k] -> [k, d * block * gate * LANES]: the matrix of the input products."""
    packed = pack_gates(w, range(count), count)
    return np.ascontiguousarray(packed.transpose(2, 0, 1, 3, 4).reshape(w.shape[2], -1))


def pack_bias(b: Array, count: int, reset_after: bool) -> Array:
    """[d, 2 * count * h] -> [d * block * gate * LANES], biases added, ``reset_after``: not the hidden gate's."""
    d = b.shape[0]
    w_bias, r_bias = (v.copy() for v in np.split(b.astype(np.float32).reshape(d, 2 * count, -1), 2, axis=1))
    if reset_after:
        r_bias[:, -1] = 0
    return pack_gates((w_bias + r_bias).reshape(d, -1, 1), range(count), count).reshape(-1)


def ceil_blocks(hidden: int) -> int:
    return -(-hidden // LANES)


# -------------------------------------------------------------------------------------------------------------- makers


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of a layer: steps, batch, inputs, hidden units."""

    op: Recurrent
    t: int
    n: int
    i: int
    h: int

    @staticmethod
    def of(op: Recurrent, ins: Types) -> Layer:
        x, r = ins[0], ins[2]
        assert x is not None
        assert r is not None
        t, n = x.dims[:2] if op.layout == 0 else (x.dims[1], x.dims[0])
        return Layer(op, t, n, x.dims[2], r.dims[2])

    def strides(self) -> dict[str, Argument]:
        """Bytes between steps, directions and sequences."""
        d, h4, i4 = self.op.directions, 4 * self.h, 4 * self.i
        if self.op.layout == 0:
            return {"xt": self.n * i4, "xb": i4, "yt": d * self.n * h4, "yd": self.n * h4, "yb": h4, "sd": self.n * h4,
                    "sb": h4}  # fmt: skip
        return {"xt": i4, "xb": self.t * i4, "yt": d * h4, "yd": h4, "yb": self.t * d * h4, "sd": h4, "sb": d * h4}


def _accepts(op: Any, ins: Types) -> bool:
    x, w, r, b, lengths, *rest = (*ins, *(None,) * 8)[:8]
    given = [t for t in ins if t is not None]
    if x is None or w is None or r is None or not all(t.is_static for t in given):
        return False
    if lengths is not None and (lengths.known is None or (lengths.known != x.dims[op.layout]).any()):
        return False
    if x.dtype != F32 or not x.size or any(t is not None and t.known is None for t in (w, r, b)):
        return False
    names = tuple(a.lower() for a in op.activations) or tuple(a.lower() for a in op.defaults) * op.directions
    if names != tuple(a.lower() for a in op.defaults) * op.directions or op.clip is not None:
        return False
    return not getattr(op, "input_forget", False) and (not isinstance(op, LSTM) or rest[2] is None)


def _constant(context: Context, given: TensorType | None, key: Any, pack: Any) -> Array:
    assert given is not None
    assert given.known is not None
    return context.packed(given.known, key, pack)


def _bias(op: Recurrent, layer: Layer, b: TensorType | None, context: Context) -> Array:
    count, after = op.gates, bool(getattr(op, "linear_before_reset", False))
    if b is None:
        return np.zeros(op.directions * ceil_blocks(layer.h) * count * LANES, np.float32)
    return _constant(context, b, ("recurrent bias", count, after), lambda a: pack_bias(a, count, after))


def _input_products(
    op: Recurrent, layer: Layer, ins: Types, bias: Array, context: Context
) -> tuple[Scratch, list[Step]]:
    """Steps of x w^T + bias for all steps, [rows of x, columns of `pack_columns`]."""
    x = ins[0]
    assert x is not None
    matrix = _constant(context, ins[1], ("recurrent columns", op.gates), lambda w: pack_columns(w, op.gates))
    rows, columns = layer.t * layer.n, matrix.shape[1]
    types = [TensorType(F32, (rows, layer.i)), *(TensorType(F32, a.shape, value=a) for a in (matrix, bias))]
    to = Scratch(4 * rows * columns)
    steps = matmul(MatMul(), types, [TensorType(F32, (rows, columns))], context)
    for step in steps:
        for name, arg in step.args.items():
            if isinstance(arg, Out):
                step.args[name] = to
            elif isinstance(arg, Pitch):
                step.args[name] = layer.i if isinstance(arg.of, In) else columns
    return to, steps


def _walk(
    op: Recurrent,
    program: Native,
    ins: Types,
    context: Context,
    extra: dict[str, Argument],
    r_gates: Sequence[int],
    can_share: bool = True,
) -> list[Step]:
    layer, count, d = Layer.of(op, ins), op.gates, op.directions
    bias = _bias(op, layer, ins[3] if len(ins) > 3 else None, context)
    row = ceil_blocks(layer.h) * count * BYTES  # bytes of one direction's gates
    fused = layer.t * layer.n <= FUSED_ROWS
    args: dict[str, Argument] = {
        "x": In(0), "start": bias, "w": None, "pd": row, "pt": 0, "pb": 0, "h0": _state(layer, ins, 5), "y": Out(0),
        "r": _constant(context, ins[2], ("recurrent", count, *r_gates), lambda a: pack_gates(a, r_gates, count)),
        "last_h": Out(1), "hidden": layer.h, "inputs": layer.i, "batch": layer.n, "directions": d, "steps": layer.t,
        "begin": 0, "end": layer.t, "backward": int(op.direction == "reverse"), "shared": 0, "fused": int(fused),
        **layer.strides(), **extra,
    }  # fmt: skip
    made: list[Step] = []
    if fused:
        args["w"] = _constant(context, ins[1], ("recurrent", count), lambda a: pack_gates(a, range(count), count))
    else:
        args["start"], made = _input_products(op, layer, ins, bias, context)
        t_rows, b_rows = (layer.n, 1) if op.layout == 0 else (1, layer.t)
        args |= {"pt": t_rows * d * row, "pb": b_rows * d * row}
    weights = layer.h * row
    idle = d * layer.n < context.threads
    if can_share and idle and weights >= SHARED_BYTES and layer.t <= SHARED_STEPS:
        return made + [Step(program, args | {"shared": 1, "begin": t, "end": t + 1}) for t in range(layer.t)]
    flops = layer.t * layer.n * d * (layer.h + (layer.i if fused else 0)) * layer.h * count
    return [*made, Step(program, args, d * layer.n > 1 and flops >= PARALLEL_FLOPS)]


def _state(layer: Layer, ins: Types, index: int) -> Argument:
    if len(ins) > index and ins[index] is not None:
        return In(index)
    return np.zeros(layer.op.directions * layer.n * layer.h, np.float32)


@kernel(LSTM, accepts=_accepts)
def lstm(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Default activations; no peepholes, clip or input_forget; whole sequences; constant weights."""
    state = _state(Layer.of(op, ins), ins, 6)
    return _walk(op, lstm_walk, ins, context, {"c0": state, "last_c": Out(2)}, range(4))


@kernel(GRU, accepts=_accepts)
def gru(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Default activations; no clip; whole sequences; constant weights."""
    layer = Layer.of(op, ins)
    blocks = ceil_blocks(layer.h)
    if op.linear_before_reset:
        b = ins[3] if len(ins) > 3 else None
        bias = np.zeros(op.directions * blocks * LANES, np.float32)
        if b is not None:
            bias = _constant(context, b, "recurrent reset bias", _reset_bias)
        return _walk(op, gru_reset_after_walk, ins, context, {"reset_bias": bias}, range(3))
    r_hidden = _constant(context, ins[2], ("recurrent", 3, 2), lambda a: pack_gates(a, (2,), 3))
    work = Scratch(op.directions * layer.n * 2 * blocks * BYTES)
    return _walk(op, gru_walk, ins, context, {"r_hidden": r_hidden, "gates": work}, range(2), can_share=False)


def _reset_bias(b: Array) -> Array:
    return pack_gates(b.astype(np.float32)[:, -(b.shape[1] // 6) :, None], (0,), 1).reshape(-1)


@kernel(RNN, accepts=_accepts)
def rnn(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """tanh; no clip; whole sequences; constant weights."""
    return _walk(op, rnn_walk, ins, context, {}, range(1))
