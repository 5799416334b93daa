"""Operators that move elements and compute nothing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, I8, I64, U8
from bolt_numba.ops.arrays.accumulate import SearchSorted
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND, OneHot, ScatterElements, ScatterND
from bolt_numba.ops.arrays.generate import EyeLike, Trilu
from bolt_numba.ops.arrays.shape import Concat, DepthToSpace, Expand, Shape, Size, SpaceToDepth, Split, Tile, Transpose
from bolt_numba.ops.arrays.slicing import Pad, ReverseSequence, Slice, slice_bounds
from bolt_numba.ops.layers.attention.cache import TensorScatter
from bolt_numba.ops.layers.pool import Col2Im
from bolt_numba.ops.shapes import distinct_axes
from bolt_numba.plugins.drivers.jax.table import DATA, NUMBERS, JaxSite, builds


@builds("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", dtypes=DATA)
def reshape(s: JaxSite, op: Any, x: Any, *operands: Any) -> Any:
    return s.np.reshape(x, s.result())


@builds("Transpose", dtypes=DATA, by_rank=True)
def transpose(s: JaxSite, op: Transpose, x: Any) -> Any:
    return s.np.transpose(x, op.perm)


@builds("Concat", dtypes=DATA, by_rank=True)
def concat(s: JaxSite, op: Concat, *xs: Any) -> Any:
    return s.np.concatenate(xs, op.axis)


@builds("Split", dtypes=DATA)
def split(s: JaxSite, op: Split, x: Any, sizes: Any = None) -> Any:
    axis = s.axis(op.axis)
    ends = np.cumsum([s.result(i)[axis] for i in range(len(s.results))])
    return s.np.split(x, ends[:-1].tolist(), axis)


@builds("Slice", dtypes=DATA)
def slices(s: JaxSite, op: Slice, x: Any, *operands: Any) -> Any:
    starts, ends = s.ints(1, "starts"), s.ints(2, "ends")
    axes = s.ints(3, "axes") if s.given(3) else list(range(len(starts)))
    steps = s.ints(4, "steps") if s.given(4) else [1] * len(starts)
    index: list[Any] = [slice(None)] * s.rank()
    for axis, start, end, step in zip(distinct_axes(op, axes, s.rank()), starts, ends, steps, strict=True):
        first, count = slice_bounds(s.dims()[axis], start, end, step)
        stop = first + count * step
        index[axis] = slice(first, None if stop < 0 else stop, step)
    return x[tuple(index)]


@builds("Expand", dtypes=DATA)
def expand(s: JaxSite, op: Expand, x: Any, shape: Any) -> Any:
    return s.np.broadcast_to(x, s.result())


@builds("Tile", dtypes=DATA)
def tile(s: JaxSite, op: Tile, x: Any, repeats: Any) -> Any:
    return s.np.tile(x, s.ints(1, "repeats"))


@builds("Pad", dtypes=DATA)
def pad(s: JaxSite, op: Pad, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    """What is cut off goes first."""
    given = s.ints(1, "pads")
    half = len(given) // 2
    places = distinct_axes(op, s.ints(3, "axes") if s.given(3) else range(half), s.rank())
    added, index = [(0, 0)] * s.rank(), [slice(None)] * s.rank()
    for i, axis in enumerate(places):
        begin, end = given[i], given[half + i]
        added[axis] = max(begin, 0), max(end, 0)
        index[axis] = slice(max(-begin, 0), s.dims()[axis] - max(-end, 0))
    x = s.np.asarray(x)[tuple(index)]
    if op.mode != "constant":
        return s.np.pad(x, added, mode=op.mode)
    fill = s.np.zeros((), x.dtype) if value is None else s.np.reshape(value, ())
    return s.lax.pad(x, fill, [(before, behind, 0) for before, behind in added])


@builds("DepthToSpace", "SpaceToDepth", dtypes=DATA)
def blocks(s: JaxSite, op: DepthToSpace | SpaceToDepth, x: Any) -> Any:
    """By the reference, of which JAX's arrays have every method."""
    return op.reference(s.np.asarray(x))


@builds("BitCast", dtypes=NUMBERS)
def bit_cast(s: JaxSite, op: BitCast, x: Any) -> Any:
    return s.lax.bitcast_convert_type(x, op.to)


@builds("Trilu", dtypes=DATA, indices=(1,))
def triangle(s: JaxSite, op: Trilu, x: Any, k: Any = None) -> Any:
    """Of a diagonal that the run may tell."""
    diagonal = 0 if k is None else s.np.reshape(k, ())
    rows, columns = (np.arange(size) for size in s.dims()[-2:])
    place = columns[None, :] - rows[:, None]
    kept = place >= diagonal if op.upper else place <= diagonal
    return s.np.where(kept, x, s.np.zeros((), x.dtype))


@builds("EyeLike", dtypes=DATA)
def eye(s: JaxSite, op: EyeLike, x: Any) -> Any:
    return s.np.eye(*s.dims(), k=op.k, dtype=s.results[0].dtype)


@builds("Shape", "Size", dtypes=DATA, places=(0,))
def sizes_of(s: JaxSite, op: Shape | Size, x: Any) -> Any:
    if isinstance(op, Size):
        return np.array(np.prod(s.dims()), I64)
    return np.array(s.dims()[op.start : op.end], I64)


@builds("OneHot", dtypes=DATA, others={0: NUMBERS})
def one_hot(s: JaxSite, op: OneHot, indices: Any, depth: Any, values: Any) -> Any:
    size, axis = int(s.known(1, "depth").reshape(-1)[0]), op.axis % (s.rank() + 1)
    spot = s.np.expand_dims(s.np.asarray(indices).astype(I64), axis)
    places = np.arange(size).reshape(-1, *(1,) * (s.rank() - axis))
    return s.np.where((spot == places) | (spot + size == places), values[1], values[0])


@builds("ByteTable", dtypes=(U8, I8))
def byte_table(s: JaxSite, op: ByteTable, x: Any, table: Any) -> Any:
    return s.np.take(table, s.lax.bitcast_convert_type(x, U8).astype(np.int32), mode="clip")


@builds("Gather", dtypes=DATA, indices=(1,))
def gather(s: JaxSite, op: Gather, x: Any, indices: Any) -> Any:
    return s.np.take(x, indices, axis=op.axis, mode="clip")


@builds("GatherElements", dtypes=DATA, indices=(1,))
def gather_elements(s: JaxSite, op: GatherElements, x: Any, indices: Any) -> Any:
    axis = s.axis(op.axis)
    lines = tuple(slice(None) if i == axis else slice(0, d) for i, d in enumerate(s.dims(1)))
    return s.np.take_along_axis(s.np.asarray(x)[lines], indices, axis, mode="clip")


@builds("GatherND", dtypes=DATA, indices=(1,))
def gather_nd(s: JaxSite, op: GatherND, x: Any, indices: Any) -> Any:
    batch = s.dims(1)[: op.batch_dims]
    extra = (1,) * (s.rank(1) - 1 - op.batch_dims)
    leading = [g.reshape(*g.shape, *extra) for g in np.ogrid[tuple(slice(0, d) for d in batch)]] if batch else []
    found = [indices[..., i] for i in range(s.dims(1)[-1])]
    return s.np.asarray(x).at[(*leading, *found)].get(mode="clip")


def _placed(s: JaxSite, op: ScatterElements | ScatterND, x: Any, index: Any, updates: Any) -> Any:
    s.want(op.reduction == "none" or s.type(0).dtype != BOOL, "sums of truths")
    at = s.np.asarray(x).at[index]
    return {"none": at.set, "add": at.add, "mul": at.multiply, "min": at.min, "max": at.max}[op.reduction](updates)


@builds("ScatterElements", dtypes=DATA, indices=(1,))
def scatter_elements(s: JaxSite, op: ScatterElements, x: Any, indices: Any, updates: Any) -> Any:
    index: list[Any] = list(np.ogrid[tuple(slice(0, d) for d in s.dims(1))])
    index[s.axis(op.axis)] = indices
    return _placed(s, op, x, tuple(index), updates)


@builds("ScatterND", dtypes=DATA, indices=(1,))
def scatter_nd(s: JaxSite, op: ScatterND, x: Any, indices: Any, updates: Any) -> Any:
    return _placed(s, op, x, tuple(indices[..., i] for i in range(s.dims(1)[-1])), updates)


@builds("ReverseSequence", dtypes=DATA, indices=(1,))
def reverse_sequence(s: JaxSite, op: ReverseSequence, x: Any, lengths: Any) -> Any:
    size, rank = s.dims()[op.time_axis], s.rank()
    time = np.arange(size).reshape([-1 if i == op.time_axis else 1 for i in range(rank)])
    each = lengths.reshape([-1 if i == op.batch_axis else 1 for i in range(rank)])
    return s.np.take_along_axis(x, s.np.where(time < each, each - 1 - time, time), op.time_axis, mode="clip")


@builds("TensorScatter", dtypes=DATA, indices=(2,))
def tensor_scatter(s: JaxSite, op: TensorScatter, past: Any, update: Any, starts: Any = None) -> Any:
    """Rows of a cache written from a place on, in each sequence of the batch."""
    axis = s.axis(op.axis)
    room, length, batch = s.dims()[axis], s.dims(1)[axis], s.dims()[0]
    begin = np.zeros(batch, I64) if starts is None else starts.astype(np.int64)
    if starts is not None and op.mode == "linear":
        begin = s.inside(begin, [room - length + 1], False)
    places = begin[:, None] + np.arange(length)
    places = places % room if op.mode == "circular" else places
    index = [np.arange(batch)[:, None], places]
    made = s.np.moveaxis(past, axis, 1).at[tuple(index)].set(s.np.moveaxis(update, axis, 1))
    return s.np.moveaxis(made, 1, axis)


@builds("Col2Im", dtypes=NUMBERS)
def col_to_im(s: JaxSite, op: Col2Im, x: Any, image_shape: Any, block_shape: Any) -> Any:
    """Blocks added up at their places, one position of the kernel after the other."""
    image, block = s.ints(1, "the shape of the image"), s.ints(2, "the shape of blocks")
    windows, rank = op._windows(block), len(block)
    outs = windows.static_dims(op, image)
    room = [image[i] + windows.pads[i] + windows.pads[rank + i] for i in range(rank)]
    n, channels = s.result()[:2]
    data = x.reshape(n, channels, int(np.prod(block)), *outs)
    y = s.np.zeros((n, channels, *room), x.dtype)
    for i, tap in enumerate(itertools.product(*map(range, block))):
        begins = [t * d for t, d in zip(tap, windows.dilations, strict=True)]
        at = [slice(b, b + (o - 1) * k + 1, k) for b, o, k in zip(begins, outs, windows.strides, strict=True)]
        y = y.at[(slice(None), slice(None), *at)].add(data[:, :, i])
    return y[(slice(None), slice(None), *(slice(windows.pads[i], windows.pads[i] + image[i]) for i in range(rank)))]


@builds("SearchSorted", dtypes=NUMBERS, places=(0,))
def search_sorted(s: JaxSite, op: SearchSorted, row: Any, values: Any) -> Any:
    def find(line: Any, sought: Any) -> Any:
        return s.np.searchsorted(line, sought, side="right" if op.right else "left")

    for _ in s.dims()[:-1]:
        find = s.jax.vmap(find)
    return find(s.np.asarray(row), s.np.asarray(values)).astype(I64)
