"""Activations of recurrent layers: functions of one f32 number, with ONNX's alpha ``a`` and beta ``b``.

Their formulas are those of `bolt_numba.ops.layers.recurrent`; NaN stays NaN.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from bolt_numba.kernels.cuda.declare import inline


@inline
def relu(x, a, b):
    return np.float32(0) if x < np.float32(0) else x


@inline
def hyperbolic(x, a, b):
    return math.tanh(x)


@inline
def sigmoid(x, a, b):
    e = math.exp(-abs(x))
    return (np.float32(1) if x >= np.float32(0) else e) / (np.float32(1) + e)


@inline
def affine(x, a, b):
    return x * a + b


@inline
def leakyrelu(x, a, b):
    return x * a if x < np.float32(0) else x


@inline
def thresholdedrelu(x, a, b):
    return np.float32(0) if x <= a else x


@inline
def scaledtanh(x, a, b):
    return a * math.tanh(x * b)


@inline
def hardsigmoid(x, a, b):
    y = x * a + b
    y = np.float32(0) if y < np.float32(0) else y
    return np.float32(1) if y > np.float32(1) else y


@inline
def elu(x, a, b):
    return a * math.expm1(x) if x < np.float32(0) else x


@inline
def softsign(x, a, b):
    return x / (np.float32(1) + abs(x))


@inline
def softplus(x, a, b):
    top = np.float32(0) if x < np.float32(0) else x
    return top + math.log1p(math.exp(-abs(x)))


FUNCTIONS = {
    "relu": relu, "tanh": hyperbolic, "sigmoid": sigmoid, "affine": affine, "leakyrelu": leakyrelu,
    "thresholdedrelu": thresholdedrelu, "scaledtanh": scaledtanh, "hardsigmoid": hardsigmoid, "elu": elu,
    "softsign": softsign, "softplus": softplus,
}  # fmt: skip
"""By the lower-case names of ONNX."""
