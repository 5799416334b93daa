"""Readers of layers that keep a state of fixed size, ONNX's and onnxruntime's, and of what stands before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_reader, microsoft, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.reduce import ReduceSumSquare
from bolt_numba.ops.arrays.shape import Split, Transpose
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.attention.linear import CausalConvWithState, LinearAttention

NORM_EPSILON = 1e-6
"""What onnxruntime adds to the square of a length."""


def _attended(b: NodeBuilder, op: LinearAttention, *operands: Value | None) -> Any:
    """In f32 where the state is of another dtype than all else."""
    query, past = operands[0], operands[3] if len(operands) > 3 else None
    if query is None or past is None or past.type.dtype == query.type.dtype:
        return b.node(op, *operands).outputs
    kinds = {v.type.dtype for i, v in enumerate(operands) if v is not None and i != 3}
    is_wrong = len(kinds) > 1 or not {*kinds, past.type.dtype} <= {*FLOATS}
    b.invalid_if(is_wrong, "dtypes", kinds, "one, but for that of the state")
    y, present = b.node(op, *(v and b.to(v, F32) for v in operands)).outputs
    return b.to(y, query.type.dtype), b.to(present, past.type.dtype)


def _windowless(b: NodeBuilder, op: LinearAttention, *operands: Value | None, state_window: int = 0) -> Any:
    b.unsupported_if(state_window, f"state_window {state_window}")
    return _attended(b, op, *operands)


_OPERANDS = "query key value past_state? decay? beta?"
for _domain, _then in (("", _attended), ("com.microsoft", _windowless)):
    add_reader(
        "LinearAttention", AsIs(LinearAttention, _OPERANDS, {"chunk_size": 64}, then=_then), domain=_domain,
        since=1 if _domain else 27,
    )  # fmt: skip


@reader("CausalConvWithState", since=27)
def standard_causal_conv(
    b: NodeBuilder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    past: Value | None = None,
    *,
    activation: str = "none",
) -> Any:
    return b.node(_convolution(b, activation), x, weight, bias, past).outputs


def _convolution(b: NodeBuilder, activation: str, dilation: int = 1) -> CausalConvWithState:
    b.invalid_if(activation not in ("none", "silu", "swish"), "activation", activation, "none, silu or swish")
    return CausalConvWithState(activation != "none", dilation)


@microsoft("CausalConvWithState")
def causal_conv(
    b: NodeBuilder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    past: Value | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> Any:
    """channels_last: x [n, length, ...] and the state likewise, whatever axes channels are spread over."""
    others = (input_channel_offset, input_channels, state_length, state_update_capacity, state_window)
    if ndim != 1 or any(others) or state_channels_last not in (-1, int(channels_last)):
        raise b.unsupported("more than one axis, or a state that is cut or kept otherwise")
    op = _convolution(b, activation, dilation)
    if not channels_last:
        return b.node(op, x, weight, bias, past).outputs
    channels = b.static_dim(weight, 0)
    rows, before = (
        None if v is None else b(Transpose((0, 2, 1)), b.reshaped(v, [0, 0, channels], zero_keeps=True))
        for v in (x, past)
    )
    tail = b.sizes_of(x, range(2, b.rank_of(x)))
    made = b.node(op, rows, weight, bias, before).outputs
    return tuple(b.reshaped(b(Transpose((0, 2, 1)), v), [0, 0, *tail], zero_keeps=True) for v in made)


@microsoft("LinearAttentionGate")
def linear_attention_gate(
    b: NodeBuilder, a: Value, dt_bias: Value, decay_scale: Value, update: Value | None = None
) -> Any:
    """Decay = decay_scale * softplus(a + dt_bias), computed in f32, and beta = sigmoid(update)."""
    held = Forms(b)
    held.want("a", a, "n length heads", *FLOATS)
    held.want("dt_bias", dt_bias, "heads", *FLOATS)
    held.want("decay_scale", decay_scale, "heads", *FLOATS)
    held.want("b", update, "n length heads", a.type.dtype)
    b.invalid_if(update is None and b.wants(1), "b", update, "an operand, as beta is wanted")
    projected, bias, scale = (b.to(v, F32) for v in (a, dt_bias, decay_scale))
    decay = b.to(b(p.Mul(), b(p.Softplus(), b(p.Add(), projected, bias)), scale), a.type.dtype)
    return decay if update is None else (decay, b(p.Sigmoid(), update))


@microsoft("GatedDeltaNet")
def gated_delta_net(
    b: NodeBuilder,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    cu_seqlens: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    initial_state: Value | None = None,
    a_log: Value | None = None,
    dt_bias: Value | None = None,
    capture_count: Value | None = None,
    state_update_active: Value | None = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
) -> Any:
    """Linear attention of sequences of one length, with queries, keys and values in one row, or heads apart.

    States: [n, heads, e, d] f32.  Gates may be as projections leave them, and are computed in f32.
    """
    b.unsupported_if(state_update_capacity or state_update_active or capture_count, "state updates")
    if cu_seqlens is not None or initial_state is None:
        raise b.unsupported("sequences of several lengths, or no initial_state")
    heads, e, d = (b.static_dim(initial_state, axis) for axis in (1, 2, 3))
    axes = _want_rows(b, query, key, value, decay, beta, initial_state, a_log, dt_bias)
    b.invalid_if(gate_activation == "none" and (a_log or dt_bias), "a_log and dt_bias", "some", "none without a gate")
    operands = _flat_heads(b, initial_state, query, key, value)
    n_heads = b.static_dim(operands[0], 2) // d
    gates = [None if v is None else _by_positions(b, initial_state, v, axes) for v in (decay, beta)]
    if gates[0] is not None and gate_activation != "none":
        gates[0] = _decay(b, gates[0], a_log, dt_bias, gate_activation, gate_lower_bound)
    b.unsupported_if(beta_activation not in ("none", "sigmoid"), f"beta_activation {beta_activation}")
    if gates[1] is not None and beta_activation == "sigmoid":
        gates[1] = b(p.Sigmoid(), b.to(gates[1], F32))
    wide = [b.to(v, F32) for v in operands]
    if qk_l2_norm:
        wide[:2] = (_normalised(b, v, d) for v in wide[:2])
    state, gates = b.transposed(b.to(initial_state, F32), 0, 1, 3, 2), [v and b.to(v, F32) for v in gates]
    y, present = b.node(LinearAttention(n_heads, heads, scale, update_rule), *wide, state, *gates).outputs
    shape = [*b.sizes_of(query, range(axes)), max(n_heads, heads), e]
    return b.to(b.reshaped(y, shape), query.type.dtype), b.transposed(present, 0, 1, 3, 2)


def _want_rows(
    b: NodeBuilder, query: Value, key: Value | None, value: Value | None, decay: Value | None, beta: Value | None,
    state: Value, a_log: Value | None, bias: Value | None,
) -> int:  # fmt: skip
    """How many axes of positions there are, of operands whose shapes and dtypes agree."""
    heads, e, d = (b.static_dim(state, axis) for axis in (1, 2, 3))
    held, axes = Forms(b, heads=heads, e=e, d=d, each=heads * d), 2 if b.rank_of(query) == 4 else 1
    rows, dtype = "n length" if axes == 2 else "positions", query.type.dtype
    held.want("initial_state", state, "n heads e d", *FLOATS)
    held.want("query", query, f"{rows} width" if key is None else f"{rows} keys d", *FLOATS)
    held.want("key", key, f"{rows} keys d", dtype)
    held.want("value", value, f"{rows} heads e", dtype)
    held.want("decay", decay, f"{rows} heads|{rows} heads d", *FLOATS)
    held.want("beta", beta, f"{rows} heads", *FLOATS)
    held.want("a_log", a_log, "heads", *FLOATS)
    held.want("dt_bias", bias, "heads|heads d|each", *FLOATS)
    b.invalid_if((key is None) != (value is None), "key and value", "one", "both or none")
    if key is None:
        width = b.static_dim(query, 1) - heads * e
        b.invalid_if(width <= 0 or width % (2 * d), "width of query", width + heads * e, f"heads of {d}, {d} and {e}")
    return axes


def _by_positions(b: NodeBuilder, state: Value, x: Value, axes: int) -> Value:
    """[n, length, elements] of a value whose first ``axes`` are positions, of one axis or by sequences."""
    width = int(np.prod([b.static_dim(x, axis) for axis in range(axes, b.rank_of(x))]))
    return b.reshaped(x, b.sizes_of(state, [0]), [-1, width])


def _flat_heads(b: NodeBuilder, state: Value, query: Value, key: Value | None, value: Value | None) -> list[Value]:
    """Queries, keys and values [n, length, heads * size]."""
    if key is not None and value is not None:
        return [_by_positions(b, state, v, b.rank_of(query) - 2) for v in (query, key, value)]
    values = b.static_dim(state, 1) * b.static_dim(state, 2)
    packed = b.reshaped(query, b.sizes_of(state, [0]), [-1, b.static_dim(query, 1)])
    half = (b.static_dim(query, 1) - values) // 2
    return list(b.node(Split(2, 3), packed, ints([half, half, values])).outputs)


def _normalised(b: NodeBuilder, x: Value, d: int) -> Value:
    """Heads of length 1."""
    split = b.reshaped(x, [0, 0, b.static_dim(x, 2) // d, d], zero_keeps=True)
    length = b(p.Sqrt(), b(p.Add(), b(ReduceSumSquare(), split, ints([3])), np.array(NORM_EPSILON, F32)))
    return b.reshaped(b(p.Div(), split, length), [0, 0, b.static_dim(x, 2)], zero_keeps=True)


def _decay(b: NodeBuilder, x: Value, a_log: Value | None, bias: Value | None, kind: str, least: float) -> Value:
    """Of projections [n, length, heads or heads * d]."""
    b.unsupported_if(kind not in ("softplus", "qwen", "sigmoid", "kda"), f"gate_activation {kind}")
    if a_log is None or bias is None:
        raise b.invalid("a_log and dt_bias", (a_log, bias), f"operands, for gate_activation {kind}")
    heads = b.static_dim(a_log, 0)
    split = b.reshaped(b.to(x, F32), [0, 0, heads, b.static_dim(x, 2) // heads], zero_keeps=True)
    rate = b(p.Exp(), b.reshaped(b.to(a_log, F32), [heads, 1]))
    moved = b(p.Add(), split, b.reshaped(b.to(bias, F32), [heads, -1]))
    if kind in ("softplus", "qwen"):
        made = b(p.Neg(), b(p.Mul(), rate, b(p.Softplus(), moved)))
    else:
        made = b(p.Mul(), b(p.Sigmoid(), b(p.Mul(), rate, moved)), np.array(least, F32))
    return b.reshaped(made, [0, 0, b.static_dim(x, 2)], zero_keeps=True)
