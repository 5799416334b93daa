"""The optimised model that `SessionOptions.optimized_model_filepath` asks for, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bolt_numba import surgery
from bolt_numba.converters import Content, format_of
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import Model
from bolt_numba.loading import save
from bolt_numba.packing import packed


def save_optimised(graph: Graph, source: Any, path: str) -> None:
    """Write a ``.bolt`` file with packed weights where the name says so, else the simplified graph as ONNX.

    source: what the graph was read from.  An ONNX file with operators that cannot be written is written as it is.
    """
    if path.endswith(".bolt"):
        save(packed(graph), path)
        return
    try:
        surgery.save_onnx(surgery.simplify(graph), path)
    except UnsupportedOpError:
        content = None if isinstance(source, (Graph, Model)) else Content(source)
        if content is None or format_of(content) != "onnx":
            raise
        Path(path).write_bytes(content.data)
