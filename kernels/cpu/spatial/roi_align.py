"""RoiAlign of f32: offsets and weights of the samples of a vector of bins once, then every channel by gathers."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import TensorType
from bolt_numba.kernels.common.held import within
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    bits_of,
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
    vload_n,
    vmaximum,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.sampling import is_near, neighbours, region_samples, side_of
from bolt_numba.kernels.jit import F32, I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types
from bolt_numba.ops.layers.detection.regions import RoiAlign

SAMPLES = 64
"""Samples of a bin whose taps are kept at a time."""
ROOM = 2 * 4 * SAMPLES * BYTES + BYTES
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
samples_of, near = region_samples(PARTS)


@inline
def corner_taps(v, u, h, w, lane, index, weights):
    """Offsets and weights of the four neighbours of (v, u) in one lane; weights -0 further than a pixel outside."""
    inside = is_near(v, u, h, w)
    share = _ONE if inside else -_ZERO
    top, down, b = neighbours(v if inside else _ZERO, h)
    left, right, r = neighbours(u if inside else _ZERO, w)
    store_i32(index + 4 * lane, np.int32(top * w + left))
    store_i32(index + BYTES + 4 * lane, np.int32(top * w + right))
    store_i32(index + 2 * BYTES + 4 * lane, np.int32(down * w + left))
    store_i32(index + 3 * BYTES + 4 * lane, np.int32(down * w + right))
    store_f32(weights + 4 * lane, (_ONE - b) * (_ONE - r) * share)
    store_f32(weights + BYTES + 4 * lane, (_ONE - b) * r * share)
    store_f32(weights + 2 * BYTES + 4 * lane, b * (_ONE - r) * share)
    store_f32(weights + 3 * BYTES + 4 * lane, b * r * share)


@inline
def blend(x, index, weights, taps, total, greatest):
    """Join ``taps`` weighted elements of x into the lanes of a vector; a weight of -0 gives 0, even of NaN."""
    for t in range(taps):
        share = vload(weights + BYTES * t)
        v = share * vgather(x, vload_i32(index + BYTES * t))
        v = select(bits_of(share) < 0, splat(_ZERO), v)
        total = vmaximum(total, v) if greatest else total + v
    return total


@inline
def image_of(images, region, wide):
    """Number of a region's image, i64 (``wide``) or i32."""
    return load_i64(images + 8 * region) if wide else load_i32(images + 4 * region)


def _aligned(a: Numbers) -> dict[str, Reach]:
    return {
        "x": 4 * max(a.count, 1) * a.channels * a.h * a.w,
        "rois": 16 * a.regions,
        "images": (8 if a.wide else 4) * a.regions,
        "y": 4 * a.regions * a.channels * a.oh * a.ow,
        "room": ROOM * a.threads,
    }


@native(
    fastmath=set(), extents=_aligned, x=PTR, rois=PTR, images=PTR, y=PTR, room=PTR, wide=I64, regions=I64,
    count=I64, channels=I64, h=I64, w=I64, oh=I64, ow=I64, ratio=I64, scale=F32, half_pixel=I64, greatest=I64,
)  # fmt: skip
def roi_align(p, tid, nthreads):
    """Fill y [regions, channels, oh, ow], a vector of bins of all channels at a time.

    images: 0 to ``count - 1`` of each region.  room: `ROOM` bytes for each thread, for the taps of `SAMPLES` samples
    and what the maxima begin with: zero where samples were left out, which are outside and zero.
    """
    oh, ow, greatest = p.oh, p.ow, p.greatest
    bins, plane = oh * ow, 4 * p.h * p.w
    blocks = (bins + LANES - 1) // LANES
    index = p.room + ROOM * tid
    weights = index + 4 * SAMPLES * BYTES
    starts = weights + 4 * SAMPLES * BYTES
    lo, hi = split(p.regions * blocks, tid, nthreads)
    for item in range(lo, hi):
        region = item // blocks
        first = (item - region * blocks) * LANES
        left = min(LANES, bins - first)
        x = p.x + image_of(p.images, region, p.wide) * p.channels * plane
        corner = p.rois + 16 * region
        x1, wide = side_of(load_f32(corner), load_f32(corner + 8), p.scale, p.half_pixel)
        y1, high = side_of(load_f32(corner + 4), load_f32(corner + 12), p.scale, p.half_pixel)
        rows, columns = samples_of(high, oh, p.ratio), samples_of(wide, ow, p.ratio)
        if rows * columns == 0:
            for c in range(p.channels):
                vstore_n(p.y + 4 * ((region * p.channels + c) * bins + first), splat(_ZERO), left)
            continue
        bin_h, bin_w = high / np.float32(oh), wide / np.float32(ow)
        scale = splat(_ONE if greatest else _ONE / np.float32(rows * columns))
        high_step, wide_step = bin_h / np.float32(rows), bin_w / np.float32(columns)
        down, across = 0, 0
        for lane in range(LANES):
            place = first + min(lane, left - 1)
            r, end = near(y1 + bin_h * np.float32(place // ow), high_step, rows, p.h)
            c, last = near(x1 + bin_w * np.float32(place % ow), wide_step, columns, p.w)
            nr, nc = end - r, last - c
            down, across = max(down, nr), max(across, nc)
            store_f32(starts + 4 * lane, np.float32(-math.inf) if greatest and nr * nc == rows * columns else _ZERO)
        down, across = max(down, 1), max(across, 1)
        samples = down * across
        for done in range(0, samples, SAMPLES):
            taps = 4 * min(SAMPLES, samples - done)
            for t in range(0, taps, 4):
                row, column = (done + t // 4) // across, (done + t // 4) % across
                for lane in range(LANES):
                    place = first + min(lane, left - 1)
                    i, j = place // ow, place % ow
                    r, end = near(y1 + bin_h * np.float32(i), high_step, rows, p.h)
                    c, last = near(x1 + bin_w * np.float32(j), wide_step, columns, p.w)
                    nr, nc = end - r, last - c
                    taken = row < nr and column < nc
                    r, c = r + min(row, max(nr - 1, 0)), c + min(column, max(nc - 1, 0))
                    v = y1 + bin_h * (np.float32(i) + (np.float32(r) + _HALF) / np.float32(rows))
                    u = x1 + bin_w * (np.float32(j) + (np.float32(c) + _HALF) / np.float32(columns))
                    v = v if taken or (greatest and nr * nc) else np.float32(-2)
                    corner_taps(v, u, p.h, p.w, lane, index + BYTES * t, weights + BYTES * t)
            for c in range(p.channels):
                to = p.y + 4 * ((region * p.channels + c) * bins + first)
                total = vload_n(to, left) if done else vload(starts)
                total = blend(x + c * plane, index, weights, taps, total, greatest)
                vstore_n(to, total * scale if done + SAMPLES >= samples else total, left)


def steps(op: RoiAlign, ins: Types, out: TensorType, context: Context) -> list[Step]:
    """The steps of f32; a vector of bins at a time."""
    x, images = ins[0], ins[2]
    count, channels, h, w = x.dims
    numbers, checks = within(op, ins, 2, "batch_indices", out.dims[0], 0, count - 1, PARTS)
    args: dict[str, Argument] = {"x": In(0), "rois": In(1), "images": numbers, "y": Out(0), "channels": channels}
    args["room"] = Scratch(ROOM * context.threads)
    args |= {"wide": int(images.dtype.itemsize == 8), "regions": out.dims[0], "count": count, "h": h, "w": w}
    args |= {"oh": op.output_height, "ow": op.output_width, "ratio": op.sampling_ratio, "scale": op.spatial_scale}
    args |= {"half_pixel": int(op.coordinate_transformation_mode == "half_pixel"), "greatest": int(op.mode == "max")}
    return [*checks, Step(roi_align, args, out.size > PAYS_ELEMENTS // 32)]
