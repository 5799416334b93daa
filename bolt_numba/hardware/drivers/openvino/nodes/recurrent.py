"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import NotThereError, OvSite, builds
from bolt_numba.types import F32, I32, I64

ORDER = (2, 0, 3, 1)
"""Gates of an LSTM as OpenVINO has them, forget, input, cell, output, by their places in ours."""


def _parts(s: OvSite, x: Any, count: int, axis: int = 1) -> list[Any]:
    return list(s.v.split(x, s.const(np.array(axis, I64)), count).outputs())


def _joined(s: OvSite, parts: list[Any]) -> Any:
    return s.v.concat(parts, 1)


def _first_two(s: OvSite, x: Any, swap: bool) -> Any:
    """The first two axes exchanged, or as they are."""
    rank = [1, 0, *range(2, len(x.get_partial_shape()))]
    return s.v.transpose(x, s.i64(*rank)) if swap else x


def _checked(s: OvSite, op: Any) -> None:
    plain = [n.lower() for n in op.activations] in ([], [n.lower() for n in op.defaults] * op.directions)
    s.want(plain and not op.activation_alpha and not op.activation_beta, "other activations than usual")
    s.want(op.clip is None, "gates that are clipped")
    s.want(not getattr(op, "input_forget", False) and not s.given(7), "gates that look at the cell")
    if s.given(4):
        lengths, size = s.known(4, "lengths"), s.shape()[op.layout]
        s.want(isinstance(size, int), "lengths of sequences whose size only the run tells")
        s.want(bool(((lengths >= 1) & (lengths <= size)).all()), "lengths of 0, or beyond the sequence")


def _states(s: OvSite, op: Any, given: Any, batch: Any, hidden: int) -> Any:
    """States at first [n, d, h], of zeros where none are given."""
    if given is not None:
        return _first_two(s, given, op.layout == 0)
    shape = s.v.concat([batch, s.i64(op.directions, hidden)], 0)
    return s.v.broadcast(s.const(np.array(0, F32)), shape)


def _bias(s: OvSite, op: Any, b: Any, hidden: int) -> Any:
    """Biases of inputs and of states added, but for what a GRU resets after its product."""
    if b is None:
        gates = op.gates + getattr(op, "linear_before_reset", False)
        return s.const(np.zeros((op.directions, gates * hidden), F32))
    inputs, states = (_parts(s, half, op.gates) for half in _parts(s, b, 2))
    total = [s.v.add(x, y) for x, y in zip(inputs, states, strict=True)]
    if op.name == "LSTM":
        total = [total[i] for i in ORDER]
    elif op.linear_before_reset:
        total = [*total[:2], inputs[2], states[2]]
    return _joined(s, total)


@builds("LSTM", "GRU", others={4: (I32,)})
def recurrent(s: OvSite, op: Any, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, *initial: Any) -> Any:
    """The batch stands first there, and the sums of biases instead of both."""
    _checked(s, op)
    hidden = s.shape(2)[2]
    if not isinstance(hidden, int):
        raise NotThereError("states of a size that only the run tells")
    x = _first_two(s, x, op.layout == 0)
    size = s.v.shape_of(x, "i64")
    batch, steps = (s.v.gather(size, s.i64(i), s.const(np.array(0, I64))) for i in (0, 1))
    if lengths is None:
        lengths = s.v.convert(s.v.broadcast(steps, batch), "i32")
    if op.name == "LSTM":
        w, r = (_joined(s, [_parts(s, v, 4)[i] for i in ORDER]) for v in (w, r))
    states = [_states(s, op, v, batch, hidden) for v in [*initial, None, None][: op.states]]
    common = (lengths, w, r, _bias(s, op, b, hidden), hidden, op.direction)
    if op.name == "LSTM":
        made = s.v.lstm_sequence(x, *states, *common)
    else:
        made = s.v.gru_sequence(x, *states, *common, linear_before_reset=op.linear_before_reset)
    y, *last = made.outputs()
    # [n, d, t, h] -> [t, d, n, h] or [n, t, d, h]
    y = s.v.transpose(y, s.i64(*((2, 1, 0, 3) if op.layout == 0 else (0, 2, 1, 3))))
    return [y, *(_first_two(s, v, op.layout == 0) for v in last)]
