"""Readers of regions of interest and deformable convolution."""

from __future__ import annotations

from dataclasses import replace

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader
from bolt_numba.converters.onnx.reading.tables.conv import Convolved
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.detection.regions import DeformConv, MaxRoiPool, RoiAlign

add_as_is(MaxRoiPool)
add_as_is(RoiAlign, since=16)
add_reader("DeformConv", Convolved(DeformConv, "x w offset bias? mask?", lacks=["auto_pad"]))


def _unshifted(b: NodeBuilder, made: RoiAlign, *operands: Value) -> Value:
    """Before opset 16 coordinates are not shifted by half a pixel."""
    return b(replace(made, coordinate_transformation_mode="output_half_pixel"), *operands)


add_reader("RoiAlign", AsIs(RoiAlign, lacks=["coordinate_transformation_mode"], then=_unshifted))
