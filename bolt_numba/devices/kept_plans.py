"""Plans of the CPU in the cache folder, so that the next process that compiles the same file need not make them.

A file holds what a session tells of itself, the program for the shapes that came first, its weights and its machine
code (`devices.stored`).  Where other processes begin with other shapes, these have files of their own, a few for each
model.  A file serves as long as all is as it was that a plan depends on: the model and the files that it names,
options, the sources of this package, the compiler, the processor.  What is kept is code, so it is read as compiled
kernels are: only where nobody else could have written it.  All together keep to a limit; those that were used longest
ago go first.  A model may be private, so nobody else may read them.  Nobody writes to a file that is kept, so processes
map it, and share its pages.

A file that has its stamp still is the same.  One with another stamp but of the same size is read, and compared by its
fingerprint: so a cache that came with the image of a container serves, though the system gave new inodes.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from bolt_numba.base.config import CHECK, MEMORY, plans_limit
from bolt_numba.base.digest import sha256
from bolt_numba.base.files.folder_index import state_of
from bolt_numba.base.files.kept import cache_root, drop_oldest, folders, keep
from bolt_numba.base.files.mapped import LINE, is_local
from bolt_numba.base.files.regular import open_regular
from bolt_numba.base.files.stamps import are_settled, is_unchanged, stamp_at
from bolt_numba.base.files.trusted import read_whole, use_trusted
from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.swallowed import swallowing
from bolt_numba.base.types import Array
from bolt_numba.kernels.instructions.processor import processor
from bolt_numba.kernels.jit import version_name
from bolt_numba.kernels.registry import KERNELS
from bolt_numba.ops.registry import OPS

T = TypeVar("T")
FOLDER, SUFFIX = "plans", ".plan"
PIECE = 4 << 20
"""Bytes that are checked at once, while they are in a cache of the processor."""
BLOCK = 4096
"""Bytes of which a checksum sees the sum."""
MOST_OTHERS = 3
"""Plans of one model for other shapes than those that came first."""
RESTED_S = 86_400.0
"""Seconds after which one of these that nobody has used gives way to another."""
ABANDONED_S = 3600.0
"""Age in seconds of a part of a file whose writer is gone."""
SOURCES = ("base", "codegen", "converters", "devices", "ir", "kernels", "ops", "passes", "runtime", "sessions")
"""Folders of this package on which it depends what a plan is, and how it is read."""
DAMAGED = (LookupError, ValueError, TypeError, OSError, RecursionError, struct.error)
"""What reading a damaged file ends in; all else is a fault of ours."""
FORMATS = ("onnx", "tflite", "bolt", "gguf")
"""Models that are one file, or name the others that they have."""
_OURS = "bolt_numba."
_READERS = {format.upper(): f"{_OURS}converters.{format}.reading.registry" for format in FORMATS}
"""Modules that have the readers of a format, once they are imported, by the name that these have there."""
_MAGIC = b"BOLTPLN1"
READ = 1 << 20
"""Bytes of a model that are read at once, to compare it."""
_SIZE = 3
"""Where a stamp has the size."""
_HEADER = struct.Struct("<8sQ32s16x")
"""Magic, and bytes and digest of the head, which follows; at the next cache line the pieces begin."""


def name_of(path: str, options: Mapping[str, Any]) -> str:
    """Of the file that has the plan of a model for the shapes that came first."""
    return f"{FOLDER}/{sha256(json.dumps([path, sorted(options.items())]).encode()).hexdigest()}{SUFFIX}"


def name_for(name: str, shapes: Any) -> str:
    """Of the file that has the same model's plan for these shapes, where others came first."""
    return f"{name.removesuffix(SUFFIX)}-{sha256(json.dumps(shapes).encode()).hexdigest()[:16]}{SUFFIX}"


def head_of(name: str, stamp: Sequence[Any]) -> dict[str, Any] | None:
    """What `write` kept beside the pieces; None where nothing is, it is damaged, or anything has changed since.

    stamp: of the model.
    """
    return _found(name, lambda file, known: _head(file, known, stamp))


def pieces_of(name: str, head: Mapping[str, Any]) -> Array | None:
    """The pieces with a head; None where they are not there any more, or damaged."""
    return _found(name, lambda file, known: _pieces(file, known, head))


def _found(name: str, look: Callable[[int, os.stat_result], T | None]) -> T | None:
    for folder in folders().read:
        with swallowing("kept plan", *DAMAGED):
            found = use_trusted(folder / name, look)
            if found is not None:
                return found
    return None


def used(name: str) -> None:
    """Note that a plan has served."""
    with suppress(OSError):
        os.utime(cache_root() / name)


def write(name: str, head: Mapping[str, Any], arrays: Sequence[Array]) -> None:
    """Keep a plan, whole or not at all, and drop old ones where all are too many bytes.

    head: ``files`` are stamps of the model and of those that it names, which nobody may have written to just now, and
    ``facts`` those from before it was made.  arrays: the pieces, bytes one behind another.
    """
    nbytes, limit = sum(len(array) for array in arrays), plans_limit()
    if nbytes > limit or not are_settled(head["files"]):
        return
    first = head_of(name, head["files"][0])
    if first is not None:
        other = name_for(name, head["shapes"])
        is_there = first["shapes"] == json.loads(json.dumps(head["shapes"])) or head_of(other, head["files"][0])
        if is_there or not _makes_way(name, other):
            return
        name = other
    contents = [_content(stamp[0]) for stamp in head["files"]]
    if not are_settled(head["files"]):
        return
    text = json.dumps({**head, "contents": contents, "nbytes": nbytes, "marks": [*_marks(arrays)]}).encode()
    start = _HEADER.pack(_MAGIC, len(text), sha256(text).digest()) + text
    if keep(name, [start, bytes(-len(start) % LINE), *(array.data for array in arrays)], is_private=True) is None:
        _limit(limit)


def facts() -> list[Any]:
    """What a plan depends on beside files and options."""
    root = Path(__file__).parent.parent
    sources = state_of(*[root / name for name in SOURCES])
    kind, _, caches = processor()
    return [sources, version_name(), sys.version, np.__version__, kind, list(caches), CHECK.value, MEMORY.value]


def is_extended() -> bool:
    """Whether this process has operators, kernels or readers of others, which a file says nothing of."""
    known = [cls.__module__ for cls in list(OPS.values())]
    known += [entry.make.__module__ for rows in list(KERNELS.values()) for entry in rows]
    for name, module in _READERS.items():
        table = getattr(sys.modules.get(module), name, None)
        known += [] if table is None else [reader.module for rows in list(table.table.values()) for reader in rows]
    return not all(name.startswith(_OURS) for name in known)


def entries() -> list[tuple[Path, os.stat_result]]:
    """Files of this user, that used longest ago first."""
    found = []
    for path in (cache_root() / FOLDER).glob(f"*{SUFFIX}"):
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


def _makes_way(name: str, other: str) -> bool:
    """Whether there may be a plan for other shapes; one that rests gives way to it."""
    first, own = (cache_root() / one for one in (name, other))
    rows = [row for row in entries() if row[0].name.startswith(f"{first.stem}-") and row[0] != own]
    if len(rows) < MOST_OTHERS:
        return True
    path, found = rows[0]
    if time.time() - found.st_mtime <= RESTED_S:
        return False
    path.unlink(missing_ok=True)
    return True


def _head(file: int, found: os.stat_result, stamp: Sequence[Any]) -> dict[str, Any] | None:
    magic, size, digest = _HEADER.unpack(read_whole(file, _HEADER.size))
    text = read_whole(file, min(size, found.st_size))
    if magic != _MAGIC or sha256(text).digest() != digest:
        return None
    head: dict[str, Any] = json.loads(text)
    files = _files_now(head, stamp) if head["facts"] == facts() else None
    starts = -(-(_HEADER.size + size) // LINE) * LINE
    is_whole = files is not None and found.st_size == starts + head["nbytes"]
    return head | {"files": files, "starts": starts, "digest": digest} if is_whole else None


def _files_now(head: Mapping[str, Any], stamp: Sequence[Any]) -> list[list[Any]] | None:
    """Stamps that the files have today; None where one holds something else."""
    now = [list(stamp), *[stamp_at(old[0]) for old in head["files"][1:]]]
    for old, new, content in zip(head["files"], now, head["contents"], strict=True):
        if new != old and (new[_SIZE] != old[_SIZE] or not content or _content(new[0]) != content):
            return None
    return now if now == head["files"] or all(map(is_unchanged, now)) else None


def _content(path: str) -> str:
    """Fingerprint of what a file holds; "" where no secret can be kept."""
    from bolt_numba.devices.seals import key_of_seals
    from bolt_numba.kernels.cpu.elementwise.fingerprint import fingerprint  # imports `hashlib`

    key, state = key_of_seals(), sha256()
    if not key:
        return ""
    with open_regular(path) as file:
        while piece := file.read(READ):
            state.update(fingerprint(np.frombuffer(piece, np.uint8), key).encode())
    return state.hexdigest()


def _pieces(file: int, found: os.stat_result, head: Mapping[str, Any]) -> Array | None:
    start = read_whole(file, _HEADER.size)
    if _HEADER.unpack(start)[-1] != head["digest"] or found.st_size != head["starts"] + head["nbytes"]:
        return None
    room = _room(file, found, head["starts"])
    pieces = (room[at : at + PIECE] for at in range(0, len(room), PIECE))
    return room if all(_mark(piece) == mark for piece, mark in zip(pieces, head["marks"], strict=True)) else None


def _room(file: int, found: os.stat_result, start: int) -> Array:
    """What a file holds from there on: its pages, which processes share; a copy where another machine may remove it."""
    if is_local(found):
        return np.frombuffer(mmap.mmap(file, found.st_size, access=mmap.ACCESS_READ), np.uint8)[start:]
    room = line_aligned(found.st_size - start)
    with open(file, "rb", buffering=0, closefd=False) as opened:
        opened.seek(start)
        for at in range(0, len(room), PIECE):  # the system reads at most 2 GiB at a time
            opened.readinto(room[at : at + PIECE].data)
    return room


def _marks(arrays: Sequence[Array]) -> Iterator[int]:
    """Checksums of pieces."""
    room, held = np.empty(PIECE, np.uint8), 0
    for array in arrays:
        while len(array):
            part, array = array[: PIECE - held], array[PIECE - held :]
            room[held : held + len(part)] = part
            held += len(part)
            if held == PIECE:
                yield _mark(room)
                held = 0
    if held:
        yield _mark(room[:held])


def _mark(piece: Array) -> int:
    """A checksum of the sums of blocks: a plain one takes four times as long."""
    whole = len(piece) // BLOCK * BLOCK
    sums = np.add.reduce(piece[:whole].view(np.uint64).reshape(-1, BLOCK // 8), 1)
    return crc32(piece[whole:].data, crc32(sums.data))


def _limit(limit: int) -> None:
    for part in (cache_root() / FOLDER).glob(".*.tmp"):
        with suppress(OSError):
            if part.stat().st_mtime < time.time() - ABANDONED_S:
                part.unlink()
    drop_oldest(entries(), limit)
