"""Ending runs that are under way, from another thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from bolt_numba.base.errors import CancelledError

T = TypeVar("T")
IN_FORCE: list[CancelToken] = []
"""Tokens in force in some thread; most processes have none, and runs look at nothing else then."""


class CancelToken:
    """Ends runs of any session: ``with token: session(x)`` in one thread, and ``token.cancel()`` in another.

    A run in that block ends between two steps of its program with a CancelledError, and so does one that would begin.
    The session goes on.  Arrays that the run was to write into hold anything.  Plans and kernels are made to their end.
    One token may serve many threads, one behind another or at once.  Of several around a run the innermost ends it at
    once, the others when the part of it that runs is over.

    is_cancelled: whether runs end, and none begins.
    """

    def __init__(self) -> None:
        self._word, self.is_cancelled = np.zeros(1, np.int64), False
        self.address: int = self._word.ctypes.data

    def cancel(self) -> None:
        """End what runs, and have nothing begin."""
        self.is_cancelled, self._word[0] = True, 1

    def reset(self) -> None:
        """Let runs begin again, after those that were ended are over."""
        self.is_cancelled, self._word[0] = False, 0

    def __enter__(self) -> CancelToken:
        _around.set((*around(), self))
        IN_FORCE.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        IN_FORCE.remove(self)
        _around.set(around()[:-1])


_around: ContextVar[tuple[CancelToken, ...]] = ContextVar("bolt_numba_tokens", default=())
around = _around.get
"""The tokens around this thread, the innermost last."""


def is_cancelled() -> bool:
    """Whether a token around this thread says that runs end."""
    return any(token.is_cancelled for token in around())


def check() -> None:
    """Raise CancelledError where a token around this thread says so."""
    if is_cancelled():
        raise CancelledError("run: got a call of CancelToken.cancel(), wanted none before its end")


async def cancelled_with_us(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What a call gives in a thread of the event loop's; cancelling the coroutine ends its runs."""
    import asyncio  # takes 30 ms, and who awaits has it already

    with CancelToken() as token:
        try:
            return await asyncio.to_thread(call, *args, **kwargs)
        finally:
            token.cancel()


@contextmanager
def stopping(words: Sequence[int]) -> Iterator[None]:
    """Have native code look at the innermost token.

    words: addresses of where it finds the address of what it looks at.  Raises CancelledError, before and after.
    """
    check()
    tokens, places = around(), [ctypes.c_int64.from_address(word) for word in words]
    for place in places if tokens else ():
        place.value = tokens[-1].address
    try:
        yield
    finally:
        for place in places:
            place.value = 0
    check()
