"""The C library that runs native programs: what of its sources is generated, and how it is built.

The sources in ``native/`` are C11 and need nothing but the C library, its mathematics and POSIX threads.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path

import bolt_numba
from bolt_numba.errors import BoltError
from bolt_numba.export import layout

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
LIBRARIES = ("-lm",)
PUBLIC = ("bolt_numba.h", "bolt_numba.hpp")
"""Headers that users of the library include."""
_HEADER = """\
/* The tables of a native program.  Made from bolt_numba/export/layout.py, which says what they mean. */

#ifndef BN_LAYOUT_H
#define BN_LAYOUT_H

#define BNP_PACKAGE_VERSION "{version}"
{lines}

#endif
"""


def constants() -> str:
    """The file ``layout.h``: every number of `bolt_numba.export.layout` that C must know."""
    return _HEADER.format(version=bolt_numba.__version__, lines="\n".join(_lines()))


def _lines() -> Iterator[str]:
    for name in ("VERSION", "HEADER_WORDS", "PAGE", "LINE", "FAULT_WORDS", "TRAILER_WORDS"):
        yield f"#define BNP_{name} {getattr(layout, name)}"
    yield f"#define BNP_MOST_PROGRAMS {layout.TRAILER_PROGRAMS}"
    for name, number in (("MAGIC", layout.MAGIC), ("END_MAGIC", layout.TRAILER_MAGIC)):
        yield f"#define BNP_{name} INT64_C({number})"
    yield f"#define BNP_STEP_WIDTH {len(layout.StepRow)}\n#define BNP_TABLE_COUNT {len(layout.ProgramTable)}"
    kinds: tuple[type[IntEnum], ...] = (
        layout.HeaderWord, layout.ProgramFlag, layout.ProgramTable, layout.ValueKind, layout.ResultKind,
        layout.PatchKind, layout.TrailerWord, *layout.COLUMNS.values(),
    )  # fmt: skip
    for kind in kinds:
        yield _enum(kind)
    widths = ", ".join(str(len(layout.COLUMNS.get(table, ()))) for table in layout.ProgramTable)
    yield f"/* Numbers of a row of each table; 0 for areas, which are bytes. */\n#define BNP_WIDTHS {{{widths}}}"
    yield "#define BNP_TABLE_NAMES {" + ", ".join(f'"{table.name}"' for table in layout.ProgramTable) + "}"
    yield "#define BNP_FUNCTIONS(each) \\\n    " + " \\\n    ".join(f"each({name})" for name in layout.FUNCTIONS)


def _enum(kind: type[IntEnum]) -> str:
    """An enumeration; ``ValueRow.NAME`` is ``BNP_VALUE_NAME``, ``ValueKind.INPUT`` is ``BNP_VALUE_KIND_INPUT``."""
    name = kind.__name__.removeprefix("Program").removesuffix("Row").removesuffix("Word")
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name)
    return "enum {\n" + ",\n".join(f"    BNP{prefix}_{row.name} = {row.value}" for row in kind) + "\n};"


def build_c_library(folder: Path, cc: str = "cc") -> list[Path]:
    """Compile ``libbolt_numba.so`` and ``libbolt_numba.a`` into a folder, with the headers; all files that are written.

    cc: a C compiler and its first arguments.  Raises BoltError where it fails or is not there.
    """
    command = shlex.split(cc)
    if not command or shutil.which(command[0]) is None:
        raise BoltError(f"c-library: compiler: got {cc!r}, wanted the name of a C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    shared, archive = folder / "libbolt_numba.so", folder / "libbolt_numba.a"
    sources = sorted(SOURCES.glob("*.c"))
    with tempfile.TemporaryDirectory() as scratch:
        _run([*command, *FLAGS, "-c", *map(str, sources)], Path(scratch))
        objects = [f"{source.stem}.o" for source in sources]
        _run([*command, "-shared", "-pthread", "-o", str(shared.resolve()), *objects, *LIBRARIES], Path(scratch))
        archive.unlink(missing_ok=True)
        _run([_archiver(command[0]), "rcs", str(archive.resolve()), *objects], Path(scratch))
    return [shared, archive, *(Path(shutil.copy(SOURCES / name, folder)) for name in PUBLIC)]


def _archiver(cc: str) -> str:
    """The `ar` of the compiler's own tools, where a cross compiler has one."""
    stem, dash, _ = cc.rpartition("-")
    return f"{stem}-ar" if dash and shutil.which(f"{stem}-ar") else "ar"


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise BoltError(f"c-library: {command[0]} ended with {done.returncode}: {lines[0] if lines else 'no word'}")
