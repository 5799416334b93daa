"""Tensors of the Open Inference Protocol: its datatypes, their bytes, and what JSON says of them.

Bytes are little-endian and row-major; an element of BYTES is a length of four bytes, then so many bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, STRING, AnyDType, Array, TensorSpec
from bolt_numba.serve.errors import RequestError

DTYPES: dict[str, AnyDType] = {
    "BOOL": np.dtype(bool), "BF16": BF16, "BYTES": STRING,
    **{f"{kind}{8 << i}": np.dtype(f"{kind[0].lower()}{1 << i}") for kind in ("UINT", "INT") for i in range(4)},
    **{f"FP{16 << i}": np.dtype(f"f{2 << i}") for i in range(3)},
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<I")
MOST_DIMS = 32
"""Dimensions of an array of NumPy, less one half: no model has more."""
MOST_ELEMENTS = 1 << 40


def datatype_of(spec: TensorSpec) -> str:
    """The protocol's name for an input or output; what is no tensor is texts of JSON."""
    if spec.nested is not None:
        return "BYTES"
    if (found := NAMES.get(spec.dtype)) is None:
        raise RequestError(f"{spec.name!r}: got {spec.dtype}, which the protocol has no datatype for")
    return found


def described(spec: TensorSpec) -> dict[str, Any]:
    """An input or output as metadata has it: -1 for a size that is free."""
    shape = [-1] if spec.shape is None else [d if isinstance(d, int) else -1 for d in spec.shape]
    return {"name": spec.name, "datatype": datatype_of(spec), "shape": shape}


def want_shape(name: str, given: Any) -> tuple[int, ...]:
    """A shape as a request says it.  Raises RequestError for what is none."""
    fits = isinstance(given, (list, tuple)) and len(given) <= MOST_DIMS and all(type(d) is int for d in given)
    if not fits or min(given, default=0) < 0 or math.prod(d or 1 for d in given) > MOST_ELEMENTS:
        raise RequestError(f"input {name!r}: shape: got {given!r:.80}, wanted a list of sizes")
    return tuple(given)


def dtype_of(name: str, datatype: Any) -> AnyDType:
    """What NumPy calls a datatype.  Raises RequestError for one that there is not."""
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise RequestError(f"input {name!r}: datatype: got {datatype!r:.40}, wanted one of {', '.join(DTYPES)}")
    return DTYPES[datatype]


def from_bytes(name: str, datatype: Any, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """An array over the bytes of a request, which are not copied."""
    dtype, count = dtype_of(name, datatype), math.prod(shape)
    if dtype == STRING:
        return texts(name, _elements(name, data, count), shape)
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


def texts(name: str, given: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """An array of texts, which are UTF-8 where they come as bytes."""
    try:
        found = [x if isinstance(x, str) else bytes(x).decode() for x in given]
    except (UnicodeDecodeError, TypeError) as error:
        raise RequestError(f"input {name!r}: got an element that is no text in UTF-8: {error}") from None
    made = np.empty(len(found), object)
    made[:] = found
    return made.reshape(shape)


def from_json(name: str, datatype: Any, shape: tuple[int, ...], data: Any) -> Array:
    """An array of the numbers or texts of a request, in a list, or in lists within lists."""
    dtype, count = dtype_of(name, datatype), math.prod(shape)
    flat: Any = data
    for size in shape[1:]:
        if isinstance(flat, list) and flat and all(type(x) is list for x in flat):
            if any(len(row) != size for row in flat):
                raise RequestError(f"input {name!r}: data: got lists that are not of {list(shape)}")
            flat = [x for row in flat for x in row]
    if not isinstance(flat, list) or len(flat) != count:
        got = f"{len(flat)} elements" if isinstance(flat, list) else f"{data!r:.40}"
        raise RequestError(f"input {name!r}: data: got {got}, wanted {count} for {datatype}{list(shape)}")
    if dtype == STRING:
        if not all(type(x) is str for x in flat):
            raise RequestError(f"input {name!r}: data: got what is no text, wanted texts for BYTES")
        return texts(name, flat, shape)
    wanted: tuple[type, ...] = (bool,) if dtype.kind == "b" else (int,) if dtype.kind in "iu" else (int, float)
    if not all(type(x) in wanted for x in flat):
        odd = next(x for x in flat if type(x) not in wanted)
        raise RequestError(f"input {name!r}: data: got {odd!r:.40}, wanted numbers of {datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype).reshape(shape)
    except (ArithmeticError, ValueError) as error:
        raise RequestError(f"input {name!r}: data: got a number that {datatype} does not hold: {error}") from None


def name_of(name: str, array: Array) -> str:
    """The protocol's name for what a result is of.  Raises RequestError where it has none."""
    if array.dtype not in NAMES:
        raise RequestError(f"output {name!r}: got {array.dtype}, which the protocol has no datatype for", "internal")
    return NAMES[array.dtype]


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
