"""Object files with code and constants, for any linker: what a program needs of the format, and no more.

Source: the ELF-64 object file format; System V ABI, AMD64 supplement, and ELF for the Arm 64-bit
Architecture, for the relocations of calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from bolt_numba.base.records import record

X86_64, AARCH64 = 62, 183
_PROGBITS, _SYMTAB, _STRTAB, _RELA = 1, 2, 3, 4
_ALLOC, _EXECUTABLE, _INFO_LINK = 2, 4, 0x40
_TEXT, _CONSTANTS, _SYMBOLS, _STRINGS = 1, 2, 4, 5
_JUMPS = {X86_64: (1, 4, -4), AARCH64: (0, 282, 0)}
"""Of each processor's jump: where it holds the distance, R_X86_64_PLT32 or R_AARCH64_JUMP26, and the addend."""
_FUNCTION, _OBJECT = 0x12, 0x11  # global
_HIDDEN = 2
PAGE = 4096


@record(frozen=True)
class Jump:
    """A jump to a function of another object: ``at`` is where the instruction is in the code."""

    at: int
    name: str


@record(frozen=True)
class Symbol:
    """A name for bytes of code or constants (``is_code``), which users of a shared library do not see."""

    name: str
    offset: int
    nbytes: int
    is_code: bool


class _Names:
    """A table of strings."""

    def __init__(self) -> None:
        self.raw = bytearray(b"\0")

    def add(self, text: str) -> int:
        at = len(self.raw)
        self.raw += text.encode() + b"\0"
        return at


def object_file(
    machine: int, code: bytes, jumps: Sequence[Jump], constants: Iterable[bytes], symbols: Sequence[Symbol]
) -> list[bytes]:
    """The pieces of an object file; code and constants begin at multiples of 4096 within it and in memory."""
    pieces, names, shown = list(constants), _Names(), _Names()
    outside = list(dict.fromkeys(jump.name for jump in jumps))
    rows = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    for symbol in symbols:
        section, kind = (_TEXT, _FUNCTION) if symbol.is_code else (_CONSTANTS, _OBJECT)
        where = (section, symbol.offset, symbol.nbytes)
        rows.append(struct.pack("<IBBHQQ", names.add(symbol.name), kind, _HIDDEN, *where))
    numbers = {name: len(rows) + i for i, name in enumerate(outside)}
    rows += [struct.pack("<IBBHQQ", names.add(name), 0x10, 0, 0, 0, 0) for name in outside]
    inside, kind, addend = _JUMPS[machine]
    relocations = [struct.pack("<QQq", jump.at + inside, numbers[jump.name] << 32 | kind, addend) for jump in jumps]
    sections = [
        (".text", _PROGBITS, _ALLOC | _EXECUTABLE, [code], 0, 0, PAGE, 0),
        (".rodata", _PROGBITS, _ALLOC, pieces, 0, 0, PAGE, 0),
        (".rela.text", _RELA, _INFO_LINK, relocations, _SYMBOLS, _TEXT, 8, 24),
        (".symtab", _SYMTAB, 0, rows, _STRINGS, 1, 8, 24),
        (".strtab", _STRTAB, 0, [bytes(names.raw)], 0, 0, 1, 0),
        (".note.GNU-stack", _PROGBITS, 0, [], 0, 0, 1, 0),
    ]
    made, heads, at = [b""], [bytes(64)], 64
    for name, kind, flags, content, link, info, align, entry in sections:
        gap, size = -at % align, sum(map(len, content))
        made += [bytes(gap), *content]
        heads.append(
            struct.pack("<IIQQQQIIQQ", shown.add(name), kind, flags, 0, at + gap, size, link, info, align, entry)
        )
        at += gap + size
    last = shown.add(".shstrtab")
    heads.append(struct.pack("<IIQQQQIIQQ", last, _STRTAB, 0, 0, at, len(shown.raw), 0, 0, 1, 0))
    gap = -(at + len(shown.raw)) % 8
    made += [bytes(shown.raw), bytes(gap), *heads]
    at += len(shown.raw) + gap
    made[0] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, machine, 1, 0, 0, at, 0, 64, 0, 0, 64, len(heads),
        len(heads) - 1,
    )  # fmt: skip
    return made
