"""Reductions, softmax, normalisations and attention: kernels against references and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.attention.attention import workspace
from bolt_numba.kernels.geometry.heads import head_offsets
from bolt_numba.kernels.geometry.reduced import groups, passes
from bolt_numba.kernels.registry import Scratch, select
from bolt_numba.ops.arrays import reduce
from bolt_numba.ops.layers import norm
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.types import F32, F64, Array, Sym, TensorType, type_of
from tests.cases import CASES
from tests.harness import PlainContext, plan, run_kernel, run_planned
from tests.level import few
from tests.near import assert_near

RNG = np.random.default_rng(11)
KINDS: list[Any] = [
    op
    for op in CASES
    if op.__module__.rpartition(".")[2] in ("reduce", "norm", "attention")
    and op.name not in ("Hardmax", "Det")  # reductions.arg has the kernel of one; the other has none
]


def reals(*shape: int, mean: float = 0.0) -> Array:
    return (RNG.normal(size=shape) + mean).astype(np.float32)


def axes(*values: int) -> Array:
    return np.array(values, np.int64)


def only(op: Any, *inputs: Array | None) -> Array:
    """The one output of the kernel, after every check of the harness."""
    (y,) = run_kernel(op, list(inputs))
    return y


@pytest.mark.parametrize("kind", KINDS, ids=lambda c: c.name)
def test_kernel_equals_reference(kind: Any) -> None:
    ran = 0

    @settings(deadline=None, max_examples=few(25, 4), derandomize=True, suppress_health_check=list(HealthCheck))
    @given(CASES[kind]())
    def check(case: Any) -> None:
        nonlocal ran
        planned = plan(case.op, case.inputs)
        if planned is None:
            return
        ran += 1
        for step in planned.steps:
            step.parallel = True  # shares of the work as for large operands
        wanted = case.op.reference(*case.inputs)
        results = run_planned(planned, case.inputs)
        for got, want in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            if case.exact:
                np.testing.assert_array_equal(got, want)
            else:
                assert_near(got, want, case.rtol)

    check()
    assert ran > few(5, 0)


# ---------------------------------------------------------------------------------------------------------- reductions


def test_passes_merge_axes() -> None:
    assert groups((2, 1, 3, 4), (1, 2)) == [(2, False), (3, True), (4, False)]
    assert passes((2, 3, 4, 5), (2, 3)) == [(6, 20, 1)]
    assert passes((2, 3, 4, 5), (0, 1)) == [(1, 6, 20)]
    assert passes((2, 3, 4, 5), (0, 2)) == [(6, 4, 5), (1, 2, 15)]
    assert passes((1, 1), (0,)) == [(1, 1, 1)]


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMax", "ReduceL2", "ReduceMean", "ReduceMin", "ReduceSumSquare"])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 3), (1, 2), (0, 1, 3), (0, 1, 2, 3)])
def test_every_grouping(name: str, which: tuple[int, ...]) -> None:
    op = getattr(reduce, name)(keepdims=False)
    x = RNG.integers(-3, 4, (3, 5, 7, 33)).astype(np.float32)
    assert_near(only(op, x, axes(*which)), op.reference(x, axes(*which)), 1e-6)


@pytest.mark.parametrize("shape", [(1 << 20,), (2, 1 << 17), (1 << 17, 3), (1 << 14, 40)])
def test_long_sums_are_accurate(shape: tuple[int, ...]) -> None:
    """A mean of 100 makes every lost bit count."""
    x = reals(*shape, mean=100.0)
    axis = len(shape) - 1 if shape[0] < 10 else 0
    got = only(reduce.ReduceSum(), x, axes(axis))
    np.testing.assert_allclose(got, x.astype(np.float64).sum(axis, keepdims=True), rtol=1e-6)


def test_few_long_lines_take_two_passes() -> None:
    planned = plan(reduce.ReduceMean(), [reals(1, 1 << 19), axes(1)])
    assert planned is not None
    assert len(planned.steps) == 2
    assert planned.steps[0].parallel


@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_keep_nan(axis: int) -> None:
    x = reals(40, 70)
    x[7, 5] = np.nan
    for kind in (reduce.ReduceMax, reduce.ReduceMin):
        np.testing.assert_array_equal(only(kind(), x, axes(axis)), kind().reference(x, axes(axis)))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", [reduce.ArgMax, reduce.ArgMin])
def test_positions_of_ties_and_nan(kind: Any, axis: int, last: bool) -> None:
    x = RNG.integers(0, 3, (37, 41)).astype(np.float32)
    x[3, 30], x[20, 4], x[20, 30] = np.nan, np.nan, np.nan
    x[5] = -np.inf
    op = kind(axis=axis, select_last_index=last)
    np.testing.assert_array_equal(only(op, x), op.reference(x))


@pytest.mark.parametrize("largest", [True, False])
def test_topk_orders_ties_and_nan(largest: bool) -> None:
    x = RNG.integers(0, 9, (5, 200)).astype(np.float32)
    x[1, 7], x[2, 9], x[2, 11] = np.nan, np.inf, -np.inf
    op = reduce.TopK(largest=largest)
    for k in (1, 2, 17, 200):
        for got, want in zip(run_kernel(op, [x, axes(k)]), op.reference(x, axes(k)), strict=True):
            np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------------------------------------------------------- softmax


@pytest.mark.parametrize("kind", [reduce.Softmax, reduce.LogSoftmax])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 33, 100])
def test_softmax(kind: Any, axis: int, n: int) -> None:
    x = 20 * reals(3, n, 19)
    assert_near(only(kind(axis), x), kind(axis).reference(x.astype(np.float64)).astype(np.float32), 2e-6)


def test_softmax_of_infinities() -> None:
    x = reals(4, 20)
    x[0] = -np.inf
    x[1, 3:] = -np.inf
    x[2] = 3e38
    for axis in (1, 0):
        data = x if axis else np.ascontiguousarray(x.T)
        y = only(reduce.Softmax(axis), data)
        y = y if axis else y.T
        assert np.isnan(y[0]).all()
        np.testing.assert_allclose(y[1:].sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(y[2], 1 / 20, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ normalisations


@pytest.mark.parametrize("n", [1, 7, 16, 64, 384, 1000])
def test_layer_normalisation_against_float64(n: int) -> None:
    x, scale, bias = reals(9, n, mean=30.0), reals(n), reals(n)
    op = norm.LayerNormalization(epsilon=1e-3, stats=True)
    wanted = op.reference(*(a.astype(np.float64) for a in (x, scale, bias)))
    for got, want in zip(run_kernel(op, [x, scale, bias]), wanted, strict=True):
        assert_near(got, want, 1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("c", "groups_"), [(6, 3), (32, 4), (40, 40), (33, 1)])
def test_group_normalisation_against_float64(layout: str, c: int, groups_: int) -> None:
    x = reals(2, c, 9, 11, mean=10.0) if layout == "NCHW" else reals(2, 9, 11, c, mean=10.0)
    op = norm.GroupNormalization(groups_, layout=layout)
    scale, bias = reals(c), reals(c)
    assert_near(only(op, x, scale, bias), op.reference(*(a.astype(np.float64) for a in (x, scale, bias))), 1e-5)


def test_rows_of_other_lengths_are_left_to_the_reference() -> None:
    x, scalar = TensorType(F32, (4, 8)), TensorType(F32, (1,))
    assert select(norm.LayerNormalization(), [x, scalar]) is None
    assert select(norm.RMSNormalization(), [TensorType(F64, (4, 8)), TensorType(F64, (8,))]) is None


# ----------------------------------------------------------------------------------------------------------- attention


def attention(q: Array, k: Array, v: Array, scale: float, mask: Array | None, causal: bool) -> Array:
    """The definition, in float64."""
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * scale
    if mask is not None:
        s = s + mask
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray((e / e.sum(-1, keepdims=True)) @ v.astype(np.float64))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 77), (4, 16), (5, 33), (12, 32), (13, 40), (50, 129), (25, 25)])
@pytest.mark.parametrize(("d", "width"), [(32, 32), (17, 40), (64, 64), (3, 1)])
def test_attention(m: int, n: int, d: int, width: int, causal: bool) -> None:
    q, k, v = reals(3, m, d), reals(3, n, d), reals(3, n, width)
    assert_near(only(FusedAttention(0.2, causal), q, k, v), attention(q, k, v, 0.2, None, causal), 2e-6)


@pytest.mark.parametrize("mask", [(21,), (1, 21), (13, 21), (2, 1, 1, 21), (3, 13, 21), (2, 3, 13, 21), (2, 1, 13, 21)])
def test_attention_masks(mask: tuple[int, ...]) -> None:
    q, k, v, m = reals(2, 3, 13, 8), reals(2, 3, 21, 8), reals(2, 3, 21, 8), 3 * reals(*mask)
    assert_near(only(FusedAttention(0.5), q, k, v, m), attention(q, k, v, 0.5, m, False), 2e-6)


def test_attention_shares_keys_between_heads() -> None:
    q, k, v = reals(2, 4, 9, 8), reals(2, 1, 11, 8), reals(1, 1, 11, 8)
    assert_near(only(FusedAttention(0.5), q, k, v), attention(q, k, v, 0.5, None, False), 2e-6)


def test_attention_to_nothing_is_zero() -> None:
    q, k, v = reals(1, 5, 8), reals(1, 6, 8), reals(1, 6, 8)
    mask = np.zeros((5, 6), np.float32)
    mask[2] = -np.inf
    y = only(FusedAttention(0.5), q, k, v, mask)
    assert (y[0, 2] == 0).all()
    assert np.isfinite(y).all()


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(1, 300), st.integers(1, 130), st.integers(1, 130))
def test_workspace_parts_do_not_overlap(n: int, d: int, width: int) -> None:
    layout = workspace(12, n, d, width)
    assert layout.values_at >= 4 * n * d
    assert layout.values_at <= layout.rows_at <= layout.scores_at - 4 * 12 * d
    assert layout.result_at - layout.scores_at >= 12 * layout.pitch
    assert layout.size - layout.result_at >= 4 * 12 * (width + 1)


def test_head_offsets_broadcast() -> None:
    assert list(head_offsets((2, 3), (1, 3, 4, 5))) == [0, 80, 160, 0, 80, 160]
    assert list(head_offsets((2, 3), (4, 5))) == [0] * 6


def test_workspace_grows_with_threads() -> None:
    kinds = [TensorType(F32, (2, 5, 8)), TensorType(F32, (2, 6, 8)), TensorType(F32, (2, 6, 8))]
    entry = select(FusedAttention(), kinds)
    assert entry is not None
    sizes = []
    for threads in (1, 4):
        (step,) = entry.make(FusedAttention(), kinds, [kinds[0]], PlainContext(threads))
        work = step.args["work"]
        assert isinstance(work, Scratch)
        sizes.append(work.nbytes)
    assert sizes[1] == 4 * sizes[0]


@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 1), (5, 5), (1, 1, 5), (1, 5, 1), (3, 1, 1), (1,), ()], ids=str)
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("kind", [norm.LayerNormalization, norm.RMSNormalization])
def test_a_scale_counts_along_its_own_axes(kind: Any, axis: int, shape: tuple[int, ...]) -> None:
    """A scale of [5, 1] has as many elements as a row, and was taken for one of [5]."""
    x, scale = reals(3, 5, 5), reals(*shape)
    graph = Graph("scaled")
    b, dims = Builder(graph), tuple(Sym(f"d{i}") for i in range(len(shape)))
    inputs = graph.add_input("x", type_of(x)), graph.add_input("scale", TensorType(F32, dims))
    graph.add_output(b(kind(axis=axis), *inputs), "y")
    (got,) = bn.compile(graph, threads=1).run(None, {"x": x, "scale": scale})
    assert_near(got, kind(axis=axis).reference(x, scale), 1e-5)
