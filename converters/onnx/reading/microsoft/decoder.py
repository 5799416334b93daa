"""Readers of onnxruntime's operators of decoders with a cache of keys and values (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import I32, I64, Array, Sym
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import microsoft, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Expand, Reshape, Shape, Split, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.pointwise import Add, Cast, Div, Equal, Mul, Sub, Where


def by_heads(b: NodeBuilder, x: Any, heads: int) -> Value:
    """[n, s, heads * d] -> [n, s, heads, d]."""
    size = b.dim_of(x, 2)
    return b(Reshape(), x, ints([0, 0, heads, -1 if isinstance(size, Sym) else size // heads]))


def merged(b: NodeBuilder, x: Any) -> Value:
    """[n, s, heads, d] -> [n, s, heads * d]."""
    width = b.dim_of(x, 2) * b.dim_of(x, 3)
    return b(Reshape(), x, ints([0, 0, -1 if isinstance(width, Sym) else width]))


def counted(b: NodeBuilder, x: Value, axis: int) -> Value:
    """Positions 0, 1, … along an axis."""
    length = b(Squeeze(), b(Shape(axis, axis + 1), x), ints([0]))
    return b.counted(length)


@microsoft("RotaryEmbedding")
def rotary_embedding(
    b: NodeBuilder,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: bool = False,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """position_ids: [n, s], or [1]: the position of the first element of every sequence.  onnxruntime ignores scale."""
    if is_packed_batching:
        raise b.unsupported("is_packed_batching")
    flat = b.rank_of(x) == 3
    if rotary_embedding_dim and 2 * b.static_dim(cos_cache, 1) != rotary_embedding_dim:
        raise b.invalid("rotary_embedding_dim", rotary_embedding_dim, f"{2 * b.static_dim(cos_cache, 1)}")
    positions: Any = position_ids
    if b.rank_of(position_ids) == 1:
        counts = b(Unsqueeze(), counted(b, x, 1 if flat else 2), ints([0]))
        positions = b(Add(), counts, position_ids)
    if not flat:
        return b(RotaryEmbedding(interleaved, "HSD"), x, cos_cache, sin_cache, positions)
    half = b.size_of(cos_cache, 1)
    size = 2 * half if isinstance(half, int) else b(Mul(), half, 2)
    split = by_heads(b, x, num_heads) if num_heads else b.reshaped(x, [0, 0, -1, size], zero_keeps=True)
    return merged(b, b(RotaryEmbedding(interleaved, "SHD"), split, cos_cache, sin_cache, positions))


@microsoft("MRotaryEmbedding")
def multimodal_rotary_embedding(
    b: NodeBuilder,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: bool = False,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Ints,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """position_ids: [3, n, s], of which each column of the tables takes one: in sections, or in turns."""
    half, flat = b.static_dim(cos_cache, 1), b.rank_of(x) == 3
    if is_packed_batching or mrope_layout not in (0, 1) or scale != 1:
        raise b.unsupported(f"is_packed_batching, mrope_layout {mrope_layout} or scale {scale}")
    if len(mrope_section) != 3 or min(mrope_section) < 0 or sum(mrope_section) != half:
        raise b.invalid("mrope_section", mrope_section, f"three numbers whose sum is {half}")
    if rotary_embedding_dim not in (0, 2 * half) or (flat and rotary_embedding_dim and num_heads < 1):
        given = rotary_embedding_dim, num_heads
        raise b.invalid("rotary_embedding_dim and num_heads", given, f"{2 * half}, and heads")
    held, dtype = Forms(b, half=half, **({} if rotary_embedding_dim else {"size": 2 * half})), x.type.dtype
    held.want("input", x, "n s width" if flat else "n heads s size", *FLOATS)
    held.want("position_ids", position_ids, "3 n s", I64)
    held.want("cos_cache", cos_cache, "rows half", dtype)
    held.want("sin_cache", sin_cache, "rows half", dtype)
    taken = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        columns = np.arange(half)
        inside = columns < 3 * np.array([half, *mrope_section[1:]])[columns % 3]
        taken = np.where(inside, columns % 3, 0)
    rows = b.squeezed(b(Shape(0, 1), cos_cache), 0)
    places = b(Transpose((1, 2, 0)), b(Gather(0), b.counted_up(position_ids, rows), taken))
    index = b(Add(), b(Mul(), places, half), np.arange(half))
    tables = [b(Gather(0), b.reshaped(t, [-1]), index) for t in (cos_cache, sin_cache)]
    if not flat:
        return b(RotaryEmbedding(interleaved, "HSD"), x, *tables)
    split = by_heads(b, x, num_heads) if num_heads else b.reshaped(x, [0, 0, -1, 2 * half], zero_keeps=True)
    return merged(b, b(RotaryEmbedding(interleaved, "SHD"), split, *tables))


@reader("RotaryEmbedding", since=23)
def standard_rotary_embedding(
    b: NodeBuilder,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Value:
    """x: [n, heads, s, d], or [n, s, heads * d] with ``num_heads``."""
    flat = b.rank_of(x) == 3
    if flat and num_heads < 1:
        raise b.invalid("num_heads", num_heads, "at least 1 for three dimensions")
    tables: list[Any] = [cos_cache, sin_cache]
    if rotary_embedding_dim < 0 or rotary_embedding_dim % 2:
        raise b.invalid("rotary_embedding_dim", rotary_embedding_dim, "an even number")
    if rotary_embedding_dim:
        tables = [b(Slice(), t, ints([0]), ints([rotary_embedding_dim // 2]), ints([-1])) for t in tables]
    operator = RotaryEmbedding(interleaved, "SHD" if flat else "HSD")
    y = b(operator, by_heads(b, x, num_heads) if flat else x, *tables, position_ids)
    return merged(b, y) if flat else y


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
    k_scale: Value | None = None,
    v_scale: Value | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    rotary_interleaved: bool = False,
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
    kinds = k_quant_type, v_quant_type
    if kv_cache_bit_width not in (0, 8) or not {*kinds} <= {"NONE", "PER_TENSOR", "PER_CHANNEL"}:
        raise b.unsupported(f"a quantised cache ({kinds}, {kv_cache_bit_width} bits)")
    if qk_output:
        raise b.unsupported("qk_output")
    if num_heads < 1 or kv_num_heads < 1:
        raise b.invalid("num_heads and kv_num_heads", (num_heads, kv_num_heads), "at least 1")
    q, k, v = (query, key, value) if key is not None else _unpacked(b, query, num_heads, kv_num_heads)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise b.invalid("cos_cache and sin_cache", "none", "both with do_rotary")
        found = _positions(b, q, seqlens_k, total_sequence_length) if position_ids is None else position_ids
        turn = RotaryEmbedding(rotary_interleaved, "SHD")
        pairs = ((q, num_heads), (k, kv_num_heads))
        q, k = (merged(b, b(turn, by_heads(b, x, n), cos_cache, sin_cache, found)) for x, n in pairs)
    operator = GroupQueryAttention(num_heads, kv_num_heads, scale, softcap, local_window_size, smooth_softmax == 1)
    operands = (q, k, v, past_key, past_value, seqlens_k, total_sequence_length, attention_bias, head_sink)
    return b(operator, *operands) if kinds == ("NONE",) * 2 else _scaled(b, operator, operands, kinds, k_scale, v_scale)


def _scaled(b: NodeBuilder, op: GroupQueryAttention, operands: Any, kinds: tuple[str, str], *scales: Any) -> Any:
    """A cache of bytes has keys and values divided by their scales, by which queries and the result are multiplied."""
    q, k, v, past, *others = operands
    if "NONE" in kinds or past is None or any(s is None for s in scales):
        raise b.invalid("k_quant_type and v_quant_type", kinds, "both, with scales and a past")
    (of_k, by_k), (of_v, by_v) = (_of_heads(b, op, past, *pair) for pair in zip(kinds, scales, strict=True))
    y, *present = b(op, b(Mul(), q, by_k), b(Div(), k, of_k), b(Div(), v, of_v), past, *others)
    return b(Mul(), y, by_v), *present


def _of_heads(b: NodeBuilder, op: GroupQueryAttention, past: Value, kind: str, scale: Value) -> tuple[Value, Value]:
    """The scales of all elements of keys or values, and of the heads of queries that share them; or the only one."""
    if kind == "PER_TENSOR":
        one = b(Reshape(), scale, ints([1]))
        return one, one
    size, groups = b.static_dim(past, 3), op.kv_num_heads
    each = b(Reshape(), scale, ints([groups, 1, size]))
    of_queries = b(Expand(), each, ints([groups, op.num_heads // groups, size]))
    return b(Reshape(), each, ints([-1])), b(Reshape(), of_queries, ints([-1]))


def _unpacked(b: NodeBuilder, packed: Value, num_heads: int, kv_num_heads: int) -> list[Value]:
    """Query, key and value that lie side by side."""
    heads, width = (num_heads, kv_num_heads, kv_num_heads), b.size_of(packed, 2)
    if isinstance(width, int):
        return b.node(Split(-1, 3), packed, ints(h * (width // sum(heads)) for h in heads)).outputs
    return b.node(Split(-1, 3), packed, b(Mul(), b(Div(), width, sum(heads)), ints(heads))).outputs


def _positions(b: NodeBuilder, q: Value, seqlens_k: Value, total: Value) -> Value:
    """Positions of the new elements: from 0 in a prompt, where all is new, else up to the last valid one."""
    rows = counted(b, q, 1)
    length = b(Shape(1, 2), q)
    last = b(Reshape(), b(Cast(I64), seqlens_k), ints([-1, 1]))
    start = b(Add(), b(Sub(), last, length), ints([1]))
    prompt = b(Equal(), b(Reshape(), b(Cast(I64), total), ints([1])), length)
    return b(Add(), b(Where(), prompt, ints([0]), start), b(Unsqueeze(), rows, ints([0])))


@microsoft("SparseAttention")
def sparse_attention(
    b: NodeBuilder,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value,
    past_value: Value,
    block_row_indices: Value,
    block_col_indices: Value,
    total_sequence_length: Value,
    key_total_sequence_lengths: Value,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    sparse_block_size: int,
    do_rotary: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
) -> Any:
    """`group_query_attention` with blocks of keys hidden from blocks of queries, by layouts that heads take in turn.

    Block i of queries sees the blocks of keys ``columns[rows[i] : rows[i + 1]]`` of its layout.
    """
    operands = (query, key, value, past_key, past_value, total_sequence_length, key_total_sequence_lengths)
    _want_operands(b, operands, kv_num_heads, (block_row_indices, block_col_indices))
    rows, columns = (b.known_array(v, "block mask") for v in (block_row_indices, block_col_indices))
    if min(sparse_block_size, num_heads) < 1:
        raise b.invalid("sparse_block_size and num_heads", (sparse_block_size, num_heads), "at least 1")
    ask(8 * num_heads, b.what)
    seen = _seen_blocks(b, rows, columns)
    last = b(Sub(), key_total_sequence_lengths, np.array(1, np.int32))
    q = query if key is not None else _unpacked(b, query, num_heads, kv_num_heads)[0]
    size = np.array(sparse_block_size)
    keys = b.counted(b(Reshape(), b(Cast(I64), total_sequence_length), ints([])))
    hidden = b(Where(), b.const(seen), np.zeros((), q.type.dtype), np.array(-np.inf, q.type.dtype))
    by_queries = b(Gather(1), hidden, b(Div(), _positions(b, q, last, total_sequence_length), size))
    by_keys = b(Gather(3), by_queries, b(Div(), keys, size))
    bias = b(Transpose((1, 0, 2, 3)), b(Gather(0), by_keys, ints(np.arange(num_heads) % len(rows))))
    return group_query_attention(
        b, query, key, value, past_key, past_value, last, total_sequence_length, cos_cache, sin_cache, None, bias,
        num_heads=num_heads, kv_num_heads=kv_num_heads, do_rotary=do_rotary, rotary_interleaved=rotary_interleaved,
        scale=scale,
    )  # fmt: skip


def _want_operands(b: NodeBuilder, operands: Any, groups: int, layouts: tuple[Value, Value]) -> None:
    """Refuse operands of sparse attention of other shapes or dtypes."""
    query, key, value, past_key, past_value, total, lengths = operands
    held, dtype = Forms(b), query.type.dtype
    held.want("query", query, "n length width", *FLOATS)
    held.want("key", key, "n length key_width", dtype)
    held.want("value", value, "n length key_width", dtype)
    held.want("past_key", past_key, f"n {groups} room size", dtype)
    held.want("past_value", past_value, f"n {groups} room size", dtype)
    held.want("block_row_indices", layouts[0], "layouts ends", I32)
    held.want("block_col_indices", layouts[1], "layouts places", I32)
    held.want("total_sequence_length", total, "1|", I32)
    held.want("key_total_sequence_lengths", lengths, "n", I32)


def _seen_blocks(b: NodeBuilder, rows: Array, columns: Array) -> Array:
    """Which blocks of keys each block of queries sees in each layout: [layouts, blocks, blocks] of flags."""
    blocks = rows.shape[1] - 1
    if min(blocks, len(rows)) < 1:
        raise b.invalid("block_row_indices", rows.shape, "at least one layout of one block")
    ask(4 * len(rows) * blocks**2, b.what)
    seen = np.zeros((len(rows), blocks, blocks), bool)
    for layout, ends in enumerate(rows):
        for i in range(blocks):
            chosen = columns[layout, ends[i] : ends[i + 1]]
            least, most = chosen.min(initial=0), chosen.max(initial=0)
            if ends[i] < 0 or ends[i + 1] > columns.shape[1] or least < 0 or most >= blocks:
                raise b.invalid("block mask", (ends, columns[layout]), f"places of columns, and numbers below {blocks}")
            seen[layout, i, chosen] = True
    return seen
