"""Faults on demand: what a real device does once a month happens here whenever a test asks for it."""

from __future__ import annotations

import re
import threading
from collections import Counter

KINDS = (
    "missing",
    "open",
    "supports",
    "convert",
    "compile",
    "version",
    "load",
    "restore",
    "oom",
    "run",
    "lost",
    "wrong",
)
_SPELLING = re.compile(r"(\w+)(?::(\d+)(\+?))?")


class Faults:
    """Which calls fail: "run" fails each run, "run:3" the third, "run:3+" all from the third on; several by commas."""

    def __init__(self, text: str) -> None:
        self._wanted: dict[str, tuple[int, bool]] = {}
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        for each in filter(None, (part.strip() for part in text.split(","))):
            found = _SPELLING.fullmatch(each)
            if found is None or found[1] not in KINDS:
                known = ", ".join(KINDS)
                raise ValueError(f"property fail: got {each!r}, wanted run, run:3, run:3+, with one of {known}")
            self._wanted[found[1]] = (int(found[2] or 1), found[2] is None or bool(found[3]))

    def strikes(self, kind: str) -> bool:
        """Whether this call of the kind is one that fails."""
        if kind not in self._wanted:
            return False
        with self._lock:
            self._seen[kind] += 1
            at, onwards = self._wanted[kind]
            return self._seen[kind] >= at if onwards else self._seen[kind] == at
