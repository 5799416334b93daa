"""Positions of extremes along one axis.

Elements are compared as integers in the same order, of which NaN is the most extreme and zeros are equal.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.types import F64, U64, AnyDType, TensorType
from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, f32_bits, f64_bits, store_i64
from bolt_numba.kernels.cuda.language.warp import block_max_i64, max_of, warp_reduction
from bolt_numba.kernels.cuda.reductions.fold import SHORT_ROW, WARP_ROW, kind_of
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.registry import Argument, In, Step

MIN_I64, MAX_I64 = np.int64(-(2**63)), np.int64(2**63 - 1)


@inline
def order_f32(v):
    """An i64 in the order of f32; NaN is the greatest."""
    bits = np.int64(np.int32(f32_bits(v + np.float32(0))))
    return MAX_I64 if v != v else bits if bits >= 0 else -(bits & 0x7FFFFFFF)


@inline
def order_f64(v):
    bits = f64_bits(v + 0.0)
    return MAX_I64 if v != v else bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


@inline
def order_u64(v):
    return np.int64(v) ^ MIN_I64


@inline
def order_integer(v):
    return np.int64(v)


@functools.cache
def ordered(dtype: AnyDType, least: bool) -> Inline:
    """Element to an i64, the greatest of which is wanted."""
    order = order_f64 if dtype == F64 else order_u64 if dtype == U64 else order_integer
    order = order if dtype.kind in "iu" or dtype == F64 else order_f32
    if not least:
        return order
    if dtype.kind in "iu":
        return inline(lambda v: ~order(v))
    return inline(lambda v: MAX_I64 if v != v else -order(v))


_FIELDS: dict[str, Any] = {"x": PTR, "y": PTR, **dict.fromkeys(("outer", "n", "inner", "last"), I64)}
"""Axis 1 of ``[outer, n, inner]``; last: whether of equals the last one counts."""


def _reach(unit: int, a: Numbers) -> dict[str, Any]:
    return {"x": unit * a.outer * a.n * a.inner, "y": 8 * a.outer * a.inner}


@functools.cache
def arg_rows(dtype: AnyDType, least: bool, lanes: int) -> CudaKernel:
    """A warp or a block for each row, which it reads again to find the extreme."""
    unit, rows, order = dtype.itemsize, WIDE_BLOCK // lanes, ordered(dtype, least)
    load = getattr(lang, f"load_{kind_of(dtype)}")
    greatest = warp_reduction(max_of) if lanes == 32 else block_max_i64

    def body(x, y, outer, n, inner, last):
        thread = np.uint32(cuda.threadIdx.x)
        row = np.int64(np.uint32(cuda.blockIdx.x) * np.uint32(rows) + thread // np.uint32(lanes))
        lane = np.int64(thread % np.uint32(lanes))
        if row < outer:
            at, best = x + row * n * unit, MIN_I64
            for i in range(lane, n, lanes):
                best = max_of(best, order(load(at + i * unit)))
            best, place = greatest(best), MIN_I64
            for i in range(lane, n, lanes):
                if order(load(at + i * unit)) == best:
                    place = max_of(place, i if last else -i)
            place = greatest(place)
            if lane == 0:
                store_i64(y + row * 8, place if last else -place)

    body.__name__ = f"arg{'min' if least else 'max'}_rows{lanes}_{kind_of(dtype)}"
    return cuda_kernel(
        threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.outer, rows), extents=functools.partial(_reach, unit), **_FIELDS
    )(body)


@elements(
    over={"o": "outer", "j": "inner"}, extents=lambda a, dtype, least: _reach(dtype.itemsize, a), x=PTR, y=PTR, n=I64,
    last=I64,
)  # fmt: skip
def arg_columns(on: DeviceParts, dtype: AnyDType, least: bool):
    """A thread for each line: x [outer, n, inner] -> y i64 [outer, inner]."""
    unit, order, load = dtype.itemsize, ordered(dtype, least), on.load(kind_of(dtype))

    @inline
    def element(o, j, t, x, y, n, inner, last):
        at = x + (o * n * inner + j) * unit
        best, place = order(load(at)), np.int64(0)
        for i in range(1, n):
            at += inner * unit
            v = order(load(at))
            if v > best or (last and v == best):
                best, place = v, np.int64(i)
        store_i64(y + 8 * t, place)

    return element


def step(x: TensorType, form: tuple[int, int, int], y: Argument, least: bool, last: bool, threads: int) -> Step:
    """Positions of the first or the ``last`` extreme along axis 1 of In(0)."""
    outer, n, inner = form
    args: dict[str, Argument] = {"x": In(0), "y": y, "outer": outer, "n": n, "inner": inner, "last": int(last)}
    if inner == 1 and n > SHORT_ROW:
        return Step(arg_rows(x.dtype, least, 32 if n <= WARP_ROW else WIDE_BLOCK), args)
    return PARTS.step(arg_columns, (x.dtype, least), args)
