"""ByteTable, and casts from and to floats of 8 and 4 bits and integers of less than a byte, by tables of the reference.

The index is the element's own bits where these are 8 or 16.  A longer number is first cut to 16 bits such that the last
one tells whether anything was lost (rounding to odd), which keeps every later rounding right; for integers of less than
a byte its low byte is enough.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, BOOL, F16, F32, F64, AnyDType, Array, dtype_name
from bolt_numba.kernels.geometry.elements import DeviceParts
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, everywhere
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.conversion import SUB_BYTE
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.pointwise.row import Pointwise

UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""By bytes: how an entry is moved."""
_PLAIN = (BOOL, F16, BF16, F32, F64)


@record(frozen=True)
class Lookup:
    """How elements are read, the formula of the index, bytes of an entry."""

    source: str
    index: str
    unit: int

    @property
    def name(self) -> str:
        """Of its kernel."""
        kind = "low_byte" if "255" in self.index else "odd" if "65535" in self.index else "bits"
        return f"lookup_{self.source}_{kind}_{8 * self.unit}"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return int(self.source[1:]) // 8

    @property
    def nbytes(self) -> int:
        """Of the table."""
        return self.unit * (256 if self.source == "u8" or "255" in self.index else 65536)


def table_form(source: AnyDType, target: AnyDType) -> tuple[str, str, AnyDType] | None:
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
def cast_table(op: Pointwise, source: AnyDType) -> Array:
    """Results of the operator for every pattern of bits; of 16-bit integers only the first 256."""
    bits = np.arange(1 << (8 * source.itemsize), dtype=f"u{source.itemsize}")
    given = bits.view(source)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(op.reference(given.astype(F32) if source == BF16 else given)).reshape(-1)


def has_table(op: Pointwise, ins: Types) -> bool:
    """Whether a Cast goes through a table."""
    x = ins[0]
    if not x.is_static or op.to.itemsize not in UNITS or op.to.kind == "O":
        return False
    rare = [d for d in (x.dtype, op.to) if d not in _PLAIN and (d.kind not in "iu" or d.name in SUB_BYTE)]
    return bool(rare) and table_form(x.dtype, op.to) is not None


def cast_step(
    op: Pointwise, source: AnyDType, target: AnyDType, x: Argument, y: Argument, n: int, on: DeviceParts
) -> Step:  # fmt: skip
    """The step of a Cast that `table_form` knows, of ``n`` elements."""
    form = table_form(source, target)
    assert form is not None, "the caller has tested this"
    read, index, numbers = form
    table = cast_table(op, numbers)
    return _step(Lookup(read, index, target.itemsize), table.view(f"u{table.itemsize}"), x, y, n, on)


def _step(form: Lookup, table: Argument, x: Argument, y: Argument, n: int, on: DeviceParts) -> Step:
    args: dict[str, Argument] = {"x": x, "y": y, "table": table, "n": n}
    step: Step = on.own("elementwise.tables.step")(form, args)
    return step


@everywhere(ByteTable, inplace=(0,))
def byte_table(op: ByteTable, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Any shape."""
    return [_step(Lookup("u8", "i64({x})", 1), In(1), In(0), Out(0), outs[0].size, on)] if outs[0].size else []


@everywhere(Cast, accepts=has_table)
def cast_by_table(op: Pointwise, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """One table for each pair of dtypes and rounding."""
    x = ins[0]
    return [cast_step(op, x.dtype, outs[0].dtype, In(0), Out(0), x.size, on)] if x.size else []
