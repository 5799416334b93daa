"""Kernels compiled by several processes at once, before a plan asks for them one after the other.

For tools that fill the cache: processes are made by fork, so there must be no other threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from bolt_numba.kernels.jit import Native, is_cached

_processes = 1
_BATCH = 256


@contextmanager
def compiling_in(processes: int) -> Iterator[None]:
    """Have `prepare` compile in this many processes, where the system can fork."""
    global _processes
    before, _processes = _processes, processes if hasattr(os, "fork") else 1
    try:
        yield
    finally:
        _processes = before


def prepare(kernels: Iterable[Any]) -> None:
    """Compile those kernels that are not in the cache; one that fails says so when its address is asked for."""
    if _processes < 2:
        return
    missing = [k for k in dict.fromkeys(kernels) if isinstance(k, Native) and not is_cached(k)]
    if len(missing) < 2:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    for start in range(0, len(missing), _BATCH):
        batch = missing[start : start + _BATCH]
        queue, end = os.pipe()  # of numbers, each a byte; every child takes the next one when it is done with one
        os.write(end, bytes(range(len(batch))))
        os.close(end)
        children = [_fork(batch, queue) for _ in range(min(_processes, len(batch)))]
        os.close(queue)
        for child in children:
            os.waitpid(child, 0)


def _fork(kernels: list[Native], queue: int) -> int:
    """A child that compiles; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        while number := os.read(queue, 1):
            assert kernels[number[0]].address
        status = 0
    except BaseException:  # the parent meets it again, where it can be told
        import traceback

        traceback.clear_frames(sys.exc_info()[2])
    finally:
        os._exit(status)
