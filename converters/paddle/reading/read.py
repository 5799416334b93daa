"""Paddle files to a `Graph`: which files belong together, their program, their weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bolt_numba.converters.paddle.detect import PROGRAMS, program_of
from bolt_numba.converters.paddle.reading.graph import PaddleReader
from bolt_numba.converters.paddle.reading.legacy import parse_program
from bolt_numba.converters.paddle.reading.pir import parse_pir
from bolt_numba.converters.paddle.reading.program import PaddleProgram
from bolt_numba.converters.paddle.reading.survey import PaddleSurvey
from bolt_numba.converters.paddle.reading.weights import read_combined, read_folder
from bolt_numba.converters.survey import read_or_list
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir.graph import Graph
from bolt_numba.types import Array

if TYPE_CHECKING:
    from bolt_numba.converters import Content

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
    parse = parse_pir if whole.head[:1] == b"{" else parse_program
    program = parse(whole.data, content.name)
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


def _weights(content: Content, path: Path | None, program: PaddleProgram) -> dict[str, Array]:
    """The weights that a program names: from the caller's file, from one beside the program, or from many."""
    names = [name for name, _ in program.weights]
    if not names:
        return {}
    if content.weights is not None and content.weights.path is not None and content.weights.is_folder:
        return read_folder(content.weights.path, names, content.name)
    if content.weights is not None:
        return read_combined(content.weights.view, names, content.weights.name)
    if path is None:
        raise InvalidModelError(f"{content.name}: weights: got none, wanted a file of {len(names)} as weights=")
    path = path.resolve()
    beside = [path.with_suffix(".pdiparams")] if path.suffix in SUFFIXES else []
    beside += [path.parent / name for name in TOGETHER] if path.name in PROGRAMS else []
    if path.name not in PROGRAMS or not all((path.parent / name).is_file() for name in names):
        for file in beside:
            if file.is_file():
                found = type(content)(file)
                return read_combined(found.view, names, found.name)
        if not (path.parent / names[0]).is_file():
            wanted = [file.name for file in beside[:1]] or "the file of weights as weights="
            raise InvalidModelError(f"{content.name}: weights: got none beside it, wanted {wanted}")
    return read_folder(path.parent, names, content.name)
