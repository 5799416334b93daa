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
from bolt_numba.kernels.cuda.declare import I64, PTR
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elements.units import mover, several, widest
from bolt_numba.kernels.cuda.language.lang import load_i64_nc
from bolt_numba.kernels.cuda.movement.moves import steps
from bolt_numba.kernels.declare import Inline, inline_source
from bolt_numba.kernels.extents import Reach, ends, offsets
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, Elements
from bolt_numba.kernels.geometry.strides import Move
from bolt_numba.kernels.geometry.tables import gathered
from bolt_numba.kernels.registry import In, Out, Step


def _reach(unit: int, rank: int, a: Any) -> dict[str, Reach]:
    sizes = [getattr(a, f"n{k}") for k in range(rank + 1)]
    first, end, starts = 0, unit * sizes[-1], [getattr(a, f"t{k}") for k in range(rank)]
    for size, at in zip(sizes[:-1], starts, strict=True):
        low, high = ends(offsets(a.tables[at : at + size], 1))
        first, end = first + low, end + high - 1
    tables = 8 * max(size + at for size, at in zip(sizes[:-1], starts, strict=True))
    return {"src": (first, end), "dst": unit * math.prod(sizes), "tables": tables}


@cache
def take(unit: int, rank: int) -> Elements:
    """Kernel that fills a dense result; where a run of elements lies is the sum of what the tables of its axes say.

    tables: i64 [..], that of axis k from ``t{k}`` on.  The last axis is the elements of a run.
    """
    over, fields = {f"i{k}": f"n{k}" for k in range(rank + 1)}, dict.fromkeys(("src", "dst", "tables"), PTR)
    fields |= {f"t{k}": I64 for k in range(rank)}

    def make(on: DeviceParts) -> Inline:
        found = "".join(f" + load_i64_nc(tables + 8 * (i{k} + t{k}))" for k in range(rank))
        text = f"    move(src + {unit} * i{rank}{found}, dst + {unit} * t)\n"
        text = f"def element({', '.join((*over, 't', *fields))}):\n{text}"
        return inline_source(text, "element", move=mover(unit), load_i64_nc=load_i64_nc)

    return Elements(f"take_{8 * unit}x{rank}", over, "", fields, partial(_reach, unit, rank), make, several(unit))


def table_gather_steps(shape: Sequence[int], indices: Sequence[Array], unit: int) -> list[Step]:
    """Steps of ``y[i, j, ...] = x[indices[0][i], indices[1][j], ...]``: dense In(0) of ``shape`` to Out(0)."""
    if 0 in map(len, indices):
        return []
    found = gathered(shape, indices, unit)
    return steps(found, In(0), Out(0)) if isinstance(found, Move) else _table_steps(*found, unit, Out(0))


def _table_steps(merged: list[Array], run: int, unit: int, dst: Out) -> list[Step]:
    """Steps for tables of byte offsets; those with more elements than a launch has threads are cut in two."""
    wide = widest(run, dst.offset, *(int(np.gcd.reduce(t)) for t in merged))
    sizes = [*map(len, merged), run // wide]
    if math.prod(sizes) > MOST_LAUNCHED:
        return _cut(merged, run, unit, dst)
    starts = np.cumsum([0, *map(len, merged)]).tolist()
    args: dict[str, Any] = {"src": In(0), "dst": dst, "tables": np.concatenate(merged)}
    args |= {f"n{k}": n for k, n in enumerate(sizes)} | {f"t{k}": at for k, at in enumerate(starts[:-1])}
    return [PARTS.step(take(wide, len(merged)), (), args)]


def _cut(merged: list[Array], run: int, unit: int, dst: Out) -> list[Step]:
    """Both halves along the first axis that has any."""
    at = next((k for k, table in enumerate(merged) if len(table) > 1), None)
    if at is None:  # a run alone
        merged, at, run = [*merged, np.arange(run // unit, dtype=np.int64) * unit], len(merged), unit
    half = len(merged[at]) // 2
    offset = dst.offset + half * run * math.prod(map(len, merged[at + 1 :]))
    parts = (merged[at][:half], dst), (merged[at][half:], Out(dst.index, offset))
    return [s for part, to in parts for s in _table_steps([*merged[:at], part, *merged[at + 1 :]], run, unit, to)]
