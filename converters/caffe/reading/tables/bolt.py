"""Readers of layers that Bolt added to Caffe, for nets of language and speech.  Source: its .proto, for names."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32, I64
from bolt_numba.converters import bolt_layers
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.bounded import count_of
from bolt_numba.converters.builder import ints
from bolt_numba.converters.caffe.reading.attributes import Dims
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import OneHot
from bolt_numba.ops.arrays.reduce import CumProd, CumSum, LogSoftmax, ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Expand, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Cast, Equal, Greater, GreaterOrEqual, Mul, Sub, Where

HIDDEN = -10000.0
"""What attention adds to the weight of a place that a mask hides."""


reader("MatMul")(AsIs(MatMul, "x y", transpose_a=False, transpose_b=False))
reader("LogSoftmax")(AsIs(LogSoftmax, axis=1))


@reader("Attention")
def attention(
    b: LayerBuilder, mask: Value, *, num_heads: int, from_sequence_length: int, to_sequence_length: int
) -> Value:
    """What is added to the weights [n, heads, from, to]: 0 where the mask [n, to] is 1, `HIDDEN` where it is 0."""
    b.invalid_if(b.rank_of(mask) != 2, "rank of the mask", b.rank_of(mask), 2)
    hidden = b(Mul(), b(Sub(), 1.0, mask), HIDDEN)
    shape = ints([1, num_heads, from_sequence_length, to_sequence_length])
    return b(Expand(), b(Unsqueeze(), hidden, ints([1, 2])), shape)


@reader("AxisMean")
def axis_mean(b: LayerBuilder, x: Value, *, axis: int = 0) -> Value:
    return b(ReduceMean(keepdims=False), x, ints([axis]))


@reader("Cum")
def cumulative(
    b: LayerBuilder, x: Value, *, operation: str = "SUM", exclusive: bool = False, reverse: bool = False, axis: int = 0
) -> Any:
    operators = {"SUM": CumSum, "PROD": CumProd}
    b.unsupported_if(operation not in operators, f"operation {operation}")
    return b(operators[operation](exclusive, reverse), x, np.array(axis, np.int64))


@reader("OneHot")
def one_hot(
    b: LayerBuilder, x: Value, *, depth: int, axis: int = -1, off_value: float = 0.0, on_value: float = 1.0
) -> Value:
    return b(OneHot(axis), b(Cast(I64), x), ints([depth]), np.array([off_value, on_value], F32))


@reader("SharedWeight")
def shared_weight(b: LayerBuilder, *, shape: Dims, data_type: str = "FLOAT32") -> Value:
    """Numbers that several layers read."""
    return b.blob(0, shape)


@reader("PreAllocatedMemory")
def pre_allocated_memory(b: LayerBuilder, *, shape: Dims, data_type: str = "FLOAT32", value: float = 0.0) -> Value:
    ask(4 * count_of(shape, b.what), b.what)
    return b.const(np.full(shape, value, F32))


@reader("ConvertColor")
def convert_color(
    b: LayerBuilder, x: Value, *, src: str = "YUV_NV21", dst: str = "RGB_0_255", dt: str = "UINT8"
) -> Value:
    return bolt_layers.convert_color(b, x, src, dst, as_bytes=dt in ("UINT8", "INT8"))


reader("LutPreprocess")(lambda b, x: bolt_layers.lut_preprocess(b, x))


@reader("Lut")
def lut(b: LayerBuilder, x: Value, table: Value, *, type: str = "YUV_NV21", mode: str = "CUBIC") -> Value:
    """Linear at any ``mode``, as Bolt's only kernel is."""
    return bolt_layers.lut(b, x, table, type)


@reader("BilateralSliceApply")
def bilateral_slice_apply(
    b: LayerBuilder, x: Value, grid: Value, guide: Value | None = None, *, mode: str = "null"
) -> Value:
    return bolt_layers.bilateral_slice_apply(b, x, grid, guide, mode)


@reader("Check")
def check(b: LayerBuilder, x: Value, y: Value, *, operation: str = "EQUAL") -> Value:
    """1 where the bottoms, broadcast, compare so, else 0."""
    operators = {"EQUAL": Equal, "GREAT": Greater, "GREATEQUAL": GreaterOrEqual}
    b.unsupported_if(operation not in operators, f"operation {operation}")
    return b(Cast(F32), b(operators[operation](), x, y))


@reader("AttentionMask")
def attention_mask(
    b: LayerBuilder, x: Value, *, attention_length: int = -1, same_length: bool = False, mask: float = 10000.0
) -> Value:
    """Weights x [..., q, k], and -mask where a query does not see a key.

    A length above 0: query i sees that many keys before key k - q + i, and that one.  0: it sees all up to key q + i,
    or, of the same length, the q before that one, and it.  Below 0: it sees all.
    """
    if attention_length < 0:
        return x
    q, k = (b.static_dim(x, i) for i in (-2, -1))
    ask(8 * q * k, b.what)
    at, key = np.arange(q)[:, None], np.arange(k)
    last = at + (k - q if attention_length else q)
    first = np.maximum(last - min(attention_length, q + k), 0) if attention_length else at * same_length
    return b(Where(), (first <= key) & (key <= last), x, -mask)


@reader("RelativePositionEmbed")
def relative_position_embed(
    b: LayerBuilder,
    x: Value,
    table: Value | None = None,
    *,
    num_output: int,
    input_dim: int,
    bias_term: bool = True,
    transpose: bool = False,
    axis: int = 1,
) -> Value:
    """[n, length, num_output] for an axis of x: the last rows of a table, with zeros before them where it has too few.

    No bias is added, as Bolt adds none.
    """
    shape = (num_output, input_dim) if transpose else (input_dim, num_output)
    table = b.blob(0, shape, "weight_filler") if table is None else table
    b.invalid_if(table.type.shape != shape, "shape of the table", table.type, list(shape))
    rows: Any = b(Transpose((1, 0)), table) if transpose else table
    length = b.static_dim(x, axis)
    rows = b(Pad("constant"), rows, ints([length - input_dim, 0]), None, ints([0]))
    return b.expanded(rows, b.sizes_of(x, [0]), [length, num_output])


@reader("RelativeShift")
def relative_shift(
    b: LayerBuilder, x: Value, like: Value | None = None, *, axis: int = 1, shift_length: int = 1
) -> Value:
    """Rows along an axis, each of which begins ``shift_length`` places before the one above it (of Transformer-XL).

    Without a second bottom they are read with that many zeros before each row, and the first places are left out, so
    that as many stay.  With one, they are read without zeros, and cut to its length.
    """
    b.dim_of(x, axis)
    axis += b.rank_of(x) if axis < 0 else 0
    if axis == 0 and like is None:
        return x
    rows, length, step = b.static_dim(x, axis - 1), b.static_dim(x, axis), shift_length
    keys = length if like is None else b.static_dim(like, axis)
    kept = step * (length - rows + step) if like is None else length - step - keys
    if axis == 0 or not 0 <= step <= (rows if like is None else length) or kept < 0:
        raise b.invalid(
            "axis and shift_length", (axis, step), f"those of rows [{rows}, {length}] that give {keys} places"
        )
    before, behind = b.sizes_of(x, range(axis - 1)), b.sizes_of(x, range(axis + 1, b.rank_of(x)))
    flat = b.reshaped(x, before, [rows * length], behind)
    if like is not None:
        flat = b.sliced(flat, axis - 1, step * rows)
        return b.sliced(b.reshaped(flat, before, [rows, length - step], behind), axis, 0, keys)
    top = b.sliced(flat, axis - 1, step * length - kept, step * length)
    rest = b(Pad("constant"), b.sliced(x, axis - 1, step), ints([step, 0]), None, ints([axis]))
    rest = b.reshaped(rest, before, [(rows - step) * (step + length)], behind)
    return b.reshaped(b(Concat(axis - 1), top, rest), before, [rows, length], behind)
