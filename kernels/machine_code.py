"""Machine code that needs no linker: object files made into blobs that run wherever they are put.

A kernel's object file has code, read-only data that the code reaches by its own address, and calls of a few C
functions.  Laid out once, when it is compiled, only the addresses of those functions are left to fill in, so that a
later process neither links nor imports LLVM.  Objects of another kind (other processors, other formats) have no blob;
LLVM loads them.  Source: System V ABI, AMD64 supplement, for the relocations; the ELF specification for the rest.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from typing import NamedTuple

_HEADER = struct.Struct("<8sIIII")
_MAGIC = b"BNIMAGE1"
_CALL = struct.Struct("<I28s")
STUB = b"\xff\x25\x00\x00\x00\x00"
"""``jmp [rip]``: jumps to the address in the 8 bytes that follow."""
_X86_64, _PC32, _PLT32 = 62, 2, 4
_PROGBITS, _SYMBOLS, _RELA = 1, 2, 4
_WRITE, _ALLOC = 1, 2


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _UnsuitableError(Exception):
    """The object holds what blobs cannot."""


def blob_of(code: bytes, symbol: str) -> bytes | None:
    """The blob of an object file that defines the function ``symbol``; None where it cannot be made."""
    try:
        return _Object(code).blob(symbol)
    except (_UnsuitableError, KeyError, IndexError, ValueError, struct.error):
        return None


class _Object:
    """An object file on its way to a blob.  Variables and unwind tables are left out: no kernel refers to them."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", code, 18)[0] != _X86_64:
            raise _UnsuitableError
        (start,) = struct.unpack_from("<Q", code, 40)
        _, count, _ = struct.unpack_from("<HHH", code, 58)
        self.sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i)) for i in range(count)]
        self.places: dict[int, int] = {}
        self.made = bytearray()
        self.calls: dict[str, int] = {}

    def blob(self, symbol: str) -> bytes:
        for index, section in enumerate(self.sections):
            if section.flags & _ALLOC and section.size and section.kind == _PROGBITS:
                self._place(index, section)
        for section in self.sections:
            if section.kind == _RELA and section.info in self.places:
                self._relocate(section)
        head = _HEADER.pack(_MAGIC, len(self.made), len(self.calls), self._entry(symbol), 0)
        calls = b"".join(_CALL.pack(at, name.encode()) for name, at in self.calls.items())
        return head + calls + bytes(self.made)

    def _place(self, index: int, section: _Section) -> None:
        if section.flags & _WRITE or section.align > mmap.PAGESIZE:
            raise _UnsuitableError
        self.made += bytes(-len(self.made) % max(section.align, 1))
        self.places[index] = len(self.made)
        self.made += self.code[section.offset : section.offset + section.size]

    def _symbol(self, table: _Section, index: int) -> tuple[str, int, int]:
        """Name, section (0: it is elsewhere) and offset in it."""
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.code, table.offset + 24 * index)
        start = self.sections[table.link].offset + name
        return self.code[start : self.code.index(b"\0", start)].decode(), section, value

    def _entry(self, symbol: str) -> int:
        for table in (s for s in self.sections if s.kind == _SYMBOLS):
            for index in range(table.size // table.entry):
                name, section, value = self._symbol(table, index)
                if name == symbol and section in self.places:
                    return self.places[section] + value
        raise _UnsuitableError

    def _relocate(self, rows: _Section) -> None:
        for at in range(rows.offset, rows.offset + rows.size, 24):
            offset, info, addend = struct.unpack_from("<QQq", self.code, at)
            name, section, value = self._symbol(self.sections[rows.link], info >> 32)
            kind, place = info & 0xFFFFFFFF, self.places[rows.info] + offset
            if kind not in (_PC32, _PLT32) or (section == 0 and kind != _PLT32):
                raise _UnsuitableError
            target = self._stub(name) if section == 0 else self.places[section] + value
            struct.pack_into("<i", self.made, place, target + addend - place)

    def _stub(self, name: str) -> int:
        """Where a call of a C function goes: a jump through an address that loading fills in."""
        if name not in self.calls:
            if len(name) > 27:
                raise _UnsuitableError
            self.made += bytes(-len(self.made) % 16) + STUB
            self.calls[name] = len(self.made)
            self.made += bytes(8)
        return self.calls[name] - len(STUB)


def is_blob(data: bytes) -> bool:
    """Whether these are the bytes of a blob, not of an object file."""
    return data.startswith(_MAGIC)


def calls_of(data: bytes) -> list[tuple[int, str]]:
    """The C functions that a blob calls, each with where its address goes."""
    rows = (_CALL.unpack_from(data, _HEADER.size + i * _CALL.size) for i in range(_HEADER.unpack_from(data)[2]))
    return [(at, name.rstrip(b"\0").decode()) for at, name in rows]


class BlobParts(NamedTuple):
    """code: runs wherever it is put, at a multiple of 64.  entry: where the function begins.

    calls: of C functions, each with where its address goes (8 bytes).
    """

    code: bytes
    entry: int
    calls: list[tuple[int, str]]


def blob_parts(data: bytes) -> BlobParts | None:
    """What a blob holds; None for what is none."""
    if not is_blob(data):
        return None
    _, _, count, entry, _ = _HEADER.unpack_from(data)
    return BlobParts(data[_HEADER.size + count * _CALL.size :], entry, calls_of(data))


def load_blob(data: bytes) -> int:
    """Address of the function, made executable now; it stays so until the process ends, threads and all.

    Raises OSError where the system refuses, or a C function that is called does not exist.
    """
    _, size, count, entry, _ = _HEADER.unpack_from(data)
    made = bytearray(data[_HEADER.size + count * _CALL.size :])
    if len(made) != size:
        raise OSError("blob: its size is wrong")
    for at, name in calls_of(data):
        struct.pack_into("<Q", made, at, _function(name))
    library = _library(None)
    writable, executable = mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_EXEC
    address = library.mmap(None, size, writable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "blob: no memory")
    ctypes.memmove(address, bytes(made), size)
    if library.mprotect(address, size, executable):
        raise OSError(ctypes.get_errno(), "blob: cannot be made executable")
    return int(address + entry)


@functools.cache
def _library(name: str | None) -> ctypes.CDLL:
    made = ctypes.CDLL(name, use_errno=True)
    if name is None:
        word, address = ctypes.c_size_t, ctypes.c_void_p
        made.mmap.restype = address
        made.mmap.argtypes = (address, word, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        made.mprotect.argtypes = (address, word, ctypes.c_int)
    return made


@functools.cache
def _function(name: str) -> int:
    """Address of a function of the C library or of the one for mathematics."""
    for library in (None, "libm.so.6"):
        try:
            return ctypes.cast(getattr(_library(library), name), ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    raise OSError(f"blob: no C function {name}")
