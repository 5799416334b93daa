"""Irregular but planned movement: each axis of the result has a table of source offsets, known at plan time.

Paddings that mirror or repeat, nearest-neighbour resizing and gathers with constant indices are of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.language.lang import load_i64_nc
from bolt_numba.kernels.cuda.movement.index import SCOPE, axis_args, axis_fields, axis_text
from bolt_numba.kernels.cuda.movement.moves import PARTS, mover, steps, widest
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.extents import Reach, ends, offsets
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED
from bolt_numba.kernels.geometry.strides import dense, move
from bolt_numba.kernels.geometry.tables import collapsed, is_regular
from bolt_numba.kernels.registry import In, Out, Step


def _reach(unit: int, rank: int, a: Any) -> dict[str, Reach]:
    first, end = 0, unit * getattr(a, f"n{rank}")
    where = [(getattr(a, f"n{k}"), getattr(a, f"t{k}")) for k in range(rank)]
    for size, at in where:
        low, high = ends(offsets(a.tables[at : at + size], 1))
        first, end = first + low, end + high - 1
    return {"src": (first, end), "dst": unit * a.count, "tables": 8 * max(size + at for size, at in where)}


@cache
def take(unit: int, rank: int) -> CudaKernel:
    """Kernel that fills a dense result; where a run of elements lies is the sum of what the tables of its axes say.

    tables: i64 [..], that of axis k from ``t{k}`` on.  The last axis is the elements of a run.
    """
    name, parts = f"take_{8 * unit}x{rank}", 1 if unit == 16 else PARTS
    fields = {"src": PTR, "dst": PTR, "tables": PTR, "count": I64, **axis_fields(rank + 1, "t")}
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    first = np.uint32(cuda.blockIdx.x) * np.uint32({WIDE_BLOCK * parts}) + np.uint32(cuda.threadIdx.x)\n"
        f"    for part in range({parts}):\n"
        f"        t = np.uint32(first + np.uint32({WIDE_BLOCK} * part))\n"
        "        if t < count:\n"
        f"            rest = fast_divide(t, m{rank}, h{rank})\n"
        f"            x = src + {unit} * np.int64(np.uint32(t - rest * np.uint32(n{rank})))\n"
        + axis_text(rank, ["x += load_i64_nc(tables + 8 * (i + t{k}))"], 3)
        + f"            move(x, dst + {unit} * np.int64(t))\n"
    )
    source = Source(text, name, {**SCOPE, "move": mover(unit), "load_i64_nc": load_i64_nc})
    return CudaKernel(
        source, name, fields, threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.count, WIDE_BLOCK * parts),
        extents=partial(_reach, unit, rank),
    )  # fmt: skip


def table_gather_steps(shape: Sequence[int], indices: Sequence[Array], unit: int) -> list[Step]:
    """Steps of ``y[i, j, ...] = x[indices[0][i], indices[1][j], ...]``: dense In(0) of ``shape`` to Out(0)."""
    out = [len(index) for index in indices]
    if 0 in out:
        return []
    strides = dense(shape, unit)
    tables = [np.asarray(index, dtype=np.int64) * s for index, s in zip(indices, strides, strict=True)]
    by = [int(t[1] - t[0]) if len(t) > 1 else 0 for t in tables]
    if all(is_regular(t - t[0], d) for t, d in zip(tables, by, strict=True)):
        return steps(move(out, by, dense(out, unit), unit, int(sum(t[0] for t in tables))), In(0), Out(0))
    return _table_steps(collapsed(tables, strides, shape), unit, Out(0))


def _table_steps(merged: list[Array], unit: int, dst: Out) -> list[Step]:
    """Steps for tables of byte offsets; those with more elements than a launch has threads are cut in two."""
    run = unit
    while merged and is_regular(merged[-1], run):
        run *= len(merged[-1])
        merged = merged[:-1]
    merged = merged or [np.zeros(1, np.int64)]
    wide = widest(run, dst.offset, *(int(np.gcd.reduce(t)) for t in merged))
    sizes = [*map(len, merged), run // wide]
    if math.prod(sizes) > MOST_LAUNCHED:
        return _cut(merged, run, unit, dst)
    starts = np.cumsum([0, *map(len, merged)]).tolist()
    args: dict[str, Any] = {"src": In(0), "dst": dst, "tables": np.concatenate(merged)}
    args |= {"count": math.prod(sizes), **axis_args(sizes, t=starts)}
    return [Step(take(wide, len(merged)), args)]


def _cut(merged: list[Array], run: int, unit: int, dst: Out) -> list[Step]:
    """Both halves along the first axis that has any."""
    tables = [*merged, np.arange(run // unit, dtype=np.int64) * unit]
    at = next(k for k, table in enumerate(tables) if len(table) > 1)
    half = len(tables[at]) // 2
    offset = dst.offset + half * unit * math.prod(map(len, tables[at + 1 :]))
    parts = (tables[at][:half], dst), (tables[at][half:], Out(dst.index, offset))
    return [step for part, to in parts for step in _table_steps([*tables[:at], part, *tables[at + 1 :]], unit, to)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    return [take(16, 2), take(4, 2)]
