"""What happens where a plug-in fails: it is counted with its cause, told once or refused, as the session says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from bolt_numba.base.border import warn_caller
from bolt_numba.base.errors import DeviceError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.plugins.interface import FallbackWarning
from bolt_numba.plugins.registry import text_of

NAMED = 4
"""Nodes of a part that messages name."""
REASONS = 100
"""Reasons that are counted each by itself: a driver may put the time, or an address, into every one."""
OTHERS = "for other reasons"
OPENING = "open"
"""The stage whose failure nobody else would hear of: all else runs as if the device had not been named."""


class Failures:
    """Of a session.

    fallback: "allow": a warning of a device that cannot be opened; "warn": one for each cause; "forbid": an error.
    """

    def __init__(self, fallback: str) -> None:
        self.fallback = fallback
        self.by_device: dict[str, Counter[str]] = {}
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock", threading.RLock)

    def add(self, device: str, stage: str, cause: Exception | str, part: str = "", nodes: Sequence[str] = ()) -> str:
        """Take note of a failure, and return its reason: ``run: SdkError: no answer``.

        stage: what the device was asked to do.  part, nodes: of the graph, where the failure concerns a part.
        Raises DeviceError with all of that where the session forbids that others compute instead.
        """
        reason = f"{stage}: {cause if isinstance(cause, str) else text_of(cause)}"
        with self._lock:
            is_new = count(self.by_device.setdefault(device, Counter()), reason)
        if self.fallback == "allow" and stage != OPENING:
            return reason
        text = f"device {device!r}: {_where(part, nodes)}{reason}"
        if self.fallback == "forbid":
            raise DeviceError(text) from (None if isinstance(cause, str) else cause)
        if is_new:
            warn_caller(f"{text}; the session goes on without the device", FallbackWarning)
        return reason

    def check(self, device: str, reason: str, part: str, nodes: Sequence[str]) -> None:
        """Raise DeviceError where the session forbids that others compute what a device failed to before."""
        if self.fallback == "forbid":
            raise DeviceError(f"device {device!r}: {_where(part, nodes)}{reason}")

    def check_first(self, device: str, stage: str) -> None:
        """The same for whatever failed first in a stage, where it could not be raised at once."""
        for reason in self.by_device.get(device, ()):
            if reason.startswith(f"{stage}: "):
                self.check(device, reason, "", ())


def count(counts: Counter[str], reason: str) -> bool:
    """Count one more failure; whether it is the first for which it is counted."""
    name = reason if reason in counts or len(counts) < REASONS else OTHERS
    counts[name] += 1
    return counts[name] == 1


def _where(part: str, nodes: Sequence[str]) -> str:
    if not part:
        return ""
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return f"part {part!r} ({', '.join(nodes[:NAMED])}{more}): "
