"""Short turns: while a plan is made, threads that run known shapes get Python's lock back soon.

A run needs the interpreter's lock for some microseconds before and after its native code.  A thread that holds it gives
it up when another has waited for the switch interval, which is 5 ms: longer than most runs take.

What nobody waits for takes no turns meanwhile (`wait_for_plans`), as it would have half of the planner's time.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from bolt_numba.base.forks import renew_after_fork

TURN_S = 2e-5
"""Seconds that others wait at most, beside what the system needs to wake them."""


class _Interval:
    """The process's switch interval: how many want it short, and what it was before.  is_usual: set if nobody does."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may plan, too
        self.wanted, self.before = 0, 0.0
        self.is_usual = threading.Event()
        self.is_usual.set()


def _restored() -> _Interval:
    """For a child of fork, in which nobody plans."""
    if _interval.wanted:
        sys.setswitchinterval(_interval.before)
    return _Interval()


_interval = _Interval()
renew_after_fork(sys.modules[__name__], "_interval", _restored)


class short_turns:  # noqa: N801  # a context manager, as `within` is
    """Have the interpreter change threads often: ``with short_turns(): ...``."""

    def __enter__(self) -> None:
        with _interval.lock:
            _interval.wanted += 1
            if _interval.wanted == 1:
                _interval.is_usual.clear()
                _interval.before = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_S, _interval.before))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _interval.lock:
            if _interval.wanted == 1:
                sys.setswitchinterval(_interval.before)
                _interval.is_usual.set()
            _interval.wanted -= 1


def wait_for_plans() -> None:
    """Wait until nobody plans."""
    if _interval.wanted:
        _interval.is_usual.wait()
