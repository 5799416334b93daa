"""Types of PTX as NumPy's, and what a simulation is asked to check."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bolt_numba.base.records import record

U8, U16, U32, U64 = np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64)
I8, I16, I32, I64 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64)
F16, F32, F64, BOOL = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.bool_)

DTYPES = {
    "pred": BOOL, "b8": U8, "u8": U8, "s8": I8, "b16": U16, "u16": U16, "s16": I16, "f16": F16, "bf16": U16,
    "b32": U32, "u32": U32, "s32": I32, "f32": F32, "tf32": U32, "f16x2": U32, "bf16x2": U32,
    "b64": U64, "u64": U64, "s64": I64, "f64": F64,
}  # fmt: skip
"""By suffix of an instruction: what its operands are."""

Lanes = Any
"""Which lanes an instruction acts on: a slice of all, or their indices."""
Values = Any
"""An array with a value for each lane, or one value for all."""


@record()
class Checks:
    """What a simulation looks for beside bounds, alignment and deadlock, which it always does.

    uninitialised: reads of memory that nothing has written.  races: accesses of shared memory that no barrier orders.
    """

    uninitialised: bool = True
    races: bool = True


ALL_CHECKS = Checks()


class RefusedError(Exception):
    """An instruction or operand that is not modelled; the module collects all of them."""


class FaultError(Exception):
    """What a kernel did wrong, and the lane that did; the machine makes a `SimulationError` of it."""

    def __init__(self, what: str, lane: int | None = None) -> None:
        super().__init__(what)
        self.what, self.lane = what, lane


def dtype_of(modifiers: list[str], at: int = -1) -> np.dtype[Any]:
    """Of an instruction by its suffixes."""
    if not modifiers or modifiers[at] not in DTYPES:
        raise RefusedError(f"type .{modifiers[at] if modifiers else '?'}")
    return DTYPES[modifiers[at]]


def wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def literal(text: str, dtype: np.dtype[Any]) -> Any:
    """A number as it is written, as a NumPy scalar; None where the text is no number."""
    if re.fullmatch(r"0[fF][0-9A-Fa-f]{8}", text):
        value = np.array(int(text[2:], 16), U32).view(F32)
        return value.astype(dtype)[()] if dtype.kind == "f" else value.view(U32).astype(dtype)[()]
    if re.fullmatch(r"0[dD][0-9A-Fa-f]{16}", text):
        wide = np.array(int(text[2:], 16), U64).view(F64)
        return wide.astype(dtype)[()] if dtype.kind == "f" else wide.view(U64).astype(dtype)[()]
    if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|0[bB][01]+|\d+)U?", text):
        digits = text.rstrip("U")
        octal = re.fullmatch(r"(-?)0([0-7]+)", digits)
        number = int(octal[1] + octal[2], 8) if octal else int(digits, 0)
        if dtype == BOOL:
            return np.bool_(number)
        if dtype.kind == "f":
            return (
                np.array(number & (2 ** (8 * dtype.itemsize) - 1), unsigned(dtype)).view(dtype)[()]
                if "x" in text
                else dtype.type(number)
            )
        return np.array(number & (2 ** (8 * dtype.itemsize) - 1), unsigned(dtype)).view(dtype)[()]
    if re.fullmatch(r"-?\d+\.\d*([eE][-+]?\d+)?", text):
        return dtype.type(float(text))
    return dtype.type(32) if text == "WARP_SZ" else None
