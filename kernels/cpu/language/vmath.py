"""Elementary functions on f32 vectors, as helpers that kernels and generated code inline.

Every function is right for zeros, denormal numbers, infinities and NaN.  Method: exact range reduction, then a
polynomial whose coefficients were fitted for this file to the least greatest relative error (Lawson's iteratively
reweighted least squares on 4001 Chebyshev nodes; each coefficient was rounded to f32 in turn and the rest fitted
again).  Errors are in units in the last place (ulp) of the result, measured by ``tests/test_vmath.py`` against extended
precision on dense and random arguments.
"""

# mypy: disable-error-code="no-untyped-def"
import math

from bolt_numba.kernels.cpu.language.lang import (
    bits_of,
    copysign,
    elementary,
    f32_of_bits,
    fma,
    select,
    splat,
    to_f32,
    to_i32,
    vabs,
    vmax,
    vmin,
    vround,
    vsqrt,
)  # fmt: skip
from bolt_numba.kernels.instructions.isa import target

LOG2E = 1.44269504
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; the first has 9 bits, so its product with an exponent is exact."""
TINY = 1.17549435e-38
"""The least normal f32."""
SIGN = -0x80000000


@elementary
def poly3(x, a, b, c):
    return fma(fma(splat(c), x, splat(b)), x, splat(a))


@elementary
def poly4(x, a, b, c, d):
    return fma(poly3(x, b, c, d), x, splat(a))


@elementary
def poly5(x, a, b, c, d, e):
    return fma(poly4(x, b, c, d, e), x, splat(a))


@elementary
def poly6(x, a, b, c, d, e, f):
    return fma(poly5(x, b, c, d, e, f), x, splat(a))


@elementary
def poly7(x, a, b, c, d, e, f, g):
    return fma(poly6(x, b, c, d, e, f, g), x, splat(a))


@elementary
def poly9(x, a, b, c, d, e, f, g, h, i):
    return fma(fma(poly7(x, c, d, e, f, g, h, i), x, splat(b)), x, splat(a))


if target().has_fma:

    @elementary
    def product_error(x, y, p):
        """``x * y - p`` exactly, for ``p`` the rounded product."""
        return fma(x, y, -p)

else:

    @elementary
    def product_error(x, y, p):
        """``x * y - p`` exactly, for ``p`` the rounded product (Dekker 1971)."""
        cx, cy = x * 4097.0, y * 4097.0
        xh, yh = cx - (cx - x), cy - (cy - y)
        xl, yl = x - xh, y - yh
        return ((xh * yh - p) + xh * yl + xl * yh) + xl * yl


@elementary
def flip_sign(y, x):
    """``y``, negated where x is."""
    return f32_of_bits(bits_of(y) ^ (bits_of(x) & SIGN))


@elementary
def pow2(n):
    """2**n for i32 n in -126…127."""
    return f32_of_bits((n + 127) << 23)


@elementary
def scale(y, n):
    """``y * 2**n`` for i32 n in -252…254, in two steps so that the result may be denormal or infinite."""
    half = n >> 1
    return y * pow2(half) * pow2(n - half)


@elementary
def reduce_exp(x):
    """(n, r) with x = n ln 2 + r, n integer, |r| <= 0.35."""
    n = vround(x * LOG2E)
    return n, fma(n, splat(-LN2_LOW), fma(n, splat(-LN2_HIGH), x))


@elementary
def exp_poly(r):
    """Exponential on |r| <= 0.35; fit error 0.06 ulp."""
    return fma(poly5(r, 0.49999994, 0.16666517, 0.04166828, 0.008369248, 0.0013820744), r * r, r) + 1.0


@elementary
def scale_normal(y, n):
    """``y * 2**n`` for i32 n, where y and the result are normal and y is not 0."""
    return f32_of_bits(bits_of(y) + (n << 23))


@elementary
def exp_normal(x):
    """Exponential for -86 <= x <= 88: one ulp, no test for the ends."""
    n, r = reduce_exp(x)
    return scale_normal(exp_poly(r), to_i32(n))


@elementary
def exp_negative(x):
    """Exponential for x <= 0: one ulp, exactly 0 below -86; for softmax, where nothing smaller counts."""
    y = exp_normal(vmax(splat(-86.0), x))
    return select(x < -86.0, splat(0.0), y)


@elementary
def vexp(x):
    """exp(x): 1 ulp."""
    n, r = reduce_exp(vmin(splat(89.0), vmax(splat(-104.0), x)))
    y = scale(exp_poly(r), to_i32(n))
    return select(x == x, y, x)


@elementary
def half_exp(x):
    """exp(x) / 2, finite as long as the result is: 1 ulp."""
    n, r = reduce_exp(vmin(splat(90.0), vmax(splat(-104.0), x)))
    y = scale(exp_poly(r), to_i32(n) - 1)
    return select(x == x, y, x)


@elementary
def vexpm1(x):
    """exp(x) - 1: 1.6 ulp."""
    n, r = reduce_exp(vmin(splat(89.0), vmax(splat(-30.0), x)))
    m = fma(poly5(r, 0.49999997, 0.16666542, 0.04166743, 0.008366876, 0.0013871879), r * r, r)
    half = pow2(to_i32(n) - 1)  # half of 2**n, which itself may be too large
    y = fma(half, m, half - 0.5)
    return select(x == x, select(n == 0.0, m, y + y), x)


@elementary
def vsigmoid(x):
    """1 / (1 + exp(-x)): 2.5 ulp."""
    e = vexp(-vabs(x))
    return select(x >= 0.0, splat(1.0), e) / (e + 1.0)


@elementary
def vtanh(x):
    """tanh(x): 1.4 ulp."""
    a, z = vabs(x), x * x
    p = poly6(z, -0.3333333, 0.13333221, -0.05394818, 0.021706894, -0.0081900135, 0.002152684)
    e = exp_normal(vmin(splat(20.0), a + a))
    large = 1.0 - 2.0 / (e + 1.0)
    return select(x == x, copysign(select(a < 0.625, fma(p * z, x, x), large), x), x)


@elementary
def split_log(x):
    """(m, e) with x = m * 2**e, m in sqrt(1/2)…sqrt(2), for normal x > 0."""
    i = bits_of(x) - 0x3F3504F3
    return f32_of_bits((i & 0x7FFFFF) + 0x3F3504F3), to_f32(i >> 23)


@elementary
def log_core(f, e):
    """log(1 + f) + e ln 2 for f in sqrt(1/2) - 1…sqrt(2) - 1; fit error 0.02 ulp."""
    p = poly9(
        f, 0.3333331, -0.24999994, 0.20002201, -0.16668652, 0.1421873, -0.12396164, 0.11885235, -0.117219046, 0.06803063
    )
    z = f * f
    y = fma(splat(-0.5), z, fma(e, splat(LN2_LOW), p * f * z))
    return fma(e, splat(LN2_HIGH), f + y)


@elementary
def vlog(x):
    """log(x): 0.8 ulp; NaN below 0."""
    tiny = x < TINY
    m, e = split_log(select(tiny, x * 8388608.0, x))
    y = log_core(m - 1.0, select(tiny, e - 23.0, e))
    y = select(x < math.inf, y, x)
    return select(x > 0.0, y, select(x == 0.0, splat(-math.inf), splat(math.nan)))


@elementary
def log1p_unit(t):
    """log(1 + t) for 0 <= t <= 1: 1.2 ulp."""
    high = t > 0.41421357
    f = select(high, fma(splat(0.5), t, splat(-0.5)), t)
    return log_core(f, select(high, splat(1.0), splat(0.0)))


@elementary
def log1p_positive(x):
    """log(1 + x) for x >= 0: 1.2 ulp."""
    u = x + 1.0
    m, e = split_log(u)
    lost = select(x > 1.0, 1.0 - (u - x), x - (u - 1.0))
    return select(x < math.inf, log_core(m - 1.0, e) + lost / u, x)


@elementary
def vlog1p(x):
    """log(1 + x): 1.5 ulp; NaN below -1."""
    u = x + 1.0
    tiny = u < TINY
    m, e = split_log(select(tiny, splat(1.0), u))
    lost = select(x > 1.0, 1.0 - (u - x), x - (u - 1.0))
    y = log_core(m - 1.0, e) + lost / u
    y = select(x < math.inf, y, x)
    return select(u > 0.0, y, select(u == 0.0, splat(-math.inf), splat(math.nan)))


@elementary
def vsoftplus(x):
    """log(1 + exp(x)): 1.7 ulp."""
    y = log1p_unit(vexp(-vabs(x))) + vmax(splat(0.0), x)
    return select(x == x, y, x)


@elementary
def vmish(x):
    """Mish, x * tanh(softplus(x)), by tanh(log(1 + e)) = n / (n + 2), n = e (e + 2): 4 ulp."""
    e = vexp(vmin(splat(20.0), x))
    n = e * (e + 2.0)
    return select(x > 20.0, x, x * (n / (n + 2.0)))


@elementary
def verf(x):
    """Error function: 1.1 ulp.  Fits: erf itself below 0.95, -log(1 - erf) up to 4."""
    a, z = vabs(x), x * x
    p = poly7(z, 0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806904e-05)
    q = poly7(
        vmin(splat(4.0), a),
        0.00016644777, 1.1277972, 0.63697606, 0.10411372, -0.022315254, 0.0030655102, -0.00019822335,
    )  # fmt: skip
    large = copysign(1.0 - exp_normal(-q), x)
    return select(x == x, select(a < 0.95, fma(p, x, x), large), x)


@elementary
def vgelu(x):
    """Gelu, x * Phi(x), the exact form: 2.5 ulp for x >= -1, then growing with |x| to 120 ulp at -7; -0 below.

    As max(x, 0) - a Phi(-a) for a = |x|, with log2 of Phi(-a) fitted on 0…7: no cancellation on either side.  At -inf
    it is NaN, as the formula is; inf is spared that by the greatest number.
    """
    a = vabs(vmin(splat(3.4028235e38), x))
    c = vmin(splat(7.0), a)
    q = poly9(
        c, -0.052510943, 0.0070378366, -6.114329e-05, -0.00025901385, 7.42139e-05, -1.1627368e-05, 1.1107168e-06,
        -6.056731e-08, 1.4481005e-09,
    )  # fmt: skip
    q = fma(fma(fma(q, c, splat(-0.45919585)), c, splat(-1.1511074)), c, splat(-0.99999994))
    n = vround(q)
    r = q - n
    p = poly6(r, 0.6931472, 0.24022648, 0.05550358, 0.009618503, 0.0013391889, 0.0001532921)
    tail = scale_normal(fma(p, r, splat(1.0)), to_i32(n))
    return vmax(splat(-0.0), x) - a * select(a < 7.0, tail, splat(0.0))


@elementary
def vgelu_tanh(x):
    """The tanh form of gelu, 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x**3)."""
    u = x * fma(x * x, splat(0.0713548162726), splat(1.5957691216057308))
    return x * vsigmoid(u)


@elementary
def gelu_without(x, a, b, c, d, e, f, g, h, i):
    """max(x, 0) - z P(z) for z = min(|x|, 4.125) and a polynomial P of nine coefficients, which is 1e-6 at 4.125."""
    z = vmin(splat(4.125), vabs(x))
    z2 = z * z
    z4 = z2 * z2
    low = fma(fma(splat(d), z, splat(c)), z2, fma(splat(b), z, splat(a)))
    high = fma(fma(splat(h), z, splat(g)), z2, fma(splat(f), z, splat(e)))
    return vmax(splat(0.0), x) - z * fma(fma(splat(i), z4, high), z4, low)


@elementary
def vgelu_short(x):
    """`vgelu` to 1e-4, in half the instructions: for results that will be rounded to bfloat16."""
    return gelu_without(
        x, 0.49923933, -0.38906819, -0.033442087, 0.11432195, -0.031377543, -0.0037951595, 0.0032777498, -0.00058185105,
        3.5122936e-05,
    )  # fmt: skip


@elementary
def vgelu_tanh_short(x):
    """`vgelu_tanh` to 1e-4, as `vgelu_short`."""
    return gelu_without(
        x, 0.4994083, -0.39088845, -0.028252946, 0.10842536, -0.027742349, -0.0051987809, 0.0036228481, -0.00063066586,
        3.8089223e-05,
    )  # fmt: skip


@elementary
def vsinh(x):
    """sinh(x): 1.6 ulp."""
    a, z = vabs(x), x * x
    small = fma(poly4(z, 0.16666667, 0.0083333105, 0.00019842896, 2.7822132e-06) * z, x, x)
    h = half_exp(a)
    return select(a < 1.0, small, flip_sign(h - 0.25 / h, x))


@elementary
def vcosh(x):
    """cosh(x): 1.4 ulp."""
    h = half_exp(vabs(x))
    return h + 0.25 / h


@elementary
def vasinh(x):
    """Inverse of sinh: 1.7 ulp."""
    a, z = vabs(x), x * x
    p = poly6(z, -0.16666666, 0.07499907, -0.044616096, 0.03003357, -0.020049585, 0.00925663)
    huge = a > 1e9  # a * a may overflow; asinh(a) = log(2 a) there
    b = select(huge, a, a + a * a / (1.0 + vsqrt(fma(a, a, splat(1.0)))))
    y = log1p_positive(b) + select(huge, splat(0.6931472), splat(0.0))
    return copysign(select(a < 0.5, fma(p * z, x, x), y), x)


@elementary
def vacosh(x):
    """Inverse of cosh: 2.2 ulp; NaN below 1."""
    t = x - 1.0
    huge = x > 1e9
    b = select(huge, x, t + vsqrt(fma(t, t, t + t)))
    y = log1p_positive(b) + select(huge, splat(0.6931472), splat(0.0))
    return select(x >= 1.0, y, splat(math.nan))


@elementary
def vatanh(x):
    """Inverse of tanh: 1.5 ulp; NaN outside -1…1."""
    a, z = vabs(x), x * x
    p = poly7(z, 0.33333337, 0.19999622, 0.14297815, 0.109294, 0.10524492, 0.016958747, 0.18514137)
    y = 0.5 * vlog((1.0 + a) / (1.0 - a))
    return select(a < 0.5, fma(p * z, x, x), flip_sign(y, x))


@elementary
def vatan(x):
    """Arc tangent: 1.3 ulp."""
    a = vabs(x)
    high = a > 1.0
    t = select(high, 1.0 / a, a)
    z = t * t
    p = poly9(
        z, -0.333333, 0.1999853, -0.14264016, 0.109508805, -0.083993055, 0.057881337, -0.031096863, 0.010868566,
        -0.0017827798,
    )  # fmt: skip
    y = fma(p * z, t, t)
    return flip_sign(select(high, 1.57079637 - (y + 4.37113883e-8), y), x)


@elementary
def arcsine_core(t):
    """Arc sine on |t| <= 0.5; fit error 0.1 ulp."""
    z = t * t
    return fma(poly5(z, 0.16666752, 0.074953094, 0.04546915, 0.024184778, 0.042158306) * z, t, t)


@elementary
def vasin(x):
    """Arc sine: 2.5 ulp; NaN outside -1…1."""
    a = vabs(x)
    high = a > 0.5
    y = arcsine_core(select(high, vsqrt(fma(splat(-0.5), a, splat(0.5))), a))
    return flip_sign(select(high, 1.57079637 - (y + y + 4.37113883e-8), y), x)


@elementary
def vacos(x):
    """Arc cosine: 1.3 ulp; NaN outside -1…1."""
    a = vabs(x)
    high = a > 0.5
    y = arcsine_core(select(high, vsqrt(fma(splat(-0.5), a, splat(0.5))), x))
    outer = y + y
    outer = select(x < 0.0, 3.14159274 - (outer + 8.74227766e-8), outer)
    return select(high, outer, 1.57079637 - (y + 4.37113883e-8))


@elementary
def two_sum(a, b):
    """``a + b`` as a rounded sum and its exact error (Knuth 1969)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@elementary
def log2_parts(x):
    """log2(x) as two f32 (about 40 bits together) for finite x > 0.

    log m = 2 artanh(s), s = (m - 1) / (m + 1): s, its cube and the sum with the exponent are carried in two parts.
    """
    tiny = x < TINY
    m, e = split_log(select(tiny, x * 8388608.0, x))
    e = select(tiny, e - 23.0, e)
    f, g = m - 1.0, m + 1.0
    g_low = m - (g - 1.0)
    s = f / g
    whole = s * g
    s_low = ((f - whole) - product_error(s, g, whole) - s * g_low) / g
    z = s * s
    cube = s * z
    cube_low = product_error(s, z, cube) + s * product_error(s, s, z)
    p = poly4(z, 0.6666666, 0.40000972, 0.28498802, 0.24278562)
    tail = cube * p
    tail_low = product_error(cube, p, tail) + cube_low * p
    double = s + s
    high = double + tail
    low = (tail - (high - double)) + tail_low + (s_low + s_low)
    scaled = high * 1.44269502
    scaled_low = product_error(high, splat(1.44269502), scaled) + fma(high, splat(1.92596303e-8), low * 1.44269502)
    y, error = two_sum(e, scaled)
    y_low = error + scaled_low
    total = y + y_low
    return total, y_low - (total - y)


@elementary
def exp2_parts(high, low):
    """2**(high + low), |low| much smaller."""
    c = vmin(splat(160.0), vmax(splat(-160.0), high))
    n = vround(c)
    r = (c - n) + select(c == high, low, splat(0.0))
    p = poly6(r, 0.6931472, 0.24022648, 0.05550358, 0.009618503, 0.0013391889, 0.0001532921)
    return scale(fma(p, r, splat(1.0)), to_i32(n))


@elementary
def vpow(x, y):
    """``x ** y`` with the special values of C's pow: 2 ulp."""
    a = vabs(x)
    high, low = log2_parts(select(a < math.inf, vmax(a, splat(1e-45)), splat(1.0)))
    c = vmin(splat(1e30), vmax(splat(-1e30), y))
    product = c * high
    made = exp2_parts(product, product_error(c, high, product) + c * low)
    whole = vround(y) == y
    odd = whole & (vround(y * 0.5) != y * 0.5)
    negative = bits_of(x) < 0
    growing = y > 0.0
    at_zero = select(growing, splat(0.0), splat(math.inf))
    at_inf = select(growing, splat(math.inf), splat(0.0))
    made = select(a == 0.0, at_zero, select(a == math.inf, at_inf, made))
    large = vabs(y) == math.inf
    made = select(large, select(a == 1.0, splat(1.0), select((a > 1.0) ^ growing, splat(0.0), splat(math.inf))), made)
    made = select(negative & odd, -made, made)
    made = select(negative & (a > 0.0) & (a < math.inf) & ~(whole | large), splat(math.nan), made)
    made = select((x != x) | (y != y), x + y, made)
    return select((x == 1.0) | (y == 0.0), splat(1.0), made)
