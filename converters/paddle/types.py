"""Dtypes as both kinds of Paddle files number and name them.  Source: framework.proto, PIR's serialisation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, AnyDType, Shape, Sym

NUMBERED: dict[int, AnyDType] = {
    0: BOOL, 1: I16, 2: I32, 3: I64, 4: F16, 5: F32, 6: F64, 19: U64, 20: U8, 21: I8, 22: BF16,
    23: np.dtype("c8"), 24: np.dtype("c16"), 32: np.dtype(ml_dtypes.float8_e4m3fn),
    33: np.dtype(ml_dtypes.float8_e5m2), 36: U16, 37: U32, 38: U64,
}  # fmt: skip
"""By VarType.Type; the numbers between are kinds of variables that are no tensors."""

NAMED: dict[str, AnyDType] = {
    "bool": BOOL, "int8": I8, "int16": I16, "int32": I32, "int64": I64, "uint8": U8, "uint16": U16, "uint32": U32,
    "uint64": U64, "float16": F16, "bfloat16": BF16, "float32": F32, "float64": F64,
    "complex64": np.dtype("c8"), "complex128": np.dtype("c16"),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn), "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
"""By the text of an attribute of PIR."""

_SHORT_NAMES: dict[str, AnyDType] = {
    "bool": BOOL, "i8": I8, "i16": I16, "i32": I32, "i64": I64, "index": I64, "ui8": U8, "ui16": U16, "ui32": U32,
    "ui64": U64, "f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "c64": np.dtype("c8"), "c128": np.dtype("c16"),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn), "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip


def dtype_of_number(number: Any, what: str) -> AnyDType:
    """The dtype of a VarType.Type."""
    if number not in NUMBERED:
        raise UnsupportedOpError(what, [f"dtype {number}"])
    return NUMBERED[number]


def dtype_of_tag(tag: Any, what: str) -> AnyDType:
    """The dtype of a type of PIR, for example ``0.t_f32``."""
    text = str(tag)
    if not text.startswith("0.t_") or text[4:] not in _SHORT_NAMES:
        raise UnsupportedOpError(what, [f"dtype {text[:40]}"])
    return _SHORT_NAMES[text[4:]]


def shape_of(dims: Iterable[Any], name: str, what: str) -> Shape:
    """A shape in which -1, whatever the run brings, becomes a symbol of this name."""
    made: list[int | Sym] = []
    for axis, dim in enumerate(dims):
        if not isinstance(dim, int) or dim < -1:
            raise InvalidModelError(f"{what}: dims: got {dim!r}, wanted numbers from -1 on")
        made.append(Sym(f"{name}_{axis}") if dim == -1 else dim)
    return tuple(made)
