"""The optimised model that `SessionOptions.optimized_model_filepath` asks for, as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bolt_numba import surgery
from bolt_numba.converters import Content, format_of
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import Model
from bolt_numba.loading import save
from bolt_numba.onnxruntime.errors import OrtOptionError
from bolt_numba.packing import packed

BESIDE = "session.optimized_model_external_initializers_file_name"
LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"
"""Entries of the configuration: a file for weights beside the optimised model, and the least size of those in bytes."""


def save_optimised(graph: Graph, source: Any, path: str, entries: Mapping[str, str]) -> None:
    """Write a ``.bolt`` file with packed weights where the name says so, else the simplified graph as ONNX.

    source: what the graph was read from.  An ONNX file with operators that cannot be written is written as it is.
    entries: of the configuration.
    """
    if path.endswith(".bolt"):
        save(packed(graph), path)
        return
    try:
        surgery.save_onnx(surgery.simplify(graph), path)
        if BESIDE in entries:
            _move_weights(path, entries[BESIDE], entries.get(LEAST, "1024"))
    except UnsupportedOpError:
        content = None if isinstance(source, (Graph, Model)) else Content(source)
        if content is None or format_of(content) != "onnx":
            raise
        Path(path).write_bytes(content.data)


def _move_weights(path: str, name: str, least: str) -> None:
    """Put weights of a file of ONNX into another one beside it."""
    import onnx  # few sessions ask for it

    if not least.isdigit():
        raise OrtOptionError(f"{LEAST}: got {least!r}, wanted a number")
    model = onnx.load(path, load_external_data=False)
    (Path(path).parent / name).unlink(missing_ok=True)  # onnx would write behind what is there
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=int(least))
