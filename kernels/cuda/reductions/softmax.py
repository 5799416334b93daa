"""Softmax and LogSoftmax: rows in registers, longer rows and columns in two passes over running sums."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import dtype_name
from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, cuda_kernel, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elementwise.scalars import exp_short
from bolt_numba.kernels.cuda.language.lang import cuda, max_f32
from bolt_numba.kernels.cuda.reductions.fold import FLOATS
from bolt_numba.kernels.cuda.reductions.lines import LONGEST_ROW, Held, held, row_access
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.reduced import around_axis
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.reduce import LogSoftmax, Softmax
from bolt_numba.ops.dtypes import MAX_I32, MIN_F32
from bolt_numba.ops.layers.norm import LpNormalization
from bolt_numba.ops.registry import normalise_axis

ITEMS = {"f32": 4, "f16": 2, "bf16": 2}
_ROWS: dict[str, Any] = {"x": PTR, "y": PTR, "rows": I64, "n": I64}


@inline
def exp_whole(x):
    return math.exp(x)


def exponential(kind: str) -> Inline:
    """Of differences, as exact as results of a kind are."""
    return exp_whole if kind == "f32" else exp_short


def _reach(unit: int, a: Numbers) -> dict[str, int]:
    return {"x": unit * a.rows * a.n, "y": unit * a.rows * a.n}


@functools.cache
def _finisher(is_log: bool, exp: Any) -> tuple[Any, Any]:
    """``prepare(total)`` once a row, then ``finish(x - top, prepared)``."""
    if is_log:
        return inline(lambda total: math.log(total)), inline(lambda x, ready: x - ready)
    return inline(lambda total: np.float32(1) / total), inline(lambda x, ready: exp(x) * ready)


@functools.cache
def softmax_rows(is_log: bool, kind: str, row: Held) -> CudaKernel:
    """Rows that fit into registers."""
    unit, lanes, per, rows_of_block = ITEMS[kind], row.lanes, row.per, row.rows
    load_row, store_row = row_access(kind, unit, row)
    row_sum, row_max = row.sum, row.max
    exp = exponential(kind)
    prepare, finish = _finisher(is_log, exp)

    def body(x, y, rows, n):
        thread = np.uint32(cuda.threadIdx.x)
        at = np.int64(np.uint32(cuda.blockIdx.x) * np.uint32(rows_of_block) + thread // np.uint32(lanes))
        lane = np.int64(thread % np.uint32(lanes))
        if at < rows:
            v = cuda.local.array(per, np.float32)
            load_row(v, x + at * n * unit, n, lane, np.float32(-math.inf))
            top = MIN_F32
            for e in range(per):
                top = max_f32(top, v[e])
            top = row_max(top)
            total = np.float32(0)
            for e in range(per):
                v[e] = v[e] - top
                total += exp(v[e])
            ready = prepare(row_sum(total))
            for e in range(per):
                v[e] = finish(v[e], ready)
            store_row(v, y + at * n * unit, n, lane)

    body.__name__ = f"{'log_' if is_log else ''}softmax_rows_{kind}_{lanes}x{per}"
    return cuda_kernel(
        threads=row.threads, blocks=lambda a: row.blocks(a.rows), extents=functools.partial(_reach, unit), **_ROWS
    )(body)


@functools.cache
def softmax_long_rows(is_log: bool, kind: str, row: Held) -> CudaKernel:
    """A block for each row, which is read twice."""
    unit, lanes, per = ITEMS[kind], row.lanes, row.per
    load_row, store_row = row_access(kind, unit, row)
    row_sum, row_max = row.sum, row.max
    exp = exponential(kind)
    prepare, finish = _finisher(is_log, exp)

    def body(x, y, rows, n):
        lane = np.int64(cuda.threadIdx.x)
        start = np.int64(cuda.blockIdx.x) * n * unit
        v = cuda.local.array(per, np.float32)
        top, total, done = MIN_F32, np.float32(0), np.int64(0)
        while done < n:
            load_row(v, x + start + done * unit, n - done, lane, np.float32(-math.inf))
            new = top
            for e in range(per):
                new = max_f32(new, v[e])
            total *= exp(top - new)
            for e in range(per):
                total += exp(v[e] - new)
            top = new
            done += lanes * per
        most = row_max(top)
        ready = prepare(row_sum(total * exp(top - most)))
        done = np.int64(0)
        while done < n:
            load_row(v, x + start + done * unit, n - done, lane, np.float32(0))
            for e in range(per):
                v[e] = finish(v[e] - most, ready)
            store_row(v, y + start + done * unit, n - done, lane)
            done += lanes * per

    body.__name__ = f"{'log_' if is_log else ''}softmax_long_rows_{kind}_{per}"
    return cuda_kernel(threads=lanes, blocks=lambda a: a.rows, extents=functools.partial(_reach, unit), **_ROWS)(body)


def _lines(a: Numbers, is_log: bool, kind: str) -> dict[str, Any]:
    return dict.fromkeys(("x", "y"), ITEMS[kind] * a.outer * a.n * a.inner)


@elements(over={"o": "outer", "j": "inner"}, extents=_lines, x=PTR, y=PTR, n=I64)
def softmax_columns(on: DeviceParts, is_log: bool, kind: str):
    """A thread for each line across rows: axis 1 of ``[outer, n, inner]``."""
    unit, load, store, exp = ITEMS[kind], on.load(kind), on.store(kind), exponential(kind)
    prepare, finish = _finisher(is_log, exp)

    @inline
    def element(o, j, x, y, n, inner):
        start = (o * n * inner + j) * unit
        top, total, at = MIN_F32, np.float32(0), x + start
        for _ in range(n):
            v = load(at)
            new = max_f32(top, v)
            top, total = new, total * exp(top - new) + exp(v - new)
            at += inner * unit
        ready, at, to = prepare(total), x + start, y + start
        for _ in range(n):
            store(to, finish(load(at) - top, ready))
            at += inner * unit
            to += inner * unit

    return element


def axis_form(op: LogSoftmax | LpNormalization | Softmax, ins: Types) -> tuple[int, int, int] | None:
    """``[outer, n, inner]`` for an operator with ``axis`` on a static float that is not empty."""
    x = ins[0]
    if not x.is_static or x.dtype not in FLOATS or not 0 < x.size <= MAX_I32:
        return None
    return around_axis(x.dims, normalise_axis(op, op.axis, len(x.dims))) if x.dims else (1, 1, 1)


def _has_form(op: Softmax | LogSoftmax, ins: Types) -> bool:
    return axis_form(op, ins) is not None


@kernel(Softmax, LogSoftmax, device="cuda", accepts=_has_form, inplace=(0,))
def softmax(op: Softmax | LogSoftmax, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rows for the last axis, columns for the others; each element is written after its last read."""
    (outer, n, inner), is_log, kind = tested(axis_form(op, ins)), isinstance(op, LogSoftmax), dtype_name(outs[0].dtype)
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "n": n}
    if inner == 1:
        make = softmax_rows if n <= LONGEST_ROW else softmax_long_rows
        return [Step(make(is_log, kind, held(n, ITEMS[kind])), args | {"rows": outer})]
    return [PARTS.step(softmax_columns, (is_log, kind), args | {"outer": outer, "inner": inner})]
