"""Readers of layers that give numbers of their own, pass them on, or swallow them."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32
from bolt_numba.converters.bounded import count_of
from bolt_numba.converters.caffe.message import dims, integer, last, messages, number
from bolt_numba.converters.caffe.reading.attributes import Dims
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Identity
from bolt_numba.ops.pointwise import Mul


@reader("Parameter")
def parameter(b: LayerBuilder, *, shape: Dims = ()) -> Value:
    """Numbers that were learned."""
    return b.blob(0, shape)


@reader("DummyData")
def dummy_data(b: LayerBuilder) -> list[Value]:
    """Constants: one shape and one filler for each top, or one for all."""
    param = next((v for _, v in b.layer.parameters(b.what)), {})
    shapes = [dims(v, b.what) for v in messages(param, "shape", b.what)]
    if not shapes:
        sizes = [[integer(v, b.what) for v in param.get(key, ())] for key in ("num", "channels", "height", "width")]
        shapes = [tuple(row) for row in zip(*sizes, strict=True)]
    values = [number(last(f, "value", 0.0), b.what) for f in messages(param, "data_filler", b.what)] or [0.0]
    made = []
    for i in range(len(b.outputs)):
        shape = shapes[i if len(shapes) > 1 else 0]
        ask(4 * count_of(shape, b.what), b.what)
        made.append(b.const(np.full(shape, values[i if len(values) > 1 else 0], F32)))
    return made


reader("Split", "Copy")(lambda b, x: [b(Identity(), x) for _ in b.outputs])
# Swallows what nobody reads.
reader("Silence")(lambda b, *xs: ())


@reader("Dropout")
def dropout(b: LayerBuilder, x: Value, *, dropout_ratio: float = 0.5, scale_train: bool = True) -> Value:
    """All of x; without ``scale_train`` training did not enlarge what it kept, so all of it shrinks here."""
    return x if scale_train else b(Mul(), x, 1.0 - dropout_ratio)
