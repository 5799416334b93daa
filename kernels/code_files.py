"""Machine code between processes: files that are checked when they are read, made by one process, and written whole.

What is compiled for the CPU (`kernels.jit`) and for GPUs (`kernels.cuda.code`) is kept alike.  A file is called by its
folder, which says for which processors and by which compiler, and by the name and digest of its kernel.
"""

from __future__ import annotations

import functools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bolt_numba.base.digest import sha256
from bolt_numba.base.files.claims import claimed
from bolt_numba.base.files.kept import cache_root, contents, keep, tell_cost
from bolt_numba.base.files.trusted import read_trusted
from bolt_numba.kernels.compiles import Compile, begins, ended, waited_for

SUFFIX = ".kernel"
NONE = "none"
"""In place of a compiler's digest where none is installed and nothing of any is kept."""
_MAGIC = b"BNK4"
_asked: set[str] = set()
"""Folders by whose names this process has looked for code."""


class MachineCode(ABC):
    """A kernel's code for one target, which a cache has or somebody compiles.  name: for people."""

    name: str

    @property
    @abstractmethod
    def digest(self) -> str:
        """Names the code: equal digests, equal code."""

    @property
    @abstractmethod
    def folder(self) -> str:
        """Name of the cache folder that has its code, or will have it."""

    @property
    @abstractmethod
    def can_compile(self) -> bool:
        """Whether its compiler is installed."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it is here, or comes now without being compiled."""

    @abstractmethod
    def take(self, code: bytes) -> None:
        """Have the code that another process compiled."""

    @abstractmethod
    def compile(self) -> None:
        """Have the code, compiled in this process where no cache has it; raises KernelError."""

    @abstractmethod
    def code(self) -> bytes:
        """The code, from the cache or compiled now and kept; raises KernelError."""


def found(name: str) -> bytes | None:
    """Code in the first folder that has a file of this name."""
    _asked.add(name.partition("/")[0])
    codes = (_checked(path, data) for path, data in contents(name))
    return next((code for code in codes if code is not None), None)


def read_kernel(path: Path) -> bytes | None:
    """Code in a cache file; None when there is none, it is damaged, or others could have written it."""
    data = read_trusted(path)
    return None if data is None else _checked(path, data)


def _checked(path: Path, data: bytes) -> bytes | None:
    head = len(_MAGIC) + 16
    if data[: len(_MAGIC)] != _MAGIC or _checksum(path, data[head:]) != data[len(_MAGIC) : head]:
        return None
    return data[head:]


def _checksum(path: Path, code: bytes) -> bytes:
    """Of what a file holds and what it is called: another kernel, or the same for other processors, is no match."""
    return sha256(f"{path.parent.name}/{path.name}\n".encode() + code).digest()[:16]


def write(name: str, code: bytes) -> None:
    """Write so that a reader sees all or nothing.  A cache that cannot be written is only slower."""
    path = cache_root() / name
    failure = keep(name, _MAGIC + _checksum(path, code) + code)
    if failure is None:
        from bolt_numba.kernels.prune import written

        written(path.parent, len(code), tuple(_asked))
    tell_cost(path.parent.name, failure)


def made_once(name: str, who: str, find: Callable[[], bytes | None], make: Callable[[], bytes]) -> bytes:
    """Code that ``find`` gives, else made now, here or by who began before, and written; raises what ``make`` does.

    name: of the file.  who: the kernel, for people.
    """
    code = find()
    if code is None:
        start = time.perf_counter()
        with claimed(name):
            code = find()
            if code is not None:
                waited_for(Compile(who, time.perf_counter() - start, "by another process"))
                return code
            begins(who)
            code = make()
            write(name, code)
        ended(Compile(who, time.perf_counter() - start, "by this process"))
    return code


@functools.cache
def newest(name: str, places: tuple[Path, ...]) -> str:
    """The end of the name of the first folder that begins with ``name``; of those in one place, of the newest."""
    for place in places:
        with suppress(OSError):
            ends = {e.name.removeprefix(name): e for e in os.scandir(place) if e.name.startswith(name) and e.is_dir()}
            ends.pop(NONE, None)
            if ends:
                return max(ends, key=lambda end: ends[end].stat().st_mtime)
    return NONE


def entries(folder: Path) -> list[tuple[str, int]]:
    """Name and size in bytes of every kernel in a folder."""
    with suppress(OSError):
        files = [f for f in os.scandir(folder) if f.name.endswith(SUFFIX)]
        return sorted((f.name.removesuffix(SUFFIX), f.stat().st_size) for f in files)
    return []
