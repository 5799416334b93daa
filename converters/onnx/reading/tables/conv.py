"""Readers of convolutions and pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import Sym
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ForeignBuilder, Ints, ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import ScatterElements
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ReduceL1, ReduceL2, ReduceMax, ReduceMean, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.pool import AveragePool, Col2Im, LpPool, MaxPool
from bolt_numba.ops.layers.products.conv import Conv, Convolution, ConvTranspose
from bolt_numba.ops.pointwise import Abs, Add, Pow, Sub


def check_kernel(b: ForeignBuilder, w: Value, kernel_shape: Ints) -> None:
    """Raise InvalidModelError when the attribute contradicts the weight."""
    shape = w.type.shape
    known = shape is not None and not any(isinstance(d, Sym) for d in shape)
    if kernel_shape and known and shape is not None and shape[2:] != kernel_shape:
        raise b.invalid("kernel_shape", kernel_shape, f"{shape[2:]} of the weight")


class Convolved(AsIs):
    """A convolution whose ``kernel_shape``, where a file has it, must be that of the filters."""

    def __init__(self, operator: type[Convolution | ConvTranspose], operands: str, **how: Any) -> None:
        super().__init__(operator, operands, {"kernel_shape": ()}, **how)
        self.filters_at = operator.filters_at

    def __call__(self, b: ForeignBuilder, *operands: Any, kernel_shape: Ints = (), **attributes: Any) -> Any:
        check_kernel(b, operands[self.filters_at], kernel_shape)
        return super().__call__(b, *operands, **attributes)


def _transposed(b: NodeBuilder, made: ConvTranspose, x: Value, *others: Value) -> Value:
    rank = b.rank_of(x) - 2
    sizes = made.output_shape[-rank:] if rank > 0 else ()  # some exporters write batch and channels too
    return b(replace(made, output_shape=sizes), x, *others)


def _max_pool(b: NodeBuilder, made: MaxPool, x: Value) -> Any:
    return b(replace(made, indices=b.wants(1)), x)


add_reader("Conv", Convolved(Conv, "x w bias?"))
add_reader("ConvTranspose", Convolved(ConvTranspose, "x w bias?", then=_transposed))
add_as_is(AveragePool, since=7)
add_reader("AveragePool", AsIs(AveragePool, lacks=["dilations", "ceil_mode", "count_include_pad"]))
add_reader("MaxPool", AsIs(MaxPool, lacks=["indices"], then=_max_pool))
add_as_is(Col2Im)


@reader("LpPool")
def lp_pool(
    b: NodeBuilder,
    x: Value,
    *,
    kernel_shape: Ints = (),
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: Ints = (),
    p: float = 2,
    pads: Ints = (),
    strides: Ints = (),
) -> Value:
    b.unsupported_if(p != int(p) or p < 1, f"p = {p}")
    b.invalid_if(not kernel_shape, "kernel_shape", "none", "a size for each spatial axis")
    made = LpPool(kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, p=int(p))
    return b(made, x)


@reader("MaxUnpool")
def max_unpool(
    b: NodeBuilder,
    x: Value,
    indices: Value,
    output_shape: Value | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints = (),
    strides: Ints = (),
) -> Value:
    """Zeros with x scattered to the places that MaxPool noted, places within the flattened tensor that was pooled.

    With ``output_shape`` the places still refer to the size that follows from the attributes.
    """
    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * (2 * rank)
    dims = [b.static_dim(x, i) for i in range(b.rank_of(x))]
    if len(dims) != rank + 2 or len(strides) != rank or len(pads) != 2 * rank:
        raise b.invalid("kernel_shape, strides and pads", (kernel_shape, strides, pads), f"rank {len(dims) - 2}")
    inferred = dims[:2] + [
        (d - 1) * s - pads[i] - pads[rank + i] + k
        for i, (d, s, k) in enumerate(zip(dims[2:], strides, kernel_shape, strict=True))
    ]
    count = int(np.prod(inferred))
    zeros = b(ConstantOfShape(0.0, x.type.dtype), ints([count]))
    flat = [b(Reshape(), v, ints([-1])) for v in (indices, x)]
    y = b(Reshape(), b(ScatterElements(0), zeros, *flat), ints(inferred))
    if output_shape is None:
        return y
    extra = b(Sub(), output_shape, ints(inferred))
    return b(Pad("constant"), y, b(Concat(0), ints([0] * len(dims)), extra))


reader("GlobalAveragePool")(lambda b, x: _global(b, ReduceMean(), x))
reader("GlobalMaxPool")(lambda b, x: _global(b, ReduceMax(), x))


@reader("GlobalLpPool")
def global_lp_pool(b: NodeBuilder, x: Value, *, p: float = 2) -> Value:
    if p in (1, 2):
        return _global(b, ReduceL1() if p == 1 else ReduceL2(), x)
    total = _global(b, ReduceSum(), b(Pow(), b(Abs(), x), float(p)))
    return b(Pow(), total, 1.0 / p)


def _global(b: NodeBuilder, operator: Any, x: Value) -> Value:
    axes = b.spatial_axes(x)
    return b(operator, x, axes) if len(axes) else b(Add(), x, 0.0)
