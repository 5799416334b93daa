"""Helpers of one number that generated code of every device names: casts, division, remainders, powers, extremes."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math

import numpy as np

from bolt_numba.kernels.declare import Inline, inline, inline_source

_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
COMPARISONS = (*_SIGNS, *(f"not_{name}" for name in _SIGNS))


@functools.cache
def comparison(name: str, negation: str) -> Inline:
    """Helper ``(v, bound)`` of one of `COMPARISONS`; the negated ones hold for NaN.  negation: how to negate."""
    text = f"v {_SIGNS[name.removeprefix('not_')]} bound"
    text = f"{negation}({text})" if name.startswith("not_") else text
    return inline_source(f"def compared(v, bound):\n    return {text}\n", "compared")


@inline
def whole_i32(x):
    """A float cut to an i32; the least one for NaN and what does not fit."""
    return np.int32(x) if abs(x) < np.float32(2.0**31) else np.int32(-0x80000000)


@inline
def whole_low(x):
    """A float cut to an i32 of which only the low half counts, so that 0 may stand for the least one."""
    return np.int32(x if abs(x) < np.float32(2.0**31) else np.float32(0))


@inline
def whole_i64(x):
    """A float cut to an i64; the least one for NaN and what does not fit."""
    return np.int64(x) if abs(x) < np.float32(2.0**63) else np.int64(-0x8000000000000000)


@inline
def whole_u64(x):
    """A float cut to a u64, by way of i64 on either side of 2**63."""
    high = x >= np.float32(2.0**63)
    made = np.uint64(whole_i64(x - np.float32(2.0**63) if high else x))
    return made ^ np.uint64(0x8000000000000000) if high else made


@inline
def float_max(x, y):
    """The greater; NaN where one is, and of zeros the positive one."""
    return x if (x > y) | (x != x) | ((x == y) & (math.copysign(1.0, y) < 0.0)) else y


@inline
def float_min(x, y):
    """The lesser; NaN where one is, and of zeros the negative one."""
    return x if (x < y) | (x != x) | ((x == y) & (math.copysign(1.0, x) < 0.0)) else y


@inline
def integer_div(x, y):
    """Quotient rounded toward zero; 0 for y = 0; the least number over -1 is itself."""
    if y == 0:
        return x - x
    if y == -1:
        return -x
    q = x // y
    return q + 1 if (q < 0) & (q * y != x) else q


@inline
def integer_fmod(x, y):
    """Remainder with the sign of x; 0 for y = 0."""
    r = x % y
    return r - y if (r != 0) & ((x < 0) != (y < 0)) else r


@inline
def whole_root(y, s):
    """The root of an integer s, which may have wrapped around, cut; y: this, give or take 1."""
    y = np.int64(y)
    more = np.int64(s) - y * y
    return y - 1 if more < 0 else y + 1 if more > 2 * y else y


@inline
def halves_div(high, low, n):
    """(high * 2**32 + low) / n rounded toward zero, for a quotient of 64 bits and n < 2**31; low is not negative.

    A quotient of f64 is at most 2**12 off, and what is left is divided once more: vectors have no division of integers.
    """
    high += low >> 32
    low, n = np.int64(low) & 0xFFFFFFFF, np.int64(n)
    near = np.float64(high) * 4294967296.0 + np.float64(low)
    size = np.int64(whole_u64(abs(near) / np.float64(n)))
    q = -size if high < 0 else size
    rest = (np.int64(high) << 32) + low - q * n
    more = np.int64(np.float64(rest) / np.float64(n))
    q, rest = q + more, rest - more * n
    return q - 1 if (rest < 0) & (high >= 0) else q + 1 if (rest > 0) & (high < 0) else q


@inline
def reduced_power(y):
    """An i64 that gives the same power of every i64 as this u64: powers of odd numbers repeat after 2**62."""
    low = np.uint64(0x3FFFFFFFFFFFFFFF)
    return np.int64((y & low) | np.uint64(0x4000000000000000)) if y > low else np.int64(y)


@inline
def bounded_power(y):
    """An i64 that gives the same power of every float as this one, and that f64 holds."""
    large = np.int64(9007199254740990)
    odd = np.int64(y & 1)
    return large + odd if y > large else -large - odd if y < -large else np.int64(y)


@inline
def unsigned_pow(x, y):
    """Power of a u64 that is held as an i64."""
    return signed_pow(x, y) if y >= 0 else 1 if x == 1 else 0


@inline
def signed_pow(x, y):
    """Power of i64, wrapping around; what is not whole is cut."""
    if y < 0:
        odd = y % 2 != 0
        return 1 if x == 1 or (x == -1 and not odd) else -1 if x == -1 else 0
    made = 1
    while y > 0:
        if y % 2 != 0:
            made *= x
        x *= x
        y //= 2
    return made


@inline
def whole_pow(x, y):
    """Power of an f64 to an i64."""
    # The least i64 has no negative; a power so large depends on parity alone.
    left = y if y >= 0 else -(y + 2 if y == -y else y)
    made = 1.0
    while left > 0:
        if left & 1:
            made *= x
        x *= x
        left >>= 1
    return made if y >= 0 else 1.0 / made


_TURN = tuple(
    np.uint64(word)
    for word in (
        0x0028BE60DB939105, 0x4A7F09D5F47D4D37, 0x7036D8A5664F10E4, 0x107F9458EAF7AEF1,
    )
)  # fmt: skip
"""The bits of 1 / (2 pi), after eight zeros."""


@inline
def reduce_turn(bits):
    """(r, q) with x = q pi/2 + r modulo a turn, |r| <= pi/4, for the bits of an f32 x >= 2**17.

    Exact fixed-point arithmetic on the fraction of x / (2 pi) (Payne and Hanek 1983): of 1 / (2 pi) only the 104 bits
    count that neither make whole turns nor lie under the result.
    """
    m = np.uint64((bits & 0x7FFFFF) | 0x800000)
    shift = ((bits >> 23) & 255) - 142
    k, left = shift >> 6, np.uint64(shift & 63)
    right = np.uint64(63) - left
    one = np.uint64(1)
    high = (_TURN[k] << left) | ((_TURN[k + 1] >> one) >> right)
    low = (_TURN[k + 1] << left) | ((_TURN[k + 2] >> one) >> right)
    f = m * high + ((m * (low >> np.uint64(24))) >> np.uint64(40))
    q = (f + (one << np.uint64(61))) >> np.uint64(62)
    return np.float32(np.int64(f - (q << np.uint64(62))) * 3.4061215800304655e-19), np.int32(q & np.uint64(3))


TYPES = {
    "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
}  # fmt: skip
SCALARS = {
    "integer_div": integer_div, "integer_fmod": integer_fmod, "signed_pow": signed_pow, "unsigned_pow": unsigned_pow,
    "whole_pow": whole_pow, "reduced_power": reduced_power, "bounded_power": bounded_power,
    "float_fmod": np.fmod, "float_max": float_max, "float_min": float_min,
    "whole_i32": whole_i32, "whole_low": whole_low, "whole_i64": whole_i64, "whole_u64": whole_u64,
    "whole_root": whole_root, "halves_div": halves_div,
}  # fmt: skip
"""By the names that `codegen` gives them."""
