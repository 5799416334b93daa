"""Helpers of one number in a register, for generated text and for epilogues: functions of f32, rounding, quantising.

Functions that are none of libdevice's are right for zeros, infinities and NaN, and have a small relative error on
either side of zero.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import fast_divide
from bolt_numba.kernels.cuda.language.lang import (
    cvt_bf16x2,
    cvt_f16x2,
    ex2,
    f32_bits,
    fma,
    multiply_apart,
    rcp,
    rint_f32,
    unpack_bf16x2,
    unpack_f16x2,
)
from bolt_numba.kernels.geometry.scalars import SCALARS, TYPES, reduce_turn

LOG2E = np.float32(1.44269504)


@inline
def exp_short(x):
    """exp(x) to 2 ** -22 * |x|: for results that will be halves."""
    return ex2(x * LOG2E)


@inline
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow of the exponential."""
    e = math.exp(-abs(x))
    made = rcp(np.float32(1) + e)
    return made if x >= np.float32(0) else e * made


@inline
def sigmoid_short(x):
    return rcp(np.float32(1) + ex2(x * -LOG2E))


@inline
def tanh_short(x):
    """2 sigmoid(2 x) - 1, or the first two terms of the series."""
    made = fma(np.float32(2), rcp(np.float32(1) + ex2(x * (np.float32(-2) * LOG2E))), np.float32(-1))
    return x - x * x * x * np.float32(0.33333334) if abs(x) < np.float32(0.06) else made


@inline
def softplus(x):
    """log(1 + exp(x))."""
    made = math.log1p(math.exp(-abs(x)))
    return x + made if x > np.float32(0) else made


@inline
def mish(x):
    """The product x * tanh(softplus(x)), where tanh(log(1 + e)) = e * (e + 2) / (e * (e + 2) + 2)."""
    e = math.exp(min(x, np.float32(20)))
    n = e * (e + np.float32(2))
    return x if x > np.float32(20) else x * (n / (n + np.float32(2)))


@inline
def mish_short(x):
    e = ex2(min(x, np.float32(20)) * LOG2E)
    n = e * (e + np.float32(2))
    return x if x > np.float32(20) else x * (n * rcp(n + np.float32(2)))


@inline
def gelu(x):
    """Product of x and the normal distribution's integral Phi up to x.

    As max(x, 0) - a Phi(-a) for a = |x|, with log2 of Phi(-a) fitted on 0…7 (`kernels.cpu.language.vmath.vgelu`): no
    cancellation on either side.
    """
    a = abs(min(np.float32(3.4028235e38), x))
    c = min(np.float32(7), a)
    q = fma(np.float32(1.4481005e-09), c, np.float32(-6.056731e-08))
    q = fma(q, c, np.float32(1.1107168e-06))
    q = fma(q, c, np.float32(-1.1627368e-05))
    q = fma(q, c, np.float32(7.42139e-05))
    q = fma(q, c, np.float32(-0.00025901385))
    q = fma(q, c, np.float32(-6.114329e-05))
    q = fma(q, c, np.float32(0.0070378366))
    q = fma(q, c, np.float32(-0.052510943))
    q = fma(q, c, np.float32(-0.45919585))
    q = fma(q, c, np.float32(-1.1511074))
    q = fma(q, c, np.float32(-0.99999994))
    tail = ex2(q) if a < np.float32(7) else np.float32(0)
    made = (x if x > np.float32(0) else np.float32(-0.0)) - a * tail
    return x if x != x else made


@inline
def gelu_tanh(x):
    """0.5 * x * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 * x ** 3), which is x * sigmoid(2 * u)."""
    u = np.float32(1.5957691216) * x * (np.float32(1) + np.float32(0.044715) * x * x)
    return x * sigmoid(u)


@inline
def gelu_tanh_short(x):
    u = np.float32(1.5957691216) * x * (np.float32(1) + np.float32(0.044715) * x * x)
    return x * sigmoid_short(u)


@inline
def reduce_trig(x):
    """(r, q) with |x| = q pi/2 + r modulo a turn, |r| <= 0.8, q an i32 of which two bits count.

    pi/2 in three f32: the first difference is exact, as n has 16 bits.  Above 1e5 by integers.
    """
    a = abs(x)
    if a > np.float32(1e5):
        r, q = reduce_turn(np.int64(f32_bits(a)))
        return (r, q) if a < np.float32(math.inf) else (np.float32(math.nan), q)
    n = rint_f32(a * np.float32(0.63661977))
    r = fma(n, np.float32(-1.5707964), a)
    r = fma(n, np.float32(4.371139e-08), r)
    return fma(n, np.float32(1.7151245e-15), r), np.int32(n)


@inline
def sine_core(r):
    """Sine on |r| <= 0.81."""
    z = r * r
    p = fma(fma(np.float32(-0.00019507883), z, np.float32(0.008332106)), z, np.float32(-0.16666654))
    return fma(p * z, r, r)


@inline
def cosine_core(r):
    """Cosine on |r| <= 0.81."""
    z = r * r
    p = fma(fma(np.float32(2.4430086e-05), z, np.float32(-0.0013887298)), z, np.float32(0.041666646))
    return fma(p * z, z, fma(np.float32(-0.5), z, np.float32(1)))


@inline
def sine(x):
    """Without the local memory that libdevice's takes."""
    r, q = reduce_trig(x)
    y = sine_core(r) if q & 1 == 0 else cosine_core(r)
    y = -y if q & 2 else y
    return -y if math.copysign(np.float32(1), x) < np.float32(0) else y


@inline
def cosine(x):
    r, q = reduce_trig(x)
    y = cosine_core(r) if q & 1 == 0 else sine_core(r)
    return -y if (q + 1) & 2 else y


@inline
def tangent(x):
    r, q = reduce_trig(x)
    z = r * r
    p = np.float32(0.0044814628)
    for c in (-0.000118591575, 0.010995432, 0.021222642, 0.054070976, 0.13332571, 0.33333352):
        p = fma(p, z, np.float32(c))
    y = fma(p * z, r, r)
    y = y if q & 1 == 0 else np.float32(-1) / y
    return -y if math.copysign(np.float32(1), x) < np.float32(0) else y


@inline
def float_mod(x, y):
    """Remainder with the sign of y."""
    r = math.fmod(x, y)
    if r == 0:
        return math.copysign(r, y)
    return r + y if (r < 0) != (y < 0) else r


@inline
def at_least(x, bound):
    """The bound where x is less; NaN stays, and a zero keeps its sign."""
    return bound if x < bound else x


@inline
def at_most(x, bound):
    return bound if x > bound else x


@inline
def round_f16(x):
    """The nearest f16."""
    return unpack_f16x2(cvt_f16x2(np.float32(0), x))[0]


@inline
def round_bf16(x):
    """The nearest bf16."""
    return unpack_bf16x2(cvt_bf16x2(np.float32(0), x))[0]


@inline
def exact_product(x, y):
    """A product that is rounded, whatever follows it."""
    return multiply_apart(x, y)


@inline
def quantised(x, scale, zero, low, high):
    """``x / scale`` rounded to even, plus the zero point, within the limits (NaN is the lower one), as an i32.

    All are f32.
    """
    code = rint_f32(x / scale) + zero
    code = code if code > low else low
    return np.int32(code if code < high else high)


@inline
def quotient(x, magic, shift):
    """``x // divisor`` for indices below 2 ** 31; see `language.division.divider`."""
    return fast_divide(x, np.uint32(magic), np.uint32(shift))


_OWN = {
    f.name: f
    for f in (
        *(sigmoid, softplus, mish, gelu, gelu_tanh, float_mod, round_f16, round_bf16, exact_product, quantised),
        *(exp_short, sigmoid_short, tanh_short, mish_short, gelu_tanh_short),
        *(quotient, at_least, at_most, sine, cosine, tangent),
    )
}
_NAMES = {**TYPES, "inf": math.inf, "nan": math.nan, "math": math, **SCALARS, **_OWN, "float_fmod": math.fmod}


@functools.lru_cache(maxsize=256)
def scope_of(text: str) -> Mapping[str, Any]:
    """What the names in generated text stand for; all who ask get the same mapping, so nobody may change it."""
    found = {name: _meaning(name) for name in sorted(set(re.findall(r"[A-Za-z_]\w*", text)))}
    return MappingProxyType({name: value for name, value in found.items() if value is not None})


def _meaning(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    return getattr(lang, name) if name in lang.WORDS else None
