"""Operators whose results at a place depend on their operands there."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import DATA, FLOAT, NUMBER, OvSite, builds
from bolt_numba.types import BOOL, F32, I8, I32, I64, U8

UNARY = {
    "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "Ceil": "ceiling", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "HardSwish": "hswish", "Log": "log", "Mish": "mish", "Sigmoid": "sigmoid", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Max": "maximum", "Min": "minimum"}
COMPARISONS = {
    "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
}  # fmt: skip
LOGICAL = {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not"}


def _plain(name: str) -> Any:
    return lambda s, op, *operands: getattr(s.v, name)(*operands)


for _table, _dtypes, _results in (
    (UNARY, FLOAT, FLOAT),
    ({"Abs": "abs", "Neg": "negative", "Relu": "relu", "Sign": "sign"}, NUMBER, NUMBER),
    (BINARY, NUMBER, NUMBER),
    (COMPARISONS, NUMBER, (BOOL,)),
    ({"Equal": "equal"}, (F32, I32, BOOL, U8, I8), (BOOL,)),
    (LOGICAL, (BOOL,), (BOOL,)),
):
    for _ours, _theirs in _table.items():
        builds(_ours, dtypes=_dtypes, results=_results, by_rank=True)(_plain(_theirs))


@builds("Div", "Pow", by_rank=True)
def quotient(s: OvSite, op: Any, x: Any, y: Any) -> Any:
    return (s.v.divide if op.name == "Div" else s.v.power)(x, y)


@builds("Mod")
def remainder(s: OvSite, op: Any, x: Any, y: Any) -> Any:
    """With the sign of the divisor, or of x as in C."""
    return s.v.mod(x, y) if op.fmod else s.v.floor_mod(x, y)


@builds("Reciprocal")
def reciprocal(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.divide(s.like(1), x)


@builds("Round")
def rounded(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.round(x, "half_to_even")


@builds("Clip", dtypes=NUMBER, by_rank=True)
def clip(s: OvSite, op: Any, x: Any) -> Any:
    """By least and greatest number, where there is one."""
    if op.lo is not None:
        x = s.v.maximum(x, s.like(op.lo))
    return x if op.hi is None and op.lo is not None else s.v.minimum(x, s.like(np.inf if op.hi is None else op.hi))


@builds("LeakyRelu")
def leaky(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.prelu(x, s.const(np.array([op.alpha], F32)))


@builds("PRelu")
def prelu(s: OvSite, op: Any, x: Any, slope: Any) -> Any:
    """As a choice: OpenVINO's own broadcasts a vector along the channels."""
    return s.v.select(s.v.less(x, s.like(0)), s.v.multiply(x, slope), x)


@builds("Elu", "Celu")
def elu(s: OvSite, op: Any, x: Any) -> Any:
    if op.name == "Elu":
        return s.v.elu(x, float(op.alpha))
    alpha = s.like(op.alpha)
    return s.v.multiply(alpha, s.v.elu(s.v.divide(x, alpha), 1.0))


@builds("Selu")
def selu(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.selu(x, s.like(op.alpha), s.like(op.gamma))


@builds("Swish")
def swish(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.swish(x, s.like(op.alpha))


@builds("Gelu", by_rank=True)
def gelu(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.gelu(x, "tanh" if op.approximate == "tanh" else "erf")


@builds("HardSigmoid", by_rank=True)
def hard_sigmoid(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.hard_sigmoid(x, s.like(op.alpha), s.like(op.beta))


@builds("ThresholdedRelu")
def thresholded(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.select(s.v.greater(x, s.like(op.alpha)), x, s.like(0))


@builds("Shrink")
def shrink(s: OvSite, op: Any, x: Any) -> Any:
    """Towards zero by a bias, and zero within the threshold."""
    above = s.v.select(s.v.greater(x, s.like(op.lambd)), s.v.subtract(x, s.like(op.bias)), s.like(0))
    return s.v.select(s.v.less(x, s.like(-op.lambd)), s.v.add(x, s.like(op.bias)), above)


@builds("IsNaN", results=(BOOL,))
def is_nan(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.not_equal(x, x)


@builds("IsInf", results=(BOOL,))
def is_inf(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.is_inf(x, {"detect_negative": op.detect_negative, "detect_positive": op.detect_positive})


@builds("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", dtypes=(I32, U8, I8))
def bitwise(s: OvSite, op: Any, *operands: Any) -> Any:
    return getattr(s.v, f"bitwise_{op.name.removeprefix('Bitwise').lower()}")(*operands)


@builds("Where", dtypes=DATA)
def where(s: OvSite, op: Any, condition: Any, x: Any, y: Any) -> Any:
    return s.v.select(condition, x, y)


@builds("Cast", dtypes=(F32, I32, BOOL, U8, I8))
def cast(s: OvSite, op: Any, x: Any) -> Any:
    """Between dtypes whose conversion is the same everywhere."""
    source = s.type(0).dtype
    s.want(source != F32 or op.to == F32, "a conversion of floats, which OpenVINO does not cut as ONNX does")
    s.want(op.to not in (U8, I8) or source in (BOOL, op.to), "a conversion of numbers that bytes may not hold")
    if op.to == BOOL:
        return s.v.not_equal(x, s.like(0)) if source != BOOL else [x]
    return s.v.convert(x, op.to.type)


@builds("Identity", dtypes=DATA)
def identity(s: OvSite, op: Any, x: Any) -> Any:
    """A shape that is its own."""
    return s.v.reshape(x, s.const(np.zeros(s.rank(), I64)), True)
