"""Tables of casts from and to floats of 8 and 4 bits and integers of less than a byte, which the reference fills.

The index is the element's own bits where these are 8 or 16.  A longer number is first cut to 16 bits such that the last
one tells whether anything was lost (rounding to odd), which keeps every later rounding right; for integers of less than
a byte its low byte is enough.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bolt_numba.base.types import BF16, BOOL, F16, F32, F64, AnyDType, Array, dtype_name
from bolt_numba.kernels.registry import Types
from bolt_numba.ops.arrays.conversion import SUB_BYTE
from bolt_numba.ops.pointwise.row import Pointwise

UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""By bytes: how an entry is moved."""
_PLAIN = (BOOL, F16, BF16, F32, F64)


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
