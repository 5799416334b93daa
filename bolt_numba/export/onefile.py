"""A model as one C source: the library, the tables, weights as an array, and machine code as text of the assembler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from bolt_numba.base.files.regular import replaced
from bolt_numba.export import texts
from bolt_numba.export.layout import LINE
from bolt_numba.export.library import Library, check_linkable, runtime_files

_LOCAL = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*$')
_OWN = re.compile(r"^static [\w \*]*?(\w+)\(", re.MULTILINE)
"""A function that a source keeps to itself."""
_A_LINE = 6
"""Numbers in a line."""


def write_one_file(library: Library, folder: Path) -> list[Path]:
    """``NAME.c``, the headers that its users include, and the example."""
    check_linkable(library)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = texts.sources(library)
    public = next(file for file in runtime_files() if file.name == "bolt_numba.h")
    files = {
        f"{library.name}.h": wanted[f"{library.name}.h"],
        "main.c": wanted["main.c"],
        public.name: public.read_text(),
    }
    written = []
    for name, text in files.items():
        with replaced(folder / name) as file:
            file.write(text.encode())
        written.append(folder / name)
    with replaced(folder / f"{library.name}.c") as file:
        for line in _lines(library, wanted[f"{library.name}.c"]):
            file.write(line.encode() + b"\n")
    if library.weights_file:
        with replaced(folder / f"{library.name}.weights") as file:
            file.writelines(library.program.block.data)
        written.append(folder / f"{library.name}.weights")
    return [*written, folder / f"{library.name}.c"]


def _lines(library: Library, source: str) -> Iterator[str]:
    name, block = library.name, library.program.block
    yield f"/* {name}: the library of bolt_numba, machine code, tables and weights in one file."
    yield f"   cc -std=gnu11 -O2 {name}.c main.c -lm -lpthread */"
    yield "#define _GNU_SOURCE"
    seen = {f"{name}.h"}
    yield f'#include "{name}.h"'
    seen.add("bolt_numba.h")
    runtime = {file.name: file.read_text() for file in runtime_files()}
    own = {file: _OWN.findall(text) for file, text in runtime.items() if file.endswith(".c")}
    times = Counter(name for names in own.values() for name in names)
    for file, names in own.items():
        again = [name for name in names if times[name] > 1]
        yield from (f"#define {name} {Path(file).stem}_{name}" for name in again)
        yield from _included(runtime[file], runtime, seen)
        yield from (f"#undef {name}" for name in again)
    yield "__asm__("
    for line in library.code().text().splitlines():
        yield f'    "{line.translate(_ESCAPED)}\\n"'
    yield ");"
    yield from _array(f"{name}_program", block.parts)
    if not library.weights_file:
        yield from _array(f"{name}_weights", block.data)
    yield from (line for line in source.splitlines() if not line.startswith(("extern const", "#include")))


_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t"})


def _included(text: str, files: dict[str, str], seen: set[str]) -> Iterator[str]:
    """Lines of a source with the contents of its own headers, each once."""
    for line in text.splitlines():
        found = _LOCAL.match(line)
        if found is None:
            if line.strip() != "#define _GNU_SOURCE":
                yield line
        elif found[1] not in seen:
            seen.add(found[1])
            yield from _included(files[found[1]], files, seen)


def _array(name: str, parts: Iterable[bytes]) -> Iterator[str]:
    """Bytes as an array of numbers of 64 bits, at a multiple of 64."""
    yield f"static _Alignas({LINE}) const uint64_t {name}_words[] = {{"
    rest = b""
    for part in parts:
        raw = rest + part
        whole = len(raw) - len(raw) % (8 * _A_LINE)
        for i in range(0, whole, 8 * _A_LINE):
            yield _numbers(raw[i : i + 8 * _A_LINE])
        rest = raw[whole:]
    yield _numbers(rest + bytes(-len(rest) % 8) or bytes(8))
    yield "};"
    yield f"#define {name} ((const unsigned char *){name}_words)"


def _numbers(raw: bytes) -> str:
    found = (int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8))
    return "".join(f"{number:#x}," for number in found)
