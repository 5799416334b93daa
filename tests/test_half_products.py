"""Products and convolutions of weights in 16 bits against f64 sums of operands rounded alike, in both formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cpu.halves.bf16 import conv_bf16, matmul_bf16
from bolt_numba.kernels.cpu.halves.f16 import conv_f16, matmul_f16
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.sweep import MR
from bolt_numba.kernels.registry import KERNELS, always, load
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Clip, LeakyRelu, Relu
from bolt_numba.types import BF16, F16, F32, AnyDType, Array
from tests.harness import run_kernel
from tests.near import assert_near

RNG = np.random.default_rng(5)
load("cpu")
# These makers, whatever is cheaper.
ENTRIES = {
    (kind, dtype): replace(next(e for e in KERNELS[kind, "cpu"] if e.name == maker.__name__), accepts=always)
    for kind, dtype, maker in (
        (Conv, BF16, conv_bf16), (MatMul, BF16, matmul_bf16), (Conv, F16, conv_f16), (MatMul, F16, matmul_f16)
    )
}  # fmt: skip
BOTH = pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def check(dtype: AnyDType, op: Any, inputs: list[Array | None]) -> None:
    """Within what sums in f32 may lose of sums in f64.  Weights are rounded, in bfloat16 the other operand, too."""
    constant = [False, True, True, False][: len(inputs)]
    (got,) = run_kernel(ENTRIES[type(op), dtype], inputs, (1, 2), constant=constant, instance=op)
    a, w, *rest = inputs
    assert a is not None
    assert w is not None
    alpha = np.float32(getattr(op, "alpha", 1.0))
    plain = replace(op, alpha=1.0) if isinstance(op, MatMul) else op
    seen, weights = a.astype(BF16 if dtype == BF16 else F32), (w * alpha).astype(dtype)
    exact = [None if x is None else x.astype(np.float64) for x in (seen, weights, *rest)]
    terms = w.size // max(got.shape[-1], 1)
    assert_near(got, plain.reference(*exact), 1e-6 * np.sqrt(terms), floor=1)


@BOTH
@settings(deadline=None, max_examples=30)
@given(
    m=st.integers(1, 3 * MR + 1), n=st.integers(1, 3 * PANEL + 1), k=st.integers(1, 130), batch=st.integers(1, 3),
    trans_b=st.booleans(), bias=st.booleans(), residual=st.booleans(),
    activation=st.sampled_from([None, Relu(), Clip(-1.0, 2.0), LeakyRelu(0.5)]),
)  # fmt: skip
def test_matmul(
    dtype: AnyDType, m: int, n: int, k: int, batch: int, trans_b: bool, bias: bool, residual: bool, activation: Any
) -> None:
    op = MatMul(trans_b=trans_b, alpha=0.3, activation=activation, residual=residual)
    inputs = [real(batch, m, k), real(*((n, k) if trans_b else (k, n))), real(n) if bias else None]
    if residual:
        inputs.append(real(batch, m, n))
    check(dtype, op, inputs if bias or residual else inputs[:2])


@BOTH
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1000, 3000), (2, 300, 700), (49, 300, 700), (200, 96, 33), (30, 520, 1000), (150, 130, 2501), (13, 33, 1025)],
)
def test_matmul_spans(dtype: AnyDType, m: int, n: int, k: int) -> None:
    check(dtype, MatMul(), [real(m, k), real(k, n)])


def test_batches_of_weights() -> None:
    check(F16, MatMul(), [real(2, 3, 5, 20), real(3, 20, 40)])
    check(F16, MatMul(trans_a=True), [real(20, 5), real(20, 40)])


@BOTH
@settings(deadline=None, max_examples=40)
@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)), c=st.integers(1, 40), k=st.integers(1, 70),
    kernel=st.sampled_from([(1, 1), (3, 3), (2, 3), (5, 1), (1, 7)]), stride=st.integers(1, 2),
    dilation=st.integers(1, 2), pad=st.integers(0, 3), images=st.integers(1, 2), group=st.integers(1, 2),
    residual=st.booleans(),
)  # fmt: skip
def test_conv(
    dtype: AnyDType, size: tuple[int, int], c: int, k: int, kernel: tuple[int, int], stride: int, dilation: int,
    pad: int, images: int, group: int, residual: bool,
) -> None:  # fmt: skip
    if any((n - 1) * dilation >= s + 2 * pad for n, s in zip(kernel, size, strict=True)):
        return
    how: dict[str, Any] = {"strides": (stride, stride), "dilations": (dilation, dilation), "pads": (pad,) * 4}
    how |= {"layout": "NHWC", "group": group}
    inputs = [real(images, *size, c * group), real(k * group, c, *kernel), real(k * group)]
    if residual:
        inputs.append(real(*Conv(**how).reference(*inputs).shape))
    check(dtype, Conv(**how, residual=residual, activation=Relu()), inputs)  # type: ignore[arg-type]


@BOTH
def test_conv_of_other_ranks_and_groups(dtype: AnyDType) -> None:
    check(dtype, Conv(layout="NHWC", pads=(2, 2), strides=(2,)), [real(2, 19, 6), real(40, 6, 5)])
    check(dtype, Conv(layout="NHWC", pads=(1,) * 6), [real(1, 4, 5, 6, 3), real(16, 3, 3, 3, 3), real(16)])
    check(dtype, Conv(layout="NHWC", pads=(1,) * 4, group=2), [real(2, 6, 7, 66), real(80, 33, 3, 3), real(80)])
    many = [real(1, 9, 8, 300), real(150, 150, 3, 3), real(150)]
    check(dtype, Conv(layout="NHWC", pads=(1,) * 4, group=2), many)  # type: ignore[arg-type]
    first = [real(1, 30, 31, 3), real(64, 3, 7, 7), real(64)]
    check(dtype, Conv(layout="NHWC", pads=(3,) * 4, strides=(2, 2)), first)  # type: ignore[arg-type]
