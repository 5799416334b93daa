"""Trilu: rows with a zeroed part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import copy_bytes, fill_bytes, load_i64, split
from bolt_numba.kernels.cpu.movement.move import PARALLEL_BYTES
from bolt_numba.kernels.geometry.transfers import has_fixed_size, typed
from bolt_numba.kernels.jit import I64, PTR, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.types import TensorType


@native(
    x=PTR, y=PTR, k=PTR, rows=I64, height=I64, row_bytes=I64, unit=I64, upper=I64,
    extents=lambda a: {"x": a.rows * a.row_bytes, "y": a.rows * a.row_bytes, "k": 8},
)  # fmt: skip
def triangle(p: Any, tid: int, nthreads: int) -> None:
    """Rows with a zeroed part; ``k`` holds the diagonal, of which those beyond the corners are like the corners'."""
    lo, hi = split(p.rows, tid, nthreads)
    height, unit, nbytes, upper = p.height, p.unit, p.row_bytes, p.upper
    k = min(max(load_i64(p.k), -height), nbytes // unit)
    for at in range(lo, hi):
        x, y = p.x + at * nbytes, p.y + at * nbytes
        column = at % height + k + (0 if upper else 1)  # where the zeros end (upper) or begin (lower)
        edge = min(max(column, 0) * unit, nbytes)
        if upper:
            fill_bytes(y, np.uint8(0), edge)
            copy_bytes(y + edge, x + edge, nbytes - edge)
        else:
            copy_bytes(y, x, edge)
            fill_bytes(y + edge, np.uint8(0), nbytes - edge)


def _triangular(op: Any, ins: Types) -> bool:
    return has_fixed_size(op, ins) and (len(ins) < 2 or ins[1] is None or ins[1].dtype.itemsize == 8)


@kernel(Trilu, accepts=_triangular)
def trilu(op: Trilu, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x = typed(ins)
    if not x.size:
        return []
    height, width = x.dims[-2:]
    given = len(ins) > 1 and ins[1] is not None
    args: dict[str, Argument] = {
        "x": In(0),
        "y": Out(0),
        "k": In(1) if given else np.zeros(1, np.int64),
        "rows": x.size // width,
        "height": height,
        "row_bytes": width * x.dtype.itemsize,
        "unit": x.dtype.itemsize,
        "upper": int(op.upper),
    }
    return [Step(triangle, args, x.nbytes >= PARALLEL_BYTES)]
