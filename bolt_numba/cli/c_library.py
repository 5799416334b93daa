"""The command that builds the library which runs native programs: c-library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bolt_numba.cli import console


def c_library(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where it goes.")],
    cc: Annotated[
        str | None, typer.Option("--cc", metavar="COMMAND", help="A C compiler, else one is looked for.")
    ] = None,
    java: Annotated[bool, typer.Option("--java", help="Also what Java needs; takes a JDK.")] = False,
) -> None:
    """Build libbolt_numba, which runs exported models without Python, with its headers (docs/c-api)."""
    from bolt_numba.export.c_library import build_c_library

    with console.progress("compiling libbolt_numba"):
        made = build_c_library(output, cc, java)
    for file in made:
        console.write(str(file))
