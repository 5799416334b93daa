"""Readers of signal processing, regions of interest, and operators that few networks use."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.onnx.reading.tables.conv import check_kernel
from bolt_numba.converters.onnx.types import dtype_of
from bolt_numba.converters.operands import ints, rank_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops.detection import DeformConv, MaxRoiPool, RoiAlign
from bolt_numba.ops.gather import Gather
from bolt_numba.ops.pointwise import Add, Cast, Div, Max, Sub
from bolt_numba.ops.rare import BitCast, Col2Im, CumProd, Det, ReverseSequence, TensorScatter
from bolt_numba.ops.shape import Concat, Shape
from bolt_numba.ops.signal import DFT, STFT, MelWeightMatrix
from bolt_numba.ops.slicing import Pad, Slice
from bolt_numba.types import I64

Ints = tuple[int, ...]


@reader("BitCast")
def bit_cast(b: NodeBuilder, x: Value, *, to: int) -> Any:
    return b(BitCast(dtype_of(to, "to")), x)


@reader("CumProd")
def cum_prod(b: NodeBuilder, x: Value, axis: Value, *, exclusive: bool = False, reverse: bool = False) -> Any:
    return b(CumProd(exclusive, reverse), x, axis)


@reader("Det")
def det(b: NodeBuilder, x: Value) -> Any:
    return b(Det(), x)


@reader("Col2Im")
def col2im(
    b: NodeBuilder,
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Any:
    return b(Col2Im(dilations, pads, strides), x, image_shape, block_shape)


@reader("ReverseSequence")
def reverse_sequence(b: NodeBuilder, x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    return b(ReverseSequence(batch_axis, time_axis), x, lengths)


@reader("TensorScatter")
def tensor_scatter(
    b: NodeBuilder, past: Value, update: Value, places: Value | None = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    return b(TensorScatter(axis, mode), past, update, places)


@reader("DFT", since=20)
def dft(
    b: NodeBuilder,
    x: Value,
    length: Value | None = None,
    axis: Value | None = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Any:
    return b(DFT(inverse, onesided), x, length, axis)


@reader("DFT")
def dft_17(
    b: NodeBuilder, x: Value, length: Value | None = None, *, axis: int = 1, inverse: bool = False,
    onesided: bool = False
) -> Any:
    return b(DFT(inverse, onesided), x, length, np.array(axis))


@reader("STFT")
def stft(
    b: NodeBuilder,
    signal: Value,
    step: Value,
    window: Value | None = None,
    length: Value | None = None,
    *,
    onesided: bool = True,
) -> Any:
    return b(STFT(onesided), signal, step, window, length)


@reader("MelWeightMatrix")
def mel_weight_matrix(
    b: NodeBuilder, bins: Value, length: Value, rate: Value, low: Value, high: Value, *, output_datatype: int = 1
) -> Any:
    return b(MelWeightMatrix(dtype_of(output_datatype, "output_datatype")), bins, length, rate, low, high)


@reader("MaxRoiPool")
def max_roi_pool(b: NodeBuilder, x: Value, rois: Value, *, pooled_shape: Ints, spatial_scale: float = 1.0) -> Any:
    return b(MaxRoiPool(pooled_shape, spatial_scale), x, rois)


@reader("CenterCropPad")
def center_crop_pad(b: NodeBuilder, x: Value, shape: Value, *, axes: Ints | None = None) -> Any:
    """Cut, or filled with zeros, to sizes along some axes (all by default); an odd one is cut or filled at the end."""
    along = ints(range(rank_of(b, x)) if axes is None else axes)
    wanted = b(Cast(I64), shape)
    now = b(Gather(0), b(Shape(), x), along)
    start = b(Div(), b(Max(), b(Sub(), now, wanted), 0), 2)
    cut = b(Slice(), x, start, b(Add(), start, wanted), along)
    lack = b(Max(), b(Sub(), wanted, now), 0)
    before = b(Div(), lack, 2)
    return b(Pad("constant"), cut, b(Concat(0), before, b(Sub(), lack, before)), None, along)


@reader("RoiAlign", since=16)
def roi_align(
    b: NodeBuilder,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        raise b.invalid("coordinate_transformation_mode", coordinate_transformation_mode, "(output_)half_pixel")
    operator = RoiAlign(
        mode, output_height, output_width, sampling_ratio, spatial_scale, coordinate_transformation_mode
    )
    return b(operator, x, rois, batch_indices)


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
) -> Any:
    """Before opset 16 coordinates are not shifted by half a pixel."""
    operator = RoiAlign(mode, output_height, output_width, sampling_ratio, spatial_scale, "output_half_pixel")
    return b(operator, x, rois, batch_indices)


@reader("DeformConv")
def deform_conv(
    b: NodeBuilder,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    offset_group: int = 1,
    pads: Ints = (),
    strides: Ints = (),
) -> Any:
    check_kernel(b, w, kernel_shape)
    operator = DeformConv(strides, pads, dilations, group, offset_group=offset_group)
    return b(operator, x, w, offset, bias, mask)
