"""Model files to graphs, whatever their format, and graphs to `.bolt` files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, TypeAlias

from bolt_numba.base.border import border
from bolt_numba.base.errors import BoltError, DTypeError
from bolt_numba.base.files.stamps import stamp_of
from bolt_numba.devices.seals import check_sources
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import Model

File: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes]"
Source: TypeAlias = "File | Graph | Model"


@border("load", OSError)
def load(
    source: Source, format: str | None = None, *, weights: File | None = None, signature: str | None = None
) -> Graph:
    """Read one graph of a model; see `load_model`.  signature: its name; None: the first, the only one of most.

    Raises as `load_model`: InvalidModelError, UnsupportedOpError, DTypeError; BoltError for a signature.
    """
    graph = read_model(source, format, weights).graph(signature)
    return _checked(graph, source)


@border("load", OSError)
def load_model(source: Source, format: str | None = None, *, weights: File | None = None) -> Model:
    """Read a model with all its graphs: a path (of a folder, where the format has such), bytes or a binary file object.

    The format is told by content (ONNX, .bolt).  weights: the second file of formats that keep weights apart.
    Raises InvalidModelError for a malformed file, UnsupportedOpError with all that is unsupported in it, and DTypeError
    for what is no source of a model.
    """
    model = read_model(source, format, weights)
    for graph in model.graphs.values():
        _checked(graph, source)
    return model


def _checked(graph: Graph, source: Source) -> Graph:
    """A graph of a file, of whose constants those that are packed in it have been looked at."""
    if graph.packed is not None and not isinstance(source, (Graph, Model)):
        check_sources(graph.packed, graph)
    return graph


def read_model(source: Source, format: str | None = None, weights: File | None = None) -> Model:
    """As `load_model`, but that constants which are packed in the file are not looked at."""
    if not isinstance(source, (Graph, Model)):
        from bolt_numba.converters import formats

        return formats.load_model(source, format, weights)
    if weights is not None:
        raise DTypeError(f"weights: got a file for a {type(source).__name__}, wanted none")
    return source if isinstance(source, Model) else Model(source)


def read_noting(path: str | os.PathLike[str], content: bytes | None = None) -> tuple[Model, list[list[Any]]]:
    """A model, and stamps of the files that it names, from before they were read.

    content: the file's, where another one has its place.
    """
    from bolt_numba.converters.bounded import files_named

    with files_named() as named:
        made = read_model(path) if content is None else read_model(content, os.path.splitext(path)[1].lower()[1:])
    return made, [stamp_of(file, found) for file, found in named.items()]


@border("save", OSError)
def save(model: Graph | Model, path: str | Path) -> None:
    """Write a graph, or all graphs of a model, as one ``.bolt`` file, or as ONNX to a path that ends in ``.onnx``.

    The file is replaced atomically.  `surgery.save_onnx` has more options.  Raises DTypeError for what is neither,
    BoltError for a path that cannot be written or for several graphs in an ``.onnx`` file, UnsupportedOpError for what
    ONNX has no words for.
    """
    from bolt_numba.ir import store

    given: object = model
    if isinstance(given, (Graph, Model)) and str(path).lower().endswith(".onnx"):
        from bolt_numba.converters.onnx.writing.write import save_onnx

        whole = read_model(given)
        if (count := len(whole.graphs)) != 1:
            raise BoltError(f"{str(path)!r}: got a model of {count} graphs, wanted one, or a .bolt file for all")
        save_onnx(whole.graph(), path)
        return
    store.save(model, path)
