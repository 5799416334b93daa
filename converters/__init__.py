"""Readers of model files: one folder per format, found by suffix or first bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from bolt_numba.border import border
from bolt_numba.converters.bounded import reading
from bolt_numba.errors import DTypeError, InvalidModelError
from bolt_numba.ir import MAGIC
from bolt_numba.ir.graph import Graph
from bolt_numba.mapped import map_file
from bolt_numba.records import record

Source: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes]"

HEAD = 64
"""Bytes from which a format is told."""
MAPPED = 1 << 20
"""Bytes from which a file is mapped."""


class Content:
    """What a source holds: its first bytes, its path if it has one, a name for messages, all bytes when asked."""

    def __init__(self, source: Source) -> None:
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
            raise DTypeError(f"source: got a {type(source).__name__}, wanted a path, bytes or a binary file")
        if self.path is not None:
            self.name = self.path.name
        self.head = self._head()

    def _read(self, file: IO[bytes]) -> None:
        data = file.read()
        if not isinstance(data, bytes):
            raise DTypeError(f"source: got a file that reads {type(data).__name__}, wanted one opened as binary")
        self._data = data
        name = getattr(file, "name", None)
        if isinstance(name, str) and Path(name).is_file():
            self.path = Path(name)

    def _head(self) -> bytes:
        if self._data is not None or self.path is None:
            return self.data[:HEAD]
        with self.path.open("rb") as file:
            return file.read(HEAD)

    @property
    def data(self) -> bytes:
        """All bytes, read once."""
        if self._data is None:
            assert self.path is not None, "a source has bytes or a path"
            self._data = self.path.read_bytes()
        return self._data

    @property
    def view(self) -> bytes | memoryview:
        """All bytes; those of a large file are mapped, not read."""
        if self._data is None and self.path is not None and self.path.stat().st_size >= MAPPED:
            return memoryview(map_file(self.path))
        return self.data

    @property
    def folder(self) -> Path | None:
        """Where files that belong to the model are looked for."""
        return None if self.path is None else self.path.resolve().parent


@record(frozen=True)
class Format:
    """How to tell a format, from first bytes and path, and how to read it."""

    matches: Callable[[bytes, Path | None], bool]
    read: Callable[[Content], Graph]


def _is_bolt(head: bytes, path: Path | None) -> bool:
    return head.startswith(MAGIC) or (path is not None and path.suffix.lower() == ".bolt")


def _read_bolt(content: Content) -> Graph:
    from bolt_numba.ir.store import load_bolt

    return load_bolt(content.data if content.path is None else content.path)


def _is_onnx(head: bytes, path: Path | None) -> bool:
    """By suffix, else by the first field, which writers make ir_version."""
    return (path is not None and path.suffix.lower() == ".onnx") or head[:1] == b"\x08"


def _read_onnx(content: Content) -> Graph:
    from bolt_numba.converters.onnx.reading.read import read_onnx

    return read_onnx(content.view, content.folder, content.name)


FORMATS: dict[str, Format] = {"bolt": Format(_is_bolt, _read_bolt), "onnx": Format(_is_onnx, _read_onnx)}
"""All formats by name; a new one is a new entry.  The first that matches wins."""


@border("load", OSError)
def load(source: Source, format: str | None = None) -> Graph:
    """Read a model into a graph.

    source: a path, the bytes, or a binary file object.  format: a key of `FORMATS`; None finds it out.
    Raises InvalidModelError for what is no valid model of the format, UnsupportedOpError listing all operators
    that have no meaning here, OSError when the file cannot be opened.
    """
    content = Content(source)
    if format is None:
        found = next((key for key, entry in FORMATS.items() if entry.matches(content.head, content.path)), None)
        if found is None:
            raise InvalidModelError(
                f"{content.name}: format: got a file that starts with {content.head[:8]!r}, wanted {list(FORMATS)}"
            )
        format = found
    if format not in FORMATS:
        raise InvalidModelError(f"format: got {format!r}, wanted one of {list(FORMATS)}")
    with reading(content.name, OSError):
        return FORMATS[format].read(content)
