"""The table of TFLite's readers, and how a reader gets its operands.

A builtin operator has its name in the schema and the domain "", a custom one its code and the domain "custom".  By
default a reader computes with real numbers: what is quantised comes through a `DequantizeLinear`, and a float result
leaves through a `QuantizeLinear` where the file declares it quantised.  `stored` and `exact` say otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bolt_numba.base.types import I64, AnyDType
from bolt_numba.converters.builder import ForeignBuilder
from bolt_numba.converters.readers import F, Readers
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.pointwise import Cast, Clip, Relu

CUSTOM = "custom"
"""Domain of operators that files name themselves."""

_PACKAGE = __name__.rpartition(".")[0]
TFLITE = Readers("tflite", [f"{_PACKAGE}.{p}" for p in ("tables", "custom")], Path(__file__).parents[1])


def _taking(function: F, operands: str) -> F:
    marked: Any = function
    marked.operands = operands
    return function


def stored(function: F) -> F:
    """A reader that moves elements: it gets the stored numbers where operands and results are quantised alike."""
    return by_parts(_taking(function, "stored"))


def exact(function: F) -> F:
    """A reader that gets and gives stored numbers, and asks its builder what they stand for."""
    return _taking(function, "exact")


def _of_complex(function: F, how: str) -> F:
    marked: Any = function
    marked.of_complex = how
    return function


def by_parts(function: F) -> F:
    """A reader that is read for real and for imaginary parts where numbers are complex, as `stored` ones are."""
    return _of_complex(function, "parts")


def complexes(function: F) -> F:
    """A reader that takes and gives complex numbers as they are, a `Complex` each."""
    return _of_complex(function, "whole")


def reals(function: F) -> F:
    """A `stored` reader that compares numbers, for which complex ones must be whole."""
    return _of_complex(function, "")


def cast(b: Builder, x: Value, dtype: AnyDType) -> Value:
    """An operand as another dtype; a constant at once."""
    if x.type.dtype == dtype:
        return x
    if x.const is not None:
        return b.const(x.const.astype(dtype))
    return b(Cast(dtype), x)


def as_i64(b: Builder, x: Value) -> Value:
    """A shape, axes or indices as the operators of the graph want them."""
    return cast(b, x, I64)


def activated(b: ForeignBuilder, y: Value, function: str) -> Value:
    """What a ``fused_activation_function`` makes of a result.

    It is a range of numbers: LiteRT leaves a function that is none, as TANH, out.
    """
    match function:
        case "RELU":
            return b(Relu(), y)
        case "RELU6":
            return b(Clip(0.0, 6.0), y)
        case "RELU_N1_TO_1":
            return b(Clip(-1.0, 1.0), y)
        case "NONE" | "TANH" | "SIGN_BIT":
            return y
    raise b.unsupported(f"fused_activation_function {function}")
