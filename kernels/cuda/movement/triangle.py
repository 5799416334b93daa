"""Trilu: a thread for each element."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, load_i64
from bolt_numba.kernels.cuda.movement.index import MOST
from bolt_numba.kernels.cuda.movement.moves import THREADS
from bolt_numba.kernels.geometry.transfers import has_fixed_size, typed
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.types import TensorType


@cache
def triangle(unit: int) -> CudaKernel:
    """Kernel of Trilu for elements of ``unit`` bytes: x, y [.., height, width]; k: [1] i64, the diagonal."""
    load, store = getattr(lang, f"load_u{8 * unit}"), getattr(lang, f"store_u{8 * unit}")
    numbers: dict[str, Any] = dict.fromkeys(("count", "height", "width", "mw", "hw", "mh", "hh", "upper"), I64)

    @cuda_kernel(
        threads=THREADS, blocks=lambda a: ceil_div(a.count, THREADS), x=PTR, y=PTR, k=PTR, **numbers,
        extents=lambda a: {"x": unit * a.count, "y": unit * a.count, "k": 8},
    )  # fmt: skip
    def keep_triangle(x, y, k, count, height, width, mw, hw, mh, hh, upper):
        at = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if at < count:
            line = fast_divide(at, mw, hw)
            column = np.int64(np.uint32(at - line * np.uint32(width)))
            row = np.int64(np.uint32(line - fast_divide(line, mh, hh) * np.uint32(height)))
            # A diagonal beyond the corners is like the corners'.
            edge = row + min(max(load_i64(k), -height), width)
            if (column >= edge) if upper else (column <= edge):
                store(y + unit * np.int64(at), load(x + unit * np.int64(at)))
            else:
                store(y + unit * np.int64(at), 0)

    return keep_triangle


def _triangular(op: Any, ins: Types) -> bool:
    x = ins[0]
    if x is None or not has_fixed_size(op, ins) or not x.is_static or x.size > MOST or x.dtype.itemsize > 8:
        return False
    return len(ins) < 2 or ins[1] is None or ins[1].dtype.itemsize == 8


@kernel(Trilu, device="cuda", accepts=_triangular)
def trilu(op: Trilu, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A thread for each element."""
    x = typed(ins)
    if not x.size:
        return []
    (height, width), given = x.dims[-2:], len(ins) > 1 and ins[1] is not None
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "k": In(1) if given else np.zeros(1, np.int64)}
    args |= {"count": x.size, "height": height, "width": width, "upper": int(op.upper)}
    args["mw"], args["hw"] = divider(width)
    args["mh"], args["hh"] = divider(height)
    return [Step(triangle(x.dtype.itemsize), args)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    return [triangle(4)]
