"""Depthwise and transposed convolutions against the references: integer data, so that equality is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cpu.convolution.depthwise import block_starts, choose_chunk
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.registry import select
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.pointwise import Clip, HardSwish, Relu
from bolt_numba.types import Array
from tests.harness import plan, run_kernel, types_of
from tests.near import assert_near

CHANNELS = sorted({2, 3, LANES - 1, LANES, LANES + 1, 2 * LANES, 3 * LANES - 2, 70})
ACTIVATIONS = (None, Relu(), Clip(-5.0, 9.0), Clip(None, 3.0))


def integers(draw: Callable[[Any], Any], *shape: int) -> Array:
    seed = draw(st.integers(0, 2**31))
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@st.composite
def depthwise_cases(draw: Callable[[Any], Any]) -> tuple[Conv, list[Array | None]]:
    rank = draw(st.sampled_from((1, 2, 2, 2)))
    axes = range(rank)
    kernel = [draw(st.sampled_from((1, 2, 3, 3, 5, 7))) for _ in axes]
    dilations = tuple(draw(st.sampled_from((1, 1, 1, 2, 3))) for _ in axes)
    strides = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in axes)
    pads = tuple(draw(st.integers(0, 4)) for _ in range(2 * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [draw(st.integers(max(1, s - pads[i] - pads[rank + i]), 19)) for i, s in enumerate(spans)]
    n, c = draw(st.integers(1, 2)), draw(st.sampled_from(CHANNELS))
    residual = draw(st.booleans())
    op = Conv(
        strides, pads, dilations, c, layout="NHWC", activation=draw(st.sampled_from(ACTIVATIONS)), residual=residual
    )
    x, w = integers(draw, n, *sizes, c), integers(draw, c, 1, *kernel)
    bias = draw(st.one_of(st.none(), st.just(integers(draw, c))))
    inputs: list[Array | None] = [x, w, bias]
    if residual:
        outs = op.windows(kernel).static_dims(op, sizes)
        inputs.append(integers(draw, n, *outs, c))
    return op, inputs


@settings(max_examples=120, deadline=None)
@given(depthwise_cases())
def test_depthwise_is_exact(case: tuple[Conv, list[Array | None]]) -> None:
    op, inputs = case
    flags = [i in (1, 2) for i in range(len(inputs))]
    planned = plan(op, inputs, flags)
    assert planned is not None
    assert planned.entry.name == "depthwise"
    (got,) = run_kernel(op, inputs, (1, 2, 3), constant=flags)
    np.testing.assert_array_equal(got, op.reference(*inputs))  # type: ignore[arg-type]


@pytest.mark.parametrize(("columns", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 16, 23])
def test_tuned_filters_at_every_kind_of_width(columns: int, stride: int, width: int) -> None:
    rng = np.random.default_rng(columns + width)
    c, pad = LANES + 3, columns // 2
    x = rng.integers(-4, 5, (1, 6, width, c)).astype(np.float32)
    w = rng.integers(-4, 5, (c, 1, columns, columns)).astype(np.float32)
    op = Conv((stride, stride), (pad,) * 4, group=c, layout="NHWC")
    (got,) = run_kernel(op, [x, w])
    np.testing.assert_array_equal(got, op.reference(x, w))


def test_other_activations_see_every_result_once() -> None:
    rng = np.random.default_rng(5)
    c = 2 * LANES + 3
    x, w = rng.standard_normal((1, 9, 11, c), np.float32), rng.standard_normal((c, 1, 3, 3), np.float32)
    op = Conv(pads=(1, 1, 1, 1), group=c, layout="NHWC", activation=HardSwish())
    (got,) = run_kernel(op, [x, w])
    assert_near(got, op.reference(x, w), 1e-6)


def test_not_a_number_and_infinity_pass_through() -> None:
    x = np.ones((1, 5, 5, LANES), np.float32)
    x[0, 2, 2, 0], x[0, 2, 2, 1] = np.nan, np.inf
    op = Conv(pads=(1, 1, 1, 1), group=LANES, layout="NHWC", activation=Relu())
    w = np.ones((LANES, 1, 3, 3), np.float32)
    (got,) = run_kernel(op, [x, w])
    np.testing.assert_array_equal(got, op.reference(x, w))


def test_blocks_cover_all_channels() -> None:
    for c in range(1, 5 * LANES):
        covered = {s + i for s in block_starts(c) for i in range(LANES)}
        assert set(range(c)) <= covered
        assert max(covered) < max(c, LANES)


def test_threads_get_channel_blocks_when_rows_are_few() -> None:
    blocks = 60
    assert choose_chunk(blocks * LANES, 7, 3, 1, 2) <= blocks // 2
    assert choose_chunk(LANES, 7, 3, 1, 2) == 1


# ------------------------------------------------------------------------------------------------------- transposed


@st.composite
def transposed_cases(draw: Callable[[Any], Any]) -> tuple[ConvTranspose, list[Array | None]]:
    rank = draw(st.sampled_from((1, 2, 2, 2)))
    axes = range(rank)
    kernel = [draw(st.sampled_from((1, 2, 2, 3, 4, 5))) for _ in axes]
    strides = tuple(draw(st.sampled_from((1, 2, 2, 3))) for _ in axes)
    dilations = tuple(draw(st.sampled_from((1, 1, 2, 3, 4))) for _ in axes)
    extra = tuple(draw(st.integers(0, s - 1)) for s in strides)
    sizes = [draw(st.integers(1, 15)) for _ in axes]
    full = [
        (z - 1) * s + (k - 1) * d + 1 + e
        for z, s, k, d, e in zip(sizes, strides, kernel, dilations, extra, strict=True)
    ]
    begins = [draw(st.integers(0, min(3, f - 1))) for f in full]
    ends = [draw(st.integers(0, min(3, f - 1 - b))) for f, b in zip(full, begins, strict=True)]
    group = draw(st.sampled_from((1, 1, 2, 3, LANES, LANES + 3, 2 * LANES)))
    cg = draw(st.sampled_from((1, 2, 5, LANES) if group < LANES else (1, 1, 2, 3)))
    kg = draw(st.sampled_from((1, 2, 3, LANES, 2 * LANES + 1) if group < LANES else (1, 1, 2, 3)))
    op = ConvTranspose(
        strides, (*begins, *ends), dilations, group, extra, layout="NHWC", activation=draw(st.sampled_from(ACTIVATIONS))
    )
    x = integers(draw, draw(st.integers(1, 2)), *sizes, group * cg)
    w = integers(draw, group * cg, kg, *kernel)
    return op, [x, w, draw(st.one_of(st.none(), st.just(integers(draw, group * kg))))]


@settings(max_examples=120, deadline=None)
@given(transposed_cases())
def test_transposed_is_exact(case: tuple[ConvTranspose, list[Array | None]]) -> None:
    op, inputs = case
    (got,) = run_kernel(op, inputs, (1, 2))
    np.testing.assert_array_equal(got, op.reference(*inputs))  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [1, 2, 3, 8, 24, 40])
@pytest.mark.parametrize("activation", [None, HardSwish()])
def test_filters_that_do_not_overlap(k: int, activation: Any) -> None:
    rng = np.random.default_rng(k)
    x = rng.integers(-4, 5, (2, 5, 27, 6)).astype(np.float32)
    w = rng.integers(-4, 5, (6, k, 2, 2)).astype(np.float32)
    bias = rng.integers(-4, 5, k).astype(np.float32)
    op = ConvTranspose((2, 2), layout="NHWC", activation=activation)
    (got,) = run_kernel(op, [x, w, bias])
    np.testing.assert_allclose(got, op.reference(x, w, bias), rtol=1e-6 if activation else 0, atol=0)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_that_follow_from_the_size(auto_pad: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-4, 5, (1, 4, 5, 3)).astype(np.float32)
    w = rng.integers(-4, 5, (3, 4, 3, 3)).astype(np.float32)
    op = ConvTranspose((2, 2), auto_pad=auto_pad, layout="NHWC")
    (got,) = run_kernel(op, [x, w])
    np.testing.assert_array_equal(got, op.reference(x, w))


WIDE = [(1, 32, 32), (2, LANES + 1, 1), (2, 1, LANES + 1)]
"""Groups, channels and filters of a group, which panels of products are for."""


@pytest.mark.parametrize(("group", "cg", "kg"), [(32, 1, 1), (3, 1, 1), (8, 4, 4), (16, 1, 2), *WIDE])
def test_groups_that_fit_a_vector_have_a_kernel_of_their_own(group: int, cg: int, kg: int) -> None:
    """A panel of products for each channel took six times as long."""
    op = ConvTranspose((2, 2), (1,) * 4, (), group, layout="NHWC")
    x, w = np.ones((1, 3, 3, group * cg), np.float32), np.ones((group * cg, kg, 4, 4), np.float32)
    chosen = select(op, types_of([x, w], [False, True]))
    assert chosen is not None
    assert chosen.name == ("transposed" if (group, cg, kg) in WIDE else "transposed_groups")
