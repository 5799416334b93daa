"""Gather and scatter kernels with indices that only the run knows, any element size.

An index out of range never leads outside a buffer: it is reported, and as nobody will see the result
the kernel ends there.  Inner loops only remember where it was: a report inside costs a tenth of their time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import table
from bolt_numba.kernels.cpu.faults import FAULT_AT, report
from bolt_numba.kernels.cpu.language.lang import (
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    split,
    store_f32,
    store_f64,
    store_i32,
    store_i64,
    view,
)
from bolt_numba.kernels.cpu.movement.move import (
    PARALLEL_BYTES,
    PARALLEL_ELEMENTS,
    UNITS,
    axes_of,
    copy_run,
    outer_offsets,
    steps,
)
from bolt_numba.kernels.cpu.movement.table_gather import table_gather_steps
from bolt_numba.kernels.extents import Extents, Reach, box
from bolt_numba.kernels.geometry.scalars import float_max, float_min
from bolt_numba.kernels.geometry.strides import broadcast_move, dense, move
from bolt_numba.kernels.geometry.transfers import MAX_TABLE, gather_tables, has_fixed_size, typed
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND, OneHot, ScatterElements, ScatterND
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import F32, F64, I32, TensorType
from bolt_numba.types import I64 as INT64

_REDUCED = {F32: np.float32, F64: np.float64, I32: np.int32, INT64: np.int64}
_KINDS = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}
_NAMES = list(_KINDS)
_SCALARS: dict[Any, tuple[Any, Any]] = {
    np.float32: (load_f32, store_f32), np.float64: (load_f64, store_f64), np.int32: (load_i32, store_i32),
    np.int64: (load_i64, store_i64),
}  # fmt: skip


@inline
def load_index(address: int, i: int, wide: int) -> Any:
    """Index ``i`` of an i64 (``wide``) or i32 array."""
    return load_i64(address + 8 * i) if wide else load_i32(address + 4 * i)


def index_bytes(count: int, wide: int) -> int:
    """Extent of ``count`` indices that `load_index` reads."""
    return count * (8 if wide else 4)


@inline
def wrapped(index: int, size: int) -> int:
    """Index counted from the begin; negative when out of range."""
    at = index + size if index < 0 else index
    return at if at < size else -1


def _rows(a: Any) -> dict[str, Reach]:
    return {
        "src": a.outer * a.size * a.run,
        "index": index_bytes(a.count, a.wide),
        "dst": a.outer * a.count * a.run,
    }


@native(src=PTR, index=PTR, dst=PTR, fault=FAULT_AT, wide=I64, outer=I64, count=I64, size=I64, run=I64, extents=_rows)
def gather_rows(p: Any, tid: int, nthreads: int) -> None:
    """dst[o, i] = src[o, index[i]]: rows of ``run`` bytes, ``size`` of them for each o in src."""
    lo, hi = split(p.outer * p.count, tid, nthreads)
    count, size, run, index, wide = p.count, p.size, p.run, p.index, p.wide
    src, dst = p.src, p.dst
    o = lo // count
    i = lo - o * count
    wrong = -1
    for at in range(lo, hi):
        row = wrapped(load_index(index, i, wide), size)
        if row >= 0:
            copy_run(dst + at * run, src + (o * size + row) * run, run)
        else:
            wrong = i
        i += 1
        if i == count:
            i = 0
            o += 1
    if wrong >= 0:
        report(p.fault, wrong, load_index(index, wrong, wide), -size, size - 1)


@cache
def along_axis(unit: int, scatters: bool, wide: bool, last: bool) -> Native:
    """Kernel of GatherElements, and of ScatterElements without a reduction.

    data: array that is indexed; dense: the gathered result or the updates, in the order of ``index``.  outer: table of
    `outer_offsets`: the strides of data, 0 for the indexed axis; s0: that of the last axis; sa: of the indexed axis.
    last: the last axis is the indexed one; wide: indices are i64; the kernel has no tests for either in its loop.
    """
    load, store = UNITS[unit]

    step = 8 if wide else 4

    def body(p: Any, tid: int, nthreads: int) -> None:
        n, sa, size = p.n, p.sa, p.size
        lo, hi = split(p.count, tid, nthreads)
        for at in range(lo, hi):
            offset, _ = outer_offsets(p.outer, p.rank, at)
            data = p.data + offset
            dense = p.dense + at * n * unit
            index, wrong = p.index + at * n * step, n
            for i in range(n):
                given = load_i64(index + 8 * i) if wide else load_i32(index + 4 * i)
                place = given + size if given < 0 else given
                inside = place >= 0 and place < size
                there = data + place * unit if last else data + i * unit + place * sa
                if scatters:
                    if inside:
                        store(there, load(dense + i * unit))
                    else:
                        wrong = i
                elif inside:
                    store(dense + i * unit, load(there))
                else:
                    wrong = i
            if wrong < n:
                given = load_i64(index + 8 * wrong) if wide else load_i32(index + 4 * wrong)
                report(p.fault, at * n + wrong, given, -size, size - 1)
                return

    body.__name__ = f"{'scatter' if scatters else 'gather'}_elements_{8 * unit}_{8 * step}{'_last' * last}"
    return native(fastmath=None, extents=_elements_of(unit), **_ALONG)(body)


def _elements_of(unit: int) -> Extents:
    """Extents of the kernels over elements of ``unit`` bytes along an axis."""

    def reach(a: Any) -> dict[str, Reach]:
        count = a.count * a.n
        return {
            "data": box(unit, *axes_of(a.outer, a.rank, 1), (a.n, a.s0), (a.size, a.sa)) if count else 0,
            "dense": count * unit,
            "index": index_bytes(count, a.wide),
            "outer": 24 * a.rank,
        }

    return reach


_ALONG = dict.fromkeys(("data", "dense", "index", "outer"), PTR) | {"fault": FAULT_AT} | dict.fromkeys(
    ("rank", "count", "n", "wide", "s0", "sa", "size"), I64
)


@cache
def combining(dtype: Any) -> Any:
    """Helper of one of the reductions of `_KINDS`, of two scalars; NaN stays, whichever it is; 0 is more than -0."""
    floats = np.dtype(dtype).kind == "f"

    @inline
    def combined(kind: int, old: Any, new: Any) -> Any:
        if kind == 1:
            return old + new
        if kind == 2:
            return old * new
        if kind == 3:
            return float_max(old, new) if floats else max(old, new)
        if kind == 4:
            return float_min(old, new) if floats else min(old, new)
        return new

    return combined


@cache
def reduce_along_axis(dtype: Any, kind: int, wide: bool) -> Native:
    """Kernel of ScatterElements with a reduction of `_KINDS`; fields as in `along_axis`."""
    unit, step = np.dtype(dtype).itemsize, 8 if wide else 4
    load, store = _SCALARS[dtype]
    combined = combining(dtype)

    def body(p: Any, tid: int, nthreads: int) -> None:
        n, s0, sa, size = p.n, p.s0, p.sa, p.size
        for at in range(p.count):
            offset, _ = outer_offsets(p.outer, p.rank, at)
            data = p.data + offset
            dense = p.dense + at * n * unit
            index, wrong = p.index + at * n * step, n
            for i in range(n):
                given = load_i64(index + 8 * i) if wide else load_i32(index + 4 * i)
                place = given + size if given < 0 else given
                if place >= 0 and place < size:
                    there = data + i * s0 + place * sa
                    store(there, dtype(combined(kind, load(there), load(dense + i * unit))))
                else:
                    wrong = i
            if wrong < n:
                given = load_i64(index + 8 * wrong) if wide else load_i32(index + 4 * wrong)
                report(p.fault, at * n + wrong, given, -size, size - 1)
                return

    body.__name__ = f"scatter_{_NAMES[kind]}_{np.dtype(dtype).name}_{8 * step}"
    return native(fastmath=None, extents=_elements_of(unit), **_ALONG)(body)


@inline
def tuple_offset(index: int, table: int, depth: int, wide: int) -> int:
    """Byte offset of an index tuple; table: rows (size, stride); -1 - j when index j is the first out of range."""
    offset = 0
    for j in range(depth):
        place = wrapped(load_index(index, j, wide), load_i64(table + 16 * j))
        if place < 0:
            return -1 - j
        offset += place * load_i64(table + 16 * j + 8)
    return offset


@inline
def report_tuple(p: Any, at: int, offset: int) -> None:
    """Report what `tuple_offset` gave for tuple ``at``, if that is negative."""
    if offset < 0:
        j = -1 - offset
        place, size = at * p.depth + j, load_i64(p.table + 16 * j)
        report(p.fault, place, load_index(p.index, place, p.wide), -size, size - 1)


def _tuple_rows(a: Any) -> dict[str, Reach]:
    batches = -(-a.count // a.per_batch)
    return {
        "data": box(a.run, (batches, a.batch), *a.table[: a.depth].tolist()),
        "dense": a.count * a.run,
        "index": index_bytes(a.count * a.depth, a.wide),
        "table": 16 * a.depth,
    }


_TUPLES = dict.fromkeys(("data", "dense", "index", "table"), PTR) | {"fault": FAULT_AT} | dict.fromkeys(
    ("depth", "wide", "count", "per_batch", "batch", "run"), I64
)


@native(fastmath=None, extents=_tuple_rows, **_TUPLES)
def gather_tuples(p: Any, tid: int, nthreads: int) -> None:
    """Rows of ``run`` bytes of data at index tuples; every ``per_batch`` tuples data moves on by ``batch`` bytes."""
    at, hi = split(p.count, tid, nthreads)
    index, table, depth, wide, run, per_batch, batch = p.index, p.table, p.depth, p.wide, p.run, p.per_batch, p.batch
    step, offset, to = depth * (8 if wide else 4), 0, p.dense
    data, left = p.data + at // per_batch * batch, per_batch - at % per_batch
    while at < hi:
        offset = tuple_offset(index + at * step, table, depth, wide)
        if offset < 0:
            break
        copy_run(to + at * run, data + offset, run)
        at, left = at + 1, left - 1
        if left == 0:
            data, left = data + batch, per_batch
    report_tuple(p, at, offset)


@native(fastmath=None, extents=_tuple_rows, **_TUPLES)
def scatter_tuples(p: Any, tid: int, nthreads: int) -> None:
    """Inverse of `gather_tuples` without batches; the last of several updates of one row stays."""
    step, at, offset = p.depth * (8 if p.wide else 4), 0, 0
    while at < p.count:
        offset = tuple_offset(p.index + at * step, p.table, p.depth, p.wide)
        if offset < 0:
            break
        copy_run(p.data + offset, p.dense + at * p.run, p.run)
        at += 1
    report_tuple(p, at, offset)


@cache
def reduce_tuples(dtype: Any, kind: int) -> Native:
    """Kernel like `scatter_tuples` that combines rows of ``run`` bytes with what is there, by one of `_KINDS`."""
    unit = np.dtype(dtype).itemsize
    combined = combining(dtype)

    def body(p: Any, tid: int, nthreads: int) -> None:
        n = p.run // unit
        step, at, offset = p.depth * (8 if p.wide else 4), 0, 0
        while at < p.count:
            offset = tuple_offset(p.index + at * step, p.table, p.depth, p.wide)
            if offset < 0:
                break
            y, x = view(p.data + offset, n, dtype), view(p.dense + at * p.run, n, dtype)
            for i in range(n):
                y[i] = combined(kind, y[i], x[i])
            at += 1
        report_tuple(p, at, offset)

    body.__name__ = f"scatter_tuples_{_NAMES[kind]}_{np.dtype(dtype).name}"
    return native(fastmath=None, extents=_tuple_rows, **_TUPLES)(body)


def _hot(a: Any) -> dict[str, Reach]:
    count = a.outer * a.inner
    return {"index": index_bytes(count, a.kind == 1), "hot": a.unit, "dst": count * a.depth * a.unit}


@native(index=PTR, hot=PTR, dst=PTR, kind=I64, outer=I64, inner=I64, depth=I64, unit=I64, extents=_hot)
def set_hot(p: Any, tid: int, nthreads: int) -> None:
    """dst[o, index[o, i], i] = hot; kind of the indices: 0 i32, 1 i64, 2 f32."""
    for at in range(p.outer * p.inner):
        o = at // p.inner
        if p.kind == 2:
            number = load_f32(p.index + 4 * at)
            # NaN and what no integer holds are nowhere.
            given = int(number) if abs(number) < np.float32(1 << 62) else p.depth
        else:
            given = load_index(p.index, at, p.kind)
        place = wrapped(given, p.depth)
        if place >= 0:
            copy_run(p.dst + ((o * p.depth + place) * p.inner + at - o * p.inner) * p.unit, p.hot, p.unit)


# -------------------------------------------------------------------------------------------------------------- makers


def _is_wide(t: TensorType) -> int:
    return int(t.dtype.itemsize == 8)


@kernel(Gather, accepts=has_fixed_size)
def gather(op: Gather, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Constant indices: a table; others: rows along the axis."""
    x, index = typed(ins, 0), typed(ins, 1)
    axis = normalise_axis(op, op.axis, len(x.dims))
    unit = x.dtype.itemsize
    if not outs[0].size:
        return []
    known = index.known
    if known is not None and known.size <= MAX_TABLE:
        return table_gather_steps(*gather_tables(op, ins), unit)
    run = unit * math.prod(x.dims[axis + 1 :])
    args: dict[str, Argument] = {
        "src": In(0),
        "index": In(1),
        "dst": Out(0),
        "fault": Fault(1),
        "wide": _is_wide(index),
        "outer": math.prod(x.dims[:axis]),
        "count": index.size,
        "size": x.dims[axis],
        "run": run,
    }
    return [Step(gather_rows, args, outs[0].nbytes >= PARALLEL_BYTES or outs[0].nbytes >= run * PARALLEL_ELEMENTS)]


def _along(x: TensorType, index: TensorType, axis: int) -> dict[str, Argument]:
    """Arguments of `along_axis` but for the arrays."""
    strides = dense(x.dims, x.dtype.itemsize)
    rows = [(n, 0 if i == axis else s, 0) for i, (n, s) in enumerate(zip(index.dims, strides, strict=True))]
    return {
        "outer": table(rows[:-1] or [(1, 0, 0)]),
        "rank": len(rows) - 1,
        "fault": Fault(1),
        "count": math.prod(index.dims[:-1]),
        "n": index.dims[-1],
        "wide": _is_wide(index),
        "s0": rows[-1][1],
        "sa": strides[axis],
        "size": x.dims[axis],
    }


def _elements(x: TensorType, index: TensorType, axis: int, scatters: bool) -> Native:
    return along_axis(x.dtype.itemsize, scatters, index.dtype.itemsize == 8, axis == len(x.dims) - 1)


def _has_unit(op: Any, ins: Types) -> bool:
    x = ins[0]
    return x is not None and has_fixed_size(op, ins) and x.dtype.itemsize in UNITS and x.shape != ()


@kernel(GatherElements, accepts=_has_unit)
def gather_elements(op: GatherElements, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x, index = typed(ins, 0), typed(ins, 1)
    if not index.size:
        return []
    axis = normalise_axis(op, op.axis, len(x.dims))
    args = _along(x, index, axis)
    args |= {"data": In(0), "dense": Out(0), "index": In(1)}
    made = _elements(x, index, axis, False)
    return [Step(made, args, index.size >= PARALLEL_ELEMENTS)]


def _scatters(op: Any, ins: Types) -> bool:
    x = ins[0]
    return x is not None and _has_unit(op, ins) and (op.reduction == "none" or x.dtype in _REDUCED)


def _copied(x: TensorType) -> list[Step]:
    return steps([move((x.nbytes,), (1,), (1,), 1)], In(0), Out(0))


@kernel(ScatterElements, accepts=_scatters, inplace=(0,))
def scatter_elements(op: ScatterElements, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of x, then the updates in order."""
    x, index = typed(ins, 0), typed(ins, 1)
    if not index.size:
        return _copied(x)
    axis = normalise_axis(op, op.axis, len(x.dims))
    args = _along(x, index, axis)
    args |= {"data": Out(0), "dense": In(2), "index": In(1)}
    if op.reduction == "none":
        return [*_copied(x), Step(_elements(x, index, axis, True), args, False)]
    made = reduce_along_axis(_REDUCED[x.dtype], _KINDS[op.reduction], index.dtype.itemsize == 8)
    return [*_copied(x), Step(made, args, False)]


def _tuples(x: TensorType, index: TensorType, batch_dims: int) -> dict[str, Argument]:
    """Arguments of the kernels for index tuples but for the arrays."""
    depth = index.dims[-1]
    strides = dense(x.dims, x.dtype.itemsize)
    rows = [(x.dims[batch_dims + i], strides[batch_dims + i]) for i in range(depth)]
    count = math.prod(index.dims[:-1])
    batches = math.prod(x.dims[:batch_dims])
    return {
        "table": table(rows or [(1, 0)]),
        "fault": Fault(1),
        "depth": depth,
        "wide": _is_wide(index),
        "count": count,
        "per_batch": max(count // max(batches, 1), 1),
        "batch": x.nbytes // max(batches, 1),
        "run": x.dtype.itemsize * math.prod(x.dims[batch_dims + depth :]),
        "index": In(1),
    }


@kernel(GatherND, accepts=has_fixed_size)
def gather_nd(op: GatherND, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x, index = typed(ins, 0), typed(ins, 1)
    if not outs[0].size:
        return []
    args = _tuples(x, index, op.batch_dims) | {"data": In(0), "dense": Out(0)}
    return [Step(gather_tuples, args, outs[0].nbytes >= PARALLEL_BYTES)]


@kernel(ScatterND, accepts=_scatters, inplace=(0,))
def scatter_nd(op: ScatterND, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of x, then the updates in order."""
    x, index = typed(ins, 0), typed(ins, 1)
    if not typed(ins, 2).size:
        return _copied(x)
    args = _tuples(x, index, 0) | {"data": Out(0), "dense": In(2)}
    if op.reduction == "none":
        return [*_copied(x), Step(scatter_tuples, args, False)]
    return [*_copied(x), Step(reduce_tuples(_REDUCED[x.dtype], _KINDS[op.reduction]), args, False)]


def _one_hot(op: Any, ins: Types) -> bool:
    index, depth, values = ins[0], ins[1], ins[2]
    if index is None or depth is None or values is None or depth.known is None:
        return False
    return index.dtype in (F32, I32, INT64) and has_fixed_size(op, [values])


@kernel(OneHot, accepts=_one_hot)
def one_hot(op: OneHot, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A fill with the off value, then the hot elements."""
    index, values, out = typed(ins, 0), typed(ins, 2), outs[0]
    if not out.size:
        return []
    axis = normalise_axis(op, op.axis, len(out.dims))
    unit = values.dtype.itemsize
    args: dict[str, Argument] = {
        "index": In(0),
        "hot": In(2, unit),
        "dst": Out(0),
        "kind": 2 if index.dtype == F32 else _is_wide(index),
        "outer": math.prod(out.dims[:axis]),
        "inner": math.prod(out.dims[axis + 1 :]),
        "depth": out.dims[axis],
        "unit": unit,
    }
    return [*steps([broadcast_move((), out.dims, unit)], In(2), Out(0)), Step(set_hot, args, False)]
