"""What a TFLite file says of itself: name, author, version; and files that belong to it, as lists of labels.

The files are a zip archive behind the FlatBuffer; the rest is a FlatBuffer of its own in a buffer of the model.
Source: metadata_schema.fbs of TFLite Support.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import FILE_WAS
from bolt_numba.converters.flat import FlatBuffer, FlatField
from bolt_numba.converters.tflite.container import Container

MAX_FILES, MAX_BYTES = 256, 1 << 24
"""Files of a model that are read, and what they may hold in all."""
_END = b"PK\x05\x06"
_TAIL = 1 << 16
_NAME = "TFLITE_METADATA"

_FIELDS: Mapping[str, Sequence[FlatField | None]] = {
    "ModelMetadata": tuple(
        None if name is None else FlatField(name, "str")
        for name in ("name", "description", "version", None, "author", "license")
    )
}


def metadata_of(container: Container) -> dict[str, str]:
    """Texts by name: those of the model, and the content of each associated file that is a text."""
    return {"format": "tflite", **_own(container), **{FILE_WAS + k: v for k, v in associated_files(container).items()}}


def _own(container: Container) -> dict[str, str]:
    found = {"description": container.model["description"] or ""}
    for row in container.model["metadata"] or ():
        data = container.buffer(row["buffer"]) if row["name"] == _NAME else None
        if data is not None:
            what = f"{container.file}: metadata"
            table = FlatBuffer(data.tobytes(), _FIELDS, {}, what).root("ModelMetadata")
            found |= {key: text for key, text in table.items() if text}
    return found


def associated_files(container: Container) -> dict[str, str]:
    """Texts of the archive behind the model; of what is no text, "".

    What cannot be read is no archive, but weights that look like one.  Raises InvalidModelError where it would hold too
    much.
    """
    tail = container.data[max(0, len(container.data) - _TAIL) :]
    if _END not in bytes(tail):
        return {}
    try:
        return _archived(container)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, InvalidModelError):
            raise
        return {}


def _archived(container: Container) -> dict[str, str]:
    with zipfile.ZipFile(_View(container.data)) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        size = sum(entry.file_size for entry in entries)
        if len(entries) > MAX_FILES or size > MAX_BYTES:
            got = f"{len(entries)} of {size} bytes"
            raise container.invalid("associated files", got, f"at most {MAX_FILES} of {MAX_BYTES} bytes")
        return {entry.filename: _text(archive, entry) for entry in entries}


def _text(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others ask for memory as they like
        return ""
    with archive.open(entry) as file:
        data = file.read(entry.file_size)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return ""


class _View(io.RawIOBase):
    """Bytes as a file, without a copy of them."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = max(0, offset + (0, self.at, len(self.data))[whence])
        return self.at

    def readinto(self, buffer: Any) -> int:
        part = self.data[self.at : self.at + len(buffer)]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)
