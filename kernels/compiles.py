"""What is told about compiling, and who may not wait for it.

Listeners hear of every compile, the logger ``bolt_numba`` gets a line of each, and a thread that serves requests may
ask not to compile: it then gets a `LackingError` in the place of a kernel that is not there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bolt_numba.base.forks import come_before_logging

if TYPE_CHECKING:
    import logging

LOGGER = "bolt_numba"


class LackingError(Exception):
    """A kernel would have to be compiled in a thread that may not wait; never seen outside planning."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel.name)
        self.kernel = kernel


class Compile(NamedTuple):
    """One compile that somebody waited for: kernel, seconds of work, and which process did it."""

    name: str
    seconds: float
    where: str


class _Mine(threading.local):
    """Of each thread: whether it may compile, and what was compiled for it."""

    def __init__(self) -> None:
        self.may_wait = True
        self.heard: list[Compile] | None = None
        self.who = ""


_mine = _Mine()
_listeners: list[Callable[[str, bool], None]] = []
seconds_spent: list[float] = []
"""What each compile of this process took, for who counts them."""


def on_compile(callback: Callable[[str, bool], None]) -> Callable[[], None]:
    """Call ``callback(kernel name, done)`` before (False) and after (True) every compile; returns a way to stop it."""
    _listeners.append(callback)
    return lambda: _listeners.remove(callback)


def has_listeners() -> bool:
    return bool(_listeners)


def begins(name: str) -> None:
    """A compile that this thread waits for begins."""
    come_before_logging()
    for listener in tuple(_listeners):
        listener(name, False)


def ended(done: Compile) -> None:
    """It is over."""
    seconds_spent.append(done.seconds)
    for listener in tuple(_listeners):
        listener(done.name, True)
    waited_for(done)


def waited_for(done: Compile) -> None:
    """A compile is over for which this thread waited: its own, or that of a process which began before."""
    if _mine.heard is not None:
        _mine.heard.append(done)
    log(done)


def log(done: Compile) -> None:
    """One line about one compile."""
    logger().info("kernel %s: compiled in %.2f s %s", *done)


def logger() -> logging.Logger:
    """The logger of the package; imports `logging`, which a process does without until something compiles."""
    come_before_logging()
    import logging

    return logging.getLogger(LOGGER)


def be_silent() -> None:
    """Log nothing unless the application has said where to: it shows what compiles itself."""
    import logging

    logger().addHandler(logging.NullHandler())


def is_logging() -> bool:
    """Whether anybody has asked for lines that are no warnings; imports nothing."""
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger(LOGGER).isEnabledFor(logging.INFO)


@contextmanager
def waited(who: str = "") -> Iterator[list[Compile]]:
    """The compiles that this thread waits for inside.  who: the model that they are for."""
    before, _mine.heard, known, _mine.who = _mine.heard, [], _mine.who, who
    try:
        yield _mine.heard
    finally:
        heard, _mine.heard, _mine.who = _mine.heard, before, known
        if before is not None:
            before.extend(heard)


def who_waits() -> str:
    """The model that this thread compiles for, "" if nobody said."""
    return _mine.who


def heard() -> list[Compile] | None:
    """Where this thread notes what is compiled for it."""
    return _mine.heard


@contextmanager
def heard_by(notes: list[Compile] | None) -> Iterator[None]:
    """Have this thread note what it compiles for another, whose `heard` that is."""
    _mine.heard = notes
    try:
        yield
    finally:
        _mine.heard = None


_expected = 0


def expect(count: int) -> None:
    """So many kernels more are going to be compiled."""
    global _expected
    _expected += count


def expected() -> int:
    """How many kernels this process has announced so far, those that are compiled included."""
    return _expected


@contextmanager
def no_compiling() -> Iterator[None]:
    """Have this thread get a `LackingError` where it would compile."""
    before, _mine.may_wait = _mine.may_wait, False
    try:
        yield
    finally:
        _mine.may_wait = before


def may_wait() -> bool:
    """Whether this thread may compile."""
    return _mine.may_wait
