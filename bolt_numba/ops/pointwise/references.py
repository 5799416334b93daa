"""References of pointwise operators that take more than a word of NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F64, I64, STRING, U64, Array, Sym, atom_of


def erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(F64)), F64)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), np.where(np.isnan(x), x, e / (1 + e)))


def softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros((), x.dtype))


def maximum(x: Array, y: Array) -> Array:
    """The greater; NaN where one is, and of zeros that of positive sign (`maximum` of IEEE 754-2019)."""
    made = np.maximum(x, y)
    return np.where((x == 0) & (y == 0), x + y, made) if made.dtype.kind not in "iu" else made


def minimum(x: Array, y: Array) -> Array:
    return -maximum(-x, -y) if x.dtype.kind not in "iu" else np.minimum(x, y)


def at_least(x: Array, bound: float) -> Array:
    """What is less than the bound becomes the bound: NaN and a zero of either sign stay; a bound of NaN leaves NaN."""
    low = x.dtype.type(bound)
    return np.where((x < low) | (low != low), low, x)


def at_most(x: Array, bound: float) -> Array:
    high = x.dtype.type(bound)
    return np.where((x > high) | (high != high), high, x)


def clip(o: Any, x: Array) -> Any:
    made = x if o.lo is None else at_least(x, o.lo)
    return made if o.hi is None else at_most(made, o.hi)


def gelu(o: Any, x: Array) -> Any:
    if o.approximate == "none":
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def scalar(f: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    made = np.frompyfunc(f, 2, 1)
    return lambda x, y: np.asarray(made(x, y), object)


def divide_dims(a: Any, b: Any) -> Any:
    if isinstance(a, Sym) or isinstance(b, Sym):
        q = a // b
        floors = all(d.is_count if isinstance(d, Sym) else d >= 0 for d in (a, b))  # then flooring is truncation
        return q if floors or q * b == a else Sym(atom_of(f"({a})/({b})"))
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def div(x: Array, y: Array) -> Array:
    """Division; integers truncate toward zero and x / 0 is 0 (undefined in ONNX)."""
    if STRING in (x.dtype, y.dtype):
        return scalar(divide_dims)(x, y)
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    q = np.floor_divide(x, y)
    return np.where((np.remainder(x, y) != 0) & ((x < 0) != (y < 0)), q + 1, q)


_MOST_WHOLE = 2**53 - 2


def power(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        return integer_pow(x, y) if y.dtype.kind in "iu" else np.power(x.astype(F64), y.astype(F64))
    if y.dtype in (I64, U64):  # larger ones would lose whether they are odd, and nothing else depends on them
        odd = (y & y.dtype.type(1)).astype(I64)
        y = np.where(y > _MOST_WHOLE, _MOST_WHOLE + odd, np.where(y < -_MOST_WHOLE, -_MOST_WHOLE - odd, y.astype(I64)))
    made = np.power(x, y)  # of a scalar 0.5 NumPy takes the square root, which differs at -0 and -inf
    return np.where((y == 0.5) & ((x == 0) | np.isinf(x)), np.abs(x), made).astype(made.dtype, copy=False)


def integer_pow(x: Array, y: Array) -> Array:
    """Power modulo 2**bits; 1 / x ** -y, cut, for a negative y, where 1 / 0 is 0 as in `Div`."""
    base, left = (a.copy() for a in np.broadcast_arrays(x.astype(U64), np.where(y < 0, 0, y).astype(U64)))
    made = np.ones_like(base)
    while left.any():
        made = np.where(left & U64.type(1), made * base, made)
        base, left = base * base, left >> U64.type(1)
    inverse = np.where(x == 1, 1, np.where((x == -1) & (y % 2 == 0), 1, np.where(x == -1, -1, 0)))
    return np.where(y < 0, inverse.astype(x.dtype), made.astype(x.dtype))


def mod(o: Any, x: Array, y: Array) -> Array:
    return np.fmod(x, y) if o.fmod else np.mod(x, y)


def shift(o: Any, x: Array, y: Array) -> Array:
    """Arithmetic shift; by less than 0 or by the width and more only the sign is left, and only of a right shift."""
    beyond = (y < 0) | (y >= 8 * x.dtype.itemsize)
    safe = np.where(beyond, y.dtype.type(0), y)
    if o.direction == "LEFT":
        return np.where(beyond, x.dtype.type(0), np.left_shift(x, safe))
    return np.where(beyond, -(x < 0).astype(x.dtype), np.right_shift(x, safe))


def equal_dims(a: Any, b: Any) -> bool:
    """Equality as far as it is certain: a dimension is never negative; raises ValueError when it depends on the run."""
    if not (isinstance(a, Sym) or isinstance(b, Sym)) or a == b:
        return bool(a == b)
    number = b if isinstance(a, Sym) else a
    if not isinstance(number, Sym) and number < 0:
        return False
    raise ValueError(f"{a} = {b} is decided at run time")


def equal(x: Array, y: Array) -> Array:
    if STRING in (x.dtype, y.dtype):
        return scalar(equal_dims)(x, y).astype(BOOL)
    return np.equal(x, y)


def isinf(o: Any, x: Array) -> Array:
    return (np.isposinf(x) & bool(o.detect_positive)) | (np.isneginf(x) & bool(o.detect_negative))


def isinf_text(o: Any) -> str:
    parts = [t for t, on in (("x == inf", o.detect_positive), ("x == -inf", o.detect_negative)) if on]
    return " or ".join(f"({t})" for t in parts) or "x != x and x == x"
