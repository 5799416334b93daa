"""Stamps of files: device, inode, size and times, which the system gives anew when somebody writes.

What is remembered of a file between processes holds for as long as its stamp is the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

SETTLED = 2.0
"""Seconds for which a file must not have been written to: some systems tell times no finer."""


def stamp_at(path: str | os.PathLike[str]) -> list[Any]:
    """Of a file: what is another when somebody writes to it, or puts another one in its place; raises OSError."""
    place = os.path.abspath(path)
    found = os.stat(place)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{place}: is no file")
    return stamp_of(place, found)


def stamp_of(path: str | os.PathLike[str], found: os.stat_result) -> list[Any]:
    """The same of what the system said of a file."""
    return [os.fspath(path), *_identity(found), found.st_ctime_ns]


def _identity(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def is_unchanged(stamp: Sequence[Any]) -> bool:
    """Whether a file is the one that it was."""
    with suppress(OSError):
        return stamp_at(stamp[0]) == stamp
    return False


def is_in_place(stamp: Sequence[Any]) -> bool:
    """Whether a file has what it had; who may read it, or what else it is called, may have changed."""
    with suppress(OSError):
        return is_same(os.stat(stamp[0]), stamp)
    return False


def is_same(found: os.stat_result, stamp: Sequence[Any]) -> bool:
    """The same for a file that is open, and need not have its name any more."""
    return _identity(found) == stamp[1:5]


def are_settled(stamps: Sequence[Sequence[Any]]) -> bool:
    """Whether files are those that they were, and nobody has written to one just now."""
    newest = max(max(stamp[-2:]) for stamp in stamps) / 1e9
    return all(map(is_unchanged, stamps)) and 0 <= newest <= time.time() - SETTLED
