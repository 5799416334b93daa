"""GridSample of f32: offsets and weights of a vector of points once, then every channel by gathers."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import TensorType
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    fma,
    load_f32,
    load_i32,
    load_i64,
    select,
    splat,
    split,
    store_f32,
    store_i32,
    vgather,
    vload,
    vload_i32,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.sampling import MODES, PADDINGS, grid_taps
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types
from bolt_numba.ops.layers.resize import GridSample

pixel_of, tap_of = grid_taps(PARTS)
_ONE = np.float32(1)


@inline
def axis_taps(given, size, align, taps, padding, index, weights):
    """Elements and weights of ``taps`` neighbours of a point along one axis."""
    at = pixel_of(given, size, align, taps, padding)
    for t in range(taps):
        element, w = tap_of(at, t, size, align, taps, padding)
        store_i32(index + 4 * t, np.int32(element))
        store_f32(weights + 4 * t, w)


def _sampled(a: Any) -> dict[str, Reach]:
    planes, points = a.images * a.channels, a.images * a.points
    return {
        "x": 4 * ((planes - 1) * a.plane + int(a.sizes[: a.rank].prod())) if planes * a.points else 0,
        "grid": 4 * a.rank * points,
        "y": 4 * planes * a.points,
        "sizes": 8 * a.rank,
        "room": (2 * BYTES * a.all_taps + 128) * a.threads,
    }


@native(
    fastmath=set(), extents=_sampled, x=PTR, grid=PTR, y=PTR, sizes=PTR, room=PTR, images=I64, channels=I64,
    points=I64, plane=I64, rank=I64, taps=I64, all_taps=I64, padding=I64, align=I64,
)  # fmt: skip
def grid_sample(p, tid, nthreads):
    """Sample x [images, channels, plane] at grid [images, points, rank] into y [images, channels, points].

    room: for each thread `LANES` offsets and weights of all taps, then those of the axes; sizes: i64, first axis first.
    """
    rank, taps, all_taps, points = p.rank, p.taps, p.all_taps, p.points
    blocks = (points + LANES - 1) // LANES
    index = p.room + tid * (2 * BYTES * all_taps + 128)
    weights = index + BYTES * all_taps
    own = weights + BYTES * all_taps
    lo, hi = split(p.images * blocks, tid, nthreads)
    for item in range(lo, hi):
        image = item // blocks
        first = (item - image * blocks) * LANES
        count = min(LANES, points - first)
        for lane in range(LANES):
            given = p.grid + 4 * rank * (image * points + first + min(lane, count - 1))
            for axis in range(rank):
                size, at = load_i64(p.sizes + 8 * axis), own + 32 * axis
                axis_taps(load_f32(given + 4 * (rank - 1 - axis)), size, p.align, taps, p.padding, at, at + 16)
            for t in range(all_taps):
                offset, w, rest = 0, _ONE, t
                step = 1
                for axis in range(rank - 1, -1, -1):
                    above = rest // taps
                    at = own + 32 * axis + 4 * (rest - above * taps)
                    offset += step * load_i32(at)
                    w *= load_f32(at + 16)
                    step *= load_i64(p.sizes + 8 * axis)
                    rest = above
                store_i32(index + BYTES * t + 4 * lane, np.int32(offset))
                store_f32(weights + BYTES * t + 4 * lane, w)
        for c in range(p.channels):
            source = p.x + 4 * (image * p.channels + c) * p.plane
            total = splat(np.float32(0))
            for t in range(all_taps):
                w, seen = vload(weights + BYTES * t), vgather(source, vload_i32(index + BYTES * t))
                total = fma(w, select(w == 0.0, w, seen), total)
            vstore_n(p.y + 4 * ((image * p.channels + c) * points + first), total, count)


def steps(op: GridSample, ins: Types, out: TensorType, context: Context) -> list[Step]:
    """The step of f32; a vector of points at a time."""
    x = ins[0]
    images, channels, *sizes = x.dims
    taps = MODES[op.mode]
    all_taps = taps ** len(sizes)
    args: dict[str, Argument] = {"x": In(0), "grid": In(1), "y": Out(0), "sizes": np.array(sizes, dtype=np.int64)}
    args |= {"room": Scratch((2 * BYTES * all_taps + 128) * context.threads), "images": images, "channels": channels}
    args |= {"points": math.prod(out.dims[2:]), "plane": math.prod(sizes), "rank": len(sizes), "taps": taps}
    args |= {"all_taps": all_taps, "padding": PADDINGS[op.padding_mode], "align": int(op.align_corners)}
    return [Step(grid_sample, args, out.size * all_taps > PAYS_ELEMENTS // 2)]
