"""Readers of operators that move whole axes, join, split or fill."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import I64
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints, Size, ints
from bolt_numba.converters.tflite.reading.complexes import Complex
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated, as_i64, complexes, exact, stored
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import CumProd, ReduceSum
from bolt_numba.ops.arrays.shape import (
    Concat,
    Expand,
    Identity,
    Reshape,
    Shape,
    Slice,
    Split,
    Squeeze,
    Tile,
    Transpose,
    Unsqueeze,
)
from bolt_numba.ops.pointwise import Abs, Add, BitShift, Cast, Ceil, Div, Equal, Mul, Sub, Where

TFLITE.add("TILE", stored(AsIs(Tile(), "x multiples:")))
TFLITE.add("BROADCAST_TO", stored(AsIs(Expand(), "x shape:")))
TFLITE.add("DENSIFY", stored(AsIs(Identity())))  # what is sparse in the file was filled in when its tensor was read


@TFLITE.reader("RESHAPE")
@stored
def reshape(b: TfliteBuilder, x: Value, shape: Value | None = None, *, new_shape: Ints = ()) -> Value:
    """The operand counts where there is one; [0] as the attribute means a scalar, as in very old files."""
    if shape is None:
        return b(Reshape(allowzero=True), x, ints(() if list(new_shape) == [0] else new_shape))
    return b(Reshape(allowzero=True), x, as_i64(b, shape))


@TFLITE.reader("SQUEEZE")
@stored
def squeeze(b: TfliteBuilder, x: Value, *, squeeze_dims: Ints = ()) -> Value:
    """Without axes all that are known to have length 1."""
    b.rank_of(x)
    ones = [i for i, d in enumerate(x.type.shape or ()) if d == 1]
    return b(Squeeze(), x, ints(squeeze_dims if len(squeeze_dims) else ones))


@TFLITE.reader("EXPAND_DIMS")
@stored
def expand_dims(b: TfliteBuilder, x: Value, axis: Value) -> Value:
    return b(Unsqueeze(), x, b(Reshape(), as_i64(b, axis), ints([1])))


@TFLITE.reader("TRANSPOSE")
@stored
def transpose(b: TfliteBuilder, x: Value, perm: Value) -> Value:
    rank = b.rank_of(x)
    if perm.type.known is None:
        return _transposed_at_run_time(b, x, as_i64(b, perm))
    return b(Transpose(tuple(p % rank for p in b.known_ints(perm, "a permutation"))), x)


def _transposed_at_run_time(b: TfliteBuilder, x: Value, perm: Value) -> Value:
    """Elements by their places in the flattened operand."""
    rank = b.rank_of(x)
    sizes = b(Shape(), x)
    strides = b(CumProd(exclusive=True, reverse=True), sizes, np.array(0))
    place: Any = b.const(np.array(0))
    for i in range(rank):
        axis = b(Slice(), perm, ints([i]), ints([i + 1]))
        count = b.as_scalar(b(Gather(), sizes, axis))
        steps = b(Mul(), b.counted(count), b(Gather(), strides, axis))
        place = b(Add(), place, b(Reshape(), steps, ints([-1, *[1] * (rank - 1 - i)])))
    return b(Gather(), b(Reshape(), x, ints([-1])), place)


@TFLITE.reader("CONCATENATION")
@stored
def concatenation(b: TfliteBuilder, *xs: Value, axis: int = 0, fused_activation_function: str = "NONE") -> Value:
    return activated(b, b(Concat(axis), *xs), fused_activation_function)


@TFLITE.reader("PACK")
@stored
def pack(b: TfliteBuilder, *xs: Value, axis: int = 0) -> Value:
    return b(Concat(axis), *(b.unsqueezed(x, axis) for x in xs))


@TFLITE.reader("UNPACK")
@stored
def unpack(b: TfliteBuilder, x: Value, *, num: int = 0, axis: int = 0) -> tuple[Value, ...]:
    size = b.size_of(x, axis)
    if isinstance(size, int) and size != num:
        raise b.invalid("num", num, f"{size}, the length of axis {axis}")
    parts = b.node(Split(axis, num), x).outputs
    return tuple(b.squeezed(part, axis) for part in parts)


@TFLITE.reader("SPLIT")
@stored
def split(b: TfliteBuilder, axis: Value, x: Value, *, num_splits: int = 0) -> list[Value]:
    along = b.whole(axis, "an axis")
    size = b.size_of(x, along)
    if num_splits < 1 or (isinstance(size, int) and size % num_splits):
        raise b.invalid("num_splits", num_splits, f"a divisor of {size}")
    return b.node(Split(along, num_splits), x).outputs


@TFLITE.reader("SPLIT_V")
@stored
def split_v(b: TfliteBuilder, x: Value, sizes: Value, axis: Value, *, num_splits: int = 0) -> list[Value]:
    """One of the sizes may be -1: what the others leave."""
    along, known = b.whole(axis, "an axis"), sizes.type.known
    lengths: Any = as_i64(b, sizes)
    if known is not None and -1 in known:
        given = [int(s) for s in known.reshape(-1)]
        rest = sum(given) + 1
        size = b.size_of(x, along)
        left: Size = size - rest if isinstance(size, int) else b(Sub(), size, ints([rest]))
        lengths = b.joined([left if s == -1 else s for s in given])
    return b.node(Split(along, num_splits), x, lengths).outputs


@TFLITE.reader("FILL")
@stored
def fill(b: TfliteBuilder, shape: Value, value: Value) -> Value:
    return b(Expand(), b.as_scalar(value), as_i64(b, shape))


@TFLITE.reader("BROADCAST_ARGS")
def broadcast_args(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """The shape that two shapes broadcast to."""
    lengths = [b.static_dim(v, 0) for v in (x, y)]
    wide = [b(Concat(0), np.ones(max(lengths) - n, v.type.dtype), v) for v, n in zip((x, y), lengths, strict=True)]
    return b(Where(), b(Equal(), wide[0], 1), wide[1], wide[0])


@TFLITE.reader("SHAPE")
@exact
@complexes
def shape(b: TfliteBuilder, x: Value) -> Value:
    return b(Shape(), x.re if isinstance(x, Complex) else x)


@TFLITE.reader("RANK")
@exact
@complexes
def rank(b: TfliteBuilder, x: Value) -> Value:
    return b.const(np.array(b.rank_of(x), np.int32))


@TFLITE.reader("RANGE")
def arange(b: TfliteBuilder, start: Value, limit: Value, delta: Value) -> Value:
    """The number of floats is computed in f32."""
    first, last, step = (b.as_scalar(v) for v in (start, limit, delta))
    if first.type.dtype.kind in "iu":
        return b(Range(), first, last, step)
    count = b(Cast(I64), b(Ceil(), b(Abs(), b(Div(), b(Sub(), last, first), step))))
    places = b.counted(count)
    return b(Add(), b(Mul(), b(Cast(first.type.dtype), places), step), first)


@TFLITE.reader("BITCAST")
@exact
def bitcast(b: TfliteBuilder, x: Value) -> Value:
    """A narrower dtype adds a last axis of its parts, the lowest bits first; a wider one takes it away."""
    to = b.declared(0).dtype
    narrow, wide = sorted((x.type.dtype.itemsize, to.itemsize))
    if narrow == wide:
        return b(BitCast(to), x)
    words, parts = np.dtype(f"u{wide}"), np.dtype(f"u{narrow}")
    places = b.const(np.arange(0, 8 * wide, 8 * narrow).astype(words))
    if to.itemsize == narrow:
        whole = b.unsqueezed(b(BitCast(words), x), b.rank_of(x))
        return b(BitCast(to), b(Cast(parts), b(BitShift("RIGHT"), whole, places)))
    if b.static_dim(x, -1) * narrow != wide:
        raise b.invalid("last dimension of x", b.static_dim(x, -1), wide // narrow)
    moved = b(BitShift("LEFT"), b(Cast(words), b(BitCast(parts), x)), places)
    return b(BitCast(to), b(ReduceSum(keepdims=False), moved, ints([-1])))
