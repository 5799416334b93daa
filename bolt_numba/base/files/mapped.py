"""Model files mapped into memory: their pages are clean, so the system may drop them and read them again.

Who may write to a file can change what a map shows, and reading beyond the end of one that was cut short ends the
process.  So a map is only read while a model is loaded and planned, after a look at the file; what runs read is copied.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.array_utils import byte_bounds

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.regular import open_regular
from bolt_numba.base.types import Array

PAGE = mmap.PAGESIZE
LINE = 64
LEAST_MAPPED = 1 << 16
"""Bytes from which an array stays in a map: smaller ones would save nothing."""

_LOCAL = frozenset(("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"))
"""Kinds of file systems whose files only this machine removes."""

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of the last write."""


class FileMap(mmap.mmap):
    """A whole file, read-only."""

    path: Path
    _stamp: Stamp

    def is_intact(self) -> bool:
        """False when the file was written to since it was mapped; what replaced it under its name does not matter."""
        try:
            now = _stamp(os.stat(self.path))
        except OSError:
            return True
        return now[:2] != self._stamp[:2] or now == self._stamp


def is_local(found: os.stat_result) -> bool:
    """Whether a file that is mapped stays until this machine lets it go: one of a server may be removed by others."""
    with suppress(OSError):  # systems other than Linux do not tell
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            row = line.split()
            if row[2] == f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}":
                return row[row.index("-") + 1] in _LOCAL
    return False


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


_maps_in_use: weakref.WeakValueDictionary[Stamp, FileMap] = weakref.WeakValueDictionary()


def map_file(path: Path) -> FileMap:
    """The map of a file as it is, which is not empty; raises OSError, and InvalidModelError for what is no file."""
    with open_regular(path) as file:
        return map_opened(file, path)


def map_opened(file: BinaryIO, path: Path) -> FileMap:
    """The same of a file that is opened, under its path."""
    stamp = _stamp(os.fstat(file.fileno()))
    made = _maps_in_use.get(stamp)
    if made is None or made.path != path:
        made = FileMap(file.fileno(), 0, access=mmap.ACCESS_READ)
        made.path, made._stamp = path, stamp
        _maps_in_use[stamp] = made
    return made


def map_of(array: Any) -> FileMap | None:
    """The map whose memory an array is a view of."""
    base = array
    while base is not None and not isinstance(base, FileMap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base


_copies: dict[int, tuple[Array, weakref.ref[Array]]] = {}


def unmapped(view: Array) -> Array:
    """Bytes of a file as an array of their own if they are few; many as they are."""
    return view if view.nbytes >= LEAST_MAPPED or map_of(view) is None else aligned_copy(view)


def aligned_copy(data: bytes | bytearray | memoryview | Array) -> Array:
    """Bytes that begin at a cache line and are read-only."""
    room = np.empty(len(data) + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    made = room[start : start + len(data)]
    made[:] = np.frombuffer(data, np.uint8)
    made.flags.writeable = False
    return made


def for_runs(array: Any) -> Any:
    """A value as runs may read it: an array in a file is replaced by the copy that `for_kernels` makes."""
    return array if map_of(array) is None else for_kernels(array)


def copy_of(array: Any) -> Any:
    """The copy that plans have of an array; None where they have none."""
    found = _copies.get(id(array))  # one look: the last copy may go in another thread
    return None if found is None else found[1]()


def for_kernels(array: Array) -> Array:
    """The array, or a copy that all plans share: dense, aligned, and not in a file."""
    if map_of(array) is None and array.flags.c_contiguous and array.flags.aligned:
        return array
    key, known = id(array), copy_of(array)
    if known is not None:
        return known  # type: ignore[no-any-return]
    made = np.array(array, order="C")
    drop_pages(array)
    # The source is kept as long as the copy, so that its id stays taken.
    _copies[key] = array, weakref.ref(made, lambda _: _copies.pop(key, None))
    return made


def drop_pages(array: Array) -> None:
    """Let go of the memory behind a view of a map; the next read of it reads the file again."""
    found = map_of(array)
    if found is None or not hasattr(found, "madvise"):
        return
    low, high = byte_bounds(array)
    origin = np.frombuffer(found, np.uint8).ctypes.data
    start = (low - origin) // PAGE * PAGE
    found.madvise(mmap.MADV_DONTNEED, start, high - origin - start)


def _maps(arrays: Sequence[Array]) -> Iterable[FileMap]:
    return {id(m): m for m in map(map_of, arrays) if m is not None}.values()


def drop_maps(arrays: Sequence[Array]) -> None:
    """Let go of the memory of all files that arrays are views of."""
    for found in _maps(arrays):
        if hasattr(found, "madvise"):
            found.madvise(mmap.MADV_DONTNEED)


def check_intact(arrays: Iterable[Array | None]) -> None:
    """Raise InvalidModelError when a file that arrays are views of was written to since it was mapped."""
    for found in _maps([a for a in arrays if a is not None and a.nbytes >= LEAST_MAPPED]):
        if not found.is_intact():
            raise InvalidModelError(f"{found.path}: was written to since it was loaded; wanted the file as it was")
