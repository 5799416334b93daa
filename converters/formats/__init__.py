"""The formats of model files, told by content or suffix, and how a file of any is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

from bolt_numba.base.border import border
from bolt_numba.base.errors import DTypeError, InvalidModelError, UnsupportedOpError
from bolt_numba.base.files.mapped import map_file
from bolt_numba.base.files.regular import open_regular, read_regular
from bolt_numba.base.records import record
from bolt_numba.converters.bounded import HEAD, Folders, file_below, reading, refuse_no_model
from bolt_numba.converters.formats.others import of_program, other_kind
from bolt_numba.ir import MAGIC
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import Model

Source: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes]"

SUFFIXES = (".onnx", ".tflite", ".bolt", ".caffemodel", ".gguf")
"""Of files that are a whole model each."""
SHOWN_FILES = 8
"""Files of an unknown folder that a message names."""
MAPPED = 1 << 20
"""Bytes from which a file is mapped."""


class Content:
    """What a source holds: its first bytes, its path if it has one, a name for messages, all bytes when asked.

    weights: the second file, where the caller names one.  A folder has a path and no bytes.
    """

    def __init__(self, source: Source, weights: Source | None = None) -> None:
        self.weights = None if weights is None else Content(weights)
        self.path: Path | None = None
        self.name = "model"
        self._data: bytes | None = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._data = bytes(source)
        elif isinstance(source, (str, os.PathLike)):
            self.path = Path(source)
        elif hasattr(source, "read"):
            self._read(source)
        else:
            found = f"a {type(source).__name__}".replace("a NoneType", "None")
            wanted = f"wanted a path, bytes, a binary file or a graph{of_program(source)}"
            raise DTypeError(f"model: got {found}, {wanted}")
        if self.path is not None:
            self.name = self.path.name or str(self.path)
        self.is_folder = self.path is not None and self.path.is_dir()
        self.head = self._head()
        refuse_no_model(self.head, self.name)

    def _read(self, file: IO[bytes]) -> None:
        try:
            data = file.read()
        except OSError:
            raise
        except Exception as error:  # of any kind: a text that is none, or an object of the caller's
            raise DTypeError(f"source: got a file that cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(data, bytes):
            raise DTypeError(f"source: got a file that reads {type(data).__name__}, wanted one opened as binary")
        self._data = data
        name = getattr(file, "name", None)
        if isinstance(name, str) and Path(name).is_file():
            self.path = Path(name)

    def _head(self) -> bytes:
        if self.is_folder:
            return b""
        if self._data is not None or self.path is None:
            return self.data[:HEAD]
        try:
            with open_regular(self.path) as file:
                return file.read(HEAD)
        except ValueError as error:  # no name that a file can have
            raise InvalidModelError(f"{self.name!r}: cannot be opened: {error}") from error

    @property
    def data(self) -> bytes:
        """All bytes, read once."""
        if self._data is None:
            assert self.path is not None, "a source has bytes or a path"
            self._data = read_regular(self.path)
        return self._data

    @property
    def view(self) -> bytes | memoryview:
        """All bytes; those of a large file are mapped, not read."""
        if self._data is None and self.path is not None and self.path.stat().st_size >= MAPPED:
            return memoryview(map_file(self.path))
        return self.data

    @property
    def folders(self) -> Folders:
        """Where files that belong to the model are looked for: beside it, then beside the file that a link leads to."""
        if self.path is None or self.is_folder:
            return () if self.path is None else (self.path,)
        return tuple(dict.fromkeys((Path(os.path.abspath(self.path)).parent, self.path.resolve().parent)))


@record(frozen=True)
class Format:
    """How to tell a format, from first bytes and path, and how to read it.

    weights: whether its weights may come in a second file, which the content then has.  folders: whether a model may be
    a folder; only then ``matches`` is asked of one, with no bytes.  unsupported: a line for everything that has no
    meaning here, where `read` alone does not list it all.
    """

    matches: Callable[[bytes, Path | None], bool]
    read: Callable[[Content], Graph | Model]
    weights: bool = False
    folders: bool = False
    unsupported: Callable[[Content], list[str]] | None = None


def _is_bolt(head: bytes, path: Path | None) -> bool:
    return head.startswith(MAGIC) or (path is not None and path.suffix.lower() == ".bolt")


def _read_bolt(content: Content) -> Model:
    from bolt_numba.ir.store import load_model

    return load_model(content.data if content.path is None else content.path)


def _is_onnx(head: bytes, path: Path | None) -> bool:
    """By suffix, else by the first field, which writers make ir_version."""
    return (path is not None and path.suffix.lower() == ".onnx") or head[:1] == b"\x08"


def _read_onnx(content: Content) -> Graph:
    from bolt_numba.converters.onnx.reading.read import read_onnx

    return read_onnx(content.view, content.folders, content.name)


def _unsupported_onnx(content: Content) -> list[str]:
    from bolt_numba.converters.onnx.reading.survey import unsupported_onnx

    return unsupported_onnx(content.data, content.folders, content.name)


def _is_tflite(head: bytes, path: Path | None) -> bool:
    """By the identifier of its schema, else by suffix: very old writers left it out."""
    return head[4:8] == b"TFL3" or (path is not None and path.suffix.lower() == ".tflite")


def _read_tflite(content: Content) -> Model:
    from bolt_numba.converters.tflite.reading.read import read_tflite

    return read_tflite(content.view, content.name, content.folders)


def _is_gguf(head: bytes, path: Path | None) -> bool:
    return head.startswith(b"GGUF") or (path is not None and path.suffix.lower() == ".gguf")


def _read_gguf(content: Content) -> Graph:
    from bolt_numba.converters.gguf.read import read_gguf

    def open_part(name: str, what: str) -> bytes | memoryview:
        return Content(file_below(content.folders, name, what)).view

    return read_gguf(content.view, content.name, open_part)


def _is_paddle(head: bytes, path: Path | None) -> bool:
    from bolt_numba.converters.paddle.detect import is_paddle

    return is_paddle(head, path)


def _read_paddle(content: Content) -> Graph:
    from bolt_numba.converters.paddle.reading.read import read_paddle

    return read_paddle(content)


def _is_caffe(head: bytes, path: Path | None) -> bool:
    from bolt_numba.converters.caffe.format import is_caffe

    return is_caffe(head, path)


def _read_caffe(content: Content) -> Graph:
    from bolt_numba.converters.caffe.reading.read import read_caffe

    second = None if content.weights is None else (content.weights.view, content.weights.name)
    return read_caffe(content.view, content.name, content.path, second)


def _is_caffe_mean(head: bytes, path: Path | None) -> bool:
    """By suffix alone: the first bytes are those of many others."""
    return path is not None and path.suffix.lower() == ".binaryproto"


def _read_caffe_mean(content: Content) -> Graph:
    from bolt_numba.converters.caffe.mean import mean_graph

    return mean_graph(content.view, content.name)


FORMATS: dict[str, Format] = {
    "bolt": Format(_is_bolt, _read_bolt),
    "gguf": Format(_is_gguf, _read_gguf),
    "tflite": Format(_is_tflite, _read_tflite),
    "caffe mean": Format(_is_caffe_mean, _read_caffe_mean),
    "onnx": Format(_is_onnx, _read_onnx, unsupported=_unsupported_onnx),
    "paddle": Format(_is_paddle, _read_paddle, weights=True, folders=True),
    "caffe": Format(_is_caffe, _read_caffe, weights=True),
}
"""All formats by name; a new one is a new entry.  The first that matches wins."""


@border("load", OSError)
def load(
    source: Source, format: str | None = None, weights: Source | None = None, signature: str | None = None
) -> Graph:
    """Read one graph of a model; see `load_model`.  signature: its name; None: the first, the only one of most."""
    return load_model(source, format, weights).graph(signature)


@border("load", OSError)
def load_model(source: Source, format: str | None = None, weights: Source | None = None) -> Model:
    """Read a model.

    source: a path, the bytes, or a binary file object; a folder for formats that have such.  format: a key of
    `FORMATS`; None finds it out.  weights: the second file of formats that keep weights apart.
    Raises InvalidModelError for what is no valid model of the format, UnsupportedOpError listing all operators
    that have no meaning here, OSError when a file cannot be opened.
    """
    content = Content(source, weights)
    entry = FORMATS[format_of(content, format)]
    try:
        with reading(content.name, OSError):
            made = entry.read(content)
    except InvalidModelError:
        if not content.is_folder:  # what else lies in a folder of a model says nothing of it
            _refuse_others(content)
        raise
    model = Model(made) if isinstance(made, Graph) else made
    for graph in model.graphs.values():
        graph.source = content.name if content.path is not None else ""
    return model


@border("unsupported", OSError)
def unsupported(source: Source, weights: Source | None = None) -> list[str]:
    """A line for everything in a model that has no meaning here; none when the model can be read.

    Raises InvalidModelError for a malformed file.
    """
    content = Content(source, weights)
    entry = FORMATS[format_of(content)]
    try:
        with reading(content.name, OSError):
            entry.read(content)
    except UnsupportedOpError as error:
        return list(error.items) if entry.unsupported is None else entry.unsupported(content)
    return []


def format_of(content: Content, format: Any = None) -> str:
    """The key of a model's format, which may be given; raises InvalidModelError where it does not fit the content."""
    if format is None:
        format = next((key for key, entry in FORMATS.items() if _may_be(entry, content)), None)
    if format is None:
        _refuse_others(content)
        known = ", ".join(key for key, entry in FORMATS.items() if entry.folders or not content.is_folder)
        wanted = f"a file of {known or list(FORMATS)}"
        if content.is_folder and known:
            wanted = f"a file, or a folder of {known}"
        raise InvalidModelError(f"{content.name}: format: got {_found(content)}, wanted {wanted}")
    if not isinstance(format, str) or format not in FORMATS:
        raise InvalidModelError(f"format: got {format!r}, wanted one of {list(FORMATS)}")
    if content.is_folder and not FORMATS[format].folders:
        raise InvalidModelError(f"{content.name}: format: got a folder, wanted a file of {format}")
    if content.weights is not None and not FORMATS[format].weights:
        name = content.weights.name
        raise InvalidModelError(
            f"{content.name}: weights: got {name}, wanted no second file: those of {format} name what belongs to them"
        )
    return str(format)


def _refuse_others(content: Content) -> None:
    """Say what a file is that no reader takes, where it is of a kind that is known."""
    inside = sorted(content.path.iterdir()) if content.is_folder and content.path else []
    if ours := [os.fspath(path) for path in inside if path.suffix.lower() in SUFFIXES]:
        raise InvalidModelError(f"{content.name}: got a folder, wanted a model in it: {', '.join(ours[:SHOWN_FILES])}")
    if told := other_kind(content.head, [content.name, *(path.name for path in inside)]):
        raise InvalidModelError(f"{content.name}: got {told}")
    if not content.is_folder and not content.head:
        raise InvalidModelError(f"{content.name}: got an empty file, wanted a model")


def _may_be(entry: Format, content: Content) -> bool:
    return (entry.folders or not content.is_folder) and entry.matches(content.head, content.path)


def _found(content: Content) -> str:
    """What a source of no known format is."""
    if content.path is None or not content.is_folder:
        return f"a file that starts with {content.head[:8]!r}"
    names = sorted(entry.name for entry in content.path.iterdir())
    rest = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return f"a folder with {', '.join(names[:SHOWN_FILES]) or 'nothing'}{rest}"
