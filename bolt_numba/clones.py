"""Sessions made of a session: clones that share its weights, and those inside it with other outputs or symbols."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from bolt_numba.errors import BoltError, ShapeError
from bolt_numba.inputs import threads_of
from bolt_numba.ir.graph import Graph
from bolt_numba.types import Array

if TYPE_CHECKING:
    from bolt_numba.runtime.kept import Choose
    from bolt_numba.session import Session

MAX_WIDER = 4
"""How many sessions with other outputs or symbols a session keeps."""


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


def with_outputs(session: Session, extra: tuple[str, ...]) -> Session:
    """A session that also returns these intermediate values."""

    def wider() -> Graph:
        graph = session._source().clone()
        values = {v.name: v for v in graph.values()}
        for name in extra:
            if name not in values:
                raise BoltError(f"output: got {name!r}, wanted the name of a value of graph {graph.name!r}")
            graph.add_output(values[name])
        return graph

    return _variant(session, extra, wider)


def apart(session: Session, told: str) -> Session:
    """A session that takes no two dimensions of inputs for one; the logger warns once.

    Raises ShapeError where the graph as it was loaded is not there.
    """
    import logging  # few sessions need these

    from bolt_numba.ir import sizes

    if session.graph.packed is not None or session._plugins is not None:
        raise ShapeError(told)
    if () not in session._wider:
        text = "%s: %s; no two dimensions are taken for one from now on"
        logging.getLogger("bolt_numba").warning(text, session._name, told)
    return _variant(session, (), lambda: sizes.apart(session._source()))


def run_apart(session: Session, told: str, arrays: list[Array], choose: Choose | None) -> list[Array]:
    """Results of inputs that give one symbol several sizes, where all operators allow it; raises ShapeError."""
    inner = apart(session, told)
    try:
        return inner._run(arrays, choose)
    except ShapeError as error:
        raise ShapeError(f"{told}: {error}") from error


def _variant(session: Session, key: tuple[str, ...], graph: Callable[[], Graph]) -> Session:
    """A session of another graph with the same options and states: made once, kept."""
    made = session._wider.pop(key, None)
    if made is None:
        made = type(session)(graph(), threads=session.threads, **session._options())
        made._states = session._states
    session._wider[key] = made  # the last one used
    for old in list(session._wider)[:-MAX_WIDER]:
        session._wider.pop(old, None)
    return made
