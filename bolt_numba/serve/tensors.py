"""Tensors of the Open Inference Protocol: its datatypes, their bytes, and what JSON says of them.

Bytes are little-endian and row-major; an element of BYTES is a length of four bytes, then so many bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, STRING, AnyDType, Array, NestedType, OptionalType, TensorSpec
from bolt_numba.serve.errors import RequestError, shown
from bolt_numba.sessions.inputs import as_input, spec_of

DTYPES: dict[str, AnyDType] = {
    "BOOL": np.dtype(bool), "BF16": BF16, "BYTES": STRING,
    **{f"{kind}{8 << i}": np.dtype(f"{kind[0].lower()}{1 << i}") for kind in ("UINT", "INT") for i in range(4)},
    **{f"FP{16 << i}": np.dtype(f"f{2 << i}") for i in range(3)},
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
KINDS: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "O": {str, bytes}}
"""Types of elements in lists, by the kind of a dtype; others are numbers."""
LENGTH = struct.Struct("<I")
MOST_DIMS = 32
"""Dimensions of an array of NumPy, less one half: no model has more."""
MOST_ELEMENTS = 1 << 40
SMALL_BODY = 1 << 20
"""Bytes of a request that are read without a look at what they become as objects."""
UNKNOWN_PARAMETERS = ("classification", "shared_memory_region")
"""Of tensors: extensions that are not served."""


def is_optional(spec: TensorSpec) -> bool:
    """Whether a request may leave an input out."""
    return isinstance(spec.nested, OptionalType)


def plain(spec: TensorSpec) -> TensorSpec:
    """An optional input as the tensor that it may be; others as they are."""
    inner = spec.nested.element if isinstance(spec.nested, OptionalType) else None
    return spec if inner is None or isinstance(inner, NestedType) else spec_of(spec.name, inner)


def datatype_of(name: str, dtype: AnyDType) -> str:
    """The protocol's name for what an input or output is of.  Raises RequestError where it has none."""
    if dtype not in NAMES:
        raise RequestError(f"{name!r}: got {dtype}, which the protocol has no datatype for", "internal")
    return NAMES[dtype]


def described(spec: TensorSpec) -> dict[str, Any]:
    """An input or output as metadata has it: -1 for a size that is free; what is no tensor is texts of JSON."""
    spec = plain(spec)
    datatype = "BYTES" if spec.nested is not None else datatype_of(spec.name, spec.dtype)
    shape = [-1] if spec.shape is None else [d if isinstance(d, int) else -1 for d in spec.shape]
    return {"name": spec.name, "datatype": datatype, "shape": shape}


# --- what is asked ---------------------------------------------------------------------------------------------------


def want_served(what: str, parameters: Mapping[str, Any]) -> None:
    """Raises RequestError for parameters of a tensor that ask for an extension that is not served."""
    if asked := [key for key in UNKNOWN_PARAMETERS if key in parameters]:
        raise RequestError(f"{what}: parameters: got {asked}, wanted none of it: this server does not have it")


def inputs_of(rows: Iterable[tuple[str, Any, Any, Mapping[str, Any], Any]]) -> dict[str, Array]:
    """Arrays by name, of rows of a request: name, datatype, shape, parameters, and bytes or a list of elements.

    Raises RequestError for what is none.
    """
    found = dict[str, Array]()
    for name, datatype, given, parameters, data in rows:
        if name in found:
            raise RequestError(f"inputs: got {name!r} twice, wanted each name once")
        if parameters:
            want_served(f"input {name!r}", parameters)
        fits = isinstance(given, (list, tuple)) and len(given) <= MOST_DIMS and all(type(d) is int for d in given)
        if not fits or min(given, default=0) < 0 or math.prod(d or 1 for d in given) > MOST_ELEMENTS:
            raise RequestError(f"input {name!r}: shape: got {shown(given)}, wanted a list of sizes")
        if not isinstance(datatype, str) or datatype not in DTYPES:
            raise RequestError(f"input {name!r}: datatype: got {shown(datatype)}, wanted one of {', '.join(DTYPES)}")
        read = from_bytes if isinstance(data, (bytes, memoryview)) else from_list
        found[name] = read(name, datatype, tuple(given), data)
    return found


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """An array over the bytes of a request, which are not copied; elements of BYTES are bytes."""
    dtype, count = DTYPES[datatype], math.prod(shape)
    if dtype == STRING:
        return np.array(_elements(name, data, count), object).reshape(shape)
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            f"input {name!r}: got {len(data)} bytes, wanted {count * dtype.itemsize} for {datatype}{list(shape)}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _elements(name: str, data: bytes | memoryview, count: int) -> list[bytes]:
    found, at, end = list[bytes](), 0, len(data)
    while at < end and len(found) < count:
        length = LENGTH.unpack_from(data, at)[0] if at + LENGTH.size <= end else end
        at += LENGTH.size + length
        if at > end:
            raise RequestError(
                f"input {name!r}: element {len(found)}: got a length beyond the {end} bytes of the input"
            )
        found.append(bytes(data[at - length : at]))
    if len(found) != count or at != end:
        raise RequestError(
            f"input {name!r}: got {len(found)} elements and {end - at} bytes more, wanted {count} elements"
        )
    return found


def from_list(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """An array of the numbers, texts or bytes of a request, in a list, or in lists within lists."""
    dtype, count = DTYPES[datatype], math.prod(shape)
    flat: Any = data
    for size in shape[1:]:
        if isinstance(flat, list) and flat and all(type(x) is list for x in flat):
            if any(len(row) != size for row in flat):
                raise RequestError(f"input {name!r}: data: got lists that are not of {list(shape)}")
            flat = [x for row in flat for x in row]
    if not isinstance(flat, list) or len(flat) != count:
        got = f"{len(flat)} elements" if isinstance(flat, list) else shown(data)
        raise RequestError(f"input {name!r}: data: got {got}, wanted {count} for {datatype}{list(shape)}")
    wanted = KINDS.get(dtype.kind, {int, float})
    if not wanted.issuperset(map(type, flat)):
        odd, what = next(x for x in flat if type(x) not in wanted), "texts" if dtype == STRING else "numbers"
        raise RequestError(f"input {name!r}: data: got {shown(odd)}, wanted {what} of {datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype).reshape(shape)
    except (ArithmeticError, ValueError) as error:
        raise RequestError(f"input {name!r}: data: got a number that {datatype} does not hold: {error}") from None


def whole_body(spec: TensorSpec, data: bytes | memoryview) -> Array:
    """The only input of a model, of a body without JSON.

    One size may be free, and a first one beside it, which is 1 then.  BYTES is one element, which has no length before
    it.  Raises RequestError where the shape does not follow.
    """
    told = described(spec)
    dims, datatype = list(told["shape"]), told["datatype"]
    if datatype == "BYTES":
        return np.array([bytes(data)], object).reshape((1,) * len(dims))
    free = [axis for axis, size in enumerate(dims) if size < 0]
    if len(free) > 1 and free[0] == 0:
        dims[free.pop(0)] = 1
    size = math.prod(d for d in dims if d >= 0) * DTYPES[datatype].itemsize
    if len(free) > 1 or (free and (not size or len(data) % size)):
        raise RequestError(
            f"input {spec.name!r}: got {len(data)} bytes and no JSON, wanted it: the shape is {told['shape']}"
        )
    if free:
        dims[free[0]] = len(data) // size
    return from_bytes(spec.name, datatype, tuple(dims), data)


def taken(spec: TensorSpec, given: Array | None) -> Any:
    """An input as the model declares it: texts where it wants such, which are UTF-8 where they came as bytes.

    One element of BYTES, as a file, also is an input of bytes along one axis.  Raises RequestError for what is no text,
    DTypeError or ShapeError for other arrays.
    """
    inner = plain(spec)
    if given is not None and given.dtype == STRING:
        if inner.dtype == np.uint8 and inner.nested is None and given.size == 1 and len(inner.shape or ()) == 1:
            item = given.item()
            given = np.frombuffer(item if isinstance(item, bytes) else item.encode(), np.uint8)
        elif inner.dtype == STRING:
            given = _texts(spec.name, given)
    return as_input(spec, given)


def _texts(name: str, given: Array) -> Array:
    try:
        texts = [x if type(x) is str else x.decode() for x in given.reshape(-1)]
        return np.array(texts, object).reshape(given.shape)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"input {name!r}: got an element of BYTES that is no text in UTF-8, wanted texts: {error}"
        ) from None


# --- what is answered ------------------------------------------------------------------------------------------------


def to_bytes(array: Array) -> bytes | memoryview:
    """The bytes of a result."""
    if array.dtype == STRING:
        parts = [x if isinstance(x, bytes) else str(x).encode() for x in array.reshape(-1)]
        return b"".join(piece for part in parts for piece in (LENGTH.pack(len(part)), part))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def to_json(array: Array) -> Any:
    """A result as the encoder of JSON takes it: flat, in row-major order."""
    flat = array.reshape(-1)
    if flat.dtype == STRING:
        return [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in flat]
    if flat.dtype.itemsize < np.float32().itemsize and flat.dtype.kind not in "iub":
        flat = flat.astype(np.float32)
    return np.ascontiguousarray(flat)
