"""Compiles what was exported, where a C compiler for the target is found."""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.records import record

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
LIBRARIES = ("-lm", "-pthread")
SHOWN_LETTERS = 2000
"""Characters of what a compiler says of an error."""


@record(frozen=True)
class Compiler:
    """Commands for C sources and for archives."""

    cc: tuple[str, ...]
    ar: tuple[str, ...]


def compiler_for(is_x86: bool, wanted: str | None = None) -> Compiler | None:
    """A compiler for the architecture, ``wanted`` if that is given; None where there is none."""
    own = is_x86 == (platform.machine().lower() in ("x86_64", "amd64"))
    triple = "x86_64-linux-gnu" if is_x86 else "aarch64-linux-gnu"
    if wanted is not None:
        command = tuple(shlex.split(wanted))
        if not command or shutil.which(command[0]) is None:
            raise BoltError(f"--cc: got {wanted!r}, wanted a C compiler that can be run")
        return Compiler(command, (archiver_of(command[0]),))
    if own and shutil.which("cc") and shutil.which("ar"):
        return Compiler(("cc",), ("ar",))
    if shutil.which(f"{triple}-gcc") and shutil.which(f"{triple}-ar"):
        return Compiler((f"{triple}-gcc",), (f"{triple}-ar",))
    if importlib.util.find_spec("ziglang") is not None:
        zig = (sys.executable, "-m", "ziglang")
        return Compiler((*zig, "cc", "-target", triple), (*zig, "ar"))
    return None


def archiver_of(cc: str) -> str:
    """What makes archives beside a compiler: of ``/opt/bin/aarch64-linux-gnu-gcc-12``, the ``ar`` of these binutils."""
    found = re.fullmatch(r"(.*-)(?:gcc|g\+\+|cc|c\+\+)(?:-[\d.]+)?", cc)
    return f"{found[1]}ar" if found is not None else "ar"


def build(compiler: Compiler, folder: Path, name: str, runtime: Sequence[str], objects: Sequence[str]) -> list[Path]:
    """Compile ``lib<name>.so`` and ``lib<name>.a`` in an exported folder.  Raises BoltError with what a tool says.

    runtime: names of the sources there, beside which those of another export may stand.  objects: that are there.
    """
    sources = [f"{name}.c", *(f"runtime/{file}" for file in runtime)]
    with tempfile.TemporaryDirectory() as scratch:
        shared, archive = Path(scratch) / f"lib{name}.so", Path(scratch) / f"lib{name}.a"
        made = [f"{scratch}/{prefix_of(name, source)}.o" for source in sources]
        for source, file in zip(sources, made, strict=True):
            run((*compiler.cc, *FLAGS, "-I.", "-Iruntime", "-c", source, "-o", file), folder)
        run((*compiler.cc, "-shared", "-o", str(shared), *made, *objects, *LIBRARIES), folder)
        run((*compiler.ar, "rcs", str(archive), *made, *objects), folder)
        return [put(file, folder) for file in (shared, archive)]


def put(file: Path, folder: Path) -> Path:
    """A copy of a file in a folder, which is there whole or not at all."""
    with replaced(folder / file.name) as target, file.open("rb") as source:
        shutil.copyfileobj(source, target)
    return folder / file.name


def prefix_of(name: str, source: str) -> str:
    """What the object of a source is called: objects of the runtime are alike in all libraries."""
    return f"bn_{Path(source).stem}" if source.startswith("runtime/") else f"{name}_open"


def run(command: Sequence[str], folder: Path) -> None:
    """Run a compiler, or another tool, in a folder.  Raises BoltError with what it says of an error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[:SHOWN_LETTERS]
        raise BoltError(f"{command[0]}: got an error, wanted {command[-1]}: {said}")
