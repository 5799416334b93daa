"""The machine code of a program's kernels, for linkers: an object file, or text for an assembler."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.records import record
from bolt_numba.export.elf import Jump, Symbol
from bolt_numba.export.layout import LINE
from bolt_numba.kernels.machine_code import AARCH64, STUBS, X86_64, blob_parts
from bolt_numba.kernels.targets import target_code

_JUMPS = {X86_64: (b"\xe9\0\0\0\0", "jmp {}@PLT"), AARCH64: (b"\0\0\0\x14", "b {}")}
"""A jump to what a relocation names, in the place of one through an address that loading fills in; as text."""


@record(eq=False)
class LinkedCode:
    """All kernels behind one another, each at a multiple of 64, and what a linker must know."""

    machine: int
    code: bytes
    jumps: list[Jump]
    symbols: list[Symbol]

    def text(self) -> str:
        """The same in the language of the GNU assembler."""
        starts, (made, shown) = {s.offset: s.name for s in self.symbols}, _JUMPS[self.machine]
        jumps = {jump.at: jump.name for jump in self.jumps}
        lines = [".text", ".p2align 6"]
        cuts = sorted({0, *starts, *jumps, *(at + len(made) for at in jumps), len(self.code)})
        for low, high in itertools.pairwise(cuts):
            if low in starts:
                lines += [f".globl {starts[low]}", f".hidden {starts[low]}", f"{starts[low]}:"]
            lines += [shown.format(jumps[low])] if low in jumps else _quads(self.code[low:high])
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


def linked_code(kernels: Sequence[Any], prefix: str, machine: int) -> LinkedCode:
    """The code of kernels for a processor, under names of their own.  Raises DeviceError for what only LLVM links."""
    made, jumps, symbols, (jump, _) = bytearray(), [], [], _JUMPS[machine]
    for number, kernel in enumerate(kernels):
        parts = blob_parts(target_code(kernel))
        if parts is None:
            raise DeviceError(f"kernel '{kernel.name}': code: got an object file, wanted one that needs no linker")
        made += b"\xcc" * (-len(made) % LINE)
        at, code = len(made), bytearray(parts.code)
        for slot, name in parts.calls:
            start = slot - len(STUBS[machine])
            code[start : start + len(jump)] = jump
            jumps.append(Jump(at + start, name))
        symbols.append(Symbol(symbol_of(prefix, number, kernel), at + parts.entry, len(code) - parts.entry, True))
        made += code
    return LinkedCode(machine, bytes(made), jumps, symbols)
