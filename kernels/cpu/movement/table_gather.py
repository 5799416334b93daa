"""Irregular but planned movement: each axis of the result has a table of source offsets, known at plan time.

Paddings that mirror or repeat, nearest-neighbour resizing and gathers with constant indices are of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.selects import filled, is_filled
from bolt_numba.base.selects import table as rows_of
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    load_i64,
    permute,
    split,
    vload,
    vload_i32,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_BYTES, PAYS_ELEMENTS
from bolt_numba.kernels.cpu.movement.move import UNITS, copy_run, steps
from bolt_numba.kernels.extents import Numbers, Reach, ends, offsets
from bolt_numba.kernels.geometry.strides import Move, dense
from bolt_numba.kernels.geometry.tables import gathered
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Native, inline, native
from bolt_numba.kernels.registry import In, Out, Pitch, Step

NARROW = 2 * BYTES
"""Bytes of rows from which they are copied one by one, not as permuted vectors of many."""


@inline
def table_offset(tables: int, meta: int, rank: int, index: int) -> int:
    """Sum of the table entries of a flat index; meta: rows (size, position of the axis' table)."""
    offset = 0
    for r in range(rank - 1, -1, -1):
        size = load_i64(meta + 16 * r)
        rest = index // size
        offset += load_i64(tables + 8 * (load_i64(meta + 16 * r + 8) + index - rest * size))
        index = rest
    return offset


def _part(table: Any, first: int, count: int) -> Any:
    """Entries of a table; of one that is filled in later what has the same bounds."""
    return table if is_filled(table) else table[first : first + count]


def _taken(a: Any, run: int, step: int) -> dict[str, Reach]:
    """Extents of rows of ``run`` bytes that go ``step`` bytes apart to the result."""
    parts = [ends(offsets(_part(a.inner, 0, a.n), run))]
    parts += [ends(offsets(_part(a.tables, at, size), 1)) for size, at in a.meta[: a.rank].tolist()]
    rows = a.count * a.n
    return {
        "src": (sum(first for first, _ in parts), sum(end for _, end in parts) - a.rank) if rows else 0,
        "dst": (rows - 1) * step + run if rows else 0,
        "tables": 8 * max((size + at for size, at in a.meta[: a.rank].tolist()), default=0),
        "meta": 16 * a.rank,
        "inner": 8 * a.n,
    }


def _taken_rows(a: Numbers) -> dict[str, Reach]:
    vectors = -(-a.n * a.run // BYTES)
    return {**_taken(a, a.run, a.pitch * a.unit), "first": 8 * vectors, "order": BYTES * vectors}


_FIELDS = {"src": PTR, "dst": PTR, "tables": PTR, "meta": PTR, "inner": PTR, "rank": I64, "count": I64, "n": I64}
"""meta: i64 [rank][2], how many offsets and where in tables · inner: i64 [n], byte offsets · dst: rows [count][n]."""


def windows(places: Array) -> tuple[Array, Array] | None:
    """A row of elements of 4 bytes as permuted vectors of its source: (byte offset, permutation) of each vector.

    places: element of the source row for each element.  The last vector overlaps the one before.  None where the row is
    shorter than a vector, or a vector comes from further apart.
    """
    size = int(places.max()) + 1
    if len(places) < LANES or size - int(places.min()) < LANES:
        return None
    starts = np.minimum(np.arange(0, len(places), LANES), len(places) - LANES)
    wanted = places[starts[:, None] + np.arange(LANES)]
    first = np.minimum(wanted.min(axis=1), size - LANES)
    order = wanted - first[:, None]
    return None if order.max() >= LANES else (4 * first, order.astype(np.int32))


@native(
    fastmath=None, extents=_taken_rows, run=I64, pitch=I64, unit=I64, first=PTR_OR_0, order=PTR_OR_0, **_FIELDS
)  # fmt: skip
def table_gather_rows(p: Any, tid: int, nthreads: int) -> None:
    """``count`` outer indices x ``n`` rows of ``run`` bytes from offsets ``inner`` to rows of ``pitch`` units.

    first, order: the same as `windows` of all ``n`` rows, for a dense result; 0: none.
    """
    n, run, inner, step, first, order = p.n, p.run, p.inner, p.pitch * p.unit, p.first, p.order
    whole = n * run
    repeats = step == run and whole >= BYTES and whole % 4 == 0 and (order or (run % BYTES and run < 4 * BYTES))
    lo, hi = split(p.count, tid, nthreads)
    before = 0
    for at in range(lo, hi):
        src = p.src + table_offset(p.tables, p.meta, p.rank, at)
        dst = p.dst + at * n * step
        if repeats and src == before:
            for j in range(0, whole - BYTES, BYTES):
                vstore(dst + j, vload(dst - whole + j))
            vstore(dst + whole - BYTES, vload(dst - BYTES))
        elif order and step == run:
            for k in range(ceil_div(whole, BYTES)):
                v = permute(vload(src + load_i64(first + 8 * k)), vload_i32(order + BYTES * k))
                vstore(dst + min(k * BYTES, whole - BYTES), v)
        elif run % 4 == 0 and run >= BYTES and run <= 16 * BYTES:
            for i in range(n):
                x, y = src + load_i64(inner + 8 * i), dst + i * step
                for j in range(0, run - BYTES, BYTES):
                    vstore(y + j, vload(x + j))
                vstore(y + run - BYTES, vload(x + run - BYTES))
        else:
            for i in range(n):
                copy_run(dst + i * step, src + load_i64(inner + 8 * i), run)
        before = src


@cache
def table_gather_elements(unit: int) -> Native:
    """Kernel like `table_gather_rows` for single elements."""
    load, store = UNITS[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        n, inner = p.n, p.inner
        lo, hi = split(p.count, tid, nthreads)
        for at in range(lo, hi):
            src = p.src + table_offset(p.tables, p.meta, p.rank, at)
            dst = p.dst + at * n * unit
            for i in range(n):
                store(dst + i * unit, load(src + load_i64(inner + 8 * i)))

    body.__name__ = f"take_elements_{8 * unit}"
    return native(fastmath=None, extents=lambda a: _taken(a, unit, unit), **_FIELDS)(body)


def _offsets(table: Array | int | None, size: int, stride: int, more: int = 0) -> Any:
    """Bytes to the element of each index, then ``more`` zeros."""
    if isinstance(table, np.ndarray):
        return _scaled(table, stride)
    repeat = 1 if table is None else table
    args = {"first": 0, "step": stride, "repeat": repeat, "count": size, "total": size + more}
    bounds = 0, (size - 1) // repeat * stride
    return filled("steps", args, (size + more,), np.int64, bounds, (_repeated, (size, stride, repeat, more)))


def _repeated(size: int, stride: int, repeat: int, more: int) -> Array:
    return np.append(np.arange(size) // repeat * stride, np.zeros(more, np.int64))


@pure
def _scaled(table: Array, stride: int) -> Array:
    return table * stride


def _joined(tables: Sequence[Any]) -> Any:
    """The tables, and a zero behind them."""
    if len(tables) == 1 and is_filled(tables[0]):
        args = tables[0].args
        return _offsets(args["repeat"], args["count"], args["step"], 1)
    return _concatenated(*tables)


@pure
def _concatenated(*tables: Array) -> Array:
    return np.concatenate([*tables, np.zeros(1, np.int64)])


def _row_windows(inner: Any, run: int) -> Any:
    """`windows` of rows of ``run`` bytes; two that are repeated have a vector of both, if they are longer than one."""
    return None if is_filled(inner) and run > BYTES and inner.args["repeat"] > 1 else _windows_of(inner, run)


@pure
def _windows_of(inner: Array, run: int) -> tuple[Array, Array] | None:
    return windows((inner[:, None] // 4 + np.arange(run // 4)).reshape(-1))


def repeating_steps(
    shape: Sequence[int], out: Sequence[int], indices: Sequence[Array | int | None], unit: int
) -> list[Step]:
    """`table_gather_steps` where it is known which axes stay as they are (None), and that not all do.

    A number in the place of indices says that each element comes so many times.
    """
    strides, last = dense(shape, unit), max(axis for axis, index in enumerate(indices) if index is not None)
    run = unit * math.prod(shape[last + 1 :])
    outer = [
        _offsets(index, n, stride)
        for n, index, stride in zip(out[:last], indices[:last], strides[:last], strict=True)
        if index is not None or n != 1
    ]
    sizes = [n for n, index in zip(out[:last], indices[:last], strict=True) if index is not None or n != 1]
    inner = _offsets(indices[last], out[last], strides[last])
    return _taking(outer, sizes, inner, out[last], run, unit, last == len(out) - 2)


def _taking(
    outer: Sequence[Any], sizes: Sequence[int], inner: Any, n: int, run: int, unit: int, is_row: bool
) -> list[Step]:
    """The step that takes ``n`` runs for each index of tables of these sizes; is_row: a run is a row of the result."""
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    args: dict[str, Any] = {
        "src": In(0), "dst": Out(0), "tables": _joined(outer), "inner": inner, "rank": len(sizes),
        "meta": rows_of([*zip(sizes, begins, strict=True), (1, 0)]), "count": math.prod(sizes), "n": n,
    }  # fmt: skip
    nbytes = args["count"] * n * run
    spread = _row_windows(inner, run) if run % 4 == 0 and run < NARROW else None
    if run in UNITS and spread is None:
        return [Step(table_gather_elements(run), args, nbytes >= run * PAYS_ELEMENTS)]
    args |= {"run": run, "unit": unit, "pitch": Pitch(Out(0)) if is_row else run // unit}
    args["first"], args["order"] = spread or (None, None)
    return [Step(table_gather_rows, args, nbytes >= PAYS_BYTES)]


def table_gather_steps(shape: Sequence[int], indices: Sequence[Array], unit: int) -> list[Step]:
    """Steps of ``y[i, j, ...] = x[indices[0][i], indices[1][j], ...]``: dense In(0) of ``shape`` to Out(0)."""
    out = [len(index) for index in indices]
    if 0 in out:
        return []
    found = gathered(shape, indices, unit)
    if isinstance(found, Move):
        return steps([found], In(0), Out(0))
    merged, run = found
    outer, inner = merged[:-1], np.ascontiguousarray(merged[-1])
    return _taking(outer, [len(t) for t in outer], inner, len(inner), run, unit, run == unit * out[-1])
