"""Readers of layers that Bolt added to Caffe, for nets of language and speech.  Source: its .proto, for names."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.converters.bounded import count_of
from bolt_numba.converters.caffe.reading.attributes import Dims
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.converters.operands import ints, rank_of, static_dim
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import OneHot
from bolt_numba.ops.arrays.reduce import CumProd, CumSum, LogSoftmax, ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Split, Unsqueeze
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Clip, Max, Mul, Round, Sub
from bolt_numba.types import F32, I64

HIDDEN = -10000.0
"""What attention adds to the weight of a place that a mask hides."""


@reader("MatMul")
def matmul(b: LayerBuilder, x: Value, y: Value, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return b(MatMul(transpose_a, transpose_b), x, y)


@reader("Attention")
def attention(
    b: LayerBuilder, mask: Value, *, num_heads: int, from_sequence_length: int, to_sequence_length: int
) -> Any:
    """What is added to the weights [n, heads, from, to]: 0 where the mask [n, to] is 1, `HIDDEN` where it is 0."""
    if rank_of(b, mask) != 2:
        raise b.invalid("rank of the mask", rank_of(b, mask), 2)
    hidden = b(Mul(), b(Sub(), 1.0, mask), HIDDEN)
    shape = ints([1, num_heads, from_sequence_length, to_sequence_length])
    return b(Expand(), b(Unsqueeze(), hidden, ints([1, 2])), shape)


@reader("LogSoftmax")
def log_softmax(b: LayerBuilder, x: Value, *, axis: int = 1) -> Any:
    return b(LogSoftmax(axis), x)


@reader("AxisMean")
def axis_mean(b: LayerBuilder, x: Value, *, axis: int = 0) -> Any:
    return b(ReduceMean(keepdims=False), x, ints([axis]))


@reader("Cum")
def cumulative(
    b: LayerBuilder, x: Value, *, operation: str = "SUM", exclusive: bool = False, reverse: bool = False, axis: int = 0
) -> Any:
    operators = {"SUM": CumSum, "PROD": CumProd}
    if operation not in operators:
        raise b.unsupported(f"operation {operation}")
    return b(operators[operation](exclusive, reverse), x, np.array(axis, np.int64))


@reader("OneHot")
def one_hot(
    b: LayerBuilder, x: Value, *, depth: int, axis: int = -1, off_value: float = 0.0, on_value: float = 1.0
) -> Any:
    return b(OneHot(axis), b(Cast(I64), x), ints([depth]), np.array([off_value, on_value], F32))


@reader("SharedWeight")
def shared_weight(b: LayerBuilder, *, shape: Dims, data_type: str = "FLOAT32") -> Any:
    """Numbers that several layers read."""
    return b.blob(0, shape)


@reader("PreAllocatedMemory")
def pre_allocated_memory(b: LayerBuilder, *, shape: Dims, data_type: str = "FLOAT32", value: float = 0.0) -> Any:
    ask(4 * count_of(shape, b.what), b.what)
    return b.const(np.full(shape, value, F32))


@reader("ConvertColor")
def convert_color(
    b: LayerBuilder, x: Value, *, src: str = "YUV_NV21", dst: str = "RGB_0_255", dt: str = "UINT8"
) -> Any:
    """A camera's image [n, 3 h / 2, w, 1], brightness and below it V and U of every second pixel, as [n, h, w, c].

    dst: the order of the colours, RGB, BGR, RGBA or BGRA, and their range.  Bytes are rounded.
    Source: ITU-R BT.601, video range, with the coefficients of OpenCV.
    """
    order, _, most = dst.partition("_0_")
    if src != "YUV_NV21" or order not in ("RGB", "BGR", "RGBA", "BGRA") or most not in ("1", "255"):
        raise b.unsupported(f"colours from {src} to {dst}")
    n, rows, w = (static_dim(b, x, i) for i in range(3))
    if rank_of(b, x) != 4 or rows % 3 or w % 2 or static_dim(b, x, 3) != 1:
        raise b.invalid("shape of the bottom", x.type, "[n, 3 h / 2, w, 1] of even sizes")
    h = rows // 3 * 2
    bright, rest = b.node(Split(1, 2), x, ints([h, rows - h])).outputs
    pairs = b(Expand(), b(Reshape(), rest, ints([n, h // 2, 1, w // 2, 1, 2])), ints([n, h // 2, 2, w // 2, 2, 2]))
    v, u = b.node(Split(3, 2), b(Sub(), b(Reshape(), pairs, ints([n, h, w, 2])), 128.0)).outputs
    y = b(Mul(), b(Max(), b(Sub(), bright, 16.0), 0.0), 1.164)
    green = b(Sub(), b(Sub(), y, b(Mul(), v, 0.813)), b(Mul(), u, 0.391))
    colours = {"R": b(Add(), y, b(Mul(), v, 1.596)), "G": green, "B": b(Add(), y, b(Mul(), u, 2.018))}
    made = b(Clip(0.0, 255.0), b(Concat(3), *(colours[c] for c in order[:3])))
    made = b(Round(), made) if dt in ("UINT8", "INT8") and most == "255" else made
    if len(order) == 4:
        made = b(Concat(3), made, np.full((n, h, w, 1), 255, F32))
    return made if most == "255" else b(Mul(), made, 1 / 255)
