"""Activations as sums, products and the functions that most devices have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.ops import pointwise as p
from bolt_numba.ops.decomposed.decompose import Terms, WholeError, decomposes


@decomposes(p.Gelu)
def gelu(op: Any, b: Terms, x: Any) -> Any:
    """``0.5 * x * (1 + Erf(x / sqrt 2))``, or with Tanh where it is approximate."""
    if op.approximate == "tanh":
        cube = b(p.Mul(), b(p.Mul(), x, x), x)
        inner = b(p.Tanh(), b(p.Mul(), b(p.Add(), x, b(p.Mul(), cube, 0.044715)), math.sqrt(2 / math.pi)))
    else:
        inner = b(p.Erf(), b(p.Mul(), x, math.sqrt(0.5)))
    return b(p.Mul(), b(p.Mul(), x, 0.5), b(p.Add(), inner, 1.0))


@decomposes(p.Swish)
def swish(op: Any, b: Terms, x: Any) -> Any:
    """``x * Sigmoid(alpha * x)``."""
    return b(p.Mul(), x, b(p.Sigmoid(), x if op.alpha == 1 else b(p.Mul(), x, op.alpha)))


@decomposes(p.Mish)
def mish(op: Any, b: Terms, x: Any) -> Any:
    """``x * Tanh(Softplus(x))``."""
    return b(p.Mul(), x, b(p.Tanh(), b(p.Softplus(), x)))


@decomposes(p.HardSwish)
def hard_swish(op: Any, b: Terms, x: Any) -> Any:
    """``x * HardSigmoid(x)``."""
    return b(p.Mul(), x, b(p.HardSigmoid(1 / 6, 0.5), x))


@decomposes(p.HardSigmoid)
def hard_sigmoid(op: Any, b: Terms, x: Any) -> Any:
    """``Clip(alpha * x + beta, 0, 1)``."""
    return b(p.Clip(0.0, 1.0), b(p.Add(), b(p.Mul(), x, op.alpha), op.beta))


@decomposes(p.Softplus)
def softplus(op: Any, b: Terms, x: Any) -> Any:
    """``Relu(x) + Log(1 + Exp(-Abs(x)))``."""
    return b(p.Add(), b(p.Relu(), x), b(p.Log(), b(p.Add(), b(p.Exp(), b(p.Neg(), b(p.Abs(), x))), 1.0)))


@decomposes(p.Softsign)
def softsign(op: Any, b: Terms, x: Any) -> Any:
    """``x / (1 + Abs(x))``."""
    return b(p.Div(), x, b(p.Add(), b(p.Abs(), x), 1.0))


@decomposes(p.LeakyRelu)
def leaky_relu(op: Any, b: Terms, x: Any) -> Any:
    """``Relu(x) - alpha * Relu(-x)``."""
    return b(p.Sub(), b(p.Relu(), x), b(p.Mul(), b(p.Relu(), b(p.Neg(), x)), op.alpha))


@decomposes(p.PRelu)
def prelu(op: Any, b: Terms, x: Any, slope: Any) -> Any:
    """``Relu(x) - slope * Relu(-x)``."""
    if x.type.dtype.kind == "u":
        raise WholeError("unsigned numbers have no negative")
    return b(p.Sub(), b(p.Relu(), x), b(p.Mul(), b(p.Relu(), b(p.Neg(), x)), slope))


@decomposes(p.Clip)
def clip(op: Any, b: Terms, x: Any) -> Any:
    """``Min(Max(x, lo), hi)``."""
    x = x if op.lo is None else b(p.Max(), x, op.lo)
    return x if op.hi is None else b(p.Min(), x, op.hi)


@decomposes(p.Reciprocal)
def reciprocal(op: Any, b: Terms, x: Any) -> Any:
    """``1 / x``."""
    return b(p.Div(), np.ones((), x.type.dtype), x)
