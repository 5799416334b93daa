"""Readers of gathers, scatters and operators whose result depends on the data."""

from __future__ import annotations

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader
from bolt_numba.ops.arrays.gather import (
    Compress,
    Gather,
    GatherElements,
    GatherND,
    NonMaxSuppression,
    NonZero,
    OneHot,
    ScatterElements,
    ScatterND,
    Unique,
)
from bolt_numba.ops.layers.attention.cache import TensorScatter

add_as_is(Gather, GatherElements, GatherND, ScatterElements, ScatterND, OneHot, NonZero, Compress, Unique)
add_as_is(NonMaxSuppression)
add_reader("Scatter", AsIs(ScatterElements, lacks=["reduction"]))
add_reader("TensorScatter", AsIs(TensorScatter, "past update places?"))
