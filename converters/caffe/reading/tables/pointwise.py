"""Readers of activations, and of arithmetic of blobs and of a blob with its weights."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Sym
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Floats, ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import CAFFE, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.shape import Concat, Reshape, Unsqueeze

UNARY = {
    "AbsVal": p.Abs, "Sigmoid": p.Sigmoid, "TanH": p.Tanh, "BNLL": p.Softplus, "SoftPlus": p.Softplus,
    "Softplus": p.Softplus, "Mish": p.Mish, "HardSwish": p.HardSwish, "HSwish": p.HardSwish, "Hswish": p.HardSwish,
    "Sqrt": p.Sqrt, "SELU": p.Selu,
}  # fmt: skip
"""Layers without parameters that are an operator of ours."""


for _name, _operator in UNARY.items():
    CAFFE.add(_name, AsIs(_operator()))
CAFFE.add("ELU", AsIs(p.Elu))
CAFFE.add("Swish", AsIs(p.Swish, beta=1.0))
reader("Gelu", "GELU")(AsIs(p.Gelu("tanh")))


@reader("ReLU")
def relu(b: LayerBuilder, x: Value, *, negative_slope: float = 0.0) -> Value:
    return b(p.LeakyRelu(negative_slope) if negative_slope else p.Relu(), x)


@reader("RReLU")
def rrelu(b: LayerBuilder, x: Value, *, lower: float = 1 / 8, upper: float = 1 / 3) -> Value:
    """A slope drawn at random in training is the mean of its bounds here."""
    return b(p.LeakyRelu((lower + upper) / 2), x)


@reader("ReLU6")
def relu6(b: LayerBuilder, x: Value, *, threshold: float = 6.0, negative_slope: float = 0.0) -> Value:
    b.unsupported_if(negative_slope, f"negative_slope {negative_slope}")
    return b(p.Clip(0.0, threshold), x)


@reader("CReLU")
def crelu(b: LayerBuilder, x: Value, *, negative_slope: float = 0.0, concat_axis: int = 1) -> Value:
    """Activations of x and of -x, along the channels."""
    both = b(Concat(concat_axis), x, b(p.Neg(), x))
    return relu(b, both, negative_slope=negative_slope)


@reader("PReLU")
def prelu(b: LayerBuilder, x: Value, *, channel_shared: bool = False) -> Value:
    shape = () if channel_shared else (b.dim_of(x, 1),)
    slope = b.weights(0, tuple(-1 if isinstance(d, Sym) else d for d in shape), "filler", 0.25)
    return b(p.PRelu(), x, slope.reshape((-1, *(1,) * (b.rank_of(x) - 2)) if shape else ()))


@reader("Clip")
def clip(b: LayerBuilder, x: Value, *, min: float, max: float) -> Value:
    return b(p.Clip(min, max), x)


@reader("HardSigmoid", "HSigmoid", "Hsigmoid")
def hard_sigmoid(b: LayerBuilder, x: Value, *, alpha: float | None = None, beta: float = 0.5) -> Value:
    """min(1, max(0, alpha * x + beta)); where the file names no slope, a sixth, which is that of HardSwish.

    HardSigmoid of Keras' converter has 0.2.
    """
    slope = alpha if alpha is not None else (0.2 if b.layer.type == "HardSigmoid" else 1 / 6)
    return b(p.HardSigmoid(slope, beta), x)


@reader("Threshold")
def threshold(b: LayerBuilder, x: Value, *, threshold: float = 0.0) -> Value:
    return b(p.Cast(F32), b(p.Greater(), x, threshold))


@reader("Power")
def power(b: LayerBuilder, x: Value, *, power: float = 1.0, scale: float = 1.0, shift: float = 0.0) -> Value:
    """(shift + scale * x) ^ power."""
    y = _affine(b, x, scale, shift)
    return y if power == 1 else b(p.Pow(), y, power)


def _affine(b: LayerBuilder, x: Value, scale: float, shift: float) -> Value:
    y = x if scale == 1 else b(p.Mul(), x, scale)
    return y if shift == 0 else b(p.Add(), y, shift)


@reader("Exp")
def exp(b: LayerBuilder, x: Value, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Value:
    """Base ^ (shift + scale * x); the base -1 stands for e."""
    factor = _log_of(b, base)
    return b(p.Exp(), _affine(b, x, factor * scale, factor * shift))


@reader("Log")
def log(b: LayerBuilder, x: Value, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Value:
    """Logarithm of shift + scale * x; the base -1 stands for e."""
    return _affine(b, b(p.Log(), _affine(b, x, scale, shift)), 1 / _log_of(b, base), 0.0)


def _log_of(b: LayerBuilder, base: float) -> float:
    if base == -1:
        return 1.0
    b.invalid_if(not base > 0 or base == 1, "base", base, "-1, or above 0 and not 1")
    return math.log(base)


@reader("Eltwise")
def eltwise(b: LayerBuilder, *xs: Value, operation: str = "SUM", coeff: Floats = ()) -> Value:
    """Bottoms of one shape; those of some forks and of Bolt may be broadcast."""
    if coeff and (len(coeff) != len(xs) or operation != "SUM"):
        raise b.invalid("coeff", f"{len(coeff)} for {operation}", f"{len(xs)} for SUM")
    operators = {"SUM": p.Add, "PROD": p.Mul, "MAX": p.Max, "DIV": p.Div}
    if operation not in operators or not xs:
        raise b.invalid("operation and bottoms", (operation, len(xs)), f"one of {list(operators)}, of some bottoms")
    terms = [x if c == 1 else b(p.Mul(), x, c) for x, c in zip(xs, coeff or (1,) * len(xs), strict=True)]
    return functools.reduce(lambda x, y: b(operators[operation](), x, y), terms)


@reader("Scale")
def scale(
    b: LayerBuilder, x: Value, factor: Value | None = None, *, axis: int = 1, num_axes: int = 1, bias_term: bool = False
) -> Value:
    """X times a second blob, or times weights, along some axes; plus a bias of the same shape."""
    at, shape = _covered(b, x, factor, axis, num_axes)
    if factor is None:
        y = b(p.Mul(), x, _spread(b, b.weights(0, shape, "filler", 1.0), at, b.rank_of(x)))
    else:
        y = b(p.Mul(), x, _aligned(b, factor, at, b.rank_of(x)))
    if not bias_term:
        return y
    bias = b.weights(1 if factor is None else 0, shape, "bias_filler", 0.0)
    return b(p.Add(), y, _spread(b, bias, at, b.rank_of(x)))


@reader("Bias")
def bias(b: LayerBuilder, x: Value, added: Value | None = None, *, axis: int = 1, num_axes: int = 1) -> Value:
    at, shape = _covered(b, x, added, axis, num_axes)
    if added is None:
        return b(p.Add(), x, _spread(b, b.weights(0, shape, "filler", 0.0), at, b.rank_of(x)))
    return b(p.Add(), x, _aligned(b, added, at, b.rank_of(x)))


def _covered(b: LayerBuilder, x: Value, other: Value | None, axis: int, num_axes: int) -> tuple[int, tuple[int, ...]]:
    """The first axis of x that the other operand covers, and the sizes of those it covers, -1 where unknown."""
    rank = b.rank_of(x)
    count = num_axes if other is None else b.rank_of(other)
    b.invalid_if(not -rank <= axis < max(rank, 1), "axis", axis, f"{-rank} to {rank - 1}")
    at = axis % max(rank, 1) if count else 0
    end = rank if count == -1 else at + count
    b.invalid_if(count < -1 or end > rank, "num_axes", count, f"at most {rank - at} of {x.type}")
    return at, tuple(-1 if isinstance(d, Sym) else d for d in (x.type.shape or ())[at:end])


def _spread(b: LayerBuilder, v: Any, at: int, rank: int) -> Any:
    """Weights shaped to meet the axes from ``at`` on of something of ``rank`` axes."""
    return v.reshape(*v.shape, *(1,) * (rank - at - v.ndim)) if v.ndim else v


def _aligned(b: LayerBuilder, v: Value, at: int, rank: int) -> Value:
    """`_spread` of a blob."""
    own = b.rank_of(v)
    missing = rank - at - own
    return b(Unsqueeze(), v, ints(range(own, own + missing))) if own and missing else v


@reader("Axpy")
def axpy(b: LayerBuilder, a: Value, x: Value, y: Value) -> Value:
    """A * x + y, where a has one number for each channel: [n, c] or [n, c, 1, 1]."""
    if b.rank_of(a) == 2:
        a = b(Reshape(), a, np.array([0, 0, *(1,) * (b.rank_of(x) - 2)], np.int64))
    return b(p.Add(), b(p.Mul(), a, x), y)
