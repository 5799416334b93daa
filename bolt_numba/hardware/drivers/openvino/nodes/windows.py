"""Pools, resampling, regions."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.nodes.products import padding, spatial
from bolt_numba.hardware.drivers.openvino.table import NotThereError, OvSite, builds
from bolt_numba.ops.layers.resize import EXACT
from bolt_numba.types import F32, I64

MODES = {"nearest": "nearest", "linear": "linear_onnx", "cubic": "cubic"}
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")


def _rounding(windows: Any) -> str:
    return "ceil_torch" if windows.ceil else "floor"


@builds("MaxPool")
def max_pool(s: OvSite, op: Any, x: Any) -> Any:
    s.want(not op.indices, "where the greatest was")
    spatial(s)
    w = op.windows
    begins, ends, auto = padding(s, w)
    made = s.v.max_pool(
        x, list(w.strides), list(w.dilations), begins, ends, list(w.kernel), _rounding(w), auto, "i64", 2
    )
    return [made.output(0)]


@builds("AveragePool")
def average_pool(s: OvSite, op: Any, x: Any) -> Any:
    spatial(s)
    w = op.windows
    s.want(set(w.dilations) == {1}, "windows with gaps")
    s.want(not (w.ceil and op.count_include_pad), "windows that end beyond the pads and count them")
    begins, ends, auto = padding(s, w)
    exclude = not op.count_include_pad
    return s.v.avg_pool(x, list(w.strides), begins, ends, list(w.kernel), exclude, _rounding(w), auto)


@builds("Resize")
def resize(s: OvSite, op: Any, x: Any, *operands: Any) -> Any:
    """By sizes or by scales, whichever is given."""
    s.want(op.coordinate_transformation_mode in COORDINATES, f"coordinates {op.coordinate_transformation_mode}")
    s.want(not (op.antialias or op.exclude_outside), "weights that are made anew at borders")
    s.want(op.keep_aspect_ratio_policy == "stretch", "sizes that keep the aspect")
    axes = [a % s.rank() for a in op.axes] or list(range(s.rank()))
    if s.given(3):
        target, by = s.const(np.array(s.ints(3, "sizes"), I64)), "sizes"
        wanted = [float(n) for n in s.ints(3, "sizes")]
    else:
        scales = s.known(2, "scales")
        target, by, wanted = s.const(scales.astype(F32)), "scales", [float(n) for n in scales]
    moving = [a for a, n in zip(axes, wanted, strict=True) if n != (s.shape()[a] if by == "sizes" else 1.0)]
    if op.mode != "nearest" and not (s.rank() == 4 and set(moving) <= {2, 3}):
        raise NotThereError("samples between elements along other axes than the last two of four")
    s.want(s.rank() in (4, 5) and set(moving) <= set(range(2, s.rank())), "resampled batches or channels")
    kept = [axes.index(a) for a in range(2, s.rank()) if a in axes]
    s.want(bool(kept), "no axis to resample")
    places = s.const(np.array(kept, I64))
    target = s.v.gather(target, places, s.const(np.array(0, I64)))
    mode = MODES[op.mode] if s.rank() == 4 else "nearest"
    return s.v.interpolate(
        x, target, mode, by, coordinate_transformation_mode=op.coordinate_transformation_mode,
        nearest_mode=op.nearest_mode, cube_coeff=float(op.cubic_coeff_a), axes=s.i64(*[axes[i] for i in kept]),
    )  # fmt: skip


@builds("GridSample")
def grid_sample(s: OvSite, op: Any, x: Any, grid: Any) -> Any:
    s.want(s.rank() == 4, "images of other than 2 axes")
    s.want(all(d <= EXACT for d in s.type(0).shape or () if isinstance(d, int)), "coordinates that f32 does not hold")
    mode = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}[op.mode]
    given = {"align_corners": op.align_corners, "mode": mode, "padding_mode": op.padding_mode}
    return s.v.grid_sample(x, grid, given)


@builds("RoiAlign", indices=(2,))
def roi_align(s: OvSite, op: Any, x: Any, rois: Any, batch: Any) -> Any:
    s.want(op.mode == "avg", "the greatest sample")
    mode = "half_pixel_for_nn" if op.coordinate_transformation_mode == "half_pixel" else "asymmetric"
    sizes = (op.output_height, op.output_width, op.sampling_ratio, float(op.spatial_scale))
    return s.v.roi_align(x, rois, batch, *sizes, "avg", mode)
