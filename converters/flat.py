"""FlatBuffers without generated code: tables as dictionaries, after a description of their fields.

Every offset and every length is held against the file before it is followed.  Vectors of numbers are views of it.
Source: FlatBuffers' description of its binary format.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.converters.bounded import text_of

Table: TypeAlias = dict[str, Any]
_CODES = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f",
          "f8": "d"}  # fmt: skip
SLACK = 4096
"""Objects that a file may hold beyond one for each of its bytes."""


@record(frozen=True)
class FlatField:
    """A field of a table.

    kind: a NumPy code of a number, "str", the name of a table, or "?" and the name of a union.  vector: whether it
    holds many.  names: of the numbers, where they are an enumeration.
    """

    name: str
    kind: str
    default: Any = None
    vector: bool = False
    names: tuple[str, ...] = ()


class FlatBuffer:
    """A file of FlatBuffers, and how to read its tables.

    fields: of each table, in the order of their places.  unions: names of a union's tables by number.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        fields: Mapping[str, Sequence[FlatField | None]],
        unions: Mapping[str, Sequence[str]],
        file: str,
    ) -> None:
        self.data, self.fields, self.unions, self.file = memoryview(data), fields, unions, file
        self.bytes: Array = np.frombuffer(data, np.uint8)
        self._left = len(self.data) + SLACK

    def root(self, kind: str) -> Table:
        """The table of which the file is made."""
        return self.table(self._number("<I", 0), kind)

    def table(self, at: int, kind: str) -> Table:
        """A table by its place; fields that it lacks have their defaults, a union's table is beside its kind."""
        places = self._places(at)
        found: Table = {}
        number = 0
        for place, field in enumerate(self.fields[kind]):
            if field is None:
                continue
            offset = places[place] if place < len(places) else 0
            found[field.name] = field.default if not offset else self._field(at + offset, field, number)
            if field.kind == "u1":
                number = found[field.name]  # of the union that follows, if one does
        return found

    def strings(self, at: int) -> list[str]:
        """A vector of texts by its place."""
        return [self._text(self._follow(place)) for place in self._elements(at)]

    def _fail(self, what: str, got: object, wanted: str) -> InvalidModelError:
        return InvalidModelError(f"{self.file}: {what}: got {got}, wanted {wanted}")

    def _number(self, code: str, at: int) -> Any:
        size = struct.calcsize(code)
        if not 0 <= at <= len(self.data) - size:
            raise self._fail("offset", at, f"one within {len(self.data)} bytes: the file is cut off or damaged")
        return struct.unpack_from(code, self.data, at)[0]

    def _follow(self, at: int) -> int:
        """Where the offset at a place leads."""
        return int(at + self._number("<I", at))

    def _places(self, at: int) -> tuple[int, ...]:
        """Where the fields of a table are, counted from it; 0 for one that it lacks."""
        self._count(1)
        start = at - self._number("<i", at)
        size = self._number("<H", start)
        if size < 4 or size % 2 or start + size > len(self.data):
            raise self._fail("size of a vtable", size, "an even one within the file")
        return struct.unpack_from(f"<{size // 2 - 2}H", self.data, start + 4)

    def _count(self, objects: int) -> None:
        """Objects may be shared, but not so that a small file holds many."""
        self._left -= objects
        if self._left < 0:
            raise self._fail("objects", "more than bytes", "a file that does not repeat itself")

    def _field(self, at: int, field: FlatField, number: int) -> Any:
        if field.kind.startswith("?"):
            names = self.unions[field.kind[1:]]
            if not number or number >= len(names):
                return None
            return (names[number], self.table(self._follow(at), names[number]))
        if field.kind in _CODES:
            if field.vector:
                return self._numbers(self._follow(at), field.kind)
            value = self._number(f"<{_CODES[field.kind]}", at)
            return self._named(value, field.names)
        there = self._follow(at)
        if field.kind == "str":
            return self._text(there)
        if not field.vector:
            return self.table(there, field.kind)
        return [self.table(self._follow(place), field.kind) for place in self._elements(there)]

    def _named(self, value: Any, names: tuple[str, ...]) -> Any:
        if not names:
            return value
        return names[value] if 0 <= value < len(names) else str(value)

    def _vector(self, at: int, itemsize: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        count = self._number("<I", at)
        if count * itemsize > len(self.data) - at - 4:
            raise self._fail("length of a vector", count, f"at most {(len(self.data) - at - 4) // itemsize}")
        return at + 4, count

    def _elements(self, at: int) -> range:
        start, count = self._vector(at, 4)
        self._count(count)
        return range(start, start + 4 * count, 4)

    def _numbers(self, at: int, kind: str) -> Array:
        start, count = self._vector(at, int(kind[1]))
        found: Array = np.frombuffer(self.data, f"<{kind}" if kind != "b1" else "u1", count, start)
        return found != 0 if kind == "b1" else found

    def _text(self, at: int) -> str:
        start, count = self._vector(at, 1)
        self._count(1)
        return text_of(bytes(self.data[start : start + count]), f"{self.file}: text")
