"""Readers of pointwise operators and conversions; those without attributes map by name."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, F64, I32
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.tflite.reading.complexes import Complex, parts_of
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated, by_parts, cast, complexes, exact
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Shape, Unsqueeze

UNARY = {
    "ABS": p.Abs, "NEG": p.Neg, "EXP": p.Exp, "LOG": p.Log, "SQRT": p.Sqrt, "SIN": p.Sin, "COS": p.Cos, "CEIL": p.Ceil,
    "FLOOR": p.Floor, "ROUND": p.Round, "SIGN": p.Sign, "LOGISTIC": p.Sigmoid, "TANH": p.Tanh, "RELU": p.Relu,
    "ELU": p.Elu, "HARD_SWISH": p.HardSwish, "LOGICAL_NOT": p.Not,
}  # fmt: skip
CLIPS = {"RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}
BINARY = {
    "MAXIMUM": p.Max, "MINIMUM": p.Min, "PRELU": p.PRelu, "LESS": p.Less, "LESS_EQUAL": p.LessOrEqual,
    "GREATER": p.Greater, "GREATER_EQUAL": p.GreaterOrEqual, "EQUAL": p.Equal, "LOGICAL_AND": p.And, "LOGICAL_OR": p.Or,
}  # fmt: skip


for _name, _operator in (UNARY | BINARY).items():
    TFLITE.add(_name, AsIs(_operator()))
for _name, (_low, _high) in CLIPS.items():
    TFLITE.add(_name, AsIs(p.Clip(_low, _high)))
TFLITE.add("LEAKY_RELU", AsIs(p.LeakyRelu, alpha=0.0))
TFLITE.add("FLOOR_MOD", exact(AsIs(p.Mod())))
TFLITE.add("SELECT_V2", by_parts(AsIs(p.Where(), "condition x y")))


def _arithmetic(operator: Any) -> Any:
    def read(b: TfliteBuilder, x: Value, y: Value, *, fused_activation_function: str = "NONE") -> Value:
        return activated(b, b(operator, x, y), fused_activation_function)

    return read


TFLITE.add("ADD", _arithmetic(p.Add()))
TFLITE.add("SUB", _arithmetic(p.Sub()))
TFLITE.add("DIV", _arithmetic(p.Div()))


@TFLITE.reader("MUL")
@complexes
def mul(b: TfliteBuilder, x: Value, y: Value, *, fused_activation_function: str = "NONE") -> Value:
    if isinstance(x, Complex) or isinstance(y, Complex):
        (a, i), (c, j) = parts_of(b, x), parts_of(b, y)
        re = b(p.Sub(), b(p.Mul(), a, c), b(p.Mul(), i, j))
        return Complex(b.graph, re, b(p.Add(), b(p.Mul(), a, j), b(p.Mul(), i, c)))
    return activated(b, b(p.Mul(), x, y), fused_activation_function)


@TFLITE.reader("ADD_N")
def add_n(b: TfliteBuilder, *xs: Value) -> Value:
    b.invalid_if(not xs, "number of operands", 0, "at least 1")
    return functools.reduce(lambda x, y: b(p.Add(), x, y), xs)


TFLITE.reader("NOT_EQUAL")(lambda b, x, y: b(p.Not(), b(p.Equal(), x, y)))
TFLITE.reader("RSQRT")(lambda b, x: b(p.Reciprocal(), b(p.Sqrt(), x)))


TFLITE.reader("SQUARE")(lambda b, x: b(p.Mul(), x, x))


@TFLITE.reader("SQUARED_DIFFERENCE")
def squared_difference(b: TfliteBuilder, x: Value, y: Value) -> Value:
    difference = b(p.Sub(), x, y)
    return b(p.Mul(), difference, difference)


@TFLITE.reader("GELU")
def gelu(b: TfliteBuilder, x: Value, *, approximate: bool = False) -> Value:
    return b(p.Gelu("tanh" if approximate else "none"), x)


@TFLITE.reader("FLOOR_DIV")
@exact
def floor_div(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """Floats are divided in f64, so that a quotient just below a whole number stays below it.

    LiteRT takes stored numbers as they are.
    """
    if x.type.dtype.kind in "iu":
        cut = b(p.Not(), b(p.Equal(), b(p.Mod(), x, y), b(p.Mod(fmod=True), x, y)))
        return b(p.Sub(), b(p.Div(), x, y), b(p.Cast(x.type.dtype), cut))
    quotient = b(p.Floor(), b(p.Div(), b(p.Cast(F64), x), b(p.Cast(F64), y)))
    return b(p.Cast(x.type.dtype), quotient)


@TFLITE.reader("POW")
def power(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """Of integers in f64: what is too large becomes the least number."""
    if x.type.dtype.kind not in "iu":
        return b(p.Pow(), x, y)
    return b(p.Cast(x.type.dtype), b(p.Pow(), b(p.Cast(F64), x), b(p.Cast(F64), y)))


@TFLITE.reader("ATAN2")
def atan2(b: TfliteBuilder, y: Value, x: Value) -> Value:
    """The angle of (x, y), with the signs of zeros that C gives."""
    right, up = b(p.Abs(), x), b(p.Abs(), y)
    diagonal = b(p.Where(), b(p.Equal(), right, 0.0), right, b(p.Sign(), right))
    angle = b(p.Atan(), b(p.Where(), b(p.Equal(), right, up), diagonal, b(p.Div(), up, right)))
    turned = b(p.Where(), _is_negative(b, x), b(p.Sub(), b.const(np.array(np.pi, x.type.dtype)), angle), angle)
    return b(p.Where(), _is_negative(b, y), b(p.Neg(), turned), turned)


def _is_negative(b: TfliteBuilder, x: Value) -> Value:
    """Whether the sign is set, also that of a zero."""
    zero = b(p.And(), b(p.Equal(), x, 0.0), b(p.Less(), b(p.Reciprocal(), x), 0.0))
    return b(p.Or(), b(p.Less(), x, 0.0), zero)


TFLITE.reader("BITWISE_XOR")(lambda b, x, y: b(p.Xor() if x.type.dtype == BOOL else p.BitwiseXor(), x, y))


@TFLITE.reader("RIGHT_SHIFT")
def right_shift(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """Of a negative count nothing is shifted; of one beyond the width the sign is left."""
    return b(p.BitShift("RIGHT"), x, b(p.Relu(), y) if y.type.dtype.kind == "i" else y)


@TFLITE.reader("SELECT")
@by_parts
def select(b: TfliteBuilder, condition: Value, x: Value, y: Value) -> Value:
    """A condition of rank 1 beside operands of more axes chooses whole entries of the first axis."""
    rank = b.rank_of(x)
    if b.rank_of(condition) == 1 and rank > 1:
        condition = b(Unsqueeze(), condition, np.arange(1, rank))
    return b(p.Where(), condition, x, y)


TFLITE.reader("ZEROS_LIKE")(lambda b, x: b(ConstantOfShape(0, x.type.dtype), b(Shape(), x)))


@TFLITE.reader("BUCKETIZE")
def bucketize(b: TfliteBuilder, x: Value, *, boundaries: tuple[float, ...] = ()) -> Value:
    """How many boundaries, which ascend, are not above x; of NaN all."""
    limits = b.const(np.asarray(boundaries, np.float32).astype(x.type.dtype))
    beyond = b(p.Not(), b(p.Less(), b(Unsqueeze(), x, np.array([b.rank_of(x)])), limits))
    return b(ReduceSum(keepdims=False), b(p.Cast(I32), beyond), np.array([-1]))


@TFLITE.reader("FAKE_QUANT")
def fake_quant(
    b: TfliteBuilder, x: Value, *, min: float = 0.0, max: float = 0.0, num_bits: int = 0, narrow_range: bool = False
) -> Value:
    """X at the levels that so many bits allow from min to max, which move so that 0 is a level or the end."""
    if not 1 < num_bits <= 16 or not min < max:
        raise b.invalid("num_bits, min and max", (num_bits, min, max), "2 to 16 bits and a range")
    low, high = float(narrow_range), float(2**num_bits - 1)
    scale = np.float32((np.float32(max) - np.float32(min)) / (high - low))
    zero = np.clip(np.floor(low - np.float32(min) / scale + np.float32(0.5)), low, high)
    least, greatest = (low - zero) * scale, (high - zero) * scale
    steps = b(p.Mul(), b(p.Sub(), b(p.Clip(float(least), float(greatest)), x), float(least)), float(1 / scale))
    return b(p.Add(), b(p.Mul(), b(p.Floor(), b(p.Add(), steps, 0.5)), float(scale)), float(least))


@TFLITE.reader("CAST")
@exact
@complexes
def convert(b: TfliteBuilder, x: Value) -> Value:
    """To the dtype of the result's tensor; the options may be missing.

    Floats beyond an integer's range become its limits, NaN the upper one.  Of complex numbers the real part counts.
    """
    if b.is_complex():
        return Complex(b.graph, *parts_of(b, x))
    to, x = b.declared(0).dtype, x.re if isinstance(x, Complex) else x
    if x.type.dtype.kind in "iub" or to.kind not in "iu":
        return cast(b, x, to)
    wide = x if x.type.dtype == F64 else cast(b, x, F32)
    limits = np.iinfo(to)
    kept = cast(b, b(p.Clip(float(limits.min)), wide), to)
    return b(p.Where(), b(p.Less(), wide, float(limits.max + 1)), kept, b.const(np.array(limits.max, to)))


# What is quantised already is so anew, with the scale of the result.
TFLITE.reader("QUANTIZE")(lambda b, x: x)
TFLITE.reader("DEQUANTIZE")(lambda b, x: cast(b, x, F32))
