"""Readers of the optimizers of ai.onnx.preview.training: every tensor's update becomes pointwise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.pointwise import Add, Cast, Div, Greater, Mul, Pow, Sqrt, Sub, Where

DOMAIN = "ai.onnx.preview.training"


def _groups(b: NodeBuilder, operands: Sequence[Value], count: int) -> list[Sequence[Value]]:
    """Operands as ``count`` lists, one element per tensor: values, gradients, states."""
    if not operands or len(operands) % count:
        raise b.invalid("number of optimized operands", len(operands), f"a multiple of {count}")
    size = len(operands) // count
    return [operands[i * size : (i + 1) * size] for i in range(count)]


def _regularized(b: NodeBuilder, x: Value, gradient: Value, factor: float) -> Value:
    return b(Add(), b(Mul(), x, factor), gradient) if factor else gradient


def _started(b: NodeBuilder, step: Value, then: Any, otherwise: Any) -> Value:
    """One value from the second update on, another in the first."""
    return b(Where(), b(Greater(), step, 0), then, otherwise)


@reader("Adagrad", domain=DOMAIN)
def adagrad(
    b: NodeBuilder,
    rate: Value,
    step: Value,
    *operands: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Value]:
    made = []
    xs, gradients, squares = _groups(b, operands, 3)
    slowed = b(Add(), b(Mul(), b(Cast(rate.type.dtype), step), decay_factor), 1.0)
    for x, gradient, square in zip(xs, gradients, squares, strict=True):
        dtype = x.type.dtype
        g = _regularized(b, x, gradient, norm_coefficient)
        grown = b(Add(), square, b(Mul(), g, g))
        size = b(Cast(dtype), b(Div(), rate, slowed))
        move = b(Div(), b(Mul(), size, g), b(Add(), b(Sqrt(), grown), epsilon))
        made.append((b(Sub(), x, move), grown))
    return [row[i] for i in range(2) for row in made]


@reader("Adam", domain=DOMAIN)
def adam(
    b: NodeBuilder,
    rate: Value,
    step: Value,
    *operands: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Value]:
    made = []
    time = b(Cast(np.dtype("f8")), step)
    bias = b(Div(), b(Sqrt(), b(Sub(), 1.0, _power(b, beta, time))), b(Sub(), 1.0, _power(b, alpha, time)))
    corrected = b(Mul(), b(Cast(np.dtype("f8")), rate), _started(b, step, bias, np.ones(())))
    for x, gradient, mean, square in zip(*_groups(b, operands, 4), strict=True):
        g = _regularized(b, x, gradient, norm_coefficient)
        mean = b(Add(), b(Mul(), mean, alpha), b(Mul(), g, 1 - alpha))
        square = b(Add(), b(Mul(), square, beta), b(Mul(), b(Mul(), g, g), 1 - beta))
        move = b(Div(), mean, b(Add(), b(Sqrt(), square), epsilon))
        moved = b(Sub(), x, b(Mul(), b(Cast(x.type.dtype), corrected), move))
        made.append((b(Mul(), moved, 1 - norm_coefficient_post) if norm_coefficient_post else moved, mean, square))
    return [row[i] for i in range(3) for row in made]


def _power(b: NodeBuilder, base: float, exponent: Value) -> Value:
    return b(Pow(), np.array(base, exponent.type.dtype), exponent)


@reader("Momentum", domain=DOMAIN)
def momentum(
    b: NodeBuilder,
    rate: Value,
    step: Value,
    *operands: Value,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> list[Value]:
    b.invalid_if(mode not in ("standard", "nesterov"), "mode", mode, "standard or nesterov")
    made = []
    for x, gradient, speed in zip(*_groups(b, operands, 3), strict=True):
        dtype = x.type.dtype
        g = _regularized(b, x, gradient, norm_coefficient)
        share = _started(b, step, np.array(beta, dtype), np.array(1, dtype))
        speed = b(Add(), b(Mul(), speed, alpha), b(Mul(), g, share))
        move = speed if mode == "standard" else b(Add(), g, b(Mul(), speed, alpha))
        made.append((b(Sub(), x, b(Mul(), b(Cast(dtype), rate), move)), speed))
    return [row[i] for i in range(2) for row in made]
