"""The logarithm of a sum of exponentials along axes, and lines divided by their norm."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, dtype_name
from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language.lang import cuda, max_f32, min_f32
from bolt_numba.kernels.cuda.language.warp import block_max, block_sum, warp_max, warp_sum
from bolt_numba.kernels.cuda.reductions.fold import FLOATS, SHORT_ROW, WARP_ROW, is_reduced
from bolt_numba.kernels.cuda.reductions.softmax import axis_form
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.reduced import passes, reduced_axes
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.reduce import ReduceLogSumExp
from bolt_numba.ops.dtypes import MAX_F32, MIN_F32
from bolt_numba.ops.layers.norm import LpNormalization

ITEMS = {"f32": 4, "f16": 2, "bf16": 2}


@inline
def taken_in(top, total, x):
    """Running maximum and sum of exponentials less it, with one number more; the maximum stays finite."""
    new = min_f32(max_f32(top, x), MAX_F32)
    return new, total * math.exp(top - new) + math.exp(x - new)


_FIELDS: dict[str, Any] = {"x": PTR, "y": PTR, **dict.fromkeys(("outer", "n", "inner"), I64)}
"""Axis 1 of ``[outer, n, inner]``."""


def _folded(a: Numbers, source: str, result: str) -> dict[str, Any]:
    return {"x": ITEMS[source] * a.outer * a.n * a.inner, "y": ITEMS[result] * a.outer * a.inner}


@functools.cache
def log_sum_exp_rows(source: str, result: str, lanes: int) -> CudaKernel:
    """A warp or a block for each row."""
    unit, out, rows = ITEMS[source], ITEMS[result], WIDE_BLOCK // lanes
    load, store = PARTS.load(source), PARTS.store(result)
    row_sum, row_max = (warp_sum, warp_max) if lanes == 32 else (block_sum, block_max)

    def body(x, y, outer, n, inner):
        thread = np.uint32(cuda.threadIdx.x)
        row = np.int64(np.uint32(cuda.blockIdx.x) * np.uint32(rows) + thread // np.uint32(lanes))
        lane = np.int64(thread % np.uint32(lanes))
        if row < outer:
            top, total = MIN_F32, np.float32(0)
            for i in range(lane, n, lanes):
                top, total = taken_in(top, total, load(x + (row * n + i) * unit))
            most = row_max(top)
            total = row_sum(total * math.exp(top - most))
            if lane == 0:
                store(y + row * out, math.log(total) + most)

    body.__name__ = f"log_sum_exp_rows{lanes}_{source}_{result}"
    return cuda_kernel(
        threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.outer, rows), extents=lambda a: _folded(a, source, result),
        **_FIELDS,
    )(body)  # fmt: skip


@elements(over={"o": "outer", "j": "inner"}, extents=_folded, x=PTR, y=PTR, n=I64)
def log_sum_exp_columns(on: DeviceParts, source: str, result: str):
    """A thread for each line: x [outer, n, inner] -> y [outer, inner]."""
    unit, out, load, store = ITEMS[source], ITEMS[result], on.load(source), on.store(result)

    @inline
    def element(o, j, t, x, y, n, inner):
        at, top, total = x + (o * n * inner + j) * unit, MIN_F32, np.float32(0)
        for _ in range(n):
            top, total = taken_in(top, total, load(at))
            at += inner * unit
        store(y + t * out, math.log(total) + top)

    return element


def _is_float(op: ReduceLogSumExp, ins: Types) -> bool:
    return is_reduced(op, ins) and ins[0].dtype in FLOATS


@kernel(ReduceLogSumExp, device="cuda", accepts=_is_float)
def log_sum_exp(op: ReduceLogSumExp, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """A pass for each group of reduced axes: the function of its own results is that of all."""
    axes, x = tested(reduced_axes(op, ins)), ins[0]
    forms, source, steps = passes(x.dims, axes), dtype_name(x.dtype), list[Step]()
    at: Argument = In(0)
    for i, (outer, n, inner) in enumerate(forms):
        final = i == len(forms) - 1
        target: Argument = Out(0) if final else Scratch(F32.itemsize * outer * inner)
        result = dtype_name(x.dtype) if final else "f32"
        args: dict[str, Argument] = {"x": at, "y": target, "outer": outer, "n": n, "inner": inner}
        if inner == 1 and n > SHORT_ROW:
            steps.append(Step(log_sum_exp_rows(source, result, 32 if n <= WARP_ROW else WIDE_BLOCK), args))
        else:
            steps.append(PARTS.step(log_sum_exp_columns, (source, result), args))
        at, source = target, "f32"
    return steps


@functools.cache
def _norm_of(p: int) -> tuple[Any, Any]:
    """What an element adds to a sum, and the sum's norm."""
    if p == 1:
        return inline(lambda v: abs(v)), inline(lambda total: total)
    return inline(lambda v: v * v), inline(lambda total: math.sqrt(total))


@inline
def over(v, norm):
    return np.float32(0) if norm == np.float32(0) else v / norm


@functools.cache
def lp_rows(p: int, kind: str, lanes: int) -> CudaKernel:
    """Rows over their norm."""
    unit, rows, (part, root) = ITEMS[kind], WIDE_BLOCK // lanes, _norm_of(p)
    load, store = PARTS.load(kind), PARTS.store(kind)
    row_sum = warp_sum if lanes == 32 else block_sum

    def body(x, y, outer, n, inner):
        thread = np.uint32(cuda.threadIdx.x)
        row = np.int64(np.uint32(cuda.blockIdx.x) * np.uint32(rows) + thread // np.uint32(lanes))
        lane = np.int64(thread % np.uint32(lanes))
        if row < outer:
            total, at = np.float32(0), row * n
            for i in range(lane, n, lanes):
                total += part(load(x + (at + i) * unit))
            norm = root(row_sum(total))
            for i in range(lane, n, lanes):
                store(y + (at + i) * unit, over(load(x + (at + i) * unit), norm))

    body.__name__ = f"l{p}_rows{lanes}_{kind}"
    return cuda_kernel(
        threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.outer, rows), extents=lambda a: _whole(a, p, kind), **_FIELDS
    )(body)


def _whole(a: Numbers, p: int, kind: str) -> dict[str, Any]:
    return dict.fromkeys(("x", "y"), ITEMS[kind] * a.outer * a.n * a.inner)


@elements(over={"o": "outer", "j": "inner"}, extents=_whole, x=PTR, y=PTR, n=I64)
def lp_columns(on: DeviceParts, p: int, kind: str):
    """A thread for each line: x [outer, n, inner] -> y, alike."""
    unit, (part, root), load, store = ITEMS[kind], _norm_of(p), on.load(kind), on.store(kind)

    @inline
    def element(o, j, x, y, n, inner):
        start, total = (o * n * inner + j) * unit, np.float32(0)
        for i in range(n):
            total += part(load(x + start + i * inner * unit))
        norm = root(total)
        for i in range(n):
            at = start + i * inner * unit
            store(y + at, over(load(x + at), norm))

    return element


@kernel(LpNormalization, device="cuda", accepts=lambda op, ins: axis_form(op, ins) is not None, inplace=(0,))
def lp_normalisation(op: LpNormalization, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Two passes over rows or columns."""
    (outer, n, inner), kind = tested(axis_form(op, ins)), dtype_name(outs[0].dtype)
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "outer": outer, "n": n, "inner": inner}
    if inner == 1 and n > SHORT_ROW:
        return [Step(lp_rows(op.p, kind, 32 if n <= WARP_ROW else WIDE_BLOCK), args)]
    return [PARTS.step(lp_columns, (op.p, kind), args)]
