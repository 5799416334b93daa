"""Readers of gathers, scatters and operators whose result depends on the data."""

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader
from bolt_numba.ops.arrays import gather as g
from bolt_numba.ops.layers.attention.cache import TensorScatter

add_as_is(
    g.Gather, g.GatherElements, g.GatherND, g.ScatterElements, g.ScatterND, g.OneHot, g.NonZero, g.Compress, g.Unique
)
add_as_is(g.NonMaxSuppression)
add_reader("Scatter", AsIs(g.ScatterElements, lacks=["reduction"]))
add_reader("TensorScatter", AsIs(TensorScatter, "past update places?"))
