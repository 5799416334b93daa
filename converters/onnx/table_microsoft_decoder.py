"""Readers of onnxruntime's operators of decoders with a cache of keys and values (domain com.microsoft)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.converters.onnx.graph import NodeBuilder
from bolt_numba.converters.onnx.operands import ints, rank_of, static_dim
from bolt_numba.converters.onnx.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.cache import GroupQueryAttention
from bolt_numba.ops.fill import Range
from bolt_numba.ops.gather import Gather
from bolt_numba.ops.pointwise import Add, Cast, Equal, Mul, Sub, Where
from bolt_numba.ops.shape import Concat, Reshape, Shape, Split, Squeeze, Transpose, Unsqueeze
from bolt_numba.types import I64

microsoft = functools.partial(reader, domain="com.microsoft")


def rotated(
    b: NodeBuilder, x: Any, positions: Any, cos: Value, sin: Value, interleaved: bool, scale: float = 1.0
) -> Any:
    """Heads [n, heads, s, d] turned by the angles of their positions; what the caches do not cover stays.

    positions: [n, s] or [1, s] · cos, sin: [positions, half of the elements that turn].
    """
    half, size = static_dim(b, cos, 1), static_dim(b, x, 3)
    rest = None
    if 2 * half < size:
        x, rest = b.node(Split(-1, 2), x, ints([2 * half, size - 2 * half])).outputs
    c, s = (b(Unsqueeze(), b(Gather(0), table, positions), ints([1])) for table in (cos, sin))
    if interleaved:
        heads = static_dim(b, x, 1)
        pairs = b.node(Split(-1, 2), b(Reshape(), x, ints([0, 0, 0, half, 2])), ints([1, 1])).outputs
        first, second = (b(Squeeze(), p, ints([-1])) for p in pairs)
    else:
        first, second = b.node(Split(-1, 2), x, ints([half, half])).outputs
    turned = [
        b(Sub(), b(Mul(), first, c), b(Mul(), second, s)),
        b(Add(), b(Mul(), first, s), b(Mul(), second, c)),
    ]
    if interleaved:
        y = b(Concat(-1), *(b(Unsqueeze(), t, ints([-1])) for t in turned))
        y = b(Reshape(), y, ints([0, heads, -1, 2 * half]))
    else:
        y = b(Concat(-1), *turned)
    y = y if scale == 1.0 else b(Mul(), y, scale)
    return y if rest is None else b(Concat(-1), y, rest)


def split_heads(b: NodeBuilder, x: Any, heads: int) -> Any:
    """[n, s, heads * d] -> [n, heads, s, d]."""
    return b(Transpose((0, 2, 1, 3)), b(Reshape(), x, ints([0, 0, heads, static_dim(b, x, 2) // heads])))


def merged_heads(b: NodeBuilder, x: Any) -> Any:
    """[n, heads, s, d] -> [n, s, heads * d]."""
    width = static_dim(b, x, 1) * static_dim(b, x, 3)
    return b(Reshape(), b(Transpose((0, 2, 1, 3)), x), ints([0, 0, width]))


def counted(b: NodeBuilder, x: Value, axis: int) -> Any:
    """Positions 0, 1, … along an axis."""
    length = b(Squeeze(), b(Shape(axis, axis + 1), x), ints([0]))
    return b(Range(), np.array(0), length, np.array(1))


@microsoft("RotaryEmbedding")
def rotary_embedding(
    b: NodeBuilder,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """position_ids: [n, s], or [1]: the position of the first element of every sequence."""
    if is_packed_batching:
        raise b.unsupported("is_packed_batching")
    flat = rank_of(b, x) == 3
    if rotary_embedding_dim and 2 * static_dim(b, cos_cache, 1) != rotary_embedding_dim:
        raise b.invalid("rotary_embedding_dim", rotary_embedding_dim, f"{2 * static_dim(b, cos_cache, 1)}")
    positions: Any = position_ids
    if rank_of(b, position_ids) == 1:
        counts = b(Unsqueeze(), counted(b, x, 1 if flat else 2), ints([0]))
        positions = b(Add(), counts, position_ids)
    heads = num_heads or (static_dim(b, x, 2) // (2 * static_dim(b, cos_cache, 1)) if flat else 0)
    y = rotated(b, split_heads(b, x, heads) if flat else x, positions, cos_cache, sin_cache, bool(interleaved), scale)
    return merged_heads(b, y) if flat else y


@microsoft("GroupQueryAttention")
def group_query_attention(
    b: NodeBuilder,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    seqlens_k: Value,
    total_sequence_length: Value,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    head_sink: Value | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    scale: float = 0.0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    k_quant_type: str = "NONE",
    v_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    qk_output: int = 0,
) -> Any:
    """Rotation, then attention with a cache; query may hold query, key and value side by side."""
    quantised = (k_quant_type, v_quant_type) != ("NONE", "NONE")
    if head_sink is not None or smooth_softmax == 1 or qk_output or quantised:
        raise b.unsupported("head_sink, smooth_softmax, qk_output or a quantised cache")
    if num_heads < 1 or kv_num_heads < 1:
        raise b.invalid("num_heads and kv_num_heads", (num_heads, kv_num_heads), "at least 1")
    q, k, v = (query, key, value) if key is not None else _unpacked(b, query, num_heads, kv_num_heads)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise b.invalid("cos_cache and sin_cache", "none", "both with do_rotary")
        positions = position_ids
        if positions is None:
            positions = _positions(b, q, seqlens_k, total_sequence_length)
        turn = functools.partial(
            rotated, b, positions=positions, cos=cos_cache, sin=sin_cache, interleaved=bool(rotary_interleaved)
        )
        q, k = (merged_heads(b, turn(split_heads(b, x, n))) for x, n in ((q, num_heads), (k, kv_num_heads)))
    operator = GroupQueryAttention(num_heads, kv_num_heads, scale, softcap, local_window_size)
    return b(operator, q, k, v, past_key, past_value, seqlens_k, total_sequence_length, attention_bias)


def _unpacked(b: NodeBuilder, packed: Value, num_heads: int, kv_num_heads: int) -> Any:
    """Query, key and value that lie side by side."""
    size = static_dim(b, packed, 2) // (num_heads + 2 * kv_num_heads)
    return b.node(Split(-1, 3), packed, ints([num_heads * size, *(kv_num_heads * size,) * 2])).outputs


def _positions(b: NodeBuilder, q: Value, seqlens_k: Value, total: Value) -> Any:
    """Positions of the new elements: from 0 in a prompt, where all is new, else up to the last valid one."""
    rows = counted(b, q, 1)
    length = b(Shape(1, 2), q)
    last = b(Reshape(), b(Cast(I64), seqlens_k), ints([-1, 1]))
    start = b(Add(), b(Sub(), last, length), ints([1]))
    prompt = b(Equal(), b(Reshape(), b(Cast(I64), total), ints([1])), length)
    return b(Add(), b(Where(), prompt, ints([0]), start), b(Unsqueeze(), rows, ints([0])))
