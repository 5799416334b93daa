"""Winograd convolution: exact where its transforms are, close to f64 elsewhere, the same on any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels.cpu.convolution import winograd
from bolt_numba.kernels.cpu.convolution.winograd_error import error_of, roundings
from bolt_numba.kernels.cpu.convolution.winograd_transforms import POINTS, pack_filters
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.registry import Context, Entry, select
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.pointwise import Clip, HardSwish, Relu
from bolt_numba.types import Array
from tests.harness import PlainContext, Planned, run_kernel, run_planned, types_of
from tests.near import assert_near

SIZES = (2, 4, 6)
TAPS = ((3, 3), (3, 3), (3,), (1, 3), (3, 1), (3, 3, 3), (2, 3, 3), (1, 3, 3), (2, 1, 3), (3, 1, 1))
MAKERS = {2: winograd.winograd_2, 4: winograd.winograd_4, 6: winograd.winograd_6}


def entry(size: int) -> Entry:
    """The kernel of a tile size, whatever the cost model says."""
    return Entry(Conv, "cpu", "f32", MAKERS[size], winograd.is_winograd, 0, f"winograd_{size}")


def exact_scale(size: int) -> int:
    """Filters that are multiples of this have integer transforms: G has the denominators 2 or 90; 4 has no such."""
    return {2: 4, 4: 1, 6: 8100}[size]


def assert_close(size: int, got: Array, wanted: Array, inputs: list[Array | None]) -> None:
    """Exact where the sums of integers are; for 4 and 6 they have fractions, and more bits than f32 holds."""
    if size < 4:
        np.testing.assert_array_equal(got, wanted)
    else:
        x, w = inputs[:2]
        assert x is not None
        assert w is not None
        scale = np.abs(x).max() * np.abs(w).max() * math.prod(w.shape[1:])
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * scale + 1e-30)


@st.composite
def cases(draw: Callable[[Any], Any]) -> tuple[int, Conv, list[Array | None]]:
    size = draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    taps = draw(st.sampled_from(TAPS))
    n, spatial = draw(st.integers(1, 2)), tuple(draw(st.integers(1, 14 if len(taps) < 3 else 7)) for _ in taps)
    c, k = draw(st.sampled_from((LANES, LANES + 1))), draw(st.sampled_from((LANES, LANES + 3, PANEL, PANEL + 5)))
    pads = tuple(draw(st.integers(0, 2)) for _ in (*taps, *taps))
    pads = tuple(max(p, 1) if s < 3 else p for p, s in zip(pads, (*spatial, *spatial), strict=True))
    strides, dilations = (1,) * len(taps), (1,) * len(taps)
    if draw(st.booleans()):
        dilations = tuple(draw(st.integers(1, 4)) for _ in taps)
        pads = tuple(max(p, d) for p, d in zip(pads, (*dilations, *dilations), strict=True))
    if taps[1:] == (1, 1):
        pads = pads[0], 0, 0, pads[3], 0, 0
    elif len(taps) == 3:  # the first axis only decides which slices a filter sees
        strides = draw(st.integers(1, 3)), 1, 1
    residual = draw(st.booleans())
    activation = draw(st.sampled_from((None, Relu(), Clip(-700.0, 1200.0))))
    op = Conv(strides=strides, dilations=dilations, pads=pads, layout="NHWC", activation=activation, residual=residual)
    x = rng.integers(0, 2, (n, *spatial, c)).astype(np.float32)
    w = (rng.integers(-1, 2, (k, c, *taps)) * exact_scale(size)).astype(np.float32)
    bias = rng.integers(-9, 9, k).astype(np.float32) if draw(st.booleans()) else None
    inputs: list[Array | None] = [x, w, bias]
    if residual:
        outs = op.windows(taps).static_dims(op, spatial)
        inputs.append(rng.integers(-99, 99, (n, *outs, k)).astype(np.float32))
    return size, op, inputs


@settings(max_examples=120, deadline=None)
@given(cases())
def test_exact_where_transforms_are(case: tuple[int, Conv, list[Array | None]]) -> None:
    size, op, inputs = case
    flags = [i in (1, 2) for i in range(len(inputs))]
    (got,) = run_kernel(entry(size), inputs, (1, 2), constant=flags, instance=op)
    assert_close(size, got, op.reference(*inputs), inputs)  # type: ignore[arg-type]


def activations(rng: np.random.Generator, *shape: int) -> Array:
    """What a layer behind a Relu sees."""
    return np.maximum(rng.standard_normal(shape), 0).astype(np.float32)


@pytest.mark.parametrize(("size", "limit"), [(2, 3e-6), (4, 4e-5), (6, 5e-5)])
@pytest.mark.parametrize(("edge", "c", "k"), [(14, 64, 64), (13, 256, 96), (7, 512, 64)])
def test_error_against_f64(size: int, limit: float, edge: int, c: int, k: int) -> None:
    rng = np.random.default_rng(c)
    x = activations(rng, 1, edge, edge, c)
    w = (rng.standard_normal((k, c, 3, 3)) * np.sqrt(2 / (9 * c))).astype(np.float32)
    op = Conv(pads=(1, 1, 1, 1), layout="NHWC")
    (got,) = run_kernel(entry(size), [x, w], (1,), instance=op)
    wanted = op.reference(x.astype(np.float64), w.astype(np.float64))
    assert np.abs(got - wanted).max() / np.abs(wanted).max() < limit


SHAPES = [((20, 20), 32, 64), ((12, 12), 48, 96), ((26, 26), 40, 32), ((4, 9, 9), 20, 48)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("edges", "c", "k"), SHAPES)
def test_the_same_bits_for_any_number_of_threads(size: int, edges: tuple[int, ...], c: int, k: int) -> None:
    """The plan itself depends on the threads: how many blocks there are, and whether threads share them."""
    rng, taps = np.random.default_rng(edges[-1]), (3,) * len(edges)
    inputs: list[Array | None] = [activations(rng, 1, *edges, c), rng.standard_normal((k, c, *taps), np.float32)]
    op, kinds = Conv(pads=(1, 1) * len(edges), layout="NHWC"), types_of(inputs)
    outs = [t.with_value(None) for t in infer_types(op, kinds)]
    results = []
    for threads in (1, 2, 3, 5):
        context: Context = PlainContext(threads)
        made = Planned(op, entry(size), kinds, outs, made_steps(entry(size), op, kinds, outs, context))
        results += run_planned(made, inputs, (threads,))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("size", SIZES)
def test_threads_that_share_a_block(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More filters than tiles: two steps, transforms before products."""
    monkeypatch.setattr(winograd, "FILTER_BYTES", 0)
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 2, (1, 10, 10, 32)), rng.integers(-1, 2, (128, 32, 3, 3)) * exact_scale(size)
    inputs: list[Array | None] = [x.astype(np.float32), w.astype(np.float32)]
    op, kinds = Conv((1, 1), (1, 1, 1, 1), layout="NHWC"), types_of(inputs)
    outs = [t.with_value(None) for t in infer_types(op, kinds)]
    program = winograd.steps(size, op, kinds, outs, PlainContext(2))
    assert len(program) == 2
    (got,) = run_planned(Planned(op, entry(size), kinds, outs, program), inputs, (1, 2))
    assert_close(size, got, op.reference(*inputs), inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
def test_other_activations(size: int) -> None:
    rng = np.random.default_rng(2)
    x, w = activations(rng, 1, 9, 10, LANES), rng.standard_normal((PANEL + 2, LANES, 3, 3), np.float32)
    op = Conv(pads=(1, 1, 1, 1), layout="NHWC", activation=HardSwish())
    (got,) = run_kernel(entry(size), [x, w], instance=op)
    assert_near(got, op.reference(x, w), 2e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("taps", "far"), [((3, 3), 1), ((3, 3), 2), ((3,), 1), ((3,), 3), ((1, 3), 1), ((3, 1), 1), ((3, 3, 3), 1)]
)
@pytest.mark.parametrize("residual", [False, True])
def test_what_is_not_finite_goes_where_a_direct_sum_takes_it(
    size: int, taps: tuple[int, ...], far: int, residual: bool
) -> None:
    """Nor do values whose transforms overflow spoil others."""
    rng = np.random.default_rng(size)
    shape, pads = tuple(17 if t == 3 else 5 for t in taps), tuple(t // 2 * far for t in taps) * 2
    op = Conv(pads=pads, dilations=(far,) * len(taps), layout="NHWC", residual=residual)
    x, w = rng.standard_normal((2, *shape, LANES + 3), np.float32), rng.uniform(0.5, 1, (PANEL + 3, LANES + 3, *taps))
    for value in (np.inf, -np.inf, np.nan, 3e38, np.inf):
        x[(rng.integers(2), *(rng.integers(s) for s in shape), rng.integers(LANES))] = value
    inputs: list[Array | None] = [x, w.astype(np.float32), rng.standard_normal(PANEL + 3, np.float32)]
    if residual:
        inputs.append(rng.standard_normal((2, *shape, PANEL + 3), np.float32))
    (got,) = run_kernel(entry(size), inputs, instance=op)
    with np.errstate(invalid="ignore"):
        wanted = op.reference(*inputs)  # type: ignore[arg-type]
    assert 0 < np.isnan(wanted).sum() < wanted.size / 2
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
    finite = np.isfinite(wanted) & (np.abs(wanted) < 1e30)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=0, atol=2e-3)


@pytest.mark.parametrize("size", SIZES)
def test_filters_are_taken_back_out_of_their_transforms(size: int) -> None:
    """Where everything is computed again, results are those of the filters, with zeros where filters have them."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 8, 8, LANES), np.float32), rng.standard_normal((LANES, LANES, 3, 3), np.float32)
    w[:, :, 1, 1] = 0
    x[..., 0] = 1e38  # every transform overflows, and no result does
    w[:, 0] = 1e-20
    op = Conv(pads=(1, 1, 1, 1), layout="NHWC")
    (got,) = run_kernel(entry(size), [x, w], instance=op)
    np.testing.assert_allclose(got, op.reference(x.astype("f8"), w.astype("f8")), rtol=1e-5)


@pytest.mark.parametrize("taps", [(3, 3), (3,), (1, 3)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("k", "c"), [(PANEL, LANES), (PANEL + 5, 2 * LANES + 3), (LANES, LANES)])
def test_filters(k: int, c: int, size: int, taps: tuple[int, ...]) -> None:
    """By Cook and Toom: values at the points, over the product of the differences to the others, signed as B' is."""
    rng = np.random.default_rng(c)
    w = rng.standard_normal((k, c, *taps)).astype(np.float32)
    points = np.array(POINTS[size])
    apart = [abs(np.prod([a - b for b in points if a != b])) for a in points]
    g = np.array([*(a ** np.arange(3) / d for a, d in zip(points, apart, strict=True)), [0, 0, 1]])
    g[1:3] *= -1 if size > 2 else 1
    square = w.reshape(k, c, -1, 3).astype(np.float64)
    across = np.einsum("kcrs,bs->rbck", square, g)
    wanted = (np.tensordot(g, across, 1) if taps == (3, 3) else across).reshape(-1, c, k)
    made = pack_filters(w, size, 2)
    got = made.transpose(1, 2, 0, 3).reshape(*wanted.shape[:2], -1)
    assert_near(got[:, :, :k], wanted, 1e-6)
    np.testing.assert_array_equal(got[:, :, k:], 0)


@pytest.mark.parametrize(("size", "limit"), [(2, 2e-6), (4, 1e-5), (6, 1e-5)])
@pytest.mark.parametrize(("length", "c", "k"), [(100, 64, 64), (37, 512, 40)])
def test_error_of_lines_against_f64(size: int, limit: float, length: int, c: int, k: int) -> None:
    rng = np.random.default_rng(c)
    x = activations(rng, 1, length, c)
    w = (rng.standard_normal((k, c, 3)) * np.sqrt(2 / (3 * c))).astype(np.float32)
    op = Conv(pads=(1, 1), layout="NHWC")
    (got,) = run_kernel(entry(size), [x, w], (1,), instance=op)
    wanted = op.reference(x.astype(np.float64), w.astype(np.float64))
    assert np.abs(got - wanted).max() / np.abs(wanted).max() < limit


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("taps", [(3, 3), (3,)])
def test_bounds_do_not_depend_on_the_scale_of_channels(size: int, taps: tuple[int, ...]) -> None:
    """Squares of small filters are 0 in f32, and the bound of filters that count nothing was 0."""
    w = np.random.default_rng(0).standard_normal((4, 6, *taps)).astype(np.float32)
    scales = np.array([1e-25, 1e-30, 1.0, 1e25, 1e-38, 0]).reshape(1, 6, *[1] * len(taps))
    wanted = error_of(w[:, :5], size) * roundings(6) / roundings(5)
    np.testing.assert_allclose(error_of((w * scales).astype(np.float32), size), wanted, rtol=1e-3)
    assert error_of(np.zeros_like(w), size) == 0
    w[1, 2, 0] = np.inf
    assert np.isnan(error_of(w, size))


@pytest.mark.parametrize("size", SIZES)
def test_lines_have_the_same_bits_for_any_number_of_threads(size: int) -> None:
    rng = np.random.default_rng(size)
    inputs: list[Array | None] = [activations(rng, 1, 101, 48), rng.standard_normal((70, 48, 3), np.float32)]
    op, kinds = Conv(pads=(1, 1), layout="NHWC", activation=HardSwish()), types_of(inputs)
    outs = [t.with_value(None) for t in infer_types(op, kinds)]
    results = []
    for threads in (1, 2, 3):
        made = Planned(op, entry(size), kinds, outs, winograd.steps(size, op, kinds, outs, PlainContext(threads)))
        results += run_planned(made, inputs, (threads,))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    assert_near(results[0], op.reference(*inputs), 2e-4)  # type: ignore[arg-type]


def test_where_tiles_of_6_are_not_exact_enough_the_next_best_are_taken() -> None:
    rng = np.random.default_rng(0)
    kinds = types_of([np.zeros((1, 33, 33, 512), np.float32), rng.standard_normal((128, 512, 3, 3), np.float32)])
    op = Conv(pads=(6,) * 4, dilations=(6, 6), layout="NHWC")
    assert winograd.best_size(op, kinds) == 6
    for numerics, wanted in (("strict", {"conv"}), ("default", {"winograd_2", "winograd_4"}), ("fast", {"winograd_6"})):
        chosen = select(op, kinds, PlainContext(1, numerics=numerics))
        assert chosen is not None
        assert chosen.name in wanted


def test_the_model_prefers_what_is_measured_faster() -> None:
    def best(edge: int, c: int, k: int, taps: tuple[int, ...] = (3, 3), far: int = 1) -> int:
        pads, dilations, spatial = (far,) * (2 * len(taps)), (far,) * len(taps), (edge,) * len(taps)
        op = Conv(pads=pads, dilations=dilations, layout="NHWC")
        w = np.broadcast_to(np.float32(1), (k, c, *taps))
        return winograd.best_size(op, types_of([np.broadcast_to(np.float32(0), (1, *spatial, c)), w]))

    assert best(30, 256, 256) == 6
    assert best(14, 256, 256) == best(20, 128, 128) == best(32, 128, 256) == best(28, 512, 512) == 4
    assert best(1, 256, 256) == best(1, 256, 256, (3,)) == 0
    if LANES == 16:
        assert best(224, 64, 64) == best(112, 128, 128) == best(56, 256, 256) == 6
        assert best(100, 64, 64, (3,)) == best(1000, 512, 512, (3,)) == best(56, 64, 64, (1, 3)) == 6
        assert best(7, 512, 512) == 2
        assert best(28, 128, 256, (3, 3, 3)) == best(33, 512, 128, far=12) == 4
        assert best(14, 512, 512, (3, 3, 3)) == 2  # its filters for tiles of 4 would be 113 MB


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("taps", [(3, 3), (3,), (1, 3), (3, 1), (3, 3, 3)])
def test_filters_that_are_not_finite_spoil_what_a_direct_sum_spoils(size: int, taps: tuple[int, ...]) -> None:
    """Padding counts: 0 times infinity is NaN."""
    rng = np.random.default_rng(size)
    shape, pads = tuple(11 if t == 3 else 5 for t in taps), tuple(t // 2 for t in taps) * 2
    x = rng.standard_normal((2, *shape, LANES + 3), np.float32)
    w = rng.uniform(0.5, 1, (PANEL + 3, LANES + 3, *taps)).astype(np.float32)
    for filter_at in range(0, PANEL + 3, 2):
        value = (np.inf, -np.inf, np.nan)[filter_at % 3]
        w[(filter_at, rng.integers(LANES), *(rng.integers(t) for t in taps))] = value
    op = Conv(pads=pads, layout="NHWC")
    (got,) = run_kernel(entry(size), [x, w], instance=op)
    with np.errstate(invalid="ignore"):
        wanted = op.reference(x, w)
    assert np.isinf(wanted).any()
    for found in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(found(got), found(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=0, atol=2e-3)
