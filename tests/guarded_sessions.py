"""Sessions whose every buffer touches an unreadable page: operands, results, and each value and workspace of the arena.

`install` changes the process for good, so it is for child processes.  A kernel that leaves its buffers ends it,
but while it is `tests.beyond.watched`: then `told` says so in a line.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from bolt_numba.runtime import device, memory, runner
from bolt_numba.types import Array
from tests.beyond import PAGE, Touched, close_page
from tests.harness import guarded

FILL = 0xAB


def copy_of(array: Array, right: bool = True) -> Array:
    """The array in guarded memory."""
    made = guarded(array.nbytes, right, FILL).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def install() -> None:
    """Guard every buffer of every session made from now on."""
    guards: list[int] = []

    def place(blocks: Iterable[memory.Block]) -> int:
        """Each block ends (but for its alignment) where an unreadable page begins."""
        guards.clear()
        at = 0
        for block in blocks:
            pages = max(1, -(-block.nbytes // PAGE))
            guards.append(at)
            block.offset = at + PAGE * (1 + pages) - -(-block.nbytes // memory.ALIGN) * memory.ALIGN
            at += PAGE * (1 + pages)
        guards.append(at)
        return at + PAGE

    def arena(nbytes: int) -> Array:
        if not guards or nbytes != guards[-1] + PAGE:
            return guarded(nbytes, True, FILL, 64)[:nbytes]
        pages = mmap.mmap(-1, nbytes)
        made = np.frombuffer(pages, np.uint8)
        made[:] = FILL
        for at in guards:
            close_page(pages, made.ctypes.data + at)
        return made

    def empty(shape: Any, dtype: Any = float) -> Array:
        dims = shape if isinstance(shape, tuple) else (int(shape),)
        if np.dtype(dtype) == object or min(dims, default=0) < 0:
            return np.empty(shape, dtype)
        size = int(np.prod(dims, dtype=np.int64)) * np.dtype(dtype).itemsize
        return guarded(size, True, FILL).view(dtype).reshape(dims)

    memory.place = place
    device.HostMemory.allocate = lambda self, nbytes: arena(nbytes)  # type: ignore[method-assign]
    runner.np = SimpleNamespace(**{**vars(np), "empty": empty})  # type: ignore[assignment]


def told(touched: Touched) -> str:
    """One line of what kernels touched beyond their buffers; "" where it is nothing."""
    pages = sorted(touched.first.items())
    how = {page: "written" if page in touched.written else "read" for page, _ in pages}
    return "; ".join(f"byte {at - page} of the page beside a buffer is {how[page]}" for page, at in pages)
