"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bolt_numba.errors import BoltError, DTypeError


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
