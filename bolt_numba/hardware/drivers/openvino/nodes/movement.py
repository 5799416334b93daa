"""Operators that move elements and compute nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import DATA, FLOAT, OvSite, builds
from bolt_numba.types import I32, I64

END = np.iinfo(np.int64).max


@builds("Reshape", dtypes=DATA)
def reshape(s: OvSite, op: Any, x: Any, shape: Any) -> Any:
    """With 0 for a size that stays, unless it is meant."""
    return s.v.reshape(x, shape, not op.allowzero)


@builds("Flatten", dtypes=DATA)
def flatten(s: OvSite, op: Any, x: Any) -> Any:
    axis = op.axis % s.rank() if s.rank() else 0
    if op.axis == s.rank():
        return s.v.reshape(x, s.i64(-1, 1), False)
    if axis <= 1:
        return s.v.reshape(x, s.i64(1 if axis == 0 else 0, -1), True)
    rows = s.dims()[:axis]
    return s.v.reshape(x, s.i64(int(np.prod(rows)), -1), False)


@builds("Squeeze", dtypes=DATA)
def squeeze(s: OvSite, op: Any, x: Any, axes: Any = None) -> Any:
    if axes is None:
        s.dims()  # which axes are 1 must be known
        return s.v.reshape(x, s.const(np.array(s.results[0].dims, I64)), False)
    s.want(bool(s.ints(1, "axes")), "no axes to take out")
    return s.v.squeeze(x, axes)


@builds("Unsqueeze", dtypes=DATA)
def unsqueeze(s: OvSite, op: Any, x: Any, axes: Any) -> Any:
    return s.v.unsqueeze(x, axes)


@builds("Transpose", dtypes=DATA, by_rank=True)
def transpose(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.transpose(x, s.i64(*op.perm))


@builds("Concat", dtypes=DATA, by_rank=True)
def concat(s: OvSite, op: Any, *xs: Any) -> Any:
    return s.v.concat(list(xs), op.axis)


@builds("Split", dtypes=DATA)
def split(s: OvSite, op: Any, x: Any, sizes: Any = None) -> Any:
    """By the sizes of the parts, which inference knows."""
    axis = op.axis % s.rank()
    lengths = [t.shape[axis] for t in s.results if t.shape is not None]
    s.want(all(isinstance(n, int) for n in lengths), "sizes that only the run tells")
    return s.v.variadic_split(x, s.const(np.array(axis, I64)), s.i64(*lengths)).outputs()


@builds("Slice", dtypes=DATA)
def slices(s: OvSite, op: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    count = s.shape(1)[0]
    s.want(isinstance(count, int), "bounds of a number that only the run tells")
    axes = axes if axes is not None else s.i64(*range(count))
    return s.v.slice(x, starts, ends, steps if steps is not None else s.i64(*[1] * count), axes)


@builds("Gather", dtypes=DATA, indices=(1,))
def gather(s: OvSite, op: Any, x: Any, indices: Any) -> Any:
    return s.v.gather(x, indices, s.const(np.array(op.axis, I64)))


@builds("GatherElements", dtypes=DATA, indices=(1,))
def gather_elements(s: OvSite, op: Any, x: Any, indices: Any) -> Any:
    others = [i for i in range(s.rank()) if i != op.axis % s.rank()]
    s.want(all(s.shape(0)[i] == s.shape(1)[i] for i in others), "indices of fewer lines than there are")
    return s.v.gather_elements(x, indices, op.axis)


@builds("GatherND", dtypes=DATA, indices=(1,))
def gather_nd(s: OvSite, op: Any, x: Any, indices: Any) -> Any:
    return s.v.gather_nd(x, indices, op.batch_dims)


@builds("ByteTable", dtypes=DATA)
def byte_table(s: OvSite, op: Any, x: Any, table: Any) -> Any:
    """A lookup, whose negative indices count from the end as the entries of negative bytes do."""
    return s.v.gather(table, s.v.convert(x, np.int32), s.const(np.array(0, I64)))


@builds("ScatterElements", dtypes=FLOAT, indices=(1,))
def scatter_elements(s: OvSite, op: Any, x: Any, indices: Any, updates: Any) -> Any:
    kind = {"none": "none", "add": "sum", "mul": "prod", "min": "min", "max": "max"}[op.reduction]
    return s.v.scatter_elements_update(x, indices, updates, s.const(np.array(op.axis, I64)), kind)


@builds("ScatterND", dtypes=FLOAT, indices=(1,))
def scatter_nd(s: OvSite, op: Any, x: Any, indices: Any, updates: Any) -> Any:
    s.want(op.reduction == "none", "several updates of one element")
    return s.v.scatter_nd_update(x, indices, updates)


@builds("Expand", dtypes=DATA)
def expand(s: OvSite, op: Any, x: Any, shape: Any) -> Any:
    return s.v.broadcast(x, shape, broadcast_spec="BIDIRECTIONAL")


@builds("Tile", dtypes=DATA)
def tile(s: OvSite, op: Any, x: Any, repeats: Any) -> Any:
    return s.v.tile(x, repeats)


@builds("Pad", dtypes=DATA)
def pad(s: OvSite, op: Any, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    """For all axes, those that stay as they are included."""
    s.want(op.mode in ("constant", "reflect", "edge"), f"mode {op.mode}")
    given = s.ints(1, "pads")
    half = len(given) // 2
    places = s.ints(3, "axes") if s.given(3) else list(range(half))
    begins, ends = np.zeros(s.rank(), I64), np.zeros(s.rank(), I64)
    for i, axis in enumerate(places):
        begins[axis], ends[axis] = given[i], given[half + i]
    s.want(op.mode == "constant" or min(*begins, *ends, 0) == 0, "negative pads of a mirror")
    if value is None or op.mode != "constant":
        fill = s.like(0) if op.mode == "constant" else None
    else:
        fill = s.const(s.known(2, "a value").reshape(()))  # of another one it forgets a part
    return s.v.pad(x, s.const(begins), s.const(ends), op.mode, fill)


@builds("DepthToSpace", dtypes=FLOAT)
def depth_to_space(s: OvSite, op: Any, x: Any) -> Any:
    s.want(s.rank() in (3, 4, 5), "images of other than 1 to 3 axes")
    return s.v.depth_to_space(x, "blocks_first" if op.mode == "DCR" else "depth_first", op.blocksize)


@builds("SpaceToDepth", dtypes=FLOAT)
def space_to_depth(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.space_to_depth(x, "blocks_first", op.blocksize)


@builds("ReverseSequence", dtypes=DATA, indices=(1,))
def reverse_sequence(s: OvSite, op: Any, x: Any, lengths: Any) -> Any:
    return s.v.reverse_sequence(x, lengths, op.batch_axis, op.time_axis)


@builds("OneHot", dtypes=FLOAT, indices=(0,))
def one_hot(s: OvSite, op: Any, indices: Any, depth: Any, values: Any) -> Any:
    """Negative indices count from the end, which OpenVINO's own does not know."""
    size = s.ints(1, "depth")[0]
    kind = s.type(0).dtype
    s.want(kind == I32, "indices of 64 bits, which OpenVINO cuts to 32")
    indices = s.v.select(s.v.less(indices, s.const(np.array(0, kind))),
                         s.v.add(indices, s.const(np.array(size, kind))), indices)
    off, on = s.v.split(values, s.const(np.array(0, I64)), 2).outputs()
    scalar = s.const(np.zeros(0, I64))
    on, off = s.v.reshape(on, scalar, False), s.v.reshape(off, scalar, False)
    return s.v.one_hot(indices, s.const(np.array(size, I64)), on, off, op.axis)


@builds("Shape", dtypes=DATA, places=(0,))
def shape_of(s: OvSite, op: Any, x: Any) -> Any:
    whole = s.v.shape_of(x, "i64")
    start = s.i64(op.start)
    return s.v.slice(whole, start, s.i64(END if op.end is None else op.end), s.i64(1))


@builds("Size", dtypes=DATA, places=(0,))
def size_of(s: OvSite, op: Any, x: Any) -> Any:
    return s.v.reduce_prod(s.v.shape_of(x, "i64"), s.i64(0), False)
