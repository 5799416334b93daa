"""Running sums and products: a block for each row, which it takes in parts; a thread for each line across rows."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, AnyDType, dtype_name
from bolt_numba.base.types import I64 as LONG
from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, cuda_kernel, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda
from bolt_numba.kernels.cuda.language.warp import ALL
from bolt_numba.kernels.cuda.reductions.fold import SHORT_ROW, function, kind_of, total_of
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.registry import Argument, In, Out, Step
from bolt_numba.ops.arrays.reduce import CumProd, CumSum

_NUMBERS: dict[AnyDType, Any] = {F32: np.float32, F64: np.float64, LONG: np.int64}
_FIELDS: dict[str, Any] = {
    "x": PTR, "y": PTR,
    **dict.fromkeys(("outer", "n", "inner", "exclusive", "first", "step"), I64),
}  # fmt: skip
"""Along axis 1 of ``[outer, n, inner]``, from index ``first`` on by ``step``."""


def _reach(unit: int, a: Numbers) -> dict[str, Any]:
    return dict.fromkeys(("x", "y"), unit * a.outer * a.n * a.inner)


def _parts(dtype: AnyDType, is_sum: bool) -> tuple[Any, Any, Any, Any, Any]:
    """Load, store, join, how a total becomes a register of the result, and what changes nothing."""
    kind, total = kind_of(dtype), total_of(dtype)
    join = function("join", "a, b", "a + b" if is_sum else "a * b")
    result = function("result", "total", f"{kind}(total)" if dtype.kind in "iu" else "total")
    return getattr(lang, f"load_{kind}"), getattr(lang, f"store_{kind}"), join, result, _NUMBERS[total](not is_sum)


@functools.cache
def running_rows(dtype: AnyDType, is_sum: bool) -> CudaKernel:
    unit, number, warps = dtype.itemsize, _NUMBERS[total_of(dtype)], WIDE_BLOCK // 32
    load, store, join, result, neutral = _parts(dtype, is_sum)

    def body(x, y, outer, n, inner, exclusive, first, step):
        ends = cuda.shared.array(warps, number)
        thread, row = np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.x) * n
        lane, warp = np.int32(thread & 31), np.int32(thread >> 5)
        carried, start = neutral, np.int64(0)
        while start < n:
            i = start + thread
            at = (row + first + i * step) * unit
            own = number(load(x + at)) if i < n else neutral
            total = own
            for distance in (1, 2, 4, 8, 16):
                below = cuda.shfl_up_sync(ALL, total, distance)
                if lane >= distance:
                    total = join(below, total)
            before = cuda.shfl_up_sync(ALL, total, 1)
            if lane == 31:
                ends[warp] = total
            cuda.syncthreads()
            offset, whole = carried, carried
            for k in range(warps):
                if k == warp:
                    offset = whole
                whole = join(whole, ends[k])
            if i < n:
                ahead = join(offset, before) if lane > 0 else offset
                store(y + at, result(ahead if exclusive else join(offset, total)))
            carried = whole
            start += WIDE_BLOCK
            cuda.syncthreads()

    body.__name__ = f"running_{'sum' if is_sum else 'product'}_rows_{dtype_name(dtype)}"
    reach = functools.partial(_reach, unit)
    return cuda_kernel(threads=WIDE_BLOCK, blocks=lambda a: a.outer, extents=reach, **_FIELDS)(body)


@elements(
    over={"o": "outer", "j": "inner"}, extents=lambda a, dtype, is_sum: _reach(dtype.itemsize, a), x=PTR, y=PTR, n=I64,
    exclusive=I64, first=I64, step=I64,
)  # fmt: skip
def running_columns(on: DeviceParts, dtype: AnyDType, is_sum: bool):
    """A thread for each line: x [outer, n, inner] -> y, alike."""
    unit, number = dtype.itemsize, _NUMBERS[total_of(dtype)]
    load, store, join, result, neutral = _parts(dtype, is_sum)

    @inline
    def element(o, j, x, y, n, inner, exclusive, first, step):
        at, total = ((o * n + first) * inner + j) * unit, neutral
        for _ in range(n):
            before = total
            total = join(total, number(load(x + at)))
            store(y + at, result(before if exclusive else total))
            at += step * inner * unit

    return element


def step(op: CumSum | CumProd, dtype: AnyDType, form: tuple[int, int, int], threads: int) -> Step:
    """Sums and products up to each element; halves in f32, integers in i64."""
    outer, n, inner = form
    is_row = inner == 1 and n > SHORT_ROW
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "outer": outer, "n": n, "inner": inner}
    args |= {"exclusive": int(op.exclusive), "first": n - 1 if op.reverse else 0, "step": -1 if op.reverse else 1}
    settings = dtype, isinstance(op, CumSum)
    return Step(running_rows(*settings), args) if is_row else PARTS.step(running_columns, settings, args)
