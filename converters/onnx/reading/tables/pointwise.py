"""Readers of pointwise operators; those without attributes map by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import F32, AnyDType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import known_scalar
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.converters.onnx.types import dtype_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.conversion import ROUND_MODES
from bolt_numba.ops.arrays.shape import Reshape, Unsqueeze
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import ROWS
from bolt_numba.ops.registry import OPS

UNARY = (
    *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"),
    *("Mish", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
    *("Floor", "Ceil", "Round", "Sign", "Not", "IsNaN", "BitwiseNot"),
)
BINARY = (
    *("LessOrEqual", "GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
OLD_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")
"""Operators that align their operands by attributes before opset 7."""


def _row(name: str) -> Any:
    if name in OPS:
        return OPS[name]
    line = f'{name} = pointwise("{name}", ...)'
    raise BoltError(f"{__file__}: UNARY or BINARY: got '{name}', wanted a row of {ROWS}: `{line}`")


def _old_binary(name: str) -> Any:
    """Before opset 7 y is aligned with the axes of x that begin at ``axis``, and only where broadcast is set."""
    operator = _row(name)

    def read(b: NodeBuilder, x: Value, y: Value, *, axis: int | None = None, broadcast: int = 0) -> Value:
        if broadcast and axis is not None:
            rank, inner = b.rank_of(x), b.rank_of(y)
            start = axis + rank if axis < 0 else axis
            trailing = rank - start - inner
            if trailing > 0:
                y = b(Unsqueeze(), y, np.arange(inner, inner + trailing))
        made: Value = b(operator(), x, y)
        return made

    return read


add_as_is(*map(_row, UNARY), p.LeakyRelu, p.Elu, p.Celu, p.ThresholdedRelu, p.HardSigmoid, p.Swish, p.IsInf, p.Mod)
add_as_is(*map(_row, BINARY))
add_as_is(*map(_row, OLD_BINARY), since=7)
for _name in OLD_BINARY:
    add_reader(_name, _old_binary(_name))
add_as_is(p.Selu, since=6)
add_reader("Selu", AsIs(p.Selu, alpha=1.6732, gamma=1.0507))
add_reader("Clip", AsIs(p.Clip, min=None, max=None))
add_reader("Where", AsIs(p.Where(), "condition x y"))
add_reader("PRelu", AsIs(p.PRelu(), "x slope"), since=7)


@reader("Gelu")
def gelu(b: NodeBuilder, x: Value, *, approximate: str = "none") -> Value:
    b.invalid_if(approximate not in ("none", "tanh"), "approximate", approximate, "none or tanh")
    return b(p.Gelu(approximate), x)


@reader("SwiGLU")
def swiglu(b: NodeBuilder, x: Value, y: Value, *, alpha: float = 1.0) -> Value:
    return b(p.Mul(), b(p.Swish(alpha), x), y)


@reader("Shrink")
def shrink(b: NodeBuilder, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    if x.type.dtype.kind in "iu":
        return b(p.Cast(x.type.dtype), b(p.Shrink(bias, lambd), b(p.Cast(np.dtype("f4")), x)))
    return b(p.Shrink(bias, lambd), x)


@reader("Clip", since=11)
def clip(b: NodeBuilder, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    bounds = [None if v is None else known_scalar(v) for v in (low, high)]
    if all(v is None or k is not None for v, k in zip((low, high), bounds, strict=True)):
        return b(p.Clip(*bounds), x)
    x = x if low is None else b(p.Max(), x, low)
    return x if high is None else b(p.Min(), x, high)


@reader("Cast", since=6)
def cast(b: NodeBuilder, x: Value, *, to: AnyDType, saturate: bool = True, round_mode: str = "up") -> Value:
    return convert(b, x, to, saturate, round_mode)


@reader("Cast")
def cast_1(b: NodeBuilder, x: Value, *, to: str) -> Value:
    codes = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9}
    codes |= {"FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13}
    b.invalid_if(to not in codes, "to", to, f"one of {sorted(codes)}")
    return convert(b, x, dtype_of(codes[to], "to"), True, "up")


@reader("CastLike")
def cast_like(b: NodeBuilder, x: Value, like: Value, *, saturate: bool = True, round_mode: str = "up") -> Value:
    return convert(b, x, like.type.dtype, saturate, round_mode)


def convert(b: NodeBuilder, x: Value, to: AnyDType, saturate: bool, round_mode: str) -> Value:
    """Cast; how to round and saturate matters for floats of 8 bits only."""
    b.invalid_if(round_mode not in ROUND_MODES, "round_mode", round_mode, " or ".join(ROUND_MODES))
    if not to.name.startswith("float8"):
        return b(p.Cast(to), x)
    return b(p.Cast(to, saturate, round_mode), x)


@reader("BitShift")
def bit_shift(b: NodeBuilder, x: Value, y: Value, *, direction: str) -> Value:
    b.invalid_if(direction not in ("LEFT", "RIGHT"), "direction", direction, "LEFT or RIGHT")
    return b(p.BitShift(direction), x, y)


@reader("PRelu")
def prelu_1(b: NodeBuilder, x: Value, slope: Value) -> Value:
    """Before opset 7 a slope of more than one element belongs to axis 1."""
    rank = b.rank_of(x)
    if rank > 2 and slope.type.shape is not None and len(slope.type.shape) == 1 and slope.type.shape[0] != 1:
        slope = b(Reshape(), slope, np.array([-1] + [1] * (rank - 2)))
    return b(p.PRelu(), x, slope)


SEPARATE_OPERANDS = 32
"""Operands up to which each is a node of its own; of more, `JOINED` are joined at a time, as fusion would."""
JOINED = 8


def _chain(operator: Any) -> Chain:
    """((x0 + x1) + x2) + ... of `JOINED` operands."""
    later = tuple((operator, (JOINED + i - 2, i)) for i in range(2, JOINED))
    return Chain(((operator, (0, 1)), *later), (2 * JOINED - 2,))


def _fold(b: NodeBuilder, operator: Any, xs: tuple[Value, ...]) -> Value:
    b.invalid_if(not xs, "number of operands", 0, "at least 1")
    made, left = xs[0], list(xs[:0:-1])
    while left:
        if len(left) > SEPARATE_OPERANDS and made.type.dtype == F32:
            made = b(_chain(operator), made, *[left.pop() for _ in range(JOINED - 1)])
        else:
            made = b(operator, made, left.pop())
    return made


reader("Max")(lambda b, *xs: _fold(b, p.Max(), xs))
reader("Min")(lambda b, *xs: _fold(b, p.Min(), xs))


reader("Sum")(lambda b, *xs: _fold(b, p.Add(), xs))
reader("Mean")(lambda b, *xs: b(p.Div(), _fold(b, p.Add(), xs), float(len(xs))))
