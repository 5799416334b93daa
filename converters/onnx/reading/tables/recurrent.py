"""Readers of recurrent layers."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN

Floats = tuple[float, ...]


def common(
    b: NodeBuilder,
    activation_alpha: Floats,
    activation_beta: Floats,
    activations: tuple[str, ...],
    clip: float | None,
    direction: str,
    hidden_size: int | None,
    layout: int,
) -> dict[str, Any]:
    """Attributes that all recurrent layers share, checked."""
    if direction not in ("forward", "reverse", "bidirectional"):
        raise b.invalid("direction", direction, "forward, reverse or bidirectional")
    return {
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "activations": activations,
        "clip": clip,
        "direction": direction,
        "hidden_size": hidden_size,
        "layout": layout,
    }


@reader("LSTM")
def lstm(
    b: NodeBuilder,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    peepholes: Value | None = None,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: bool = False,
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    shared = common(b, activation_alpha, activation_beta, activations, clip, direction, hidden_size, layout)
    operator = LSTM(**shared, input_forget=input_forget)
    return b(operator, x, w, r, bias, sequence_lens, initial_h, initial_c, peepholes)


@reader("GRU")
def gru(
    b: NodeBuilder,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: bool = False,
    output_sequence: int = 0,
) -> Any:
    shared = common(b, activation_alpha, activation_beta, activations, clip, direction, hidden_size, layout)
    operator = GRU(**shared, linear_before_reset=linear_before_reset)
    return b(operator, x, w, r, bias, sequence_lens, initial_h)


@reader("RNN")
def rnn(
    b: NodeBuilder,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    shared = common(b, activation_alpha, activation_beta, activations, clip, direction, hidden_size, layout)
    return b(RNN(**shared), x, w, r, bias, sequence_lens, initial_h)
