"""The C library that runs native programs: what of its sources is generated, and how it is built.

The sources in ``native/`` are C11 and need nothing but the C library, its mathematics and POSIX threads.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path

import bolt_numba
from bolt_numba.base.errors import BoltError
from bolt_numba.export import layout
from bolt_numba.export.building import FLAGS, LIBRARIES, Compiler, compiler_for, put, run

SOURCES, JAVA = (Path(__file__).parent / name for name in ("native", "java"))
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
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
    for name in ("VERSION", "HEADER_WORDS", "PAGE", "LINE", "FAULT_WORDS", "TRAILER_WORDS", "CONTENT"):
        yield f"#define BNP_{name} {getattr(layout, name)}"
    yield f"#define BNP_MOST_PROGRAMS {layout.TRAILER_PROGRAMS}"
    for name, number in (("MAGIC", layout.MAGIC), ("END_MAGIC", layout.TRAILER_MAGIC)):
        yield f"#define BNP_{name} INT64_C({number})"
    for row in (layout.StepRow, layout.PlanRow, layout.OperationRow, layout.FindRow, layout.WriteRow):
        yield f"#define BNP_{row.__name__.removesuffix('Row').upper()}_WIDTH {len(row)}"
    yield f"#define BNP_TABLE_COUNT {len(layout.ProgramTable)}"
    kinds: tuple[type[IntEnum], ...] = (
        layout.HeaderWord, layout.ProgramFlag, layout.ProgramTable, layout.ValueKind, layout.ResultKind,
        layout.PatchKind, layout.TrailerWord, layout.TapeOperation, layout.WriteKind, *layout.COLUMNS.values(),
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


def build_c_library(folder: Path, cc: str | None = None, java: bool = False) -> list[Path]:
    """Compile ``libbolt_numba.so`` and ``libbolt_numba.a`` into a folder, with the headers; all files that are written.

    cc: a C compiler and its first arguments; None: one is looked for.  java: also ``bolt_numba.jar`` and what it loads.
    Raises BoltError where a compiler fails or is not there.
    """
    compiler = compiler_for(platform.machine().lower() in ("x86_64", "amd64"), cc)
    if compiler is None:
        raise BoltError("c-library: got no C compiler, wanted one (--cc)")
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    sources = sorted(SOURCES.glob("*.c"))
    with tempfile.TemporaryDirectory() as scratch:
        run([*compiler.cc, *FLAGS, "-c", *map(str, sources)], Path(scratch))
        objects = [f"{source.stem}.o" for source in sources]
        run([*compiler.cc, "-shared", "-o", "libbolt_numba.so", *objects, *LIBRARIES], Path(scratch))
        run([*compiler.ar, "rcs", "libbolt_numba.a", *objects], Path(scratch))
        made = [Path(scratch) / "libbolt_numba.so", Path(scratch) / "libbolt_numba.a"]
        if java:
            made += _build_java(compiler, objects, Path(scratch))
        return [put(file, folder) for file in (*made, *(SOURCES / name for name in PUBLIC))]


def _build_java(compiler: Compiler, objects: Sequence[str], scratch: Path) -> list[Path]:
    """The classes as an archive, and the library that they load, which has all of the library in C."""
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which("javac", path=f"{home}/bin" if home else None)
    include = Path(found).resolve().parent.parent / "include" if found else Path()
    if found is None or not (include / "jni.h").is_file():
        raise BoltError(f"c-library: Java: got {found}, wanted a JDK: its javac on the path, or JAVA_HOME")
    sources = map(str, sorted((JAVA / "boltnumba").glob("*.java")))
    run([found, "--release", "17", "-Xlint:all", "-Werror", "-d", str(scratch / "classes"), *sources], scratch)
    archive, library = scratch / "bolt_numba.jar", scratch / "libbolt_numba_java.so"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted((scratch / "classes").rglob("*.class")):
            file.write(path, path.relative_to(scratch / "classes"))
    headers = [f"-I{path}" for path in (SOURCES, include, *(p for p in include.iterdir() if p.is_dir()))]
    run(
        [*compiler.cc, *FLAGS, *headers, "-shared", str(JAVA / "jni.c"), *objects, "-o", str(library), *LIBRARIES],
        scratch,
    )
    return [archive, library]
