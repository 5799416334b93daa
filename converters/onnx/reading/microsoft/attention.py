"""Readers of onnxruntime's attention over keys and values by heads, with or without a past (domain com.microsoft)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.base.types import BOOL, I32, I64, Sym
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.decoder import by_heads, merged
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import GatherElements
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Split, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, And, Cast, Div, GreaterOrEqual, Less, Mul, Sqrt, Sub, Where


@microsoft("Attention")
def attention(
    b: NodeBuilder,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    qkv_hidden_sizes: Ints = (),
    scale: float = 0.0,
    unidirectional: bool = False,
    past_present_share_buffer: int = 0,
    do_rotary: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    """Projection to q, k, v by one matrix, attention by heads.  past, present: keys and values in one tensor."""
    width = b.static_dim(weights, 1)
    sizes = qkv_hidden_sizes or (width // 3,) * 3
    if sum(sizes) != width or len(sizes) != 3 or num_heads < 1 or any(s % num_heads for s in sizes):
        raise b.invalid("qkv_hidden_sizes and num_heads", (sizes, num_heads), f"three sizes with sum {width}")
    projected = b.node(Split(-1, 3), b(MatMul(), x, weights, bias), ints(sizes)).outputs
    q, k, v = (_heads(b, p, num_heads) for p in projected)
    if past_present_share_buffer or do_rotary:
        raise b.unsupported("past_present_share_buffer or do_rotary")
    held: Any = None
    if past is not None:
        held = [b(Squeeze(), p, ints([0])) for p in b.node(Split(0, 2), past, ints([1, 1])).outputs]
        k, v = (b(Concat(2), p, new) for p, new in zip(held, (k, v), strict=True))
    present = b(Concat(0), *(b(Unsqueeze(), t, ints([0])) for t in (k, v))) if b.wants(1) else None
    added = [masked(b, mask, mask_filter_value, k), attention_bias]
    return _attend(b, (q, k, v), added, scale, unidirectional, held and held[0])[0], present


@microsoft("MultiHeadAttention")
def multi_head_attention(
    b: NodeBuilder,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    key_padding_mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    cache_indirection: Value | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: bool = False,
) -> Any:
    """Attention by heads over [n, length, heads * size] operands, or keys and values that are split already.

    Packed operands: query [n, length, heads, 3, size] alone, or key [n, length, heads, 2, size] without values.
    """
    if past_sequence_length is not None or cache_indirection is not None:
        raise b.unsupported("past_sequence_length or cache_indirection")
    operands = biased(b, _unpacked(b, query, key, value), bias)
    q, k, v = (_heads(b, p, num_heads) if b.rank_of(p) == 3 else p for p in operands)
    if past_key is not None and past_value is not None:
        k, v = b(Concat(2), past_key, k), b(Concat(2), past_value, v)
    added = [masked(b, key_padding_mask, mask_filter_value, k), attention_bias]
    y, scores = _attend(b, (q, k, v), added, scale, unidirectional, past_key)
    return y, k, v, scores


@microsoft("DecoderMaskedMultiHeadAttention")
def decoder_masked_multi_head_attention(
    b: NodeBuilder,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    mask_index: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    beam_width: Value | None = None,
    cache_indirection: Value | None = None,
    bias: Value | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    past_present_share_buffer: int = 0,
    output_qk: int = 0,
) -> Any:
    """One new element of each sequence, which sees the past and itself; or what it sees of an encoder, with no past.

    past_present_share_buffer: the past has room for the new element, and ``past_sequence_length`` valid keys.
    cache_indirection: i32 [n / beams, beams, room], which of the beams each earlier key of a beam came from.
    """
    if past_key is None and key is not None and value is not None:
        key, value = (_heads(b, v, num_heads) if b.rank_of(v) == 3 else v for v in (key, value))
    if not past_present_share_buffer or past_key is None or past_value is None or past_sequence_length is None:
        if cache_indirection is not None:
            raise b.unsupported("cache_indirection without a past that has room")
        return multi_head_attention(
            b, query, key, value, bias, mask_index, attention_bias, past_key, past_value,
            num_heads=num_heads, mask_filter_value=mask_filter_value, scale=scale,
        )  # fmt: skip
    operands = biased(b, (query, key, value), bias)
    length = b(Reshape(), past_sequence_length, ints([1]))
    valid = b(Expand(), length, b(Shape(0, 1), query))
    added = _sum(b, masked(b, mask_index, mask_filter_value, past_key), attention_bias)
    total = b(Cast(I32), b(Shape(2, 3), past_key))  # the present is as long as the past, whatever is valid
    operator = GroupQueryAttention(num_heads, num_heads, scale)
    y, k, v = made = b(operator, *operands, past_key, past_value, valid, total, added)
    if cache_indirection is not None:
        own = [_of_beams(b, past, cache_indirection, length) for past in (past_key, past_value)]
        y, *made = b(operator, *operands, *own, valid, total, added)
    scores = None
    if b.wants(3):
        seen = b(Slice(), made[-2], ints([0]), b(Add(), b(Cast(I64), length), 1), ints([2]))
        scores = _scores(b, _heads(b, operands[0], num_heads), seen, scale, added)
    return y, k, v, scores


def _of_beams(b: NodeBuilder, past: Value, origins: Value, length: Value) -> Value:
    """Past keys or values [n, heads, room, size], each taken from the beam of its group that it came from."""
    beams, room = b(Shape(1, 2), origins), b(Shape(2, 3), past)
    rows = b.counted(b(Squeeze(), b(Shape(0, 1), past), ints([0])))
    first = b(Mul(), b(Div(), rows, beams), beams)
    valid = b(Less(), b.counted(b(Squeeze(), room, ints([0]))), b(Cast(I64), length))
    within = b(Where(), valid, b(Reshape(), b(Cast(I64), origins), b.joined([-1], room)), np.array(0))
    places = b(Unsqueeze(), b(Add(), b(Unsqueeze(), first, ints([1])), within), ints([1, 3]))
    return b(GatherElements(0), past, b(Expand(), places, b(Shape(), past)))


def _unpacked(b: NodeBuilder, query: Any, key: Any, value: Any) -> list[Any]:
    """Query, key and value apart, each as it is or [n, length, heads * size]."""
    if key is not None and value is not None:
        return [query, key, value]
    if (value is not None) or b.rank_of(query if key is None else key) != 5:
        raise b.invalid("value", "none", "one, or packed operands of rank 5")
    packed, count = (query, 3) if key is None else (key, 2)
    width = b.static_dim(packed, 2) * b.static_dim(packed, 4)
    parts = b.node(Split(3, count), packed, ints([1] * count)).outputs
    flat = [b(Reshape(), part, ints([0, 0, width])) for part in parts]
    return flat if key is None else [query, *flat]


def biased(b: NodeBuilder, qkv: Sequence[Any], bias: Value | None) -> list[Any]:
    """Query, key and value plus their parts of a bias; those of keys and values that are split by heads are ignored."""
    q, k, v = qkv
    if bias is None:
        return [q, k, v]
    if b.rank_of(k) == 4:
        return [b(Add(), q, b(Slice(), bias, ints([0]), b.joined([b.size_of(q, -1)]))), k, v]
    parts = b.node(Split(0, 3), bias, b.joined([b.size_of(x, -1) for x in qkv])).outputs
    return [b(Add(), x, part) for x, part in zip(qkv, parts, strict=True)]


def _heads(b: NodeBuilder, x: Value, heads: int) -> Value:
    """[n, length, heads * size] -> [n, heads, length, size]."""
    if heads < 1:
        raise b.invalid("num_heads", heads, "at least 1")
    return b(Transpose((0, 2, 1, 3)), by_heads(b, x, heads))


def masked(b: NodeBuilder, mask: Value | None, fill: float, keys: Any) -> Value | None:
    """What a mask adds to the scores, of the dtype of the keys, broadcast to [n, heads, queries, keys].

    mask: ones (seen) and zeros [n, keys], [n, queries, keys] or [n, 1, queries, keys], or the end of the seen keys of
    each sequence [n], then perhaps their starts [2 n].
    """
    if mask is None:
        return None
    rank = b.rank_of(mask)
    if rank == 1:
        seen = _between(b, mask, keys)
    elif rank in (2, 3, 4):
        seen = b(Cast(BOOL), mask if rank == 4 else b(Unsqueeze(), mask, ints([1, 2] if rank == 2 else [1])))
    else:
        raise b.unsupported(f"a mask of rank {rank}")
    dtype = keys.type.dtype
    lowest = float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]
    return b(Mul(), b(Sub(), np.ones((), dtype), b(Cast(dtype), seen)), max(fill, lowest))


def _between(b: NodeBuilder, ends: Value, keys: Any) -> Value:
    """Whether each key lies before the end, and not before the start, of its sequence: [n, 1, 1, keys]."""
    n, given = b.dim_of(keys, 0), b.dim_of(ends, 0)
    if not isinstance(given - n, Sym) and given not in (n, 2 * n):
        raise b.unsupported(f"a mask of {given} lengths for {n} sequences")
    length = b(Squeeze(), b(Shape(2, 3), keys), ints([0]))
    positions, count = b.counted(length), b(Shape(0, 1), keys)
    end, start = b(Cast(I64), ends), None
    if given != n:  # starts are 0 where there are none
        both = b(Concat(0), end, b.expanded(np.zeros((), I64), count))
        end, start = b(Slice(), both, ints([0]), count), b(Slice(), both, count, b(Mul(), count, 2))
    column = ints([-1, 1, 1, 1])
    seen = b(Less(), positions, b(Reshape(), end, column))
    return seen if start is None else b(And(), seen, b(GreaterOrEqual(), positions, b(Reshape(), start, column)))


def _hidden(b: NodeBuilder, q: Any, k: Any, past: Value | None) -> Value:
    """What hides later keys: query i sees the past and the keys up to i behind it, the last query all."""
    queries, keys, dtype = b(Shape(2, 3), q), b(Shape(2, 3), k), k.type.dtype
    square = b(Expand(), np.array(float("-inf"), dtype), b(Concat(0), b(Sub(), queries, 1), keys))
    behind = b(Squeeze(), b(Shape(2, 3), past), ints([0])) if past is not None else b.const(np.array(0))
    return b(Concat(0), b(Trilu(True), square, b(Add(), behind, 1)), b.expanded(np.zeros((), dtype), [1], keys))


def _attend(
    b: NodeBuilder, qkv: tuple[Any, Any, Any], added: list[Any], scale: float, causal: bool, past: Value | None
) -> tuple[Any, Any]:
    """Attention with heads side by side again, and the scores before the softmax where a fourth output is wanted.

    added: to the scores, None for nothing · past: the keys [n, heads, length, size] before those of the queries.
    """
    q, k, v = qkv
    if causal and (b.dim_of(q, 2) != b.dim_of(k, 2) or b.wants(3)):
        added, causal = [*added, _hidden(b, q, k, past)], False
    total = _sum(b, *added)
    q, scale = _scaled(b, q, scale)
    y = b(FusedAttention(scale, causal), q, k, v, total)
    scores = _scores(b, q, k, scale, total) if b.wants(3) else None
    return merged(b, b(Transpose((0, 2, 1, 3)), y)), scores


def _scaled(b: NodeBuilder, q: Any, scale: float) -> tuple[Any, float]:
    """Queries, and what the scores are multiplied by: without a scale 1 over the root of a head's size."""
    size = b.size_of(q, -1)
    if scale:
        return q, scale
    if isinstance(size, int):
        return q, float(1 / np.sqrt(size))
    return b(Div(), q, b(Sqrt(), b(Cast(q.type.dtype), size))), 1.0


def _scores(b: NodeBuilder, q: Any, k: Any, scale: float, added: Any) -> Any:
    """What the softmax is taken of: [n, heads, queries, keys]."""
    q, scale = _scaled(b, q, scale)
    return _sum(b, b(MatMul(trans_b=True, alpha=scale), q, k), added)


def _sum(b: NodeBuilder, *terms: Any) -> Any:
    """The sum of those terms that are there, None where there are none."""
    given = [t for t in terms if t is not None]
    return functools.reduce(lambda x, y: b(Add(), x, y), given) if given else None
