"""Readers of resampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ForeignBuilder
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.resize import GridSample, Resize


class Resized(AsIs):
    """Empty roi and scales, which opset 11 and 12 want in place of absent ones, count as absent."""

    def __call__(self, b: ForeignBuilder, *operands: Value | None, **attributes: Any) -> Any:
        x, *given = operands
        roi, *others = (None if v is None or v.type.shape == (0,) else v for v in given)
        needs_roi = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        return super().__call__(b, x, roi if needs_roi else None, *others, **attributes)


add_reader("Resize", Resized(Resize, "x roi? scales? sizes?"), since=11)


@reader("Resize", since=10)
def resize_10(b: NodeBuilder, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    return upsample(b, x, scales, mode=mode)


@reader("Upsample", since=9)
def upsample(b: NodeBuilder, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    """Opset 7 to 10: output index / scale is the input coordinate, rounded down when mode is nearest."""
    b.invalid_if(mode not in ("nearest", "linear", "bilinear"), "mode", mode, "nearest or linear")
    kind = "nearest" if mode == "nearest" else "linear"
    operator = Resize(mode=kind, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return b(operator, x, None, scales)


@reader("Upsample", since=7)
def upsample_7(b: NodeBuilder, x: Value, *, scales: tuple[float, ...], mode: str = "nearest") -> Value:
    return upsample(b, x, b.const(np.array(scales, np.float32), f"{b.prefix}scales"), mode=mode)


@reader("Upsample")
def upsample_1(b: NodeBuilder, x: Value, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Value:
    return upsample_7(b, x, scales=(1.0, 1.0, height_scale, width_scale), mode=mode)


def _newly_named(b: NodeBuilder, made: GridSample, *operands: Value) -> Value:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(made.mode, made.mode)
    return b(replace(made, mode=mode), *operands)


GRID_SAMPLE = AsIs(GridSample, then=_newly_named)
add_reader("GridSample", GRID_SAMPLE)
