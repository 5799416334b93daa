"""Readers of operators that Bolt takes in ONNX files, by names of its own, of Kaldi's and of TFLite's.

Source: Bolt's converter and kernels.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32, U8
from bolt_numba.converters import bolt_layers
from bolt_numba.converters.builder import END, Ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Identity
from bolt_numba.ops.layers.detection.regions import RoiAlign
from bolt_numba.ops.layers.norm import LpNormalization
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, HardSwish

reader("NoOp")(lambda b, x: b(Identity(), x))
reader("TFL_HARD_SWISH")(lambda b, x: b(HardSwish(), x))


@reader("TFL_L2_NORMALIZATION")
def l2_normalization(b: NodeBuilder, x: Value, *, fused_activation_function: str = "NONE") -> Value:
    """Along the last axis; along channels where an image has one pixel.  Zeros stay zeros, as in TFLite."""
    b.unsupported_if(fused_activation_function != "NONE", f"fused_activation_function {fused_activation_function}")
    is_pixel = b.rank_of(x) == 4 and x.type.shape is not None and x.type.shape[2:] == (1, 1)
    return b(LpNormalization(1 if is_pixel else -1), x)


@reader("Linear")
def linear(b: NodeBuilder, x: Value, w: Value) -> Value:
    """Rows [..., k] times w [m, k], transposed."""
    b.invalid_if(b.rank_of(w) != 2, "rank of w", b.rank_of(w), 2)
    return b(MatMul(False, True), x, w)


@reader("Splice")
def splice(b: NodeBuilder, x: Value, *, context: Ints, forward_indexes: Ints = (), output_dim: int = 0) -> Value:
    """Frames [n, t, c] with those around them, [n, t - (greatest - least of context), c * len(context)].

    forward_indexes: which frames are joined, where they begin with frame 0 and end with the last one.
    """
    return _spliced(b, x, context, forward_indexes)


@reader("Tdnn")
def tdnn(b: NodeBuilder, x: Value, context: Value, w: Value, bias: Value) -> Value:
    """Spliced frames times w [m, c * len(context)], transposed, and a bias.  Source: Kaldi's TdnnComponent."""
    return b(Add(), linear(b, _spliced(b, x, b.known_ints(context, "context"), ()), w), bias)


def _spliced(b: NodeBuilder, x: Value, context: Ints, indexes: Ints) -> Value:
    b.invalid_if(b.rank_of(x) != 3, "rank of x", b.rank_of(x), 3)
    least, most = min(context, default=0), max(context, default=0)
    if not context or not -1 << 31 < least <= 0 <= most < 1 << 31:
        raise b.invalid("context", context, "frames from before or at 0 to at or behind it")
    chosen = bool(indexes) and not _is_plain(context, indexes, most - least)
    if chosen and (min(indexes), max(indexes)) == (0, b.static_dim(x, 1) - 1):
        return _chosen(b, x, len(context), indexes)
    return b(Concat(2), *(b.sliced(x, 1, c - least, c - most or END) for c in context))


def _is_plain(context: Ints, indexes: Ints, span: int) -> bool:
    """Whether indexes are those of all windows of ``span`` + 1 frames, for which nobody needs to count frames."""
    windows = range(max(len(indexes) // len(context), 0))
    if max(indexes) != len(windows) + span - 1:
        return False
    return indexes == tuple(i + c - min(context) for i in windows for c in context)


def _chosen(b: NodeBuilder, x: Value, width: int, indexes: Ints) -> Value:
    b.invalid_if(len(indexes) % width, "number of forward_indexes", len(indexes), f"a multiple of {width}")
    rows = b(Gather(1), x, np.array(indexes, np.int64))
    return b.reshaped(rows, [b.size_of(x, 0), len(indexes) // width, b.static_dim(x, 2) * width])


@reader("RoIAlign")
def roi_align(
    b: NodeBuilder,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    pooled_h: int = 1,
    pooled_w: int = 1,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    aligned: bool = True,
    coordinate_transformation_mode: str = "",
    mode: str = "avg",
) -> Value:
    """ONNX's RoiAlign by names of Caffe2: aligned coordinates are those of half pixels."""
    coordinates = coordinate_transformation_mode or ("half_pixel" if aligned else "output_half_pixel")
    height, width = (a if a != 1 else o for a, o in ((pooled_h, output_height), (pooled_w, output_width)))
    return b(RoiAlign(mode, height, width, sampling_ratio, spatial_scale, coordinates), x, rois, batch_indices)


@reader("BilateralSliceApply")
def bilateral_slice_apply(
    b: NodeBuilder, x: Value, grid: Value, guide: Value | None = None, *, mode: str = "conv"
) -> Value:
    return bolt_layers.bilateral_slice_apply(b, x, grid, guide, mode)


@reader("ConvertColor")
def convert_color(b: NodeBuilder, x: Value, *, src: str, dst: str) -> Value:
    """Results are bytes."""
    b.unsupported_if(dst.endswith("_0_1"), f"bytes from {src} to {dst}")
    return b(Cast(U8), bolt_layers.convert_color(b, b(Cast(F32), x), src, dst, as_bytes=True))


reader("LutPreprocess")(lambda b, x: bolt_layers.lut_preprocess(b, b(Cast(F32), x)))


@reader("Lut")
def lut(b: NodeBuilder, x: Value, table: Value, *, type: str = "YUV_NV21", mode: str = "CUBIC") -> Value:
    """Linear at any ``mode``, as Bolt's only kernel is."""
    return b(Cast(x.type.dtype), bolt_layers.lut(b, b(Cast(F32), x), b(Cast(F32), table), type))
