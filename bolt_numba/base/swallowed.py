"""Internal errors that nobody sees, because the work goes on another way: they are counted.

A rule that raises leaves its node alone, a tape has no maker that raises: results stay right, and speed is lost.  So
each is in `FAULTS`, which `session.report()` and ``bolt-numba doctor`` show and the tests hold to be empty.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from bolt_numba.base.errors import BoltError, InternalError

FAULTS: Counter[str] = Counter()
"""How often what went wrong where in this process: ``place: kind: text``."""
MOST_KEPT = 100
"""Different ones that are kept; a text may hold numbers that are never the same."""


def swallowed(place: str, error: BaseException, *expected: type[BaseException]) -> None:
    """Count an error that goes no further, unless it is a BoltError that says what is wrong with what was given.

    expected: kinds of errors that are no fault there.
    """
    if isinstance(error, expected) or (isinstance(error, BoltError) and not isinstance(error, InternalError)):
        return
    name = f"{place}: {type(error).__name__}: {error}"[:300]
    FAULTS[name if name in FAULTS or len(FAULTS) < MOST_KEPT else f"{place}: others"] += 1


class swallowing:  # noqa: N801 - it reads like `contextlib.suppress`
    """Goes on behind what raises an Exception within, which is counted as `swallowed` says."""

    def __init__(self, place: str, *expected: type[BaseException]) -> None:
        self.place, self.expected = place, expected

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            swallowed(self.place, error, *self.expected)
        return isinstance(error, Exception)
