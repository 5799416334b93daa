"""Grouped convolution with few channels per group: exactly as its reference (integer-valued data), on every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cpu.convolution.grouped import accepts_grouped, choose_chunk, grouped
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.registry import Entry, select
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.pointwise import Clip, LeakyRelu, Relu
from bolt_numba.types import Array
from tests.harness import run_kernel, types_of

ENTRY = Entry(Conv, "cpu", "f32", grouped, accepts_grouped, 0, "grouped")


def inputs_of(op: Conv, x: tuple[int, ...], k: int, kernel: tuple[int, ...], bias: bool, seed: int) -> list[Any]:
    """Operands of small integers: every sum is exact."""
    rng = np.random.default_rng(seed)

    def integers(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype("f4")

    found: list[Any] = [integers(*x), integers(k, x[-1] // op.group, *kernel), integers(k) if bias else None]
    if op.residual:
        sizes = op.windows(kernel).static_dims(op, x[1:-1])
        found.append(integers(x[0], *sizes, k))
    return found


def check(op: Conv, inputs: list[Any], threads: tuple[int, ...] = (1, 2, 5)) -> None:
    constant = [False, True, True, False][: len(inputs)]
    (got,) = run_kernel(ENTRY, inputs, threads, constant=constant, instance=op)
    np.testing.assert_array_equal(got, op.reference(*inputs))


@st.composite
def cases(draw: Callable[[Any], Any]) -> tuple[Conv, list[Any]]:
    cg, kg = draw(st.integers(1, LANES)), draw(st.integers(1, LANES))
    group = draw(st.integers(max(2, -(-LANES // cg)), max(2, -(-LANES // cg)) + 5))
    rank = draw(st.sampled_from((1, 2, 2, 2)))
    kernel = draw(st.sampled_from(((1, 1), (3, 3), (2, 3), (3, 2), (5, 1))))[:rank]
    strides = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in kernel)
    dilations = tuple(draw(st.sampled_from((1, 1, 2))) for _ in kernel)
    pads = tuple(draw(st.integers(0, 2)) for _ in range(2 * rank))
    sizes = tuple(draw(st.integers(1, 17)) + (n - 1) * d for n, d in zip(kernel, dilations, strict=True))
    activation = draw(st.sampled_from((None, Relu(), Clip(-20.0, 30.0), LeakyRelu(0.5))))
    op = Conv(strides, pads, dilations, group, layout="NHWC", activation=activation, residual=draw(st.booleans()))
    x = (draw(st.integers(1, 2)), *sizes, group * cg)
    return op, inputs_of(op, x, group * kg, kernel, draw(st.booleans()), draw(st.integers(0, 99)))


@settings(max_examples=80, deadline=None)
@given(cases())
def test_grouped_is_exact(case: tuple[Conv, list[Any]]) -> None:
    check(*case)


@pytest.mark.parametrize(("c", "k", "group"), [(32, 32, 8), (48, 48, 6), (64, 128, 16), (40, 20, 5)])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 2)])
def test_layers_of_models(c: int, k: int, group: int, kernel: int, stride: int) -> None:
    if max(c, k) // group > LANES:
        pytest.skip("a group is more than a vector")
    pads = (kernel // 2,) * 4
    op = Conv((stride, stride), pads, (), group, layout="NHWC", activation=Relu(), residual=True)
    check(op, inputs_of(op, (2, 14, 15, c), k, (kernel, kernel), True, 1))


def test_what_is_accepted() -> None:
    def best(c: int, k: int, group: int) -> str | None:
        entry = select(Conv(group=group, layout="NHWC"), types_of([np.zeros((1, 9, 9, c), "f4"), w(k, c // group)]))
        return None if entry is None else entry.name

    def w(k: int, cg: int) -> Array:
        return np.zeros((k, cg, 3, 3), "f4")

    assert best(4 * LANES, 4 * LANES, 4) == "grouped"
    assert best(4 * LANES, 8 * LANES, 4) == best(4 * LANES, 4 * LANES, 2) == "conv"
    assert best(LANES // 2, LANES, 2) == "conv"


def test_not_finite_inputs_stay_in_their_group() -> None:
    op = Conv(pads=(1, 1, 1, 1), group=LANES // 2, layout="NHWC")
    x, w, _ = inputs_of(op, (1, 5, 5, LANES), LANES, (3, 3), False, 2)
    wanted = op.reference(x, w)
    x[..., 0], x[..., 1] = np.inf, np.nan
    (got,) = run_kernel(ENTRY, [x, w], instance=op)
    assert not np.isfinite(got[..., :2]).any()
    np.testing.assert_array_equal(got[..., 2:], wanted[..., 2:])


def test_chunks_cover_all_blocks() -> None:
    for blocks in (1, 2, 7, 64):
        for lines in (1, 7, 56):
            for threads in (1, 2, 8):
                assert 1 <= choose_chunk(blocks, 5000, lines, threads) <= blocks
