"""Bits of comparisons: a warp votes where channels are dense, else a thread makes a word."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language.lang import cuda, load_f32, store_u32
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.scalars import comparison
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.layers.products.binary import PACKS, WORD, BinaryPack, words_of

u32, i64 = np.uint32, np.int64
ALL = 0xFFFFFFFF

@functools.cache
def pack_rows(compare: str) -> CudaKernel:
    """x: [rows, channels] · bound: [channels], or [1] with ``bounds`` 1 · y: [rows, packs * words]."""
    packs = len(PACKS[compare])
    one, other = comparison(PACKS[compare][0], "not "), comparison(PACKS[compare][-1], "not ")

    def extents(a: Numbers) -> dict[str, int]:
        words = words_of(a.channels)
        return {"x": 4 * a.rows * a.channels, "bound": 4 * a.bounds, "y": 4 * a.rows * packs * words}

    @cuda_kernel(
        threads=BLOCK, blocks=lambda a: ceil_div(a.rows * words_of(a.channels) * WORD, BLOCK), extents=extents,
        x=PTR, bound=PTR, y=PTR, rows=I64, channels=I64, bounds=I64,
    )  # fmt: skip
    def pack_dense(x, bound, y, rows, channels, bounds):
        words = u32(u32(channels + 31) >> u32(5))
        i = i64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
        word = u32(i >> 5)
        row = u32(word // words)
        if row < u32(rows):
            channel = i64(u32(word - row * words)) * 32 + (i & 31)
            inside = channel < channels
            v = load_f32(x + 4 * (i64(row) * channels + min(channel, channels - 1)))
            b = load_f32(bound + 4 * min(channel, bounds - 1))
            made = u32(cuda.ballot_sync(ALL, inside and one(v, b)))
            to = y + 4 * (i64(row) * packs * i64(words) + (channel >> 5))
            if packs > 1:
                more = u32(cuda.ballot_sync(ALL, inside and other(v, b)))
                if i & 31 == 0:
                    store_u32(to + 4 * i64(words), more)
            if i & 31 == 0:
                store_u32(to, made)

    return pack_dense


def _planes(a: Numbers, compare: str) -> dict[str, Any]:
    return {
        "x": 4 * a.outer * a.channels * a.inner, "bound": 4 * a.bounds,
        "y": 4 * a.outer * len(PACKS[compare]) * a.words * a.inner,
    }  # fmt: skip


@elements(
    over={"block": "outer", "word": "words", "place": "inner"}, extents=_planes, x=PTR, bound=PTR, y=PTR, channels=I64,
    bounds=I64,
)  # fmt: skip
def pack_planes(on: DeviceParts, compare: str):
    """x: [outer, channels, inner] · bound: as in `pack_rows` · y: [outer, packs * words, inner]."""
    packs = len(PACKS[compare])
    one, other = comparison(PACKS[compare][0], "not "), comparison(PACKS[compare][-1], "not ")

    @inline
    def element(block, word, place, x, bound, y, words, inner, channels, bounds):
        made, more = u32(0), u32(0)
        for bit in range(min(channels - word * 32, 32)):
            channel = word * 32 + bit
            v = load_f32(x + 4 * ((block * channels + channel) * inner + place))
            b = load_f32(bound + 4 * min(channel, bounds - 1))
            made = u32(made | (u32(one(v, b)) << u32(bit)))
            more = u32(more | (u32(other(v, b)) << u32(bit)))
        to = y + 4 * ((block * packs * words + word) * inner + place)
        store_u32(to, made)
        if packs > 1:
            store_u32(to + 4 * words * inner, more)

    return element


def accepts(op: BinaryPack, ins: Types) -> bool:
    return all(t is not None and t.is_static and t.dtype == F32 and 0 < t.size < 1 << 31 for t in ins)


@kernel(BinaryPack, device="cuda", accepts=accepts)
def binary_pack(op: BinaryPack, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Along the last axis by votes, else by planes."""
    x, bound = ins[0], ins[1]
    axis = op.axis % len(x.dims)
    outer, inner = math.prod(x.dims[:axis]), math.prod(x.dims[axis + 1 :])
    args: dict[str, Argument] = {"x": In(0), "bound": In(1), "y": Out()}
    args |= {"channels": x.dims[axis], "bounds": bound.dims[0]}
    if inner == 1:
        return [Step(pack_rows(op.compare), args | {"rows": outer})]
    args |= {"outer": outer, "words": words_of(x.dims[axis]), "inner": inner}
    return [PARTS.step(pack_planes, (op.compare,), args)]
