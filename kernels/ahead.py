"""Kernels compiled by several processes at once, before a plan asks for them one after the other.

For tools that fill the cache: processes are made by fork, so there must be no other threads.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from bolt_numba.kernels.jit import Native, cache_dir

_processes = 1


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
    missing = [k for k in dict.fromkeys(kernels) if isinstance(k, Native) and not _is_cached(k)]
    if len(missing) < 2:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    shares = [missing[i::_processes] for i in range(min(_processes, len(missing)))]
    children = [_fork(share) for share in shares]
    for child in children:
        os.waitpid(child, 0)


def _is_cached(kernel: Native) -> bool:
    return (cache_dir() / f"{kernel.name}-{kernel.digest}.kernel").is_file()


def _fork(kernels: list[Native]) -> int:
    """A child that compiles; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for kernel in kernels:
            assert kernel.address
        status = 0
    except BaseException:  # the parent meets it again, where it can be told
        traceback.clear_frames(sys.exc_info()[2])
    finally:
        os._exit(status)
