"""Cases of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN, Recurrent
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM
from bolt_numba.types import F32, I8, I32, U8, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, maybe, pick, real, small, whole


def recurrent(draw: Draw, op: type[Recurrent]) -> Case:
    direction = pick(draw, "forward", "forward", "reverse", "bidirectional")
    d, t, n = 2 if direction == "bidirectional" else 1, draw(small), pick(draw, 1, 1, 2, 3, 5, 7)
    size, h = pick(draw, 1, 3, 8, 16), pick(draw, 1, 4, 7, 16, 17, 33, 70)
    if pick(draw, False, False, True):  # long enough for input products ahead of the walk
        t, n = pick(draw, 24, 25, 41), 1
    elif pick(draw, False, False, False, True):  # wide enough for threads to share a step
        t, n, h = pick(draw, 3, 25), 1, {1: 272, 3: 160, 4: 130}[op.gates]
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": h}
    if pick(draw, False, False, True):
        attributes["clip"] = 0.75
    if pick(draw, False, False, True):
        first = (
            ("Relu",) if op is RNN else ("HardSigmoid", "Softsign") if op is GRU else ("HardSigmoid", "Relu", "Tanh")
        )
        attributes["activations"] = first * d
    if op is GRU:
        attributes["linear_before_reset"] = draw(flags)
    if issubclass(op, LSTM):
        attributes["input_forget"] = pick(draw, False, False, True)
    gates = op.gates * h
    limit = min(0.5, 2 / h**0.5)  # larger ones make chaos, where every rounding counts
    weights = [real(draw, (d, gates, k), -limit, limit) for k in (size, h)]
    operands = [real(draw, (t, n, size)), *weights]
    rest: list[Any] = [maybe(draw, real(draw, (d, 2 * gates), -0.5, 0.5))]
    lengths = np.array([pick(draw, *range(1, t + 1)) for _ in range(n)], dtype=I32)
    rest.append(pick(draw, None, None, lengths))
    rest += [maybe(draw, real(draw, (d, n, h))) for _ in range(op.states)]
    if issubclass(op, LSTM):
        rest.append(pick(draw, None, None, real(draw, (d, 3 * h), -0.5, 0.5)))
    while rest and rest[-1] is None:
        rest.pop()
    return Case(op(**attributes), (*operands, *rest), exact=False, rtol=1e-4)


def _in_bytes(draw: Draw, w: Array) -> tuple[Array, Array, Array]:
    """Weights in 8 bits, their scales and zero points: for each direction, or for each row of each."""
    dtype, per_row = pick(draw, U8, I8, I8), draw(flags)
    dims = w.shape[: 2 if per_row else 1]
    zero = whole(draw, dims, 100, 156, U8) if dtype == U8 else whole(draw, dims, -3, 3, I8)
    scale = np.asarray(max(float(np.abs(w).max()), 1e-3) / 90 * real(draw, dims, 0.5, 1), F32)
    shape = (len(w), -1, 1)
    info = np.iinfo(dtype)
    stored = np.rint(w / scale.reshape(shape)) + zero.reshape(shape)
    return np.clip(stored, int(info.min), int(info.max)).astype(dtype), scale, zero


@cases(DynamicQuantizeLSTM)
def quantised(draw: Draw, op: type[DynamicQuantizeLSTM]) -> Case:
    plain = recurrent(draw, op)
    x, w, r, *rest = plain.inputs
    (w, *w_numbers), (r, *r_numbers) = (_in_bytes(draw, v) for v in (w, r))
    operands = (x, w, r, *rest, *[None] * (5 - len(rest)), *w_numbers, *r_numbers)
    return Case(plain.op, operands, exact=False, rtol=0.02)  # a state next to the middle of two levels may take either


for _op in (RNN, GRU, LSTM):
    cases(_op)(recurrent)
