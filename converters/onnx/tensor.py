"""Tensors of an ONNX file as arrays, dtypes and types.  Nothing is allocated before its size was checked."""

from __future__ import annotations

import math
import os
from pathlib import Path

import ml_dtypes
import numpy as np

from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.payload import payload
from bolt_numba.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.mapped import map_file
from bolt_numba.ops.registry import fresh_dim
from bolt_numba.types import (
    STRING,
    AnyDType,
    Array,
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

_FIELDS: dict[int, str] = {
    **dict.fromkeys((_P.FLOAT, _P.COMPLEX64), "float_data"),
    **dict.fromkeys((_P.DOUBLE, _P.COMPLEX128), "double_data"),
    **dict.fromkeys((_P.UINT32, _P.UINT64), "uint64_data"),
    _P.INT64: "int64_data",
    _P.STRING: "string_data",
}
"""Where the elements are when they are not in raw_data; int32_data for all others.  Source: onnx.proto."""

BITS: dict[AnyDType, int] = {
    dtype: bits
    for name, bits in {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}.items()
    for dtype in CODES
    if dtype.name == name
}
"""Widths of what is stored in parts of a byte."""
MAX_DENSE = 1 << 28
"""Elements of the largest sparse tensor that is made dense."""
MAPPED = 1 << 20
"""Bytes from which external data is mapped instead of read."""


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


def array_of(tensor: onnx.TensorProto, folder: Path | None, what: str) -> Array:
    """Content of a tensor; ``folder`` is where external data may be (None: it may not).

    Raises InvalidModelError when dims and data do not fit together.
    """
    dims = tuple(tensor.dims)
    dtype = dtype_of(tensor.data_type, what)
    if any(d < 0 for d in dims):
        raise InvalidModelError(f"{what}: dims: got {dims}, wanted none negative")
    count = math.prod(dims)
    if tensor.data_location == _P.EXTERNAL:
        return _external(tensor, folder, dtype, dims, what)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        left = payload(raw)
        return _from_raw(raw if left is None else left, dtype, dims, what)
    return _from_field(tensor, dtype, dims, count, what)


def _from_raw(raw: bytes | Array, dtype: AnyDType, dims: tuple[int, ...], what: str) -> Array:
    count = math.prod(dims)
    if dtype == STRING:
        raise InvalidModelError(f"{what}: got strings in raw_data, wanted string_data")
    bits = BITS.get(dtype, 8 * dtype.itemsize)
    wanted = (count * bits + 7) // 8
    if len(raw) != wanted:
        raise InvalidModelError(f"{what}: data: got {len(raw)} bytes, wanted {wanted} for {dtype.name}{list(dims)}")
    if bits < 8:
        return _unpacked(np.frombuffer(raw, np.uint8), bits, dtype, count).reshape(dims)
    if dtype == np.dtype("?"):
        flags: Array = np.frombuffer(raw, np.uint8) != 0
        return flags.reshape(dims)
    return np.frombuffer(raw, dtype).reshape(dims)


def _unpacked(packed: Array, bits: int, dtype: AnyDType, count: int) -> Array:
    """Elements of less than a byte, the first one in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.name.startswith("int"):
        half = 1 << (bits - 1)
        return ((codes.astype(np.int8) ^ half) - half).astype(dtype)
    return codes.astype(dtype) if dtype.name.startswith("uint") else codes.view(dtype)


def _from_field(tensor: onnx.TensorProto, dtype: AnyDType, dims: tuple[int, ...], count: int, what: str) -> Array:
    field = _FIELDS.get(tensor.data_type, "int32_data")
    data = getattr(tensor, field)
    bits = BITS.get(dtype, 8)
    wanted = 2 * count if dtype.kind == "c" else (count * bits + 7) // 8 if bits < 8 else count
    if len(data) != wanted:
        raise InvalidModelError(
            f"{what}: {field}: got {len(data)} elements, wanted {wanted} for {dtype.name}{list(dims)}"
        )
    if dtype == STRING:
        made = np.empty(count, dtype=object)
        made[:] = [s.decode("utf-8") for s in data]
        return made.reshape(dims)
    if dtype.kind in "fiub" and field != "int32_data":
        return np.array(data, dtype=dtype).reshape(dims)
    if field == "int32_data" and dtype.kind in "iub" and bits == 8:
        return np.array(data, dtype=np.int32).astype(dtype).reshape(dims)
    from onnx import numpy_helper  # narrow types only

    other: Array = np.asarray(numpy_helper.to_array(tensor))
    return other.astype(dtype, copy=False).reshape(dims)


def dense_of(sparse: onnx.SparseTensorProto, folder: Path | None, what: str) -> Array:
    """A sparse tensor made dense.  Source: onnx.proto, SparseTensorProto."""
    dims = tuple(sparse.dims)
    count = math.prod(dims)
    if any(d < 0 for d in dims) or count > MAX_DENSE:
        raise InvalidModelError(f"{what}: dims: got {dims}, wanted at most {MAX_DENSE} elements")
    values = array_of(sparse.values, folder, what).reshape(-1)
    indices = array_of(sparse.indices, folder, what)
    if indices.ndim == 2:
        if indices.shape != (len(values), len(dims)) or np.any(indices < 0) or np.any(indices >= np.array(dims)):
            raise InvalidModelError(f"{what}: indices: got {indices.shape}, wanted {len(values)} places in {dims}")
        indices = np.ravel_multi_index(tuple(indices.T), dims) if dims else indices.reshape(-1)
    if indices.shape != values.shape or np.any(indices < 0) or np.any(indices >= count):
        raise InvalidModelError(f"{what}: indices: got {indices.shape}, wanted {values.shape} places below {count}")
    dense = np.zeros(count, values.dtype)
    dense[indices] = values
    return dense.reshape(dims)


def _external(
    tensor: onnx.TensorProto, folder: Path | None, dtype: AnyDType, dims: tuple[int, ...], what: str
) -> Array:
    entries = {e.key: e.value for e in tensor.external_data}
    path = _external_path(entries.get("location", ""), folder, what)
    count = math.prod(dims)
    bits = BITS.get(dtype, 8 * dtype.itemsize)
    wanted = (count * bits + 7) // 8
    offset = _number(entries, "offset", 0, what)
    length = _number(entries, "length", wanted, what)
    is_mapped = wanted >= MAPPED and bits >= 8 and dtype.kind != "b"
    data = map_file(path) if is_mapped and path.stat().st_size else b""
    size = len(data) or path.stat().st_size
    if length != wanted or offset + length > size:
        raise InvalidModelError(
            f"{what}: external data {path.name}: got {length} bytes from {offset} of {size}, "
            f"wanted {wanted} for {dtype.name}{list(dims)}"
        )
    if is_mapped:
        return np.frombuffer(data, dtype, count, offset).reshape(dims)
    with path.open("rb") as file:
        file.seek(offset)
        return _from_raw(file.read(length), dtype, dims, what)


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidModelError(f"{what}: {key} of external data: got {text[:40]!r}, wanted a number")
    return int(text)


def _external_path(location: str, folder: Path | None, what: str) -> Path:
    """The file of external data, which must lie below ``folder`` also when links are followed."""
    if folder is None:
        raise InvalidModelError(f"{what}: got external data {location!r}, wanted a model that is read from a file")
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        raise InvalidModelError(f"{what}: external data: got {location!r}, wanted a path inside the model's folder")
    root = folder.resolve()
    path = (root / location).resolve()
    if not path.is_relative_to(root):
        raise InvalidModelError(f"{what}: external data: got {location!r}, which leaves the model's folder")
    if not path.is_file():
        raise InvalidModelError(f"{what}: external data: got {location!r}, wanted an existing file")
    return path
