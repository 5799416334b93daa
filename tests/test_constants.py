"""Constants that passes must not join: what the model spells out loses nothing by being optimised, on any level.

Each case is a graph on which joining would overflow, lose digits, or drop a rounding that was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.interpret import interpret
from bolt_numba.passes.constants import joined_product, joined_sum, scaled_weight
from bolt_numba.types import BOOL, F16, F32, F64, Array
from tests.rule_cases import f32, graph_of, i64, o

UNIT = 2.0**-23
RNG = np.random.default_rng(5)
SMALL = RNG.uniform(-10, 10, (2, 3)).astype(F32)
IMAGE = RNG.uniform(-10, 10, (1, 2, 4, 4)).astype(F32)
INF = np.inf


def steps(*constants: tuple[str, float]) -> Callable[..., Any]:
    """A chain of operators with one constant each."""

    def build(b: Builder, x: Any) -> Any:
        for name, number in constants:
            x = b(o(name), x, f32(number))
        return x

    return build


def after_conv(weight: float, *constants: tuple[str, float], bias: float = 0.0) -> Callable[..., Any]:
    w = (np.array([1, -0.5, 0.25, 2], F32) * F32.type(weight)).reshape(2, 2, 1, 1)
    return lambda b, x: steps(*constants)(b, b(o("Conv"), x, w, f32(bias, bias)))


def normed(weight: float | None, scale: float, mean: float, var: float) -> Callable[..., Any]:
    """BatchNormalization of a convolution, or (None) of the input."""

    def build(b: Builder, x: Any) -> Any:
        y = x if weight is None else after_conv(weight)(b, x)
        return b(o("BatchNormalization", 0.0), y, *(f32(v, v) for v in (scale, 0.5, mean, var)))

    return build


def hard_sigmoid(b: Builder, x: Any) -> Any:
    clip = b(o("Clip", 0.0, 6.0), steps(("Add", 1e6), ("Add", 3 - 1e6))(b, x))
    return b(o("Div"), clip, f32(6))


def gelu(b: Builder, x: Any) -> Any:
    inner = b(o("Add"), b(o("Erf"), b(o("Mul"), x, f32(0.70715))), f32(1))
    return b(o("Mul"), b(o("Mul"), x, inner), f32(0.5))


def gelu_of_overflow(b: Builder, x: Any) -> Any:
    inner = b(o("Erf"), steps(("Mul", 1e38), ("Mul", 0.5**0.5 * 1e-38))(b, x))
    return b(o("Mul"), b(o("Mul"), x, b(o("Add"), inner, f32(1))), f32(0.5))


def scores(b: Builder, x: Any) -> Any:
    return b(o("MatMul", trans_b=True), steps(("Mul", 1e-30))(b, x), x)


def attention(b: Builder, x: Any, keep: Any, low: float) -> Any:
    s = b(o("Where"), keep, b(o("MatMul", trans_b=True), x, x), f32(low))
    return b(o("MatMul"), b(o("Softmax"), s), x)


def guarded(b: Builder, x: Any, keep: Any, *, attends: bool) -> Any:
    s = b(o("MatMul", trans_b=True), x, x) if attends else x
    weights = b(o("Softmax"), b(o("Add"), s, b(o("Where"), keep, f32(0), f32(-INF))))
    y = b(o("Where"), b(o("IsNaN"), weights), f32(0), weights)
    return b(o("MatMul"), y, x) if attends else y


def instance(b: Builder, x: Any) -> Any:
    y = b(o("InstanceNormalization"), x, f32(1, 2), f32(1e8, 1e8))
    return b(o("Add"), y, f32(-1e8))


SQUARE = RNG.uniform(-10, 10, (1, 3, 3)).astype(F32)
KEEP = np.array([[True, False, True], [False, False, False], [True, True, True]])
SHIFTED = lambda b, x: b(o("MatMul"), b(o("Sub"), x, f32(1e6)), f32(1, 2, 3, -1, -2, -3.5).reshape(3, 2))  # noqa: E731
CASES: dict[str, tuple[Callable[..., Any], Array | float]] = {
    "sum taken back": (steps(("Add", 1e8), ("Add", -1e8)), SMALL),
    "difference taken back": (steps(("Sub", 12582912.0), ("Sub", -12582912.0)), SMALL),
    "small term after a large one": (steps(("Add", 1e8), ("Add", 1.0)), -1e8),
    "product that overflows": (steps(("Mul", 1e30), ("Mul", 1e-30)), 1e10),
    "constants that overflow": (steps(("Mul", 1e30), ("Mul", 1e30)), 1e-30),
    "constants that vanish": (steps(("Mul", 1e-30), ("Mul", 1e-30)), 1e38),
    "clip of a sum taken back": (hard_sigmoid, SMALL / 2),
    "gelu with another number": (gelu, SMALL),
    "gelu of what overflows": (gelu_of_overflow, SMALL),
    "rounding after a convolution": (after_conv(1, ("Add", 12582912.0), ("Add", -12582912.0)), IMAGE),
    "rounding by the bias": (after_conv(1, ("Add", -12582912.0), bias=12582912.0), IMAGE),
    "weights that overflow": (after_conv(1e20, ("Mul", 1e30)), IMAGE * F32.type(1e-20)),
    "weights that vanish": (after_conv(1e-20, ("Mul", 1e-25)), IMAGE * F32.type(1e30)),
    "weights that lose digits": (after_conv(1e-20, ("Mul", 1e-20)), IMAGE * F32.type(1e20)),
    "products that overflow": (after_conv(1, ("Mul", 1e9)), np.tile(f32(1e30, 2e30).reshape(1, 2, 1, 1), (4, 4))),
    "divided by little": (after_conv(1e30, ("Div", 1e-20)), IMAGE * F32.type(1e-30)),
    "weights that a norm empties": (normed(1e-20, 1e-20, 0, 1), IMAGE * F32.type(1e20)),
    "weights that a norm fills": (normed(1e20, 1, 0, 1e-38), IMAGE * F32.type(1e-20)),
    "norm far from zero": (normed(None, 1, 1e4, 1e-4), F32.type(1e4) + IMAGE / 1024),
    "shift before a product": (SHIFTED, F32.type(1e6) + np.round(SMALL)),
    "factor before a product": (scores, f32(1e30, 1e10, 1e20).reshape(1, 3)),
    "bias of a norm taken back": (instance, IMAGE),
}


def values(given: Array | float) -> Array:
    return given if isinstance(given, np.ndarray) else np.full((2, 3), given, F32)


def check(build: Callable[..., Any], numerics: str, **feeds: Array) -> None:
    """The session's results are those of the graph as it is spelled, up to a few roundings of each element."""
    graph = graph_of(build, {n: (BOOL, *a.shape) if a.dtype == BOOL else a.shape for n, a in feeds.items()})
    (wanted,) = interpret(graph, feeds).values()
    got = bn.compile(graph, numerics=numerics, threads=1)(**feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=16 * UNIT, atol=float(np.finfo(F32).tiny))


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("name", CASES)
def test_optimised_as_it_is_spelled(name: str, numerics: str) -> None:
    build, given = CASES[name]
    if name.startswith("rounding") and numerics != "strict":
        pytest.skip("a bias begins the sum")
    check(build, numerics, x=values(given))


@pytest.mark.parametrize("low", [-1e9, -3e38, -1e4])
@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_masked_scores(numerics: str, low: float) -> None:
    """Where a query may look at no key, the lowest scores are all alike."""
    check(lambda b, x, keep: attention(b, x, keep, low), numerics, x=8 * SQUARE, keep=KEEP)


@pytest.mark.parametrize("attends", [True, False])
@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_guarded_softmax(numerics: str, attends: bool) -> None:
    """A line of NaN is replaced by zeros, whatever becomes of the softmax."""
    check(lambda b, x, keep: guarded(b, x, keep, attends=attends), numerics, x=SQUARE, keep=KEEP)


@pytest.mark.parametrize(
    ("a", "c", "wanted"),
    [
        (1, 2, 3), (1, -2, -1), (1e8, 1, None), (1e8, 8, 1e8 + 8), (0.1, 0.2, 0.3), (5, -5, None), (1e8, -1e8, None),
        (2e38, 2e38, None), (0, -5, -5), (0.5, 0.25, 0.75), (INF, 1, None),
    ],
)  # fmt: skip
def test_joined_sum(a: float, c: float, wanted: Any) -> None:
    got = joined_sum(f32(a), f32(c))
    assert (got is None) == (wanted is None)
    assert got is None or got == f32(wanted)


@pytest.mark.parametrize(
    ("a", "c", "wanted"),
    [
        (2, 3, 6), (1e30, 1e30, None), (1e-30, 1e-30, None), (1e30, 1e-30, None), (1e-10, 1e-10, 1e-20), (0, 5, 0),
        (0.001, 1000, 1), (1e-6, 1e6, None), (INF, 0, None), (1e20, 1e10, 1e30),
    ],
)  # fmt: skip
def test_joined_product(a: float, c: float, wanted: Any) -> None:
    got = joined_product(f32(a), f32(c))
    assert (got is None) == (wanted is None)
    assert got is None or got == pytest.approx(wanted, rel=1e-6)


def test_joined_integers_wrap() -> None:
    most = np.array([2**63 - 1])
    assert joined_sum(most, i64(1)) == -(2**63)
    assert joined_product(most, i64(2)) == -2


@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_weights_keep_their_digits(dtype: Any) -> None:
    tiny, most = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
    made = scaled_weight(np.array([[1, 2], [0, 4]], dtype), np.array([0.5, 3]))
    assert made is not None
    np.testing.assert_array_equal(made, [[0.5, 6], [0, 12]])
    assert scaled_weight(np.array([1, 1.25 * tiny], dtype), np.array([0.3])) is None
    assert scaled_weight(np.array([1, most / 2], dtype), np.array([3.0])) is None
    assert scaled_weight(np.array([1, 2], dtype), np.array([2.0**25])) is None


def test_what_is_nearly_nothing_does_not_keep_a_norm_outside() -> None:
    """Channels that training gave up have factors or weights near zero."""
    made = scaled_weight(f32(1, 1e-40), np.array([1e-35, 0.3]))
    assert made is not None
    np.testing.assert_allclose(made, [1e-35, 0], atol=1e-39)
    assert scaled_weight(f32(1e-10, 1), np.array([1e-35, 2])) is not None
    assert scaled_weight(f32(1, 2), np.array([0.0, 0.0])) is not None


def test_factors_that_are_all_small_count() -> None:
    """x of 1e25 and a weight of 1e-4 are worth more than 0 with a factor of 1e-44 for all."""
    assert scaled_weight(f32(1e-4, 1), np.array([4e-44, 2e-44])) is None
    assert scaled_weight(f32(1e-10, 1), np.array([1e-35])) is None
