"""A plug-in as one session has it: opened when it is needed, closed when nothing of it is in use, perhaps lost."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.devices.parts.failures import Failures
from bolt_numba.plugins.interface import Accelerator, Compiled, DeviceDriver, Request, Setting, Shapes
from bolt_numba.plugins.registry import opened

_all: WeakSet[Opened] = WeakSet()
_left: list[object] = []
"""What a parent process had open, in its child."""


def _left_alone() -> list[object]:
    """Keep for ever what the parent had open: closing it, or its end, would wait for threads that a child has not."""
    made: list[object] = []
    for each in list(_all):
        made += each.holds()
    for thing in made:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return made


renew_after_fork(sys.modules[__name__], "_left", _left_alone)


class Opened:
    """An accelerator of one session, and all that was compiled for it.

    name: what the session calls it; the driver's unless there are several of that.  settings: of all its properties.
    lost: why the device does not answer any more; "" where it does.  shapes: what its compiled graphs serve.
    """

    def __init__(
        self, driver: DeviceDriver, settings: Mapping[str, Setting], failures: Failures, name: str = ""
    ) -> None:
        self.name, self.driver, self.settings, self.failures = name or driver.name, driver, settings, failures
        self.lost = ""
        self.proven: Callable[[Loaded], object] = id
        """Is told what ran well for the first time."""
        self.shapes: Shapes = "fixed"
        self.live: dict[int, Loaded] = {}
        self.lock = threading.RLock()
        self.process = self._opener = os.getpid()
        self._accelerator: Accelerator | None = None
        self._closes, self._users = False, 0
        renew_after_fork(self, "lock", threading.RLock)
        renew_after_fork(self, "process", os.getpid)
        renew_after_fork(self, "_users", int)
        _all.add(self)

    def accelerator(self) -> Accelerator:
        """The open accelerator.  Raises what the driver raises where it cannot be opened, DeviceError where it is lost.

        A child of a fork opens one of its own: what the parent has is not closed there.
        """
        with self.lock:
            if self.lost:
                raise DeviceError(f"device {self.name!r}: is lost: {self.lost}")
            if self._accelerator is not None and self._opener != self.process:
                self._accelerator = None
                self.live.clear()
            self._closes = False
            if self._accelerator is None:
                reason = self.driver.missing()
                if reason:
                    raise DeviceError(f"device {self.name!r}: is not available: {reason}")
                self._accelerator, self._opener = opened(self.driver, self.settings), self.process
                self.shapes = self._accelerator.shapes
            return self._accelerator

    def holds(self) -> list[object]:
        """What is open at the moment."""
        return [self._accelerator, *(each for loaded in list(self.live.values()) for each in loaded.holds())]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """What is open stays so within: others may close it meanwhile."""
        with self.lock:
            self._users += 1
        try:
            yield
        finally:
            with self.lock:
                self._users -= 1
            self.closed(None)

    @property
    def version(self) -> str:
        """Of what is open, or ""."""
        return "" if self._accelerator is None else str(getattr(self._accelerator, "version", ""))

    def load(self, compiled: Compiled) -> Loaded:
        """Look after what was compiled."""
        made = Loaded(self, compiled)
        with self.lock:
            if any(each.compiled is compiled for each in self.live.values()):
                raise DeviceError("got a Compiled that is in use, wanted a new one")
            self.live[id(made)] = made
        return made

    def make_room(self) -> bool:
        """Close what is compiled and runs nowhere; whether there was anything."""
        with self.lock:
            idle = [loaded for loaded in self.live.values() if not loaded.busy]
        for loaded in idle:
            loaded.retire()
        return bool(idle)

    def close(self) -> None:
        """Close all that is not in use, and the rest when it is no longer; what is asked next opens the device anew."""
        with self.lock:
            if self._accelerator is None or self._opener != self.process:
                return
            self._closes = True
            live = list(self.live.values())
        for loaded in live:
            loaded.retire()
        self.closed(None)

    def closed(self, loaded: Loaded | None) -> None:
        """Something compiled is closed; so is the device, where that was asked for and nothing else is left."""
        with self.lock:
            self.live.pop(id(loaded), None)
            if not self._closes or self._users or self.live or self._accelerator is None:
                return
            accelerator, self._accelerator, self._closes = self._accelerator, None, False
        with suppress(Exception):
            accelerator.close()


class Loaded:
    """Something compiled, with the requests that run it, closed when it is retired and no request runs.

    is_proven: whether a run of it succeeded.  source: "compiled", or "cached": restored from the cache folder.
    blob: the name by which it is kept there.
    """

    def __init__(self, opened: Opened, compiled: Compiled) -> None:
        self.opened, self.compiled = opened, compiled
        self.process, self.source, self.is_proven, self.blob = opened.process, "compiled", False, ""
        self.busy, self.is_retired, self.is_closed = 0, False, False
        self.lock = threading.RLock()  # a signal handler may run the session that it interrupts
        self.idle: list[Request] = []
        self._requests: list[Request] = []
        renew_after_fork(self, "lock", threading.RLock)

    def holds(self) -> list[object]:
        """What it has of the device."""
        return [self.compiled, *self._requests]

    @property
    def is_usable(self) -> bool:
        """Whether it can be run, here and now."""
        return not self.is_retired and self.process == self.opened.process

    @property
    def nbytes(self) -> int:
        """Bytes of the device that it holds; 0 where the device fails to say."""
        try:
            return int(self.compiled.nbytes)
        except Exception:
            return 0

    def begin(self) -> bool:
        """Keep it open for a run; False where it is closed already, or of a parent process."""
        with self.lock:
            if self.is_retired or self.process != self.opened.process:
                return False
            self.busy += 1
            return True

    def end(self) -> None:
        """The run is over."""
        with self.lock:
            self.busy -= 1
            if self.busy or not self.is_retired:
                return
        self._close()

    def request(self) -> Request:
        """One that nobody else runs; within `begin` and `end`."""
        with suppress(IndexError):
            return self.idle.pop()
        made: Any = self.compiled.request()
        if not isinstance(made, Request):
            raise DeviceError(f"got a {type(made).__name__}, wanted a Request")
        with self.lock:
            if any(each is made for each in self._requests):
                raise DeviceError("got a Request that is in use, wanted a new one")
            self._requests.append(made)
        return made

    def counted(self, request: Request) -> dict[str, int]:
        """What a request counted of its last run; one that cannot has run all the same."""
        with suppress(Exception):
            return {str(name): int(count) for name, count in request.counts().items()}
        return {}

    def drop(self, request: Request) -> None:
        """Close a request that nobody shall run again."""
        with self.lock:
            self._requests = [each for each in self._requests if each is not request]
        _close_all([request])

    def retire(self) -> None:
        """Close it as soon as no request runs."""
        with self.lock:
            self.is_retired = True
            if self.busy:
                return
        self._close()

    def _close(self) -> None:
        with self.lock:
            if self.is_closed or self.process != self.opened.process:
                return
            self.is_closed = True
            requests, self._requests = self._requests, []
            self.idle.clear()
        _close_all([*requests, self.compiled])
        self.opened.closed(self)


def _close_all(things: Sequence[Request | Compiled]) -> None:
    for each in things:
        with suppress(Exception):
            each.close()
