"""Shapes that readers compute: numbers where they are known, else operators that give them at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bolt_numba.converters.operands import dim_of, ints, static_dim
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Slice, Squeeze, Unsqueeze
from bolt_numba.ops.pointwise import Div, Mul
from bolt_numba.types import Array

if TYPE_CHECKING:
    from bolt_numba.converters.nodes import ForeignBuilder

Size: TypeAlias = "int | Value"
"""A number of elements: an int, or a value of shape [1] i64."""
END = np.iinfo(np.int64).max
"""Behind the last element of any axis."""


def size_of(b: ForeignBuilder, x: Value, axis: int) -> Size:
    """Length of an axis, which may be negative."""
    dim = dim_of(b, x, axis)
    if isinstance(dim, int):
        return dim
    place = axis if axis >= 0 else axis + len(x.type.shape or ())
    made: Value = b(Shape(place, place + 1), x)
    return made


def sizes_of(b: ForeignBuilder, x: Value, axes: Iterable[int]) -> list[Size]:
    """Lengths of some axes."""
    return [size_of(b, x, a) for a in axes]


def vector(b: ForeignBuilder, sizes: Sequence[Size]) -> Value | Array:
    """Sizes as one operand, [m] i64."""
    if all(isinstance(s, int) for s in sizes):
        return ints(s for s in sizes if isinstance(s, int))
    made: Value = b(Concat(0), *(b.const(ints([s])) if isinstance(s, int) else s for s in sizes))
    return made


def reshaped(b: ForeignBuilder, x: Value, sizes: Sequence[Size]) -> Value:
    """``x`` with these sizes, of which one may be -1."""
    made: Value = b(Reshape(allowzero=True), x, vector(b, sizes))
    return made


def expanded(b: ForeignBuilder, x: Value | Array, sizes: Sequence[Size]) -> Value:
    """``x`` broadcast to these sizes."""
    made: Value = b(Expand(), x if isinstance(x, Value) else b.const(x), vector(b, sizes))
    return made


def sliced(b: ForeignBuilder, x: Value, axis: int, start: int, end: int = END, step: int = 1) -> Value:
    """Some elements along one axis, as Python counts them."""
    made: Value = b(Slice(), x, ints([start]), ints([end]), ints([axis]), ints([step]))
    return made


def unsqueezed(b: ForeignBuilder, x: Value, *axes: int) -> Value:
    """``x`` with axes of length 1 put in, counted in the result."""
    made: Value = b(Unsqueeze(), x, ints(axes))
    return made


def squeezed(b: ForeignBuilder, x: Value, *axes: int) -> Value:
    """``x`` without axes of length 1."""
    made: Value = b(Squeeze(), x, ints(axes)) if axes else x
    return made


def as_scalar(b: ForeignBuilder, x: Value) -> Value:
    """An operand of one element as a scalar."""
    made: Value = x if x.type.shape == () else b(Reshape(), x, ints([]))
    return made


def times(b: ForeignBuilder, size: Size, factor: int) -> Size:
    """A size times a number."""
    return size * factor if isinstance(size, int) else b(Mul(), size, ints([factor]))


def part_of(b: ForeignBuilder, size: Size, parts: int, what: str) -> Size:
    """A size divided by a number; raises InvalidModelError where it is known not to be a multiple."""
    if parts < 1 or (isinstance(size, int) and size % parts):
        raise b.invalid(what, size, f"a multiple of {parts}")
    return size // parts if isinstance(size, int) else b(Div(), size, ints([parts]))


def same_pads(
    b: ForeignBuilder, x: Value, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Pads of an image [n, h, w, c], before and behind, so that each stride has its window: what SAME means."""
    before, behind = [0], [0]
    for axis, size, stride, dilation in zip((1, 2), sizes, strides, dilations, strict=True):
        length = static_dim(b, x, axis)
        more = max(0, ((length + stride - 1) // stride - 1) * stride + (size - 1) * dilation + 1 - length)
        before.append(more // 2)
        behind.append(more - more // 2)
    return [*before, 0, *behind, 0]
