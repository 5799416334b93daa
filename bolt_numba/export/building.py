"""Compiles what was exported, where a C compiler for the target is found."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bolt_numba.base.records import record
from bolt_numba.errors import BoltError

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
LIBRARIES = ("-lm", "-pthread")
SHOWN = 2000
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
        prefix = command[0].removesuffix("gcc") if command[0].endswith("-gcc") else ""
        return Compiler(command, (f"{prefix}ar",))
    if own and shutil.which("cc") and shutil.which("ar"):
        return Compiler(("cc",), ("ar",))
    if shutil.which(f"{triple}-gcc") and shutil.which(f"{triple}-ar"):
        return Compiler((f"{triple}-gcc",), (f"{triple}-ar",))
    if importlib.util.find_spec("ziglang") is not None:
        zig = (sys.executable, "-m", "ziglang")
        return Compiler((*zig, "cc", "-target", triple), (*zig, "ar"))
    return None


def build(compiler: Compiler, folder: Path, name: str, objects: Sequence[str]) -> list[Path]:
    """Compile ``lib<name>.so`` and ``lib<name>.a`` in an exported folder.  Raises BoltError with what a tool says."""
    sources = [f"{name}.c", *(f"runtime/{file.name}" for file in sorted((folder / "runtime").glob("*.c")))]
    shared, archive = folder / f"lib{name}.so", folder / f"lib{name}.a"
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = [f"{scratch}/{prefix_of(name, source)}.o" for source in sources]
        for source, file in zip(sources, made, strict=True):
            run((*compiler.cc, *FLAGS, "-I.", "-Iruntime", "-c", source, "-o", file), folder)
        run((*compiler.cc, "-shared", "-o", shared.name, *made, *objects, *LIBRARIES), folder)
        run((*compiler.ar, "rcs", archive.name, *made, *objects), folder)
    return [shared, archive]


def prefix_of(name: str, source: str) -> str:
    """What the object of a source is called: objects of the runtime are alike in all libraries."""
    return f"bn_{Path(source).stem}" if source.startswith("runtime/") else f"{name}_open"


def run(command: Sequence[str], folder: Path) -> None:
    """Run a compiler, or another tool, in a folder.  Raises BoltError with what it says of an error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[:SHOWN]
        raise BoltError(f"{command[0]}: got an error, wanted {command[-1]}: {said}")
