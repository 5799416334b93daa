"""The commands that write models, and the library that runs them, for use without Python: export, c-library."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bolt_numba.cli import console
from bolt_numba.cli.options import Json, ModelPath, Signature, Threads, Weights, one_of, takes_options

Sizes = tuple[int | range, ...]
_LINKED, _BESIDE = "linked", "file"
MOST_SETS = 1 << 16
"""Sets of shapes that ranges may stand for."""


def _weights_in(text: str) -> str:
    return one_of((_LINKED, _BESIDE), text)


def read_sets(texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """``["x:1x3x32x32,y:1"]`` as sets of shapes: one for each text, several where a size is a range (``1..4``).

    A name that comes again begins the next set.  Equal ranges in one set mean one size.
    """
    made: list[dict[str, tuple[int, ...]]] = []
    for text in texts:
        entries: dict[str, Sizes] = {}
        for part in text.split(","):
            name, colon, sizes = part.strip().rpartition(":")
            if not colon or not name:
                raise _wrong(text)
            if name in entries:
                made += _without_ranges(entries)
                entries = {}
            entries[name] = tuple(_size(text, size) for size in sizes.split("x")) if sizes else ()
        made += _without_ranges(entries)
    return made


def _wrong(text: str) -> typer.BadParameter:
    return typer.BadParameter(f"got {text!r}, wanted NAME:1x3x224x224, or 1..4 for a size", param_hint="--shapes")


def _size(text: str, size: str) -> int | range:
    low, dots, high = size.partition("..")
    if not low.isdecimal() or (dots and not high.isdecimal()):
        raise _wrong(text)
    found = range(int(low), int(high) + 1) if dots else int(low)
    if isinstance(found, range) and not found:
        raise _wrong(text)
    return found


def _without_ranges(entries: dict[str, Sizes]) -> list[dict[str, tuple[int, ...]]]:
    ranges = list(dict.fromkeys(d for sizes in entries.values() for d in sizes if isinstance(d, range)))
    found, sets = [], math.prod(map(len, ranges))
    if sets > MOST_SETS:
        raise typer.BadParameter(f"got {sets} sets of shapes, wanted up to {MOST_SETS}", param_hint="--shapes")
    for chosen in itertools.product(*ranges):
        size = dict(zip(ranges, chosen, strict=True))
        found.append({k: tuple(size[d] if isinstance(d, range) else d for d in v) for k, v in entries.items()})
    return found


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


def _size_text(nbytes: int) -> str:
    return f"{console.mebibytes(nbytes)} MiB"


@takes_options("precision", "numerics")
def export(  # budget: each option is one line or two
    model: ModelPath,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER|FILE.bolt|FILE.bnprog", help="What to write.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Of a library and its functions; else the folder's.")
    ] = None,
    target: Annotated[
        str,
        typer.Option("--target", metavar="LEVEL", help="Instructions: native, x86-64-v3, aarch64…"),
    ] = "native",
    threads: Threads = None,
    shapes: Annotated[
        list[str],
        typer.Option("--shapes", metavar="NAME:DxD,...", help="Shapes of inputs, 1..4 for several; may come again."),
    ] = [],
    fixed: Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="An input that is always this.")] = [],
    keep: Annotated[list[str], typer.Option("--keep", metavar="NAME", help="An intermediate value to look at.")] = [],
    weights_in: Annotated[
        str,
        typer.Option("--weights-in", metavar="linked|file", help="Where weights of a folder go.", callback=_weights_in),
    ] = _LINKED,
    one_file: Annotated[bool, typer.Option("--one-file", help="The folder has one C source with all of it.")] = False,
    cc: Annotated[str | None, typer.Option("--cc", metavar="COMMAND", help="A C compiler for the target.")] = None,
    options: Mapping[str, Any] = {},
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Write a model to run without Python: a .bolt file with native code, or a folder with a C library."""
    from bolt_numba.export.exporting import export_model

    with console.progress(f"exporting {model.name}"):
        made = export_model(
            model, output, weights=weights, signature=signature, name=name, target=target, threads=threads,
            shapes=read_sets(shapes), fixed=_fixed(fixed), keep=keep, weights_in=weights_in, one_file=one_file,
            cc=cc, **options,
        )  # fmt: skip
    if as_json:
        files = {str(file): file.stat().st_size for file in [*made.files, *made.built]}
        told = {"level": made.level, "plans": made.plans, "sets": made.sets, "bytes": made.nbytes, "files": files}
        console.write_json(told)
        return
    sets = "one set of shapes" if made.sets == 1 else f"{made.sets} sets of shapes"
    by = f" by {made.plans} plans" if made.plans < made.sets else ""
    console.write(f"{made.path}: {_size_text(made.nbytes)} for {made.level}, {sets}{by}")
    for file in made.built:
        console.write(f"{file}: {_size_text(file.stat().st_size)}")
    if made.path.is_dir() and not made.built and not one_file:
        console.note("no C compiler for the target was found (--cc); the folder has sources and a CMakeLists.txt")


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
