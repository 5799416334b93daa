"""Readers of operators that make arrays from shapes, rules or attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.records import field_rows, record
from bolt_numba.base.types import BOOL, F32, F64, I64, AnyDType
from bolt_numba.converters.builder import MOST_PLACES, Floats, Ints, ints, known_scalar
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import GatherND, OneHot
from bolt_numba.ops.arrays.generate import ConstantOfShape, Range
from bolt_numba.ops.arrays.random import RandomNormal, RandomUniform
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.pointwise import Add, Div, Equal, Floor, Less, Max, Min, Mod, Mul, Pow, Sub


def filled(b: PaddleBuilder, shape: Value, value: float | int | bool, dtype: AnyDType) -> Value:
    """An array of one value; the shape may be known only at run time."""
    if dtype.kind in "iub":
        value = bool(value) if dtype == BOOL else int(value)
    return b(ConstantOfShape(value, dtype), b.to(b.flat(shape), I64))


def parsed(text: str) -> float | int:
    """A number as Paddle writes it in an attribute: exact for integers."""
    try:
        return int(text)
    except ValueError:
        return float(text)


_FILL = {"ShapeTensorList": "shape*", "ShapeTensor": "shape", "ValueTensor": "value"}


@PADDLE.reader("fill_constant", slots=_FILL)
def fill_constant(b: PaddleBuilder, shape: Value, value: Value, *, dtype: AnyDType, str_value: str = "") -> Value:
    known = known_scalar(value)
    if known is None or dict(b.operation.inputs).get("ValueTensor"):
        return b.expanded(b.to(b.as_scalar(value), dtype), b.to(b.flat(shape), I64))
    return filled(b, shape, parsed(str_value) if str_value else known, dtype)


@PADDLE.reader(pir=("full",))
def full(b: PaddleBuilder, *, shape: Ints, value: float, dtype: AnyDType) -> Value:
    return filled(b, b.const(ints(shape)), value, dtype)


@PADDLE.reader("full_int_array")
def full_int_array(b: PaddleBuilder, *, value: Ints, dtype: AnyDType | None = None) -> Value:
    return b.const(np.array(value, dtype or I64))


@PADDLE.reader(pir=("full_with_tensor",))
def full_with_tensor(b: PaddleBuilder, value: Value, shape: Value, *, dtype: AnyDType | None = None) -> Value:
    return b.expanded(b.to(b.as_scalar(value), dtype or value.type.dtype), b.to(b.flat(shape), I64))


@PADDLE.reader("fill_any_like")
def fill_any_like(b: PaddleBuilder, x: Value, *, value: float = 0.0, dtype: AnyDType | None = None) -> Value:
    return filled(b, b(Shape(), x), value, dtype or x.type.dtype)


@PADDLE.reader(pir=("full_like",))
def full_like(b: PaddleBuilder, x: Value, value: Value, *, dtype: AnyDType | None = None) -> Value:
    wanted = dtype or x.type.dtype
    known = known_scalar(value)
    if known is None:
        return b.expanded(b.to(b.as_scalar(value), wanted), b(Shape(), x))
    return filled(b, b(Shape(), x), known, wanted)


@PADDLE.reader("fill_zeros_like", "fill_zeros_like2")
def fill_zeros_like(b: PaddleBuilder, x: Value, *, dtype: AnyDType | None = None) -> Value:
    return filled(b, b(Shape(), x), 0, x.type.dtype)


@PADDLE.reader(legacy=("fill_any",))
def fill_any(b: PaddleBuilder, x: Value, *, value_float: float = 0.0, value_int: int = 0) -> Value:
    value = value_int if x.type.dtype.kind in "iu" else value_float
    return filled(b, b(Shape(), x), value, x.type.dtype)


@PADDLE.reader(pir=("fill",))
def fill(b: PaddleBuilder, x: Value, value: Value) -> Value:
    return full_like(b, x, value)


@PADDLE.reader("fill_constant_batch_size_like", pir=("full_batch_size_like",))
def fill_constant_batch_size_like(
    b: PaddleBuilder,
    input: Value,
    *,
    shape: Ints,
    value: float = 0.0,
    str_value: str = "",
    dtype: AnyDType | None = None,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
) -> Value:
    """A filled array, one of whose dimensions is that of another array."""
    at = output_dim_idx
    sizes = b.joined(shape[:at], b.length(input, input_dim_idx), shape[at + 1 :])
    return filled(b, sizes, parsed(str_value) if str_value else value, dtype or F32)


@record(frozen=True)
class TypedValues:
    """Numbers in the attribute of their dtype."""

    values: Floats = ()
    fp32_values: Floats = ()
    fp64_values: Floats = ()
    int32_values: Ints = ()
    int64_values: Ints = ()
    bool_values: Ints = ()

    @property
    def given(self) -> tuple[Any, ...]:
        return next(filter(None, (getattr(self, name) for name in field_rows(self))), ())


@PADDLE.reader("assign_value")
def assign_value(
    b: PaddleBuilder, output: Value | None = None, *, shape: Ints, dtype: AnyDType, typed: TypedValues
) -> Value:
    made = np.array(typed.given, dtype)
    b.invalid_if(made.size != int(np.prod(shape)), "number of values", made.size, int(np.prod(shape)))
    return b.const(made.reshape(shape))


PADDLE.reader(pir=("assign_out",))(lambda b, x, output: x)


@PADDLE.reader("empty", slots={"ShapeTensorList": "shape*"})
def empty(b: PaddleBuilder, shape: Value, *, dtype: AnyDType = F32) -> Value:
    """Zeros: what an empty array holds is left open."""
    return filled(b, shape, 0, dtype)


@PADDLE.reader(pir=("empty_like",))
def empty_like(b: PaddleBuilder, x: Value, *, dtype: AnyDType | None = None) -> Value:
    return filled(b, b(Shape(), x), 0, dtype or x.type.dtype)


@PADDLE.reader("range", pir=("arange",))
def arange(b: PaddleBuilder, start: Value, end: Value, step: Value, *, dtype: AnyDType | None = None) -> Value:
    wanted = dtype or start.type.dtype
    ends = [b.to(b.as_scalar(v), wanted) for v in (start, end, step)]
    return b(Range(), *ends)


@PADDLE.reader("linspace")
def linspace(b: PaddleBuilder, start: Value, stop: Value, num: Value, *, dtype: AnyDType | None = None) -> Value:
    """From both ends half of the numbers each, so that both are exact."""
    wanted = dtype or F32
    made = _spaced(b, b.to(b.as_scalar(start), F64), b.to(b.as_scalar(stop), F64), num)
    return b.to(made, wanted)


def _spaced(b: PaddleBuilder, start: Value, stop: Value, num: Value) -> Value:
    """``num`` numbers from start to stop, f64."""
    count = b.as_scalar(b.to(num, I64))
    steps = b.counted(count, F64)
    gaps = b(Max(), b.to(b(Sub(), count, 1), F64), 1.0)
    step = b(Div(), b(Sub(), stop, start), gaps)
    below = b(Add(), start, b(Mul(), steps, step))
    above = b(Sub(), stop, b(Mul(), b(Sub(), b(Sub(), b.to(count, F64), 1.0), steps), step))
    is_low = b(Less(), steps, b(Mul(), b.to(count, F64), 0.5))
    return b.chosen(is_low, below, above, F64)


@PADDLE.reader("logspace")
def logspace(
    b: PaddleBuilder, start: Value, stop: Value, num: Value, base: Value, *, dtype: AnyDType | None = None
) -> Value:
    exponents = _spaced(b, b.to(b.as_scalar(start), F64), b.to(b.as_scalar(stop), F64), num)
    return b.to(b(Pow(), b.to(b.as_scalar(base), F64), exponents), dtype or F32)


@PADDLE.reader("eye")
def eye(b: PaddleBuilder, num_rows: Value, num_columns: Value, *, dtype: AnyDType = F32) -> Value:
    """Ones on the diagonal; as many columns as rows where their number is -1."""
    columns = known_scalar(num_columns)
    wide = num_rows if columns == -1 else num_columns
    rows, cells = (b.counted(b.as_scalar(b.to(v, I64))) for v in (num_rows, wide))
    return b.to(b(Equal(), b.unsqueezed(rows, 1), b.unsqueezed(cells, 0)), dtype)


@PADDLE.reader("one_hot_v2", pir=("one_hot",), slots={"depth_tensor": "depth", "num_classes": "depth"})
def one_hot(b: PaddleBuilder, x: Value, depth: Value, *, dtype: AnyDType = F32) -> Value:
    """1 at the place of x along a new last axis; nothing where x is beyond the depth."""
    return b(OneHot(-1), b.to(x, I64), b.to(b.as_scalar(depth), I64), b.const(np.array([0, 1], dtype)))


@PADDLE.reader(legacy=("one_hot",), slots={"depth_tensor": "depth"})
def one_hot_v1(b: PaddleBuilder, x: Value, depth: Value, *, dtype: AnyDType = F32) -> Value:
    """As `one_hot`, of ids whose last axis has length 1."""
    return one_hot(b, b.column(x, b.rank_of(x) - 1, 0), depth, dtype=dtype)


_MASK = {"MaxLenTensor": "max_len", "maxlen": "max_len"}


@PADDLE.reader("sequence_mask", slots=_MASK)
def sequence_mask(b: PaddleBuilder, x: Value, max_len: Value, *, out_dtype: AnyDType = I64) -> Value:
    """1 in the first x places of a new last axis, of length ``max_len`` (-1: the greatest x)."""
    known = known_scalar(max_len)
    lengths = b.to(x, I64)
    longest = b(ReduceMax(False), lengths) if known is not None and known < 0 else b.to(b.as_scalar(max_len), I64)
    return b.to(b(Less(), b.counted(longest), b.unsqueezed(lengths, b.rank_of(x))), out_dtype)


@PADDLE.reader("shard_index", slots={"X": "input"})
def shard_index(
    b: PaddleBuilder, input: Value, *, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Value:
    """Indices of one of several shards, counted from its first; another value for those of others."""
    b.invalid_if(nshards < 1 or not 0 <= shard_id < nshards, "shard_id", shard_id, f"0 to {nshards - 1}")
    each = -(-index_num // nshards)
    shard = b(Div(), input, each)
    return b.chosen(b(Equal(), shard, shard_id), b(Mod(), input, each), ignore_value, input.type.dtype)


_UNIFORM = {"ShapeTensorList": "shape*"}


@PADDLE.reader("uniform_random", pir=("uniform",), slots=_UNIFORM)
def uniform(b: PaddleBuilder, shape: Value, min: Value, max: Value, *, dtype: AnyDType = F32, seed: int = 0) -> Value:
    """Numbers between two known ones."""
    low, high = (b.number(v, F64) for v in (min, max))
    if isinstance(low, Value) or isinstance(high, Value):
        raise b.unsupported("limits that only the run tells")
    return b(RandomUniform(float(low), float(high), dtype, float(seed) if seed else None), b.to(shape, I64))


@PADDLE.reader("gaussian_random", pir=("gaussian",), slots=_UNIFORM)
def gaussian(
    b: PaddleBuilder, shape: Value, *, mean: float = 0.0, std: float = 1.0, dtype: AnyDType = F32, seed: int = 0
) -> Value:
    return b(RandomNormal(mean, std, dtype, float(seed) if seed else None), b.to(shape, I64))


@PADDLE.reader("randint", slots={"ShapeTensorList": "shape*"})
def randint(
    b: PaddleBuilder, shape: Value, *, low: int = 0, high: int = 0, dtype: AnyDType = I64, seed: int = 0
) -> Value:
    """Whole numbers from ``low`` up to ``high``, which is not among them."""
    drawn = RandomUniform(float(low), float(high), F64, float(seed) if seed else None)
    return b.to(b(Floor(), b(drawn, b.to(shape, I64))), dtype)


@PADDLE.reader("bernoulli")
def bernoulli(b: PaddleBuilder, x: Value) -> Value:
    """1 with probability x, else 0."""
    return b.to(b(Less(), b(RandomUniform(0.0, 1.0, x.type.dtype, None), b(Shape(), x)), x), x.type.dtype)


@PADDLE.reader("diag_v2", pir=("diag",), slots={"X": "x"})
def diag(b: PaddleBuilder, x: Value, *, offset: int = 0, padding_value: float = 0.0) -> Value:
    """A matrix with a vector on a diagonal, or the diagonal of a matrix."""
    if b.rank_of(x) == 2:
        return diagonal(b, x, offset=offset, axis1=0, axis2=1)
    side = abs(offset)
    longer = b(Pad(), x, ints([0, side]))
    places = b.counted(b.as_scalar(b.length(longer, 0)))
    is_on = b(Equal(), b(Sub(), b.unsqueezed(places, 0), b.unsqueezed(places, 1)), offset)
    values = b.unsqueezed(longer, 1 if offset >= 0 else 0)
    fill = int(padding_value) if x.type.dtype.kind in "iu" else padding_value
    return b.chosen(is_on, values, fill, x.type.dtype)


@PADDLE.reader("diag_embed", slots={"Input": "input", "dim1": "axis1", "dim2": "axis2"})
def diag_embed(b: PaddleBuilder, input: Value, *, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Value:
    """Vectors (the last axis) on a diagonal of matrices, which two new axes hold."""
    rank = b.rank_of(input) + 1
    first, second = (a + rank if a < 0 else a for a in (axis1, axis2))
    pads = ints([0] * (2 * rank - 3) + [abs(offset)])
    longer = b(Pad(), input, pads)
    places = b.counted(b.as_scalar(b.length(longer, -1)))
    is_on = b(Equal(), b(Sub(), b.unsqueezed(places, 0), b.unsqueezed(places, 1)), offset)
    values = b.unsqueezed(longer, rank - 1 if offset >= 0 else rank - 2)
    made = b.chosen(is_on, values, 0, input.type.dtype)
    order = [i for i in range(rank) if i not in (first, second)] + [first, second]
    return b.transposed(made, *(order.index(i) for i in range(rank)))


@PADDLE.reader("diagonal", slots={"Input": "x"})
def diagonal(b: PaddleBuilder, x: Value, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """A diagonal of the matrices that two axes hold, as the last axis."""
    rank, first, second = b.rank_of(x), b.axis_of(x, axis1), b.axis_of(x, axis2)
    rest = [i for i in range(rank) if i not in (first, second)]
    y = b.transposed(x, first, second, *rest)
    starts = max(-offset, 0), max(offset, 0)
    sizes = [b(Sub(), b.as_scalar(b.length(y, i)), starts[i]) for i in range(2)]
    places = b.counted(b(Max(), b(Min(), *sizes), 0))
    pairs = b(Concat(1), *(b.unsqueezed(b(Add(), places, starts[i]), 1) for i in range(2)))
    made = b(GatherND(), y, pairs)
    return b.transposed(made, *range(1, rank - 1), 0)


@PADDLE.reader("trace", slots={"Input": "x"})
def trace(b: PaddleBuilder, x: Value, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:

    return b(ReduceSum(False), diagonal(b, x, offset=offset, axis1=axis1, axis2=axis2), ints([-1]))


@PADDLE.reader("fill_diagonal")
def fill_diagonal(b: PaddleBuilder, x: Value, *, value: float = 0.0, offset: int = 0, wrap: bool = False) -> Value:
    b.unsupported_if(b.rank_of(x) != 2 or wrap, "wrapped diagonals, and those of more than two axes")
    rows, columns = (b.counted(b.as_scalar(b.length(x, i))) for i in range(2))
    is_on = b(Equal(), b(Sub(), b.unsqueezed(columns, 0), b.unsqueezed(rows, 1)), offset)
    fill = int(value) if x.type.dtype.kind in "iu" else value
    return b.chosen(is_on, fill, x, x.type.dtype)


@PADDLE.reader("tril_indices", slots={"rows": "rows", "cols": "columns"})
def tril_indices(b: PaddleBuilder, *, rows: int, columns: int, offset: int = 0, dtype: AnyDType = I64) -> Value:
    """Rows and columns of the places on and below a diagonal."""
    return _places(b, rows, columns, dtype, lambda r, c: c - r <= offset)


@PADDLE.reader("triu_indices", slots={"row": "rows", "col": "columns"})
def triu_indices(b: PaddleBuilder, *, rows: int, columns: int, offset: int = 0, dtype: AnyDType = I64) -> Value:
    """Rows and columns of the places on and above a diagonal."""
    return _places(b, rows, columns, dtype, lambda r, c: c - r >= offset)


def _places(b: PaddleBuilder, rows: int, columns: int, dtype: AnyDType, is_in: Any) -> Value:
    if not (rows >= 0 and columns >= 0 and rows * columns <= MOST_PLACES):
        raise b.invalid("rows and columns", (rows, columns), f"at most {MOST_PLACES} places")
    r, c = np.indices((rows, columns))
    return b.const(np.stack(np.nonzero(is_in(r, c))).astype(dtype))
