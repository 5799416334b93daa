"""Tables that follow from sizes alone, filled in when new ones come: what makers of kernels make by NumPy for a plan.

Each writes from ``to`` on; its other fields are integers.  `base.selects.filled` says which table is filled by which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    LANES,
    PTR,
    ceil_div,
    f32_of_bits,
    inline,
    iota,
    native,
    splat,
    store_i32,
    to_f32,
    view,
    vstore_n,
)
from bolt_numba.kernels.geometry.tables import TAP_AXES

_NAMES = ("size", "out", "kernel", "stride", "dilation", "pad")
TAPS: dict[str, Any] = {f"{name}{axis}": I64 for name in _NAMES for axis in range(TAP_AXES)}
"""Fields of both tables of taps, axis by axis."""


@inline
def count_up(to, begin, end, first, step):  # type: ignore[no-untyped-def]
    """Write the i32 ``first + (i - begin) * step`` to the places from ``begin`` to ``end``."""
    steps = iota() * np.int32(step)
    for i in range(begin, end, LANES):
        vstore_n(to + 4 * i, steps + np.int32(first + (i - begin) * step), end - i)


@native(to=PTR, **TAPS)
def fill_taps(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """i32 [taps][pixels]: input pixel of every tap of every output pixel, -1 outside."""
    at, width, stride, size = p.to, p.out3, p.stride3, p.size3
    for tap in range(p.kernel0 * p.kernel1 * p.kernel2 * p.kernel3):
        rest, k3 = tap // p.kernel3, tap % p.kernel3
        rest, k2 = rest // p.kernel2, rest % p.kernel2
        k0, k1 = rest // p.kernel1, rest % p.kernel1
        begin = k3 * p.dilation3 - p.pad3
        low = min(max(ceil_div(-begin, stride), 0), width)
        high = max(min(ceil_div(size - begin, stride), width), low)
        for line in range(p.out0 * p.out1 * p.out2):
            rest, o2 = line // p.out2, line % p.out2
            o0, o1 = rest // p.out1, rest % p.out1
            y0 = o0 * p.stride0 + k0 * p.dilation0 - p.pad0
            y1 = o1 * p.stride1 + k1 * p.dilation1 - p.pad1
            y2 = o2 * p.stride2 + k2 * p.dilation2 - p.pad2
            is_inside = (y0 >= 0) & (y0 < p.size0) & (y1 >= 0) & (y1 < p.size1) & (y2 >= 0) & (y2 < p.size2)
            first = ((y0 * p.size1 + y1) * p.size2 + y2) * size + begin
            left, right = (low, high) if is_inside else (width, width)
            count_up(at, 0, left, -1, 0)
            count_up(at, left, right, first + left * stride, stride)
            count_up(at, right, width, -1, 0)
            at += 4 * width


@native(to=PTR, **TAPS)
def fill_edges(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """i32 [pixels + 1]: how many output pixels before this one have a tap outside."""
    at, width, stride, count = p.to, p.out3, p.stride3, 0
    low = min(max(ceil_div(p.pad3, stride), 0), width)
    high = (p.size3 - 1 - (p.kernel3 - 1) * p.dilation3 + p.pad3) // stride + 1
    high = max(min(high, width), low)
    for line in range(p.out0 * p.out1 * p.out2):
        rest, o2 = line // p.out2, line % p.out2
        o0, o1 = rest // p.out1, rest % p.out1
        y0, y1, y2 = o0 * p.stride0 - p.pad0, o1 * p.stride1 - p.pad1, o2 * p.stride2 - p.pad2
        is_inside = (y0 >= 0) & (y0 + (p.kernel0 - 1) * p.dilation0 < p.size0)
        is_inside &= (y1 >= 0) & (y1 + (p.kernel1 - 1) * p.dilation1 < p.size1)
        is_inside &= (y2 >= 0) & (y2 + (p.kernel2 - 1) * p.dilation2 < p.size2)
        begin, end = (low, high) if is_inside else (width, width)
        count_up(at, 0, begin, count, 1)
        count += begin
        count_up(at, begin, end, count, 0)
        count_up(at, end, width, count, 1)
        count += width - end
        at += 4 * width
    store_i32(at, np.int32(count))


@native(to=PTR, out=I64, size=I64, kernel=I64, stride=I64, dilation=I64, before=I64, after=I64, counts=I64, step=I64)
def fill_windows(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """i64 [out][3] of a pool: where a window begins, ``step`` bytes an element; its taps inside; those that count.

    counts: whether taps in the padding do.
    """
    rows = view(p.to, (p.out, 3), np.int64)
    for i in range(p.out):
        first = i * p.stride - p.before
        skipped = min(max(-(first // p.dilation), 0), p.kernel)
        inside = max(min(max(-((first - p.size) // p.dilation), 0), p.kernel) - skipped, 0)
        counted = min(max(-((first - p.size - p.after) // p.dilation), 0), p.kernel)
        rows[i, 0] = (first + skipped * p.dilation) * p.step if inside > 0 else 0
        rows[i, 1] = inside
        rows[i, 2] = counted if p.counts != 0 else inside


@native(to=PTR, first=I64, step=I64, repeat=I64, count=I64, total=I64)
def fill_steps(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """i64 [total]: ``count`` numbers from ``first`` on, of which ``repeat`` are equal; then zeros."""
    numbers = view(p.to, p.total, np.int64)
    for i in range(p.count):
        numbers[i] = p.first + i // p.repeat * p.step
    for i in range(p.count, p.total):
        numbers[i] = 0


@native(to=PTR, first=I64, step=I64, count=I64)
def fill_counts(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """i32 [count]: ``first + i * step``."""
    count_up(p.to, 0, p.count, p.first, p.step)


@native(fastmath=frozenset(), to=PTR, first=I64, step=I64, count=I64)
def fill_reals(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """f32 [count]: ``first + i * step``, which are the bits of f32; rounded twice, as NumPy does."""
    first, step = f32_of_bits(splat(np.int32(p.first))), f32_of_bits(splat(np.int32(p.step)))
    for i in range(0, p.count, LANES):
        vstore_n(p.to + 4 * i, first + to_f32(iota() + np.int32(i)) * step, p.count - i)


FILLERS = {
    "taps": fill_taps, "edges": fill_edges, "windows": fill_windows, "steps": fill_steps, "counts": fill_counts,
    "reals": fill_reals,
}  # fmt: skip
"""By their names in `base.selects.filled`."""
