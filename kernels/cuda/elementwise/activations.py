"""TEMPORARY: one maker that shows the way."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda
from bolt_numba.kernels.registry import Context, In, Out, Step, Types, kernel
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import BF16, F16, F32, TensorType, dtype_name

THREADS = 256


@functools.cache
def relu_kernel(dtype: str) -> CudaKernel:
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), {"f32": 4}.get(dtype, 2)

    @cuda_kernel(
        threads=THREADS, blocks=lambda a: ceil_div(a.n, THREADS), x=PTR, y=PTR, n=I64,
        extents=lambda a: {"x": size * a.n, "y": size * a.n},
    )  # fmt: skip
    def relu(x, y, n):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < n:
            store(y + size * i, max(load(x + size * i), np.float32(0)))

    return relu


@kernel(Relu, device="cuda", accepts=lambda op, ins: ins[0] is not None and ins[0].dtype in (F32, F16, BF16))
def relu(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    return [Step(relu_kernel(dtype_name(outs[0].dtype)), {"x": In(0), "y": Out(), "n": outs[0].size})]
