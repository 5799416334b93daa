"""Readers of conversions between stored and real numbers."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, cast
from bolt_numba.ir.graph import Value
from bolt_numba.types import F32


@TFLITE.reader("QUANTIZE")
def quantize(b: TfliteBuilder, x: Value) -> Any:
    """What is quantised already is so anew, with the scale of the result."""
    return x


@TFLITE.reader("DEQUANTIZE")
def dequantize(b: TfliteBuilder, x: Value) -> Any:
    return cast(b, x, F32)
