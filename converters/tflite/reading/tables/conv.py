"""Convolutions.  Activations stay NHWC; filters are turned by a transpose of the constant."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.operands import static_dim
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.conv import Conv

AUTO_PAD = {"SAME": "SAME_UPPER", "VALID": "VALID"}


@TFLITE.reader("CONV_2D")
def conv_2d(
    b: TfliteBuilder,
    x: Value,
    filter: Value,
    bias: Value | None = None,
    *,
    padding: str = "SAME",
    stride_w: int,
    stride_h: int,
    dilation_w_factor: int = 1,
    dilation_h_factor: int = 1,
    fused_activation_function: str = "NONE",
) -> Any:
    """x: [n, h, w, c], filter: [k, r, s, c / groups], bias: [k] -> [n, oh, ow, k]."""
    channels, taken = static_dim(b, filter, 3), x.type.shape[3] if x.type.shape else None
    group = int(taken) // channels if isinstance(taken, int) else 1
    operator = Conv((stride_h, stride_w), (), (dilation_h_factor, dilation_w_factor), group, AUTO_PAD[padding], "NHWC")
    y = b(operator, x, b(Transpose((0, 3, 1, 2)), filter), bias)
    return activated(b, y, fused_activation_function)
