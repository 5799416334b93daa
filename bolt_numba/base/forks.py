"""Locks in a child of fork: it has one thread, so nobody is left who could release what others held."""

from __future__ import annotations

import functools
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

WAIT_S = 10.0
"""Seconds that a fork waits, in all, for others to leave the locks that want it: longer than a kernel compiles."""

_known: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()
_awaited: list[tuple[Any, str]] = []


class _Locks(threading.local):
    """Locks that a fork has taken, by thread: two may fork at once."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_held = _Locks()


def renew_after_fork(owner: Any, name: str, make: Callable[[], Any], *, awaited: bool = False) -> None:
    """Have ``owner.<name>``, a lock, made anew in every child of fork.

    awaited: a fork waits until no other thread holds the lock, which must be reentrant.  For locks that guard what a
    child cannot begin again: imports that are half done, LLVM's own state.
    """
    _known.setdefault(owner, {})[name] = make
    if awaited:
        _awaited.append((owner, name))


def renew_cached_properties(kind: type) -> None:
    """The same for the locks that Python 3.11 has in the cached properties of a class."""
    for member in vars(kind).values():
        if isinstance(member, functools.cached_property) and hasattr(member, "lock"):
            renew_after_fork(member, "lock", threading.RLock)


@functools.cache
def come_before_logging() -> None:
    """Have forks wait for our locks before they take that of `logging`, for which who holds ours may wait.

    Python calls what is to be done before a fork in the reverse order of its registration.
    """
    importlib.import_module("logging")  # which registers its own
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before)


def _before() -> None:
    deadline = time.monotonic() + WAIT_S
    for owner, name in _awaited:
        lock = getattr(owner, name)
        _held.locks.append(lock)  # first: an interrupt may come when it is taken
        lock.acquire(timeout=max(0.0, deadline - time.monotonic()))


def _in_parent() -> None:
    while _held.locks:
        with suppress(RuntimeError):  # not taken in time
            _held.locks.pop().release()


def _in_child() -> None:
    _held.locks.clear()
    for owner, members in list(_known.items()):
        for name, make in members.items():
            setattr(owner, name, make())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
