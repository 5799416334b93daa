"""Readers of gathers, scatters and choices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import I64
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints, constant, ints, known_scalar
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.binary import any_of
from bolt_numba.converters.paddle.reading.tables.fill import TypedValues
from bolt_numba.converters.paddle.reading.tables.shape import broadcast_tensors, strided_bounds
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Compress, Gather, GatherElements, GatherND, NonZero, ScatterElements, ScatterND
from bolt_numba.ops.arrays.random import Multinomial
from bolt_numba.ops.arrays.reduce import CumSum, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Shape, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.pointwise import Add, Div, Equal, GreaterOrEqual, Less, Log, Mul, Not, Where


@PADDLE.reader("lookup_table_v2", "c_embedding", pir=("embedding",), slots={"Ids": "x", "W": "weight"})
def embedding(b: PaddleBuilder, x: Value, weight: Value, *, padding_idx: int = -1, start_index: int = 0) -> Value:
    """Rows of a table; zeros for the index ``padding_idx``, where that is not -1."""
    b.unsupported_if(start_index, f"start_index {start_index}, a part of a table")
    ids = b.to(x, I64)
    made = b(Gather(0), weight, ids)
    if padding_idx == -1:
        return made
    row = padding_idx if padding_idx >= 0 else padding_idx + b.static_dim(weight, 0)
    is_nothing = b.unsqueezed(b(Equal(), ids, row), b.rank_of(ids))
    return b.chosen(is_nothing, 0, made, weight.type.dtype)


@PADDLE.reader(legacy=("lookup_table",), slots={"Ids": "x", "W": "weight"})
def embedding_v1(b: PaddleBuilder, x: Value, weight: Value, *, padding_idx: int = -1) -> Value:
    """As `embedding`, of ids whose last axis has length 1."""
    return embedding(b, b.column(x, b.rank_of(x) - 1, 0), weight, padding_idx=padding_idx)


@PADDLE.reader("lookup_table_dequant", slots={"Ids": "x", "W": "weight"})
def embedding_dequant(b: PaddleBuilder, x: Value, weight: Value, *, padding_idx: int = -1) -> Value:
    """Rows of which the first two numbers are the least and the greatest, the others bytes between them."""
    known = constant(weight)
    if known is None:
        raise b.unsupported("a table that is no constant")
    low, high = known[:, :1], known[:, 1:2]
    codes = np.ascontiguousarray(known[:, 2:], np.float32).view(np.uint8)
    table = b.const((codes.astype(np.float32) * ((high - low) / np.float32(256)) + low).astype(np.float32))
    return embedding_v1(b, x, table, padding_idx=padding_idx)


@PADDLE.reader("gather")
def gather(b: PaddleBuilder, x: Value, index: Value, axis: Value | None = None) -> Value:
    """Slices of x along an axis."""
    at = 0 if axis is None else b.whole(axis, "axis")
    index = b.to(index, I64)
    if b.rank_of(index) == 2 and b.dim_of(index, 1) == 1:
        index = b.shaped(index, [-1])
    return b(Gather(b.axis_of(x, at)), x, index)


@PADDLE.reader("gather_nd")
def gather_nd(b: PaddleBuilder, x: Value, index: Value) -> Value:
    """Slices of x at index tuples, which are the last axis of index; x for each where these are empty."""
    if b.static_dim(index, -1) == 0:
        rank = b.rank_of(index)
        return b.expanded(x, b.joined(b(Shape(0, rank - 1), index), b(Shape(), x)))
    return b(GatherND(), x, b.to(index, I64))


@PADDLE.reader("index_select", slots={"dim": "axis"})
def index_select(b: PaddleBuilder, x: Value, index: Value, *, axis: int = 0) -> Value:
    return b(Gather(b.axis_of(x, axis)), x, b.to(b.flat(index), I64))


# Elements of each row of x at the places that the row of index names.
PADDLE.reader("index_sample")(AsIs(GatherElements(1), "x index:"))


@PADDLE.reader("take_along_axis", slots={"Input": "x"})
def take_along_axis(b: PaddleBuilder, x: Value, index: Value, *, axis: int = 0) -> Value:
    return b(GatherElements(b.axis_of(x, axis)), x, b.to(index, I64))


_REDUCE = {"assign": "none", "add": "add", "sum": "add", "multiply": "mul", "mul": "mul", "amax": "max", "amin": "min"}


@PADDLE.reader("put_along_axis", slots={"Input": "x", "Value": "values", "Result": "out"})
def put_along_axis(
    b: PaddleBuilder,
    x: Value,
    index: Value,
    values: Value,
    *,
    axis: int = 0,
    reduce: str = "assign",
    include_self: bool = True,
) -> Value:
    """X with values put, added, multiplied... where index says along an axis."""
    at, places = b.axis_of(x, axis), b.to(index, I64)
    values = b.expanded(values, b(Shape(), places)) if values.type.shape != places.type.shape else values
    if reduce == "mean":
        return _put_mean(b, x, places, values, at, include_self)
    kind = _REDUCE.get(reduce)
    if kind is None:
        raise b.unsupported(f"reduce = {reduce}")
    if kind != "none" and not include_self:
        neutral = {"add": 0, "mul": 1, "max": _least(x), "min": _greatest(x)}[kind]
        start = b.chosen(b(Equal(), values, values), neutral, values, x.type.dtype)
        x = b(ScatterElements(at), x, places, start)
    return b(ScatterElements(at, kind), x, places, values)


def _put_mean(b: PaddleBuilder, x: Value, places: Value, values: Value, axis: int, include_self: bool) -> Value:
    """X with the means of what is put in each place, its own element among them or not."""
    dtype = x.type.dtype
    zeros = b.filled_like(x, 0)
    counts = b(ScatterElements(axis, "add"), zeros, places, b.filled_like(values, 1))
    if include_self:
        return b(Div(), b(ScatterElements(axis, "add"), x, places, values), b(Add(), counts, 1))
    total = b(ScatterElements(axis, "add"), zeros, places, values)
    is_put = b(Not(), b(Equal(), counts, 0))
    return b.chosen(is_put, b(Div(), total, b.chosen(is_put, counts, 1, dtype)), x, dtype)


def _least(x: Value) -> Any:
    dtype = x.type.dtype
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -math.inf


def _greatest(x: Value) -> Any:
    dtype = x.type.dtype
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else math.inf


@PADDLE.reader("scatter", slots={"Ids": "index"})
def scatter(b: PaddleBuilder, x: Value, index: Value, updates: Value, *, overwrite: bool = True) -> Value:
    """X with rows replaced; or, not overwritten, with the sums of the updates in their place."""
    tuples = b.unsqueezed(b.to(b.shaped(index, [-1]), I64), 1)
    if overwrite:
        return b(ScatterND(), x, tuples, updates)
    zeros = b.filled_like(updates, 0)  # 0 times an infinity is none
    return b(ScatterND("add"), b(ScatterND(), x, tuples, zeros), tuples, updates)


PADDLE.reader("scatter_nd_add")(AsIs(ScatterND("add"), "x index: updates"))


@PADDLE.reader("index_add")
def index_add(b: PaddleBuilder, x: Value, index: Value, add_value: Value, *, axis: int = 0) -> Value:
    """X with slices along an axis added."""
    at, rank = b.axis_of(x, axis), b.rank_of(x)
    order = (at, *(i for i in range(rank) if i != at))
    back = tuple(order.index(i) for i in range(rank))
    tuples = b.unsqueezed(b.to(index, I64), 1)
    made = b(ScatterND("add"), b.transposed(x, *order), tuples, b.transposed(add_value, *order))
    return b.transposed(made, *back)


@PADDLE.reader("index_put")
def index_put(b: PaddleBuilder, x: Value, indices: Values, value: Value, *, accumulate: bool = False) -> Value:
    """X with what the index arrays, broadcast together, name replaced or added to."""
    if any(i.type.dtype.kind == "b" for i in indices):
        b.unsupported_if(len(indices) != 1, "several index arrays of bools")
        tuples = b(Transpose((1, 0)), b(NonZero(), indices[0]))
    else:
        tuples = _tuples(b, indices)
    rank, depth = b.rank_of(tuples), b.static_dim(tuples, -1)
    shape = b.joined(b(Shape(0, rank - 1), tuples), b(Shape(depth), x))
    return b(ScatterND("add" if accumulate else "none"), x, tuples, b.expanded(value, shape))


def _tuples(b: PaddleBuilder, indices: Values) -> Value:
    """Index arrays, broadcast together, as tuples along a new last axis."""
    wide = broadcast_tensors(b, tuple(b.to(i, I64) for i in indices))

    rank = b.rank_of(wide[0])
    return b(Concat(rank), *(b.unsqueezed(v, rank) for v in wide))


@PADDLE.reader("index_fill")
def index_fill(b: PaddleBuilder, x: Value, index: Value, *, axis: int = 0, value: float = 0.0) -> Value:
    """X with one value in slices along an axis."""
    at, rank = b.axis_of(x, axis), b.rank_of(x)
    length, wanted = b.as_scalar(b.length(x, at)), b.to(b.flat(index), I64)
    from_end = b(Where(), b(Less(), wanted, 0), b(Add(), wanted, length), wanted)
    hit = b(Equal(), b.unsqueezed(b.counted(length), 1), b.unsqueezed(from_end, 0))

    mask = b.shaped(any_of(b, hit, 1), [-1] + [1] * (rank - 1 - at))
    fill = int(value) if x.type.dtype.kind in "iu" else value
    return b.chosen(mask, fill, x, x.type.dtype)


@PADDLE.reader("multiplex")
def multiplex(b: PaddleBuilder, x: Values, ids: Value) -> Value:
    """Row i of the operand that ids[i] names."""
    stacked = b(Concat(0), *(b.unsqueezed(v, 0) for v in x))
    rows = b.to(b.shaped(ids, [-1]), I64)
    pairs = b(Concat(1), b.unsqueezed(rows, 1), b.unsqueezed(b.counted(b.as_scalar(b.length(rows, 0))), 1))
    return b(GatherND(), stacked, pairs)


@PADDLE.reader("where_index", pir=("nonzero",), slots={"X": "condition"})
def nonzero(b: PaddleBuilder, condition: Value) -> Value:
    return b(Transpose((1, 0)), b(NonZero(), condition))


@PADDLE.reader("masked_select")
def masked_select(b: PaddleBuilder, x: Value, mask: Value) -> Value:
    """The elements where the mask holds, as a row."""
    if x.type.shape != mask.type.shape:
        x, mask = (b.expanded(v, b(Shape(), w)) for v, w in ((x, mask), (mask, x)))
    return b(Compress(None), b.flat(x), b.flat(mask))


_REPEAT = {"RepeatsTensor": "repeats", "Repeats": "repeats", "dim": "axis"}


@PADDLE.reader("repeat_interleave", pir=("repeat_interleave_with_tensor_index",), slots=_REPEAT)
def repeat_interleave(b: PaddleBuilder, x: Value, repeats: Value, *, axis: int = 0, output_size: int = -1) -> Value:
    """Slice i along an axis repeats[i] times, or each as often: it stands where the sums of the repeats say."""
    at = b.axis_of(x, axis)
    each = known_scalar(repeats)
    if each is not None:
        count = int(each)
        places = b.counted(b(Mul(), b.as_scalar(b.length(x, at)), count))
        return b(Gather(at), x, b(Div(), places, max(count, 1)))
    counts = b.to(b.flat(repeats), I64)
    ends = b(CumSum(), counts, b.const(np.array(0)))
    places = b.counted(b(ReduceSum(False), counts))
    before = b(GreaterOrEqual(), b.unsqueezed(places, 1), b.unsqueezed(ends, 0))
    return b(Gather(at), x, b(ReduceSum(False), b.to(before, I64), ints([1])))


_SET = {
    "StartsTensorList": "starts*", "EndsTensorList": "ends*", "StepsTensorList": "steps*", "Input": "x",
    "ValueTensor": "value",
}  # fmt: skip


@record(frozen=True)
class PaddleCut:
    """The axes of a slice, those of them that vanish, and places of new ones."""

    axes: Ints
    decrease_axes: Ints = ()
    none_axes: Ints = ()


@PADDLE.reader(legacy=("set_value",), slots=_SET)
def set_value_legacy(
    b: PaddleBuilder,
    x: Value,
    value: Value | None,
    starts: Value,
    ends: Value,
    steps: Value,
    *,
    cut: PaddleCut,
    shape: Ints = (),
    typed: TypedValues,
    dtype: Any = None,
    fp16_values: tuple[Any, ...] = (),
) -> Value:
    if value is None:
        given = typed.given or fp16_values
        value = b.const(np.array(given, x.type.dtype).reshape(shape or (len(given),)))
    return set_value_with_tensor(b, x, value, starts, ends, steps, cut=cut)


@PADDLE.reader(pir=("set_value",))
def set_value(
    b: PaddleBuilder,
    x: Value,
    starts: Value,
    ends: Value,
    steps: Value,
    *,
    cut: PaddleCut,
    shape: Ints = (),
    values: tuple[Any, ...] = (),
) -> Value:
    value = b.const(np.array(values, x.type.dtype).reshape(shape or (len(values),)))
    return set_value_with_tensor(b, x, value, starts, ends, steps, cut=cut)


@PADDLE.reader(pir=("set_value_with_tensor",))
def set_value_with_tensor(
    b: PaddleBuilder, x: Value, value: Value, starts: Value, ends: Value, steps: Value, *, cut: PaddleCut
) -> Value:
    """X with a slice replaced: the slice of the elements' places says where."""
    axes = tuple(b.axis_of(x, a) for a in cut.axes)
    gone = [b.axis_of(x, a) for a in cut.decrease_axes]
    if len(axes) == 1 and not cut.none_axes and gone == list(axes):
        return _set_at(b, x, value, b.flat(starts), axes[0])
    bounds = strided_bounds(b, x, axes, b.flat(starts), b.flat(ends), b.flat(steps))
    shape = b(Shape(), x)
    places = b.shaped(b.counted(b.elements(shape)), shape)
    taken = b(Slice(), places, bounds[0], bounds[1], ints(axes), bounds[2])
    rank = b.rank_of(x)
    kept = [i for i in range(rank) if i not in gone]
    seen = b.shaped(taken, b.lengths(taken, kept)) if len(kept) < rank else taken
    for axis in sorted(cut.none_axes):
        seen = b.unsqueezed(seen, axis)
    value = b.to(value, x.type.dtype)
    while b.rank_of(value) > b.rank_of(seen):
        value = b.column(value, 0, 0)
    updates = b.flat(b.expanded(value, b(Shape(), seen)))
    made = b(ScatterElements(0), b.flat(x), b.flat(taken), updates)
    return b.shaped(made, shape)


def _set_at(b: PaddleBuilder, x: Value, value: Value, place: Value, axis: int) -> Value:
    """X with what stands at one place of an axis replaced.  No size follows from the place, so a loop has one plan."""
    rank = b.rank_of(x)
    value = b.to(value, x.type.dtype)
    while b.rank_of(value) >= rank:
        value = b.column(value, 0, 0)
    before, behind = b.lengths(x, range(axis)), b.lengths(x, range(axis + 1, rank))
    updates = b.unsqueezed(b.expanded(value, before, behind), axis)
    places = b.expanded(b.shaped(b.to(place, I64), [1] * rank), before, [1], behind)
    return b(ScatterElements(axis), x, places, updates)


@PADDLE.reader("sampling_id")
def sampling_id(b: PaddleBuilder, x: Value, *, min: float = 0.0, max: float = 1.0, seed: int = 0) -> Value:
    """A column for each row, drawn by its probabilities."""
    return b.shaped(b(Multinomial(1, I64, float(seed) if seed else None), b(Log(), x)), [-1])
