"""Complex numbers, of which the graph has none: two values, with the shape that the file gives them.

So operators that move elements are read twice, and neither axes nor messages know of it.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.base.types import F32
from bolt_numba.converters.tflite.reading.registry import cast
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.shape import Shape


class Complex(Value):
    """What a file passes around in the place of complex numbers: real and imaginary parts, f32 of equal shapes.

    No operator of a graph takes it, and no graph gives it.
    """

    __slots__ = ("im", "re")

    def __init__(self, graph: Graph, re: Value, im: Value) -> None:
        super().__init__(graph.unique_name("complex"), re.type)
        self.re, self.im = re, im


def parts_of(b: Builder, x: Value) -> tuple[Any, Any]:
    """Real and imaginary parts, also of what is real."""
    if isinstance(x, Complex):
        return x.re, x.im
    return cast(b, x, F32), b(ConstantOfShape(0, F32), b(Shape(), x))
