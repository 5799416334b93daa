"""Kernels that came with the package: one file for each level of instructions, in wheels that `bench/wheels.py` makes.

They are trusted as the sources beside them are, and looked for before the cache, where nobody needs to open a file for
each.  A file serves the sources of the language that it was made of, and Python of that version.
"""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bolt_numba.base.files.kept import BUILT_IN

_MAGIC = b"BNBOX001"
_HEAD = struct.Struct("<8sI")


def built_in(name: str, kernel: str) -> bytes | None:
    """Machine code of a kernel; None where none came with the package.

    name: level and digest of the language.  kernel: name and digest of the kernel.
    """
    index, codes = _opened(BUILT_IN / f"{name}.kernels")
    if kernel in index:
        first, size = index[kernel]
        with suppress(zlib.error):
            return zlib.decompress(codes[first : first + size])
    return None


def count_built_in(name: str) -> int:
    """How many kernels came with the package for a level."""
    return len(_opened(BUILT_IN / f"{name}.kernels")[0])


def write_built_in(path: Path, codes: Mapping[str, bytes]) -> None:
    """Make such a file of machine code by name and digest of its kernel."""
    packed = {kernel: zlib.compress(code, 9) for kernel, code in sorted(codes.items())}
    index, at = {}, 0
    for kernel, data in packed.items():
        index[kernel] = at, len(data)
        at += len(data)
    text = json.dumps(index, separators=(",", ":")).encode()
    path.write_bytes(_HEAD.pack(_MAGIC, len(text)) + text + b"".join(packed.values()))


@functools.cache
def _opened(path: Path) -> tuple[dict[str, tuple[int, int]], bytes]:
    """Where each kernel stands in the rest of a file, and that rest; nothing where there is no such file."""
    with suppress(OSError, ValueError, struct.error):
        data = path.read_bytes()
        magic, size = _HEAD.unpack_from(data)
        if magic == _MAGIC:
            return json.loads(data[_HEAD.size : _HEAD.size + size]), data[_HEAD.size + size :]
    return {}, b""
