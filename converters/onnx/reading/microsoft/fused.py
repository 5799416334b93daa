"""Readers of the fused float operators that onnxruntime's optimizer writes (domain com.microsoft)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.onnx.reading.tables.conv import check_auto_pad, check_kernel
from bolt_numba.converters.onnx.reading.tables.reduce import gemm
from bolt_numba.converters.operands import dim_of, ints, rank_of, static_dim
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import Range, Trilu
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Split, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.layers.attention import FusedAttention
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.layers.norm import LayerNormalization, RMSNormalization
from bolt_numba.ops.pointwise import (
    Add,
    And,
    Cast,
    Clip,
    Gelu,
    GreaterOrEqual,
    HardSigmoid,
    LeakyRelu,
    Less,
    Mul,
    Relu,
    Sigmoid,
    Sub,
    Swish,
    Tanh,
)
from bolt_numba.types import BOOL, I64

Ints = tuple[int, ...]
Floats = tuple[float, ...]
microsoft = functools.partial(reader, domain="com.microsoft")


def activated(b: NodeBuilder, y: Any, activation: str, params: Floats) -> Any:
    """The activation of a fused operator, by its ONNX name and positional parameters."""
    alpha = params[0] if params else None
    match activation:
        case "":
            return y
        case "Relu":
            return b(Relu(), y)
        case "Sigmoid":
            return b(Sigmoid(), y)
        case "Tanh":
            return b(Tanh(), y)
        case "LeakyRelu":
            return b(LeakyRelu(0.01 if alpha is None else alpha), y)
        case "Clip" if len(params) == 2:
            return b(Clip(params[0], params[1]), y)
        case "HardSigmoid" if len(params) == 2:
            return b(HardSigmoid(params[0], params[1]), y)
        case _:
            raise b.unsupported(f"activation {activation} {list(params)}")


@microsoft("FusedConv")
def fused_conv(
    b: NodeBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    residual: Value | None = None,
    *,
    activation: str = "",
    activation_params: Floats = (),
    auto_pad: str = "NOTSET",
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Any:
    check_kernel(b, w, kernel_shape)
    y = b(Conv(strides, pads, dilations, group, check_auto_pad(b, auto_pad)), x, w, bias)
    y = y if residual is None else b(Add(), y, residual)
    return activated(b, y, activation, activation_params)


@microsoft("FusedMatMul", "TransposeMatMul")
def fused_matmul(
    b: NodeBuilder,
    x: Value,
    y: Value,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    x, y = (_batch_last(b, v) if flag else v for v, flag in ((x, transBatchA), (y, transBatchB)))
    return b(MatMul(transA, transB, alpha), x, y)


def _batch_last(b: NodeBuilder, x: Value) -> Any:
    """[m, batch axes, k] -> [batch axes, m, k]."""
    rank = rank_of(b, x)
    return b(Transpose((*range(1, rank - 1), 0, rank - 1)), x)


@microsoft("FusedGemm")
def fused_gemm(
    b: NodeBuilder,
    x: Value,
    y: Value,
    c: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    params = tuple(p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None)
    made = gemm(b, x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(b, made, activation, params)


@microsoft("Gelu")
def gelu(b: NodeBuilder, x: Value) -> Any:
    return b(Gelu(), x)


@microsoft("BiasGelu")
def bias_gelu(b: NodeBuilder, x: Value, bias: Value) -> Any:
    return b(Gelu(), b(Add(), x, bias))


@microsoft("FastGelu")
def fast_gelu(b: NodeBuilder, x: Value, bias: Value | None = None) -> Any:
    return b(Gelu("tanh"), x if bias is None else b(Add(), x, bias))


@microsoft("QuickGelu")
def quick_gelu(b: NodeBuilder, x: Value, *, alpha: float = 1.702) -> Any:
    return b(Swish(alpha), x)


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(
    b: NodeBuilder,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> Any:
    total = _skip(b, x, skip, bias)
    stats = b.wants(1) or b.wants(2)
    made = b(LayerNormalization(-1, epsilon, stats), total, gamma, beta)
    normal, mean, deviation = made if stats else (made, None, None)
    return normal, mean, deviation, total


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    b: NodeBuilder, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> Any:
    total = _skip(b, x, skip, bias)
    return b(RMSNormalization(-1, epsilon), total, gamma), None, None, total


def _skip(b: NodeBuilder, x: Value, skip: Value, bias: Value | None) -> Any:
    total = b(Add(), x, skip)
    return total if bias is None else b(Add(), total, bias)


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(
    b: NodeBuilder,
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Any:
    """Sum of word, position and segment embeddings, normalised.  Positions count from 0 unless they are given."""
    total = b(Gather(0), word_embedding, input_ids)
    if position_ids is None:
        rows = static_dim(b, input_ids, 1)
        total = b(Add(), total, b(Gather(0), position_embedding, ints(range(rows))))
    else:
        total = b(Add(), total, b(Gather(0), position_embedding, position_ids))
    if segment_embedding is not None and segment_ids is not None:
        total = b(Add(), total, b(Gather(0), segment_embedding, segment_ids))
    return (
        b(LayerNormalization(-1, epsilon), total, gamma, beta),
        _counts(b, input_ids, mask),
        total if b.wants(2) else None,
    )


def _counts(b: NodeBuilder, ids: Value, mask: Value | None) -> Any:
    """How many positions of each sequence the mask shows; 0 without a mask."""
    if not b.wants(1):
        return None
    counted = b(ReduceSum(keepdims=False), ids if mask is None else mask, ints([1]))
    return b(Mul(), counted, 0) if mask is None else counted


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
    width = static_dim(b, weights, 1)
    sizes = qkv_hidden_sizes or (width // 3,) * 3
    if sum(sizes) != width or len(sizes) != 3 or num_heads < 1 or any(s % num_heads for s in sizes):
        raise b.invalid("qkv_hidden_sizes and num_heads", (sizes, num_heads), f"three sizes with sum {width}")
    projected = b.node(Split(-1, 3), b(MatMul(), x, weights, bias), ints(sizes)).outputs
    q, k, v = (_heads(b, p, num_heads) for p in projected)
    if past_present_share_buffer or do_rotary:
        raise b.unsupported("past_present_share_buffer or do_rotary")
    if past is not None:
        held = b.node(Split(0, 2), past, ints([1, 1])).outputs
        k, v = (b(Concat(2), b(Squeeze(), p, ints([0])), new) for p, new in zip(held, (k, v), strict=True))
    present = b(Concat(0), *(b(Unsqueeze(), t, ints([0])) for t in (k, v))) if b.wants(1) else None
    added = _mask(b, mask, mask_filter_value, k)
    return _attend(b, (q, k, v), added, attention_bias, scale, unidirectional), present


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
    if past_sequence_length is not None or cache_indirection is not None or b.wants(3):
        raise b.unsupported("past_sequence_length, cache_indirection or the scores as an output")
    operands = _unpacked(b, query, key, value)
    if bias is not None:
        sizes = [static_dim(b, v, -1) for v in operands]
        parts = b.node(Split(0, 3), bias, ints(sizes)).outputs
        operands = [b(Add(), v, part) for v, part in zip(operands, parts, strict=True)]
    q, k, v = (_heads(b, p, num_heads) if rank_of(b, p) == 3 else p for p in operands)
    if past_key is not None and past_value is not None:
        k, v = b(Concat(2), past_key, k), b(Concat(2), past_value, v)
    added = _mask(b, key_padding_mask, mask_filter_value, k)
    return _attend(b, (q, k, v), added, attention_bias, scale, unidirectional), k, v


def _unpacked(b: NodeBuilder, query: Any, key: Any, value: Any) -> list[Any]:
    """Query, key and value apart, each as it is or [n, length, heads * size]."""
    if key is not None and value is not None:
        return [query, key, value]
    if (value is not None) or rank_of(b, query if key is None else key) != 5:
        raise b.invalid("value", "none", "one, or packed operands of rank 5")
    packed, count = (query, 3) if key is None else (key, 2)
    width = static_dim(b, packed, 2) * static_dim(b, packed, 4)
    parts = b.node(Split(3, count), packed, ints([1] * count)).outputs
    flat = [b(Reshape(), part, ints([0, 0, width])) for part in parts]
    return flat if key is None else [query, *flat]


def _heads(b: NodeBuilder, x: Value, heads: int) -> Any:
    """[n, length, heads * size] -> [n, heads, length, size]."""
    size = static_dim(b, x, -1) // max(heads, 1)
    return b(Transpose((0, 2, 1, 3)), b(Reshape(), x, ints([0, 0, heads, size])))


def _mask(b: NodeBuilder, mask: Value | None, fill: float, keys: Any) -> Any:
    """What a mask adds to the scores, broadcast to [n, heads, queries, keys].

    mask: ones (seen) and zeros [n, keys], [n, queries, keys] or [n, 1, queries, keys], or the end of the seen keys of
    each sequence [n], then perhaps their starts [2 n].
    """
    if mask is None:
        return None
    rank = rank_of(b, mask)
    if rank == 1:
        seen = _between(b, mask, keys)
    elif rank in (2, 3, 4):
        seen = b(Cast(BOOL), mask if rank == 4 else b(Unsqueeze(), mask, ints([1, 2] if rank == 2 else [1])))
    else:
        raise b.unsupported(f"a mask of rank {rank}")
    return b(Mul(), b(Sub(), np.ones((), np.float32), b(Cast(np.dtype("f4")), seen)), fill)


def _between(b: NodeBuilder, ends: Value, keys: Any) -> Any:
    """Whether each key lies before the end, and not before the start, of its sequence: [n, 1, 1, keys]."""
    n, given = static_dim(b, keys, 0), static_dim(b, ends, 0)
    if given not in (n, 2 * n):
        raise b.unsupported(f"a mask of {given} lengths for {n} sequences")
    length = b(Squeeze(), b(Shape(2, 3), keys), ints([0]))
    positions = b(Range(), np.array(0), length, np.array(1))
    limits = b(Reshape(), b(Cast(I64), ends), ints([given // n, n, 1, 1, 1]))
    if given == n:
        return b(Less(), positions, b(Squeeze(), limits, ints([0])))
    end, start = (b(Squeeze(), v, ints([0])) for v in b.node(Split(0, 2), limits, ints([1, 1])).outputs)
    return b(And(), b(Less(), positions, end), b(GreaterOrEqual(), positions, start))


def _attend(
    b: NodeBuilder, qkv: tuple[Any, Any, Any], mask: Any, bias: Value | None, scale: float, causal: bool
) -> Any:
    q, _, v = qkv
    size = static_dim(b, q, -1)
    added = mask if bias is None else bias if mask is None else b(Add(), mask, bias)
    if causal and dim_of(b, q, 2) != dim_of(b, qkv[1], 2):  # with a past, the last query sees the last key
        added, causal = _causal(b, q, qkv[1], added), False
    y = b(FusedAttention(scale or float(1 / np.sqrt(size)), causal), *qkv, added)
    heads = static_dim(b, v, 1) * static_dim(b, v, 3)
    return b(Reshape(), b(Transpose((0, 2, 1, 3)), y), ints([0, 0, heads]))


def _causal(b: NodeBuilder, q: Any, k: Any, added: Any) -> Any:
    """A mask under which query i of s sees the keys up to i + (number of keys) - s, on top of ``added``."""
    queries, keys = b(Shape(2, 3), q), b(Shape(2, 3), k)
    square = b(Expand(), np.array(float("-inf"), np.float32), b(Concat(0), queries, keys))
    later = b(Trilu(True), square, b(Squeeze(), b(Add(), b(Sub(), keys, queries), ints([1])), ints([0])))
    return later if added is None else b(Add(), later, added)
