"""Readers of regions of interest and deformable convolution."""

from __future__ import annotations

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.converters.onnx.reading.tables.conv import Convolved
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.detection.regions import DeformConv, MaxRoiPool, RoiAlign

add_as_is(MaxRoiPool)
add_as_is(RoiAlign, since=16)
add_reader("DeformConv", Convolved(DeformConv, "x w offset bias? mask?", ["auto_pad"]))


@reader("RoiAlign")
def roi_align_10(
    b: NodeBuilder,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Before opset 16 coordinates are not shifted by half a pixel."""
    operator = RoiAlign(mode, output_height, output_width, sampling_ratio, spatial_scale, "output_half_pixel")
    return b(operator, x, rois, batch_indices)
