"""FlexBuffers, in which custom operators keep their options, as Python values.

The root stands at the end.  A value is a number in its place, or how far before it the content is; its type says which,
and how wide the numbers of the content are.  Source: FlexBuffers' description of its binary format.
"""

from __future__ import annotations

import struct
from typing import Any

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.bounded import text_of

MAX_DEPTH = 16
_SIGNED = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_UNSIGNED = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING, _MAP, _VECTOR, _BLOB, _BOOL = 0, 1, 2, 3, 4, 5, 9, 10, 25, 26
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
_TYPED = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 15: _STRING, 36: _BOOL}
_FIXED = {16 + i: ((_INT, _UINT, _FLOAT)[i % 3], 2 + i // 3) for i in range(9)}
"""Vectors of 2 to 4 numbers, without a length."""


def flex_value(data: bytes, what: str) -> Any:
    """The root: a dictionary, list, number, text or bytes; of no bytes an empty dictionary.

    Raises InvalidModelError for places outside the data, deep nesting, and more values than bytes.
    """
    if not data:
        return {}
    return _Flex(data, what).root()


class _Flex:
    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.left = data, what, len(data)

    def fail(self, what: str) -> InvalidModelError:
        return InvalidModelError(f"{self.what}: options: got {what}, wanted a FlexBuffer")

    def root(self) -> Any:
        if len(self.data) < 3:
            raise self.fail(f"{len(self.data)} bytes")
        width = self.data[-1]
        return self.value(len(self.data) - 2 - width, width, self.data[-2], 0)

    def number(self, at: int, width: int, codes: dict[int, str]) -> Any:
        if width not in codes or not 0 <= at <= len(self.data) - width:
            raise self.fail(f"a number of {width} bytes at {at}")
        return struct.unpack_from(codes[width], self.data, at)[0]

    def follow(self, at: int, width: int) -> int:
        return int(at - self.number(at, width, _UNSIGNED))

    def value(self, at: int, width: int, packed: int, depth: int) -> Any:
        """The value at a place, whose slot is ``width`` bytes wide."""
        self.left -= 1
        if depth > MAX_DEPTH or self.left < 0:
            raise self.fail("values that are too deep or too many")
        kind, inner = packed >> 2, 1 << (packed & 3)
        if kind == _NULL:
            return None
        if kind in (_INT, _UINT, _FLOAT, _BOOL):
            return self.plain(at, width, kind)
        there = self.follow(at, width)
        if kind in _INDIRECT:
            return self.plain(there, inner, _INDIRECT[kind])
        if kind == _KEY:
            return self.key(there)
        if kind in (_STRING, _BLOB):
            found = self.slice(there, int(self.number(there - inner, inner, _UNSIGNED)))
            return text_of(found, self.what) if kind == _STRING else found
        return self.many(there, kind, inner, depth)

    def plain(self, at: int, width: int, kind: int) -> Any:
        if kind == _BOOL:
            return bool(self.number(at, width, _UNSIGNED))
        return self.number(at, width, {_INT: _SIGNED, _UINT: _UNSIGNED, _FLOAT: _FLOATS}[kind])

    def slice(self, at: int, size: int) -> bytes:
        if not 0 <= at <= len(self.data) - size:
            raise self.fail(f"{size} bytes at {at}")
        return self.data[at : at + size]

    def key(self, at: int) -> str:
        end = self.data.find(b"\0", max(at, 0))
        if at < 0 or end < 0:
            raise self.fail(f"a key at {at}")
        return text_of(self.data[at:end], self.what)

    def many(self, at: int, kind: int, width: int, depth: int) -> Any:
        """A vector or a map, whose elements begin at a place."""
        if kind in _FIXED:
            inner, count = _FIXED[kind]
            return [self.plain(at + i * width, width, inner) for i in range(count)]
        count = int(self.number(at - width, width, _UNSIGNED))
        if count * width > len(self.data) - at:
            raise self.fail(f"{count} elements")
        places = range(at, at + count * width, width)
        if kind in _TYPED:
            packed = _TYPED[kind] << 2
            return [self.value(place, width, packed, depth + 1) for place in places]
        if kind not in (_VECTOR, _MAP):
            raise self.fail(f"type {kind}")
        kinds = self.slice(at + count * width, count)
        values = [self.value(place, width, packed, depth + 1) for place, packed in zip(places, kinds, strict=True)]
        if kind == _VECTOR:
            return values
        keys = self.follow(at - 3 * width, width)
        step = int(self.number(at - 2 * width, width, _UNSIGNED))
        names = [self.key(self.follow(keys + i * step, step)) for i in range(count)]
        return dict(zip(names, values, strict=True))
