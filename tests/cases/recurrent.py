"""Cases of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.recurrent import GRU, LSTM, RNN, Recurrent
from bolt_numba.types import I32
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, maybe, pick, real, small


def recurrent(draw: Draw, op: type[Recurrent]) -> Case:
    direction = pick(draw, "forward", "forward", "reverse", "bidirectional")
    d, t, n = 2 if direction == "bidirectional" else 1, draw(small), pick(draw, 1, 1, 2, 3)
    size, h = pick(draw, 1, 3, 8, 16), pick(draw, 1, 4, 7, 16, 17)
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": h}
    if pick(draw, False, False, True):
        attributes["clip"] = 0.75
    if pick(draw, False, False, True):
        first = (
            ("HardSigmoid", "Relu", "Tanh") if op is LSTM else ("HardSigmoid", "Softsign") if op is GRU else ("Relu",)
        )
        attributes["activations"] = first * d
    if op is GRU:
        attributes["linear_before_reset"] = draw(flags)
    if op is LSTM:
        attributes["input_forget"] = pick(draw, False, False, True)
    gates = op.gates * h
    operands = [real(draw, (t, n, size)), real(draw, (d, gates, size), -0.5, 0.5), real(draw, (d, gates, h), -0.5, 0.5)]
    rest: list[Any] = [maybe(draw, real(draw, (d, 2 * gates), -0.5, 0.5))]
    lengths = np.array([pick(draw, *range(1, t + 1)) for _ in range(n)], dtype=I32)
    rest.append(pick(draw, None, None, lengths))
    rest += [maybe(draw, real(draw, (d, n, h))) for _ in range(op.states)]
    if op is LSTM:
        rest.append(pick(draw, None, None, real(draw, (d, 3 * h), -0.5, 0.5)))
    while rest and rest[-1] is None:
        rest.pop()
    return Case(op(**attributes), (*operands, *rest), exact=False, rtol=1e-4)


for _op in (RNN, GRU, LSTM):
    cases(_op)(recurrent)
