"""Dtypes and types of ONNX files, read and written."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import (
    STRING,
    AnyDType,
    Dim,
    MapType,
    NestedType,
    SequenceType,
    Sym,
    TensorType,
    map_of,
    optional_of,
    sequence_of,
)
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.ops.registry import fresh_dim

_P = onnx.TensorProto

DTYPES: dict[int, AnyDType] = {
    _P.FLOAT: np.dtype("f4"),
    _P.UINT8: np.dtype("u1"),
    _P.INT8: np.dtype("i1"),
    _P.UINT16: np.dtype("u2"),
    _P.INT16: np.dtype("i2"),
    _P.INT32: np.dtype("i4"),
    _P.INT64: np.dtype("i8"),
    _P.STRING: STRING,
    _P.BOOL: np.dtype("?"),
    _P.FLOAT16: np.dtype("f2"),
    _P.DOUBLE: np.dtype("f8"),
    _P.UINT32: np.dtype("u4"),
    _P.UINT64: np.dtype("u8"),
    _P.COMPLEX64: np.dtype("c8"),
    _P.COMPLEX128: np.dtype("c16"),
    _P.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
"""ONNX element type -> dtype.  Source: onnx.proto, TensorProto.DataType; completed below with the narrow types."""

_NARROW = {
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
    "UINT4": "uint4",
    "INT4": "int4",
    "UINT2": "uint2",
    "INT2": "int2",
}
for _name, _scalar in _NARROW.items():  # older releases of onnx and ml_dtypes lack some of them
    if hasattr(_P, _name) and hasattr(ml_dtypes, _scalar):
        DTYPES[getattr(_P, _name)] = np.dtype(getattr(ml_dtypes, _scalar))

CODES: dict[AnyDType, int] = {dtype: code for code, dtype in DTYPES.items()}

def dtype_of(code: int, what: str) -> AnyDType:
    """Dtype of an ONNX element type; raises InvalidModelError or UnsupportedOpError."""
    if code in DTYPES:
        return DTYPES[code]
    if code == _P.UNDEFINED or code not in onnx.TensorProto.DataType.values():
        raise InvalidModelError(f"{what}: element type: got {code}, wanted a TensorProto.DataType")
    raise UnsupportedOpError(what, [f"element type {onnx.TensorProto.DataType.Name(code)}"])


def type_of_proto(proto: onnx.TypeProto, what: str) -> TensorType:
    """Type of a graph input; unnamed and negative dimensions become fresh symbols."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return sequence_of(type_of_proto(proto.sequence_type.elem_type, what))
    if kind == "optional_type":
        return optional_of(type_of_proto(proto.optional_type.elem_type, what))
    if kind == "map_type":
        return map_of(dtype_of(proto.map_type.key_type, what), type_of_proto(proto.map_type.value_type, what))
    if kind != "tensor_type":
        raise UnsupportedOpError(what, [f"a value of kind {kind or 'undefined'}"])
    tensor = proto.tensor_type
    dtype = dtype_of(tensor.elem_type, what)
    if not tensor.HasField("shape"):
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(_dim(d) for d in tensor.shape.dim))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    named = dim.dim_param != "None" and any(c.isalnum() for c in dim.dim_param)  # "?" says nothing of equality
    return Sym(dim.dim_param) if named else fresh_dim()


def proto_of_type(type_: TensorType) -> onnx.TypeProto:
    """The ONNX spelling of a type; composed symbols lose their structure."""
    made = onnx.TypeProto()
    if isinstance(type_, NestedType):
        inner = proto_of_type(type_.element)
        if isinstance(type_, MapType):
            made.map_type.key_type = CODES[type_.key]
            made.map_type.value_type.CopyFrom(inner)
        else:
            held = made.sequence_type if isinstance(type_, SequenceType) else made.optional_type
            held.elem_type.CopyFrom(inner)
        return made
    made.tensor_type.elem_type = CODES[type_.dtype]
    if type_.shape is not None:
        made.tensor_type.shape.SetInParent()
        for d in type_.shape:
            dim = made.tensor_type.shape.dim.add()
            if isinstance(d, Sym):
                dim.dim_param = str(d)
            else:
                dim.dim_value = d
    return made
