"""The machine code of a program's kernels, for linkers: an object file, or text for an assembler."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.errors import DeviceError
from bolt_numba.export.elf import Jump, Symbol
from bolt_numba.export.layout import LINE
from bolt_numba.kernels.machine_code import STUB, blob_parts

_JUMP = b"\xe9\0\0\0\0"
"""``jmp`` to what a relocation names, in the place of a jump through an address that loading fills in."""


@record(eq=False)
class LinkedCode:
    """All kernels behind one another, each at a multiple of 64, and what a linker must know."""

    code: bytes
    jumps: list[Jump]
    symbols: list[Symbol]

    def text(self) -> str:
        """The same in the language of the GNU assembler."""
        starts = {s.offset: s.name for s in self.symbols}
        jumps = {jump.at - 1: jump.name for jump in self.jumps}
        lines = [".text", ".p2align 6"]
        cuts = sorted({0, *starts, *jumps, *(at + len(_JUMP) for at in jumps), len(self.code)})
        for low, high in itertools.pairwise(cuts):
            if low in starts:
                lines += [f".globl {starts[low]}", f".hidden {starts[low]}", f"{starts[low]}:"]
            lines += [f"jmp {jumps[low]}@PLT"] if low in jumps else _quads(self.code[low:high])
        return "\n".join([*lines, ""])


def _quads(raw: bytes) -> Iterator[str]:
    """Directives for bytes."""
    whole = len(raw) - len(raw) % 8
    numbers = [hex(int.from_bytes(raw[i : i + 8], "little")) for i in range(0, whole, 8)]
    for i in range(0, len(numbers), 8):
        yield f".quad {','.join(numbers[i : i + 8])}"
    if raw[whole:]:
        yield f".byte {','.join(map(str, raw[whole:]))}"


def symbol_of(prefix: str, number: int, kernel: Any) -> str:
    """What a kernel is called in an exported library."""
    return f"{prefix}_k{number}_{kernel.name}"


def linked_code(kernels: Sequence[Any], prefix: str) -> LinkedCode:
    """The code of kernels of x86-64, under names of their own.  Raises DeviceError for what only LLVM links."""
    made, jumps, symbols = bytearray(), [], []
    for number, kernel in enumerate(kernels):
        parts = blob_parts(kernel.code())
        if parts is None:
            raise DeviceError(f"kernel '{kernel.name}': code: got an object file, wanted one that needs no linker")
        made += b"\xcc" * (-len(made) % LINE)
        at, code = len(made), bytearray(parts.code)
        for slot, name in parts.calls:
            start = slot - len(STUB)
            code[start : start + len(_JUMP)] = _JUMP
            jumps.append(Jump(at + start + 1, name))
        symbols.append(Symbol(symbol_of(prefix, number, kernel), at + parts.entry, len(code) - parts.entry, True))
        made += code
    return LinkedCode(bytes(made), jumps, symbols)
