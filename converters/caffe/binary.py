"""A caffemodel by its wire format: weights of all layers as views of the file, and, where asked, the net itself."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, Array
from bolt_numba.converters.bounded import text_of
from bolt_numba.converters.caffe.fields import NUMBERED, NUMBERED_V1, fields_of, parameters_of
from bolt_numba.converters.caffe.legacy import V1_TYPES
from bolt_numba.converters.caffe.message import Message
from bolt_numba.converters.wire import BYTES, IrregularError, fields, varint, what_is_wrong

MAX_DEPTH = 16
"""Messages inside each other."""
MAX_DIMS = 32
MAX_LIST = 1 << 20
"""Bytes of packed numbers that become a list: pads, ratios, sizes."""

_LAYERS = {100: ("layer", 1, 7), 2: ("v1", 4, 6)}
"""Fields of a net that are layers: kind of message, numbers of the name and of the blobs."""
_BLOBS_OF_V0, _V0 = 50, 1
_FLOAT, _DOUBLE = 5, 8
_SIZES = (1, 2, 3, 4)


@record(frozen=True)
class Blob:
    """Numbers of a layer.  shape: as the file says; empty for a scalar, four sizes where it is old."""

    shape: tuple[int, ...]
    data: Array

    def to_shape(self, shape: tuple[int, ...], what: str) -> Array:
        """The numbers in another shape of as many elements, one of whose sizes may be -1."""
        known = -int(np.prod([d for d in shape if d != -1], dtype=object))
        fits = self.data.size == -known if -1 not in shape else (known and self.data.size % -known == 0)
        if not fits:
            raise InvalidModelError(f"{what}: got {list(self.shape)} of {self.data.size} numbers, wanted {list(shape)}")
        return self.data.reshape(shape)


def read_weights(data: bytes | memoryview, file: str) -> dict[str, list[Blob]]:
    """Blobs by the name of their layer; those of nets of all ages.  Raises InvalidModelError."""
    view, made = memoryview(data), dict[str, list[Blob]]()
    if bytes(view[:4]) == b"\x89HDF":
        raise InvalidModelError(f"{file}: got an HDF5 file, wanted weights as protobuf (snapshot_format: BINARYPROTO)")
    try:
        for number, kind, _, at, size in fields(view, 0, len(view)):
            if kind == BYTES and number in _LAYERS:
                _, name_at, blobs_at = _LAYERS[number]
                name, blobs = _blobs_of(view, at, at + size, name_at, blobs_at, file)
                if blobs:
                    made[name] = blobs
    except IrregularError:
        raise InvalidModelError(f"{file}: got {what_is_wrong(view)}, wanted a caffemodel") from None
    return made


def _blobs_of(view: memoryview, begin: int, end: int, name_at: int, blobs_at: int, file: str) -> tuple[str, list[Blob]]:
    name, blobs = "", list[Blob]()
    for number, kind, _, at, size in fields(view, begin, end):
        if kind != BYTES:
            continue
        if number == name_at:
            name = text_of(bytes(view[at : at + size]), f"{file}: name of a layer")
        elif number == blobs_at:
            blobs.append(read_blob(view, at, at + size, f"{file}: blob {len(blobs)} of layer '{name}'"))
        elif number == _V0 and name_at != _V0:
            name, blobs = _blobs_of(view, at, at + size, _V0, _BLOBS_OF_V0, file)
    return name, blobs


def read_blob(view: memoryview, begin: int, end: int, what: str) -> Blob:
    """One BlobProto, whose packed numbers stay where they are."""
    shape: tuple[int, ...] | None = None
    old = dict.fromkeys(_SIZES, 0)
    parts: list[Array] = []
    single: dict[int, bytearray] = {_FLOAT: bytearray(), _DOUBLE: bytearray()}
    for number, kind, _, at, size in fields(view, begin, end):
        if number == 7 and kind == BYTES:
            _want_short(size, 64 * MAX_DIMS, f"{what}: shape")
            shape = tuple(_integers(view, at, at + size, 1))
        elif number in old and kind == 0:
            old[number] = _signed(varint(view, at, end)[0])
        elif number in single:
            dtype = np.dtype("<f4") if number == _FLOAT else np.dtype("<f8")
            if kind == BYTES and size % dtype.itemsize == 0:
                parts.append(np.frombuffer(view[at : at + size], dtype))
            elif kind == (5 if number == _FLOAT else 1):
                single[number] += view[at : at + size]
            else:
                raise InvalidModelError(f"{what}: data: got {size} bytes, wanted numbers of {dtype.itemsize}")
    parts += [np.frombuffer(bytes(v), "<f4" if k == _FLOAT else "<f8") for k, v in single.items() if v]
    data = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros(0, F32)
    if shape is None:
        shape = tuple(old.values()) if any(old.values()) else (() if data.size == 1 else (data.size,))
    if len(shape) > MAX_DIMS or any(d < 0 for d in shape) or int(np.prod(shape, dtype=object)) != data.size:
        raise InvalidModelError(f"{what}: got {data.size} numbers, wanted those of {list(shape)[:MAX_DIMS]}")
    return Blob(shape, data.astype(F32, copy=False))


def _want_short(size: int, most: int, what: str) -> None:
    if size > most:
        raise InvalidModelError(f"{what}: got {size} bytes of numbers, wanted at most {most}")


def _integers(view: memoryview, begin: int, end: int, wanted: int) -> list[int]:
    """The integers of a field, packed or one by one."""
    made: list[int] = []
    for number, kind, _, at, size in fields(view, begin, end):
        if number == wanted and kind in (0, BYTES):
            made += _packed(view, at, at + size)
    return made


def _packed(view: memoryview, at: int, end: int) -> list[int]:
    made = []
    while at < end:
        value, at = varint(view, at, end)
        made.append(_signed(value))
    return made


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def read_net(data: bytes | memoryview, file: str) -> Message:
    """The net that a caffemodel describes, as its text would.  Raises InvalidModelError."""
    try:
        return _message(memoryview(data), 0, len(data), "net", file, 0)
    except IrregularError:
        raise InvalidModelError(f"{file}: got {what_is_wrong(data)}, wanted a caffemodel") from None


def _message(view: memoryview, begin: int, end: int, what: str, file: str, depth: int) -> Message:
    if depth > MAX_DEPTH:
        raise InvalidModelError(f"{file}: got messages inside each other, wanted at most {MAX_DEPTH}")
    names = _own_parameters(view, begin, end, what) if what in ("layer", "v1") else fields_of(what)
    made: Message = {}
    for number, kind, _, at, size in fields(view, begin, end):
        found = names.get(number)
        if found is None:
            if what not in ("net", "layer", "v1", "v0"):
                made[f"field {number}"] = ["of an unknown name"]
            continue
        name, inner = found
        values = made.setdefault(name, [])
        if kind != BYTES:
            values.append(_scalar(view, at, kind))
        elif inner == "i":
            _want_short(size, MAX_LIST, f"{file}: {name}")
            values += _packed(view, at, at + size)
        elif inner == "f":
            _want_short(size, MAX_LIST, f"{file}: {name}")
            values += _floats(view[at : at + size], file)
        elif inner:
            values.append(_message(view, at, at + size, inner, file, depth + 1))
        else:
            values.append(text_of(bytes(view[at : at + size]), f"{file}: {name}"))
    return made


def _own_parameters(view: memoryview, begin: int, end: int, what: str) -> dict[int, tuple[str, str]]:
    """The fields of a layer; its own parameters are what its type calls them, whatever their number is.

    Where the usual number is there, fields of other numbers are a fork's additions, and are left out.
    """
    type_at, table = (2, NUMBERED) if what == "layer" else (5, NUMBERED_V1)
    names = dict(fields_of(what))
    kind_of: str | None = None
    others = []
    for number, kind, _, at, size in fields(view, begin, end):
        if number == type_at:
            kind_of = (
                text_of(bytes(view[at : at + size]), "type of a layer")
                if kind == BYTES
                else V1_TYPES.get(varint(view, at, end)[0])
            )
        elif kind == BYTES and number not in names and (number > 101 if what == "layer" else number in table):
            others.append(number)
    own = None if kind_of is None else parameters_of(kind_of)
    usually = own in map(table.get, others)
    for number in others:
        usual = table.get(number)
        message = usual if usual is not None and (own is None or usual == own) else None if usually else own
        if message is not None:
            names[number] = f"{message}_param", message
    return names


def _scalar(view: memoryview, at: int, kind: int) -> Any:
    if kind == 0:
        return _signed(varint(view, at, len(view))[0])
    return struct.unpack_from("<f" if kind == 5 else "<d", view, at)[0]


def _floats(raw: memoryview, file: str) -> list[float]:
    if len(raw) % 4:
        raise InvalidModelError(f"{file}: got {len(raw)} bytes, wanted packed floats")
    made: list[float] = np.frombuffer(raw, "<f4").tolist()
    return made
