"""The commands that write models, and the library that runs them, for use without Python: export, c-library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bolt_numba.cli import console
from bolt_numba.cli.options import (
    Json,
    ModelPath,
    ShapeSets,
    Signature,
    Threads,
    Weights,
    one_of,
    read_sets,
    takes_options,
    told_shapes,
)

_LINKED, _BESIDE = "linked", "file"


def _weights_in(text: str) -> str:
    return one_of((_LINKED, _BESIDE), text)


def _fixed(texts: Sequence[str]) -> dict[str, object]:
    """``["sr=16000"]`` as values by name."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise typer.BadParameter(f"got {text!r}, wanted NAME=VALUE, a number or a list", param_hint="--set")
    return found


@takes_options("precision", "numerics")
def export(  # budget: each option is one line or two
    model: ModelPath,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER|FILE.bolt|FILE.bnprog", help="What to write.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the library and its functions; by default the folder's.")
    ] = None,
    target: Annotated[
        str, typer.Option("--target", metavar="LEVEL", help="Instructions: native, x86-64-v3, aarch64…")
    ] = "native",
    threads: Threads = None,
    shapes: ShapeSets = [],
    fixed: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="An input that always has this value.")
    ] = [],
    keep: Annotated[
        list[str], typer.Option("--keep", metavar="NAME", help="Also return this intermediate value.")
    ] = [],
    weights_in: Annotated[
        str,
        typer.Option("--weights-in", metavar="linked|file", help="Where weights of a folder go.", callback=_weights_in),
    ] = _LINKED,
    one_file: Annotated[bool, typer.Option("--one-file", help="Write everything into one C source.")] = False,
    cc: Annotated[str | None, typer.Option("--cc", metavar="COMMAND", help="A C compiler for the target.")] = None,
    options: Mapping[str, Any] = {},
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Write a model to run without Python: a .bolt file with native code, or a folder with a C library."""
    from bolt_numba import load_model
    from bolt_numba.export.exporting import export_model

    if not shapes:
        told_shapes(load_model(model, weights=weights).graph(signature), (), {})
    with console.progress(f"exporting {model.name}"):
        made = export_model(
            model, output, weights=weights, signature=signature, name=name, target=target, threads=threads,
            shapes=read_sets(shapes) if shapes else (), fixed=_fixed(fixed), keep=keep, weights_in=weights_in,
            one_file=one_file, cc=cc, **options,
        )  # fmt: skip
    if as_json:
        files = {str(file): file.stat().st_size for file in [*made.files, *made.built]}
        told = {"level": made.level, "plans": made.plans, "sets": made.sets, "bytes": made.nbytes, "files": files}
        console.write_json(told)
        return
    sets = "one set of shapes" if made.sets == 1 else f"{made.sets} sets of shapes"
    by = f" by {made.plans} plans" if made.plans < made.sets else ""
    console.write(f"{made.path}: {console.size_text(made.nbytes)} for {made.level}, {sets}{by}")
    for file in made.built:
        console.write(f"{file}: {console.size_text(file.stat().st_size)}")
    if made.path.is_dir() and not made.built and not one_file:
        console.note("no C compiler for the target was found (--cc); the folder has sources and a CMakeLists.txt")


def c_library(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where it goes.")],
    cc: Annotated[
        str | None, typer.Option("--cc", metavar="COMMAND", help="A C compiler; by default one is searched for.")
    ] = None,
    java: Annotated[bool, typer.Option("--java", help="Also build what Java needs, with a JDK.")] = False,
) -> None:
    """Build libbolt_numba, which runs exported models without Python, with its headers (docs/c-api)."""
    from bolt_numba.export.c_library import build_c_library

    with console.progress("compiling libbolt_numba"):
        made = build_c_library(output, cc, java)
    for file in made:
        console.write(str(file))
