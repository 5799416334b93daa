"""Matrix products and convolutions against their references, exactly (integer-valued data), on every ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.cpu.convolution.conv import conv
from bolt_numba.kernels.cpu.products.epilogue import tile_function
from bolt_numba.kernels.cpu.products.matmul import matmul
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.sweep import MR, STEPS, VARIANTS
from bolt_numba.kernels.registry import KERNELS
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Clip, LeakyRelu, Relu
from bolt_numba.types import F32, Array, TensorType
from tests.harness import run_kernel

RNG = np.random.default_rng(3)
# These makers, whatever others are better for some shapes.
ENTRIES = {
    kind: next(e for e in KERNELS[kind, "cpu"] if e.name == maker.__name__)
    for kind, maker in ((Conv, conv), (MatMul, matmul))
}


def integers(*shape: int) -> Array:
    return RNG.integers(-4, 5, shape).astype("f4")


def check(op: Any, inputs: list[Array | None], constant: list[bool] | None = None, threads: Any = (1, 2)) -> None:
    (got,) = run_kernel(ENTRIES[type(op)], inputs, threads, constant=constant, instance=op)
    np.testing.assert_array_equal(got, op.reference(*inputs))


SIZES = [
    (1, 1, 1), (1, 1000, 37), (7, 5, 3), (MR, PANEL, 64), (MR + 1, PANEL + 1, 5), (49, 3 * PANEL // 2, 16),
    (5 * MR + 7, 100, 33), (2, PANEL // 2, 129), (13, 7, 1024), (100, 2 * PANEL + 3, 1024), (3, 4, 0),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("constant", [True, False])
def test_matmul_sizes(m: int, n: int, k: int, constant: bool) -> None:
    check(MatMul(), [integers(m, k), integers(k, n)], [False, constant])


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_matmul_transposed(trans_a: bool, trans_b: bool, constant: bool) -> None:
    a, b = integers(3, 19, 21), integers(21, 40)
    op = MatMul(trans_a, trans_b, alpha=0.5, residual=True, activation=Relu())
    inputs = [a.swapaxes(1, 2) if trans_a else a, b.T if trans_b else b, integers(40), integers(3, 19, 40)]
    inputs = [np.ascontiguousarray(x) for x in inputs]
    check(op, inputs, [False, constant, constant, False])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)), ((5,), (5, 7)), ((6, 5), (5,)), ((2, 3, 6, 5), (5,)), ((4, 6, 5), (4, 5, 9)), ((5,), (3, 5, 9)),
        ((2, 1, 6, 5), (3, 5, 9)), ((6, 5), (3, 5, 9)), ((2, 3, 6, 5), (2, 1, 5, 9)), ((3, 1, 6, 5), (1, 1, 5, 9)),
        ((1, 12, 128, 32), (1, 12, 32, 128)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("constant", [False, True])
def test_matmul_broadcast(a: tuple[int, ...], b: tuple[int, ...], constant: bool) -> None:
    check(MatMul(), [integers(*a), integers(*b)], [False, constant])


@pytest.mark.parametrize("activation", [Relu(), Clip(-3.0, 6.0), Clip(None, 5.0), LeakyRelu(0.5)])
@pytest.mark.parametrize("n", [PANEL + 3, 5, PANEL // 2 + 3, 3 * PANEL // 4, PANEL // 4])
def test_matmul_epilogue(activation: Any, n: int) -> None:
    inputs = [integers(2, 29, 6), integers(6, n), integers(n), integers(2, 29, n)]
    check(MatMul(activation=activation, residual=True), inputs, [False, True, True, False])
    check(MatMul(activation=activation), inputs[:3], [False, True, True])


def test_row_steps_add_up() -> None:
    for rows in range(1, 2 * MR):
        left = rows
        while left:
            assert STEPS[left] in VARIANTS
            left -= STEPS[left]
            assert left >= 0


def conv_case(
    x: tuple[int, ...],
    k: int,
    kernel: tuple[int, ...],
    group: int = 1,
    bias: bool = True,
    threads: Any = (1, 2),
    **at: Any,
) -> None:
    c = x[-1]
    op = Conv(group=group, layout="NHWC", **at)
    inputs: list[Array | None] = [integers(*x), integers(k, c // group, *kernel), integers(k) if bias else None]
    if op.residual:
        shape = (
            Conv(group=group, layout="NHWC", **(at | {"residual": False, "activation": None})).reference(*inputs).shape
        )
        inputs.append(integers(*shape))
    check(op, inputs, [False, True, True, False][: len(inputs)], threads)


PAD1 = (1, 1, 1, 1)


@pytest.mark.parametrize("x", [(1, 7, 7, 16), (2, 14, 14, 20), (1, 5, 30, 3), (3, 9, 4, 40)])
@pytest.mark.parametrize("k", [PANEL, 24, 7])
def test_conv_3x3(x: tuple[int, ...], k: int) -> None:
    conv_case(x, k, (3, 3), pads=PAD1)
    conv_case(x, k, (3, 3), strides=(2, 2), pads=(1, 0, 1, 1), bias=False)
    conv_case(x, k, (3, 3), dilations=(1, 2), pads=(0, 2, 2, 2), activation=Relu(), residual=True)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("c", [16, 33])
def test_conv_1x1(strides: tuple[int, int], c: int) -> None:
    conv_case((2, 9, 11, c), 40, (1, 1), strides=strides, activation=Clip(0.0, 6.0))
    conv_case((2, 9, 11, c), 40, (1, 1), strides=strides, residual=True)


def test_conv_rows_in_one_cache_set() -> None:
    conv_case((1, 6, 6, 1024), 96, (1, 1))
    conv_case((1, 7, 7, 512), 80, (1, 1), strides=(2, 2))


def test_conv_stem() -> None:
    conv_case((1, 40, 41, 3), 64, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3), activation=Relu())
    conv_case((1, 32, 32, 3), 32, (3, 3), strides=(2, 2), auto_pad="SAME_UPPER")
    conv_case((1, 8, 8, 1), 5, (5, 5), auto_pad="SAME_LOWER")


@pytest.mark.parametrize("c", [1, 3, 7, 15])
def test_conv_few_channels(c: int) -> None:
    """Pixels at the edges are copied."""
    conv_case((2, 9, 14, c), 20, (3, 3), pads=PAD1, residual=True)
    conv_case((1, 7, 6, c), 20, (5, 9), pads=(2, 4, 2, 4))
    conv_case((1, 12, 5, c), 20, (3, 2), dilations=(2, 1), strides=(1, 2), pads=(3, 2, 1, 2))
    conv_case((1, 3, 4, 5, c), 7, (3, 2, 3), pads=(1, 0, 1, 1, 1, 1))
    conv_case((2, 4, 6, 7, c), 20, (3, 3, 3), pads=(2, 1, 0, 1, 0, 1), strides=(2, 1, 1))
    conv_case((2, 40, c), 20, (11,), pads=(5, 5))
    conv_case((1, 3, 4000, c), 8, (3, 3), pads=PAD1, strides=(2, 3))


@pytest.mark.parametrize("group", [2, 4, 8])
def test_conv_groups(group: int) -> None:
    conv_case((2, 7, 8, 16), 24, (3, 3), group=group, pads=PAD1)
    conv_case((2, 7, 8, 16), 24, (1, 1), group=group)


def test_conv_other_ranks() -> None:
    conv_case((2, 19, 6), 10, (5,), strides=(2,), pads=(2, 2))
    conv_case((1, 6, 7, 8, 5), 10, (3, 3, 2), pads=(1, 1, 0, 1, 1, 1), strides=(1, 2, 1))


def test_conv_activation_by_function() -> None:
    conv_case((1, 9, 9, 8), 40, (3, 3), pads=PAD1, activation=LeakyRelu(0.25), residual=True)


def test_values_of_activations_make_no_kernels() -> None:
    activations = [LeakyRelu(alpha) for alpha in (0.25, 3.0, -2.0, 0.0, -0.0)]
    assert len({tile_function(activation).digest for activation in activations}) == 1
    x, w = integers(1, 5, 5, 8), integers(PANEL + 3, 8, 1, 1)
    for activation in activations:
        op = Conv(layout="NHWC", activation=activation)
        (got,) = run_kernel(ENTRIES[Conv], [x, w], instance=op)
        wanted = op.reference(x, w)
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


@pytest.mark.parametrize("group", [1, 4])
def test_conv_filters_that_are_not_constant(group: int) -> None:
    inputs = [integers(1, 6, 7, 8), integers(40, 8 // group, 3, 2), integers(40)]
    check(Conv(layout="NHWC", group=group, pads=PAD1), inputs, [False, False, False])


def test_conv_batches_of_small_and_large_images() -> None:
    conv_case((5, 3, 3, 20), 40, (3, 3), pads=PAD1, residual=True)
    conv_case((2, 33, 34, 4), 20, (3, 3), pads=PAD1)


def test_conv_pads_beyond_the_kernel() -> None:
    conv_case((1, 4, 4, 6), 8, (2, 2), pads=(3, 3, 3, 3))


@pytest.mark.parametrize("bias", [(), (1,), (3,)])
def test_a_product_with_a_vector_and_a_sum_behind_it(bias: tuple[int, ...]) -> None:
    """The last axis of the result has the rows, so what is added is no bias of columns."""
    graph, c = Graph("vector"), integers(*bias)
    b = Builder(graph)
    graph.add_output(b(Add(), b(MatMul(), graph.add_input("x", TensorType(F32, (2, 3, 5))), integers(5)), c), "y")
    data = {"x": integers(2, 3, 5)}
    np.testing.assert_array_equal(bn.compile(graph)(**data)["y"], interpret(graph, data)["y"])


def test_a_bias_of_the_rows_of_a_product_with_a_vector() -> None:
    graph = Graph("vector")
    b = Builder(graph)
    graph.add_output(b(MatMul(), graph.add_input("x", TensorType(F32, (2, 3, 5))), integers(5), integers(3)), "y")
    data = {"x": integers(2, 3, 5)}
    np.testing.assert_array_equal(bn.compile(graph)(**data)["y"], interpret(graph, data)["y"])
