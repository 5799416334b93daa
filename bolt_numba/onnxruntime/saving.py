"""The optimised model that `SessionOptions.optimized_model_filepath` asks for, as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bolt_numba import surgery
from bolt_numba.base.errors import UnsupportedOpError
from bolt_numba.base.files.regular import replaced
from bolt_numba.converters.formats import Content, format_of
from bolt_numba.converters.onnx.writing.write import save_onnx_apart
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import Model
from bolt_numba.onnxruntime.errors import OrtOptionError
from bolt_numba.sessions.loading import save
from bolt_numba.surgery import packed

BESIDE_ENTRY = "session.optimized_model_external_initializers_file_name"
LEAST_ENTRY = "session.optimized_model_external_initializers_min_size_in_bytes"
"""Entries of the configuration: a file for weights beside the optimised model, and the least size of those in bytes."""


def save_optimised(
    graph: Graph, source: Any, path: str, entries: Mapping[str, str], read: Mapping[Path, os.stat_result]
) -> None:
    """Write a ``.bolt`` file with packed weights where the name says so, else the simplified graph as ONNX.

    source: what the graph was read from.  An ONNX file with operators that cannot be written is written as it is.
    entries: of the configuration.  read: the files of weights that the source names.  Raises OrtOptionError instead of
    writing over what the session has read.
    """
    target, content = Path(path), None if isinstance(source, (Graph, Model)) else Content(source)
    beside = target.parent / _name_of(entries[BESIDE_ENTRY], target) if BESIDE_ENTRY in entries else None
    own = {} if content is None or content.path is None else {content.path: os.stat(content.path)}
    _check_apart([target, *filter(None, [beside])], own | dict(read))
    if path.endswith(".bolt"):
        save(packed(graph), path)
        return
    try:
        if beside is None:
            surgery.save_onnx(surgery.simplify(graph), path)
        else:
            save_onnx_apart(surgery.simplify(graph), target, beside, _least(entries.get(LEAST_ENTRY, "1024")))
    except UnsupportedOpError:
        if content is None or format_of(content) != "onnx":
            raise
        with replaced(path) as file:
            file.write(content.data)


def _least(text: str) -> int:
    if not text.isdigit():
        raise OrtOptionError(f"{LEAST_ENTRY}: got {text!r}, wanted a number")
    return int(text)


def _name_of(name: str, target: Path) -> str:
    if not name or Path(name).name != name or name == target.name:
        raise OrtOptionError(f"{BESIDE_ENTRY}: got {name!r}, wanted the name of another file beside {target.name!r}")
    return name


def _check_apart(targets: list[Path], read: Mapping[Path, os.stat_result]) -> None:
    """Raise OrtOptionError where one of the files to write is one that was read, by this name or by another."""
    kept = {(found.st_dev, found.st_ino): path for path, found in read.items()}
    for target in filter(Path.exists, targets):
        found = target.stat()
        if (found.st_dev, found.st_ino) in kept:
            held = f"is what the session reads as {str(kept[found.st_dev, found.st_ino])!r}"
            raise OrtOptionError(f"optimized_model_filepath: {str(target)!r}: {held}, wanted another file")
