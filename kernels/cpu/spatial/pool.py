"""MaxPool, AveragePool and LpPool over channels-last f32: vectors of channels, windows cut at the borders.

One kernel for 1 to 3 spatial axes; missing ones have length 1.  Where a window starts and how many of its taps lie
inside the input comes from small tables per axis, so strides, dilations, pads and ceil mode cost nothing.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.selects import filled, is_filled
from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    bits_of,
    f32_of_bits,
    fma,
    load_i64,
    select,
    splat,
    split,
    vabs,
    vload,
    vload_n,
    vmax,
    vsqrt,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.language.vmath import vpow
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Step, Types, kernel
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool, Pool

PARALLEL_LOADS = 8 * PAYS_ELEMENTS
"""Input elements from which a second thread pays; they are read in whole vectors."""
MINUS_INF = float("-inf")
MAX_POWER = 8
"""Of LpPool: a kernel is compiled for each, by multiplications."""
WINDOW = 24
"""Bytes of a table row: offset of the first tap inside, taps inside, taps that count for the mean."""


@inline
def start_max(count: int) -> Any:
    return splat(np.float32(MINUS_INF))


@inline
def join_max(a: Any, odd: Any, b: Any) -> Any:
    """The greater, the first of equals; ``odd`` has all bits of lanes that met a NaN, which `vmax` passes over."""
    return vmax(b, a), select(b != b, splat(np.int32(-1)), odd)


@inline
def join3_max(a: Any, odd: Any, x: Any, y: Any, z: Any) -> Any:
    """Three at a time: one comparison looks at two of them."""
    odd = select((x != x) | (y != y), splat(np.int32(-1)), odd)
    return vmax(z, vmax(y, vmax(x, a))), select(z != z, splat(np.int32(-1)), odd)


@inline
def finish_max(a: Any, odd: Any, count: int) -> Any:
    return f32_of_bits(bits_of(a) | odd)


@inline
def start_sum(count: int) -> Any:
    return splat(np.float32(0))


@inline
def join_mean(a: Any, odd: Any, b: Any) -> Any:
    return a + b, odd


@inline
def finish_mean(a: Any, odd: Any, count: int) -> Any:
    return a / splat(np.float32(count))


@inline
def join_l1(a: Any, odd: Any, b: Any) -> Any:
    return a + vabs(b), odd


@inline
def finish_l1(a: Any, odd: Any, count: int) -> Any:
    return a


@inline
def join_l2(a: Any, odd: Any, b: Any) -> Any:
    return fma(b, b, a), odd


@inline
def finish_l2(a: Any, odd: Any, count: int) -> Any:
    return vsqrt(a)


def _three(join: Any) -> Inline:
    """Helper that joins three taps, one after the other."""

    @inline
    def join3(a: Any, odd: Any, x: Any, y: Any, z: Any) -> Any:
        a, odd = join(a, odd, x)
        a, odd = join(a, odd, y)
        return join(a, odd, z)

    return join3


@inline
def load(tap: int, n: int) -> Any:
    return vload(tap) if n == LANES else vload_n(tap, n)


def _windows(start: Any, join: Any, join3: Any, finish: Any) -> Inline:
    """Helper that reduces one window over four vectors of channels.

    Three taps of a row are joined at a time: most windows have three, and loops that LLVM unrolls go one by one there.
    """

    @inline
    def wide(x: int, y: int, nd: int, nh: int, nw: int, far: int, down: int, right: int, count: int) -> None:
        a0, a1, a2, a3 = start(count), start(count), start(count), start(count)
        o0 = o1 = o2 = o3 = splat(np.int32(0))
        for u in range(nd):
            for v in range(nh):
                tap, left = x + u * far + v * down, nw
                while left >= 3:
                    one, two = tap + right, tap + 2 * right
                    a0, o0 = join3(a0, o0, vload(tap), vload(one), vload(two))
                    a1, o1 = join3(a1, o1, vload(tap + BYTES), vload(one + BYTES), vload(two + BYTES))
                    tap, one, two = tap + 2 * BYTES, one + 2 * BYTES, two + 2 * BYTES
                    a2, o2 = join3(a2, o2, vload(tap), vload(one), vload(two))
                    a3, o3 = join3(a3, o3, vload(tap + BYTES), vload(one + BYTES), vload(two + BYTES))
                    tap, left = two - 2 * BYTES + right, left - 3
                while left > 0:
                    a0, o0 = join(a0, o0, vload(tap))
                    a1, o1 = join(a1, o1, vload(tap + BYTES))
                    a2, o2 = join(a2, o2, vload(tap + 2 * BYTES))
                    a3, o3 = join(a3, o3, vload(tap + 3 * BYTES))
                    tap, left = tap + right, left - 1
        vstore(y, finish(a0, o0, count))
        vstore(y + BYTES, finish(a1, o1, count))
        vstore(y + 2 * BYTES, finish(a2, o2, count))
        vstore(y + 3 * BYTES, finish(a3, o3, count))

    return wide


def _small_windows(start: Any, join: Any, join3: Any, finish: Any) -> tuple[Any, Any]:
    """The same over one vector and part of another, and over up to LANES channels."""

    @inline
    def two(x: int, y: int, nd: int, nh: int, nw: int, far: int, down: int, right: int, count: int, n: int) -> None:
        a, b, odd, more = start(count), start(count), splat(np.int32(0)), splat(np.int32(0))
        for u in range(nd):
            for v in range(nh):
                tap, left = x + u * far + v * down, nw
                while left >= 3:
                    one, last = tap + right, tap + 2 * right
                    a, odd = join3(a, odd, vload(tap), vload(one), vload(last))
                    b, more = join3(b, more, load(tap + BYTES, n), load(one + BYTES, n), load(last + BYTES, n))
                    tap, left = last + right, left - 3
                while left > 0:
                    a, odd = join(a, odd, vload(tap))
                    b, more = join(b, more, load(tap + BYTES, n))
                    tap, left = tap + right, left - 1
        vstore(y, finish(a, odd, count))
        if n == LANES:
            vstore(y + BYTES, finish(b, more, count))
        else:
            vstore_n(y + BYTES, finish(b, more, count), n)

    @inline
    def narrow(x: int, y: int, nd: int, nh: int, nw: int, far: int, down: int, right: int, count: int, n: int) -> None:
        a, odd = start(count), splat(np.int32(0))
        for u in range(nd):
            for v in range(nh):
                tap = x + u * far + v * down
                for i in range(nw):
                    a, odd = join(a, odd, load(tap + i * right, n))
        if n == LANES:
            vstore(y, finish(a, odd, count))
        else:
            vstore_n(y, finish(a, odd, count), n)

    return two, narrow


def _axis_reach(table: Any, count: int, tap: int) -> tuple[int, int, bool]:
    """First and last byte offset of the taps along an axis, or what they are within, and whether there are any."""
    return (table.least, table.greatest, True) if is_filled(table) else _reach_in(table, count, tap)


@pure
def _reach_in(table: Array, count: int, tap: int) -> tuple[int, int, bool]:
    start, taps = table[:count, 0], table[:count, 1]
    return int(start.min()), int((start + (taps - 1) * tap).max()), bool(taps.any())


def windows_reach(a: Numbers, unit: int) -> dict[str, Reach]:
    """Extents of kernels with the arguments of `window_args`, for elements of ``unit`` bytes."""
    tables: dict[str, Reach] = {"depths": WINDOW * a.od, "heights": WINDOW * a.oh, "widths": WINDOW * a.ow}
    if not a.rows * a.ow:
        return {"x": 0, "y": 0, **tables}
    d, h = _axis_reach(a.depths, a.od, a.far), _axis_reach(a.heights, a.oh, a.down)
    axes = (d, h, _axis_reach(a.widths, a.ow, a.right))
    images = -(-a.rows // (a.od * a.oh))
    last = (images - 1) * a.image + sum(end for _, end, _ in axes) + unit * a.c
    touched = all(some for _, _, some in axes)
    y = unit * ((a.rows * a.ow - 1) * a.pitch + a.c)
    return {"x": (sum(first for first, _, _ in axes), last) if touched else 0, "y": y, **tables}


FIELDS: dict[str, Any] = dict.fromkeys(("x", "y", "depths", "heights", "widths"), PTR) | dict.fromkeys(
    ("rows", "od", "oh", "ow", "c", "image", "far", "down", "right", "pitch"), I64
)
"""Of kernels of windows.  x: [n, d, h, w, c] · y: [positions] rows of c elements, ``pitch`` apart; depths, heights,
widths: tables (`WINDOW`); far, down, right: bytes from tap to tap along d, h and w; image: bytes of x[0]."""


@inline
def window_rows(p: Any, row: int) -> tuple[int, int, int]:
    """Of a row of results: where its windows begin but for their columns, and the rows of both tables."""
    plane = row // p.oh
    image = plane // p.od
    d, h = p.depths + WINDOW * (plane - image * p.od), p.heights + WINDOW * (row - plane * p.oh)
    return p.x + image * p.image + load_i64(d) + load_i64(h), d, h


def _pool(name: str, start: Any, join: Any, finish: Any, join3: Any = None) -> Native:
    """Kernel of one kind of pool of f32."""
    join3 = join3 or _three(join)
    wide, (two, narrow) = _windows(start, join, join3, finish), _small_windows(start, join, join3, finish)

    def body(p: Any, tid: int, nthreads: int) -> None:
        c, far, down, right = p.c, p.far, p.down, p.right
        at, hi = split(p.rows * p.ow, tid, nthreads)
        while at < hi:
            row = at // p.ow
            first = at - row * p.ow
            todo = min(p.ow - first, hi - at)
            base, d, h = window_rows(p, row)
            nd, nh = load_i64(d + 8), load_i64(h + 8)
            counted = load_i64(d + 16) * load_i64(h + 16)
            for i in range(first, first + todo):
                w = p.widths + WINDOW * i
                x, nw = base + load_i64(w), load_i64(w + 8)
                y = p.y + 4 * p.pitch * (row * p.ow + i)
                count = max(counted * load_i64(w + 16), 1)
                done = 0
                while done + 4 * LANES <= c:
                    wide(x + 4 * done, y + 4 * done, nd, nh, nw, far, down, right, count)
                    done += 4 * LANES
                while done + LANES < c:
                    two(x + 4 * done, y + 4 * done, nd, nh, nw, far, down, right, count, min(c - done - LANES, LANES))
                    done += 2 * LANES
                if done < c:
                    narrow(x + 4 * done, y + 4 * done, nd, nh, nw, far, down, right, count, c - done)
            at += todo

    body.__name__ = name
    return native(fastmath=None, extents=lambda a: windows_reach(a, 4), **FIELDS)(body)


max_pool_f32 = _pool("max_pool_f32", start_max, join_max, finish_max, join3_max)
average_pool_f32 = _pool("average_pool_f32", start_sum, join_mean, finish_mean)


@cache
def lp_pool_f32(power: int) -> Native:
    """Kernel of LpPool for one p."""
    if power == 1:
        return _pool("l1_pool_f32", start_sum, join_l1, finish_l1)
    if power == 2:
        return _pool("l2_pool_f32", start_sum, join_l2, finish_l2)
    root = 1.0 / power

    @inline
    def join(a: Any, odd: Any, b: Any) -> Any:
        v = vabs(b)
        made = v
        for _ in range(power - 1):
            made = made * v
        return a + made, odd

    @inline
    def finish(a: Any, odd: Any, count: int) -> Any:
        return vpow(a, splat(np.float32(root)))

    return _pool(f"l{power}_pool_f32", start_sum, join, finish)


def _table(size: int, out: int, kernel_size: int, stride: int, dilation: int, pads: tuple[int, int], all_count: bool,
           step: int) -> Any:  # fmt: skip
    """Rows (`WINDOW`) of one axis; ``step``: bytes from element to element."""
    args = {"out": out, "size": size, "kernel": kernel_size, "stride": stride, "dilation": dilation, "before": pads[0],
            "after": pads[1], "counts": int(all_count), "step": step}  # fmt: skip
    given = size, out, kernel_size, stride, dilation, pads, all_count, step
    return filled("windows", args, (out, 3), np.int64, (0, (size - 1) * step), (_windows_of, given))


def _windows_of(size: int, out: int, kernel_size: int, stride: int, dilation: int, pads: tuple[int, int],
                all_count: bool, step: int) -> Array:  # fmt: skip
    """The same by NumPy."""
    first = np.arange(out, dtype=np.int64) * stride - pads[0]
    skipped = np.minimum(np.maximum(-(first // dilation), 0), kernel_size)
    below = np.clip(-((first - size) // dilation), 0, kernel_size)  # taps before the end of the input
    inside = np.maximum(below - skipped, 0)
    counted = np.clip(-((first - size - pads[1]) // dilation), 0, kernel_size) if all_count else inside
    start = np.where(inside > 0, first + skipped * dilation, 0)
    return np.ascontiguousarray(np.stack([start * step, inside, counted], axis=1))


def _accepts(op: MaxPool | AveragePool, ins: Types) -> bool:
    x = ins[0]
    if x.dtype != F32 or op.layout != "NHWC" or len(op.kernel_shape) > 3:
        return False
    return not getattr(op, "indices", False)


def window_args(op: Pool, x: TensorType, out: TensorType) -> dict[str, Argument]:
    """Arguments of a kernel of windows: In(0) to Out(0), channels last, any dtype."""
    n, *sizes, c = x.dims
    unit = x.dtype.itemsize
    windows = op.windows.resolved(sizes)
    rank = len(sizes)
    all_count = getattr(op, "count_include_pad", False)
    steps = [unit * c * math.prod(sizes[i + 1 :]) for i in range(rank)]
    tables = [
        _table(sizes[i], out.dims[1 + i], windows.kernel[i], windows.strides[i], windows.dilations[i],
               (windows.pads[i], windows.pads[rank + i]), all_count, steps[i])
        for i in range(rank)
    ]  # fmt: skip
    taps = [d * s for d, s in zip(windows.dilations, steps, strict=True)]
    outs = list(out.dims[1:-1])
    single = np.array([[0, 1, 1]], dtype=np.int64)
    if rank == 1:  # rows are what threads share
        tables, taps, outs = [single, *tables, single], [0, *taps, 0], [1, *outs, 1]
    while len(tables) < 3:
        tables, taps, outs = [single, *tables], [0, *taps], [1, *outs]
    names = ("depths", "heights", "widths", "far", "down", "right")
    axes: dict[str, Argument] = dict(zip(names, (*tables, *taps), strict=True))
    axes |= {"od": outs[0], "oh": outs[1], "ow": outs[2], "rows": n * outs[0] * outs[1]}
    return axes | {"x": In(0), "y": Out(0), "c": c, "image": unit * c * math.prod(sizes), "pitch": Pitch(Out(0))}


def _step(op: Pool, program: Native, x: TensorType, out: TensorType) -> list[Step]:
    if not out.size:
        return []
    return [Step(program, window_args(op, x, out), out.size * math.prod(op.kernel_shape) >= PARALLEL_LOADS)]


@kernel(MaxPool, accepts=_accepts)
def max_pool(op: MaxPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Channels-last f32, 1 to 3 spatial axes, no indices."""
    x = ins[0]
    return _step(op, max_pool_f32, x, outs[0])


@kernel(AveragePool, accepts=_accepts)
def average_pool(op: AveragePool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Channels-last f32, 1 to 3 spatial axes."""
    x = ins[0]
    return _step(op, average_pool_f32, x, outs[0])


@kernel(LpPool, accepts=lambda op, ins: 1 <= op.p <= MAX_POWER and _accepts(op, ins))
def lp_pool(op: LpPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Channels-last f32, 1 to 3 spatial axes."""
    x = ins[0]
    return _step(op, lp_pool_f32(op.p), x, outs[0])
