"""CumSum and CumProd: running sums and products along one axis, of any plain dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cpu.reduce import around_axis, generated
from bolt_numba.kernels.jit import I64, PTR
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.rare import CumProd
from bolt_numba.ops.reduce import CumSum
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import F32, F64, TensorType, dtype_name

PARALLEL = 1 << 15
"""Elements from which a second thread pays."""
BLOCK = 512
"""Columns that run together."""


def _text(name: str, dtype: str, unit: int, start: int, sign: str) -> str:
    """``[outer, n, inner]`` along axis 1, from the end where ``reverse``; room: 8 `BLOCK` bytes for each thread."""
    return f"""
def {name}(p, tid, nthreads):
    n, inner, blocks, reverse, exclusive = p.n, p.inner, p.blocks, p.reverse, p.exclusive
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        o = item // blocks
        column = (item - o * blocks) * {BLOCK}
        width = min(inner - column, {BLOCK})
        if inner == 1:
            x, y = view(p.x + {unit} * o * n, n, {dtype}), view(p.y + {unit} * o * n, n, {dtype})
            total = {dtype}({start})
            for i in range(n):
                at = n - 1 - i if reverse else i
                before = total
                total = {dtype}(total {sign} x[at])
                y[at] = before if exclusive else total
            continue
        totals = view(p.room + {8 * BLOCK} * tid, width, {dtype})
        for j in range(width):
            totals[j] = {dtype}({start})
        for i in range(n):
            row = o * n + (n - 1 - i if reverse else i)
            x = view(p.x + {unit} * (row * inner + column), width, {dtype})
            y = view(p.y + {unit} * (row * inner + column), width, {dtype})
            for j in range(width):
                before = totals[j]
                totals[j] = {dtype}(before {sign} x[j])
                y[j] = before if exclusive else totals[j]
"""


_FIELDS = dict.fromkeys(("x", "y", "room"), PTR) | dict.fromkeys(
    ("outer", "n", "inner", "blocks", "reverse", "exclusive"), I64
)


def _accepts(op: Any, ins: Types) -> bool:
    x, axis = ins[0], ins[1]
    if x is None or axis is None or axis.known is None or not x.is_static or not x.dims:
        return False
    return x.dtype.kind in "iu" or x.dtype in (F32, F64)


@kernel(CumSum, CumProd, accepts=_accepts, inplace=(0,), by_types=True)
def running(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One line at a time, in order; beside the last axis blocks of columns, row after row."""
    x, axis = ins[0], ins[1]
    assert x is not None, "accepts() has tested this"
    assert axis is not None, "accepts() has tested this"
    assert axis.known is not None, "accepts() has tested this"
    if not x.size:
        return []
    outer, n, inner = around_axis(x.dims, normalise_axis(op, int(axis.known.reshape(-1)[0]), len(x.dims)))
    dtype = dtype_name(x.dtype)
    name, start, sign = (f"cumsum_{dtype}", 0, "+") if isinstance(op, CumSum) else (f"cumprod_{dtype}", 1, "*")
    made = generated(_text(name, dtype, x.dtype.itemsize, start, sign), name, **_FIELDS)
    blocks = -(-inner // BLOCK)
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "room": Scratch(8 * BLOCK * context.threads)}
    args |= {"outer": outer, "n": n, "inner": inner, "blocks": blocks}
    args |= {"reverse": int(op.reverse), "exclusive": int(op.exclusive)}
    return [Step(made, args, outer * n * inner > PARALLEL and outer * blocks > 1)]
