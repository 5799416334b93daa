"""Readers of signal processing."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Unsqueeze
from bolt_numba.ops.arrays.signal import DFT, STFT, MelWeightMatrix

add_reader("DFT", AsIs(DFT, "x length? axis?"), since=20)
add_reader("MelWeightMatrix", AsIs(MelWeightMatrix, output_datatype=F32))


@reader("DFT")
def dft_17(
    b: NodeBuilder, x: Value, length: Value | None = None, *, axis: int = 1, inverse: bool = False,
    onesided: bool = False
) -> Value:
    return b(DFT(inverse, onesided), x, length, np.array(axis))


def _with_parts(b: NodeBuilder, made: STFT, signal: Value, *others: Value) -> Value:
    """A real signal may lack the last axis, as onnxruntime allows."""
    if signal.type.shape is not None and len(signal.type.shape) == 2:
        signal = b(Unsqueeze(), signal, ints([-1]))
    return b(made, signal, *others)


add_reader("STFT", AsIs(STFT, "signal step window? length?", then=_with_parts))
