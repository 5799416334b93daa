"""Readers of operators on ragged values; `ragged` says how these stand in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import I64
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.ragged import FIRST, RaggedRows, given, lengths_of
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Compress, Gather
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceSum, Softmax, TopK
from bolt_numba.ops.arrays.shape import Concat, Reshape, Shape, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, And, Cast, Div, Equal, GreaterOrEqual, Less, Max, Min, Mul, Not, Or, Sqrt, Sub
from bolt_numba.ops.pointwise import Where as Chosen


def _row_wise(b: PaddleBuilder, v: Value, x: Value) -> Value:
    """V [rows] shaped to broadcast against x [rows, ...]."""
    return b(Reshape(), v, ints([-1, *[1] * (b.rank_of(x) - 1)]))


def _least(x: Value) -> Any:
    return -np.inf if x.type.dtype.kind == "f" else np.iinfo(x.type.dtype).min


@PADDLE.reader("sequence_pool", results=["Out", "MaxIndex"])
def sequence_pool(b: PaddleBuilder, x: Value, *, pooltype: str = "AVERAGE", pad_value: float = 0.0) -> Any:
    """One row for each sequence; ``pad_value`` for one without rows."""
    rows = RaggedRows(b, lengths_of(b, x))
    kind = pooltype.upper()
    if kind in ("FIRST", "LAST"):
        at = rows.starts if kind == "FIRST" else b(Sub(), b(Add(), rows.starts, rows.lengths), 1)
        made = b(Gather(0), x, b(Max(), b(Min(), at, b(Sub(), rows.total, 1)), 0))
    elif kind == "MAX":
        made = b(ReduceMax(keepdims=False), rows.padded(x, _least(x)), ints([1]))
    elif kind in ("SUM", "AVERAGE", "SQRT"):
        made = b(ReduceSum(keepdims=False), rows.padded(x), ints([1]))
        if kind != "SUM":
            count = b(Cast(x.type.dtype), b(Max(), rows.lengths, 1))
            made = b(Div(), made, _row_wise(b, b(Sqrt(), count) if kind == "SQRT" else count, x))
    else:
        raise b.invalid("pooltype", repr(pooltype), "AVERAGE, SUM, SQRT, MAX, FIRST or LAST")
    is_empty = _row_wise(b, b(Equal(), rows.lengths, 0), x)
    return b(Chosen(), is_empty, np.array(pad_value, x.type.dtype), made), None


@PADDLE.reader("sequence_softmax")
def sequence_softmax(b: PaddleBuilder, x: Value, *, data_format: str = "") -> Value:
    """Softmax over the rows of each sequence, which have one element each."""
    rows = RaggedRows(b, lengths_of(b, x))
    made = rows.flat(b(Softmax(1), rows.padded(b(Reshape(), x, ints([-1])), -np.inf)))
    return given(b, b(Reshape(), made, b(Shape(), x)), rows.lengths)


@PADDLE.reader("sequence_reverse", slots={"X": "x"}, results=["Y"])
def sequence_reverse(b: PaddleBuilder, x: Value) -> Value:
    rows = RaggedRows(b, lengths_of(b, x))
    at = b(Sub(), rows.per_row(b(Sub(), b(Add(), rows.starts, rows.lengths), 1)), rows.places)
    return given(b, b(Gather(0), x, at), rows.lengths)


@PADDLE.reader("sequence_expand_as")
def sequence_expand_as(b: PaddleBuilder, x: Value, y: Value) -> Value:
    """Row i of x for each row of sequence i of y."""
    lengths = lengths_of(b, y)
    return given(b, RaggedRows(b, lengths).per_row(x), lengths)


@PADDLE.reader("sequence_expand")
def sequence_expand(b: PaddleBuilder, x: Value, y: Value, *, ref_level: int = -1) -> Value:
    """Sequence i of x, or its row i, as often as sequence i of y has rows."""
    times = RaggedRows(b, lengths_of(b, y))
    own = b.owner.lengths.get(id(x))
    if own is None:
        return given(b, times.per_row(x), times.lengths)
    starts = times.per_row(RaggedRows(b, own).starts)
    rows = RaggedRows(b, times.per_row(own))
    return given(b, b(Gather(0), x, b(Add(), rows.per_row(starts), rows.places)), rows.lengths)


@PADDLE.reader("sequence_concat")
def sequence_concat(b: PaddleBuilder, x: Values) -> Value:
    """Sequences of the same number joined: a stable order of all rows by the sequence that they belong to."""
    parts = [RaggedRows(b, lengths_of(b, v)) for v in x]
    lengths = parts[0].lengths
    for rows in parts[1:]:
        lengths = b(Add(), lengths, rows.lengths)
    owners = b(Concat(0), *(rows.owners for rows in parts))
    _, order = b(TopK(axis=0, largest=False), owners, b(Shape(), owners))
    return given(b, b(Gather(0), b(Concat(0), *x), order), lengths)


@PADDLE.reader(
    "sequence_conv",
    slots={
        "contextLength": "length",
        "contextStart": "start",
        "contextStride": "stride",
        "paddingTrainable": "trained",
    },
)
def sequence_conv(
    b: PaddleBuilder,
    x: Value,
    filter: Value,
    padding_data: Value | None = None,
    *,
    length: int,
    start: int = 0,
    stride: int = 1,
    trained: bool = False,
) -> Value:
    """Products of a filter with the rows around each row; outside its sequence there are zeros."""
    b.unsupported_if(stride != 1 or padding_data is not None, "a stride, or trained padding")
    rows = RaggedRows(b, lengths_of(b, x))
    last, seen = b(Sub(), rows.per_row(rows.lengths), 1), []
    for offset in range(start, start + length):
        place = b(Add(), rows.places, offset)
        inside = b(And(), b(GreaterOrEqual(), place, 0), b(GreaterOrEqual(), last, place))
        at = b(Max(), b(Min(), b(Add(), rows.count, offset), b(Sub(), rows.total, 1)), 0)
        seen.append(b(Chosen(), _row_wise(b, inside, x), b(Gather(0), x, at), np.array(0, x.type.dtype)))
    return given(b, b(MatMul(), b(Concat(1), *seen) if len(seen) > 1 else seen[0], filter), rows.lengths)


@PADDLE.reader("sequence_pad", results=["Out", "Length"])
def sequence_pad(b: PaddleBuilder, x: Value, pad_value: Value, *, padded_length: int = -1) -> tuple[Value, Value]:
    """[n, longest or ``padded_length``, ...], and the lengths."""
    rows = RaggedRows(b, lengths_of(b, x))
    if padded_length >= 0:
        rows.longest = b.const(np.array(padded_length, I64))
    made = rows.padded(x)
    inside = b(Reshape(), rows.inside, ints([0, 0, *[1] * (b.rank_of(x) - 1)]))
    return b(Chosen(), inside, made, pad_value), rows.lengths


@PADDLE.reader("sequence_unpad")
def sequence_unpad(b: PaddleBuilder, x: Value, length: Value) -> Value:
    """The first rows of each of [n, most, ...]."""
    rows = RaggedRows(b, b(Cast(I64), b(Reshape(), length, ints([-1]))))
    rows.longest = b(Gather(0), b(Shape(), x), np.array(1))
    return given(b, rows.flat(x), rows.lengths)


@PADDLE.reader("sequence_slice")
def sequence_slice(b: PaddleBuilder, x: Value, offset: Value, length: Value) -> Value:
    old = RaggedRows(b, lengths_of(b, x))
    first, lengths = (b(Cast(I64), b(Reshape(), v, ints([-1]))) for v in (offset, length))
    rows = RaggedRows(b, lengths)
    starts = rows.per_row(b(Add(), old.starts, first))
    return given(b, b(Gather(0), x, b(Add(), starts, rows.places)), lengths)


@PADDLE.reader("sequence_reshape")
def sequence_reshape(b: PaddleBuilder, x: Value, *, new_dim: int) -> Value:
    """Rows of another length: those of a sequence stay in it."""
    size = b(Gather(0), b(Shape(), x), np.array(1))
    lengths = b(Div(), b(Mul(), lengths_of(b, x), size), new_dim)
    return given(b, b(Reshape(), x, ints([-1, new_dim])), lengths)


@PADDLE.reader("sequence_enumerate")
def sequence_enumerate(b: PaddleBuilder, x: Value, *, win_size: int, pad_value: int = 0) -> Value:
    """Each id with those behind it: [rows, win_size], ``pad_value`` behind the end of a sequence."""
    rows = RaggedRows(b, lengths_of(b, x))
    flat, left, columns = b(Reshape(), x, ints([-1])), rows.per_row(rows.lengths), []
    for offset in range(win_size):
        inside = b(Less(), b(Add(), rows.places, offset), left)
        at = b(Min(), b(Add(), rows.count, offset), b(Sub(), rows.total, 1))
        column = b(Chosen(), inside, b(Gather(0), flat, at), np.array(pad_value, x.type.dtype))
        columns.append(b(Unsqueeze(), column, ints([1])))
    return given(b, b(Concat(1), *columns) if win_size > 1 else columns[0], rows.lengths)


def _kept(b: PaddleBuilder, x: Value, rows: RaggedRows, keep: Value) -> Value:
    """The rows of x where ``keep`` holds."""
    lengths = b(ReduceSum(keepdims=False), rows.padded(b(Cast(I64), keep)), ints([1]))
    return given(b, b(Compress(0), x, keep), lengths)


@PADDLE.reader("sequence_erase")
def sequence_erase(b: PaddleBuilder, x: Value, *, tokens: Ints) -> Value:
    """Sequences without some ids."""
    rows, flat = RaggedRows(b, lengths_of(b, x)), b(Reshape(), x, ints([-1]))
    gone = b(Less(), rows.count, 0)
    for token in tokens:
        gone = b(Or(), gone, b(Equal(), flat, np.array(token, x.type.dtype)))
    return _kept(b, x, rows, b(Not(), gone))


@PADDLE.reader("lod_reset")
def lod_reset(
    b: PaddleBuilder, x: Value, y: Value | None = None, *, target_lod: Ints = (), append: bool = False
) -> Value:
    """X with the lengths of y, or with those between offsets."""
    b.unsupported_if(append, "another level of ragged structure")
    if y is not None and id(y) in b.owner.lengths:
        lengths = b.owner.lengths[id(y)]
    else:
        offsets = b.const(ints(target_lod)) if y is None else b(Cast(I64), b(Reshape(), y, ints([-1])))
        lengths = b(Sub(), *(b(Slice(), offsets, ints([s]), ints([e]), FIRST) for s, e in ((1, 1 << 40), (0, -1))))
    return given(b, b(Reshape(), x, b(Shape(), x)), lengths)
