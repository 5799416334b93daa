"""Tensors of an ONNX file as arrays.  Nothing is allocated before its size was checked."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import STRING, AnyDType, Array
from bolt_numba.converters.bounded import (
    BITS,
    Folders,
    array_in_file,
    array_of_bytes,
    count_of,
    decimal,
    file_below,
    text_of,
)
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.payload import payload
from bolt_numba.converters.onnx.types import dtype_of

_P = onnx.TensorProto

_FIELDS: dict[int, str] = {
    **dict.fromkeys((_P.FLOAT, _P.COMPLEX64), "float_data"),
    **dict.fromkeys((_P.DOUBLE, _P.COMPLEX128), "double_data"),
    **dict.fromkeys((_P.UINT32, _P.UINT64), "uint64_data"),
    _P.INT64: "int64_data",
    _P.STRING: "string_data",
}
"""Where the elements are when they are not in raw_data; int32_data for all others.  Source: onnx.proto."""

MAX_DENSE = 1 << 28
"""Elements of the largest sparse tensor that is made dense."""


def array_of(tensor: onnx.TensorProto, folders: Folders, what: str) -> Array:
    """Content of a tensor; ``folders`` are where external data may be.

    Raises InvalidModelError when dims and data do not fit together.
    """
    dims = tuple(tensor.dims)
    dtype = dtype_of(tensor.data_type, what)
    count = count_of(dims, what)
    if tensor.data_location == _P.EXTERNAL:
        return _external(tensor, folders, dtype, what)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        left = payload(raw)
        return array_of_bytes(raw if left is None else left, dtype, dims, what)
    return _from_field(tensor, dtype, dims, count, what)


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
        made[:] = [text_of(s, what) for s in data]
        return made.reshape(dims)
    if dtype.kind in "fiub" and field != "int32_data":
        return np.array(data, dtype=dtype).reshape(dims)
    if field == "int32_data" and dtype.kind in "iub" and bits == 8:
        return np.array(data, dtype=np.int32).astype(dtype).reshape(dims)
    from onnx import numpy_helper  # narrow types only

    other: Array = np.asarray(numpy_helper.to_array(tensor))
    return other.astype(dtype, copy=False).reshape(dims)


def dense_of(sparse: onnx.SparseTensorProto, folders: Folders, what: str) -> Array:
    """A sparse tensor made dense.  Source: onnx.proto, SparseTensorProto."""
    dims = tuple(sparse.dims)
    count = count_of(dims, what)
    if count > MAX_DENSE:
        raise InvalidModelError(f"{what}: dims: got {dims}, wanted at most {MAX_DENSE} elements")
    values = array_of(sparse.values, folders, what).reshape(-1)
    indices = array_of(sparse.indices, folders, what)
    if indices.ndim == 2:
        if indices.shape != (len(values), len(dims)) or np.any(indices < 0) or np.any(indices >= np.array(dims)):
            raise InvalidModelError(f"{what}: indices: got {indices.shape}, wanted {len(values)} places in {dims}")
        indices = np.ravel_multi_index(tuple(indices.T), dims) if dims else indices.reshape(-1)
    if indices.shape != values.shape or np.any(indices < 0) or np.any(indices >= count):
        raise InvalidModelError(f"{what}: indices: got {indices.shape}, wanted {values.shape} places below {count}")
    ask(count * values.itemsize, what)
    dense = np.zeros(count, values.dtype)
    dense[indices] = values
    return dense.reshape(dims)


def _external(tensor: onnx.TensorProto, folders: Folders, dtype: AnyDType, what: str) -> Array:
    entries = {e.key: e.value for e in tensor.external_data}
    path = file_below(folders, entries.get("location", ""), f"{what}: external data")
    given = {k: decimal(entries[k], f"{what}: {k} of external data") for k in ("offset", "length") if entries.get(k)}
    place = given.get("offset", 0), given.get("length")
    return array_in_file(path, *place, dtype, tuple(tensor.dims), f"{what}: external data")
