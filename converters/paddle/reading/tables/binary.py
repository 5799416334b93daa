"""Readers of pointwise operators with two or more operands."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, F64, I32, I64, U32, U64, Sym
from bolt_numba.converters.builder import ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceMin
from bolt_numba.ops.arrays.shape import Shape, Squeeze
from bolt_numba.ops.pointwise.row import Pointwise

_ORDER = (BOOL, *(np.dtype(c) for c in ("u1", "i1", "i2", "i4", "i8")))


def aligned(b: PaddleBuilder, x: Value, y: Value, axis: int) -> tuple[Value, Value]:
    """X and y of ranks that broadcast: the axes of the smaller stand at ``axis`` of the other, from the end for -1."""
    if axis == -1:
        return x, y
    first, second = b.rank_of(x), b.rank_of(y)
    if first == second:
        return x, y
    if first < second:
        return _placed(b, x, axis, second), y
    return x, _placed(b, y, axis, first)


def _placed(b: PaddleBuilder, y: Value, axis: int, rank: int) -> Value:
    """Y with axes of length 1 behind its own; such ones that would lie beyond are dropped."""
    b.invalid_if(not -1 <= axis < rank, "axis", axis, f"-1 to {rank - 1}")
    own = b.rank_of(y)
    while own > rank - axis and b.dim_of(y, own - 1) == 1:
        y = b(Squeeze(), y, ints([own - 1]))
        own -= 1
    b.invalid_if(own > rank - axis, "axis", axis, f"room for the {own} axes of '{y.name}' among {rank}")
    return b.unsqueezed(y, *range(own, rank - axis))


def alike(b: PaddleBuilder, x: Value, y: Value) -> tuple[Value, Value]:
    """X and y in the dtype that holds both, as Paddle promotes them."""
    first, second = x.type.dtype, y.type.dtype
    if first == second:
        return x, y
    if first.kind in "iub" and second.kind in "iub":
        wide = max(first, second, key=_ORDER.index) if first in _ORDER and second in _ORDER else first
    else:
        floats = [d for d in (first, second) if d.kind not in "iub"]
        wide = max(floats, key=lambda d: d.itemsize) if len({d.itemsize for d in floats}) == len(floats) else F32
    return b.to(x, wide), b.to(y, wide)


def _binary(compute: Any, on_bools: Any = None) -> Any:
    """A reader that broadcasts, of ``compute``; of ``on_bools`` for bools where that is given."""

    def read(b: PaddleBuilder, x: Value, y: Value, *, axis: int = -1) -> Value:
        first, second = alike(b, *aligned(b, x, y, axis))
        chosen_one = on_bools if on_bools is not None and first.type.dtype == BOOL else compute
        made: Value = b(chosen_one(), first, second) if isinstance(chosen_one, type) else chosen_one(b, first, second)
        return made

    return read


def _divided(b: PaddleBuilder, x: Value, y: Value) -> Value:
    return b(p.Div(), x, y)


def _floor_divided(b: PaddleBuilder, x: Value, y: Value) -> Value:
    """The quotient, rounded down; of floats the exact one, which may be less than the nearest float."""
    dtype, rest = x.type.dtype, b(p.Mod(True), x, y)
    is_whole = dtype.kind in "iu"
    quotient = b(p.Div(), x if is_whole else b(p.Sub(), x, rest), y)
    opposed = b(p.And(), b(p.Not(), b(p.Equal(), rest, 0)), b(p.Xor(), b(p.Less(), rest, 0), b(p.Less(), y, 0)))
    made: Value = b(p.Sub(), quotient, b.to(opposed, dtype))
    if not is_whole:
        down = b(p.Floor(), made)
        up = b.to(b(p.Greater(), b(p.Sub(), made, down), 0.5), dtype)
        made = b(p.Where(), b(p.Equal(), y, 0), b(p.Div(), x, y), b(p.Add(), down, up))
    return made


def _power(b: PaddleBuilder, x: Value, y: Value) -> Value:
    return b(p.Pow(), x, y)


def _without_nan(operator: Any) -> Any:
    def compute(b: PaddleBuilder, x: Value, y: Value) -> Value:
        made: Value = b(operator(), x, y)
        if x.type.dtype.kind not in "iu":
            made = b(p.Where(), b(p.IsNaN(), x), y, b(p.Where(), b(p.IsNaN(), y), x, made))
        return made

    return compute


def _heaviside(b: PaddleBuilder, x: Value, y: Value) -> Value:
    return b(p.Where(), b(p.Equal(), x, 0), y, b.to(b(p.Greater(), x, 0), x.type.dtype))


_ARITHMETIC: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("elementwise_add", "add", "grad_add"): (p.Add, p.Or),
    ("elementwise_sub", "subtract", "minus"): (p.Sub,),
    ("elementwise_mul", "multiply"): (p.Mul, p.And),
    ("elementwise_div", "divide"): (_divided,),
    ("elementwise_max", "maximum"): (p.Max,),
    ("elementwise_min", "minimum"): (p.Min,),
    ("elementwise_pow",): (_power,),
    ("elementwise_floordiv", "floor_divide"): (_floor_divided,),
    ("elementwise_mod", "remainder"): (p.Mod,),
    ("elementwise_fmax", "fmax"): (_without_nan(p.Max),),
    ("elementwise_fmin", "fmin"): (_without_nan(p.Min),),
    ("elementwise_heaviside", "heaviside"): (_heaviside,),
    ("bitwise_and",): (p.BitwiseAnd, p.And),
    ("bitwise_or",): (p.BitwiseOr, p.Or),
    ("bitwise_xor",): (p.BitwiseXor, p.Xor),
}
for _names, _how in _ARITHMETIC.items():
    for _name in _names:
        PADDLE.reader(_name)(_binary(*_how))

_COMPARISONS = {
    "equal": p.Equal, "less_than": p.Less, "less_equal": p.LessOrEqual, "greater_than": p.Greater,
    "greater_equal": p.GreaterOrEqual,
}  # fmt: skip


def _comparison(operator: type[Pointwise]) -> Any:
    def read(b: PaddleBuilder, x: Value, y: Value, *, axis: int = -1) -> Value:
        first, second = alike(b, *aligned(b, x, y, axis))
        if first.type.dtype == BOOL and operator is not p.Equal:
            first, second = b.to(first, I32), b.to(second, I32)
        return b(operator(), first, second)

    return read


for _name, _operator in _COMPARISONS.items():
    PADDLE.reader(_name)(_comparison(_operator))


@PADDLE.reader("not_equal")
def not_equal(b: PaddleBuilder, x: Value, y: Value, *, axis: int = -1) -> Value:
    return b(p.Not(), _comparison(p.Equal)(b, x, y, axis=axis))


def _logical(operator: Any) -> Any:
    return lambda b, x, y: b(operator(), b.truth(x), b.truth(y))


for _name, _operator in {"logical_and": p.And, "logical_or": p.Or, "logical_xor": p.Xor}.items():
    PADDLE.reader(_name)(_logical(_operator))


def _shift(direction: str) -> Any:
    """A shift of bits; to the right with the sign, or with zeros where it is not arithmetic."""

    def read(b: PaddleBuilder, x: Value, y: Value, *, is_arithmetic: bool = True) -> Value:
        dtype = x.type.dtype
        if direction == "RIGHT" and not is_arithmetic and dtype.kind == "i":
            b.unsupported_if(dtype not in (I32, I64), f"logical shift of {dtype}")
            plain = U32 if dtype == I32 else U64
            x, y = b(BitCast(plain), x), b(BitCast(plain), y)
            made: Value = b(BitCast(dtype), b(p.BitShift(direction), x, y))
        else:
            made = b(p.BitShift(direction), x, y)
        return made

    return read


PADDLE.reader("bitwise_left_shift")(_shift("LEFT"))
PADDLE.reader("bitwise_right_shift")(_shift("RIGHT"))


@PADDLE.reader("atan2", slots={"X1": "x", "X2": "y"})
def atan2(b: PaddleBuilder, x: Value, y: Value) -> Value:
    """The angle of the point (y, x): that of x / y, turned by half a circle where y is negative."""
    x, y = alike(b, b.floating(x), b.floating(y))
    dtype = x.type.dtype
    pi = b.const(np.array(np.pi, dtype))
    none = b(p.And(), b(p.Equal(), x, 0.0), b(p.Equal(), y, 0.0))
    angle = b.chosen(none, b(p.Mul(), x, 0.0), b(p.Atan(), b(p.Div(), x, y)), dtype)
    is_down = _is_negative(b, x)
    turned = b(p.Add(), angle, b(p.Where(), is_down, b(p.Neg(), pi), pi))
    return b(p.Where(), _is_negative(b, y), turned, angle)


@PADDLE.reader("copysign")
def copysign(b: PaddleBuilder, x: Value, y: Value) -> Value:
    """The size of x with the sign of y."""
    x, y = alike(b, b.floating(x), b.floating(y))
    size = b(p.Abs(), x)
    return b(p.Where(), _is_negative(b, y), b(p.Neg(), size), size)


def _is_negative(b: PaddleBuilder, x: Value) -> Value:
    """Below zero, or the zero of negative sign."""
    below = b(p.Less(), x, 0.0)
    inverse = b(p.Less(), b(p.Div(), b.const(np.array(1, x.type.dtype)), x), 0.0)
    return b(p.Or(), below, b(p.And(), b(p.Equal(), x, 0.0), inverse))


@PADDLE.reader("add_n", legacy=("sum",))
def total(b: PaddleBuilder, x: Values) -> Value:
    b.invalid_if(not x, "number of operands", 0, "at least 1")
    return functools.reduce(lambda y, z: b(p.Add(), *alike(b, y, z)), x)


@PADDLE.reader("lerp")
def lerp(b: PaddleBuilder, x: Value, y: Value, weight: Value) -> Value:
    return b(p.Add(), x, b(p.Mul(), b.to(weight, x.type.dtype), b(p.Sub(), y, x)))


PADDLE.reader("where")(lambda b, condition, x, y: b(p.Where(), b.truth(condition), *alike(b, x, y)))


@PADDLE.reader("masked_fill")
def masked_fill(b: PaddleBuilder, x: Value, mask: Value, value: Value) -> Value:
    return b(p.Where(), b.truth(mask), b.to(value, x.type.dtype), x)


def _close(b: PaddleBuilder, x: Value, y: Value, rtol: Value, atol: Value, equal_nan: bool) -> Value:
    """|x - y| <= atol + rtol * |y|, in f64; infinities are close to themselves."""
    first, second = b.to(x, F64), b.to(y, F64)
    limits = [b.as_scalar(b.to(v, F64)) for v in (rtol, atol)]
    allowed = b(p.Add(), limits[1], b(p.Mul(), b(p.Abs(), second), limits[0]))
    near = b(p.LessOrEqual(), b(p.Abs(), b(p.Sub(), first, second)), allowed)
    made: Value = b(p.Or(), near, b(p.Equal(), first, second))
    return b(p.Or(), made, b(p.And(), b(p.IsNaN(), first), b(p.IsNaN(), second))) if equal_nan else made


@PADDLE.reader("isclose", slots={"Input": "x", "Other": "y"})
def isclose(b: PaddleBuilder, x: Value, y: Value, rtol: Value, atol: Value, *, equal_nan: bool = False) -> Value:
    return _close(b, x, y, rtol, atol, equal_nan)


@PADDLE.reader("allclose", slots={"Input": "x", "Other": "y"})
def allclose(b: PaddleBuilder, x: Value, y: Value, rtol: Value, atol: Value, *, equal_nan: bool = False) -> Value:
    return _all(b, _close(b, x, y, rtol, atol, equal_nan))


@PADDLE.reader("equal_all")
def equal_all(b: PaddleBuilder, x: Value, y: Value) -> Value:
    """Whether shapes and elements are equal."""
    rank = b.rank_of(x)
    pairs = [(b.dim_of(x, i), b.dim_of(y, i)) for i in range(rank)] if b.rank_of(y) == rank else [(0, 1)]
    if any(v != w and not isinstance(v, Sym) and not isinstance(w, Sym) for v, w in pairs):
        return b.const(np.array(False))
    same = _all(b, b(p.Equal(), x, y))
    if all(v == w for v, w in pairs):
        return same
    return b(p.And(), same, _all(b, b(p.Equal(), b(Shape(), x), b(Shape(), y))))


def any_of(b: PaddleBuilder, x: Value, axis: int) -> Value:
    """Whether a bool holds anywhere along an axis."""
    return b(p.Cast(BOOL), b(ReduceMax(False), b(p.Cast(I32), x), ints([axis])))


def _all(b: PaddleBuilder, x: Value) -> Value:
    return b(p.Cast(BOOL), b(ReduceMin(False), b(p.Cast(I32), x)))
