"""Paddle files to a `Graph`: which files belong together, their program, their weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import Array
from bolt_numba.converters.bounded import file_below
from bolt_numba.converters.paddle.detect import PROGRAMS, program_of
from bolt_numba.converters.paddle.reading.graph import PaddleReader
from bolt_numba.converters.paddle.reading.legacy import parse_program
from bolt_numba.converters.paddle.reading.pir import parse_pir
from bolt_numba.converters.paddle.reading.program import PaddleProgram
from bolt_numba.converters.paddle.reading.survey import PaddleSurvey
from bolt_numba.converters.paddle.reading.weights import read_combined, read_folder
from bolt_numba.converters.survey import read_or_list
from bolt_numba.ir.graph import Graph

if TYPE_CHECKING:
    from bolt_numba.converters.formats import Content

TOGETHER = ("__params__", "params", "weights", "model.pdiparams", "inference.pdiparams")
"""Files that may hold all weights of a folder whose program is `__model__`."""
SUFFIXES = (".pdmodel", ".json")
"""Of programs; their weights have `.pdiparams` instead."""


def read_paddle(content: Content) -> Graph:
    """The graph of a program and its weights.

    Raises InvalidModelError for what is no program, or lacks its weights; UnsupportedOpError listing all operators
    that have no meaning here.
    """
    whole = _program_file(content)
    program = _parsed(whole, content.name)
    arrays = _weights(content, whole.path, program)
    both = PaddleReader(content.name, program, arrays), PaddleSurvey(content.name, program, arrays)
    graph: Graph = read_or_list(*both, lambda reader: reader.read())
    graph.metadata["format"] = "paddle"
    graph.metadata["producer"] = f"{program.dialect} {program.version}"
    return graph


def _program_file(content: Content) -> Content:
    if not content.is_folder or content.path is None:
        return content
    found = program_of(content.path)
    if found is None:
        raise InvalidModelError(f"{content.name}: got a folder without a program, wanted one of {PROGRAMS}")
    return type(content)(found)


def files_of(content: Content) -> tuple[bytes, bytes]:
    """The program, and its weights in the form of one file."""
    whole = _program_file(content)
    names = [name for name, _ in _parsed(whole, content.name).weights]
    source = _source(content, whole.path, names)
    if isinstance(source, Path):
        what = f"{content.name}: weight"
        return whole.data, b"".join(file_below((source,), name, what).read_bytes() for name in names)
    return whole.data, b"" if source is None else source.data


def _parsed(whole: Content, name: str) -> PaddleProgram:
    parse = parse_pir if whole.head[:1] == b"{" else parse_program
    return parse(whole.data, name)


def _weights(content: Content, path: Path | None, program: PaddleProgram) -> dict[str, Array]:
    """The weights that a program names."""
    names = [name for name, _ in program.weights]
    source = _source(content, path, names)
    if source is None:
        return {}
    if isinstance(source, Path):
        return read_folder(source, names, content.name)
    return read_combined(source.view, names, source.name)


def _source(content: Content, path: Path | None, names: list[str]) -> Content | Path | None:
    """Where weights are: in what the caller names, in a file beside the program, in a folder with one for each."""
    if not names:
        return None
    given = content.weights
    if given is not None:
        return given.path if given.is_folder else given
    if path is None:
        raise InvalidModelError(f"{content.name}: weights: got none, wanted a file of {len(names)} as weights=")
    places = dict.fromkeys((Path(os.path.abspath(path)), path.resolve()))  # where it lies, then where a link leads
    found = next(filter(None, (_beside(place, names) for place in places)), None)
    if found is None:
        wanted = [file.name for file in _of_all(path)[:1]] or "the file of weights as weights="
        raise InvalidModelError(f"{content.name}: weights: got none beside it, wanted {wanted}")
    return found if found.is_dir() else type(content)(found)


def _of_all(program: Path) -> list[Path]:
    """Files that may hold all weights of a program."""
    files = [program.with_suffix(".pdiparams")] if program.suffix in SUFFIXES else []
    return files + ([program.parent / name for name in TOGETHER] if program.name in PROGRAMS else [])


def _beside(program: Path, names: list[str]) -> Path | None:
    """The file of all weights of a program, or the folder with one for each."""
    each = (program.parent / name for name in names)
    if program.name in PROGRAMS and all(file.is_file() for file in each):
        return program.parent
    whole = next(filter(Path.is_file, _of_all(program)), None)
    return program.parent if whole is None and (program.parent / names[0]).is_file() else whole
