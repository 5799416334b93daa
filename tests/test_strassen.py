"""Strassen's products: exact on whole numbers, close to f64 elsewhere, the same on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels.cpu import strassen
from bolt_numba.kernels.cpu.lang import LANES
from bolt_numba.kernels.cpu.pack import PANEL
from bolt_numba.kernels.cpu.strassen import PAIR
from bolt_numba.kernels.registry import Entry, Plain, select
from bolt_numba.ops.conv import Conv
from bolt_numba.ops.matmul import MatMul
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


@pytest.mark.parametrize(("m", "n", "k"), [(196, 512, 512), (784, 256, 128), (50, 128, 2048)])
def test_error_against_f64(m: int, n: int, k: int) -> None:
    """Within a few times the rounding of a plain sum, for rows of like size; bounded by the largest row of a pair."""
    rng = np.random.default_rng(m)
    x = np.maximum(rng.standard_normal((1, 1, m, k)), 0).astype(np.float32)
    w = (rng.standard_normal((n, k, 1, 1)) * np.sqrt(2 / k)).astype(np.float32)
    op = Conv(layout="NHWC")
    (got,) = run_kernel(CONV, [x, w], (1,), instance=op)
    wanted = op.reference(x.astype(np.float64), w.astype(np.float64))
    assert np.abs(got - wanted).max() / np.abs(wanted).max() < 4e-6


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


def test_what_is_not_finite_stays_in_its_rows() -> None:
    """Sums of rows spread infinities over the pair of tiles that they are in (inf - inf), never further."""
    x = np.ones((3 * PAIR, 64), np.float32)
    x[PAIR + 1, 3] = np.inf
    op = MatMul()
    (got,) = run_kernel(MATMUL, [x, np.ones((64, 2 * PANEL), np.float32)], instance=op)
    assert not np.isfinite(got[PAIR + 1]).any()
    assert np.isfinite(got[:PAIR]).all()
    assert np.isfinite(got[2 * PAIR :]).all()


def test_what_is_small_or_of_several_owners_is_left_alone() -> None:
    def chosen(op: Op, *shapes: tuple[int, ...], numerics: str = "fast") -> bool:
        entry = select(op, types_of([np.zeros(s, np.float32) for s in shapes]), Plain(numerics=numerics))
        return entry is not None and "strassen" in entry.name

    conv = Conv(layout="NHWC")
    assert chosen(conv, (1, 28, 28, 256), (512, 256, 1, 1))
    assert not chosen(conv, (1, 28, 28, 256), (512, 256, 1, 1), numerics="default"), "it is asked for"
    assert not chosen(conv, (1, 112, 112, 16), (96, 16, 1, 1))
    assert not chosen(conv, (1, 28, 28, 256), (512, 256, 3, 3))
    assert not chosen(conv, (8, 28, 28, 256), (512, 256, 1, 1)), "images must not touch each other"
    assert not chosen(MatMul(), (1024, 1024), (1024, 1024)), "nor must rows"
