"""RoiAlign: a thread for each element of the result goes through the samples of its bin."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache

import numpy as np

from bolt_numba.base.types import TensorType, dtype_name
from bolt_numba.kernels.common.held import within
from bolt_numba.kernels.cuda.declare import F32 as NUMBER
from bolt_numba.kernels.cuda.declare import I64, PTR
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import divide_exact, maximum
from bolt_numba.kernels.declare import Inline, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.sampling import is_near, neighbours, region_samples, side_of
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types
from bolt_numba.ops.layers.detection.regions import RoiAlign

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
samples_of, near = region_samples(PARTS)


@cache
def sampler(dtype: str, greatest: bool) -> Inline:
    """Helper that joins the four weighted neighbours of (v, u) in a plane to a total; zero further outside."""
    load, unit = getattr(lang, f"load_{dtype}_nc"), lang.SIZES[dtype]

    @inline
    def joined(total, v):
        return maximum(total, v) if greatest else total + v

    @inline
    def sampled(total, source, v, u, h, w):
        if not is_near(v, u, h, w):
            return joined(total, _ZERO)
        top, below, b = neighbours(v, h)
        left, right, a = neighbours(u, w)
        total = joined(total, (_ONE - b) * (_ONE - a) * load(source + unit * (top * w + left)))
        total = joined(total, (_ONE - b) * a * load(source + unit * (top * w + right)))
        total = joined(total, b * (_ONE - a) * load(source + unit * (below * w + left)))
        return joined(total, b * a * load(source + unit * (below * w + right)))

    made: Inline = sampled
    return made


def _aligned(a: Numbers, dtype: str, step: int, *_: bool) -> dict[str, Reach]:
    unit, planes = lang.SIZES[dtype], a.regions * a.channels
    x, y = unit * a.images * a.channels * a.h * a.w, unit * planes * a.oh * a.ow
    return {"x": x, "rois": 4 * unit * a.regions, "of": step * a.regions, "y": y}


@elements(
    over={"region": "regions", "channel": "channels", "i": "oh", "j": "ow"}, extents=_aligned, x=PTR, rois=PTR, of=PTR,
    y=PTR, images=I64, h=I64, w=I64, ratio=I64, scale=NUMBER,
)  # fmt: skip
def align_regions(on: DeviceParts, dtype: str, step: int, greatest: bool, half_pixel: bool):
    """Kernel from x [images, channels, h, w] to y [regions, channels, oh, ow]; rois: [regions, 4]; of: [regions].

    step: bytes of an image's number.
    """
    load, store, unit = getattr(lang, f"load_{dtype}_nc"), on.store(dtype), lang.SIZES[dtype]
    load_number, sampled = on.load(f"i{8 * step}"), sampler(dtype, greatest)

    @inline
    def element(region, channel, i, j, t, x, rois, of, y, channels, oh, ow, h, w, ratio, scale):
        image = np.int64(load_number(of + step * region))
        corner = rois + 4 * unit * region
        x1, wide = side_of(load(corner), load(corner + 2 * unit), scale, half_pixel)
        y1, high = side_of(load(corner + unit), load(corner + 3 * unit), scale, half_pixel)
        rows, columns = samples_of(high, oh, ratio), samples_of(wide, ow, ratio)
        total = _ZERO
        if rows * columns > 0:
            bin_h, bin_w = divide_exact(high, np.float32(oh)), divide_exact(wide, np.float32(ow))
            down, across = divide_exact(bin_h, np.float32(rows)), divide_exact(bin_w, np.float32(columns))
            r0, r1 = near(y1 + bin_h * np.float32(i), down, rows, h)
            c0, c1 = near(x1 + bin_w * np.float32(j), across, columns, w)
            whole = max(r1 - r0, 0) * max(c1 - c0, 0) == rows * columns
            if greatest and whole:
                total = np.float32(-math.inf)
            source = x + unit * (image * channels + channel) * h * w
            for r in range(r0, r1):
                v = y1 + bin_h * (np.float32(i) + divide_exact(np.float32(r) + _HALF, np.float32(rows)))
                for c in range(c0, c1):
                    u = x1 + bin_w * (np.float32(j) + divide_exact(np.float32(c) + _HALF, np.float32(columns)))
                    total = sampled(total, source, v, u, h, w)
            if not greatest:
                total = divide_exact(total, np.float32(rows * columns))
        store(y + unit * t, total)

    return element


def steps(op: RoiAlign, ins: Types, out: TensorType, context: Context) -> list[Step]:
    """The step of floats."""
    x, images = ins[0], ins[2]
    numbers, checks = within(op, ins, 2, "batch_indices", out.dims[0], 0, x.dims[0] - 1, PARTS)
    args: dict[str, Argument] = {"x": In(0), "rois": In(1), "of": numbers, "y": Out(0)}
    args |= {"regions": out.dims[0], "channels": x.dims[1], "images": x.dims[0], "h": x.dims[2], "w": x.dims[3]}
    args |= {"oh": op.output_height, "ow": op.output_width, "ratio": op.sampling_ratio, "scale": op.spatial_scale}
    half_pixel = op.coordinate_transformation_mode == "half_pixel"
    settings = dtype_name(x.dtype), images.dtype.itemsize, op.mode == "max", half_pixel
    return [*checks, PARTS.step(align_regions, settings, args)]
