"""Readers of resampling."""

from __future__ import annotations

import numpy as np

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.resize import GridSample, Resize


@reader("Resize", since=11)
def resize(
    b: NodeBuilder,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: bool = False,
    axes: tuple[int, ...] = (),
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Empty roi and scales, which opset 11 and 12 want in place of absent ones, count as absent."""
    operator = Resize(
        mode=mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
        nearest_mode=nearest_mode,
        cubic_coeff_a=cubic_coeff_a,
        exclude_outside=exclude_outside,
        antialias=antialias,
        extrapolation_value=extrapolation_value,
        keep_aspect_ratio_policy=keep_aspect_ratio_policy,
        axes=axes,
    )
    needs_roi = coordinate_transformation_mode == "tf_crop_and_resize"
    return b(operator, x, _present(roi) if needs_roi else None, _present(scales), _present(sizes))


def _present(v: Value | None) -> Value | None:
    return None if v is None or v.type.shape == (0,) else v


@reader("Resize", since=10)
def resize_10(b: NodeBuilder, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    return upsample(b, x, scales, mode=mode)


@reader("Upsample", since=9)
def upsample(b: NodeBuilder, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    """Opset 7 to 10: output index / scale is the input coordinate, rounded down when mode is nearest."""
    if mode not in ("nearest", "linear", "bilinear"):
        raise b.invalid("mode", mode, "nearest or linear")
    kind = "nearest" if mode == "nearest" else "linear"
    operator = Resize(mode=kind, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return b(operator, x, None, scales)


@reader("Upsample", since=7)
def upsample_7(b: NodeBuilder, x: Value, *, scales: tuple[float, ...], mode: str = "nearest") -> Value:
    return upsample(b, x, b.const(np.array(scales, np.float32), f"{b.prefix}scales"), mode=mode)


@reader("Upsample")
def upsample_1(b: NodeBuilder, x: Value, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Value:
    return upsample_7(b, x, scales=(1.0, 1.0, height_scale, width_scale), mode=mode)


@reader("GridSample")
def grid_sample(
    b: NodeBuilder,
    x: Value,
    grid: Value,
    *,
    align_corners: bool = False,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return b(GridSample(mode=kind, padding_mode=padding_mode, align_corners=align_corners), x, grid)
