"""Cases of regions of interest and deformable convolution."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.layers.detection import regions as d
from bolt_numba.types import I64
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, real, whole


@cases(d.RoiAlign)
def roi_align(draw: Draw, op: type[d.RoiAlign]) -> Case:
    x = real(draw, (2, 3, 9, 11))
    begins = real(draw, (4, 2), -2.0, 8.0)
    rois = np.concatenate([begins, begins + real(draw, (4, 2), 0.5, 9.0)], axis=1)
    operator = op(
        pick(draw, "avg", "max"),
        pick(draw, 1, 2, 3),
        pick(draw, 1, 2),
        pick(draw, 0, 1, 2),
        pick(draw, 1.0, 0.5),
        pick(draw, "half_pixel", "output_half_pixel"),
    )
    return Case(operator, (x, rois, whole(draw, (4,), 0, 1, I64)), exact=False, rtol=1e-4)


@cases(d.MaxRoiPool)
def max_roi_pool(draw: Draw, op: type[d.MaxRoiPool]) -> Case:
    x = real(draw, (2, 3, 9, 11))
    begins = whole(draw, (4, 2), -2, 8)
    corners = np.concatenate([begins, begins + whole(draw, (4, 2), 0, 9)], axis=1)
    rois = np.concatenate([whole(draw, (4, 1), 0, 1), corners], axis=1)
    return Case(op((pick(draw, 1, 2, 3), pick(draw, 1, 2)), pick(draw, 1.0, 0.5)), (x, rois))


@cases(d.DeformConv)
def deform_conv(draw: Draw, op: type[d.DeformConv]) -> Case:
    group, og = pick(draw, 1, 2), pick(draw, 1, 2)
    kernel, strides = (pick(draw, 1, 2, 3), pick(draw, 1, 2)), (pick(draw, 1, 2), 1)
    pads = (pick(draw, 0, 1), 0, 1, 0)
    x, w = real(draw, (2, 4, 6, 7)), real(draw, (4, 4 // group, *kernel))
    operator = op(strides, pads, (), group, offset_group=og)
    outs = operator.windows(kernel).static_dims(operator, x.shape[2:])
    taps = og * kernel[0] * kernel[1]
    offset = real(draw, (2, 2 * taps, *outs), -1.5, 1.5)
    bias = real(draw, (4,)) if draw(flags) else None
    mask = real(draw, (2, taps, *outs), 0.0, 1.0) if draw(flags) else None
    return Case(operator, (x, w, offset, bias, mask), exact=False, rtol=1e-3)


@cases(d.PSRoiPool)
def ps_roi_pool(draw: Draw, op: type[d.PSRoiPool]) -> Case:
    bins = (pick(draw, 1, 2, 3), pick(draw, 1, 2))
    x = real(draw, (2, 2 * bins[0] * bins[1], 9, 11))
    begins = whole(draw, (4, 2), -2, 8)
    edges = np.concatenate([begins, begins + whole(draw, (4, 2), 0, 9)], axis=1)
    rois = np.concatenate([whole(draw, (4, 1), 0, 1), edges], axis=1)
    return Case(op(bins, pick(draw, 1.0, 0.5)), (x, rois), exact=False)
