"""Dtype rules shared by operators: which dtype computes, and checks of operands' dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    AnyDType,
    Array,
    TensorType,
    dtype_name,
)
from bolt_numba.ops.registry import Op

FLOATS = (F32, F64, F16, BF16)
HALVES = (F16, BF16)
INTS = (I8, I16, I32, I64, U8, U16, U32, U64)
INDICES = (I64, I32)
NUMBERS = FLOATS + INTS
MAX_F32, MAX_I32 = np.float32(3.4028234663852886e38), 2**31 - 1
MIN_F32 = -MAX_F32
"""The greatest and least finite number of a dtype."""


def accumulator(dtype: AnyDType) -> AnyDType:
    """Dtype in which references compute: f32 for the narrower floats, else ``dtype`` itself."""
    return F32 if dtype in (F16, BF16) else dtype


def widened(x: Array) -> Array:
    """``x`` in the dtype that computes; ``x`` itself when that is its own."""
    return x.astype(accumulator(x.dtype), copy=False)


def nothing(dtype: AnyDType) -> Any:
    """What stands where there is no element: 0, or an empty string."""
    return "" if dtype == STRING else dtype.type(0)


def same_dtype(owner: Op, *operands: TensorType | None) -> AnyDType:
    """The dtype that all present operands share; raises DTypeError."""
    found = [t.dtype for t in operands if t is not None]
    for other in found[1:]:
        if other != found[0]:
            got = " and ".join(map(dtype_name, (found[0], other)))
            raise DTypeError(f"{owner.name}: dtypes of operands: got {got}, wanted the same")
    return found[0]


FEW_BOOLS = 64
"""Bools that Python looks at faster than NumPy."""


def plain_bools(array: Any) -> Any:
    """An array whose bools are 0 or 1: itself, or a copy where a byte is greater; anything else as it is.

    Memory from outside and other bits read as bools may hold any byte, and NumPy and kernels count on 0 and 1.
    """
    if getattr(array, "dtype", None) != BOOL or not array.size:
        return array
    held = array.view(np.uint8)
    most = max(array.tobytes()) if array.size <= FEW_BOOLS else held.max()
    return np.asarray(held != 0) if most > 1 else array


def lowest(dtype: AnyDType) -> float | int:
    """The value below all others: -inf, or the least integer."""
    return -np.inf if dtype.kind not in "iu" else int(np.iinfo(dtype).min)
