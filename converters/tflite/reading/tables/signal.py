"""Readers of Fourier transforms, and of what makes real numbers of complex ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.converters.tflite.reading.complexes import Complex, parts_of
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, complexes
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.ops.pointwise import Abs, Add, Clip, Div, Max, Mul, Sqrt


@TFLITE.reader("RFFT2D")
@complexes
def rfft2d(b: TfliteBuilder, x: Value, length: Value) -> Value:
    """[..., h, w] -> the frequencies [..., height, width / 2 + 1], where ``length`` has height and width."""
    rank, sizes = b.rank_of(x), b.known_ints(length, "fft_length")
    b.invalid_if(rank < 2 or len(sizes) != 2, "x and fft_length", (rank, sizes), "at least two axes, two numbers")
    made = b(DFT(onesided=True), b.unsqueezed(x, rank), np.array(sizes[1], np.int64), np.array(rank - 1))
    if sizes[0] != 1 or b.size_of(x, -2) != 1:
        made = b(DFT(), made, np.array(sizes[0], np.int64), np.array(rank - 2))
    parts = (b.squeezed(b.sliced(made, rank, i, i + 1), rank) for i in range(2))
    return Complex(b.graph, *parts)


@TFLITE.reader("REAL")
@complexes
def real(b: TfliteBuilder, x: Value) -> Any:
    return parts_of(b, x)[0]


@TFLITE.reader("IMAG")
@complexes
def imag(b: TfliteBuilder, x: Value) -> Any:
    return parts_of(b, x)[1]


@TFLITE.reader("COMPLEX_ABS")
@complexes
def complex_abs(b: TfliteBuilder, x: Value) -> Value:
    """Over the greater part, so that no square leaves the range of f32."""
    re, im = (b(Abs(), part) for part in parts_of(b, x))
    limits = np.finfo(np.float32)
    most = b(Clip(float(limits.tiny), float(limits.max)), b(Max(), re, im))
    re, im = (b(Div(), part, most) for part in (re, im))
    return b(Mul(), most, b(Sqrt(), b(Add(), b(Mul(), re, re), b(Mul(), im, im))))
