"""Readers of the operators that show every form which an operand can have."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from bolt_numba.converters.operands import ints, known_ints, known_scalar, rank_of
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Reshape, Squeeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.types import I64, AnyDType

Ints: TypeAlias = tuple[int, ...]


def pads_of(b: PaddleBuilder, paddings: Ints, spatial: int) -> Ints:
    """Paddings of a side each, of an axis each, or of a side and an axis each, as ONNX orders them."""
    if len(paddings) == 2 * spatial:
        return (*paddings[::2], *paddings[1::2])
    if len(paddings) == 2 * spatial + 4:  # batch and channels, too
        return pads_of(b, paddings[4:], spatial)
    return (*paddings, *paddings)


@PADDLE.reader("conv2d", "depthwise_conv2d", slots={"Bias": "bias"})
def conv2d(
    b: PaddleBuilder,
    input: Value,
    filter: Value,
    bias: Value | None = None,
    *,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0),
    padding_algorithm: str = "EXPLICIT",
    dilations: Ints = (1, 1),
    groups: int = 1,
    data_format: str = "NCHW",
) -> Any:
    auto = {"SAME": "SAME_UPPER", "VALID": "VALID"}.get(padding_algorithm, "NOTSET")
    pads = () if auto != "NOTSET" else pads_of(b, paddings, 2)
    layout = "NHWC" if data_format == "NHWC" else "NCHW"
    return b(Conv(strides, pads, dilations, groups, auto, layout), input, filter, bias)


@PADDLE.reader("pool2d")
def pool2d(
    b: PaddleBuilder,
    x: Value,
    kernel_size: Value,
    *,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0),
    pooling_type: str,
    ceil_mode: bool = False,
    exclusive: bool = True,
    data_format: str = "NCHW",
    padding_algorithm: str = "EXPLICIT",
) -> Any:
    if padding_algorithm != "EXPLICIT" or data_format != "NCHW" or not exclusive:
        raise b.unsupported(f"{padding_algorithm}, {data_format}")
    size, pads = known_ints(b, kernel_size, "kernel_size"), pads_of(b, paddings, 2)
    made = MaxPool if pooling_type == "max" else AveragePool
    return b(made(size, strides, pads, ceil_mode=ceil_mode), x)


@PADDLE.reader("elementwise_add", "add")
def add(b: PaddleBuilder, x: Value, y: Value, *, axis: int = -1) -> Any:
    return b(Add(), x, aligned(b, x, y, axis))


def aligned(b: PaddleBuilder, x: Value, y: Value, axis: int) -> Value:
    """The operand y with axes of 1 behind it, so that its first axis stands at ``axis`` of x."""
    more = 0 if axis == -1 else rank_of(b, x) - axis - rank_of(b, y)
    made: Value = y if more <= 0 else b(Reshape(), y, ints([0] * rank_of(b, y) + [1] * more))
    return made


@PADDLE.reader("reshape2", "reshape", slots={"ShapeTensor": "shape*"})
def reshape(b: PaddleBuilder, x: Value, shape: Value) -> Any:
    return b(Reshape(), x, shape)


@PADDLE.reader("concat")
def concat(b: PaddleBuilder, x: Values, axis: Value) -> Any:
    return b(Concat(known_ints(b, axis, "axis")[0]), *x)


@PADDLE.reader("slice")
def slice_(b: PaddleBuilder, input: Value, starts: Value, ends: Value, *, axes: Ints, decrease_axis: Ints = ()) -> Any:
    made = b(Slice(), input, starts, ends, ints(axes))
    return b(Squeeze(), made, ints(decrease_axis)) if decrease_axis else made


@PADDLE.reader("full_int_array")
def full_int_array(b: PaddleBuilder, *, value: Ints, dtype: AnyDType | None = None) -> Any:
    return b.const(np.array(value, dtype or I64))


@PADDLE.reader("scale")
def scale(b: PaddleBuilder, x: Value, scale: Value, *, bias: float = 0.0, bias_after_scale: bool = True) -> Any:
    """Give x * scale + bias, or (x + bias) * scale; nothing for 1 and 0, which exporters put before each output."""
    factor = known_scalar(scale)
    if not bias_after_scale:
        x = b(Add(), x, bias) if bias else x
    if factor != 1:
        x = b(Mul(), x, scale if factor is None else factor)
    return b(Add(), x, bias) if bias and bias_after_scale else x
