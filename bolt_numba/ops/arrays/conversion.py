"""Conversion between dtypes as ONNX Cast defines it: narrow floats saturate, texts are read and written.

The standard leaves open what a float beyond the integer's range becomes.  Here, on every processor, it is what x86
gives: numbers are cut to whole ones of 32 bits, for u32, i64 and u64 of 64 bits; what does not fit there, NaN included,
is the least number; the low bits of that are the result.  u64 takes numbers from 2**63 less 2**63, and adds it again.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    STRING,
    U32,
    U64,
    AnyDType,
    Array,
    TensorType,
    dtype_name,
)
from bolt_numba.ops.content import bounded
from bolt_numba.ops.dtypes import plain_bools
from bolt_numba.ops.registry import Op, op

SUB_BYTE = ("int4", "uint4", "int2", "uint2")
ROUND_MODES = ("up", "down", "nearest")
_E8M0 = "float8_e8m0fnu"


def cast(x: Array, to: AnyDType, saturate: bool = True, round_mode: str = "up") -> Array:
    """``x`` as another dtype: floats truncate to integers and round half to even otherwise.

    saturate: what is beyond a float of 8 or 4 bits becomes its limit, else infinity or NaN.  round_mode: of
    float8_e8m0fnu only, which holds powers of two.  Source: ONNX Cast-28.
    """
    if x.dtype == STRING:
        return _from_objects(x, to)
    if x.dtype == to:
        return x.copy()
    if to == STRING:
        return _as_texts(x)
    if to == BOOL:
        return np.asarray(x != 0)
    if to.name == _E8M0:
        return _powers(x, to, saturate, round_mode)
    if to.name.startswith(("float8", "float4")):
        wide = x if x.dtype == F64 else x.astype(F32)
        top = float(ml_dtypes.finfo(to).max)  # type: ignore[no-untyped-call]
        return (np.clip(wide, -top, top) if saturate else wide).astype(to)
    if x.dtype.name in SUB_BYTE:
        return x.astype(I8).astype(to)
    if x.dtype.kind not in "iub" and (to.kind in "iu" or to.name in SUB_BYTE):
        x = whole(x, to)
    if x.dtype == F64 and to in (F16, BF16):  # rounded twice, as in onnxruntime
        x = x.astype(F32)
    return _low_bits(x, to) if to.name in SUB_BYTE else x.astype(to)


def whole(x: Array, to: AnyDType) -> Array:
    """Floats cut to integers of at least the bits of ``to``, by the rule at the top of this file."""
    wide = x if x.dtype == F64 else x.astype(F32, copy=False)
    span = I64 if to in (U32, I64, U64) else I32
    limit, least = wide.dtype.type(2.0 ** (8 * span.itemsize - 1)), np.iinfo(span).min
    high = (wide >= limit) & (to == U64)
    with np.errstate(over="ignore"):
        moved = np.where(high, wide - limit, wide) if to == U64 else wide
    fits = np.abs(moved) < limit
    made = np.where(fits, np.where(fits, moved, 0).astype(span), span.type(least))
    return np.where(high, made ^ least, made) if to == U64 else made


def _low_bits(x: Array, to: AnyDType) -> Array:
    """Integers of less than a byte: higher bits are discarded, two's complement."""
    bits = int(to.name[-1])
    codes = x.astype(I64) & ((1 << bits) - 1)
    if to.name.startswith("int"):
        half = 1 << (bits - 1)
        codes = (codes ^ half) - half
    return codes.astype(I8).astype(to)


def _powers(x: Array, to: AnyDType, saturate: bool, round_mode: str) -> Array:
    """Powers of two by their exponent; 0 counts as below the least, the sign is dropped."""
    fraction, exponent = np.frexp(np.abs(x.astype(F64)))
    lower = {"up": fraction == 0.5, "down": fraction < 1, "nearest": fraction < 0.75}[round_mode]
    code = exponent.astype(I64) - lower + 127
    code = np.where(x.astype(F64) == 0, -1, code)
    code = np.where(np.isinf(x.astype(F64)), 255, code)
    outside = (code < 0) | (code > 254)
    code = np.clip(code, 0, 254) if saturate else np.where(outside, 255, code)
    code = np.where(np.isnan(x.astype(F64)), 255, code)
    return code.astype(np.uint8).view(to)


def _from_objects(x: Array, to: AnyDType) -> Array:
    """Texts as numbers; the integers and symbols of shape arithmetic stay what they are."""
    if any(isinstance(v, str) for v in x.flat):
        if to == STRING:
            return x.copy()
        numbers = np.array([_number(v, to) for v in x.flat], F64 if to.kind not in "iu" else None)
        return cast(numbers, to).reshape(x.shape)
    if not x.size:
        return np.zeros(x.shape, to)
    if to.kind not in "iu":
        raise ValueError(f"a symbol has no value as {dtype_name(to)}")
    return x


def _number(text: str, to: AnyDType) -> Any:
    if to.kind in "iu":
        try:
            return int(text)
        except ValueError:
            return int(float(text))
    return float(text)


def _as_texts(x: Array) -> Array:
    """Plain numbers: integers in decimals, floats by the shortest text that gives the same value."""
    made = np.empty(x.shape, STRING)
    made.reshape(-1)[:] = [_text(v) for v in x.reshape(-1)]
    return made


def _text(value: Any) -> str:
    if isinstance(value, np.bool_):
        return str(int(value))
    if isinstance(value, np.integer):
        return str(int(value))
    number = float(value)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    scalar = value if isinstance(value, np.floating) else np.float32(value)
    return str(np.format_float_positional(scalar, trim="-") if 1e-5 <= abs(number) < 1e16 or number == 0 else scalar)


@op("BitCast")
class BitCast(Op):
    """y = x's bits read as another dtype of the same width.  x: [...] any -> y: ``to``.  Source: ONNX BitCast-26.

    Bits that are no bool, 2 to 255, are true.
    """

    to: AnyDType
    data_bounds = bounded(x="values; as bools, all but 0 are true")

    def infer(self, x: TensorType) -> TensorType:
        if STRING in (x.dtype, self.to) or x.dtype.itemsize != self.to.itemsize:
            raise DTypeError(
                f"BitCast: dtype of x: got {dtype_name(x.dtype)}, wanted the width of {dtype_name(self.to)}"
            )
        return TensorType(self.to, x.shape)

    def reference(self, x: Array) -> Array:
        return np.asarray(plain_bools(np.ascontiguousarray(x).reshape(x.shape).view(self.to)))
