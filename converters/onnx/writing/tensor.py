"""Arrays as ONNX tensors: inside the model, or in a file beside it that is written as they come."""

from __future__ import annotations

import hashlib
from typing import IO, Any

import numpy as np
import onnx

from bolt_numba.base.types import STRING, Array
from bolt_numba.converters.bounded import BITS, nbytes_of
from bolt_numba.converters.onnx.types import CODES

EXTERNAL = 1024
"""Bytes from which a weight goes into the file beside the model."""
PAGE, LINE = 4096, 64
"""Alignment of external weights: large ones can be mapped, small ones need only their cache line."""
REPEATED = 1024
"""Bytes from which a constant that repeats itself along an axis is stored once."""


def stored(array: Array) -> Any:
    """Bytes of the elements as ``raw_data`` wants them: little-endian, narrow ones packed from the lowest bits on."""
    bits = BITS.get(array.dtype, 8)
    flat = np.ascontiguousarray(array).reshape(-1)
    if bits == 8:
        little: Array = flat if flat.dtype.isnative else flat.astype(flat.dtype.newbyteorder("<"))
        return little.view(np.uint8).data
    codes = flat.astype(np.int8).view(np.uint8) if "int" in array.dtype.name else flat.view(np.uint8)
    each = 8 // bits
    codes = np.concatenate([codes, np.zeros(-codes.size % each, np.uint8)]) & np.uint8((1 << bits) - 1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(codes.reshape(-1, each) << shifts, axis=1).astype(np.uint8).data


def tensor_of(array: Array, name: str = "") -> onnx.TensorProto:
    """A tensor that holds its elements."""
    made = onnx.TensorProto(name=name, data_type=CODES[array.dtype], dims=array.shape)
    if array.dtype == STRING:
        texts = array.reshape(-1).tolist()
        made.string_data.extend(t if isinstance(t, bytes) else str(t).encode() for t in texts)
    else:
        made.raw_data = bytes(stored(array))
    return made


def digest_of(array: Array) -> tuple[Any, ...]:
    """What two arrays of equal content have in common."""
    if array.dtype == STRING:
        return array.dtype, array.shape, tuple(array.reshape(-1).tolist())
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return array.dtype, array.shape, hashlib.blake2b(content.data, digest_size=16).digest()


class Weights:
    """Makes the tensors of one model.

    file: where large ones are written as they come, under the name ``location``; None keeps them in the model.
    apart: takes the large ones by name, where the caller hands them to the engine itself.  least: bytes of a large one.
    """

    def __init__(
        self,
        file: IO[bytes] | None = None,
        location: str = "",
        apart: dict[str, Array] | None = None,
        least: int = EXTERNAL,
    ) -> None:
        self.file, self.location, self.apart, self.least = file, location, apart, least
        self.nbytes = 0

    def tensor(self, array: Array, name: str) -> onnx.TensorProto:
        """The tensor of an array, inside the model or outside."""
        if self.apart is not None and array.dtype.kind in "fiu" and array.nbytes >= self.least:
            self.apart[name] = np.ascontiguousarray(array)
            return _outside(array, name, self.location, 0)
        if self.file is None or array.dtype == STRING or array.nbytes < self.least:
            return tensor_of(array, name)
        align = PAGE if array.nbytes >= 1 << 20 else LINE
        gap = -self.nbytes % align
        raw = stored(array)
        self.file.write(b"\0" * gap)
        self.file.write(raw)
        made = _outside(array, name, self.location, self.nbytes + gap)
        self.nbytes += gap + len(raw)
        return made


def _outside(array: Array, name: str, location: str, offset: int) -> onnx.TensorProto:
    """A tensor whose elements stand elsewhere."""
    made = onnx.TensorProto(name=name, data_type=CODES[array.dtype], dims=array.shape)
    made.data_location = onnx.TensorProto.EXTERNAL
    place = {"location": location, "offset": str(offset), "length": str(nbytes_of(array.dtype, array.shape))}
    for key, value in place.items():
        made.external_data.add(key=key, value=value)
    return made


def repeated(array: Array) -> Array | None:
    """The part of a broadcast array that is really stored; None when that saves nothing to speak of."""
    if array.nbytes < REPEATED or array.dtype == STRING:
        return None
    axes = zip(array.shape, array.strides, strict=True)
    small = array[tuple(slice(0, 1) if not stride and n > 1 else slice(None) for n, stride in axes)]
    return small if small.nbytes * 2 <= array.nbytes else None
