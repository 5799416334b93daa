"""Readers of random operators."""

from __future__ import annotations

from bolt_numba.base.types import AnyDType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.random import Multinomial, RandomNormal, RandomUniform
from bolt_numba.ops.arrays.shape import Shape
from bolt_numba.ops.pointwise import Less

add_as_is(Multinomial)
add_reader("RandomNormal", AsIs(RandomNormal, "shape="))
add_reader("RandomUniform", AsIs(RandomUniform, "shape="))


@reader("RandomNormalLike")
def random_normal_like(
    b: NodeBuilder, x: Value, *, dtype: AnyDType | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None
) -> Value:
    return b(RandomNormal(mean, scale, dtype or x.type.dtype, seed), b(Shape(), x))


@reader("RandomUniformLike")
def random_uniform_like(
    b: NodeBuilder, x: Value, *, dtype: AnyDType | None = None, low: float = 0.0, high: float = 1.0,
    seed: float | None = None
) -> Value:
    return b(RandomUniform(low, high, dtype or x.type.dtype, seed), b(Shape(), x))


@reader("Bernoulli")
def bernoulli(b: NodeBuilder, x: Value, *, dtype: AnyDType | None = None, seed: float | None = None) -> Value:
    """1 with probability x.  The standard's function body compares the other way round, against its own text."""
    drawn = b(RandomUniform(0.0, 1.0, x.type.dtype, seed), b(Shape(), x))
    return b.to(b(Less(), drawn, x), dtype or x.type.dtype)
