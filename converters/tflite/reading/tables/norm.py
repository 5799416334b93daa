"""Readers of normalisations and softmax."""

from __future__ import annotations

import numpy as np

from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import LogSoftmax, ReduceL2, Softmax
from bolt_numba.ops.layers.norm import LRN
from bolt_numba.ops.pointwise import Clip, Div, Mul

LEAST_NORM = 1e-6
"""What a smaller norm counts as."""

TFLITE.add("LOG_SOFTMAX", lambda b, x: b(LogSoftmax(-1), x))


@TFLITE.reader("SOFTMAX")
def softmax(b: TfliteBuilder, x: Value, *, beta: float = 0.0) -> Value:
    return b(Softmax(-1), x if beta == 1 else b(Mul(), x, beta))


@TFLITE.reader("L2_NORMALIZATION")
def l2_normalization(b: TfliteBuilder, x: Value, *, fused_activation_function: str = "NONE") -> Value:
    norm = b(Clip(LEAST_NORM), b(ReduceL2(), x, np.array([-1])))
    return activated(b, b(Div(), x, norm), fused_activation_function)


@TFLITE.reader("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(
    b: TfliteBuilder, x: Value, *, radius: int = 0, bias: float = 0.0, alpha: float = 0.0, beta: float = 0.0
) -> Value:
    """The window goes from radius channels before to radius channels behind."""
    size = 2 * radius + 1
    return b(LRN(size, alpha * size, beta, bias, "NHWC"), x)
