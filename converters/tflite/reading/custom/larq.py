"""Larq's binary operators.  What a file stores as bits are numbers -1 and 1 here, until a stage makes bits of them.

A bit that is set stands for -1.  Source: Larq Compute Engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.converters.builder import ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import CUSTOM, TFLITE, activated
from bolt_numba.converters.tflite.reading.shapes import same_pads
from bolt_numba.converters.tflite.reading.tables.conv import PADDING
from bolt_numba.converters.tflite.schema import ENUMS
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.pointwise import Add, Greater, Less, Mul, Sub, Where

ONE = np.ones((), F32)


TFLITE.reader("LceQuantize", domain=CUSTOM)(lambda b, x: b(Where(), b(Less(), x, np.zeros((), F32)), -ONE, ONE))
TFLITE.reader("LceDequantize", domain=CUSTOM)(lambda b, x: x)


@TFLITE.reader("LceBMaxPool2d", domain=CUSTOM)
def lce_bmax_pool_2d(
    b: TfliteBuilder,
    x: Value,
    *,
    padding: int,
    stride_width: int,
    stride_height: int,
    filter_width: int,
    filter_height: int,
) -> Any:
    pad = PADDING[_named(b, "Padding", padding)]
    return b(MaxPool((filter_height, filter_width), (stride_height, stride_width), auto_pad=pad, layout="NHWC"), x)


@TFLITE.reader("LceBconv2d", domain=CUSTOM)
def lce_bconv2d(
    b: TfliteBuilder,
    x: Value,
    filter: Value,
    multiplier: Value | None = None,
    bias: Value | None = None,
    thresholds: Value | None = None,
    *,
    channels_in: int,
    padding: int,
    pad_values: int = 0,
    stride_width: int,
    stride_height: int,
    dilation_width_factor: int = 1,
    dilation_height_factor: int = 1,
    fused_activation_function: int = 0,
) -> Value:
    """x: [n, h, w, c] of -1 and 1, filter: [k, r, s, words] i32 of bits -> f32, or -1 and 1 by thresholds [k] i32.

    Sums are activated, then multiplied and moved by a bias for each filter.  pad_values: what is outside, 0 or 1.
    """
    b.invalid_if(_channels(x) not in (None, channels_in), "channels of the operand", _channels(x), channels_in)
    signs = _signs(b, b.known_array(filter, "a filter"), channels_in)
    _, c, r, s = signs.shape
    dilations, strides = (dilation_height_factor, dilation_width_factor), (stride_height, stride_width)
    pad = PADDING[_named(b, "Padding", padding)]
    if pad_values == 1 and pad != "VALID":
        x, pad = b(Pad("constant"), x, ints(same_pads(b, x, (r, s), strides, dilations)), ONE), "VALID"
    sums = b(Conv(strides, (), dilations, channels_in // c, pad, "NHWC"), x, signs)
    if thresholds is not None:
        # Thresholds are for how many bits differ, which is half of what lacks to the greatest sum.
        most = b(Sub(), np.array(c * r * s, F32), b(Mul(), _floats(b, thresholds), np.array(2, F32)))
        return b(Where(), b(Greater(), most, sums), -ONE, ONE)
    if multiplier is None or bias is None:
        raise b.invalid("operands", "no multiplier or bias", "them, or thresholds")
    y = activated(b, sums, _named(b, "Activation", fused_activation_function))
    return b(Add(), b(Mul(), y, multiplier), bias)


def _named(b: TfliteBuilder, kind: str, number: int) -> str:
    names = ENUMS[kind]
    b.invalid_if(not 0 <= number < len(names), kind, number, f"0 to {len(names) - 1}")
    return names[number]


def _channels(x: Value) -> Any:
    return x.type.shape[-1] if x.type.shape else None


def _floats(b: TfliteBuilder, x: Value) -> Array:
    return b.known_array(x, "thresholds").astype(F32)


def _signs(b: TfliteBuilder, words: Array, channels: int) -> Array:
    """[k, c, r, s] of -1 and 1 of words of 32 bits along the last axis, the lowest first.

    A filter of fewer words than the channels have sees a group of them.
    """
    if words.ndim != 4 or words.dtype.kind not in "iu" or words.dtype.itemsize != 4 or not words.shape[3]:
        raise b.invalid("filter", f"{words.dtype}{list(words.shape)}", "i32 [k, r, s, words]")
    whole = -(-channels // 32)
    count = channels if words.shape[3] == whole else 32 * words.shape[3]
    if channels < 1 or words.shape[3] > whole or channels % count:
        raise b.invalid("words of a filter", words.shape[3], f"bits of {channels} channels")
    raw = np.ascontiguousarray(words, "<i4").view(np.uint8)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")[..., :count]
    return np.ascontiguousarray(np.moveaxis(1 - 2 * bits.astype(F32), 3, 1))
