"""Irregular but planned movement: each axis of the result has a table of source offsets, known at plan time.

Paddings that mirror or repeat, nearest-neighbour resizing and gathers with constant indices are of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.language.lang import load_i64_nc
from bolt_numba.kernels.cuda.movement.index import SCOPE, axis_args, axis_fields, axis_text
from bolt_numba.kernels.cuda.movement.moves import PARTS, THREADS, mover, steps, widest
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.extents import Reach, ends, offsets
from bolt_numba.kernels.geometry.strides import dense, move
from bolt_numba.kernels.geometry.tables import collapsed, is_regular
from bolt_numba.kernels.registry import In, Out, Step
from bolt_numba.types import Array


def _reach(unit: int, rank: int, a: Any) -> dict[str, Reach]:
    first, end, where = 0, unit, [(getattr(a, f"n{k}"), getattr(a, f"t{k}")) for k in range(rank)]
    for size, at in where:
        low, high = ends(offsets(a.tables[at : at + size], 1))
        first, end = first + low, end + high - 1
    return {"src": (first, end), "dst": unit * a.count, "tables": 8 * max(size + at for size, at in where)}


@cache
def take(unit: int, rank: int) -> CudaKernel:
    """Kernel that fills a dense result: the offset of an element is the sum of what the tables of its axes say.

    tables: i64 [..], that of axis k from ``t{k}`` on.
    """
    name, parts = f"take_{8 * unit}x{rank}", 1 if unit == 16 else PARTS
    fields = {"src": PTR, "dst": PTR, "tables": PTR, "count": I64, **axis_fields(rank, "t")}
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    first = np.uint32(cuda.blockIdx.x) * np.uint32({THREADS * parts}) + np.uint32(cuda.threadIdx.x)\n"
        f"    for part in range({parts}):\n"
        f"        rest = np.uint32(first + np.uint32({THREADS} * part))\n"
        "        if rest < count:\n"
        f"            x, y = src, dst + {unit} * np.int64(rest)\n"
        + axis_text(rank, ["x += load_i64_nc(tables + 8 * (i + t{k}))"], 3)
        + "            move(x, y)\n"
    )
    return CudaKernel(
        Source(text, name, {**SCOPE, "move": mover(unit), "load_i64_nc": load_i64_nc}), name, fields, threads=THREADS,
        blocks=lambda a: ceil_div(a.count, THREADS * parts), extents=partial(_reach, unit, rank),
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
    merged, run = collapsed(tables, strides, shape), unit
    while is_regular(merged[-1], run):
        run *= len(merged.pop())
    wide = widest(run, *(int(np.gcd.reduce(t)) for t in merged))
    if run > wide:
        merged.append(np.arange(run // wide, dtype=np.int64) * wide)
    starts = np.cumsum([0, *map(len, merged)]).tolist()
    args: dict[str, Any] = {"src": In(0), "dst": Out(0), "tables": np.concatenate(merged)}
    args |= {"count": math.prod(map(len, merged)), **axis_args([len(t) for t in merged], t=starts)}
    return [Step(take(wide, len(merged)), args)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    return [take(16, 3), take(4, 3)]
