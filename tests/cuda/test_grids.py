"""Launches have at most 65,535 blocks in their second and third direction; those of large batches keep to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels import registry
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.registry import QueryContext, Scratch
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.norm import InstanceNormalization
from bolt_numba.ops.layers.products.integer_products import ConvInteger, MatMulInteger
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.layers.recurrent import RNN
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.types import F16, F32, I8, I32, I64, U8, TensorType

MOST = 65535


def of(*dims: int, dtype: Any = F32) -> TensorType:
    return TensorType(dtype, dims)


@pytest.mark.parametrize(
    ("op", "ins"),
    [
        (InstanceNormalization(), (of(70_000, 2, 3), of(2), of(2))),
        (RNN(), (of(50_000, 100, 4), of(1, 3, 4), of(1, 3, 3))),
        (RNN(), (of(1, 600_000, 4), of(1, 3, 4), of(1, 3, 3))),
    ],
    ids=["samples", "steps of sequences", "sequences"],
)
def test_large_batches_fit(op: Any, ins: tuple[TensorType, ...]) -> None:
    entry = registry.candidates(op, list(ins), QueryContext(), "cuda")[0]
    for step in made_steps(entry, op, list(ins), infer_types(op, list(ins)), QueryContext()):
        kernel: Any = step.kernel
        assert max(kernel.grid(SimpleNamespace(**step.args))[1:]) <= MOST


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("op", "ins"),
    [
        (MatMul(), (of(1 << 31, 8, dtype=F16), of(8, 8, dtype=F16))),
        (MatMul(), (of(1 << 20, 1 << 11, 8), of(8, 8))),
        (MatMul(trans_b=True), (of(8, 1 << 31), of(8, 1 << 31))),
        (MatMul(), (of(2, 8), of(8, 1 << 31))),
        (MatMulInteger(), (of(1 << 31, 16, dtype=I8), of(16, 8, dtype=I8))),
        (MatMul(), (of(1 << 31, 1, dtype=I64), of(1, 8, dtype=I64))),
        (MatMulNBits(block=16), (of(1 << 31, 16), of(8, 1, 8, dtype=U8), of(8, 1))),
    ],
    ids=["rows", "rows of a batch", "terms", "columns", "rows of bytes", "rows of integers", "rows of codes"],
)
def test_products_whose_sizes_32_bits_cannot_number_are_left_to_others(
    op: Any, ins: tuple[TensorType, ...], arch: str
) -> None:
    for numerics in ("default", "fast"):
        assert not registry.candidates(op, list(ins), QueryContext(numerics=numerics), "cuda", arch)


def test_threads_that_widen_channels_are_numbered_by_32_bits() -> None:
    ins = [of(1, 40_000, 40_000, 1, dtype=I8), TensorType(I8, (8, 1, 3, 3), np.zeros((8, 1, 3, 3), np.int8))]
    op = ConvInteger(layout="NHWC", strides=(3, 3))
    entry = registry.candidates(op, ins, QueryContext(), "cuda")[0]
    steps = made_steps(entry, op, ins, infer_types(op, ins), QueryContext())
    kernel: Any = steps[0].kernel
    assert kernel.name == "widen_channels"
    assert kernel.grid(SimpleNamespace(**steps[0].args))[0] * kernel.threads <= 1 << 32


def test_axes_that_shrink_are_resized_before_those_that_grow() -> None:
    """No result in between has more elements than the first and the last."""
    x, sizes = of(60_000, 5_000), np.array([100, 1_000_000])
    op, ins = Resize(mode="linear", antialias=True), [x, None, None, TensorType(I64, (2,), sizes)]
    entry = registry.candidates(op, ins, QueryContext(), "cuda")[0]
    first, _ = made_steps(entry, op, ins, infer_types(op, ins), QueryContext())
    assert isinstance(first.args["dst"], Scratch)
    assert first.args["dst"].nbytes == 4 * 100 * 5_000


def test_more_heads_than_fit_are_not_taken() -> None:
    n, s, width, held = 2_048, 1, 64, 8
    past = of(n, 16, held, 4)
    ins = [*(of(n, s, width),) * 3, past, past, of(n, dtype=I32), of(1, dtype=I32)]
    op = GroupQueryAttention(num_heads=16, kv_num_heads=16)
    assert registry.candidates(op, [of(100, s, width)] * 3 + [of(100, 16, held, 4)] * 2 + [of(100, dtype=I32), ins[6]],
                               QueryContext(), "cuda")  # fmt: skip
    assert not registry.candidates(op, ins, QueryContext(), "cuda")
