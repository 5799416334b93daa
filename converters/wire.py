"""The fields of protobuf messages without their schema, for what a parser would copy or does not know.

Source: protobuf's encoding guide.
"""

from __future__ import annotations

from collections.abc import Iterator

BYTES = 2
"""Kind of a field that holds bytes: texts, messages, packed numbers."""
MAX_FIELD = 1000
"""Numbers of fields that models have."""
MAX_SIZE = 1 << 31
"""Bytes of a message, at most."""
_FIXED = {1: 8, 5: 4}


class IrregularError(Exception):
    """The bytes are not the fields of a message."""


def fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields from ``at`` to ``end``: number, kind, where the field begins, where its content begins, its size.

    The content of a number is what `varint` reads.  Raises IrregularError where a field reaches beyond ``end``.
    """
    while at < end:
        tag, body = varint(data, at, end)
        kind = tag & 7
        if kind == BYTES:
            size, body = varint(data, body, end)
        elif kind == 0:
            size = varint(data, body, end)[1] - body
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise IrregularError
        if body + size > end:
            raise IrregularError
        yield tag >> 3, kind, at, body, size
        at = body + size


def what_is_wrong(data: bytes | memoryview) -> str:
    """What bytes are that a parser refuses: the beginning of a message, or none."""
    view, at = memoryview(data), 0
    try:
        for _, _, _, body, size in fields(view, 0, len(view)):
            at = body + size
    except IrregularError:
        pass
    missing = _missing(view, at)
    if missing:
        return f"{len(view)} bytes of a file that is cut off, at least {missing} are missing"
    return f"{len(view)} bytes that are no protobuf"


def _missing(data: memoryview, at: int) -> int:
    """Bytes by which the field at ``at`` reaches beyond the end, where it seems to be one; else 0."""
    try:
        tag, body = varint(data, at, len(data))
        if tag & 7 != BYTES or not 0 < tag >> 3 < MAX_FIELD:
            return 0
        size, body = varint(data, body, len(data))
    except IrregularError:
        return 0
    return max(0, body + size - len(data)) if size < MAX_SIZE else 0


def varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at ``at`` and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IrregularError


def as_varint(value: int) -> bytes:
    """The bytes of a number."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
