"""Readers of recurrent layers, and what the body of the standard's Attention leaves open.

That body passes over values that no attribute may have.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN

_PRECISIONS = (0, 1, 10, 11, 16)
"""ONNX's numbers of f32, f16, f64 and bf16; 0 where there is none."""


@reader("Attention", since=23)
def attention(
    b: NodeBuilder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    valid: Value | None,
    *,
    is_causal: bool = False,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> Any:
    """The function body, for attributes that it means."""
    if not 0 <= qk_matmul_output_mode <= 3:
        raise b.invalid("qk_matmul_output_mode", qk_matmul_output_mode, "0 to 3")
    if softmax_precision not in _PRECISIONS:
        raise b.invalid("softmax_precision", softmax_precision, "1, 10, 11 or 16")
    if min(kv_num_heads, q_num_heads) < 0:
        raise b.invalid("numbers of heads", (q_num_heads, kv_num_heads), "0 or more")
    if min(left_window_size, right_window_size) < -1:
        raise b.invalid("window sizes", (left_window_size, right_window_size), "-1 or more")
    return NotImplemented


STATES = "x w r bias? sequence_lens? initial_h?"

add_reader("LSTM", AsIs(LSTM, f"{STATES} initial_c? peepholes?", {"output_sequence": 0}))
add_reader("GRU", AsIs(GRU, STATES, {"output_sequence": 0}))
add_reader("RNN", AsIs(RNN, STATES, {"output_sequence": 0}))
