"""Keeps the folder of compiled kernels under its limit: what was used least recently goes first.

Looking at the folder is for processes that write to it, which have just spent far longer on compiling; one that only
reads does nothing here.  When a kernel was read is what the file system remembers (``atime``, a day exact on most).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from bolt_numba.base.config import cache_limit
from bolt_numba.base.files.kept import cache_root
from bolt_numba.base.records import record

MIB = 1 << 20
KEPT = 0.9
"""Part of the limit that is left when files are removed, so that the next write does not remove again."""
UNSEEN = 32 * MIB
"""Bytes after which a process looks again: others write, too."""
ABANDONED = 3600.0
"""Age in seconds of a temporary file whose writer is gone."""


@record(frozen=True)
class CacheFile:
    """used: seconds, when it was written or last read."""

    path: str
    folder: str
    size: int
    used: float


class _Seen:
    """What this process knows: bytes of all kernels, when it last looked, and bytes it has written since."""

    total = 0
    written = UNSEEN


def _files(root: Path, suffix: str) -> Iterator[CacheFile]:
    """Files that belong to this user, of all versions and instruction sets; links are not followed."""
    with suppress(OSError), os.scandir(root) as folders:
        for folder in folders:
            if "-" not in folder.name or not folder.is_dir(follow_symlinks=False) or not _is_own(folder):
                continue
            with suppress(OSError), os.scandir(folder.path) as files:
                for file in files:
                    if not file.name.endswith(suffix):
                        continue
                    with suppress(OSError):
                        known = file.stat(follow_symlinks=False)
                        used = max(known.st_mtime, known.st_atime)
                        yield CacheFile(file.path, folder.path, known.st_size, used)


def _is_own(folder: os.DirEntry[str]) -> bool:
    return not hasattr(os, "geteuid") or folder.stat(follow_symlinks=False).st_uid == os.geteuid()


def cache_bytes() -> int:
    """Bytes of the compiled kernels of all versions and instruction sets."""
    return sum(f.size for f in _files(cache_root(), ".kernel"))


def written(folder: Path, size: int, asked: Iterable[str] = ()) -> None:
    """Note that this process has written ``size`` bytes into ``folder``; removes what is too much (`prune`)."""
    limit = cache_limit()
    _Seen.written += size
    if limit and (_Seen.written >= UNSEEN or _Seen.total + _Seen.written > limit):
        prune(folder, limit, asked)


def prune(own: Path, limit: int, asked: Iterable[str] = ()) -> int:
    """Remove files until at most `KEPT` of ``limit`` bytes are left, if it is exceeded; returns how many went.

    Those of folders that this process has no use for (other versions, other instruction sets) go before those of
    ``own`` and of folders by whose names it has ``asked`` for kernels, of the CPU or of GPUs.  Several processes may
    do so at once: a file that is gone already counts as gone, and one that is being read stays readable.
    """
    files = list(_files(cache_root(), ".kernel"))
    _Seen.total, _Seen.written = sum(f.size for f in files), 0
    if _Seen.total <= limit:
        return 0
    count, useful = 0, {str(own), *(str(cache_root() / name) for name in asked)}
    for file in sorted(files, key=lambda f: (f.folder in useful, f.used)):
        if _Seen.total <= KEPT * limit:
            break
        try:
            os.unlink(file.path)
            count += 1
        except FileNotFoundError:  # another process was faster
            pass
        except OSError:
            continue
        _Seen.total -= file.size
    for file in _files(cache_root(), ".tmp"):
        if file.used < time.time() - ABANDONED:
            with suppress(OSError):
                os.unlink(file.path)
    for folder in {f.folder for f in files} - useful:
        with suppress(OSError):  # it is not empty
            os.rmdir(folder)
    return count
