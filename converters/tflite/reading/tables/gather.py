"""Readers of indexing: gathers, scatters, segments and selections whose size depends on the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, U8, AnyDType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Size, ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, cast, exact, reals, stored
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather, GatherND, NonZero, ScatterND, Unique
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ReduceMax
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Transpose
from bolt_numba.ops.pointwise import Add, Equal, Less, Max, Min, Sub, Where


@TFLITE.reader("GATHER")
@stored
def gather(b: TfliteBuilder, x: Value, indices: Value, *, axis: int = 0, batch_dims: int = 0) -> Value:
    """The first ``batch_dims`` axes of both are walked together."""
    rank, places = b.rank_of(x), b.rank_of(indices)
    along = axis + rank if axis < 0 else axis
    batch = batch_dims + places if batch_dims < 0 else batch_dims
    if not 0 <= batch <= min(along, places) or along >= rank:
        raise b.invalid("axis and batch_dims", (axis, batch_dims), f"axes of {rank} and {places}")
    indices = as_i64(b, indices)
    if batch == 0:
        return b(Gather(along), x, indices)
    order = [*range(batch), along, *range(batch, along), *range(along + 1, rank)]
    tuples = b.unsqueezed(indices, places)
    made = b(GatherND(batch), b(Transpose(tuple(order)), x), tuples)
    before = range(places, places + along - batch)
    back = [*range(batch), *before, *range(batch, places), *range(places + along - batch, rank + places - batch - 1)]
    return b(Transpose(tuple(back)), made)


TFLITE.add("GATHER_ND", stored(AsIs(GatherND(), "x indices:")))
TFLITE.reader("EMBEDDING_LOOKUP")(lambda b, ids, table: b(Gather(0), table, ids))


@TFLITE.reader("SCATTER_ND")
@stored
def scatter_nd(b: TfliteBuilder, indices: Value, updates: Value, shape: Value) -> Value:
    """Updates of one place add up, of bools any counts; what gets none is 0 as it is stored."""
    dtype = updates.type.dtype
    zeros = b(ConstantOfShape(0, U8 if dtype == BOOL else dtype), as_i64(b, shape))
    kind = "max" if dtype == BOOL else "add"
    return cast(b, b(ScatterND(kind), zeros, as_i64(b, indices), cast(b, updates, zeros.type.dtype)), dtype)


@TFLITE.reader("SPARSE_TO_DENSE")
@stored
def sparse_to_dense(b: TfliteBuilder, indices: Value, shape: Value, values: Value, default: Value) -> Value:
    """indices: [n, rank], or [n] or a scalar of one axis; values: [n] or a scalar."""
    places = as_i64(b, indices)
    if b.rank_of(indices) < 2:
        places = b(Reshape(), places, ints([-1, 1]))
    count = b.size_of(places, 0)
    updates = b.expanded(values, [count])
    filled = b(Expand(), b.as_scalar(default), as_i64(b, shape))
    return b(ScatterND(), filled, places, updates)


@TFLITE.reader("ONE_HOT")
@stored
def one_hot(b: TfliteBuilder, indices: Value, depth: Value, on: Value, off: Value, *, axis: int = 0) -> Value:
    """An index beyond the depth, or a negative one, is hot nowhere."""
    rank = b.rank_of(indices)
    place = axis + rank + 1 if axis < 0 else axis
    columns = b(Reshape(), b.counted(as_i64(b, depth)), ints([-1, *[1] * (rank - place)]))
    return b(Where(), b(Equal(), b.unsqueezed(as_i64(b, indices), place), columns), b.as_scalar(on), b.as_scalar(off))


@TFLITE.reader("WHERE")
@exact
def where(b: TfliteBuilder, condition: Value) -> Value:
    b.rank_of(condition)
    return b(Transpose((1, 0)), b(NonZero(), condition))


@TFLITE.reader("UNIQUE")
@reals
@stored
def unique(b: TfliteBuilder, x: Value) -> Any:
    """In order of first occurrence."""
    values, _, inverse, _ = b(Unique(sorted=False), x)
    return values, inverse


def _diagonal(b: TfliteBuilder, rows: Size, columns: Size) -> Value:
    """Where the indices of row and column are equal."""
    return b(Equal(), b.unsqueezed(b.counted(rows), 1), b.counted(columns))


@TFLITE.reader("MATRIX_DIAG")
@stored
def matrix_diag(b: TfliteBuilder, x: Value) -> Value:
    """0 beside the diagonal, as it is stored."""
    size = b.size_of(x, -1)
    zero = b.const(np.zeros((), x.type.dtype))
    return b(Where(), _diagonal(b, size, size), b.unsqueezed(x, -2), zero)


@TFLITE.reader("MATRIX_SET_DIAG")
@stored
def matrix_set_diag(b: TfliteBuilder, x: Value, diagonal: Value) -> Value:
    """The diagonal is as long as the shorter side of a matrix."""
    rows, columns = b.sizes_of(x, (-2, -1))
    length = b.size_of(diagonal, -1)
    if not isinstance(length, int) or length != columns:
        last = ints([length - 1]) if isinstance(length, int) else b(Add(), length, ints([-1]))
        diagonal = b(Gather(-1), diagonal, b(Min(), b.counted(columns), last))
    return b(Where(), _diagonal(b, rows, columns), b.unsqueezed(diagonal, -2), x)


def _grid(b: TfliteBuilder, starts: Value, lengths: list[Size]) -> Value:
    """Index tuples [lengths..., m] of a block that begins at ``starts`` [m]."""
    known = [n for n in lengths if isinstance(n, int)]
    if len(known) == len(lengths):
        offsets = np.stack(np.meshgrid(*map(np.arange, known), indexing="ij"), axis=-1)
        return b(Add(), b.const(offsets.astype(np.int64)), starts)
    columns = []
    for i, length in enumerate(lengths):
        places = b(Reshape(), b.counted(length), ints([-1, *[1] * (len(lengths) - 1 - i)]))
        columns.append(b.unsqueezed(b.expanded(places, lengths), len(lengths)))
    return b(Add(), b(Concat(len(lengths)), *columns), starts)


@TFLITE.reader("DYNAMIC_UPDATE_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE")
@stored
def dynamic_update_slice(b: TfliteBuilder, x: Value, update: Value, *starts: Value) -> Value:
    """The update is written so that it lies inside of x, whatever the starts say.

    Axes along which the update is as long as x need no index.
    """
    begin = _start_vector(b, starts)
    rank = b.rank_of(x)
    sizes, lengths = b.sizes_of(x, range(rank)), b.sizes_of(update, range(rank))
    depth = max((i + 1 for i in range(rank) if not (isinstance(sizes[i], int) and sizes[i] == lengths[i])), default=0)
    if depth == 0:
        return update
    room = b(Sub(), b.joined(sizes[:depth]), b.joined(lengths[:depth]))
    first = b(Max(), b(Min(), b.sliced(begin, 0, 0, depth), room), 0)
    return b(ScatterND(), x, _grid(b, first, lengths[:depth]), update)


def _start_vector(b: TfliteBuilder, starts: tuple[Value, ...]) -> Value:
    """Starts as one operand [rank]; they may be given as a scalar each."""
    if len(starts) == 1 and starts[0].type.shape != ():
        return as_i64(b, starts[0])
    return b(Concat(0), *(b(Reshape(), as_i64(b, s), ints([1])) for s in starts))


@TFLITE.reader("SEGMENT_SUM")
def segment_sum(b: TfliteBuilder, x: Value, ids: Value) -> Value:
    """ids: [n], ascending; there are as many results as the last one says."""
    places = as_i64(b, ids)
    rows = b(Add(), b(ReduceMax(), places, ints([0])), 1)
    rest = b.sizes_of(x, range(1, b.rank_of(x)))
    shape = b(Concat(0), rows, b.joined(rest))
    return b(ScatterND("add"), b(ConstantOfShape(0, x.type.dtype), shape), b.unsqueezed(places, 1), x)


def _initial(dtype: AnyDType, reduction: str) -> Any:
    """What a segment without elements gives."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    info: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    return (int if dtype.kind in "iu" else float)(info.min if reduction == "max" else info.max)


def _unsorted_segment(reduction: str) -> Any:
    def read(b: TfliteBuilder, x: Value, ids: Value, count: Value) -> Value:
        """A negative id drops its element: what it adds to goes to a segment behind the others."""
        depth, rank = b.rank_of(ids), b.rank_of(x)
        segments = b(Reshape(), as_i64(b, count), ints([1]))
        places = as_i64(b, ids)
        places = b.unsqueezed(b(Where(), b(Less(), places, 0), segments, places), depth)
        rest = b.sizes_of(x, range(depth, rank))
        shape = b(Concat(0), b(Add(), segments, 1), b.joined(rest))
        empty = b(ConstantOfShape(_initial(x.type.dtype, reduction), x.type.dtype), shape)
        return b.sliced(b(ScatterND(reduction), empty, places, x), 0, 0, -1)

    return read


for _name, _kind in (("SUM", "add"), ("PROD", "mul"), ("MAX", "max"), ("MIN", "min")):
    TFLITE.add(f"UNSORTED_SEGMENT_{_name}", _unsorted_segment(_kind))
