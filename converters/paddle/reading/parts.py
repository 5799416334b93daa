"""What the builder of Paddle's readers tells besides: sizes as values, scalars, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, AnyDType
from bolt_numba.converters.builder import ForeignBuilder, Ints, Number, Size, ints, known_scalar
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Reshape, Shape
from bolt_numba.ops.pointwise import Equal, Not


class PaddleParts(ForeignBuilder):
    """Words that all readers of Paddle's operators have."""

    def floating(self, x: Value) -> Value:
        """x, in f32 where it holds integers or bools."""
        return self.to(x, F32) if x.type.dtype.kind in "iub" else x

    def truth(self, x: Value) -> Value:
        """Whether each element is not zero."""
        return x if x.type.dtype == BOOL else self(Not(), self(Equal(), x, 0))

    def number(self, x: Value, dtype: AnyDType) -> Number:
        """The only element of x: a number of Python where it is known, else a scalar of ``dtype``."""
        known = known_scalar(x)
        if known is not None:
            return int(known) if dtype.kind in "iu" else known
        return self(Reshape(), self.to(x, dtype), ints(()))

    def length(self, x: Value, axis: int) -> Value:
        """A dimension of x, [1] i64; a value also where it is known."""
        return self.lengths(x, [axis])

    def lengths(self, x: Value, axes: Iterable[int]) -> Value:
        """Some dimensions of x, i64; a value also where they are known."""
        return self.joined(self.sizes_of(x, axes))

    def shaped(self, x: Value, *parts: Value | Sequence[Size]) -> Value:
        """X in a shape made of sizes (0 keeps what is there, -1 is solved) and of shapes."""
        return self.reshaped(x, *parts, zero_keeps=True)

    def is_last(self, data_format: str) -> bool:
        """Whether channels are the last axis."""
        if data_format in ("NCHW", "NCDHW", "NCL", "NCW", "NC", "AnyLayout", "ANYLAYOUT", "Undefined(AnyLayout)"):
            return False
        if data_format in ("NHWC", "NDHWC", "NLC", "NWC"):
            return True
        raise self.invalid("data_format", repr(data_format), "NCHW or NHWC")

    def layout_of(self, data_format: str) -> str:
        """How spatial operators of the graph name it."""
        return "NHWC" if self.is_last(data_format) else "NCHW"

    def spatial_of(self, x: Value, data_format: str) -> Ints:
        """Axes of x that are neither batch nor channels."""
        rank = self.rank_of(x)
        if rank < 3:
            raise self.invalid(f"rank of '{x.name}'", rank, "at least 3")
        return tuple(range(1, rank - 1)) if self.is_last(data_format) else tuple(range(2, rank))

    def along(self, v: Value, rank: int, axis: int) -> Value:
        """V [c] shaped to broadcast along one of ``rank`` axes."""
        return v if rank - 1 == axis else self.shaped(v, [-1] + [1] * (rank - 1 - axis))

    def array(self, values: Any, dtype: AnyDType = F32) -> Value:
        """A constant."""
        made: Value = self.const(np.asarray(values, dtype), f"{self.prefix}const")
        return made

    def filled_like(self, x: Value, number: float) -> Value:
        """A number in the shape and dtype of x."""
        return self.expanded(np.array(number, x.type.dtype), self(Shape(), x))
