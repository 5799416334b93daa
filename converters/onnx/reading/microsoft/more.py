"""Readers of onnxruntime's spellings of ONNX operators and of small compounds (domain com.microsoft)."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, microsoft
from bolt_numba.converters.onnx.reading.tables.conv import Convolved
from bolt_numba.converters.onnx.reading.tables.norm import simplified_layer_normalization
from bolt_numba.converters.onnx.reading.tables.quantize import QLINEAR_CONV
from bolt_numba.converters.onnx.reading.tables.resize import GRID_SAMPLE
from bolt_numba.converters.onnx.reading.tables.shape import range_
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import GatherND
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.ops.arrays.shape import Reshape, Shape, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.data.tokens import Tokenizer
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.norm import RMSNormalization
from bolt_numba.ops.layers.products.distances import Distances
from bolt_numba.ops.layers.products.integer_products import QLinearConv
from bolt_numba.ops.pointwise import Add, Mul, Sigmoid, Sqrt, Swish

add_as_is(Pad, Trilu, Tokenizer, domain="com.microsoft")
microsoft("GatherND")(AsIs(GatherND, lacks=["batch_dims"]))
microsoft("Range")(lambda b, start, limit, delta: range_(b, start, limit, delta))
microsoft("GridSample")(GRID_SAMPLE)
microsoft("SimplifiedLayerNormalization")(simplified_layer_normalization)


microsoft("ExpandDims")(lambda b, x, axis: b(Unsqueeze(), x, ints(b.known_array(axis, "axis").reshape(-1))))


@microsoft("CDist")
def distances(b: NodeBuilder, x: Value, y: Value, *, metric: str = "sqeuclidean") -> Value:
    """Between all rows of x [m, k] and of y [n, k]: [m, n]."""
    b.unsupported_if(metric not in ("sqeuclidean", "euclidean"), f"metric {metric}")
    squares = b(Distances(), x, b(Transpose((1, 0)), y))
    return squares if metric == "sqeuclidean" else b(Sqrt(), squares)


@microsoft("ScaledSiLU")
def scaled_silu(b: NodeBuilder, x: Value, scale: Value | None = None, *, alpha: float = 1.0) -> Value:
    return b(Swish(), b(Mul(), x, alpha if scale is None else scale))


microsoft("GatedAdd")(lambda b, x, y, gate: b(Add(), x, b(Mul(), y, gate)))


@microsoft("GatedRMSNorm")
def gated_rms_norm(
    b: NodeBuilder, x: Value, scale: Value, gate: Value, *, epsilon: float = 1e-5, activation: str = "silu"
) -> Value:
    """RMS normalisation times an activation of the gate.  Each group of as many elements as scale has is one row."""
    b.unsupported_if(activation not in ("silu", "swish", "sigmoid"), f"activation {activation}")
    opened = b(Sigmoid() if activation == "sigmoid" else Swish(), gate)
    rows = b(Reshape(), x, ints([*[0] * (b.rank_of(x) - 1), -1, b.static_dim(scale, 0)]))
    return b(Mul(), b(Reshape(), b(RMSNormalization(-1, epsilon), rows, scale), b(Shape(), x)), opened)


def _any_layout(b: NodeBuilder, made: QLinearConv, x: Value, *others: Value, channels_last: int = 0) -> Value:
    """ONNX's convolution, or over images whose channels come last."""
    if not channels_last:
        return b(made, x, *others)
    rank = b.rank_of(x)
    y = b(made, b(Transpose((0, rank - 1, *range(1, rank - 1))), x), *others)
    return b(Transpose((0, *range(2, rank), 1)), y)


microsoft("QLinearConv")(Convolved(QLinearConv, QLINEAR_CONV, then=_any_layout))


@microsoft("BranchwiseRMSNorm")
def branchwise_norm(
    b: NodeBuilder, x: Value, scale: Value | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Value:
    """Of each of so many branches that rows of x have, or where that is 0 of the last axis; scale: one, or of each."""
    width = b.static_dim(x, -1)
    b.invalid_if(num_branches < 0 or width % (num_branches or 1), "num_branches", num_branches, f"a divisor of {width}")
    size, branches = width // (num_branches or 1), num_branches or b.static_dim(x, -2)
    held = Forms(b, size=size, branches=branches, whole=size * branches)
    held.want("X", x, "... whole" if num_branches else "... branches size", *FLOATS)
    held.want("scale", scale, "size|branches size|whole", *FLOATS)
    rows = x if not num_branches else b.reshaped(x, b.sizes_of(x, range(b.rank_of(x) - 1)), [branches, size])
    y = b(RMSNormalization(-1, epsilon), b.to(rows, F32), np.ones(size, F32))
    if scale is not None:
        y = b(Mul(), y, b.to(b.reshaped(scale, [-1, size]), F32))
    return b(Reshape(), b.to(y, x.type.dtype), b(Shape(), x))
