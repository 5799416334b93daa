"""Readers of random operators.  Their numbers are those of this engine's generator, not LiteRT's."""

from __future__ import annotations

from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.random import Multinomial, RandomNormal, RandomUniform


def _seed(seed: int, seed2: int) -> float | None:
    """Two zeros mean that every run differs."""
    return None if seed == seed2 == 0 else float(seed) * 2.0**20 + float(seed2)


@TFLITE.reader("RANDOM_UNIFORM")
def random_uniform(b: TfliteBuilder, shape: Value, *, seed: int = 0, seed2: int = 0) -> Value:
    return b(RandomUniform(dtype=b.declared(0).dtype, seed=_seed(seed, seed2)), as_i64(b, shape))


@TFLITE.reader("RANDOM_STANDARD_NORMAL")
def random_standard_normal(b: TfliteBuilder, shape: Value, *, seed: int = 0, seed2: int = 0) -> Value:
    return b(RandomNormal(dtype=b.declared(0).dtype, seed=_seed(seed, seed2)), as_i64(b, shape))


@TFLITE.reader("MULTINOMIAL")
def multinomial(b: TfliteBuilder, logits: Value, samples: Value, *, seed: int = 0, seed2: int = 0) -> Value:
    count = b.known_ints(samples, "a number of samples")
    b.invalid_if(len(count) != 1, "number of samples", count, "one")
    return b(Multinomial(count[0], b.declared(0).dtype, _seed(seed, seed2)), logits)
