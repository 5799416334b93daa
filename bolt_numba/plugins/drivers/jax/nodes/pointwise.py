"""Operators whose results at a place depend on their operands there."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F16, F32, F64, I32, I64, U32, U64, AnyDType
from bolt_numba.ops.dtypes import HALVES
from bolt_numba.plugins.drivers.jax.table import DATA, FLOATS, INTS, NUMBERS, JaxSite, builds

SIGNED = tuple(d for d in NUMBERS if d.kind != "u")
UNARY = {
    "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan", "Atanh": "arctanh",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Exp": "exp", "Floor": "floor", "Log": "log", "Round": "rint",
    "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Max": "maximum", "Min": "minimum"}
COMPARISONS = {
    "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
}  # fmt: skip
LOGICAL = {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not"}
BITWISE = {
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "BitwiseNot": "invert",
}  # fmt: skip


def _plain(name: str) -> Any:
    return lambda s, op, *operands: getattr(s.np, name)(*operands)


for _table, _dtypes, _results in (
    (UNARY, FLOATS, None),
    ({"Abs": "abs", "Sign": "sign"}, NUMBERS, None),
    ({"Neg": "negative"}, SIGNED, None),
    (BINARY, NUMBERS, None),
    (COMPARISONS, NUMBERS, (BOOL,)),
    ({"Equal": "equal"}, (*NUMBERS, BOOL), (BOOL,)),
    (LOGICAL, (BOOL,), None),
    (BITWISE, INTS, None),
    ({"IsNaN": "isnan"}, FLOATS, (BOOL,)),
):
    for _ours, _theirs in _table.items():
        builds(_ours, dtypes=_dtypes, results=_results, by_rank=True)(_plain(_theirs))


@builds("Erf", "Sigmoid", dtypes=FLOATS, by_rank=True)
def of_lax(s: JaxSite, op: Any, x: Any) -> Any:
    return s.lax.erf(x) if op.name == "Erf" else s.lax.logistic(x)


@builds("Reciprocal", "Softsign", dtypes=FLOATS, by_rank=True)
def quotients(s: JaxSite, op: Any, x: Any) -> Any:
    return 1 / x if op.name == "Reciprocal" else x / (1 + s.np.abs(x))


@builds("Softplus", "Mish", dtypes=FLOATS, by_rank=True)
def softplus(s: JaxSite, op: Any, x: Any) -> Any:
    y = s.np.logaddexp(x, s.np.zeros((), x.dtype))
    return y if op.name == "Softplus" else x * s.np.tanh(y)


@builds("Relu", "LeakyRelu", dtypes=SIGNED, by_rank=True)
def relu(s: JaxSite, op: Any, x: Any) -> Any:
    return s.np.where(x < 0, 0 if op.name == "Relu" else x * op.alpha, x).astype(x.dtype)


@builds("PRelu", dtypes=NUMBERS, by_rank=True)
def prelu(s: JaxSite, op: Any, x: Any, slope: Any) -> Any:
    return s.np.where(x >= 0, x, x * slope)


@builds("Clip", dtypes=NUMBERS, by_rank=True)
def clip(s: JaxSite, op: Any, x: Any) -> Any:
    """Between least and greatest number, where there is one; NaN stays, and a bound of NaN leaves NaN."""
    for bound, beyond in ((op.lo, s.np.less), (op.hi, s.np.greater)):
        if bound is not None:
            limit = np.dtype(x.dtype).type(bound)
            x = s.np.where(beyond(x, limit) | bool(limit != limit), limit, x)
    return s.np.asarray(x)


@builds("ThresholdedRelu", "Shrink", dtypes=FLOATS, by_rank=True)
def thresholds(s: JaxSite, op: Any, x: Any) -> Any:
    if op.name == "ThresholdedRelu":
        return s.np.where(x > op.alpha, x, 0)
    return s.np.where(x < -op.lambd, x + op.bias, s.np.where(x > op.lambd, x - op.bias, 0))


@builds("Elu", "Celu", "Selu", dtypes=FLOATS, by_rank=True)
def elu(s: JaxSite, op: Any, x: Any) -> Any:
    y = s.np.where(x < 0, op.alpha * s.np.expm1(x / op.alpha if op.name == "Celu" else x), x)
    return op.gamma * y if op.name == "Selu" else y


@builds("Swish", "Gelu", dtypes=FLOATS, by_rank=True)
def gates(s: JaxSite, op: Any, x: Any) -> Any:
    if op.name == "Swish":
        return x * s.lax.logistic(op.alpha * x)
    return s.jax.nn.gelu(x, approximate=op.approximate == "tanh")


@builds("HardSigmoid", "HardSwish", dtypes=FLOATS, by_rank=True)
def hard(s: JaxSite, op: Any, x: Any) -> Any:
    if op.name == "HardSigmoid":
        return s.np.clip(op.alpha * x + op.beta, 0, 1)
    return x * s.np.clip(x / 6 + 0.5, 0, 1)


@builds("IsInf", dtypes=FLOATS, results=(BOOL,), by_rank=True)
def is_inf(s: JaxSite, op: Any, x: Any) -> Any:
    return (s.np.isposinf(x) & bool(op.detect_positive)) | (s.np.isneginf(x) & bool(op.detect_negative))


@builds("Where", dtypes=DATA, others={0: (BOOL,)}, by_rank=True)
def where(s: JaxSite, op: Any, condition: Any, x: Any, y: Any) -> Any:
    return s.np.where(condition, x, y)


def _not_zero(s: JaxSite, y: Any) -> tuple[Any, Any]:
    """Where an integer divisor is 0, and a divisor that is not."""
    return y == 0, s.np.where(y == 0, s.np.ones((), y.dtype), y)


@builds("Div", dtypes=NUMBERS, by_rank=True)
def quotient(s: JaxSite, op: Any, x: Any, y: Any) -> Any:
    """Of integers cut towards zero, and 0 where the divisor is."""
    if x.dtype.kind not in "iu":
        return s.np.true_divide(x, y)
    none, divisor = _not_zero(s, y)
    x, divisor = s.np.broadcast_arrays(x, divisor)
    return s.np.where(none, s.np.zeros((), x.dtype), s.lax.div(x, divisor))


@builds("Mod", dtypes=NUMBERS, by_rank=True)
def remainder(s: JaxSite, op: Any, x: Any, y: Any) -> Any:
    """With the sign of the divisor, or of x as in C."""
    made = s.np.fmod if op.fmod else s.np.mod
    if x.dtype.kind not in "iu":
        return made(x, y)
    none, divisor = _not_zero(s, y)
    return s.np.where(none, s.np.zeros((), x.dtype), made(x, divisor))


@builds("Pow", dtypes=FLOATS, by_rank=True)
def power(s: JaxSite, op: Any, x: Any, y: Any) -> Any:
    """Of 0 and infinity as of other numbers, where the exponent is a half."""
    y = y.astype(x.dtype)
    made = s.np.power(x, y)
    return s.np.where((y == 0.5) & ((x == 0) | s.np.isinf(x)), s.np.abs(x), made)


@builds("BitShift", dtypes=INTS, by_rank=True)
def shift(s: JaxSite, op: Any, x: Any, y: Any) -> Any:
    beyond = (y < 0) | (y >= 8 * x.dtype.itemsize)
    x, safe = s.np.broadcast_arrays(x, s.np.where(beyond, s.np.zeros((), y.dtype), y))
    if op.direction == "LEFT":
        return s.np.where(beyond, s.np.zeros((), x.dtype), s.np.left_shift(x, safe))
    return s.np.where(beyond, -(x < 0).astype(x.dtype), s.np.right_shift(x, safe))


@builds("Cast", dtypes=(*NUMBERS, BOOL))
def cast(s: JaxSite, op: Any, x: Any) -> Any:
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
