"""Sizes of TFLite's images, which readers compute: numbers where they are known, else operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bolt_numba.converters.builder import Size, ints
from bolt_numba.ir.graph import Value
from bolt_numba.ops.pointwise import Div, Mul

if TYPE_CHECKING:
    from bolt_numba.converters.builder import ForeignBuilder


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
        length = b.static_dim(x, axis)
        more = max(0, ((length + stride - 1) // stride - 1) * stride + (size - 1) * dilation + 1 - length)
        before.append(more // 2)
        behind.append(more - more // 2)
    return [*before, 0, *behind, 0]
