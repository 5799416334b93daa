"""Cast from and to floats of 8 and 4 bits and integers of less than a byte: by tables that the reference fills.

The index is the element's own bits where these are 8 or 16.  A longer number is first cut to 16 bits such that the last
one tells whether anything was lost (rounding to odd), which keeps every later rounding right; for integers of less than
a byte its low byte is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.elementwise.pointwise import scope_of
from bolt_numba.kernels.cpu.language.lang import native_source
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.conversion import SUB_BYTE
from bolt_numba.ops.pointwise import Cast
from bolt_numba.types import BF16, BOOL, F16, F32, F64, AnyDType, Array, TensorType, dtype_name

PARALLEL_ELEMENTS = PAYS_ELEMENTS
"""Elements from which a second thread pays."""
_UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_PLAIN = (BOOL, F16, BF16, F32, F64)


def _text(name: str, source: str, index: str, unit: int) -> str:
    return f"""
def {name}(p, tid, nthreads):
    lo, hi = split(p.n, tid, nthreads)
    count = hi - lo
    x = view(p.x + p.unit * lo, count, {source})
    y, table = view(p.y + {unit} * lo, count, {_UNITS[unit]}), view(p.table, 65536, {_UNITS[unit]})
    for i in range(count):
        v = {index.format(x="x[i]")}
        y[i] = table[v]
"""




def _form(source: AnyDType, target: AnyDType) -> tuple[str, str, AnyDType] | None:
    """Type to read, formula of the index, and dtype of the numbers that the table holds results for."""
    if source.itemsize == 1:
        return "u8", "i64({x})", source
    if target.itemsize != 1:
        return None
    if source.itemsize == 2:
        return "u16", "i64({x})", source
    if target.name in SUB_BYTE and source.kind in "iuf":
        number = "whole_low({x})" if source.kind == "f" else "{x}"
        return dtype_name(source), f"i64({number}) & 255", np.dtype(np.int16)
    if source == F32:
        return "i32", "(({x} >> 16) & 65535) | (({x} & 65535) != 0)", BF16
    return None


@lru_cache(maxsize=64)
def _table(op: Any, source: AnyDType) -> Array:
    """Results of the operator for every pattern of bits; of 16-bit integers only the first 256."""
    bits = np.arange(1 << (8 * source.itemsize), dtype=f"u{source.itemsize}")
    given = bits.view(source)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(op.reference(given.astype(F32) if source == BF16 else given)).reshape(-1)


@lru_cache(maxsize=64)
def _kernel(source: str, index: str, unit: int) -> Native:
    kind = "low_byte" if "255" in index else "odd" if "65535" in index else "bits"
    name = f"lookup_{source}_{kind}_{8 * unit}"
    text = _text(name, source, index, unit)
    fields = {"x": PTR, "y": PTR, "table": PTR, "n": I64, "unit": I64}
    places = 256 if source == "u8" or kind == "low_byte" else 65536

    def reach(a: Any) -> dict[str, Reach]:
        return {"x": a.unit * a.n, "y": unit * a.n, "table": unit * places}

    return native_source(text, name, fields, extents=reach, **scope_of(text))


def _accepts(op: Any, ins: Types) -> bool:
    x = ins[0]
    if x is None or not x.is_static or op.to.itemsize not in _UNITS or op.to.kind == "O":
        return False
    rare = [d for d in (x.dtype, op.to) if d not in _PLAIN and (d.kind not in "iu" or d.name in SUB_BYTE)]
    return bool(rare) and _form(x.dtype, op.to) is not None


def table_step(op: Any, source: AnyDType, target: AnyDType, x: Argument, y: Argument, n: int) -> Step:
    """The step of a Cast that `_form` knows, of ``n`` elements."""
    form = _form(source, target)
    assert form is not None, "the caller has tested this"
    read, index, numbers = form
    table = _table(op, numbers)
    args: dict[str, Argument] = {"x": x, "y": y, "table": table.view(f"u{table.itemsize}"), "n": n}
    return Step(_kernel(read, index, target.itemsize), args | {"unit": source.itemsize}, n >= PARALLEL_ELEMENTS)


@kernel(Cast, accepts=_accepts)
def cast_by_table(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One table for each pair of dtypes and rounding."""
    x = ins[0]
    assert x is not None
    return [table_step(op, x.dtype, outs[0].dtype, In(0), Out(0), x.size)] if x.size else []
