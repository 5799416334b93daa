"""Operators element by element, on real numbers."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.pointwise import Add, Relu


@TFLITE.reader("ADD")
def add(b: TfliteBuilder, x: Value, y: Value, *, fused_activation_function: str = "NONE") -> Any:
    return activated(b, b(Add(), x, y), fused_activation_function)


TFLITE.add("RELU", lambda b, x: b(Relu(), x))
