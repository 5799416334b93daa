"""MaxPool of integers and f64, and with the places of the maxima, channels last: scalar loops over the channels."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, AnyDType
from bolt_numba.kernels.cpu.language.lang import load_i64, split, view
from bolt_numba.kernels.cpu.spatial.pool import FIELDS, PARALLEL_LOADS, WINDOW, window_args, windows_reach
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, Out, Outs, Step, Types, kernel
from bolt_numba.ops.dtypes import lowest
from bolt_numba.ops.layers.pool import MaxPool

_FIELDS = FIELDS | {"places": PTR} | dict.fromkeys(("plane", "pd", "ph", "pw", "bd", "bh", "bw"), I64)


@inline
def start_row(y, where, c, low, indices):
    for k in range(c):
        y[k] = low
        if indices:
            where[k] = -1


@inline
def join_row(x, y, where, c, place, indices):
    """One tap of all channels; the first of equals is kept, and the first NaN."""
    for k in range(c):
        if indices:
            better = x[k] > y[k] or where[k] < 0 or (x[k] != x[k] and y[k] == y[k])
            y[k] = x[k] if better else y[k]
            where[k] = place if better else where[k]
        else:
            y[k] = max(x[k], y[k])


@cache
def max_pool_plain(dtype: AnyDType, indices: bool) -> Native:
    """Kernel with the arguments of `pool.window_args`.

    places: i64 like y, or 0.  pd, ph, pw: what one element along an axis adds to a place; bd, bh, bw: to an address;
    plane: elements of one channel.
    """
    unit, scalar = dtype.itemsize, dtype.type
    low = lowest(dtype)

    def reach(a: Numbers) -> dict[str, Reach]:
        return {**windows_reach(a, unit), "places": 8 * a.c * a.rows * a.ow if indices else 0}

    def body(p: Any, tid: int, nthreads: int) -> None:
        c = p.c
        lo, hi = split(p.rows * p.ow, tid, nthreads)
        for at in range(lo, hi):
            row = at // p.ow
            plane = row // p.oh
            image = plane // p.od
            d, h = p.depths + WINDOW * (plane - image * p.od), p.heights + WINDOW * (row - plane * p.oh)
            w = p.widths + WINDOW * (at - row * p.ow)
            y = view(p.y + unit * p.pitch * at, c, scalar)
            where = view(p.places + 8 * c * at, c, np.int64)
            start_row(y, where, c, low, indices)
            for u in range(load_i64(d + 8)):
                for v in range(load_i64(h + 8)):
                    for t in range(load_i64(w + 8)):
                        depth, height = load_i64(d) + u * p.far, load_i64(h) + v * p.down
                        width = load_i64(w) + t * p.right
                        place = depth // p.bd * p.pd + height // p.bh * p.ph + width // p.bw * p.pw
                        x = view(p.x + image * p.image + depth + height + width, c, scalar)
                        join_row(x, y, where, c, place, indices)
            if indices:
                for k in range(c):
                    where[k] = max(where[k], 0) + (image * c + k) * p.plane

    body.__name__ = f"max_pool_{dtype.name}{'_places' if indices else ''}"
    return native(fastmath=set(), extents=reach, **_FIELDS)(body)


def _accepts(op: MaxPool, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or op.layout != "NHWC" or len(op.kernel_shape) > 3:
        return False
    return x.dtype.kind in "iu" or (op.indices and x.dtype in (F32, F64))


@kernel(MaxPool, accepts=_accepts)
def max_pool_any(op: MaxPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Channels last, 1 to 3 spatial axes: integers, and any number with indices."""
    x = ins[0]
    if not outs[0].size:
        return []
    args: dict[str, Argument] = window_args(op, x, outs[0])
    _, *sizes, c = x.dims
    ones = [1] * (3 - len(sizes))
    each = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    steps = each if op.storage_order == 0 else [math.prod(sizes[:i]) for i in range(len(sizes))]
    nbytes = [c * x.dtype.itemsize * e for e in each]
    if len(sizes) == 1:
        steps, nbytes = [0, *steps, 0], [1, *nbytes, 1]
    else:
        steps, nbytes = [0] * len(ones) + steps, ones + nbytes
    args |= dict(zip(("pd", "ph", "pw", "bd", "bh", "bw"), (*steps, *nbytes), strict=True))
    args |= {"places": Out(1) if op.indices else None, "plane": math.prod(sizes)}
    parallel = outs[0].size * math.prod(op.kernel_shape) >= PARALLEL_LOADS
    return [Step(max_pool_plain(x.dtype, op.indices), args, parallel)]
