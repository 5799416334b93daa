"""Readers of pointwise operators and conversions; those without attributes map by name."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, F64, I32
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.operands import rank_of
from bolt_numba.converters.tflite.reading.complexes import Complex, parts_of
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated, by_parts, cast, complexes, exact
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Shape, Unsqueeze
from bolt_numba.ops.pointwise import (
    Abs,
    Add,
    And,
    Atan,
    BitShift,
    BitwiseXor,
    Cast,
    Ceil,
    Clip,
    Cos,
    Div,
    Elu,
    Equal,
    Exp,
    Floor,
    Gelu,
    Greater,
    GreaterOrEqual,
    HardSwish,
    LeakyRelu,
    Less,
    LessOrEqual,
    Log,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Not,
    Or,
    Pow,
    PRelu,
    Reciprocal,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Sin,
    Sqrt,
    Sub,
    Tanh,
    Where,
    Xor,
)

UNARY = {
    "ABS": Abs, "NEG": Neg, "EXP": Exp, "LOG": Log, "SQRT": Sqrt, "SIN": Sin, "COS": Cos, "CEIL": Ceil,
    "FLOOR": Floor, "ROUND": Round, "SIGN": Sign, "LOGISTIC": Sigmoid, "TANH": Tanh, "RELU": Relu, "ELU": Elu,
    "HARD_SWISH": HardSwish, "LOGICAL_NOT": Not,
}  # fmt: skip
CLIPS = {"RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}
BINARY = {
    "MAXIMUM": Max, "MINIMUM": Min, "PRELU": PRelu, "LESS": Less, "LESS_EQUAL": LessOrEqual,
    "GREATER": Greater, "GREATER_EQUAL": GreaterOrEqual, "EQUAL": Equal, "LOGICAL_AND": And, "LOGICAL_OR": Or,
}  # fmt: skip


for _name, _operator in (UNARY | BINARY).items():
    TFLITE.add(_name, AsIs(_operator()))
for _name, (_low, _high) in CLIPS.items():
    TFLITE.add(_name, AsIs(Clip(_low, _high)))
TFLITE.add("LEAKY_RELU", AsIs(LeakyRelu, alpha=0.0))
TFLITE.add("FLOOR_MOD", exact(AsIs(Mod())))
TFLITE.add("SELECT_V2", by_parts(AsIs(Where(), "condition x y")))


def _added(operator: Any) -> Any:
    def read(
        b: TfliteBuilder, x: Value, y: Value, *, fused_activation_function: str = "NONE", pot_scale_int16: bool = True
    ) -> Value:
        return activated(b, b(operator, x, y), fused_activation_function)

    return read


TFLITE.add("ADD", _added(Add()))
TFLITE.add("SUB", _added(Sub()))


@TFLITE.reader("MUL")
@complexes
def mul(b: TfliteBuilder, x: Value, y: Value, *, fused_activation_function: str = "NONE") -> Value:
    if isinstance(x, Complex) or isinstance(y, Complex):
        (a, i), (c, j) = parts_of(b, x), parts_of(b, y)
        re = b(Sub(), b(Mul(), a, c), b(Mul(), i, j))
        return Complex(b.graph, re, b(Add(), b(Mul(), a, j), b(Mul(), i, c)))
    return activated(b, b(Mul(), x, y), fused_activation_function)


@TFLITE.reader("DIV")
def div(b: TfliteBuilder, x: Value, y: Value, *, fused_activation_function: str = "NONE") -> Value:
    return activated(b, b(Div(), x, y), fused_activation_function)


@TFLITE.reader("ADD_N")
def add_n(b: TfliteBuilder, *xs: Value) -> Value:
    if not xs:
        raise b.invalid("number of operands", 0, "at least 1")
    return functools.reduce(lambda x, y: b(Add(), x, y), xs)


@TFLITE.reader("NOT_EQUAL")
def not_equal(b: TfliteBuilder, x: Value, y: Value) -> Value:
    return b(Not(), b(Equal(), x, y))


@TFLITE.reader("RSQRT")
def rsqrt(b: TfliteBuilder, x: Value) -> Value:
    return b(Reciprocal(), b(Sqrt(), x))


@TFLITE.reader("SQUARE")
def square(b: TfliteBuilder, x: Value) -> Value:
    return b(Mul(), x, x)


@TFLITE.reader("SQUARED_DIFFERENCE")
def squared_difference(b: TfliteBuilder, x: Value, y: Value) -> Value:
    difference = b(Sub(), x, y)
    return b(Mul(), difference, difference)


@TFLITE.reader("GELU")
def gelu(b: TfliteBuilder, x: Value, *, approximate: bool = False) -> Value:
    return b(Gelu("tanh" if approximate else "none"), x)


@TFLITE.reader("FLOOR_DIV")
@exact
def floor_div(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """Floats are divided in f64, so that a quotient just below a whole number stays below it.

    LiteRT takes stored numbers as they are.
    """
    if x.type.dtype.kind in "iu":
        cut = b(Not(), b(Equal(), b(Mod(), x, y), b(Mod(fmod=True), x, y)))
        return b(Sub(), b(Div(), x, y), b(Cast(x.type.dtype), cut))
    quotient = b(Floor(), b(Div(), b(Cast(F64), x), b(Cast(F64), y)))
    return b(Cast(x.type.dtype), quotient)


@TFLITE.reader("POW")
def power(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """Of integers in f64: what is too large becomes the least number."""
    if x.type.dtype.kind not in "iu":
        return b(Pow(), x, y)
    return b(Cast(x.type.dtype), b(Pow(), b(Cast(F64), x), b(Cast(F64), y)))


@TFLITE.reader("ATAN2")
def atan2(b: TfliteBuilder, y: Value, x: Value) -> Value:
    """The angle of (x, y), with the signs of zeros that C gives."""
    right, up = b(Abs(), x), b(Abs(), y)
    diagonal = b(Where(), b(Equal(), right, 0.0), right, b(Sign(), right))
    angle = b(Atan(), b(Where(), b(Equal(), right, up), diagonal, b(Div(), up, right)))
    turned = b(Where(), _is_negative(b, x), b(Sub(), b.const(np.array(np.pi, x.type.dtype)), angle), angle)
    return b(Where(), _is_negative(b, y), b(Neg(), turned), turned)


def _is_negative(b: TfliteBuilder, x: Value) -> Value:
    """Whether the sign is set, also that of a zero."""
    zero = b(And(), b(Equal(), x, 0.0), b(Less(), b(Reciprocal(), x), 0.0))
    return b(Or(), b(Less(), x, 0.0), zero)


@TFLITE.reader("BITWISE_XOR")
def bitwise_xor(b: TfliteBuilder, x: Value, y: Value) -> Value:
    return b(Xor() if x.type.dtype == BOOL else BitwiseXor(), x, y)


@TFLITE.reader("RIGHT_SHIFT")
def right_shift(b: TfliteBuilder, x: Value, y: Value) -> Value:
    """Of a negative count nothing is shifted; of one beyond the width the sign is left."""
    return b(BitShift("RIGHT"), x, b(Relu(), y) if y.type.dtype.kind == "i" else y)


@TFLITE.reader("SELECT")
@by_parts
def select(b: TfliteBuilder, condition: Value, x: Value, y: Value) -> Value:
    """A condition of rank 1 beside operands of more axes chooses whole entries of the first axis."""
    rank = rank_of(b, x)
    if rank_of(b, condition) == 1 and rank > 1:
        condition = b(Unsqueeze(), condition, np.arange(1, rank))
    return b(Where(), condition, x, y)


@TFLITE.reader("ZEROS_LIKE")
def zeros_like(b: TfliteBuilder, x: Value) -> Value:
    return b(ConstantOfShape(0, x.type.dtype), b(Shape(), x))


@TFLITE.reader("BUCKETIZE")
def bucketize(b: TfliteBuilder, x: Value, *, boundaries: tuple[float, ...] = ()) -> Value:
    """How many boundaries, which ascend, are not above x; of NaN all."""
    limits = b.const(np.asarray(boundaries, np.float32).astype(x.type.dtype))
    beyond = b(Not(), b(Less(), b(Unsqueeze(), x, np.array([rank_of(b, x)])), limits))
    return b(ReduceSum(keepdims=False), b(Cast(I32), beyond), np.array([-1]))


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
    steps = b(Mul(), b(Sub(), b(Clip(float(least), float(greatest)), x), float(least)), float(1 / scale))
    return b(Add(), b(Mul(), b(Floor(), b(Add(), steps, 0.5)), float(scale)), float(least))


@TFLITE.reader("CAST")
@exact
@complexes
def convert(b: TfliteBuilder, x: Value, *, in_data_type: str = "FLOAT32", out_data_type: str = "FLOAT32") -> Value:
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
    kept = cast(b, b(Clip(float(limits.min)), wide), to)
    return b(Where(), b(Less(), wide, float(limits.max + 1)), kept, b.const(np.array(limits.max, to)))


@TFLITE.reader("QUANTIZE")
def quantize(b: TfliteBuilder, x: Value) -> Value:
    """What is quantised already is so anew, with the scale of the result."""
    return x


@TFLITE.reader("DEQUANTIZE")
def dequantize(b: TfliteBuilder, x: Value) -> Value:
    return cast(b, x, F32)
