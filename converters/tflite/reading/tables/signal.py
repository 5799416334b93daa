"""Readers of Fourier transforms.  A complex number is a pair of floats along a last axis; no file's end may be one."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.converters.operands import END, ints, known_ints, rank_of, sliced, squeezed, unsqueezed
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, pairs
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceL2
from bolt_numba.ops.arrays.signal import DFT


@TFLITE.reader("RFFT2D")
@pairs
def rfft2d(b: TfliteBuilder, x: Value, length: Value) -> Any:
    """[..., h, w] -> the frequencies [..., height, width / 2 + 1], where ``length`` has height and width."""
    rank, sizes = rank_of(b, x), known_ints(b, length, "fft_length")
    if rank < 2 or len(sizes) != 2:
        raise b.invalid("x and fft_length", (rank, sizes), "at least two axes, two numbers")
    rows, columns = (np.array(n, np.int64) for n in sizes)
    made = b(DFT(onesided=True), unsqueezed(b, x, rank), columns, np.array(rank - 1))
    return b(DFT(), made, rows, np.array(rank - 2))


def _part(index: int) -> Any:
    def read(b: TfliteBuilder, x: Value) -> Any:
        last = rank_of(b, x) - 1
        return squeezed(b, sliced(b, x, last, index, index + 1 if index == 0 else END), last)

    return read


TFLITE.add("REAL", _part(0))
TFLITE.add("IMAG", _part(1))
TFLITE.add("COMPLEX_ABS", lambda b, x: b(ReduceL2(False), x, ints([-1])))
