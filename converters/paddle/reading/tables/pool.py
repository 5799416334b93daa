"""Readers of pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import I32, I64, AnyDType
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.conv import same_pads, windows_of
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather, GatherElements, ScatterElements
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMax, ReduceMean, ReduceSum
from bolt_numba.ops.arrays.shape import Shape
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Abs, Add, And, Div, GreaterOrEqual, Less, Min, Mod, Mul, Pow, Sub


@record(frozen=True)
class PaddlePool:
    """Attributes of pools."""

    strides: Ints = ()
    paddings: Ints = (0, 0)
    ceil_mode: bool = False
    exclusive: bool = True
    data_format: str = "NCHW"
    global_pooling: bool = False
    adaptive: bool = False
    padding_algorithm: str = "EXPLICIT"

    def windows(self, b: PaddleBuilder, spatial: int) -> tuple[Ints, str]:
        return windows_of(b, self.paddings, self.padding_algorithm, spatial, self.data_format)


@PADDLE.reader("pool2d", "pool3d")
def pool(b: PaddleBuilder, x: Value, kernel_size: Value, *, pooling_type: str, how: PaddlePool) -> Any:
    """The greatest or the mean of windows, of all, or of ``kernel_size`` equal shares of each axis.

    exclusive: pads do not count in a mean.
    """
    b.invalid_if(pooling_type not in ("max", "avg"), "pooling_type", repr(pooling_type), "max or avg")
    size, axes = b.known_ints(kernel_size, "kernel_size"), b.spatial_of(x, how.data_format)
    size = size * len(axes) if len(size) == 1 else size
    is_max, layout = pooling_type == "max", b.layout_of(how.data_format)
    if how.global_pooling or (how.adaptive and set(size) == {1}):
        return b(ReduceMax(True) if is_max else ReduceMean(True), x, ints(axes))
    if how.adaptive:
        return _adaptive(b, x, size, axes, is_max, layout)
    strides, exclusive = how.strides, how.exclusive
    pads, auto = how.windows(b, len(axes))
    if is_max:
        return b(MaxPool(size, strides, pads, (), auto, how.ceil_mode, layout), x)
    if not exclusive:
        x, pads, auto, exclusive = _counted_pads(b, x, axes, size, strides, pads, auto)
    return b(AveragePool(size, strides, pads, (), auto, how.ceil_mode, layout, count_include_pad=not exclusive), x)


def _counted_pads(
    b: PaddleBuilder, x: Value, axes: Ints, size: Ints, strides: Ints, pads: Ints, auto: str
) -> tuple[Value, Ints, str, bool]:
    """Operands of a mean that counts pads: behind, only as many count as there are before.

    Those that count become elements of x, where there are others.
    """
    n, lengths = len(axes), [b.known_dim(x, a) for a in axes]
    if auto == "SAME_UPPER" and None not in lengths:
        pads, auto = same_pads([int(d or 0) for d in lengths], size, strides or (1,) * n), "NOTSET"
    if auto != "NOTSET" or all(pads[i] >= pads[n + i] for i in range(n)):
        return x, pads, auto, False
    around = [0] * (2 * b.rank_of(x))
    for i, a in enumerate(axes):
        around[a], around[b.rank_of(x) + a] = pads[i], min(pads[i], pads[n + i])
    left = (*(0,) * n, *(max(pads[n + i] - pads[i], 0) for i in range(n)))
    return b(Pad(), x, ints(around)), left, auto, True


def _adaptive(b: PaddleBuilder, x: Value, size: Ints, axes: Ints, is_max: bool, layout: str) -> Value:
    """A plain pool where the shares are equal; else a product with shares along each axis, or their maxima."""
    sizes = [b.known_dim(x, a) for a in axes]
    if all(isinstance(d, int) and d % k == 0 for d, k in zip(sizes, size, strict=True)):
        each = tuple(int(d or 0) // k for d, k in zip(sizes, size, strict=True))
        operator = MaxPool if is_max else AveragePool
        return b(operator(each, each, layout=layout), x)
    for axis, count in zip(axes, size, strict=True):
        if not _is_whole(b, x, axis, count):
            x = _shared_max(b, x, axis, count) if is_max else _shared_mean(b, x, axis, count)
    return x


def _is_whole(b: PaddleBuilder, x: Value, axis: int, count: int) -> bool:
    """Whether each share along an axis is one element (-1 keeps the axis)."""
    return count == -1 or b.known_dim(x, axis) == count


def _shares(b: PaddleBuilder, length: Value, count: int) -> tuple[Value, Value]:
    """Begin and end of each of ``count`` shares of an axis: i * length // count, and the next rounded up."""
    places = b.counted(count)
    begins = b(Div(), b(Mul(), places, length), count)
    ends = b(Div(), b(Add(), b(Mul(), b(Add(), places, 1), length), count - 1), count)
    return begins, ends


def _shared_mean(b: PaddleBuilder, x: Value, axis: int, count: int) -> Value:
    """Means of the shares along an axis."""
    length = b.as_scalar(b.length(x, axis))
    begins, ends = (b.unsqueezed(v, 0) for v in _shares(b, length, count))
    places = b.unsqueezed(b.counted(length), 1)
    inside = b(And(), b(GreaterOrEqual(), places, begins), b(Less(), places, ends))
    dtype = x.type.dtype
    weights = b(Div(), b.to(inside, dtype), b.to(b(Sub(), ends, begins), dtype))
    rank = b.rank_of(x)
    order = [i for i in range(rank) if i != axis] + [axis]
    made = b(MatMul(), b.transposed(x, *order), weights)
    return b.transposed(made, *(order.index(i) for i in range(rank)))


def _windows(b: PaddleBuilder, x: Value, axis: int, count: int) -> Value:
    """Places of the elements of each share, [count, longest], its last one again where it is shorter."""
    length = b.as_scalar(b.length(x, axis))
    begins, ends = _shares(b, length, count)
    longest = b(Add(), b(Div(), b(Add(), length, count - 1), count), 1)
    places = b(Add(), b.unsqueezed(begins, 1), b.unsqueezed(b.counted(longest), 0))
    return b(Min(), places, b.unsqueezed(b(Sub(), ends, 1), 1))


def _shared_max(b: PaddleBuilder, x: Value, axis: int, count: int) -> Value:
    """Maxima of the shares along an axis."""
    return b(ReduceMax(False), b(Gather(axis), x, _windows(b, x, axis, count)), ints([axis + 1]))


@PADDLE.reader("max_pool2d_with_index", "max_pool3d_with_index", results=("Out", "Mask"))
def max_pool_with_index(
    b: PaddleBuilder,
    x: Value,
    *,
    kernel_size: Ints,
    strides: Ints = (),
    paddings: Ints = (0, 0),
    global_pooling: bool = False,
    adaptive: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """Maxima, and where in its plane each was."""
    rank = b.rank_of(x)
    spatial = rank - 2
    plane = b.elements(b.lengths(x, range(2, rank)))
    if global_pooling:
        adaptive, kernel_size = True, (1,) * spatial
    if adaptive:
        return _adaptive_with_index(b, x, kernel_size)
    pads, _ = windows_of(b, paddings, "EXPLICIT", spatial, "NCHW")
    made, places = b(MaxPool(kernel_size, strides, pads, (), "NOTSET", ceil_mode, indices=True), x)
    return made, b.to(b(Mod(), places, plane), mask_dtype(b))


def mask_dtype(b: PaddleBuilder) -> AnyDType:
    """Of the places that a pool notes."""
    declared = b.declared(1)
    return I32 if declared is None else declared.dtype


def _adaptive_with_index(b: PaddleBuilder, x: Value, size: Ints) -> tuple[Value, Value]:
    """Maxima of shares and their places in the plane."""
    rank = b.rank_of(x)
    spatial = rank - 2
    places: Value | None = None
    for i in range(spatial):
        own = b.shaped(b.counted(b.as_scalar(b.length(x, i + 2))), [-1] + [1] * (spatial - 1 - i))
        places = own if places is None else b(Add(), b(Mul(), places, b.as_scalar(b.length(x, i + 2))), own)
    assert places is not None
    values, where = x, places
    for i in range(spatial):
        index = _windows(b, x, i + 2, size[i])
        values, where = b(Gather(2 + 2 * i), values, index), b(Gather(2 * i), where, index)
    order = [*range(0, 2 * spatial, 2), *range(1, 2 * spatial, 2)]
    values = b.transposed(values, 0, 1, *(2 + i for i in order))
    where = b.transposed(where, *order)
    values = b.shaped(values, [0, 0, *size, -1])
    where = b.shaped(where, [*size, -1])
    best = b(ArgMax(-1, False), values)
    flat_places = b.shaped(where, [int(np.prod(size)), -1])
    bins = b.shaped(best, [-1, int(np.prod(size))])
    found = b.transposed(b(GatherElements(1), flat_places, b.transposed(bins, 1, 0)), 1, 0)
    made = b.shaped(found, b(Shape(0, 2), x), size)
    return b(ReduceMax(False), values, ints([-1])), b.to(made, mask_dtype(b))


@PADDLE.reader("lp_pool2d")
def lp_pool(b: PaddleBuilder, x: Value, kernel_size: Value, *, norm_type: float = 2.0, how: PaddlePool) -> Value:
    """p-norms of windows, or of whole images, from sums of powers."""
    b.unsupported_if(how.adaptive, "adaptive")
    powers = b(Pow(), b(Abs(), x), norm_type)
    if how.global_pooling:
        return b(Pow(), b(ReduceSum(True), powers, ints(b.spatial_of(x, how.data_format))), 1 / norm_type)
    size = b.known_ints(kernel_size, "kernel_size")
    pads, auto = how.windows(b, len(size))
    sums = LpPool(size, how.strides, pads, (), auto, how.ceil_mode, b.layout_of(how.data_format), p=1)
    return b(Pow(), b(sums, powers), 1 / norm_type)


@PADDLE.reader("unpool", "unpool3d", slots={"padding": "paddings"})
def unpool(
    b: PaddleBuilder,
    x: Value,
    indices: Value,
    output_size: Value | None = None,
    *,
    kernel_size: Ints,
    strides: Ints,
    paddings: Ints = (0, 0),
    data_format: str = "NCHW",
) -> Value:
    """Zeros with x at the places in each plane that a pool noted."""
    b.rank_of(x)
    sizes = b.to(b.flat(output_size), I64) if output_size is not None else None
    if sizes is None:
        raise b.unsupported("no size of the result")
    zeros = b(ConstantOfShape(0.0, x.type.dtype), b.joined(b(Shape(0, 2), x), b.elements(sizes)))
    rows, places = (b.shaped(v, [0, 0, -1]) for v in (x, b.to(indices, I64)))
    return b.shaped(b(ScatterElements(2), zeros, places, rows), [0, 0], sizes)
