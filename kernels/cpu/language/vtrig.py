"""Sine, cosine and tangent on f32 vectors, for every finite argument; the rest is in `kernels.cpu.language.vmath`."""

# mypy: disable-error-code="no-untyped-def"
import math

from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    any_lane,
    bits_of,
    elementary,
    f32_of_bits,
    fma,
    lane,
    select,
    splat,
    to_i32,
    vabs,
    vround,
    with_lane,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.vmath import SIGN, flip_sign, poly3, poly7, product_error, two_sum
from bolt_numba.kernels.geometry.scalars import reduce_turn


@elementary
def reduce_huge(a, r, q):
    """(r, q) with the lanes of huge ``a`` replaced."""
    for i in range(LANES):
        if lane(a, i) > 2e5:
            one_r, one_q = reduce_turn(lane(bits_of(a), i))
            r, q = with_lane(r, i, one_r), with_lane(q, i, one_q)
    return r, q


@elementary
def reduce_trig(x):
    """(r, q) with |x| = q pi/2 + r modulo a turn, |r| <= 0.81, q an i32 of which two bits count.

    pi/2 in three f32 (72 bits); products and the sums that cancel are exact.  Above 2e5 by integers.
    """
    a = vabs(x)
    n = vround(a * 0.63661977)
    high = n * 1.5707964
    rest, e1 = two_sum(a - high, -product_error(n, splat(1.5707964), high))
    mid = n * -4.371139e-08
    r, e2 = two_sum(rest, -mid)
    low = fma(n, splat(-1.7151245e-15), product_error(n, splat(-4.371139e-08), mid))
    r = r + (e1 + e2 - low)
    huge = a > 2e5
    q = to_i32(select(a <= 2e5, n, splat(0.0)))
    if any_lane(huge):
        r, q = reduce_huge(a, r, q)
    return select(a < math.inf, r, splat(math.nan)), q


@elementary
def sine_core(r):
    """Sine on |r| <= 0.81; fit error 0.1 ulp."""
    z = r * r
    return fma(poly3(z, -0.16666654, 0.008332106, -0.00019507883) * z, r, r)


@elementary
def cosine_core(r):
    """Cosine on |r| <= 0.81; fit error 0.01 ulp."""
    z = r * r
    return fma(poly3(z, 0.041666646, -0.0013887298, 2.4430086e-05) * z, z, fma(splat(-0.5), z, splat(1.0)))


@elementary
def vsin(x):
    """sin(x) for every finite x: 1.3 ulp."""
    r, q = reduce_trig(x)
    y = select((q & 1) == 0, sine_core(r), cosine_core(r))
    return f32_of_bits(bits_of(y) ^ (((q & 2) << 30) ^ (bits_of(x) & SIGN)))


@elementary
def vcos(x):
    """cos(x) for every finite x: 1.3 ulp."""
    r, q = reduce_trig(x)
    y = select((q & 1) == 0, cosine_core(r), sine_core(r))
    return f32_of_bits(bits_of(y) ^ (((q + 1) & 2) << 30))


@elementary
def vtan(x):
    """tan(x) for every finite x: 2.5 ulp."""
    r, q = reduce_trig(x)
    z = r * r
    p = poly7(z, 0.33333352, 0.13332571, 0.054070976, 0.021222642, 0.010995432, -0.000118591575, 0.0044814628)
    y = fma(p * z, r, r)
    return flip_sign(select((q & 1) == 0, y, -1.0 / y), x)
