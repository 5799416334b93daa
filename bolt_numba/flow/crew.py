"""Crews: threads that serve stations, pinned where that is wanted."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bolt_numba.base.cancelling import CancelToken
from bolt_numba.base.config import processors
from bolt_numba.flow.parts import Workers

if TYPE_CHECKING:
    from bolt_numba.flow.station import Station, Work


class Worker:
    """One thread.

    place: device and threads of the sessions that it runs.  share: of the processors, in threads.  inner: runs of nodes
    within a graph that is one node: name, begin, end, pieces.  token: ends what it runs.
    """

    def __init__(self, number: int, cpus: frozenset[int] | None, workers: Workers, share: int) -> None:
        device = workers.device
        named = device if device is None or isinstance(device, str) else tuple(device)
        self.number, self.cpus, self.share = number, cpus, share
        self.place: tuple[Any, int | None] = (named, workers.threads)
        self.inner: list[tuple[str, float, float, int]] = []
        self.token = CancelToken()

    def pin(self) -> None:
        """Keep the calling thread to the worker's processors, if the system can; it may refuse some."""
        if self.cpus is not None and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(0, self.cpus)


class Crew:
    """Workers that serve the same stations, those at the end of the graph first: begun tasks end before others begin.

    condition: workers wait for work there; all crews of a flow share its lock.  idle: how many do.  looks: whether a
    worker that has the lock now will look for work before it lets go.
    """

    def __init__(self, name: str, workers: Sequence[Workers], lock: Any) -> None:
        self.name = name
        pinned = [(w, pins) for w in workers for pins in w.pins()]
        share = max(1, processors() // len(pinned))
        self.workers = [Worker(i, cpus, w, share) for i, (w, cpus) in enumerate(pinned)]
        self.stations: list[Station] = []
        self.condition = threading.Condition(lock)
        self.idle, self.looks = 0, False

    def came(self) -> None:
        """There is work, which a worker that waits should see.  For who holds the lock, as all below."""
        if self.idle and not self.looks:
            self.condition.notify()

    def take(self, worker: Worker, now: float) -> tuple[Work | None, float | None]:
        """As `next`, for a worker, and another looks after what is left."""
        found = self.next(now)
        if found[0] is not None:
            found[0][0].begins(worker, found[0][1])
            self.pass_on()
        return found

    def pass_on(self) -> None:
        """Have another worker look after what is there, if anything is."""
        if self.idle and any(station.queue for station in self.stations):
            self.condition.notify()

    def next(self, now: float) -> tuple[Work | None, float | None]:
        """Work to do now, or how many seconds to wait at most for more of it."""
        wait: float | None = None
        for station in self.stations:
            if not station.queue or station.is_held_up:
                continue
            pieces, until = station.take(now)
            if pieces:
                return (station, pieces), None
            if until is not None:
                wait = until - now if wait is None else min(wait, until - now)
        return None, wait
