"""Readers of onnxruntime's spellings of ONNX operators and of small compounds (domain com.microsoft)."""

from __future__ import annotations

import functools
from typing import Any

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.quantized import real, stored
from bolt_numba.converters.onnx.reading.registry import add_as_is, reader
from bolt_numba.converters.onnx.reading.tables.norm import simplified_layer_normalization
from bolt_numba.converters.onnx.reading.tables.quantize import QLINEAR_CONV
from bolt_numba.converters.onnx.reading.tables.resize import grid_sample
from bolt_numba.converters.onnx.reading.tables.shape import range_
from bolt_numba.converters.operands import ints, known_array, rank_of, static_dim
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import GatherND
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.ops.arrays.shape import Reshape, Shape, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.data.tokens import Tokenizer
from bolt_numba.ops.layers.norm import RMSNormalization
from bolt_numba.ops.layers.products.distances import Distances
from bolt_numba.ops.pointwise import Add, Mul, Sigmoid, Sqrt, Swish, Where

Ints = tuple[int, ...]
microsoft = functools.partial(reader, domain="com.microsoft")

add_as_is(GatherND, Pad, Trilu, Tokenizer, domain="com.microsoft")
microsoft("Range")(range_)
microsoft("GridSample")(grid_sample)
microsoft("SimplifiedLayerNormalization")(simplified_layer_normalization)


@microsoft("ExpandDims")
def expand_dims(b: NodeBuilder, x: Value, axis: Value) -> Value:
    return b(Unsqueeze(), x, ints(known_array(b, axis, "axis").reshape(-1)))


@microsoft("CDist")
def distances(b: NodeBuilder, x: Value, y: Value, *, metric: str = "sqeuclidean") -> Value:
    """Between all rows of x [m, k] and of y [n, k]: [m, n]."""
    if metric not in ("sqeuclidean", "euclidean"):
        raise b.unsupported(f"metric {metric}")
    squares = b(Distances(), x, b(Transpose((1, 0)), y))
    return squares if metric == "sqeuclidean" else b(Sqrt(), squares)


@microsoft("ScaledSiLU")
def scaled_silu(b: NodeBuilder, x: Value, scale: Value | None = None, *, alpha: float = 1.0) -> Value:
    return b(Swish(), b(Mul(), x, alpha if scale is None else scale))


@microsoft("GatedAdd")
def gated_add(b: NodeBuilder, x: Value, y: Value, gate: Value) -> Value:
    return b(Add(), x, b(Mul(), y, gate))


@microsoft("GatedRMSNorm")
def gated_rms_norm(
    b: NodeBuilder, x: Value, scale: Value, gate: Value, *, epsilon: float = 1e-5, activation: str = "silu"
) -> Value:
    """RMS normalisation times an activation of the gate.  Each group of as many elements as scale has is one row."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise b.unsupported(f"activation {activation}")
    opened = b(Sigmoid() if activation == "sigmoid" else Swish(), gate)
    rows = b(Reshape(), x, ints([*[0] * (rank_of(b, x) - 1), -1, static_dim(b, scale, 0)]))
    return b(Mul(), b(Reshape(), b(RMSNormalization(-1, epsilon), rows, scale), b(Shape(), x)), opened)


@microsoft("QLinearWhere")
def qlinear_where(
    b: NodeBuilder,
    condition: Value,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y: Value,
    y_scale: Value,
    y_zero: Value | None,
    z_scale: Value,
    z_zero: Value | None = None,
) -> Value:
    chosen = b(Where(), condition, real(b, x, x_scale, x_zero), real(b, y, y_scale, y_zero))
    return stored(b, chosen, z_scale, z_zero)


@microsoft("QLinearConv")
def qlinear_conv(
    b: NodeBuilder,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Value:
    """ONNX's, or over images whose channels come last."""
    rank = rank_of(b, x)
    image: Any = b(Transpose((0, rank - 1, *range(1, rank - 1))), x) if channels_last else x
    y = QLINEAR_CONV(
        b, image, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, auto_pad=auto_pad, dilations=dilations,
        group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    return b(Transpose((0, *range(2, rank), 1)), y) if channels_last else y
