"""Weights of an ONNX file are left where they are: protobuf parses what remains when they are cut out.

A protobuf parser copies every ``raw_data``, and reading it back copies it again.  Here the wire format is walked as
far as tensors lie, each large ``raw_data`` is replaced by a short ticket, and a reader that meets a ticket gets a view
of the file.  What cannot be walked is left to the parser, which knows what is wrong with it.
Source: onnx.proto for field numbers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from bolt_numba.base.files.mapped import unmapped
from bolt_numba.base.types import Array
from bolt_numba.converters.wire import BYTES, IrregularError, as_varint, fields

LEAST_PAYLOAD = 1024
"""Bytes from which a payload is cut out; messages that are smaller are not searched."""
MAX_DEPTH = 64

_RAW = "raw_data"
_INNER: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {9: _RAW},
}
"""Field numbers that lead to tensors, by kind of message."""
_NO_TENSORS = frozenset(b"\xa0\x01" + bytes([kind]) for kind in (6, 7, 8))
"""How an attribute ends that is a list of numbers or texts, which may be long: with the field 20, its type."""
_TICKET = struct.Struct("<16sQQ")
_files: dict[bytes, Array] = {}
"""Files being read, by the secret that their tickets begin with: no file can know the one it will get."""


@contextmanager
def without_payloads(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """The model's bytes with tickets in the place of large payloads; `payload` knows them until the block ends."""
    secret = os.urandom(16)
    try:
        pieces = list(_walk(memoryview(data), 0, len(data), "model", secret, 0))
    except IrregularError:
        yield data if isinstance(data, bytes) else bytes(data)
        return
    _files[secret] = np.frombuffer(data, np.uint8)
    try:
        yield b"".join(pieces)
    finally:
        del _files[secret]


def payload(raw: bytes) -> Array | None:
    """The bytes that a ticket stands for, read-only, many as a view of the file; None for what is no ticket."""
    file = _files.get(raw[:16]) if len(raw) == _TICKET.size else None
    if file is None:
        return None
    _, start, size = _TICKET.unpack(raw)
    return unmapped(file[start : start + size])


def _walk(data: memoryview, at: int, end: int, kind: str, secret: bytes, depth: int) -> Iterator[bytes | memoryview]:
    """The fields from ``at`` to ``end`` of one message, those that lead to payloads written anew."""
    if depth > MAX_DEPTH:
        raise IrregularError
    inner, kept = _INNER[kind], at
    for number, coding, start, body, size in fields(data, at, end):
        found = inner.get(number) if size >= LEAST_PAYLOAD and coding == BYTES else None
        if found is None or (found == "attribute" and bytes(data[body + size - 3 : body + size]) in _NO_TENSORS):
            continue
        yield data[kept:start]
        made = [_TICKET.pack(secret, body, size)]
        if found != _RAW:
            made = [bytes(p) for p in _walk(data, body, body + size, found, secret, depth + 1)]
        yield as_varint(number << 3 | BYTES)
        yield as_varint(sum(map(len, made)))
        yield from made
        kept = body + size
    yield data[kept:end]
