"""Cases of pointwise operators: one strategy for all rows, from the columns of the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise.chain import Chain, ChainStep
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import OPS
from bolt_numba.types import BOOL, F32, I8, I16, I32, I64, STRING, U8, U16, AnyDType, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, real, shapes, whole

ATTRIBUTES: dict[type[Any], list[Any]] = {
    p.LeakyRelu: [p.LeakyRelu(), p.LeakyRelu(0.25)],
    p.Elu: [p.Elu(), p.Elu(0.5)],
    p.Celu: [p.Celu(), p.Celu(2.0)],
    p.Clip: [p.Clip(0, 6), p.Clip(lo=2), p.Clip(hi=3), p.Clip()],
    p.Shrink: [p.Shrink(), p.Shrink(1.0, 1.5)],
    p.Swish: [p.Swish(), p.Swish(1.5)],
    p.Gelu: [p.Gelu(), p.Gelu("tanh")],
    p.HardSigmoid: [p.HardSigmoid(), p.HardSigmoid(1 / 6, 0.5)],
    p.IsInf: [p.IsInf(), p.IsInf(False, True), p.IsInf(True, False)],
    p.Mod: [p.Mod(), p.Mod(True)],
    p.BitShift: [p.BitShift("LEFT"), p.BitShift("RIGHT")],
}


def _broadcast(draw: Draw, dims: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``dims``."""
    kept = tuple(1 if draw(flags) and draw(flags) else d for d in dims)
    return kept[draw(st.integers(0, len(kept))) :] if draw(flags) else kept


def _content(draw: Draw, op: Any, dims: tuple[int, ...], dtype: AnyDType) -> Array:
    if dtype == BOOL:
        return whole(draw, dims, 0, 1, dtype)
    if dtype.kind != "f":
        return whole(draw, dims, 0 if dtype.kind == "u" else -9, 9, dtype)
    if not op.ulp:
        return whole(draw, dims, -9, 9, dtype)
    low, high = op.domain
    return real(draw, dims, low, high, dtype)


FREE = (p.Add, p.Less, p.And)
"""Operators that stand for all of their kind in how they broadcast: loops are generated from shapes alone."""


def _operands(draw: Draw, op: type[Any], dims: tuple[int, ...], dtype: AnyDType) -> list[tuple[int, ...]]:
    """Shapes that broadcast to ``dims``; few kinds of loops, as each kind is a kernel of each operator and dtype."""
    if op.arity > 1 and op in FREE:
        made = [dims] + [_broadcast(draw, dims) for _ in range(op.arity - 1)]
        return made[::-1] if draw(flags) else made
    last = pick(draw, dims, dims, (), dims[-1:]) if dtype == F32 else dims
    return [dims] * (op.arity - 1) + [last if op.arity > 1 else dims]


def row(draw: Draw, op: type[Any]) -> Case:
    made = pick(draw, *ATTRIBUTES.get(op, [op]))
    made = made() if isinstance(made, type) else made
    likely = [d for d in (F32, F32, F32, I64, I32, U8, BOOL) if d in op.dtypes]
    dtype = pick(draw, *(likely or [d for d in op.dtypes if d != STRING]))
    dims = shapes(draw, 0, 4)
    inputs = tuple(_content(draw, op, s, dtype) for s in _operands(draw, op, dims, dtype))
    exact = not op.ulp and not (dtype == F32 and op in (p.Div, p.Reciprocal, p.Sqrt, p.LeakyRelu, p.Shrink))
    return Case(made, inputs, exact)


for _row in [c for c in OPS.values() if issubclass(c, Pointwise) and c not in (p.Cast, p.Where, p.Pow)]:
    cases(_row)(row)


@cases(p.Cast)
def cast(draw: Draw, op: type[Any]) -> Case:
    source, to = pick(draw, F32, I64, I32, U8, I8, BOOL), pick(draw, F32, I64, I32, U8, I8, BOOL)
    low = 0 if source in (U8, BOOL) or to == U8 else -9
    return Case(op(to=to), (whole(draw, shapes(draw, 0, 4), low, 1 if source == BOOL else 9, source),))


@cases(p.Where)
def where(draw: Draw, op: type[Any]) -> Case:
    dims, dtype = shapes(draw, 0, 4), pick(draw, F32, F32, I64, BOOL)
    high = 1 if dtype == BOOL else 9
    x, y = (whole(draw, _broadcast(draw, dims), 0, high, dtype) for _ in range(2))
    return Case(op(), (whole(draw, dims, 0, 1, BOOL), x, y))


@cases(p.Pow)
def power(draw: Draw, op: type[Any]) -> Case:
    dims = shapes(draw, 0, 4)
    if pick(draw, False, False, True):
        base, exponent = pick(draw, F32, I32, I64, U8), pick(draw, F32, I32, I64, U8)
        x = whole(draw, dims, 0 if base == U8 else -3, 4, base)
        return Case(op(), (x, whole(draw, _broadcast(draw, dims), 0, 3, exponent)), exact=False)
    y = real(draw, _broadcast(draw, dims), -2, 2) if draw(flags) else np.float32(pick(draw, 2.0, 0.5, 3.0, -1.0))
    return Case(op(), (real(draw, dims, 0.1, 4.0), np.asarray(y)), exact=False)


STEPS = [p.Add(), p.Sub(), p.Max(), p.Relu(), p.Neg(), p.Abs(), p.Clip(-3.0, 3.0)]


@cases(Chain)
def chain(draw: Draw, op: type[Chain]) -> Case:
    """Chains whose every step keeps the first operand's shape; with bytes at the ends or without."""
    dims = shapes(draw, 1, 3)
    if pick(draw, False, True):
        return _between_bytes(draw, op, dims)
    inputs = (whole(draw, dims), whole(draw, _broadcast(draw, dims)))
    steps: list[ChainStep] = [(p.Add(), (0, 1))]
    for i in range(draw(st.integers(0, 3))):
        step = pick(draw, *STEPS)
        steps.append((step, (2 + i, *(draw(st.integers(0, 2 + i)) for _ in range(step.arity - 1)))))
    return Case(op(tuple(steps), (1 + len(steps),)), inputs)


def _between_bytes(draw: Draw, op: type[Chain], dims: tuple[int, ...]) -> Case:
    """Scales are powers of two, so that nothing is rounded before the result is."""
    low = {U8: 0, I8: -128, U16: 32000, I16: -128}
    kinds = [pick(draw, U8, I8, U8, I8, U16, I16) for _ in range(3)]
    scales = [np.asarray(2.0 ** draw(st.integers(-4, 2)), F32) for _ in kinds]
    zeros = [whole(draw, (), low[kind], low[kind] + 255, kind) for kind in kinds]
    sizes = (dims, _broadcast(draw, dims))
    given = [whole(draw, s, low[k], low[k] + 255, k) for s, k in zip(sizes, kinds, strict=False)]
    steps: list[ChainStep] = [(DequantizeLinear(), (0, 2, 5)), (DequantizeLinear(), (1, 3, 6))]
    steps.append((pick(draw, p.Add(), p.Sub(), p.Mul(), p.Max()), (8, 9)))
    if draw(flags):
        steps.append((pick(draw, p.Relu(), p.Clip(-3.0, 3.0)), (10,)))
    steps.append((QuantizeLinear(), (7 + len(steps), 4, 7)))
    return Case(op(tuple(steps), (7 + len(steps),)), (*given, *scales, *zeros))
