"""Strassen's products: exact on whole numbers, close to f64 elsewhere, the same on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.strassen import strassen
from bolt_numba.kernels.cpu.strassen.strassen import PAIR
from bolt_numba.kernels.registry import MOST_ERROR, Entry, QueryContext, select
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Clip, HardSwish, Relu
from bolt_numba.ops.registry import Op
from bolt_numba.types import Array
from tests.harness import PlainContext, Planned, run_kernel, run_planned, types_of

CONV = Entry(Conv, "cpu", "f32", strassen.conv_strassen, strassen.is_pointwise_conv, 0, "conv_strassen")
MATMUL = Entry(MatMul, "cpu", "f32", strassen.matmul_strassen, strassen.is_dense, 0, "matmul_strassen")
ACTIVATIONS = (None, Relu(), Clip(-700.0, 1200.0))


def rows(draw: Callable[[Any], Any]) -> int:
    return int(draw(st.sampled_from((PAIR, PAIR + 1, 2 * PAIR - 1, 2 * PAIR + 3, 5 * PAIR))))


def columns(draw: Callable[[Any], Any]) -> int:
    edges = (2 * PANEL, 2 * PANEL - LANES + 1, 2 * PANEL + 1, 3 * PANEL, 3 * PANEL + 5, 4 * PANEL - 3, 5 * PANEL)
    return int(draw(st.sampled_from(edges)))


def depth(draw: Callable[[Any], Any]) -> int:
    return int(draw(st.sampled_from((2, 2 * LANES, 2 * LANES + 2, 50, 96))))


def whole(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-3, 4, shape).astype(np.float32)


@st.composite
def convolutions(draw: Callable[[Any], Any]) -> tuple[Conv, list[Array | None], bool]:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    m, n, k, stride, images = rows(draw), columns(draw), depth(draw), draw(st.sampled_from((1, 1, 2))), 1
    if draw(st.booleans()):
        images, m = 3, -(-m // 3)
    residual = draw(st.booleans())
    op = Conv((stride, stride), layout="NHWC", activation=draw(st.sampled_from(ACTIVATIONS)), residual=residual)
    inputs: list[Array | None] = [whole(rng, images, stride, m * stride, k), whole(rng, n, k, 1, 1)]
    inputs.append(whole(rng, n) if draw(st.booleans()) else None)
    if residual:
        inputs.append(whole(rng, images, 1, m, n))
    return op, inputs, draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_exact_on_whole_numbers(case: tuple[Conv, list[Array | None], bool]) -> None:
    op, inputs, constant = case
    flags = [constant and i in (1, 2) for i in range(len(inputs))]
    (got,) = run_kernel(CONV, inputs, (1, 2), constant=flags, instance=op)
    np.testing.assert_array_equal(got, op.reference(*inputs))  # type: ignore[arg-type]


@st.composite
def products(draw: Callable[[Any], Any]) -> tuple[MatMul, list[Array | None]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    m, n, k, swap = rows(draw), columns(draw), depth(draw), draw(st.booleans())
    lead = draw(st.sampled_from(((), (1,), (2,))))
    residual = draw(st.booleans())
    op = MatMul(trans_b=swap, alpha=draw(st.sampled_from((1.0, 2.0))), residual=residual)
    inputs: list[Array | None] = [whole(rng, *lead, m, k), whole(rng, n, k) if swap else whole(rng, k, n)]
    inputs.append(whole(rng, n) if draw(st.booleans()) else None)
    if residual:
        inputs.append(whole(rng, *lead, m, n))
    return op, inputs


@settings(max_examples=40, deadline=None)
@given(products())
def test_matrices(case: tuple[MatMul, list[Array | None]]) -> None:
    op, inputs = case
    (got,) = run_kernel(MATMUL, inputs, (1, 2), constant=[i in (1, 2) for i in range(len(inputs))], instance=op)
    np.testing.assert_array_equal(got, op.reference(*inputs))  # type: ignore[arg-type]


def weights(kind: str, n: int, k: int, rng: np.random.Generator) -> Array:
    """[n, k] f64."""
    w = rng.standard_normal((n, k))
    match kind:
        case "signs":
            w = np.sign(w)
        case "few":
            w *= np.where(rng.random((n, k)) < 0.1, 1, 1e-3)
        case "of their own":
            w *= 1e-4
            w[np.arange(k // 2) % n, np.arange(k // 2)] = 1
            w[0, k // 2 :] = 1
        case "filters":
            w *= 10 ** rng.uniform(-4, 4, (n, 1))
    return w


def images(kind: str, m: int, k: int, rng: np.random.Generator) -> Array:
    """[m, k] f64."""
    x = rng.standard_normal((m, k))
    match kind:
        case "positive":
            x = np.abs(x)
        case "half channels":
            x[:, : k // 2] *= 1e-4
        case "other half":
            x[:, k // 2 :] *= 1e-4
        case "bright points":
            x[rng.integers(m, size=3)] *= 1e4
        case "channels":
            x *= 10 ** rng.uniform(-3, 3, k)
    return x


@pytest.mark.parametrize("width", [0, 4, 8])
@pytest.mark.parametrize("picture", ["even", "positive", "half channels", "other half", "bright points", "channels"])
@pytest.mark.parametrize("kind", ["even", "signs", "few", "of their own", "filters"])
def test_errors_keep_to_their_bound(kind: str, picture: str, width: int) -> None:
    """Whatever the sizes of channels are: those of weights by 10^width and back by those of inputs."""
    m, n, k = 200, 3 * PANEL, 256
    rng = np.random.default_rng(len(kind) + len(picture) + width)
    factors = 10.0 ** rng.uniform(-width / 2, width / 2, k)
    x = (images(picture, m, k, rng) * factors).astype(np.float32).reshape(1, 1, m, k)
    w = (weights(kind, n, k, rng) / factors).astype(np.float32).reshape(n, k, 1, 1)
    op = Conv(layout="NHWC")
    (got,) = run_kernel(CONV, [x, w], (1,), instance=op)
    wanted = op.reference(x.astype(np.float64), w.astype(np.float64))
    bound = strassen.error(op, types_of([x, w]), QueryContext())
    assert np.abs(got - wanted).max() <= bound * np.abs(wanted).max()
    assert bound < MOST_ERROR


def test_a_row_rounds_by_itself_and_one_other() -> None:
    """A bright point costs one other point its exactness, and nothing else."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 240, 128), np.float32), rng.standard_normal((2 * PANEL, 128, 1, 1), np.float32)
    row, other = 2 * PAIR, 2 * PAIR + PAIR // 2
    x[0, 0, row] *= 1e6
    op = Conv(layout="NHWC")
    (got,) = run_kernel(CONV, [x, w], (1,), instance=op)
    error = np.abs(got - op.reference(x.astype(np.float64), w.astype(np.float64)))[0, 0].max(1)
    assert error[other] > 1e-2
    assert np.delete(error, [row, other]).max() < 1e-4


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-44])
def test_channels_without_weights(value: float) -> None:
    """Their inputs may be large; results do without them."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 200, 64), np.float32), rng.standard_normal((2 * PANEL, 64, 1, 1), np.float32)
    for k in (3, 40, 7, 39):  # 7 and 39 are mixed with each other
        x[..., k] *= 1e6
        w[:, k] *= np.float32(value)
    op = Conv(layout="NHWC")
    (got,) = run_kernel(CONV, [x, w], (1,), instance=op)
    wanted = op.reference(x.astype(np.float64), w.astype(np.float64))
    assert np.abs(got - wanted).max() <= strassen.error(op, types_of([x, w]), QueryContext()) * np.abs(wanted).max()


def test_bounds_that_fail() -> None:
    """Channels that all have one filter of their own; weights that are not known, not finite, or out of range."""
    rng = np.random.default_rng(0)
    own = np.eye(1024, dtype=np.float32)
    x, ordinary = np.ones((1, 16, 16, 1024), np.float32), rng.standard_normal((1024, 1024)).astype(np.float32)
    spoilt = ordinary.copy()
    spoilt[5, 7] = np.nan

    def bound(w: Array, known: bool = True) -> float:
        return strassen.error(Conv(layout="NHWC"), types_of([x, w[:, :, None, None]], [False, known]), QueryContext())

    assert bound(ordinary) < MOST_ERROR
    assert bound(own) > MOST_ERROR
    for w in (spoilt, ordinary * np.float32(1e30), ordinary * np.float32(1e-30), 0 * ordinary):
        assert not bound(w) <= MOST_ERROR
    assert not bound(ordinary, known=False) <= MOST_ERROR
    x = np.ones((2, 16, 16, 1024), np.float32)
    assert not bound(ordinary) <= MOST_ERROR, "rows of two images"


@pytest.mark.parametrize(("m", "n", "k"), [(7 * PAIR + 5, 6 * PANEL, 64), (3 * PAIR, 9 * PANEL + 3, 1024)])
def test_the_same_bits_for_any_number_of_threads(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    inputs: list[Array | None] = [rng.standard_normal((1, 1, m, k), np.float32), whole(rng, n, k, 1, 1)]
    op, kinds = Conv(layout="NHWC", activation=HardSwish()), types_of(inputs)
    outs = [t.with_value(None) for t in infer_types(op, kinds)]
    results = []
    for threads in (1, 2, 3, 5):
        steps = strassen.conv_strassen(op, kinds, outs, PlainContext(threads))
        results += run_planned(Planned(op, CONV, kinds, outs, steps), inputs, (threads,))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("k", [3, 60])
@pytest.mark.parametrize("row", [PAIR, 2 * PAIR - 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(value: float, row: int, k: int) -> None:
    rng = np.random.default_rng(0)
    x, w = whole(rng, 1, 1, 3 * PAIR + 1, 64), whole(rng, 3 * PANEL + 1, 64, 1, 1)
    bias, residual = whole(rng, len(w)), whole(rng, 1, 1, 3 * PAIR + 1, len(w))
    x[0, 0, row, k] = value
    op = Conv(layout="NHWC", activation=HardSwish(), residual=True)
    (got,) = run_kernel(CONV, [x, w, bias, residual], (1, 2), instance=op)
    with np.errstate(invalid="ignore"):
        wanted = op.reference(x, w, bias, residual)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(got, wanted, 1e-6)


def test_sums_that_overflow_alone_do_no_harm() -> None:
    """Rows and weights whose sums leave the range of numbers, and whose products do not."""
    x, w = np.zeros((1, 1, PAIR, 64), np.float32), np.full((2 * PANEL, 64, 1, 1), 0.5, np.float32)
    x[0, 0, 1, [1, 33]], x[0, 0, 1 + PAIR // 2, [1, 33]] = (3e38, 2e38), (-3e38, 3e38)
    op = Conv(layout="NHWC")
    (got,) = run_kernel(CONV, [x, w], (1,), instance=op)
    np.testing.assert_array_equal(got, op.reference(x, w))


def test_what_is_small_or_of_several_owners_is_left_alone() -> None:
    def chosen(op: Op, *shapes: tuple[int, ...], numerics: str = "default") -> bool:
        entry = select(op, types_of([np.ones(s, np.float32) for s in shapes]), QueryContext(numerics=numerics))
        return entry is not None and "strassen" in entry.name

    conv = Conv(layout="NHWC")
    assert chosen(conv, (1, 28, 28, 256), (512, 256, 1, 1))
    assert not chosen(conv, (1, 28, 28, 256), (512, 256, 1, 1), numerics="strict"), "it rounds more"
    assert not chosen(conv, (1, 112, 112, 16), (96, 16, 1, 1))
    assert not chosen(conv, (1, 28, 28, 256), (512, 256, 3, 3))
    assert not chosen(conv, (8, 28, 28, 256), (512, 256, 1, 1)), "images must not touch each other"
    assert not chosen(MatMul(), (1024, 1024), (1024, 1024), numerics="fast"), "nor must rows"
