"""Sessions made of a session: clones that share its weights, and those inside it with other outputs or symbols."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.options import not_among
from bolt_numba.base.types import Array
from bolt_numba.ir.graph import Graph
from bolt_numba.sessions.inputs import threads_of

if TYPE_CHECKING:
    from bolt_numba.runtime.reports.report import Report
    from bolt_numba.runtime.states import Choose
    from bolt_numba.sessions.session import Session

MAX_WIDER = 4
"""How many sessions with other outputs or symbols a session keeps."""


def cloned(session: Session, threads: int | None = None) -> Session:
    """As `Session.clone`."""
    graph = session.graph  # a session that began without its model is complete now, and its class another
    count = session.threads if threads is None else threads_of(threads)
    if count != session.threads and session._plugins is not None:  # a device compiled for so many threads
        return type(session)(graph, session.options.but(threads=count), signatures=session.signatures)
    made = object.__new__(type(session))
    vars(session).setdefault("_sharers", weakref.WeakSet()).update((session, made))
    vars(made).update(vars(session), _wider={}, _states=None)
    made._take(session.options, count)
    if graph.states:
        from bolt_numba.runtime.states import States

        made._states = States(graph)
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


def inside(session: Session) -> list[Session]:
    """A session, and those inside it."""
    return [session, *(found for each in session._inner() for found in inside(each))]


def taken(session: Session) -> str:
    """What a session takes as inputs, as reports say it."""
    shapes = {s.name: "?" if s.shape is None else f"[{', '.join(map(str, s.shape))}]" for s in session.inputs}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def memory_of(sessions: Sequence[Session]) -> dict[str, int]:
    """As `Session.memory`, of a session and those inside it."""
    from bolt_numba.runtime.prepared import real_nbytes, uploaded

    runners = [r for s in sessions for r in (s._runner, *list(s._runner.orders.values())) if r is not None]
    runners += [r for s in sessions for p in s._runner.region.packing if p is not None for r in p.runners.values()]
    plans = [p for runner in runners for p in list(runner.prepared.values())]
    arenas = [p.arenas_nbytes for p in plans]
    pinned = sum({id(device): device.pinned for s in sessions for device in s._far}.values())
    states = {id(s._states): s._states.nbytes for s in sessions if s._states is not None}
    kept = {"states": sum(states.values())} if states else {}
    return uploaded(plans) | ({"pinned": pinned} if pinned else {}) | kept | {
        "weights": sum({id(a): real_nbytes(a) for s in sessions for a in s._weights()}.values()),
        "packed": sum(s._packs.nbytes for s in sessions),
        "arena": max((shared for shared, _ in arenas), default=0),
        "naive": max((naive for _, naive in arenas), default=0),
    }


def packs_of(session: Session) -> dict[tuple[int, str], Array]:
    """As `Session.packs`."""
    rows = session._packs.export()
    for each in inside(session)[1:]:
        rows |= {(place, f"{taken(each)}: {key}"): a for (place, key), a in each._packs.export().items()}
    return rows


def reported(session: Session) -> Report:
    """As `Session.report`."""
    from bolt_numba.runtime.reports.report import report_of

    made = report_of(session._runner) if session._plugins is None else session._plugins.report(session._runner)
    if session._texts is not None:
        made[:] = [*session._texts.rows(session._texts.before), *made, *session._texts.rows(session._texts.behind)]
    for each in session._inner():
        inner = each.report()
        made += [{"inputs": taken(each), **row} for row in inner]
        made.tapes += [{"inputs": taken(each), **row} for row in inner.tapes]
    return made


def with_outputs(session: Session, extra: tuple[str, ...]) -> Session:
    """A session that also returns these intermediate values."""

    def wider() -> Graph:
        graph = session._source().clone()
        values = {v.name: v for v in graph.values()}
        for name in extra:
            if name not in values:
                outputs = [each for each, _ in graph.caller_outputs]
                raise BoltError(not_among("output", [name], outputs, also=[*values.keys() - {*outputs}]))
            graph.add_output(values[name])
        return graph

    return _variant(session, extra, wider)


def apart(session: Session, told: str) -> Session:
    """A session that takes no two dimensions of inputs for one; the logger warns once.

    Raises ShapeError where the graph as it was loaded is not there.
    """
    import logging  # few sessions need these

    from bolt_numba.ir import sizes

    if session.graph.packed is not None:
        raise ShapeError(f"{told}; a packed model was optimised for one size of a symbol, wanted what it was packed of")
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
        made = type(session)(graph(), session.options, signatures=session.signatures)
        made._states = session._states
    session._wider[key] = made  # the last one used
    for old in list(session._wider)[:-MAX_WIDER]:
        session._wider.pop(old, None)
    return made
