"""What readers of Paddle's operators are composed of: sizes at run time, scalars, axes, layouts, activations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64, AnyDType, Array, Sym
from bolt_numba.converters import operands
from bolt_numba.converters.nodes import ForeignBuilder
from bolt_numba.converters.operands import (
    END,
    Size,
    as_scalar,
    dim_of,
    expanded,
    ints,
    joined,
    known_ints,
    known_scalar,
    rank_of,
    sliced,
)
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.program import LEGACY
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import ReduceProd
from bolt_numba.ops.arrays.shape import Reshape, Shape, Squeeze, Transpose
from bolt_numba.ops.pointwise import Cast, Equal, Not, Where

Ints: TypeAlias = tuple[int, ...]
Floats: TypeAlias = tuple[float, ...]
Number: TypeAlias = "Value | int | float | bool"
MOST_PLACES = 1 << 20
"""Places, nodes or steps that one attribute may ask for."""


def to(b: ForeignBuilder, x: Value, dtype: AnyDType) -> Value:
    """The values of x in another dtype."""
    return x if x.type.dtype == dtype else b(Cast(dtype), x)


def floating(b: ForeignBuilder, x: Value) -> Value:
    """x, in f32 where it holds integers or bools."""
    return to(b, x, F32) if x.type.dtype.kind in "iub" else x


def truth(b: ForeignBuilder, x: Value) -> Value:
    """Whether each element is not zero."""
    return x if x.type.dtype == BOOL else b(Not(), b(Equal(), x, 0))


def number(b: ForeignBuilder, x: Value, dtype: AnyDType) -> Number:
    """The only element of x: a number of Python where it is known, else a scalar of ``dtype``."""
    known = known_scalar(x)
    if known is not None:
        return int(known) if dtype.kind in "iu" else known
    return b(Reshape(), to(b, x, dtype), ints(()))


def whole(b: ForeignBuilder, x: Value, what: str) -> int:
    """The only element of x, which must be known."""
    found = known_ints(b, x, what)
    if len(found) != 1:
        raise b.invalid(what, found, "one number")
    return found[0]


def axis_of(b: ForeignBuilder, x: Value, axis: int) -> int:
    """An axis of x, counted from the first."""
    rank = rank_of(b, x)
    if not -rank <= axis < max(rank, 1):
        raise b.invalid(f"axis of '{x.name}'", axis, f"{-rank} to {rank - 1}")
    return axis + rank if axis < 0 else axis


def axes_of(b: ForeignBuilder, x: Value, axes: Sequence[int]) -> Ints:
    """Axes of x, counted from the first; all where none is named."""
    return tuple(axis_of(b, x, a) for a in axes) if axes else tuple(range(rank_of(b, x)))


def size_of(b: ForeignBuilder, x: Value, axis: int) -> Value:
    """A dimension of x, [1] i64; a value also where it is known."""
    return sizes_of(b, x, [axis])


def sizes_of(b: ForeignBuilder, x: Value, axes: Iterable[int]) -> Value:
    """Some dimensions of x, i64; a value also where they are known."""
    return joined(b, operands.sizes_of(b, x, axes))


def counted(b: ForeignBuilder, count: Value | int, dtype: AnyDType = I64) -> Value:
    """0, 1, ... before ``count``."""
    if isinstance(count, int):
        if not 0 <= count <= MOST_PLACES:
            raise b.invalid("number of places", count, f"0 to {MOST_PLACES}")
        return b.const(np.arange(count, dtype=dtype), f"{b.prefix}count")
    made = b(Range(), b.const(np.array(0, I64)), as_scalar(b, count), b.const(np.array(1, I64)))
    return to(b, made, dtype)


def reshaped(b: ForeignBuilder, x: Value, *parts: Value | Sequence[Size]) -> Value:
    """X in a shape made of sizes (0 keeps what is there, -1 is solved) and of shapes."""
    return operands.reshaped(b, x, *parts, zero_keeps=True)


def transposed(b: ForeignBuilder, x: Value, *perm: int) -> Value:
    """X with its axes in another order."""
    return x if perm == tuple(range(len(perm))) else b(Transpose(tuple(perm)), x)


def column(b: ForeignBuilder, x: Value, axis: int, at: int) -> Value:
    """One slice of x, without the axis."""
    return b(Squeeze(), sliced(b, x, axis, at, at + 1 if at != -1 else END), ints([axis]))


def flat(b: ForeignBuilder, x: Value) -> Value:
    """X as one row."""
    return x if x.type.shape is not None and len(x.type.shape) == 1 else b(Reshape(), x, ints([-1]))


def elements(b: ForeignBuilder, shape: Value) -> Value:
    """How many elements a shape has, [1] i64."""
    return b(ReduceProd(True), shape, ints([0]))


def moved_last(b: ForeignBuilder, x: Value, axis: int) -> tuple[Value, Ints]:
    """X with an axis behind the others, and the order that undoes it."""
    rank, at = rank_of(b, x), axis_of(b, x, axis)
    order = (*tuple(i for i in range(rank) if i != at), at)
    return transposed(b, x, *order), tuple(order.index(i) for i in range(rank))


def is_last(b: ForeignBuilder, data_format: str) -> bool:
    """Whether channels are the last axis."""
    if data_format in ("NCHW", "NCDHW", "NCL", "NCW", "NC", "AnyLayout", "ANYLAYOUT", "Undefined(AnyLayout)"):
        return False
    if data_format in ("NHWC", "NDHWC", "NLC", "NWC"):
        return True
    raise b.invalid("data_format", repr(data_format), "NCHW or NHWC")


def layout_of(b: ForeignBuilder, data_format: str) -> str:
    """How spatial operators of the graph name it."""
    return "NHWC" if is_last(b, data_format) else "NCHW"


def spatial_of(b: ForeignBuilder, x: Value, data_format: str) -> Ints:
    """Axes of x that are neither batch nor channels."""
    rank = rank_of(b, x)
    if rank < 3:
        raise b.invalid(f"rank of '{x.name}'", rank, "at least 3")
    return tuple(range(1, rank - 1)) if is_last(b, data_format) else tuple(range(2, rank))


def along(b: ForeignBuilder, v: Value, rank: int, axis: int) -> Value:
    """V [c] shaped to broadcast along one of ``rank`` axes."""
    return v if rank - 1 == axis else reshaped(b, v, [-1] + [1] * (rank - 1 - axis))


def known_dim(b: ForeignBuilder, x: Value, axis: int) -> int | None:
    """A dimension of x where it is a number."""
    dim = dim_of(b, x, axis)
    return None if isinstance(dim, Sym) else int(dim)


def chosen(b: ForeignBuilder, condition: Value, x: Number, y: Number, dtype: AnyDType) -> Value:
    """X where the condition holds, else y."""
    sides = [v if isinstance(v, Value) else b.const(np.array(v, dtype)) for v in (x, y)]
    return b(Where(), condition, *sides)


def array(b: ForeignBuilder, values: Any, dtype: AnyDType = F32) -> Value:
    """A constant."""
    return b.const(np.asarray(values, dtype), f"{b.prefix}const")


def filled_like(b: ForeignBuilder, x: Value, number: float) -> Value:
    """A number in the shape and dtype of x."""
    return expanded(b, np.array(number, x.type.dtype), b(Shape(), x))


def constant(x: Value | None) -> Array | None:
    """What is known of the content of an operand."""
    return None if x is None else x.type.known


def is_legacy(b: PaddleBuilder) -> bool:
    """Whether the program is of the kind that Paddle 2 writes."""
    return b.owner.program.dialect == LEGACY
