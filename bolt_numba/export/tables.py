"""Writes the tables of a native program (`export.layout`) from rows, strings and arrays that are added to them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from hashlib import blake2b

import numpy as np

from bolt_numba.base.errors import InternalError
from bolt_numba.base.files.mapped import for_kernels
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.export.layout import (
    AREAS,
    COLUMNS,
    HEADER_WORDS,
    LINE,
    MAGIC,
    PAGE,
    VERSION,
    ArrayRow,
    HeaderWord,
    ProgramFlag,
    ProgramTable,
)
from bolt_numba.kernels.extents import span

_APART = ProgramFlag.DATA_APART


class Tables:
    """Rows and bytes on their way into a block.  What is equal is there once: strings, arrays, lists of sizes."""

    def __init__(self) -> None:
        self.rows: dict[ProgramTable, list[list[int]]] = {table: [] for table in COLUMNS}
        self.areas: dict[ProgramTable, bytearray] = {table: bytearray() for table in AREAS}
        self.data: list[bytes] = []
        self._data_nbytes = 0
        self._strings: dict[str, int] = {}
        self._arrays: dict[bytes, int] = {}
        self._known: dict[int, tuple[Array, int]] = {}
        self._dims: dict[tuple[int, ...], int] = {}
        self._begins: dict[bytes, list[tuple[bytes, int]]] = {}

    def add(self, table: ProgramTable, **values: int) -> int:
        """Append a row, whose columns are named in small letters; its number."""
        columns = COLUMNS[table]
        if {name.upper() for name in values} != set(columns.__members__):
            raise InternalError(f"table {table.name}: got columns {sorted(values)}, wanted {list(columns.__members__)}")
        self.rows[table].append([int(values[column.name.lower()]) for column in columns])
        return len(self.rows[table]) - 1

    def count(self, table: ProgramTable) -> int:
        return len(self.rows[table])

    def string(self, text: str) -> int:
        """Offset of a string."""
        found = self._strings.get(text)
        if found is None:
            raw = text.replace("\0", " ").encode("utf-8", "replace")
            found = self._strings[text] = self._append(ProgramTable.STRINGS, raw + b"\0", 1)
        return found

    def code(self, raw: bytes) -> int:
        """Offset of machine code."""
        return self._append(ProgramTable.CODE, raw, LINE)

    def image(self, raw: bytes) -> int:
        """Offset of an image."""
        return self._append(ProgramTable.IMAGES, raw, LINE)

    def _append(self, table: ProgramTable, raw: bytes, align: int) -> int:
        area = self.areas[table]
        area += bytes(-len(area) % align)
        area += raw
        return len(area) - len(raw)

    def dims(self, sizes: Iterable[int]) -> int:
        """Where a list of sizes begins."""
        wanted = tuple(sizes)
        found = self._dims.get(wanted)
        if found is None:
            found = self._dims[wanted] = self.count(ProgramTable.DIMS)
            for size in wanted:
                self.add(ProgramTable.DIMS, size=size)
        return found

    def array(self, array: Array) -> int:
        """Number of an array, with all bytes that it lies on."""
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        before, nbytes = span(array)
        raw = array.tobytes() if array.flags.c_contiguous else _bytes_at(array, before, nbytes)
        key = blake2b(raw + before.to_bytes(8, "little"), digest_size=20).digest()
        number = self._arrays.get(key)
        if number is None:
            gap = bytes(-self._data_nbytes % LINE)
            offset = self._data_nbytes + len(gap)
            self.data += [gap, raw]
            self._data_nbytes = offset + len(raw)
            number = self._arrays[key] = self.add(ProgramTable.ARRAYS, offset=offset + before, nbytes=len(raw) - before)
        self._known[id(array)] = array, number
        return number

    def table(self, array: Array) -> int:
        """Number of an array that kernels read from its beginning; it may be the beginning of one that is longer."""
        given = for_kernels(array)
        if not given.flags.c_contiguous or given.nbytes < LINE:
            return self.array(given)
        raw = given.tobytes()
        longer = self._begins.setdefault(raw[:LINE], [])
        for other, number in longer:
            if other.startswith(raw) and len(other) > len(raw):
                offset = self.rows[ProgramTable.ARRAYS][number][ArrayRow.OFFSET]
                return self.add(ProgramTable.ARRAYS, offset=offset, nbytes=len(raw))
        number = self.array(given)
        longer.append((raw, number))
        return number

    def block(self, level: str, features: str, name: str, producer: str, flags: int = 0) -> ProgramBlock:
        """The program of all that was added."""
        words = [0] * HEADER_WORDS
        texts = {
            HeaderWord.LEVEL: level, HeaderWord.FEATURES: features, HeaderWord.NAME: name,
            HeaderWord.PRODUCER: producer,
        }  # fmt: skip
        for word, text in texts.items():
            words[word] = self.string(text)
        words[HeaderWord.FLAGS], words[HeaderWord.TABLES] = flags, len(ProgramTable)
        parts: list[bytes] = []
        at = 8 * HEADER_WORDS
        for table in ProgramTable:
            raw, rows = self._content(table)
            apart = table is ProgramTable.DATA and flags & _APART
            align = PAGE if table in (ProgramTable.CODE, ProgramTable.DATA) else LINE
            gap = 0 if apart else -at % align
            place = HeaderWord.FIRST_TABLE + 2 * table
            words[place : place + 2] = [0 if apart else at + gap, rows]
            if not apart:
                parts += [bytes(gap), *raw]
                at += gap + sum(map(len, raw))
        parts.append(bytes(-at % LINE))
        return ProgramBlock(_finished(words, parts, self.data, at + len(parts[-1])), self.data)

    def _content(self, table: ProgramTable) -> tuple[list[bytes], int]:
        """Bytes of a table, and what the header says of how many rows it has."""
        if table is ProgramTable.DATA:
            return self.data, self._data_nbytes
        if table in AREAS:
            return [bytes(self.areas[table])], len(self.areas[table])
        rows = np.array(self.rows[table], "<i8").reshape(-1, len(COLUMNS[table]))
        return [rows.tobytes()], len(rows)


def _finished(words: list[int], parts: list[bytes], data: list[bytes], nbytes: int) -> list[bytes]:
    """All bytes, with sizes and checksums in the header."""
    own = set(map(id, data))
    words[HeaderWord.MAGIC], words[HeaderWord.VERSION], words[HeaderWord.BYTES] = MAGIC, VERSION, nbytes
    words[HeaderWord.DATA_CRC] = _crc(data)
    rest = _words(words)[8 * HeaderWord.FLAGS :]
    words[HeaderWord.CRC] = _crc([rest, *(part for part in parts if id(part) not in own)])
    return [_words(words), *parts]


def _words(words: Sequence[int]) -> bytes:
    return np.array(words, "<u8").astype("<i8").tobytes()


def _crc(parts: Iterable[bytes]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def _bytes_at(array: Array, before: int, nbytes: int) -> bytes:
    """All bytes that an array lies on, those between its elements, too."""
    import ctypes

    return ctypes.string_at(array.ctypes.data - before, nbytes)


@record(eq=False)
class ProgramBlock:
    """A native program as bytes, piece by piece: what is large is not copied.

    data: the bytes of the table DATA, for where they stand apart.
    """

    parts: list[bytes]
    data: list[bytes]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.parts))

    def tobytes(self) -> bytes:
        return b"".join(self.parts)


def rows_of(block: bytes, table: ProgramTable) -> Iterator[Sequence[int]]:
    """Rows of a table of a block, for looking at."""
    place = HeaderWord.FIRST_TABLE + 2 * table
    at, rows = np.frombuffer(block, "<i8", 2, 8 * place).tolist()
    columns: type[IntEnum] = COLUMNS[table]
    yield from np.frombuffer(block, "<i8", rows * len(columns), at).reshape(rows, len(columns)).tolist()
