"""What readers ask of their operands: ranks, known values, constants made of attributes, sizes that the run tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bolt_numba.base.types import Array, Dim, Sym
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Squeeze, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.pointwise import Less, Sub, Where

if TYPE_CHECKING:
    from bolt_numba.converters.nodes import ForeignBuilder

Size: TypeAlias = "int | Value"
"""A number of elements: an int, or a value of shape [1] i64."""
END = np.iinfo(np.int64).max
"""Behind the last element of any axis."""


def rank_of(b: ForeignBuilder, x: Value) -> int:
    """Rank of an operand; raises UnsupportedOpError when it is unknown."""
    if x.type.shape is None:
        raise b.unsupported(f"operand '{x.name}' of unknown rank")
    return len(x.type.shape)


def dim_of(b: ForeignBuilder, x: Value, axis: int) -> Dim:
    """One dimension of an operand; raises UnsupportedOpError when the rank is unknown."""
    rank = rank_of(b, x)
    if not -rank <= axis < rank or x.type.shape is None:
        raise b.invalid(f"axis of '{x.name}'", axis, f"{-rank} to {rank - 1}")
    return x.type.shape[axis]


def static_dim(b: ForeignBuilder, x: Value, axis: int) -> int:
    """One dimension of an operand as a number; raises UnsupportedOpError when only the run will tell it."""
    dim = dim_of(b, x, axis)
    if isinstance(dim, Sym):
        raise b.unsupported(f"operand '{x.name}' whose dimension {axis} is {dim}")
    return dim


def known_scalar(x: Value) -> int | float | bool | None:
    """The only element of an operand that is known, else None."""
    known = x.type.known
    if known is None or known.size != 1:
        return None
    item: Any = known.reshape(-1)[0].item()
    return item if isinstance(item, (int, float, bool)) else float(item)


def known_array(b: ForeignBuilder, x: Value, what: str) -> Array:
    """Content of an operand that must be constant; raises UnsupportedOpError."""
    known = x.type.known
    if known is None:
        raise b.unsupported(f"{what} that is no constant")
    return known


def known_ints(b: ForeignBuilder, x: Value, what: str) -> tuple[int, ...]:
    """`known_array` as integers."""
    return tuple(int(v) for v in known_array(b, x, what).reshape(-1))


def ints(values: Iterable[int]) -> Array:
    """A constant operand made of an attribute."""
    return np.array(tuple(values), dtype=np.int64)


def spatial_axes(b: ForeignBuilder, x: Value) -> Array:
    """Axes after batch and channels."""
    rank = rank_of(b, x)
    if rank < 2:
        raise b.invalid(f"rank of '{x.name}'", rank, "at least 2")
    return np.arange(2, rank, dtype=np.int64)


# --- sizes that only the run may tell --------------------------------------------------------------------------------


def size_of(b: ForeignBuilder, x: Value, axis: int) -> Size:
    """Length of an axis, which may be negative."""
    dim = dim_of(b, x, axis)
    if isinstance(dim, int):
        return dim
    place = axis if axis >= 0 else axis + rank_of(b, x)
    return b(Shape(place, place + 1), x)


def sizes_of(b: ForeignBuilder, x: Value, axes: Iterable[int]) -> list[Size]:
    """Lengths of some axes."""
    return [size_of(b, x, a) for a in axes]


def joined(b: ForeignBuilder, *parts: Value | Sequence[Size]) -> Value:
    """One operand [m] i64 made of lists of sizes and of shapes."""
    flat = [s for p in parts for s in ([p] if isinstance(p, Value) else p)]
    kept: list[Value] = []
    numbers: list[int] = []
    for size in [*flat, None]:
        if isinstance(size, int):
            numbers.append(size)
            continue
        if numbers:
            kept.append(b.const(ints(numbers)))
            numbers = []
        if size is not None:
            kept.append(size)
    return b.const(ints(())) if not kept else kept[0] if len(kept) == 1 else b(Concat(0), *kept)


def reshaped(b: ForeignBuilder, x: Value, *parts: Value | Sequence[Size], zero_keeps: bool = False) -> Value:
    """``x`` in a shape made of sizes (-1 is solved) and of shapes.  zero_keeps: a 0 keeps the size that is there."""
    return b(Reshape(allowzero=not zero_keeps), x, joined(b, *parts))


def expanded(b: ForeignBuilder, x: Value | Array, *parts: Value | Sequence[Size]) -> Value:
    """``x`` broadcast to a shape made of sizes and of shapes."""
    return b(Expand(), x if isinstance(x, Value) else b.const(x), joined(b, *parts))


def sliced(b: ForeignBuilder, x: Value, axis: int, start: int, end: int = END, step: int = 1) -> Value:
    """Some elements along one axis, as Python counts them."""
    return b(Slice(), x, ints([start]), ints([end]), ints([axis]), ints([step]))


def unsqueezed(b: ForeignBuilder, x: Value, *axes: int) -> Value:
    """``x`` with axes of length 1 put in, counted in the result."""
    return b(Unsqueeze(), x, ints(axes)) if axes else x


def counted_up(b: ForeignBuilder, index: Value, size: Any) -> Value:
    """Indices that may not count from the end: negative ones become such as no axis of this size has."""
    return b(Where(), b(Less(), index, 0), b(Sub(), index, size), index)


def squeezed(b: ForeignBuilder, x: Value, *axes: int) -> Value:
    """``x`` without axes of length 1."""
    return b(Squeeze(), x, ints(axes)) if axes else x


def as_scalar(b: ForeignBuilder, x: Value) -> Value:
    """An operand of one element as a scalar."""
    return x if x.type.shape == () else b(Reshape(), x, ints([]))
