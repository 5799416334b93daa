"""What moves or counts elements: stored numbers stay as they are."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.operands import ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, stored
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Reshape, Shape


@TFLITE.reader("RESHAPE")
@stored
def reshape(b: TfliteBuilder, x: Value, shape: Value | None = None, *, new_shape: tuple[int, ...] = ()) -> Any:
    """The operand is the shape where there is one, else the option."""
    return b(Reshape(allowzero=True), x, ints(new_shape) if shape is None else as_i64(b, shape))


@TFLITE.reader("SHAPE")
@stored
def shape(b: TfliteBuilder, x: Value, *, out_type: str = "INT32") -> Any:
    return b(Shape(), x)
