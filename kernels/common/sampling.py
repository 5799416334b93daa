"""GridSample and RoiAlign: what is taken; each device samples in its own way (``spatial``).

A CPU finds the taps of a vector of points once for all channels, a thread of a GPU those of one point or element.
"""

from __future__ import annotations

import math

from bolt_numba.base.types import BF16, F16, F32
from bolt_numba.kernels.geometry.elements import DeviceParts
from bolt_numba.kernels.registry import Context, Outs, Step, Types, always, everywhere
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.detection.regions import RoiAlign
from bolt_numba.ops.layers.resize import EXACT, GridSample


def _is_float_image(op: GridSample | RoiAlign, ins: Types) -> bool:
    """An image that is not empty, of a size that f32 can number, and points or regions."""
    x, places = ins[0], ins[1]
    if not x.is_static or not x.size or not places.is_static or len(x.dims) not in (3, 4, 5):
        return False
    floats = all(t.dtype in (F32, F16, BF16) for t in (x, places))
    return floats and math.prod(x.dims[2:]) <= MAX_I32 and max(x.dims[2:]) <= EXACT


@everywhere(GridSample, accepts=_is_float_image, computes=always, few=True)
def grid_sample(op: GridSample, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """1 to 3 spatial axes, all modes and paddings; sums in f32."""
    return on.own("spatial.grid_sample.steps")(op, ins, outs[0], context) if outs[0].size else []


@everywhere(RoiAlign, accepts=_is_float_image, computes=always, few=True)
def roi_align(op: RoiAlign, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Both modes, any number of samples; sums in f32."""
    return on.own("spatial.roi_align.steps")(op, ins, outs[0], context) if outs[0].size else []
