"""Memory for weights of middle size on large pages, and for caches that fill up slowly on small ones.

In pages of 4 KiB, touching new memory costs more than packing weights into it, and each run then misses the processor's
table of pages more often.  Arrays of 4 MiB and more are put on large pages by NumPy itself.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from contextlib import suppress
from typing import Any

import numpy as np

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import AnyDType, Array

CARVED_FROM, CARVED_TO = 1 << 16, 1 << 22
"""Bytes of the arrays that are carved from slabs."""
SLAB = 1 << 25
LINE = 64

_lock = threading.Lock()
renew_after_fork(sys.modules[__name__], "_lock", threading.Lock)
_rest = np.empty(0, np.uint8)


def line_aligned(nbytes: int) -> Array:
    """Bytes of any content that begin at a cache line.  A slab is freed with the last array that was carved from it."""
    global _rest
    # One that finds another here, or is a signal handler in its midst, takes memory of its own.
    carves = CARVED_FROM <= nbytes < CARVED_TO and hasattr(mmap, "MADV_HUGEPAGE") and _lock.acquire(blocking=False)
    if not carves:
        store = np.empty(nbytes + LINE, np.uint8)
        begin = -store.ctypes.data % LINE
        return store[begin : begin + nbytes]
    try:
        if nbytes > len(_rest):
            _rest = _fresh()
        made, _rest = _rest[:nbytes], _rest[-(-nbytes // LINE) * LINE :]
    finally:
        _lock.release()
    return made


def zeros_in_parts(shape: tuple[int, ...], dtype: AnyDType) -> Array:
    """Zeros that take memory only where somebody writes; NumPy's take it in pieces of 2 MiB."""
    nbytes = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_NOHUGEPAGE", None)
    if advice is None or nbytes < CARVED_FROM:
        return np.zeros(shape, dtype)
    return _mapped(nbytes, advice).view(dtype).reshape(shape)


def give_back(part: Array) -> None:
    """Have whole pages of dense `zeros_in_parts` be zeros again, and take no memory until somebody writes.

    Nothing happens to other arrays, nor where the system does not do so.
    """
    root: Any = part
    while isinstance(root.base, np.ndarray):
        root = root.base
    room = getattr(root.base, "obj", None)
    if sys.platform == "linux" and type(room) is mmap.mmap:
        begin = part.ctypes.data - root.ctypes.data
        first, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, (begin + part.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end:
            room.madvise(mmap.MADV_DONTNEED, first, end - first)


def _fresh() -> Array:
    return _mapped(SLAB, mmap.MADV_HUGEPAGE)


def _mapped(nbytes: int, advice: int) -> Array:
    # Shared memory, which is what `mmap` gives unless told otherwise, is not put on large pages by most systems.
    room = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without large pages still has memory
        room.madvise(advice)
    return np.frombuffer(room, np.uint8)
