"""Activations that SimNPU lacks, in operators that it has: rules for what `supports` refuses."""

from __future__ import annotations

from bolt_numba.ir.build import Builder
from bolt_numba.ops.pointwise import Add, Clip, HardSigmoid, HardSwish, LeakyRelu, Max, Mul, Sigmoid, Swish
from bolt_numba.passes.rewrite import Match, Pat, Result, rule
from bolt_numba.types import F32


@rule(Pat(LeakyRelu, (Pat(name="x"),), name="y", where=lambda op: 0 <= op.alpha <= 1))
def leaky_relu(match: Match, build: Builder) -> Result:
    """LeakyRelu(x) -> Max(x, alpha * x)."""
    x = match["x"]
    return build(Max(), x, build(Mul(), x, F32.type(match.op("y").alpha))) if x.type.dtype == F32 else None


@rule(Pat(Swish, (Pat(name="x"),), name="y"))
def swish(match: Match, build: Builder) -> Result:
    """Swish(x) -> x * Sigmoid(alpha * x)."""
    x, alpha = match["x"], match.op("y").alpha
    if x.type.dtype != F32:
        return None
    return build(Mul(), x, build(Sigmoid(), x if alpha == 1 else build(Mul(), x, F32.type(alpha))))


@rule(Pat((HardSigmoid, HardSwish), (Pat(name="x"),), name="y"))
def hard(match: Match, build: Builder) -> Result:
    """HardSigmoid(x) -> Clip(alpha * x + beta, 0, 1); HardSwish(x) -> x * HardSigmoid(x) of 1/6 and 1/2."""
    x, op = match["x"], match.op("y")
    if x.type.dtype != F32:
        return None
    alpha, beta = getattr(op, "alpha", 1 / 6), getattr(op, "beta", 0.5)
    made = build(Clip(lo=0.0, hi=1.0), build(Add(), build(Mul(), x, F32.type(alpha)), F32.type(beta)))
    return build(Mul(), x, made) if op.name == "HardSwish" else made


RULES = (leaky_relu, swish, hard)
