"""Errors of the elementary functions in units in the last place, against extended precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bolt_numba.kernels.cpu.language import vmath, vtrig
from bolt_numba.kernels.cpu.language.lang import I64, LANES, PTR, native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.types import Array

RNG = np.random.default_rng(3)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-45, 3e38, -3e38, 1.0, -1.0, 0.5, -0.5, 2.0]


def run(name: str, x: Array, y: Array | None = None) -> Array:
    """The helper ``name`` on every element."""
    loads = "vload(p.x + 4 * i)" + ("" if y is None else ", vload(p.y + 4 * i)")
    text = f"""def each_{name}(p, tid, nthreads):
    for i in range(0, p.n, LANES):
        vstore(p.o + 4 * i, function({loads}))
"""
    function = getattr(vmath, name, None) or getattr(vtrig, name)
    fields = {"o": PTR, "x": PTR, "y": PTR, "n": I64}
    kernel = native_source(text, f"each_{name}", fields, **scope_of(text), function=function)
    padded = [np.ones(-(-x.size // LANES) * LANES, np.float32) for _ in range(3)]
    padded[1][: x.size] = x
    if y is not None:
        padded[2][: x.size] = y
    kernel.run(o=padded[0], x=padded[1], y=padded[2], n=padded[0].size)
    return padded[0][: x.size]


def ulps(got: Array, wanted: Array) -> Array:
    """Distance in units in the last place of the f32 result; 0 where both are the same special value."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        error = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error[same & ~(error < 1)] = 0
    return np.nan_to_num(error, nan=1e9)


def span(low: float, high: float, count: int = 40_000) -> Array:
    """Dense and random arguments."""
    return np.concatenate([np.linspace(low, high, count), RNG.uniform(low, high, count)]).astype(np.float32)


def magnitudes(low: float, high: float, signed: bool = True, count: int = 40_000) -> Array:
    """Arguments of all exponents."""
    x = np.exp(RNG.uniform(math.log(low), math.log(high), count)).astype(np.float32)
    return np.concatenate([x, -x]) if signed else x


def erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)])


Case = tuple[str, Callable[[Array], Array], float, list[Array]]
CASES: list[Case] = [
    ("vexp", np.exp, 1.0, [span(-105, 90), magnitudes(1e-38, 80)]),
    ("vexpm1", np.expm1, 1.7, [span(-40, 90), span(-1.5, 1.5), magnitudes(1e-38, 1)]),
    ("vlog", np.log, 0.9, [magnitudes(1e-44, 3e38, False), span(0.5, 2)]),
    ("vlog1p", np.log1p, 1.5, [magnitudes(1e-38, 3e38, False), span(-0.999, 4), magnitudes(1e-38, 0.9)]),
    ("vsigmoid", lambda x: 1 / (1 + np.exp(-x)), 2.5, [span(-104, 104), span(-5, 5)]),
    ("vtanh", np.tanh, 1.5, [span(-10, 10), span(-1, 1), magnitudes(1e-38, 1)]),
    ("vsoftplus", lambda x: np.logaddexp(x, 0), 1.8, [span(-104, 104), span(-5, 5)]),
    ("verf", erf, 1.3, [span(-5, 5, 10_000), magnitudes(1e-38, 1, True, 10_000)]),
    ("vsinh", np.sinh, 1.7, [span(-90, 90), span(-2, 2), magnitudes(1e-38, 1)]),
    ("vcosh", np.cosh, 1.5, [span(-90, 90), span(-2, 2)]),
    ("vasinh", np.arcsinh, 1.8, [magnitudes(1e-38, 3e38), span(-4, 4)]),
    ("vacosh", np.arccosh, 2.3, [magnitudes(1, 3e38, False), span(1, 4)]),
    ("vatanh", np.arctanh, 1.6, [span(-1, 1), magnitudes(1e-38, 1)]),
    ("vatan", np.arctan, 1.5, [magnitudes(1e-38, 3e38), span(-4, 4)]),
    ("vasin", np.arcsin, 2.6, [span(-1, 1), magnitudes(1e-38, 1)]),
    ("vacos", np.arccos, 1.4, [span(-1, 1), magnitudes(1e-38, 1)]),
    ("vsin", np.sin, 1.7, [span(-10, 10), span(-1e5, 1e5), magnitudes(1e-38, 1e5)]),
    ("vcos", np.cos, 1.7, [span(-10, 10), span(-1e5, 1e5), magnitudes(1e-38, 1e5)]),
    ("vtan", np.tan, 2.6, [span(-10, 10), span(-1e5, 1e5), magnitudes(1e-38, 1e5)]),
]


@pytest.mark.parametrize(("name", "exact", "limit", "arguments"), CASES, ids=[c[0] for c in CASES])
def test_ulps(name: str, exact: Callable[[Array], Array], limit: float, arguments: list[Array]) -> None:
    x = np.concatenate([*arguments, np.array(SPECIAL, np.float32)])
    with np.errstate(all="ignore"):
        wanted = np.asarray(exact(x.astype(np.longdouble)))
    error = ulps(run(name, x), wanted)
    worst = int(error.argmax())
    assert error[worst] <= limit, f"{name}({x[worst]!r}): {error[worst]:.2f} ulp"


def pi_as_fraction(bits: int = 400) -> Fraction:
    """Machin's formula in integers."""

    def arctan_of_inverse(n: int) -> int:
        term = total = (1 << (bits + 64)) // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    return Fraction((4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))) >> 64, 1 << bits)


def test_huge_and_near_zero_angles() -> None:
    """Arguments up to the greatest f32, and those next to multiples of pi/2, where reduction cancels most."""
    half_pi = pi_as_fraction() / 2
    near = (np.arange(1, 127_000, 37) * (math.pi / 2)).astype(np.float32)
    x = np.concatenate([near, -near, magnitudes(1e5, 3.4e38, True, 1500), np.float32([2e5, 131072, 3.4e38])])
    quarters = [round(Fraction(float(v)) / half_pi) for v in x]
    rest = np.array([float(Fraction(float(v)) - q * half_pi) for v, q in zip(x, quarters, strict=True)])
    turn = np.array([q % 4 for q in quarters])
    sine = np.choose(turn, [np.sin(rest), np.cos(rest), -np.sin(rest), -np.cos(rest)])
    cosine = np.choose(turn, [np.cos(rest), -np.sin(rest), -np.cos(rest), np.sin(rest)])
    assert ulps(run("vsin", x), sine).max() <= 1.7
    assert ulps(run("vcos", x), cosine).max() <= 1.7
    assert ulps(run("vtan", x), sine / cosine).max() <= 2.6


@pytest.mark.parametrize(("low", "high", "power"), [(1e-44, 3e38, 1), (0.5, 2, 100), (0.1, 8, 8), (0.9, 1.1, 800)])
def test_pow(low: float, high: float, power: float) -> None:
    x = magnitudes(low, high, False)
    y = RNG.uniform(-power, power, x.size).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert ulps(run("vpow", x, y), wanted).max() <= 2.7


def test_pow_of_special_values() -> None:
    values = np.array([*SPECIAL, 3.0, -3.0, -2.0, 7.0, 1e30, 2.0**24 + 1], np.float32)
    x, y = (a.reshape(-1) for a in np.meshgrid(values, values))
    wanted = np.array([_c_pow(float(a), float(b)) for a, b in zip(x, y, strict=True)])
    error = ulps(run("vpow", x, y), wanted)
    worst = int(error.argmax())
    assert error[worst] <= 2.7, f"{x[worst]} ** {y[worst]}"


def _c_pow(x: float, y: float) -> float:
    """C's pow by `math.pow`, whose exceptions stand for infinities and NaN."""
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:
        if x == 0:
            return math.copysign(math.inf, x) if y % 2 == 1 else math.inf
        return math.nan


@pytest.mark.parametrize("name", ["vgelu", "vgelu_tanh"])
def test_short_gates(name: str) -> None:
    """Short of the exact ones by 1e-4 at most, and by the 512th part of what is small."""
    x = span(-12, 12, 20_000)
    exact, got = run(name, x), run(f"{name}_short", x)
    assert np.abs(got - exact).max() < 1e-4
    small = span(-0.02, 0.02, 1000)
    np.testing.assert_allclose(run(f"{name}_short", small), run(name, small), rtol=2.0**-9)
    for big in (3e38, np.inf):
        np.testing.assert_allclose(run(f"{name}_short", np.float32([big, -big])), [big, 0], atol=1e-5)
    assert np.isnan(run(f"{name}_short", np.float32([np.nan]))[0])


@pytest.mark.parametrize(("name", "exact"), [("vgelu", None), ("vgelu_tanh", None), ("vmish", None)])
def test_smooth_gates(name: str, exact: Any) -> None:
    """Near and above zero as good as any; far below, where the value vanishes, the relative error grows."""
    x = span(-7, 9, 20_000)
    z = x.astype(np.float64)
    if name == "vgelu":
        wanted = z * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])
    elif name == "vgelu_tanh":
        wanted = z / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        wanted = z * np.tanh(np.logaddexp(z, 0))
    error = ulps(run(name, x), wanted)
    for low, limit in ((-1, 4.0), (-3, 17.0), (-5, 40.0), (-6.99, 130.0)):
        assert error[x >= low].max() <= limit
    for big in (20.0, 1e4, 3e38, np.inf):
        assert run(name, np.float32([big]))[0] == np.float32(big)
    assert run(name, np.float32([-1e4]))[0] == 0
    assert np.isnan(run(name, np.float32([np.nan]))[0])
