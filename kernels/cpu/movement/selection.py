"""NonZero and Compress: what a condition selects, in two passes, counting and writing.

The elements are written without a branch, each to the place that the next selected one overwrites.  Another thread may
write the operand between the passes, so there is room for `BLOCK` more than were counted, and after as many elements
the writers see whether they are beyond the end.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.errors import DataError
from bolt_numba.base.selects import least, table
from bolt_numba.base.types import BF16, F16, F32, F64, Array, TensorType
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.cpu.language.lang import copy_bytes, load_i64, load_u8, store_i64, view
from bolt_numba.kernels.cpu.movement.move import DTYPES, UNITS
from bolt_numba.kernels.data_sized import Empty, Sized, data_sized, sized
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.geometry.reduced import around_axis
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.kernels.registry import Argument, In, Out, Scratch, Step, Types
from bolt_numba.ops.arrays.gather import Compress, NonZero
from bolt_numba.ops.registry import Op, normalise_axis

BLOCK = 1024
_MASKS = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}


@cache
def count_nonzero(unit: int) -> Native:
    """Kernel that counts elements of which a bit of ``mask`` is set."""
    dtype = DTYPES[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        n = p.n
        x, mask = view(p.x, n, dtype), dtype(p.mask)
        count = 0
        for i in range(n):
            count += (x[i] & mask) != 0
        store_i64(p.count, count)

    body.__name__ = f"count_nonzero_{8 * unit}"
    return native(
        x=PTR, count=PTR, n=I64, mask=I64, extents=lambda a: {"x": unit * a.n, "count": 8}
    )(body)  # fmt: skip


@cache
def write_nonzero(unit: int) -> Native:
    """Kernel that writes the index of each such element of ``[rows, n]``: y [rank, count] i64 and `BLOCK` more.

    sizes: of the axes before the last, [rank - 1] i64; count, found: [1] i64, how many there are, and how many were
    seen before there were too many.  room: elements of y; as many as x has for each row do without more.
    """
    load, _ = UNITS[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        n, mask, count, rank = p.n, p.mask, load_i64(p.count), p.rank
        last = p.y + 8 * (rank - 1) * count
        k = 0
        for row in range(p.rows):
            source, before = p.x + row * n * unit, k
            for block in range(0, n, BLOCK):
                for j in range(block, min(block + BLOCK, n)):
                    store_i64(last + 8 * k, j)
                    k += (load(source + j * unit) & mask) != 0
                if k > count:
                    store_i64(p.found, k)
                    return
            if k > before:
                rest = row
                for axis in range(rank - 2, -1, -1):
                    size = load_i64(p.sizes + 8 * axis)
                    above = rest // size
                    for i in range(before, k):
                        store_i64(p.y + 8 * (axis * count + i), rest - above * size)
                    rest = above
        store_i64(p.found, k)

    body.__name__ = f"write_nonzero_{8 * unit}"
    return native(
        x=PTR, y=PTR, sizes=PTR, count=PTR, found=PTR, rows=I64, n=I64, mask=I64, room=I64, rank=I64,
        extents=lambda a: {
            "x": unit * a.rows * a.n, "y": 8 * a.room, "sizes": 8 * (a.rank - 1), "count": 8, "found": 8,
        },
    )(body)  # fmt: skip


def _is_plain(op: NonZero, ins: Types) -> bool:
    x = ins[0]
    return (x.dtype.kind in "iub" or x.dtype in (F16, BF16, F32, F64)) and x.dtype.itemsize in DTYPES


def _mask_of(dtype: np.dtype[np.generic]) -> int:
    return -1 if dtype.kind in "iub" else _MASKS[dtype.itemsize]  # -0.0 is zero


@data_sized(NonZero, accepts=_is_plain)
def nonzero(op: NonZero, operands: Sequence[Any], empty: Empty) -> tuple[Array, ...]:
    """Counted, then written row by row."""
    x = operands[0]
    unit, shape, mask = x.dtype.itemsize, x.shape, _mask_of(x.dtype)
    found, counted = empty(1, INT64), empty(1, INT64)
    counter = count_nonzero(unit)
    counter.call(counter.record(x=x, count=counted, n=x.size, mask=mask))
    count = int(counted[0])
    if not shape:
        return (empty((0, count), INT64),)
    y = empty(len(shape) * count + BLOCK, INT64)
    sizes = np.array(shape[:-1], dtype=np.int64)
    rows = math.prod(shape[:-1]) if x.size else 0  # rows of nothing may be any number
    writer = write_nonzero(unit)
    numbers = {"rows": rows, "n": shape[-1], "mask": mask, "room": y.size, "rank": len(shape)}
    writer.call(writer.record(x=x, y=y, sizes=sizes, count=counted, found=found, **numbers))
    _want_same(op, "x", count, int(found[0]))
    return (y[: len(shape) * count].reshape(len(shape), count),)


@sized(NonZero)
def sized_nonzero(op: NonZero, ins: Types) -> Sized | None:
    """The same as two steps, with room for every element."""
    x = ins[0]
    if not _is_plain(op, ins):
        return None
    unit, shape, mask, size = x.dtype.itemsize, x.dims, _mask_of(x.dtype), x.size
    result, rank = TensorType(INT64, (len(shape), size)), len(shape)
    counting: dict[str, Argument] = {"x": In(0), "count": Out(1), "n": size, "mask": mask}
    steps = [Step(count_nonzero(unit), counting, parallel=False)]
    if rank:
        writing: dict[str, Argument] = {
            "x": In(0), "y": Out(0), "sizes": table(shape[:-1] or (1,)), "count": Out(1),
            "found": Scratch(8), "rows": size // shape[-1] if size else 0, "n": shape[-1], "mask": mask,
            "room": rank * size, "rank": rank,
        }  # fmt: skip
        steps.append(Step(write_nonzero(unit), writing, parallel=False))
    return Sized((result,), (1,), steps)


def _compressed(a: Numbers, run: int) -> dict[str, Reach]:
    """Extents for elements or rows of ``run`` bytes, of which ``room`` may be written."""
    return {"x": box(run * a.m, (a.outer, a.n * run)), "y": run * a.room, "kept": a.m, "found": 8}


def _want_same(owner: Op, operand: str, counted: int, written: int) -> None:
    """Raise a DataError where the operand was written to between the two passes."""
    if counted != written:
        raise DataError(f"{owner.name}: {operand}: got {written} selected elements where {counted} were counted, "
                        "wanted no writes by others during a run")  # fmt: skip


@cache
def compress_elements(unit: int) -> Native:
    """Kernel that keeps the elements of x [outer, n] whose condition [m] holds: y [room].

    found: [1] i64, how many were kept before there were more than ``most``.  room: ``most`` and `BLOCK`, or what there
    is of all of x.
    """
    load, store = UNITS[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        to, end, kept = p.y, p.y + p.most * unit, p.kept
        for o in range(p.outer):
            source = p.x + o * p.n * unit
            for block in range(0, p.m, BLOCK):
                for i in range(block, min(block + BLOCK, p.m)):
                    store(to, load(source + i * unit))
                    to += unit * (load_u8(kept + i) != 0)
                if to > end:
                    store_i64(p.found, (to - p.y) // unit)
                    return
        store_i64(p.found, (to - p.y) // unit)

    body.__name__ = f"compress_elements_{8 * unit}"
    return native(
        x=PTR, y=PTR, kept=PTR, found=PTR, outer=I64, n=I64, m=I64, room=I64, most=I64,
        extents=lambda a: _compressed(a, unit),
    )(body)  # fmt: skip


@native(
    x=PTR, y=PTR, kept=PTR, found=PTR, outer=I64, n=I64, m=I64, room=I64, run=I64,
    extents=lambda a: _compressed(a, a.run),
)  # fmt: skip
def compress_rows(p: Any, tid: int, nthreads: int) -> None:
    """The same for rows of ``run`` bytes: x [outer, n, run]."""
    k, run = 0, p.run
    for o in range(p.outer):
        for i in range(p.m):
            if load_u8(p.kept + i) != 0:
                if k < p.room:
                    copy_bytes(p.y + k * run, p.x + (o * p.n + i) * run, run)
                k += 1
    store_i64(p.found, k)


@data_sized(Compress)
def compress(op: Compress, operands: Sequence[Any], empty: Empty) -> tuple[Array, ...]:
    """Elements or rows of any dtype of numbers."""
    x, kept = operands
    axis = 0 if op.axis is None else normalise_axis(op, op.axis, x.ndim)
    outer, n, inner = (1, x.size, 1) if op.axis is None else around_axis(x.shape, axis)
    m = min(kept.size, n)
    found = empty(1, INT64)
    counter = count_nonzero(1)
    counter.call(counter.record(x=kept, count=found, n=m, mask=-1))
    count, run = int(found[0]), inner * x.dtype.itemsize
    shape = (count,) if op.axis is None else (*x.shape[:axis], count, *x.shape[axis + 1 :])
    y = empty((outer * count + (BLOCK if run in UNITS else 0)) * inner, x.dtype)
    args: dict[str, Argument] = {"x": x, "y": y, "kept": kept, "found": found, "outer": outer, "n": n, "m": m}
    if outer * inner:
        if run in UNITS:
            made = compress_elements(run)
            made.call(made.record(**args, room=outer * count + BLOCK, most=outer * count))
        else:
            compress_rows.call(compress_rows.record(**args, room=outer * count, run=run))
        _want_same(op, "condition", outer * count, int(found[0]))
    return (y[: outer * count * inner].reshape(shape),)


@sized(Compress)
def sized_compress(op: Compress, ins: Types) -> Sized | None:
    """The same as two steps, with room for all that the condition may keep."""
    x, kept = ins
    if x is None or kept is None:
        return None
    axis = 0 if op.axis is None else normalise_axis(op, op.axis, len(x.dims))
    outer, n, inner = (1, x.size, 1) if op.axis is None else around_axis(x.dims, axis)
    m = least(kept.size, n)
    shape = (m,) if op.axis is None else (*x.dims[:axis], m, *x.dims[axis + 1 :])
    counting: dict[str, Argument] = {"x": In(1), "count": Out(1), "n": m, "mask": -1}
    steps = [Step(count_nonzero(1), counting, parallel=False)]
    run = inner * x.dtype.itemsize
    if outer * inner * m:
        places: dict[str, Argument] = {"x": In(0), "y": Out(0), "kept": In(1), "found": Scratch(8)}
        args: dict[str, Argument] = {**places, "outer": outer, "n": n, "m": m, "room": outer * m}
        kernel, last = (compress_elements(run), {"most": outer * m}) if run in UNITS else (compress_rows, {"run": run})
        steps.append(Step(kernel, {**args, **last}, parallel=False))
    return Sized((TensorType(x.dtype, shape),), (axis,), steps)
