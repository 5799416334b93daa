"""Clones: sessions of one model that share its weights, and plans where they have the same number of threads."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from bolt_numba.inputs import threads_of

if TYPE_CHECKING:
    from bolt_numba.session import Session


def cloned(session: Session, threads: int | None = None) -> Session:
    """As `Session.clone`."""
    graph = session.graph  # a session that began without its model is complete now, and its class another
    count = session.threads if threads is None else threads_of(threads)
    if count != session.threads and session._plugins is not None:  # a device compiled for so many threads
        return type(session)(graph, threads=count, **session._options())
    made = object.__new__(type(session))
    vars(session).setdefault("_sharers", weakref.WeakSet()).update((session, made))
    vars(made).update(vars(session), threads=count, _wider={}, _states=None)
    if graph.states:
        from bolt_numba.runtime.kept import Kept

        made._states = Kept(graph)
    if count != session.threads:
        made._runner = session._runner.anew(count)
    return made


def is_still_shared(session: Session) -> bool:
    """For a session that is closed, perhaps once more: whether clones go on with what it shared with them."""
    sharers = vars(session).get("_sharers")
    if sharers is None:
        return False
    sharers.discard(session)
    return len(sharers) > 0
