"""GridSample: a thread for each point, which finds its taps once and then goes through some channels."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import I64, PTR, ceil_div
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda
from bolt_numba.kernels.declare import inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.sampling import MODES, PADDINGS, grid_taps
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types
from bolt_numba.ops.layers.resize import GridSample

CHANNELS = 8
"""Channels of a thread."""
_ZERO, _ONE = np.float32(0), np.float32(1)


def _reach(a: Numbers, of: str, grid: str, rank: int, *_: Any) -> dict[str, Reach]:
    planes, points = a.images * a.channels, a.images * a.points
    size = a.z0 * a.z1 * a.z2
    return {
        "x": lang.SIZES[of] * planes * size, "grid": lang.SIZES[grid] * rank * points,
        "y": lang.SIZES[of] * planes * a.points,
    }  # fmt: skip


@elements(
    over={"image": "images", "group": "groups", "place": "points"}, extents=_reach, x=PTR, grid=PTR, y=PTR,
    channels=I64, z0=I64, z1=I64, z2=I64,
)  # fmt: skip
def sample_points(on: DeviceParts, of: str, grid: str, rank: int, taps: int, padding: int, align: bool):
    """From x [images, channels, z0, z1, z2] at grid [images, points, rank] to y [images, channels, points].

    of, grid: dtypes of x and of the grid.  groups: of `CHANNELS` channels.  Of fewer than three axes the last ones
    count: the others have one element, and one tap of weight 1.
    """
    load, load_point, store = getattr(lang, f"load_{of}_nc"), getattr(lang, f"load_{grid}_nc"), on.store(of)
    unit, point, (place_point, tap_of) = lang.SIZES[of], lang.SIZES[grid], grid_taps(PARTS)
    first_taps, next_taps, places = taps if rank > 2 else 1, taps if rank > 1 else 1, 3 * taps

    @inline
    def axis_taps(offsets, weights, axis, given, size, step):
        at = place_point(load_point(given + point * (2 - axis)), size, align, taps, padding)
        for k in range(taps):
            index, w = tap_of(at, k, size, align, taps, padding)
            offsets[axis * taps + k], weights[axis * taps + k] = unit * step * index, w

    @inline
    def element(image, group, place, x, grid, y, points, channels, z0, z1, z2):
        offsets, weights = cuda.local.array(places, np.int64), cuda.local.array(places, np.float32)
        given = grid + point * rank * (image * points + place)
        offsets[0], weights[0], offsets[taps], weights[taps] = 0, _ONE, 0, _ONE
        axis_taps(offsets, weights, 2, given, z2, 1)
        if rank > 1:
            axis_taps(offsets, weights, 1, given, z1, z2)
        if rank > 2:
            axis_taps(offsets, weights, 0, given, z0, z1 * z2)
        for c in range(group * CHANNELS, min(group * CHANNELS + CHANNELS, channels)):
            plane = image * channels + c
            source, total = x + unit * plane * (z0 * z1 * z2), _ZERO
            for i in range(first_taps):
                for j in range(next_taps):
                    row, share = source + offsets[i] + offsets[taps + j], weights[i] * weights[taps + j]
                    for k in range(taps):
                        w = share * weights[2 * taps + k]
                        if w != _ZERO:
                            total += w * load(row + offsets[2 * taps + k])
            store(y + unit * (plane * points + place), total)

    return element


def steps(op: GridSample, ins: Types, out: TensorType, context: Context) -> list[Step]:
    """The step of floats."""
    x, grid = ins[0], ins[1]
    images, channels, *sizes = x.dims
    args: dict[str, Argument] = {"x": In(0), "grid": In(1), "y": Out(0), "images": images, "channels": channels}
    args |= {"groups": ceil_div(channels, CHANNELS), "points": math.prod(out.dims[2:])}
    args |= dict(zip(("z0", "z1", "z2"), (*(1,) * (3 - len(sizes)), *sizes), strict=True))
    dtypes = dtype_name(x.dtype), dtype_name(grid.dtype)
    settings = *dtypes, len(sizes), MODES[op.mode], PADDINGS[op.padding_mode], bool(op.align_corners)
    return [PARTS.step(sample_points, settings, args)]
