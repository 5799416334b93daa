"""Readers of layers that cut, join and arrange blobs, and that choose among their items."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bolt_numba.base.types import Sym
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.caffe.reading.attributes import Dims
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Compress, Gather
from bolt_numba.ops.arrays.shape import Concat, DepthToSpace, Reshape, Shape, Split, Squeeze, Tile, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.pointwise import Add, Equal, Not

MOST_PARTS = 1 << 16


@reader("Concat")
def concat(b: LayerBuilder, *xs: Value, axis: int = 1, concat_dim: int | None = None) -> Value:
    return b(Concat(b.axis_of(xs[0], axis if concat_dim is None else concat_dim) if xs else axis), *xs)


@reader("Slice")
def slice_(b: LayerBuilder, x: Value, *, axis: int = 1, slice_dim: int | None = None, slice_point: Ints = ()) -> Any:
    """Parts between the points; without any, equal ones."""
    at = b.axis_of(x, axis if slice_dim is None else slice_dim)
    parts = len(b.outputs)
    b.invalid_if(not 1 <= parts <= MOST_PARTS, "number of tops", parts, f"1 to {MOST_PARTS}")
    if not slice_point:
        size = b.dim_of(x, at)
        if not isinstance(size, Sym) and size % parts:
            raise b.invalid("number of tops", parts, f"a divisor of {size}")
        return b.node(Split(at, parts), x).outputs
    ends = [*slice_point, b.static_dim(x, at)]
    lengths = [end - begin for begin, end in itertools.pairwise([0, *ends])]
    if len(lengths) != parts or min(lengths) < 1:
        raise b.invalid("slice_point", slice_point, f"{parts - 1} rising points below {ends[-1]}")
    return b.node(Split(at, parts), x, ints(lengths)).outputs


@reader("Flatten")
def flatten(b: LayerBuilder, x: Value, *, axis: int = 1, end_axis: int = -1) -> Value:
    rank = b.rank_of(x)
    first, last = b.axis_of(x, axis), b.axis_of(x, end_axis)
    b.invalid_if(last < first, "end_axis", end_axis, f"an axis from {first} on")
    behind: list[Any] = [b.dim_of(x, i) for i in range(last + 1, rank)]
    if all(isinstance(d, int) for d in behind):
        return b(Reshape(), x, ints([*(0,) * first, -1, *behind]))
    return b(Reshape(), x, b(Concat(0), b(Shape(0, first), x), np.array([-1]), b(Shape(last + 1), x)))


@reader("Reshape")
def reshape(b: LayerBuilder, x: Value, *, shape: Dims = (), axis: int = 0, num_axes: int = -1) -> Value:
    """Some axes of x, all by default, get other sizes: 0 keeps that of the same place, -1 is what is left."""
    rank = b.rank_of(x)
    if not -rank - 1 <= axis <= rank or num_axes < -1:
        raise b.invalid("axis and num_axes", (axis, num_axes), f"{-rank - 1} to {rank}, and at least -1")
    first = axis if axis >= 0 else axis + rank + 1
    end = rank if num_axes == -1 else first + num_axes
    if end > rank or any(d < -1 for d in shape) or shape.count(-1) > 1:
        raise b.invalid("axis, num_axes and shape", (axis, num_axes, shape), f"a part of {rank} axes, and sizes")
    middle = []
    for i, d in enumerate(shape):
        b.invalid_if(d == 0 and first + i >= rank, "shape", shape, f"no 0 beyond {rank} axes")
        middle.append(b.dim_of(x, first + i) if d == 0 else d)
    sizes = [*(b.dim_of(x, i) for i in range(first)), *middle, *(b.dim_of(x, i) for i in range(end, rank))]
    return b(Reshape(), x, _shape_of(b, x, sizes))


def _shape_of(b: LayerBuilder, x: Value, sizes: list[Any]) -> Value:
    """A shape some of whose sizes may be those of x that only the run tells."""
    own = x.type.shape or ()
    return b.joined([b.size_of(x, own.index(d)) if isinstance(d, Sym) else d for d in sizes])


@reader("Crop")
def crop(b: LayerBuilder, x: Value, reference: Value, *, axis: int = 2, offset: Ints = ()) -> Value:
    """Axes from ``axis`` on get the sizes of the reference, beginning at the offsets."""
    rank = b.rank_of(x)
    at = b.axis_of(x, axis)
    b.invalid_if(len(offset) > 1 and len(offset) != rank - at, "offset", offset, f"one, or {rank - at}")
    begins = list(offset) * (rank - at if len(offset) < 2 else 1) or [0] * (rank - at)
    if any(isinstance(b.dim_of(v, i), Sym) for v in (x, reference) for i in range(at, rank)) and min(begins) >= 0:
        return _cropped(b, x, b(Shape(at, rank), reference), begins, at)
    sizes = [(b.static_dim(x, i), b.static_dim(reference, i)) for i in range(at, rank)]
    if any(begin < 0 or begin + size > whole for begin, (whole, size) in zip(begins, sizes, strict=True)):
        raise b.invalid("offset and sizes", (begins, sizes), "a part of the first bottom")
    ends = [begin + size for begin, (_, size) in zip(begins, sizes, strict=True)]
    return b(Slice(), x, ints(begins), ints(ends), ints(range(at, rank)))


def _cropped(b: LayerBuilder, x: Value, sizes: Value, begins: list[int], at: int) -> Value:
    """A part of x of sizes that the run tells; where x has no such part, the shape that is wanted refuses it."""
    y = b(Slice(), x, ints(begins), b(Add(), sizes, ints(begins)), ints(range(at, at + len(begins))))
    return b(Reshape(), y, b(Concat(0), *([b(Shape(0, at), x)] if at else []), sizes))


@reader("Tile")
def tile(b: LayerBuilder, x: Value, *, tiles: int, axis: int = 1) -> Value:
    rank = b.rank_of(x)
    at = b.axis_of(x, axis)
    b.invalid_if(tiles < 1, "tiles", tiles, "at least 1")
    return b(Tile(), x, ints(tiles if i == at else 1 for i in range(rank)))


@reader("Permute")
def permute(b: LayerBuilder, x: Value, *, order: Ints = ()) -> Value:
    """Axes in another order; those that are not listed follow."""
    rank = b.rank_of(x)
    rest = [i for i in range(rank) if i not in order]
    if len(set(order)) != len(order) or any(not 0 <= i < rank for i in order):
        raise b.invalid("order", order, f"different axes of {rank}")
    return b(Transpose((*order, *rest)), x)


@reader("Squeeze")
def squeeze(b: LayerBuilder, x: Value, *, axis: Ints = (), axes: Ints = ()) -> Value:
    given = axis or axes
    return b(Squeeze(), x, ints(given)) if given else b(Squeeze(), x)


@reader("Unsqueeze", "ExpandDims")
def unsqueeze(b: LayerBuilder, x: Value, *, axis: Ints = (), axes: Ints = ()) -> Value:
    return b(Unsqueeze(), x, ints(axis or axes))


@reader("ShuffleChannel")
def shuffle_channel(b: LayerBuilder, x: Value, *, group: int = 1) -> Value:
    """The first of each group of channels, then the second of each, and so on."""
    channels = b.static_dim(x, 1)
    b.invalid_if(group < 1 or channels % group, "group", group, f"a divisor of {channels} channels")
    y = b.reshaped(x, [b.size_of(x, 0), group, channels // group, -1])
    sizes = b.sizes_of(x, (0, *range(2, b.rank_of(x))))
    return b.reshaped(b(Transpose((0, 2, 1, 3)), y), [sizes[0], channels, *sizes[1:]])


@reader("PixelShuffle", "SubPixel")
def pixel_shuffle(b: LayerBuilder, x: Value, *, upscale_factor: int = 2) -> Value:
    return b(DepthToSpace(upscale_factor, "CRD"), x)


@reader("Pad", "Padding")
def pad(
    b: LayerBuilder,
    x: Value,
    *,
    top: int = 0,
    bottom: int = 0,
    left: int = 0,
    right: int = 0,
    pad_l: int = 0,
    pad_r: int = 0,
    pad_t: int = 0,
    pad_b: int = 0,
    pad_beg: int = 0,
    pad_end: int = 0,
    value: float = 0.0,
) -> Value:
    """A border around the image."""
    begins = [top or pad_t or pad_beg, left or pad_l or pad_beg]
    ends = [bottom or pad_b or pad_end, right or pad_r or pad_end]
    return b(Pad("constant"), x, ints([*begins, *ends]), value, ints([2, 3]))


reader("BatchReindex")(AsIs(Gather(0), "x order:"))


reader("Gather")(AsIs(Gather, "x indices:"))


@reader("Filter")
def filter_(b: LayerBuilder, *xs: Value) -> list[Value]:
    """The items of each bottom whose entry in the last one, the selector, is not 0."""
    b.invalid_if(len(xs) < 2, "number of bottoms", len(xs), "at least 2")
    *values, selector = xs
    chosen = b(Not(), b(Equal(), b(Reshape(), selector, ints([-1])), 0.0))
    return [b(Compress(0), x, chosen) for x in values]
