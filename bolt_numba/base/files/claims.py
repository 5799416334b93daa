"""Claims between processes: one does a piece of work, the others wait for what it leaves in the cache.

A claim is a lock that the system holds for a process on a file in the own folder.  It ends with the process, however
that ends, so none is left behind.  A child of fork does not inherit it.  Nobody waits for ever: a process that sleeps
with its claim, stopped perhaps, is waited for `WAIT_S`.  Where there are no locks or no folder, everybody works.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bolt_numba.base.files.kept import cache_root, open_kept

WAIT_S = 30.0
"""Seconds: much longer than any kernel compiles."""
_LOOK_S = 0.02
"""Seconds between two looks at a claim that another process has."""


@contextmanager
def claimed(name: str) -> Iterator[bool]:
    """Hold the claim on a file that `kept.keep` is going to write; the value says whether another process had it.

    Threads of one process do not exclude each other.
    """
    folder, _, last = name.rpartition("/")
    claim = f"{folder}/.{last}.claim.tmp"
    file = None
    with suppress(OSError):
        file = open_kept(claim)
    if file is None:
        yield False
        return
    is_held = False
    try:
        is_held, has_waited = _wait(lambda: _lock(file))
        yield has_waited
    finally:
        if is_held:
            with suppress(OSError):
                os.unlink(cache_root() / claim)
        os.close(file)


def _lock(file: int) -> None:
    import fcntl

    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _wait(lock: Callable[[], None]) -> tuple[bool, bool]:
    """Take a lock; whether no other process has it now, and whether one had it."""
    end = time.monotonic() + WAIT_S
    has_waited = False
    while time.monotonic() < end:
        try:
            lock()
        except (BlockingIOError, PermissionError):  # another process has it
            has_waited = True
            time.sleep(_LOOK_S)
        except OSError:  # a file system without locks
            return True, has_waited
        else:
            return True, has_waited
    return False, has_waited
