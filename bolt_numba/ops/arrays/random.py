"""Random numbers.

An operator with a seed gives the same numbers in every run and on every machine; without one every run differs.  The
generator is NumPy's PCG64 (Dropout: MT19937, whose numbers the standard's tests hold), so other engines give others.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import BOOL, F32, F64, I32, AnyDType, Array, TensorType
from bolt_numba.ops.content import PLANNED, bounded
from bolt_numba.ops.dtypes import FLOATS, INDICES, widened
from bolt_numba.ops.registry import Op, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import shape_in, shape_of, want_dims, want_elements, want_one

_process: list[np.random.Generator] = []
"""The generator of operators without a seed, where `seed_process` made one."""


def seed_process(seed: int) -> None:
    """Let operators without a seed draw from one generator, so that a process repeats what it draws."""
    _process[:] = [np.random.default_rng(abs(seed))]


def generator(seed: float | None) -> np.random.Generator:
    """A generator for a seed, which may be any float."""
    if seed is None:
        return _process[0] if _process else np.random.default_rng()
    return np.random.default_rng(struct.unpack("<Q", struct.pack("<d", seed))[0])


def _result(owner: Op, dtype: AnyDType, shape: TensorType) -> TensorType:
    want_dtype(owner, "y", dtype, *FLOATS)
    want_dtype(owner, "shape", shape.dtype, *INDICES)
    want_dims(owner, "shape", shape, None)
    return TensorType(dtype, shape_in(shape))


def _room(owner: Op, shape: Array) -> tuple[int, ...]:
    """The shape, for which there is memory in f64."""
    dims = tuple(map(int, shape))
    ask(F64.itemsize * math.prod(dims), f"{owner.name}: numbers before they are rounded")
    return dims


@op("RandomNormal")
class RandomNormal(Op):
    """y = normally distributed numbers.  shape: [rank] i64 -> y: ``dtype``.  Source: ONNX RandomNormal-22."""

    mean: float = 0.0
    scale: float = 1.0
    dtype: AnyDType = F32
    seed: float | None = None
    value_inputs = (0,)
    data_bounds = bounded(shape=PLANNED)
    has_side_state = True

    def infer(self, shape: TensorType) -> TensorType:
        self.fail_if(not self.scale >= 0, "scale", self.scale, "at least 0")
        return _result(self, self.dtype, shape)

    def reference(self, shape: Array) -> Array:
        return np.asarray(generator(self.seed).normal(self.mean, self.scale, _room(self, shape))).astype(self.dtype)


@op("RandomUniform")
class RandomUniform(Op):
    """y = numbers uniformly distributed in [low, high).

    shape: [rank] i64 · seed: one integer that the run tells, in place of ``seed`` -> y: ``dtype``.
    Source: ONNX RandomUniform-22.
    """

    low: float = 0.0
    high: float = 1.0
    dtype: AnyDType = F32
    seed: float | None = None
    value_inputs = (0,)
    data_bounds = bounded(shape=PLANNED, seed="of the generator; any number")
    has_side_state = True

    def infer(self, shape: TensorType, seed: TensorType | None = None) -> TensorType:
        want_one(self, seed=seed)
        want_dtypes(self, INDICES, seed=seed)
        self.fail_if(not 0 <= self.high - self.low < math.inf, "low and high", (self.low, self.high), "a finite range")
        return _result(self, self.dtype, shape)

    def reference(self, shape: Array, seed: Array | None = None) -> Array:
        numbers = generator(self.seed if seed is None else float(seed.reshape(-1)[0]))
        return np.asarray(numbers.uniform(self.low, self.high, _room(self, shape))).astype(self.dtype)


@op("Multinomial")
class Multinomial(Op):
    """y = classes drawn by their unnormalised log-probabilities.

    x: [n, classes] float -> y: [n, sample_size] i32 or i64.  Source: ONNX Multinomial-22.
    """

    sample_size: int = 1
    dtype: AnyDType = I32
    seed: float | None = None
    has_side_state = True

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        want_dtype(self, "y", self.dtype, *INDICES)
        shape = shape_of(self, "x", x, 2)
        self.fail_if(self.sample_size < 1, "sample_size", self.sample_size, "at least 1")
        if shape is not None:
            want_elements(self, "classes of x", shape[1])
        return TensorType(self.dtype, None if shape is None else (shape[0], self.sample_size))

    def reference(self, x: Array) -> Array:
        logits = widened(x).astype(F64)
        weights = np.exp(logits - logits.max(1, keepdims=True, initial=-np.inf))
        ends = np.cumsum(weights, 1)
        ask(len(x) * self.sample_size * (16 + x.shape[1]), f"{self.name}: draws of {self.sample_size} samples")
        spots = generator(self.seed).uniform(0, 1, (len(x), self.sample_size)) * ends[:, -1:]
        made = (spots[:, :, None] >= ends[:, None, :]).sum(2)
        return np.asarray(np.minimum(made, x.shape[1] - 1)).astype(self.dtype)


@op("Dropout")
class Dropout(Op):
    """y = x / (1 - ratio) where a random mask holds, else 0; x itself unless training.

    x: [...] float · ratio: scalar float, 0.5 if omitted · training: scalar bool, false if omitted -> y: like x,
    mask: [...] bool, true with probability 1 - ratio.  Source: ONNX Dropout-22; a seeded mask is that of the
    standard's tests, drawn by MT19937.
    """

    seed: int | None = None
    has_side_state = True
    data_bounds = bounded(training="whether anything is dropped; read in Python")

    def infer(
        self, x: TensorType, ratio: TensorType | None = None, training: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        want_dtypes(self, FLOATS, x=x, ratio=ratio)
        want_dtypes(self, (BOOL,), training=training)
        want_one(self, ratio=ratio, training=training)
        return TensorType(x.dtype, x.shape), TensorType(BOOL, x.shape)

    def reference(self, x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, Array]:
        share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
        if training is None or not training.reshape(-1)[0] or share == 0:
            return x.copy(), np.ones(x.shape, BOOL)
        self.fail_if(not 0 < share < 1, "ratio", share, "0 to less than 1")
        numbers = np.random.RandomState(self.seed % (1 << 32)) if self.seed is not None else generator(None)
        mask = np.asarray(numbers.uniform(0, 1, x.shape) >= share)
        data = widened(x)
        return (mask * data * data.dtype.type(1 / (1 - share))).astype(x.dtype), mask
