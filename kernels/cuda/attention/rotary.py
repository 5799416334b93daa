"""Rotary position embedding: a thread for each pair of elements, and for each element behind them."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.faults import FAULT_AT, report
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, load_i64
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Step, Types, kernel
from bolt_numba.ops.layers.rotary import RotaryEmbedding
from bolt_numba.types import BF16, F16, F32, TensorType, dtype_name

THREADS = 256


@functools.cache
def rotate_kernel(dtype: str) -> CudaKernel:
    """Heads ``x [n, outer, inner, d]``; the position is the outer index if ``is_outer``, else the inner one.

    positions: i64 rows of the tables, 0…rows - 1, or 0: the row is the position.  image: positions (or rows)
    from one of the n to the next, 0 where all share them.  neighbours: elements 2 i and 2 i + 1 are a pair, else
    elements i and i + half.
    """
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype]

    def extents(a: Any) -> dict[str, Reach]:
        places = (a.n - 1) * a.image + (a.outer if a.is_outer else a.inner)
        count = size * a.n * a.outer * a.inner * a.d
        table = size * a.half * (places if a.positions is None else a.rows)
        return {"x": count, "y": count, "cos": table, "sin": table, "positions": 8 * places}

    @cuda_kernel(
        threads=THREADS, blocks=lambda a: ceil_div(a.n * a.outer * a.inner * (a.d - a.half), THREADS), extents=extents,
        x=PTR, y=PTR, cos=PTR, sin=PTR, positions=PTR_OR_0, fault=FAULT_AT, n=I64, outer=I64, inner=I64, d=I64,
        half=I64, is_outer=I64, neighbours=I64, rows=I64, image=I64,
    )  # fmt: skip
    def rotate(x, y, cos, sin, positions, fault, n, outer, inner, d, half, is_outer, neighbours, rows, image):
        index = np.uint32(cuda.blockIdx.x) * np.uint32(THREADS) + np.uint32(cuda.threadIdx.x)
        item = np.uint32(index // np.uint32(d - half))
        i = np.int64(index) - np.int64(item) * (d - half)
        if np.int64(item) >= n * outer * inner:
            return
        line = np.uint32(item // np.uint32(inner))
        batch = np.uint32(line // np.uint32(outer))
        at = np.int64(line - batch * np.uint32(outer)) if is_outer != 0 else np.int64(item - line * np.uint32(inner))
        place = np.int64(batch) * image + at
        row, begin = place, np.int64(item) * d
        if i >= half:
            store(y + size * (begin + half + i), load(x + size * (begin + half + i)))
            return
        if positions != 0:
            row = load_i64(positions + 8 * place)
            if row < 0 or row >= rows:
                report(fault, place, row, 0, rows - 1)
                return
        one, two = (begin + 2 * i, begin + 2 * i + 1) if neighbours != 0 else (begin + i, begin + half + i)
        a, b = load(x + size * one), load(x + size * two)
        c, s = load(cos + size * (row * half + i)), load(sin + size * (row * half + i))
        store(y + size * one, a * c - b * s)
        store(y + size * two, a * s + b * c)

    return rotate


def _accepts(op: RotaryEmbedding, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or not t.size) for t in ins):
        return False
    x = ins[0]
    return x is not None and x.dtype in (F32, F16, BF16) and x.size < 2**31


@kernel(RotaryEmbedding, device="cuda", accepts=_accepts, inplace=(0,))
def rotary_embedding(op: RotaryEmbedding, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One read and one write."""
    x, cos = ins[0], ins[1]
    assert x is not None, "accepts() has tested this"
    assert cos is not None, "accepts() has tested this"
    n, outer, inner, d = x.dims
    positions, is_outer = ins[3] if len(ins) > 3 else None, op.layout == "SHD"
    shared = (cos if positions is None else positions).dims[0] == 1
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "cos": In(1), "sin": In(2)}
    args |= {"fault": None if positions is None else Fault(3)}
    args |= {"positions": None if positions is None else In(3), "n": n, "outer": outer, "inner": inner, "d": d}
    args |= {"half": cos.dims[-1], "is_outer": int(is_outer), "neighbours": int(op.interleaved)}
    args |= {"rows": cos.size // max(cos.dims[-1], 1), "image": 0 if shared else outer if is_outer else inner}
    return [Step(rotate_kernel(dtype_name(x.dtype)), args)]


def samples() -> list[CudaKernel]:
    """Kernels for the table of resources."""
    return [rotate_kernel("f32"), rotate_kernel("f16")]
