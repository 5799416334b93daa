"""Files: opened without waiting and refused where they are none, and written complete or not at all.

Opening a named pipe waits for whoever writes to it, and a device may never end.  A look before opening would not help:
another file may take the place meanwhile.  So what has been opened is looked at.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from bolt_numba.base.errors import BoltError, DTypeError, InvalidModelError

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NO_FILE = (errno.ENXIO, errno.ENODEV, getattr(errno, "EOPNOTSUPP", errno.ENXIO))
"""What systems say of sockets, and of devices that are not there."""
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file for reading its bytes.

    Raises InvalidModelError for pipes, sockets and devices, and what `open` raises for all else.
    """
    return open(path, "rb", opener=open_descriptor)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def read_text(
    path: str | os.PathLike[str], most: int, wanted: str, refusal: type[BoltError] = InvalidModelError
) -> str:
    """A text in UTF-8 of up to ``most`` bytes, which ``wanted`` names; see `open_regular`.

    Raises ``refusal`` for a longer one, and for other bytes.
    """
    with open_regular(path) as file:
        held = file.read(most + 1)
    if len(held) > most:
        raise refusal(f"{path}: got more than {most} bytes, wanted {wanted}")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refusal(f"{path}: got bytes that are no UTF-8, wanted {wanted}") from error


def open_descriptor(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """The number of the file in this process, which the caller closes; folders have one, too."""
    try:
        file = os.open(path, flags | _AT_ONCE)
    except OSError as error:
        if error.errno in _NO_FILE:
            _check(path, os.stat(path))
        raise
    try:
        _check(path, os.fstat(file))
    except InvalidModelError:
        os.close(file)
        raise
    return file


def _check(path: str | os.PathLike[str], found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise InvalidModelError(f"{os.fspath(path)}: got {_KINDS.get(kind, 'no file')}, wanted a file")


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` when all went well, with the mode that the user's mask gives."""
    if not isinstance(path, (str, os.PathLike)):
        raise DTypeError(f"path: got a {type(path).__name__}, wanted a path")
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        opened = open(temporary, "xb")  # noqa: SIM115  # closed below; an error in here is another matter
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise BoltError(f"{str(target)!r}: cannot be written: {said}") from error
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
