"""Readers of resampling."""

from __future__ import annotations

from bolt_numba.base.types import F32
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, cast
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Round


def _mode(b: TfliteBuilder, align_corners: bool, half_pixel_centers: bool, half: str) -> str:
    b.unsupported_if(align_corners and half_pixel_centers, "align_corners together with half_pixel_centers")
    return half if half_pixel_centers else "align_corners" if align_corners else "asymmetric"


@TFLITE.reader("RESIZE_BILINEAR")
def resize_bilinear(
    b: TfliteBuilder, x: Value, size: Value, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Value:
    """size: height and width.  Integers that stand for themselves are rounded."""
    mode = _mode(b, align_corners, half_pixel_centers, "half_pixel")
    dtype = x.type.dtype
    wide = cast(b, x, F32) if dtype.kind in "iu" else x
    made = b(Resize("linear", mode, axes=(2, 3), layout="NHWC"), wide, None, None, as_i64(b, size))
    return made if wide is x else cast(b, b(Round(), made), dtype)


@TFLITE.reader("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(
    b: TfliteBuilder, x: Value, size: Value, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Value:
    """The pixel at or before the place; with align_corners the nearest one."""
    mode = _mode(b, align_corners, half_pixel_centers, "tf_half_pixel_for_nn")
    rounding = "round_prefer_ceil" if align_corners else "floor"
    operator = Resize("nearest", mode, nearest_mode=rounding, axes=(2, 3), layout="NHWC")
    return b(operator, x, None, None, as_i64(b, size))
