"""Activations as sums, products and the functions that most devices have.

gelu(Gelu(x))                   -> 0.5 * x * (1 + Erf(x / sqrt 2)), or with Tanh where it is approximate
swish(Swish(x))                 -> x * Sigmoid(alpha * x)
mish(Mish(x))                   -> x * Tanh(Softplus(x))
hard_swish(HardSwish(x))        -> x * HardSigmoid(x)
hard_sigmoid(HardSigmoid(x))    -> Clip(alpha * x + beta)
softplus(Softplus(x))           -> Relu(x) + Log(1 + Exp(-Abs(x)))
softsign(Softsign(x))           -> x / (1 + Abs(x))
leaky_relu(LeakyRelu(x))        -> Relu(x) - alpha * Relu(-x)
prelu(PRelu(x, slope))          -> Relu(x) - slope * Relu(-x)
clip(Clip(x))                   -> Min(Max(x, lo), hi)
reciprocal(Reciprocal(x))       -> 1 / x
"""

from __future__ import annotations

import math
from typing import Any

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.pointwise import (
    Abs,
    Add,
    Clip,
    Div,
    Erf,
    Exp,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Log,
    Max,
    Min,
    Mish,
    Mul,
    Neg,
    PRelu,
    Reciprocal,
    Relu,
    Sigmoid,
    Softplus,
    Softsign,
    Sub,
    Swish,
    Tanh,
)
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

_X = Pat(name="x")


@rule(Pat(Gelu, (_X,)))
def gelu(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x = m["x"]
    if op.approximate == "tanh":
        cube = b(Mul(), b(Mul(), x, x), x)
        inner = b(Tanh(), b(Mul(), b(Add(), x, b(Mul(), cube, 0.044715)), math.sqrt(2 / math.pi)))
    else:
        inner = b(Erf(), b(Mul(), x, math.sqrt(0.5)))
    return b(Mul(), b(Mul(), x, 0.5), b(Add(), inner, 1.0))


@rule(Pat(Swish, (_X,)))
def swish(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x = m["x"]
    return b(Mul(), x, b(Sigmoid(), x if op.alpha == 1 else b(Mul(), x, op.alpha)))


@rule(Pat(Mish, (_X,)))
def mish(m: Match, b: Builder) -> Result:
    return b(Mul(), m["x"], b(Tanh(), b(Softplus(), m["x"])))


@rule(Pat(HardSwish, (_X,)))
def hard_swish(m: Match, b: Builder) -> Result:
    return b(Mul(), m["x"], b(HardSigmoid(1 / 6, 0.5), m["x"]))


@rule(Pat(HardSigmoid, (_X,)))
def hard_sigmoid(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    return b(Clip(0.0, 1.0), b(Add(), b(Mul(), m["x"], op.alpha), op.beta))


@rule(Pat(Softplus, (_X,)))
def softplus(m: Match, b: Builder) -> Result:
    x = m["x"]
    return b(Add(), b(Relu(), x), b(Log(), b(Add(), b(Exp(), b(Neg(), b(Abs(), x))), 1.0)))


@rule(Pat(Softsign, (_X,)))
def softsign(m: Match, b: Builder) -> Result:
    return b(Div(), m["x"], b(Add(), b(Abs(), m["x"]), 1.0))


def _two_sided(b: Builder, x: Value, slope: Value | float) -> Value:
    made: Value = b(Sub(), b(Relu(), x), b(Mul(), b(Relu(), b(Neg(), x)), slope))
    return made


@rule(Pat(LeakyRelu, (_X,)))
def leaky_relu(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    return _two_sided(b, m["x"], op.alpha)


@rule(Pat(PRelu, (_X, Pat(name="slope"))))
def prelu(m: Match, b: Builder) -> Result:
    if m["x"].type.dtype.kind == "u":
        return m.refuse("unsigned numbers have no negative")
    return _two_sided(b, m["x"], m["slope"])


@rule(Pat(Clip, (_X,)))
def clip(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    if op.lo is None and op.hi is None:
        return m["x"]
    x = m["x"] if op.lo is None else b(Max(), m["x"], op.lo)
    return x if op.hi is None else b(Min(), x, op.hi)


@rule(Pat(Reciprocal, (_X,)))
def reciprocal(m: Match, b: Builder) -> Result:
    one = b.const(m["x"].type.dtype.type(1))
    return b(Div(), one, m["x"])


RULES: tuple[Rule, ...] = (
    gelu, swish, mish, hard_swish, hard_sigmoid, softplus, softsign, leaky_relu, prelu, clip, reciprocal,
)  # fmt: skip
