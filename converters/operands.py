"""What readers ask of their operands: ranks, known values, constants made of attributes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.ir.graph import Value
from bolt_numba.types import Array, Dim, Sym

if TYPE_CHECKING:
    from bolt_numba.converters.nodes import ForeignBuilder


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
