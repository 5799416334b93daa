"""Operators whose results at a place depend on their operands there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F16, F32, F64, I32, I64, U32, U64, AnyDType
from bolt_numba.ops import pointwise
from bolt_numba.ops.dtypes import HALVES
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.plugins.drivers.jax.table import DATA, FLOATS, INTS, NUMBERS, JaxSite, builds

BY_FORMULA = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu Cos Cosh Elu"
    " Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsNaN LeakyRelu Less LessOrEqual Log Max"
    " Min Mish Mul Neg Or PRelu Reciprocal Relu Round Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt Sub Swish"
    " Tan Tanh ThresholdedRelu Xor"
)
SAME = ("abs", "ceil", "cos", "cosh", "exp", "expm1", "floor", "log", "sin", "sinh", "sqrt", "tan", "tanh", "where")
ARCS = ("acos", "acosh", "asin", "asinh", "atan", "atanh")
"""Functions in formulas that JAX has by the same name, or as arc and the rest."""


def _functions(s: JaxSite) -> dict[str, Any]:
    """What the names in formulas are."""
    v = s.np

    def softplus(x: Any) -> Any:
        return v.logaddexp(x, v.zeros((), x.dtype))

    return {
        **{name: getattr(v, name) for name in SAME}, **{name: getattr(v, f"arc{name[1:]}") for name in ARCS},
        "max": v.maximum, "min": v.minimum, "round": v.rint, "erf": s.lax.erf, "sigmoid": s.lax.logistic,
        "softplus": softplus, "mish": lambda x: x * v.tanh(softplus(x)), "gelu_tanh": s.jax.nn.gelu,
        "gelu": lambda x: s.jax.nn.gelu(x, approximate=False),
    }  # fmt: skip


def _by_formula(s: JaxSite, op: Any, *operands: Any) -> Any:
    """The formula of the operator's row, with its attributes."""
    names = {f.name: getattr(op, f.name) for f in fields(op)} | dict(zip("xyz", operands, strict=False))
    return eval(op.text, _functions(s) | names)


for _name in BY_FORMULA.split():
    _row = getattr(pointwise, _name)
    _results = (BOOL,) if _row.result == "bool" else None
    builds(_name, dtypes=tuple(d for d in DATA if d in _row.dtypes), results=_results, by_rank=True)(_by_formula)


@builds("Sign", dtypes=NUMBERS, by_rank=True)
def sign(s: JaxSite, op: Pointwise, x: Any) -> Any:
    return s.np.sign(x)


@builds("Not", dtypes=(BOOL,), by_rank=True)
def negation(s: JaxSite, op: Pointwise, x: Any) -> Any:
    return s.np.logical_not(x)


@builds("Clip", dtypes=NUMBERS, by_rank=True)
def clip(s: JaxSite, op: Pointwise, x: Any) -> Any:
    """Between least and greatest number, where there is one; NaN stays, and a bound of NaN leaves NaN."""
    for bound, beyond in ((op.lo, s.np.less), (op.hi, s.np.greater)):
        if bound is not None:
            limit = np.dtype(x.dtype).type(bound)
            x = s.np.where(beyond(x, limit) | bool(limit != limit), limit, x)
    return s.np.asarray(x)


@builds("IsInf", dtypes=FLOATS, results=(BOOL,), by_rank=True)
def is_inf(s: JaxSite, op: Pointwise, x: Any) -> Any:
    return (s.np.isposinf(x) & bool(op.detect_positive)) | (s.np.isneginf(x) & bool(op.detect_negative))


@builds("Where", dtypes=DATA, others={0: (BOOL,)}, by_rank=True)
def where(s: JaxSite, op: Pointwise, condition: Any, x: Any, y: Any) -> Any:
    return s.np.where(condition, x, y)


def _not_zero(s: JaxSite, y: Any) -> tuple[Any, Any]:
    """Where an integer divisor is 0, and a divisor that is not."""
    return y == 0, s.np.where(y == 0, s.np.ones((), y.dtype), y)


@builds("Div", dtypes=NUMBERS, by_rank=True)
def quotient(s: JaxSite, op: Pointwise, x: Any, y: Any) -> Any:
    """Of integers cut towards zero, and 0 where the divisor is."""
    if x.dtype.kind not in "iu":
        return s.np.true_divide(x, y)
    none, divisor = _not_zero(s, y)
    x, divisor = s.np.broadcast_arrays(x, divisor)
    return s.np.where(none, s.np.zeros((), x.dtype), s.lax.div(x, divisor))


@builds("Mod", dtypes=NUMBERS, by_rank=True)
def remainder(s: JaxSite, op: Pointwise, x: Any, y: Any) -> Any:
    """With the sign of the divisor, or of x as in C."""
    made = s.np.fmod if op.fmod else s.np.mod
    if x.dtype.kind not in "iu":
        return made(x, y)
    none, divisor = _not_zero(s, y)
    return s.np.where(none, s.np.zeros((), x.dtype), made(x, divisor))


@builds("Pow", dtypes=FLOATS, by_rank=True)
def power(s: JaxSite, op: Pointwise, x: Any, y: Any) -> Any:
    """Of 0 and infinity as of other numbers, where the exponent is a half."""
    y = y.astype(x.dtype)
    made = s.np.power(x, y)
    return s.np.where((y == 0.5) & ((x == 0) | s.np.isinf(x)), s.np.abs(x), made)


@builds("BitShift", dtypes=INTS, by_rank=True)
def shift(s: JaxSite, op: Pointwise, x: Any, y: Any) -> Any:
    beyond = (y < 0) | (y >= 8 * x.dtype.itemsize)
    x, safe = s.np.broadcast_arrays(x, s.np.where(beyond, s.np.zeros((), y.dtype), y))
    if op.direction == "LEFT":
        return s.np.where(beyond, s.np.zeros((), x.dtype), s.np.left_shift(x, safe))
    return s.np.where(beyond, -(x < 0).astype(x.dtype), s.np.right_shift(x, safe))


@builds("Cast", dtypes=(*NUMBERS, BOOL))
def cast(s: JaxSite, op: Pointwise, x: Any) -> Any:
    """As `ops.arrays.conversion` says, also of floats that an integer does not hold."""
    source, to = s.type(0).dtype, np.dtype(op.to)
    x = s.np.asarray(x)
    if to == BOOL:
        return x != 0
    if to.kind in "iu" and source.kind not in "iub":
        x = _whole(s, x, to)
    if source == F64 and to in HALVES:
        x = x.astype(F32)
    if source in INTS and to in HALVES:
        x = x.astype(F64 if to == F16 else F32)
    return x.astype(to)


def _whole(s: JaxSite, x: Any, to: AnyDType) -> Any:
    """Floats cut to integers; what does not fit is the least number."""
    wide = x if x.dtype == F64 else x.astype(F32)
    span = I64 if to in (U32, I64, U64) else I32
    limit, least = wide.dtype.type(2.0 ** (8 * span.itemsize - 1)), np.iinfo(span).min
    high = (wide >= limit) & (to == U64)
    moved = s.np.where(high, wide - limit, wide)
    fits = s.np.abs(moved) < limit
    made = s.np.where(fits, s.np.where(fits, moved, 0).astype(span), span.type(least))
    return s.np.where(high, made ^ span.type(least), made)
