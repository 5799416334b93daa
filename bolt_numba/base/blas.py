"""The threads of the OpenBLAS that NumPy multiplies with: one while references stand in for kernels.

At each product they wait for each other, and spin meanwhile: for seconds in all where others have the processors.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bolt_numba.base.forks import renew_after_fork

SPELLINGS = [f"{start}openblas_{{}}_num_threads{end}" for start in ("scipy_", "") for end in ("64_", "")]
"""Of NumPy's wheels, and of distributions."""


@functools.cache
def _counter() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """What gets the number of threads, and what sets it; None where NumPy has another BLAS, or does not show it."""
    with suppress(KeyError, AttributeError, OSError):
        linalg = ctypes.CDLL(sys.modules["numpy.linalg._umath_linalg"].__file__)  # a search goes on in what it needs
        for name in SPELLINGS:
            with suppress(AttributeError):
                return getattr(linalg, name.format("get")), getattr(linalg, name.format("set"))
    return None


class _Count:
    """How many want one thread, and how many threads there were before."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may run a session, too
        self.wanted, self.before = 0, 1

    def give_back(self) -> None:
        counter = _counter()
        if counter and counter[0]() == 1:  # else somebody has set it meanwhile
            counter[1](self.before)


def _restored() -> _Count:
    """For a child of fork, in which nobody stands in."""
    if _count.wanted:
        _count.give_back()
    return _Count()


_count = _Count()
renew_after_fork(sys.modules[__name__], "_count", _restored)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have OpenBLAS work in the threads that call it; it is the whole process's, so others get theirs back after it."""
    counter, count = _counter(), _count
    with count.lock:
        count.wanted += 1
        if counter and count.wanted == 1:
            count.before = counter[0]()
            counter[1](1)
    try:
        yield
    finally:
        with count.lock:
            if count.wanted == 1:
                count.give_back()
            count.wanted -= 1
