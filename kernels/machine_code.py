"""Machine code that needs no linker: object files made into blobs that run wherever they are put.

A kernel's object file has code, read-only data that the code reaches by its own address, and calls of a few C
functions.  Laid out once, when it is compiled, only the addresses of those functions are left to fill in, so that a
later process neither links nor imports LLVM.  Objects of another kind (other processors, other formats) have no blob;
LLVM loads them.  Sources: System V ABI, AMD64 supplement, and ELF for the Arm 64-bit Architecture, for the relocations;
the ELF specification for the rest.

A blob may stand at any multiple of 64 bytes.  On AArch64 the compiler reaches data by ``adrp``, which counts in pages
of 4096 bytes, and the rest of an address by the instruction behind it.  Here ``adrp`` becomes ``adr``: it gives the
place in the blob that is a multiple of 4096 and not above the data.  The rest then is right wherever the blob stands.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from collections.abc import Callable, Sequence

from bolt_numba.base.records import record
from bolt_numba.kernels.instructions.isa import on_x86

_HEADER = struct.Struct("<8sIIII")
_MAGIC = b"BNIMAGE1"
_CALL = struct.Struct("<I28s")
X86_64, AARCH64 = 62, 183
"""Processors, by ELF's numbers."""
_PAGE, _LINE = 4096, 64
_UNWIND = ".eh_frame"
_PROGBITS, _SYMBOLS, _RELA = 1, 2, 4
_WRITE, _ALLOC = 1, 2


@record(frozen=True)
class _ElfSection:
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
        (self.machine,) = struct.unpack_from("<H", code, 18)
        if code[:6] != b"\x7fELF\x02\x01" or self.machine not in _PATCHES:
            raise _UnsuitableError
        (start,) = struct.unpack_from("<Q", code, 40)
        _, count, names = struct.unpack_from("<HHH", code, 58)
        self.sections = [_ElfSection(*struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i)) for i in range(count)]
        self.names = self.sections[names].offset
        self.stub = STUBS[self.machine]
        self.places: dict[int, int] = {}
        self.made = bytearray()
        self.calls: dict[str, int] = {}

    def blob(self, symbol: str) -> bytes:
        for index, section in enumerate(self.sections):
            is_code = section.flags & _ALLOC and section.size and section.kind == _PROGBITS
            if is_code and self._text(self.names + section.name) != _UNWIND:
                self._place(index, section)
        for section in self.sections:
            if section.kind == _RELA and section.info in self.places:
                self._relocate(section)
        head = _HEADER.pack(_MAGIC, len(self.made), len(self.calls), self._entry(symbol), _CODES[self.machine])
        calls = b"".join(_CALL.pack(at, name.encode()) for name, at in self.calls.items())
        return head + calls + bytes(self.made)

    def _place(self, index: int, section: _ElfSection) -> None:
        if section.flags & _WRITE or section.align > mmap.PAGESIZE:
            raise _UnsuitableError
        self.made += bytes(-len(self.made) % max(section.align, 1))
        self.places[index] = len(self.made)
        self.made += self.code[section.offset : section.offset + section.size]

    def _symbol(self, table: _ElfSection, index: int) -> tuple[str, int, int]:
        """Name, section (0: it is elsewhere) and offset in it."""
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.code, table.offset + 24 * index)
        return self._text(self.sections[table.link].offset + name), section, value

    def _text(self, start: int) -> str:
        return self.code[start : self.code.index(b"\0", start)].decode()

    def _entry(self, symbol: str) -> int:
        for table in (s for s in self.sections if s.kind == _SYMBOLS):
            for index in range(table.size // table.entry):
                name, section, value = self._symbol(table, index)
                if name == symbol and section in self.places:
                    return self.places[section] + value
        raise _UnsuitableError

    def _relocate(self, rows: _ElfSection) -> None:
        for at in range(rows.offset, rows.offset + rows.size, 24):
            offset, info, addend = struct.unpack_from("<QQq", self.code, at)
            name, section, value = self._symbol(self.sections[rows.link], info >> 32)
            kind, place = info & 0xFFFFFFFF, self.places[rows.info] + offset
            if section == 0 and kind not in _CALLS:
                raise _UnsuitableError
            target = self._stub(name) if section == 0 else self.places[section] + value
            _PATCHES[self.machine](self.made, kind, place, target + addend)

    def _stub(self, name: str) -> int:
        """Where a call of a C function goes: a jump through an address that loading fills in."""
        if name not in self.calls:
            if len(name) > 27:
                raise _UnsuitableError
            self.made += bytes(-(len(self.made) + len(self.stub)) % 8) + self.stub
            self.calls[name] = len(self.made)
            self.made += bytes(8)
        return self.calls[name] - len(self.stub)


# ---------------------------------------------------------------------------------------------------------- relocations


def _patch_x86(made: bytearray, kind: int, place: int, target: int) -> None:
    """Let what stands at a place refer to another: R_X86_64_PC32 and R_X86_64_PLT32."""
    if kind not in (2, 4):
        raise _UnsuitableError
    struct.pack_into("<i", made, place, target - place)


_PREL64, _PREL32 = 260, 261
_LD_LO19, _ADR, _ADRP, _ADRP_NC, _JUMP26, _CALL26 = 273, 274, 275, 276, 282, 283
_LO12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
"""R_AARCH64_ADD_ABS_LO12_NC and R_AARCH64_LDST<n>_ABS_LO12_NC: the field counts in powers of two."""


def _patch_arm(made: bytearray, kind: int, place: int, target: int) -> None:
    """The same by AArch64's relocations; numbers of pages are those of the blob."""
    away = target - place
    if kind in (_PREL32, _PREL64):
        struct.pack_into("<i" if kind == _PREL32 else "<q", made, place, away)
        return
    (word,) = struct.unpack_from("<I", made, place)
    if kind in _LO12:
        shift = _LO12[kind]
        word |= _field(target % _PAGE, shift, 12, is_signed=False) << 10
    elif kind in (_JUMP26, _CALL26):
        word |= _field(away, 2, 26)
    elif kind == _LD_LO19:
        word |= _field(away, 2, 19) << 5
    elif kind in (_ADR, _ADRP, _ADRP_NC):
        bits = _field(away if kind == _ADR else target // _PAGE * _PAGE - place, 0, 21)
        word = (word & 0x7FFFFFFF) | (bits & 3) << 29 | (bits >> 2) << 5  # the highest bit makes adrp of adr
    else:
        raise _UnsuitableError
    struct.pack_into("<I", made, place, word)


def _field(value: int, shift: int, width: int, is_signed: bool = True) -> int:
    """A number as a field of an instruction."""
    low, high = (-(1 << width - 1), 1 << width - 1) if is_signed else (0, 1 << width)
    if value % (1 << shift) or not low <= value >> shift < high:
        raise _UnsuitableError
    return (value >> shift) & ((1 << width) - 1)


_CALLS = (4, _JUMP26, _CALL26)
"""Relocations of calls, which may be of C functions.  No number is one of both processors' tables."""
_PATCHES: dict[int, Callable[[bytearray, int, int, int], None]] = {X86_64: _patch_x86, AARCH64: _patch_arm}
STUBS = {X86_64: b"\xff\x25\x00\x00\x00\x00", AARCH64: struct.pack("<II", 0x58000050, 0xD61F0200)}
"""``jmp [rip]``, and ``ldr x16, 8; br x16``: jumps to the address in the 8 bytes that follow."""
_CODES = {X86_64: 0, AARCH64: AARCH64}
"""How a blob names its processor."""


def is_blob(data: bytes) -> bool:
    """Whether these are the bytes of a blob, not of an object file."""
    return data.startswith(_MAGIC)


def calls_of(data: bytes) -> list[tuple[int, str]]:
    """The C functions that a blob calls, each with where its address goes."""
    rows = (_CALL.unpack_from(data, _HEADER.size + i * _CALL.size) for i in range(_HEADER.unpack_from(data)[2]))
    return [(at, name.rstrip(b"\0").decode()) for at, name in rows]


@record(frozen=True)
class BlobParts:
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


def joined(blobs: Sequence[bytes]) -> tuple[bytes, list[int]] | None:
    """One blob of several, and where in it the function of each begins; None where one is no blob."""
    made, calls, entries = bytearray(), [], []
    for blob in blobs:
        parts = blob_parts(blob)
        if parts is None:
            return None
        made += bytes(-len(made) % _LINE)
        entries.append(len(made) + parts.entry)
        calls += [_CALL.pack(len(made) + at, name.encode()) for at, name in parts.calls]
        made += parts.code
    machine = _HEADER.unpack_from(blobs[0])[4] if blobs else 0
    return _HEADER.pack(_MAGIC, len(made), len(calls), 0, machine) + b"".join(calls) + bytes(made), entries


def machine_of(data: bytes) -> int:
    """The processor of a blob, by ELF's number."""
    return int(_HEADER.unpack_from(data)[4]) or X86_64


def _own_machine() -> int:
    return X86_64 if on_x86() else AARCH64


def load_blob(data: bytes) -> int:
    """Address of the function, made executable now; it stays so until the process ends, threads and all.

    Raises OSError where the system refuses, a C function that is called does not exist, or the code is another
    processor's.
    """
    if machine_of(data) != _own_machine():
        raise OSError(f"blob: processor: got {machine_of(data)}, wanted {_own_machine()} (ELF's numbers)")
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
    if _own_machine() == AARCH64:
        _flush(address, size)
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


def _flush(address: int, size: int) -> None:
    """Let the processor fetch instructions that were just written; only x86 does so by itself.

    Raises OSError where the compiler's library is missing; LLVM links the code then.
    """
    try:
        clear = _library("libgcc_s.so.1").__clear_cache
    except AttributeError as error:
        raise OSError(f"blob: {error}") from None
    clear.restype, clear.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p)
    clear(address, address + size)


@functools.cache
def _function(name: str) -> int:
    """Address of a function of the C library or of the one for mathematics."""
    for library in (None, "libm.so.6"):
        try:
            return ctypes.cast(getattr(_library(library), name), ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    raise OSError(f"blob: no C function {name}")
