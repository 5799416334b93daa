"""Compiled graphs in the cache folder, so that the next process need not compile them.

The name of a blob is a digest of all that it depends on: the graph with its weights, the device with its version and
properties, the context, and the types of the inputs.  A blob may be code, so it is read as compiled kernels are: only
where nobody else could have written it (`base/trusted.py`).  All together keep to the limit of the kernel cache; those
that were used longest ago go first.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from bolt_numba.base.config import cache_limit
from bolt_numba.base.kept import cache_root, keep, parted
from bolt_numba.errors import DeviceError
from bolt_numba.hardware.interface import INTERFACE, CompileContext, DeviceDriver, Setting
from bolt_numba.hardware.registry import own_settings

if TYPE_CHECKING:
    from bolt_numba.ir.graph import Graph

FOLDER = "hardware"
MAGIC = b"BOLTBLOB"
VERSION = 3
_HEADER = struct.Struct("<8sIIQ")
"""Magic, version, the crc32 of its name and of it, bytes of the blob."""


def name_of(
    graph: Graph, driver: DeviceDriver, version: str, settings: Mapping[str, Setting], context: CompileContext
) -> str:
    """The name of what is compiled of a graph: equal for two only where all that it depends on is."""
    own = sorted(own_settings(settings).items())
    ranges = sorted((name, tuple(map(tuple, sizes))) for name, sizes in context.ranges.items())
    from bolt_numba.hardware.preparing import digest  # what starts from a blob alone does without

    more = (INTERFACE, driver.name, driver.vendor, version, own, context.threads, context.precision, ranges)
    return f"{driver.name}-{digest(graph, *more)}.blob"


def read(name: str) -> bytes | None:
    """What `write` kept by this name; None where nothing is.  Raises DeviceError for a file that is damaged."""
    for path, (head, blob) in parted(f"{FOLDER}/{name}", _HEADER.size):
        with suppress(OSError):
            os.utime(path)  # used now
        if len(head) < _HEADER.size:
            raise DeviceError(f"{path}: got {len(head)} bytes, wanted a header of {_HEADER.size}")
        magic, version, mark, size = _HEADER.unpack(head)
        if (magic, version) != (MAGIC, VERSION):
            raise DeviceError(f"{path}: magic and version: got {magic!r} and {version}, wanted {MAGIC!r} and {VERSION}")
        if len(blob) != size or _mark(name, blob) != mark:
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
        _limit(cache_root() / FOLDER, limit)


def _mark(name: str, blob: bytes) -> int:
    """Of a blob under its name: one that stands in the place of another is no good."""
    return crc32(blob, crc32(name.encode()))


def entries() -> list[tuple[Path, os.stat_result]]:
    """Files of this user, that used longest ago first."""
    found = []
    for path in (*(cache_root() / FOLDER).glob("*.blob"), *(cache_root() / FOLDER).glob("*.start")):
        with suppress(OSError):
            found.append((path, path.stat()))
    return sorted(found, key=lambda row: row[1].st_mtime_ns)


def clear() -> int:
    """Remove all; how many."""
    rows = entries()
    for path, _ in rows:
        with suppress(OSError):
            path.unlink()
    return len(rows)


def _limit(folder: Path, limit: int) -> None:
    rows = entries()
    nbytes = sum(found.st_size for _, found in rows)
    for path, found in rows[:-1]:
        if nbytes <= limit:
            return
        with suppress(OSError):
            path.unlink()
            nbytes -= found.st_size
