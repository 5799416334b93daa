"""Readers of random operators."""

from __future__ import annotations

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.onnx.types import dtype_of
from bolt_numba.converters.operands import ints
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.random import Multinomial, RandomNormal, RandomUniform
from bolt_numba.ops.arrays.shape import Shape
from bolt_numba.ops.pointwise import Cast, Less

Ints = tuple[int, ...]


@reader("RandomNormal")
def random_normal(
    b: NodeBuilder,
    *,
    shape: Ints,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Value:
    return b(RandomNormal(mean, scale, dtype_of(dtype, "dtype"), seed), ints(shape))


@reader("RandomUniform")
def random_uniform(
    b: NodeBuilder, *, shape: Ints, dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Value:
    return b(RandomUniform(low, high, dtype_of(dtype, "dtype"), seed), ints(shape))


@reader("RandomNormalLike")
def random_normal_like(
    b: NodeBuilder, x: Value, *, dtype: int = 0, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Value:
    kind = dtype_of(dtype, "dtype") if dtype else x.type.dtype
    return b(RandomNormal(mean, scale, kind, seed), b(Shape(), x))


@reader("RandomUniformLike")
def random_uniform_like(
    b: NodeBuilder, x: Value, *, dtype: int = 0, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Value:
    kind = dtype_of(dtype, "dtype") if dtype else x.type.dtype
    return b(RandomUniform(low, high, kind, seed), b(Shape(), x))


@reader("Bernoulli")
def bernoulli(b: NodeBuilder, x: Value, *, dtype: int = 0, seed: float | None = None) -> Value:
    """1 with probability x.  The standard's function body compares the other way round, against its own text."""
    kind = dtype_of(dtype, "dtype") if dtype else x.type.dtype
    drawn = b(RandomUniform(0.0, 1.0, x.type.dtype, seed), b(Shape(), x))
    return b(Cast(kind), b(Less(), drawn, x))


@reader("Multinomial")
def multinomial(b: NodeBuilder, x: Value, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    return b(Multinomial(sample_size, dtype_of(dtype, "dtype"), seed), x)
