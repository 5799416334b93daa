"""A folder with all that an application needs to run a model: code, weights, the program, and C that calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.records import record
from bolt_numba.export import texts
from bolt_numba.export.building import put
from bolt_numba.export.c_library import SOURCES
from bolt_numba.export.code import LinkedCode, linked_code, symbol_of
from bolt_numba.export.elf import AARCH64, X86_64, Symbol, object_file
from bolt_numba.export.layout import PAGE, ProgramFlag
from bolt_numba.export.program import NativeProgram

_TAKEN = frozenset((
    "assert", "bolt_numba", "cpuid", "ctype", "errno", "fcntl", "features", "float", "inttypes", "limits", "locale",
    "main", "math", "memory", "pthread", "sched", "signal", "stdarg", "stdatomic", "stdbool", "stddef", "stdint",
    "stdio", "stdlib", "string", "strings", "threads", "time", "unistd", "wmmintrin", "xmmintrin",
))  # fmt: skip
"""Names of other files: of the example, of the library in C, and headers of C."""
MOST_LINKED = (1 << 31) - (1 << 26)
"""Bytes of weights in an object, of which code and tables have the rest that a linker reaches."""


def c_name(text: str) -> str:
    """A name that C takes, and that no other file has."""
    made = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "model"
    return f"m{made}" if made[0].isdigit() or made in _TAKEN else made


@record(eq=False)
class Library:
    """A program to be written as a library.

    name: what files and functions are called.  weights_file: whether weights are a file beside the library.
    """

    program: NativeProgram
    name: str
    weights_file: bool = False

    @property
    def is_x86(self) -> bool:
        return self.program.planned.cpu.isa.is_x86

    @property
    def symbols(self) -> list[str]:
        """Names of the kernels."""
        return [symbol_of(self.name, number, kernel) for number, kernel in enumerate(self.program.kernels)]

    def code(self) -> LinkedCode:
        return linked_code(self.program.kernels, self.name, X86_64 if self.is_x86 else AARCH64)


def program_flags(as_library: bool) -> int:
    """Flags of the program of a library, whose kernels and weights stand beside it."""
    return ProgramFlag.LINKED | ProgramFlag.DATA_APART if as_library else 0


def write_library(library: Library, folder: Path) -> list[Path]:
    """Write the sources, and objects with code, program and weights; all files, those of the runtime included."""
    name, block = library.name, library.program.block
    check_linkable(library)
    folder.mkdir(parents=True, exist_ok=True)
    made = texts.sources(library, sources_of_runtime())
    written = [
        _write(folder / f"{name}.o", _model_object(library)),
        *(_write(folder / file, [text.encode()]) for file, text in made.items()),
    ]
    if library.weights_file:
        written.append(_write(folder / f"{name}.weights", block.data))
    written += copy_runtime(folder / "runtime")
    return written


def _write(path: Path, parts: Iterable[bytes]) -> Path:
    with replaced(path) as file:
        for part in parts:
            file.write(part)
    return path


def check_linkable(library: Library) -> None:
    """Raises BoltError for weights that are too large to be linked: code names them by distances of 32 bits."""
    nbytes = 0 if library.weights_file else sum(map(len, library.program.block.data))
    if nbytes > MOST_LINKED:
        got = f"got {nbytes / 2**30:.1f} GiB, wanted less than {MOST_LINKED / 2**30:.0f} GiB, or --weights-in file"
        raise BoltError(f"{library.name}: weights that are linked: {got}")


def copy_runtime(folder: Path) -> list[Path]:
    """Copies of the library's sources in C."""
    folder.mkdir(parents=True, exist_ok=True)
    return [put(file, folder) for file in runtime_files()]


def sources_of_runtime() -> list[str]:
    """Names of the files of the library in C that are compiled."""
    return [file.name for file in runtime_files() if file.suffix == ".c"]


def runtime_files() -> list[Path]:
    """Sources and headers of the library in C.  Raises BoltError where the package came without."""
    found = sorted(file for file in SOURCES.glob("*") if file.suffix in (".c", ".h", ".hpp"))
    if not found:
        raise BoltError(f"export: {SOURCES}: got no C sources, wanted those that come with bolt_numba")
    return found


def _model_object(library: Library) -> list[bytes]:
    """The object with code, program and weights."""
    block, name, found = library.program.block, library.name, library.code()
    program = [*block.parts, bytes(-block.nbytes % PAGE)]
    symbols = [*found.symbols, Symbol(f"{name}_program", 0, block.nbytes, False)]
    if not library.weights_file:
        start, nbytes = sum(map(len, program)), sum(map(len, block.data))
        program += block.data
        symbols.append(Symbol(f"{name}_weights", start, nbytes, False))
    return object_file(found.machine, found.code, found.jumps, program, symbols)
