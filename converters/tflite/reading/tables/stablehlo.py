"""Readers of StableHLO's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, Sym
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, cast, exact
from bolt_numba.converters.tflite.reading.tables.windows import combination
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather, GatherND, ScatterElements
from bolt_numba.ops.arrays.reduce import CumProd, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Transpose
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.layers.products.matmul import Einsum

UNARY = {
    "LOGISTIC": p.Sigmoid, "ABS": p.Abs, "COSINE": p.Cos, "EXPONENTIAL": p.Exp, "FLOOR": p.Floor, "LOG": p.Log,
    "NEGATE": p.Neg, "TANH": p.Tanh,
}  # fmt: skip
BINARY = {
    "SUBTRACT": p.Sub(), "DIVIDE": p.Div(), "POWER": p.Pow(), "REMAINDER": p.Mod(fmod=True),
    "SHIFT_LEFT": p.BitShift("LEFT"),
}  # fmt: skip
BITS = {
    "AND": (p.And(), p.BitwiseAnd()), "OR": (p.Or(), p.BitwiseOr()), "ADD": (p.Or(), p.Add()),
    "MULTIPLY": (p.And(), p.Mul()), "MAXIMUM": (p.Or(), p.Max()), "MINIMUM": (p.And(), p.Min()),
}  # fmt: skip
"""For bools and for numbers.  LiteRT takes stored numbers as they are."""
COMPARISONS = {"EQ": p.Equal, "GE": p.GreaterOrEqual, "GT": p.Greater, "LE": p.LessOrEqual, "LT": p.Less}
REDUCTIONS = {
    p.Add: ReduceSum, p.Mul: ReduceProd, p.Max: ReduceMax, p.Min: ReduceMin, p.And: ReduceMin, p.Or: ReduceMax,
}  # fmt: skip
SCATTERS = {p.Add: "add", p.Mul: "mul", p.Max: "max", p.Min: "min"}


def _bits(operators: Any) -> Any:
    return exact(lambda b, x, y: b(operators[x.type.dtype != BOOL], x, y))


for _name, _operator in UNARY.items():
    TFLITE.add(f"STABLEHLO_{_name}", AsIs(_operator()))
for _name, _binary in BINARY.items():
    TFLITE.add(f"STABLEHLO_{_name}", exact(AsIs(_binary)))
for _name, _operators in BITS.items():
    TFLITE.add(f"STABLEHLO_{_name}", _bits(_operators))
TFLITE.add("STABLEHLO_SELECT", AsIs(p.Where(), "condition x y"))
TFLITE.add("STABLEHLO_CONCATENATE", AsIs(Concat, dimension=0))
TFLITE.add("STABLEHLO_TRANSPOSE", AsIs(Transpose, permutation=()))
TFLITE.add("STABLEHLO_RSQRT", lambda b, x: b(p.Reciprocal(), b(p.Sqrt(), x)))
TFLITE.add("STABLEHLO_CLAMP", lambda b, low, x, high: b(p.Min(), b(p.Max(), x, low), high))
TFLITE.add("STABLEHLO_CBRT", lambda b, x: b(p.Mul(), b(p.Sign(), x), b(p.Pow(), b(p.Abs(), x), 1 / 3)))
TFLITE.add("STABLEHLO_CONVERT", lambda b, x: cast(b, x, b.declared(0).dtype))


@TFLITE.reader("STABLEHLO_COMPARE")
def compare(b: TfliteBuilder, x: Value, y: Value, *, comparison_direction: str, compare_type: str = "NOTYPE") -> Value:
    b.unsupported_if(compare_type == "FLOAT_TOTAL_ORDER", "compare_type FLOAT_TOTAL_ORDER")
    if comparison_direction == "NE":
        return b(p.Not(), b(p.Equal(), x, y))
    return b(COMPARISONS[comparison_direction](), x, y)


def _declared_sizes(b: TfliteBuilder) -> list[int]:
    """The shape of the result, which the file must tell."""
    shape = b.declared(0).shape
    if shape is None or any(isinstance(d, Sym) for d in shape):
        raise b.unsupported("a result of unknown shape")
    return [int(d) for d in shape if isinstance(d, int)]


TFLITE.reader("STABLEHLO_RESHAPE")(lambda b, x: b.reshaped(x, _declared_sizes(b)))


@TFLITE.reader("STABLEHLO_BROADCAST_IN_DIM")
def broadcast_in_dim(b: TfliteBuilder, x: Value, dimensions: Value) -> Value:
    """dimensions: the axis of the result for each axis of x."""
    sizes = _declared_sizes(b)
    places = [int(d) for d in b.known_array(dimensions, "broadcast_dimensions").reshape(-1)]
    own = b.sizes_of(x, range(b.rank_of(x)))
    if len(places) != len(own) or sorted(set(places)) != places or any(not 0 <= v < len(sizes) for v in places):
        raise b.invalid("broadcast_dimensions", places, f"{len(own)} axes of {len(sizes)}, ascending")
    wide: list[Any] = [1] * len(sizes)
    for place, size in zip(places, own, strict=True):
        wide[place] = size
    return b(Expand(), b.reshaped(x, wide), ints(sizes))


@TFLITE.reader("STABLEHLO_SLICE")
def slice_(b: TfliteBuilder, x: Value, *, start_indices: Ints, limit_indices: Ints, strides: Ints) -> Value:
    return b(Slice(), x, ints(start_indices), ints(limit_indices), ints(range(len(strides))), ints(strides))


def _clamped(b: TfliteBuilder, starts: Value, sizes: Sequence[Any], lengths: Sequence[int]) -> Value:
    """Starts [..., m] of blocks, moved so that the blocks lie inside."""
    limits = b.joined(sizes)
    return b(p.Max(), b(p.Min(), starts, b(p.Sub(), limits, ints(lengths))), 0)


@TFLITE.reader("STABLEHLO_DYNAMIC_SLICE")
def dynamic_slice(b: TfliteBuilder, x: Value, *starts: Value, slice_sizes: Ints) -> Value:
    rank = b.rank_of(x)
    if len(slice_sizes) != rank or len(starts) != rank:
        raise b.invalid("starts and slice_sizes", (len(starts), len(slice_sizes)), f"{rank} each")
    first = b(Concat(0), *(b(Reshape(), as_i64(b, s), ints([1])) for s in starts))
    first = _clamped(b, first, b.sizes_of(x, range(rank)), slice_sizes)
    made = b(Slice(), x, first, b(p.Add(), first, ints(slice_sizes)))
    return b.reshaped(made, slice_sizes)


@TFLITE.reader("STABLEHLO_IOTA")
def iota(b: TfliteBuilder, *, iota_dimension: int = 0) -> Value:
    sizes = _declared_sizes(b)
    b.invalid_if(not 0 <= iota_dimension < len(sizes), "iota_dimension", iota_dimension, f"an axis of {sizes}")
    steps = b.counted(b.const(np.array(sizes[iota_dimension])))
    column = b(Reshape(), steps, ints([-1, *[1] * (len(sizes) - 1 - iota_dimension)]))
    return cast(b, b(Expand(), column, ints(sizes)), b.declared(0).dtype)


@TFLITE.reader("STABLEHLO_DOT_GENERAL")
def dot_general(
    b: TfliteBuilder,
    x: Value,
    y: Value,
    *,
    lhs_batching_dimensions: Ints = (),
    rhs_batching_dimensions: Ints = (),
    lhs_contracting_dimensions: Ints = (),
    rhs_contracting_dimensions: Ints = (),
) -> Value:
    """Axes of batches first, then the free ones of x and of y."""
    ranks = b.rank_of(x), b.rank_of(y)
    batch = list(zip(lhs_batching_dimensions, rhs_batching_dimensions, strict=True))
    summed = list(zip(lhs_contracting_dimensions, rhs_contracting_dimensions, strict=True))
    b.unsupported_if(sum(ranks) > 26, f"{sum(ranks)} axes")
    left = [chr(97 + i) for i in range(ranks[0])]
    right = [chr(97 + ranks[0] + i) for i in range(ranks[1])]
    for i, j in [*batch, *summed]:
        right[j] = left[i]
    gone = {left[i] for i, _ in [*batch, *summed]}
    out = [left[i] for i, _ in batch] + [c for c in [*left, *right] if c not in gone]
    return b(Einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}"), x, y)


@TFLITE.reader("STABLEHLO_REDUCE")
def reduce(b: TfliteBuilder, x: Value, initial: Value, *, dimensions: Ints = (), body_subgraph_index: int = 0) -> Any:
    operator = combination(b, body_subgraph_index)
    b.unsupported_if(type(operator) not in REDUCTIONS, "a body that gives its second input")
    if not dimensions:
        return b(operator, x, b.as_scalar(initial))
    made = b(REDUCTIONS[type(operator)](False), x, ints(dimensions))
    return b(operator, made, b.as_scalar(initial))


def _starts(b: TfliteBuilder, indices: Value, at: int, places: Sequence[int], rank: int) -> Value:
    """Index vectors as [..., rank], with 0 for axes that they do not tell; `at` is where a vector lies."""
    own = b.rank_of(indices)
    indices = as_i64(b, indices)
    if at == own:
        indices, own = b.unsqueezed(indices, own), own + 1
    if not 0 <= at < own or any(not 0 <= v < rank for v in places) or len(set(places)) != len(places):
        raise b.invalid("index_vector_dim and axes of indices", (at, tuple(places)), f"axes of {own} and {rank}")
    if at != own - 1:
        indices = b(Transpose((*(i for i in range(own) if i != at), at)), indices)
    pads = np.zeros(2 * own, np.int64)
    pads[-1] = 1
    order = [list(places).index(i) if i in places else len(places) for i in range(rank)]
    return b(Gather(own - 1), b(Pad(), indices, pads), ints(order))


def _tuples(b: TfliteBuilder, starts: Value, lengths: Sequence[int], windows: Sequence[int]) -> Value:
    """Index tuples [batch..., windows..., rank] of blocks that begin at ``starts`` [batch..., rank].

    windows: axes of the operand that the blocks keep.
    """
    batch = b.rank_of(starts) - 1
    count = int(np.prod(lengths))
    b.unsupported_if(count > 1 << 24, f"blocks of {count} elements")
    grid = np.stack(np.meshgrid(*map(np.arange, lengths), indexing="ij"), axis=-1)
    grid = grid.reshape(*(lengths[w] for w in windows), len(lengths)).astype(np.int64)
    wide = b.unsqueezed(starts, *range(batch, batch + len(windows))) if windows else starts
    return b(p.Add(), wide, b.const(grid))


@TFLITE.reader("STABLEHLO_GATHER")
def gather(
    b: TfliteBuilder,
    x: Value,
    indices: Value,
    *,
    offset_dims: Ints = (),
    collapsed_slice_dims: Ints = (),
    start_index_map: Ints = (),
    index_vector_dim: int = 0,
    slice_sizes: Ints = (),
) -> Value:
    """Blocks of x, moved to lie inside; axes of a block stand at ``offset_dims`` of the result."""
    rank = b.rank_of(x)
    windows = [i for i in range(rank) if i not in collapsed_slice_dims]
    single = len(slice_sizes) == rank and all(slice_sizes[i] == 1 for i in range(rank) if i not in windows)
    if not single or len(windows) != len(offset_dims):
        raise b.invalid("slice_sizes", slice_sizes, f"{rank} sizes, 1 where collapsed, {len(offset_dims)} left")
    starts = _starts(b, indices, index_vector_dim, start_index_map, rank)
    starts = _clamped(b, starts, b.sizes_of(x, range(rank)), slice_sizes)
    made = b(GatherND(), x, _tuples(b, starts, slice_sizes, windows))
    total = b.rank_of(made)
    first = total - len(windows)
    batch, inside = iter(range(first)), {d: first + k for k, d in enumerate(offset_dims)}
    order = [inside[i] if i in inside else next(batch) for i in range(total)]
    return b(Transpose(tuple(order)), made)


@TFLITE.reader("STABLEHLO_SCATTER")
@exact
def scatter(
    b: TfliteBuilder,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    update_window_dims: Ints = (),
    inserted_window_dims: Ints = (),
    scatter_dims_to_operand_dims: Ints = (),
    index_vector_dim: int = 0,
    update_computation_subgraph_index: int = 0,
) -> Value:
    """Blocks of updates combined with x; what lies outside goes to an element behind the others, which is dropped."""
    rank, places = b.rank_of(x), b.rank_of(updates)
    operator = combination(b, update_computation_subgraph_index)
    kind = "none" if operator is None else SCATTERS.get(type(operator), "")
    b.unsupported_if(not kind, f"a combination by {operator}")
    windows = [i for i in range(rank) if i not in inserted_window_dims]
    if len(windows) != len(update_window_dims) or any(not 0 <= d < places for d in update_window_dims):
        raise b.invalid("update_window_dims", update_window_dims, f"{len(windows)} axes of {places}")
    sizes = [b.static_dim(updates, d) for d in update_window_dims]
    lengths = [sizes[windows.index(i)] if i in windows else 1 for i in range(rank)]
    order = [*(i for i in range(places) if i not in update_window_dims), *update_window_dims]
    starts = _starts(b, indices, index_vector_dim, scatter_dims_to_operand_dims, rank)
    tuples = _tuples(b, starts, lengths, windows)
    shape = b(Shape(), x)
    inside = b(p.And(), b(p.GreaterOrEqual(), tuples, 0), b(p.Less(), tuples, shape))
    strides = b(CumProd(exclusive=True, reverse=True), shape, np.array(0))
    flat = b(ReduceSum(False), b(p.Mul(), tuples, strides), ints([-1]))
    end = b(ReduceProd(False), shape, ints([0]))
    flat = b(p.Where(), b(ReduceMin(False), inside, ints([-1])), flat, end)
    one = b.const(np.zeros(1, x.type.dtype))
    column = b(Concat(0), b(Reshape(), x, ints([-1])), one)
    moved = b(Reshape(), b(Transpose(tuple(order)), updates), ints([-1]))
    made = b(ScatterElements(0, kind), column, b(Reshape(), flat, ints([-1])), moved)
    return b(Reshape(allowzero=True), b.sliced(made, 0, 0, -1), shape)
