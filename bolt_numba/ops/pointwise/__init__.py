"""Pointwise operators as rows: name, formula, reference.  No kernels here; `chain` is several of them fused.

The formula is a Python expression over ``x, y, z`` (the operands), the row's attributes and the functions of
`bolt_numba.codegen.formula`; generators turn it into vector code, fused chains and GEMM epilogues.  The reference is
written independently of it, in NumPy, and computes in a wider type than it returns where that matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, STRING
from bolt_numba.ops.pointwise.mixed import Convert, Power, Select, convert
from bolt_numba.ops.pointwise.references import (
    at_least,
    clip,
    div,
    equal,
    erf,
    gelu,
    isinf,
    isinf_text,
    maximum,
    minimum,
    mod,
    power,
    shift,
    sigmoid,
    softplus,
)
from bolt_numba.ops.pointwise.row import BYTE_FLOATS, FLOATS, INTS, NUMERIC, SIGNED, pointwise

_CONVERT: dict[str, Any] = {"to": np.dtype, "saturate": True, "round_mode": "up"}
_WITH_BOOL = (*NUMERIC, BOOL)
_WITH_BYTES = (*FLOATS, *BYTE_FLOATS)

# Unary, exact.
Abs = pointwise("Abs", "abs(x)", np.abs, dtypes=NUMERIC)
Neg = pointwise("Neg", "-x", np.negative, dtypes=SIGNED, on_symbols=True)
Reciprocal = pointwise("Reciprocal", "1 / x", lambda x: 1 / x)
Sqrt = pointwise("Sqrt", "sqrt(x)", np.sqrt, domain=(0, 100))
Floor = pointwise("Floor", "floor(x)", np.floor)
Ceil = pointwise("Ceil", "ceil(x)", np.ceil)
Round = pointwise("Round", "round(x)", np.rint, doc="Round, halves to even")
Sign = pointwise("Sign", "where(x > 0, 1, where(x < 0, -1, x + 0))", np.sign, dtypes=NUMERIC, doc="Sign, -0 gives 0")
Relu = pointwise("Relu", "max(x, 0)", lambda x: at_least(x, 0), dtypes=SIGNED)
LeakyRelu = pointwise(
    "LeakyRelu", "where(x >= 0, x, alpha * x)", lambda o, x: np.where(x >= 0, x, o.alpha * x), alpha=0.01
)
ThresholdedRelu = pointwise(
    "ThresholdedRelu", "where(x > alpha, x, 0)", lambda o, x: np.where(x > o.alpha, x, 0), alpha=1.0
)
Clip = pointwise("Clip", "min(max(x, lo), hi)", clip, dtypes=NUMERIC, lo=None, hi=None)
Shrink = pointwise(
    "Shrink",
    "where(x < -lambd, x + bias, where(x > lambd, x - bias, 0))",
    lambda o, x: np.where(x < -o.lambd, x + o.bias, np.where(x > o.lambd, x - o.bias, 0)),
    bias=0.0,
    lambd=0.5,
)
Softsign = pointwise("Softsign", "x / (1 + abs(x))", lambda x: x / (1 + np.abs(x)), ulp=2)
HardSigmoid = pointwise(
    "HardSigmoid",
    "max(0, min(1, alpha * x + beta))",
    lambda o, x: np.clip(o.alpha * x + o.beta, 0, 1),
    ulp=2,
    alpha=0.2,
    beta=0.5,
)
HardSwish = pointwise(
    "HardSwish", "x * max(0, min(1, x * (1 / 6) + 0.5))", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), ulp=4
)

# Unary, transcendental.
Exp = pointwise("Exp", "exp(x)", np.exp, domain=(-20, 20), ulp=2)
Log = pointwise("Log", "log(x)", np.log, domain=(1e-6, 100), ulp=2)
Erf = pointwise("Erf", "erf(x)", erf, domain=(-5, 5), ulp=3)
Sigmoid = pointwise("Sigmoid", "sigmoid(x)", sigmoid, domain=(-20, 20), ulp=3)
Tanh = pointwise("Tanh", "tanh(x)", np.tanh, ulp=3)
Softplus = pointwise("Softplus", "softplus(x)", softplus, domain=(-20, 20), ulp=4)
Elu = pointwise(
    "Elu", "where(x < 0, alpha * expm1(x), x)", lambda o, x: np.where(x < 0, o.alpha * np.expm1(x), x), ulp=4, alpha=1.0
)
Celu = pointwise(
    "Celu",
    "where(x < 0, alpha * expm1(x * (1 / alpha)), x)",
    lambda o, x: np.where(x < 0, o.alpha * np.expm1(x / o.alpha), x),
    ulp=6,
    alpha=1.0,
)
Selu = pointwise(
    "Selu",
    "gamma * where(x < 0, alpha * expm1(x), x)",
    lambda o, x: o.gamma * np.where(x < 0, o.alpha * np.expm1(x), x),
    ulp=6,
    alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875,
)
Mish = pointwise("Mish", "mish(x)", lambda x: x * np.tanh(softplus(x)), domain=(-20, 20), ulp=6)
Swish = pointwise("Swish", "x * sigmoid(alpha * x)", lambda o, x: x * sigmoid(o.alpha * x), ulp=16, alpha=1.0)
Gelu = pointwise(
    "Gelu",
    lambda o: "gelu(x)" if o.approximate == "none" else "gelu_tanh(x)",
    gelu,
    domain=(-6, 6),
    ulp=64,
    approximate="none",
)
Sin = pointwise("Sin", "sin(x)", np.sin, domain=(-100, 100), ulp=4)
Cos = pointwise("Cos", "cos(x)", np.cos, domain=(-100, 100), ulp=4)
Tan = pointwise("Tan", "tan(x)", np.tan, domain=(-1.5, 1.5), ulp=4)
Asin = pointwise("Asin", "asin(x)", np.arcsin, domain=(-1, 1), ulp=4)
Acos = pointwise("Acos", "acos(x)", np.arccos, domain=(-1, 1), ulp=4)
Atan = pointwise("Atan", "atan(x)", np.arctan, ulp=4)
Sinh = pointwise("Sinh", "sinh(x)", np.sinh, ulp=4)
Cosh = pointwise("Cosh", "cosh(x)", np.cosh, ulp=4)
Asinh = pointwise("Asinh", "asinh(x)", np.arcsinh, ulp=4)
Acosh = pointwise("Acosh", "acosh(x)", np.arccosh, domain=(1, 100), ulp=4)
Atanh = pointwise("Atanh", "atanh(x)", np.arctanh, domain=(-1, 1), ulp=4)

# Predicates, bits, conversion.
Not = pointwise("Not", "not x", np.logical_not, dtypes=(BOOL,))
BitwiseNot = pointwise("BitwiseNot", "~x", np.invert, dtypes=INTS)
IsNaN = pointwise("IsNaN", "x != x", np.isnan, dtypes=_WITH_BYTES, result="bool")
IsInf = pointwise(
    "IsInf", isinf_text, isinf, dtypes=_WITH_BYTES, result="bool", detect_negative=True, detect_positive=True
)
Cast = pointwise("Cast", "cast(x)", convert, dtypes=_WITH_BOOL, on_symbols=True, base=Convert, **_CONVERT)

# Binary.
Add = pointwise("Add", "x + y", np.add, arity=2, dtypes=NUMERIC, on_symbols=True)
Sub = pointwise("Sub", "x - y", np.subtract, arity=2, dtypes=NUMERIC, on_symbols=True)
Mul = pointwise("Mul", "x * y", np.multiply, arity=2, dtypes=NUMERIC, on_symbols=True)
Div = pointwise("Div", "x / y", div, arity=2, dtypes=NUMERIC, on_symbols=True)
Pow = pointwise("Pow", "pow(x, y)", power, arity=2, dtypes=NUMERIC, domain=(0.1, 8), ulp=4, base=Power)
Mod = pointwise("Mod", lambda o: "fmod(x, y)" if o.fmod else "x % y", mod, arity=2, dtypes=NUMERIC, fmod=False)
PRelu = pointwise("PRelu", "where(x >= 0, x, x * y)", lambda x, y: np.where(x >= 0, x, x * y), arity=2, dtypes=NUMERIC)
Max = pointwise("Max", "max(x, y)", maximum, arity=2, dtypes=NUMERIC)
Min = pointwise("Min", "min(x, y)", minimum, arity=2, dtypes=NUMERIC)
Equal = pointwise("Equal", "x == y", equal, arity=2, dtypes=(*_WITH_BOOL, STRING), result="bool", on_symbols=True)
Less = pointwise("Less", "x < y", np.less, arity=2, dtypes=NUMERIC, result="bool")
LessOrEqual = pointwise("LessOrEqual", "x <= y", np.less_equal, arity=2, dtypes=NUMERIC, result="bool")
Greater = pointwise("Greater", "x > y", np.greater, arity=2, dtypes=NUMERIC, result="bool")
GreaterOrEqual = pointwise("GreaterOrEqual", "x >= y", np.greater_equal, arity=2, dtypes=NUMERIC, result="bool")
And = pointwise("And", "x & y", np.logical_and, arity=2, dtypes=(BOOL,))
Or = pointwise("Or", "x | y", np.logical_or, arity=2, dtypes=(BOOL,))
Xor = pointwise("Xor", "x ^ y", np.logical_xor, arity=2, dtypes=(BOOL,))
BitwiseAnd = pointwise("BitwiseAnd", "x & y", np.bitwise_and, arity=2, dtypes=INTS)
BitwiseOr = pointwise("BitwiseOr", "x | y", np.bitwise_or, arity=2, dtypes=INTS)
BitwiseXor = pointwise("BitwiseXor", "x ^ y", np.bitwise_xor, arity=2, dtypes=INTS)
_LEFT = {True: "x << y", False: "x >> y"}
BitShift = pointwise("BitShift", lambda o: _LEFT[o.direction == "LEFT"], shift, arity=2, dtypes=INTS, direction="LEFT")
Where = pointwise("Where", "where(x, y, z)", np.where, arity=3, dtypes=(BOOL,), on_symbols=True, base=Select)
