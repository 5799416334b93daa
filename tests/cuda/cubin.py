"""What a kernel takes of a GPU, read from its machine code: no tool of NVIDIA's is needed.

A cubin is an ELF file.  Section ``.nv.info`` has attributes of functions, each a head of four bytes and its data;
``.nv.shared.NAME`` is as long as the static shared memory.  Source: what `cuobjdump -res-usage` says of the same files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bolt_numba.base.errors import KernelError

_ATTRIBUTES = {0x2F: "registers", 0x11: "stack"}
_SYMBOLS, _SIZED = 2, 4
_TEXT, _SHARED, _INFO = ".text.", ".nv.shared.", ".nv.info"


class Resources(NamedTuple):
    """entry: name of the kernel.  registers: of a thread.  stack: bytes of a thread in local memory, spills included.

    shared: static bytes of a block; from sm_90 on 1024 of them are the system's.
    """

    entry: str
    registers: int
    stack: int
    shared: int


class _CubinSection(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int


def resources(cubin: bytes) -> Resources:
    """Of a cubin with one kernel; raises KernelError where it is none."""
    try:
        return _Cubin(cubin).resources()
    except (struct.error, ValueError, IndexError, StopIteration) as error:
        raise KernelError(f"cubin: got bytes of another kind ({error}), wanted an ELF file with one kernel") from None


class _Cubin:
    def __init__(self, code: bytes) -> None:
        if code[:6] != b"\x7fELF\x02\x01":
            raise ValueError("head")
        self.code = code
        (start,) = struct.unpack_from("<Q", code, 40)
        _, count, names = struct.unpack_from("<HHH", code, 58)
        heads = [struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i) for i in range(count)]
        at = heads[names][4]
        self.sections = [_CubinSection(self._text(at + h[0]), h[1], h[4], h[5], h[6]) for h in heads]

    def _text(self, at: int) -> str:
        return self.code[at : self.code.index(b"\0", at)].decode()

    def resources(self) -> Resources:
        (entry,) = (s.name.removeprefix(_TEXT) for s in self.sections if s.name.startswith(_TEXT))
        shared = sum(s.size for s in self.sections if s.name == _SHARED + entry)
        symbols = self._symbols()
        found = {name: value for symbol, name, value in self._attributes() if symbols[symbol] == entry}
        return Resources(entry, found.get("registers", 0), found.get("stack", 0), shared)

    def _symbols(self) -> list[str]:
        table = next(s for s in self.sections if s.kind == _SYMBOLS)
        names = self.sections[table.link].offset
        places = range(table.offset, table.offset + table.size, 24)
        return [self._text(names + struct.unpack_from("<I", self.code, at)[0]) for at in places]

    def _attributes(self) -> Iterator[tuple[int, str, int]]:
        """Index of the symbol, which attribute, its value."""
        info = next(s for s in self.sections if s.name == _INFO)
        at, end = info.offset, info.offset + info.size
        while at < end:
            form, attribute, size = struct.unpack_from("<BBH", self.code, at)
            if form == _SIZED and attribute in _ATTRIBUTES and size == 8:
                symbol, value = struct.unpack_from("<II", self.code, at + 4)
                yield symbol, _ATTRIBUTES[attribute], value
            at += 4 + (size if form == _SIZED else 0)
