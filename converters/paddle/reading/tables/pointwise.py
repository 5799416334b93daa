"""Readers of pointwise operators with one operand, activations apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, F64, I32, AnyDType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.shape import Identity

_FLOATING = {
    "acos": p.Acos, "acosh": p.Acosh, "asin": p.Asin, "asinh": p.Asinh, "atan": p.Atan, "atanh": p.Atanh, "cos": p.Cos,
    "cosh": p.Cosh, "erf": p.Erf, "exp": p.Exp, "log": p.Log, "reciprocal": p.Reciprocal, "sin": p.Sin, "sinh": p.Sinh,
    "sqrt": p.Sqrt, "tan": p.Tan, "tanh": p.Tanh, "isnan": p.IsNaN, "isnan_v2": p.IsNaN, "isinf": p.IsInf,
    "isinf_v2": p.IsInf,
}  # fmt: skip
"""Integers among their operands become f32."""


def _floating(operator: Any) -> Any:
    return lambda b, x: b(operator(), b.floating(x))


def _logarithm(base: int) -> Any:
    return lambda b, x: b(p.Mul(), b(p.Log(), b.floating(x)), 1 / math.log(base))


def _to_whole(operator: Any) -> Any:
    return lambda b, x: x if x.type.dtype.kind in "iu" else b(operator(), x)


for _name, _operator in _FLOATING.items():
    PADDLE.reader(_name)(_floating(_operator))
for _names, _operator in {("abs",): p.Abs, ("negative", "neg"): p.Neg, ("sign",): p.Sign}.items():
    PADDLE.reader(*_names)(AsIs(_operator()))
for _name, _operator in {"ceil": p.Ceil, "floor": p.Floor}.items():
    PADDLE.reader(_name)(_to_whole(_operator))
for _name, _base in {"log2": 2, "log10": 10}.items():
    PADDLE.reader(_name)(_logarithm(_base))


def _trunc(b: PaddleBuilder, x: Value) -> Value:
    """Rounded toward zero; the sign of a zero is lost."""
    return b(p.Mul(), b(p.Sign(), x), b(p.Floor(), b(p.Abs(), x)))


PADDLE.reader("trunc")(lambda b, x: x if x.type.dtype.kind in "iu" else _trunc(b, x))


@PADDLE.reader("round")
def round_(b: PaddleBuilder, x: Value, *, decimals: int = 0) -> Value:
    """Halves go away from zero in Paddle 2, to the even neighbour in Paddle 3."""
    if x.type.dtype.kind in "iu":
        return x
    if decimals == 0:
        return _rounded(b, x)
    b.invalid_if(abs(decimals) > MOST_DECIMALS, "decimals", decimals, f"at most {MOST_DECIMALS}")
    shift = float(10 ** abs(decimals))
    up, down = (p.Mul(), p.Div()) if decimals > 0 else (p.Div(), p.Mul())
    return b(down, _rounded(b, b(up, x, shift)), shift)


def _rounded(b: PaddleBuilder, x: Value) -> Value:
    if not b.is_legacy:
        return b(p.Round(), x)
    cut = _trunc(b, x)
    away = b(p.GreaterOrEqual(), b(p.Abs(), b(p.Sub(), x, cut)), 0.5)
    return b(p.Add(), cut, b(p.Mul(), b(p.Sign(), x), b.to(away, x.type.dtype)))


MOST_DECIMALS = 38
"""Powers of ten that f32 holds."""


PADDLE.reader("rsqrt")(lambda b, x: b(p.Reciprocal(), b(p.Sqrt(), b.floating(x))))
PADDLE.reader("square")(lambda b, x: b(p.Mul(), x, x))


@PADDLE.reader("log1p")
def log1p(b: PaddleBuilder, x: Value) -> Value:
    """log(u) times what the rounding of u = 1 + x lost.  Source: Kahan's formula, as in W. J. Cody's notes."""
    x = b.floating(x)
    u = b(p.Add(), x, 1.0)
    lost = b(p.Sub(), u, 1.0)
    exact = b(p.Or(), b(p.Equal(), lost, 0.0), b(p.IsInf(), u))
    safe = b.chosen(exact, 1.0, lost, x.type.dtype)
    small = b.chosen(b(p.Equal(), lost, 0.0), x, b(p.Log(), u), x.type.dtype)
    return b.chosen(exact, small, b(p.Div(), b(p.Mul(), b(p.Log(), u), x), safe), x.type.dtype)


@PADDLE.reader("expm1")
def expm1(b: PaddleBuilder, x: Value) -> Value:
    """Elu below zero; above it the same of -x, divided by exp(-x)."""
    x = b.floating(x)
    below = b(p.Elu(1.0), b(p.Min(), x, 0.0))
    size = b(p.Max(), x, 0.0)
    above = b(p.Div(), b(p.Neg(), b(p.Elu(1.0), b(p.Neg(), size))), b(p.Exp(), b(p.Neg(), size)))
    return b(p.Add(), below, above)


_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132)
_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
_SHIFT = 6


def _series(b: PaddleBuilder, x: Value, terms: tuple[float, ...]) -> Value:
    """terms[0] + terms[1] * x + ..."""
    made: Value | float = terms[-1]
    for term in terms[-2::-1]:
        made = b(p.Add(), b(p.Mul(), x, made), term)
    assert isinstance(made, Value)
    return made


def _shifted(b: PaddleBuilder, x: Value) -> tuple[Value, Value]:
    """X + 6, and its square's reciprocal, for asymptotic series."""
    far = b(p.Add(), x, float(_SHIFT))
    return far, b(p.Reciprocal(), b(p.Mul(), far, far))


@PADDLE.reader("digamma")
def digamma(b: PaddleBuilder, x: Value) -> Value:
    """The asymptotic series at x + 6, and the recurrence; reflected where x is negative.  Source: DLMF 5.11.2."""
    dtype = x.type.dtype
    wide = b.to(x, F64)
    negative = b(p.LessOrEqual(), wide, 0.0)
    y = b.chosen(negative, b(p.Sub(), b.const(np.array(1.0)), wide), wide, F64)
    far, inverse = _shifted(b, y)
    made = b(p.Sub(), b(p.Log(), far), b(p.Mul(), b(p.Reciprocal(), far), 0.5))
    made = b(p.Add(), made, b(p.Mul(), inverse, _series(b, inverse, _DIGAMMA)))
    for i in range(_SHIFT):
        made = b(p.Sub(), made, b(p.Reciprocal(), b(p.Add(), y, float(i))))
    reflected = b(p.Sub(), made, b(p.Div(), b.const(np.array(math.pi)), b(p.Tan(), b(p.Mul(), wide, math.pi))))
    return b.to(b.chosen(negative, reflected, made, F64), dtype)


@PADDLE.reader("lgamma", "gammaln")
def lgamma(b: PaddleBuilder, x: Value) -> Value:
    """Stirling's series at x + 6, less the logarithm of what lies between; reflected below 0.  Source: DLMF 5.11.1."""
    dtype = x.type.dtype
    wide = b.to(x, F64)
    negative = b(p.LessOrEqual(), wide, 0.0)
    y = b.chosen(negative, b(p.Sub(), b.const(np.array(1.0)), wide), wide, F64)
    far, inverse = _shifted(b, y)
    made = b(p.Sub(), b(p.Mul(), b(p.Sub(), far, 0.5), b(p.Log(), far)), far)
    made = b(p.Add(), made, 0.5 * math.log(2 * math.pi))
    made = b(p.Add(), made, b(p.Mul(), b(p.Reciprocal(), far), _series(b, inverse, _GAMMA)))
    between = y
    for i in range(1, _SHIFT):
        between = b(p.Mul(), between, b(p.Add(), y, float(i)))
    made = b(p.Sub(), made, b(p.Log(), between))
    sine = b(p.Abs(), b(p.Sin(), b(p.Mul(), wide, math.pi)))
    reflected = b(p.Sub(), b(p.Sub(), b.const(np.array(math.log(math.pi))), b(p.Log(), sine)), made)
    return b.to(b.chosen(negative, reflected, made, F64), dtype)


_MIDDLE = (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
           3.43273939e-07, 2.81022636e-08)  # fmt: skip
_TAIL = (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
         0.000100950558, -0.000200214257)  # fmt: skip


@PADDLE.reader("erfinv")
def erfinv(b: PaddleBuilder, x: Value) -> Value:
    """Giles' polynomials and two steps of Newton's method, in f64.

    Source: M. Giles, Approximating the erfinv function, GPU Computing Gems 2 (2010).
    """
    wide = b.to(x, F64)
    w = b(p.Neg(), b(p.Log(), b(p.Mul(), b(p.Sub(), b.const(np.array(1.0)), wide), b(p.Add(), wide, 1.0))))
    middle = _series(b, b(p.Sub(), w, 2.5), _MIDDLE)
    tail = _series(b, b(p.Sub(), b(p.Sqrt(), w), 3.0), _TAIL)
    y = b(p.Mul(), wide, b.chosen(b(p.Less(), w, 5.0), middle, tail, F64))
    for _ in range(2):
        slope = b(p.Mul(), b(p.Exp(), b(p.Neg(), b(p.Mul(), y, y))), 2 / math.sqrt(math.pi))
        y = b(p.Sub(), y, b(p.Div(), b(p.Sub(), b(p.Erf(), y), wide), slope))
    is_edge = b(p.GreaterOrEqual(), b(p.Abs(), wide), 1.0)
    edge = b(p.Div(), b(p.Sign(), wide), b.const(np.array(0.0)))
    beyond = b.chosen(b(p.Greater(), b(p.Abs(), wide), 1.0), math.nan, edge, F64)
    return b.to(b.chosen(is_edge, beyond, y, F64), x.type.dtype)


@PADDLE.reader("scale")
def scale(b: PaddleBuilder, x: Value, scale: Value, *, bias: float = 0.0, bias_after_scale: bool = True) -> Value:
    """X * scale + bias, or (x + bias) * scale; integers are scaled by integers."""
    dtype = x.type.dtype
    factor = b.number(scale, dtype)
    added = int(bias) if dtype.kind in "iu" else bias
    if not bias_after_scale and added:
        x = b(p.Add(), x, added)
    if isinstance(factor, Value) or factor != 1:
        x = b(p.Mul(), x, factor)
    return b(p.Add(), x, added) if bias_after_scale and added else x


@PADDLE.reader("increment", slots={"step": "value"})
def increment(b: PaddleBuilder, x: Value, *, value: float = 1.0) -> Value:
    return b(p.Add(), x, int(value) if x.type.dtype.kind in "iu" else value)


@PADDLE.reader("pow", slots={"y": "factor"})
def power(b: PaddleBuilder, x: Value, factor: Value) -> Value:
    exponent = b.number(factor, F64)
    if exponent == 2:
        return b(p.Mul(), x, x)
    return b(p.Pow(), x, b.const(np.array(exponent)) if isinstance(exponent, float) else exponent)


@PADDLE.reader("clip")
def clip(b: PaddleBuilder, x: Value, min: Value, max: Value) -> Value:
    """x, not below min and not above max; of integers' bounds what their dtype holds."""
    dtype = x.type.dtype
    low, high = (b.number(v, dtype) for v in (min, max))
    if isinstance(low, Value) or isinstance(high, Value):
        return b(p.Min(), b(p.Max(), x, low), high)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return b(p.Clip(*(int(np.clip(v, limits.min, limits.max)) for v in (low, high))), x)
    limit = float(np.finfo(np.float32).max)
    return b(p.Clip(*(None if abs(v) >= limit else float(v) for v in (low, high))), x)


@PADDLE.reader("cast", slots={"out_dtype": "dtype"})
def cast(b: PaddleBuilder, x: Value, *, dtype: AnyDType) -> Value:
    """Paddle 2 on CPUs cuts what a narrower float cannot hold; Paddle 3 rounds it to the nearest."""
    if b.is_legacy and x.type.dtype == F32 and dtype in (BF16, F16):
        kept = -(1 << (16 if dtype == BF16 else 13))  # all bits but those that the narrower one lacks
        x = b(BitCast(F32), b(p.BitwiseAnd(), b(BitCast(I32), x), kept))
    return b(Identity(), x) if x.type.dtype == dtype else b(p.Cast(dtype), x)


PADDLE.reader("logical_not")(lambda b, x: b(p.Not(), b.truth(x)))
PADDLE.reader("bitwise_not")(lambda b, x: b(p.Not() if x.type.dtype.kind == "b" else p.BitwiseNot(), x))


@PADDLE.reader("isfinite", "isfinite_v2")
def isfinite(b: PaddleBuilder, x: Value) -> Value:
    x = b.floating(x)
    return b(p.And(), b(p.Not(), b(p.IsInf(), x)), b(p.Not(), b(p.IsNaN(), x)))


PADDLE.reader("assign", "share_data", "memcpy", "memcpy_h2d", "memcpy_d2h", "print")(lambda b, x: x)
