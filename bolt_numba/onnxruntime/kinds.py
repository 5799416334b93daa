"""Types in onnxruntime's spelling, ``tensor(float)`` for example, from bolt-numba's types and ONNX's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    STRING,
    AnyDType,
    MapType,
    NestedType,
    OptionalType,
    TensorSpec,
    TensorType,
    dtype_from_name,
    dtype_name,
)

_SPELLINGS = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "bool": "bool", "string": "string",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2", "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0", "float4_e2m1fn": "float4e2m1",
}  # fmt: skip

CODES: dict[AnyDType, int] = {
    F32: 1, np.dtype("u1"): 2, np.dtype("i1"): 3, np.dtype("u2"): 4, np.dtype("i2"): 5, np.dtype("i4"): 6,
    np.dtype("i8"): 7, STRING: 8, BOOL: 9, F16: 10, F64: 11, np.dtype("u4"): 12, np.dtype("u8"): 13, BF16: 16,
    **{
        dtype_from_name(name): code
        for code, name in enumerate(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 17)
    },
}  # fmt: skip
"""Dtype -> number of ONNX's TensorProto.DataType.  Source: onnx.proto."""
DTYPES = {code: dtype for dtype, code in CODES.items()}


def spelled(dtype: AnyDType) -> str:
    """Name of a dtype in onnxruntime, ``float`` for f32."""
    name = dtype_name(dtype)
    return _SPELLINGS.get(name, name)


def tensor_kind(dtype: AnyDType) -> str:
    return f"tensor({spelled(dtype)})"


def kind_of(t: TensorType) -> str:
    """A type as onnxruntime writes it."""
    if isinstance(t, MapType):
        return f"map({spelled(t.key)},{kind_of(t.element)})"
    if isinstance(t, NestedType):
        return f"{'optional' if isinstance(t, OptionalType) else 'seq'}({kind_of(t.element)})"
    return tensor_kind(t.dtype)


def kind_of_spec(spec: TensorSpec) -> str:
    return tensor_kind(spec.dtype) if spec.nested is None else kind_of(spec.nested)


def dtype_of(given: Any) -> AnyDType:
    """A dtype from what NumPy takes as one, or from ONNX's number.  Raises KeyError or TypeError."""
    return DTYPES[int(given)] if isinstance(given, (int, np.integer)) else np.dtype(given)
