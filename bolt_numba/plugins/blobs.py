"""Compiled graphs in the cache folder, so that the next process need not compile them.

The name of a blob is a digest of all that it depends on: the graph with its weights, the device with its version and
properties, the context, and the types of the inputs.  A blob may be code, so it is read as compiled kernels are: only
where nobody else could have written it (`base/files/trusted.py`).  All together keep to the limit of the kernel cache;
those that were used longest ago go first.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from bolt_numba.base.config import cache_limit
from bolt_numba.base.errors import DeviceError
from bolt_numba.base.files.kept import cache_root, drop_oldest, keep, maps
from bolt_numba.plugins.interface import INTERFACE, CompileContext, DeviceDriver, Setting
from bolt_numba.plugins.registry import own_settings

if TYPE_CHECKING:
    from bolt_numba.ir.graph import Graph

FOLDER = "plugins"
MAGIC = b"BOLTBLOB"
VERSION = 3
_HEADER = struct.Struct("<8sIIQ40x")
"""Magic, version, the crc32 of its name and of it, bytes of the blob, which begins at a cache line."""
Stamp: TypeAlias = "list[int]"
"""Device, inode, size and time of the last write of a file."""


def name_of(
    graph: Graph, driver: DeviceDriver, version: str, settings: Mapping[str, Setting], context: CompileContext
) -> str:
    """The name of what is compiled of a graph: equal for two only where all that it depends on is."""
    own = sorted(own_settings(settings).items())
    ranges = sorted((name, tuple(map(tuple, sizes))) for name, sizes in context.ranges.items())
    from bolt_numba.plugins.preparing import digest  # what starts from a blob alone does without

    more = (INTERFACE, driver.name, driver.vendor, version, own, context.threads, context.precision, ranges)
    return f"{driver.name}-{digest(graph, *more)}.blob"


def read(name: str) -> bytes | None:
    """What `write` kept by this name; None where nothing is.  Raises DeviceError for a file that is damaged."""
    found = mapped(name)
    return None if found is None else bytes(found)


def mapped(name: str, known: Stamp | None = None) -> memoryview | None:
    """The same in the cache's own pages.  known: of a file that was looked at, where no checksum has to be taken."""
    for path, data, found in maps(f"{FOLDER}/{name}"):
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))  # used now
        if len(data) < _HEADER.size:
            raise DeviceError(f"{path}: got {len(data)} bytes, wanted a header of {_HEADER.size}")
        magic, version, mark, size = _HEADER.unpack_from(data)
        blob = data[_HEADER.size :]
        if (magic, version) != (MAGIC, VERSION):
            raise DeviceError(f"{path}: magic and version: got {magic!r} and {version}, wanted {MAGIC!r} and {VERSION}")
        is_known = known is not None and stamp_of(found) == known
        if len(blob) != size or (not is_known and _mark(name, blob) != mark):
            raise DeviceError(f"{path}: is damaged: got {len(blob)} bytes, wanted {size} of another checksum")
        return blob
    return None


def write(name: str, blob: bytes) -> None:
    """Keep a blob, whole or not at all, and drop old ones where all are too many bytes."""
    data = _HEADER.pack(MAGIC, VERSION, _mark(name, blob), len(blob)) + blob
    limit = cache_limit()
    if limit and len(data) > limit:
        return
    keep(f"{FOLDER}/{name}", data)
    if limit:
        drop_oldest(entries(), limit)


def stamp(name: str) -> Stamp | None:
    """Of the file that `mapped` would look at."""
    return next((stamp_of(found) for _, _, found in maps(f"{FOLDER}/{name}")), None)


def stamp_of(found: os.stat_result) -> Stamp:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _mark(name: str, blob: bytes | memoryview) -> int:
    """Of a blob under its name: one that stands in the place of another is no good."""
    return crc32(blob, crc32(name.encode()))


def entries() -> list[tuple[Path, os.stat_result]]:
    """Files of this user, that used longest ago first."""
    found = []
    for path in (*(cache_root() / FOLDER).glob("*.blob"), *(cache_root() / FOLDER).glob("*.start")):
        with suppress(OSError):
            found.append((path, path.stat()))
    return sorted(found, key=lambda row: max(row[1].st_atime_ns, row[1].st_mtime_ns))


def clear() -> int:
    """Remove all; how many."""
    rows = entries()
    for path, _ in rows:
        with suppress(OSError):
            path.unlink()
    return len(rows)
