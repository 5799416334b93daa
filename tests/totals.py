"""The last lines of a run of the suite: functions, cases, time, memory, and what took most of the time."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SLOWEST = 15
"""Functions that are named at the end."""
GROWN = 128e6
"""Bytes by which a process may grow until it looks for garbage: models in cycles wait for gigabytes of others."""
_STATM, _PAGE = Path("/proc/self/statm"), resource.getpagesize()


class Memory:
    """Has a process look for garbage, and give back what is free, whenever it has grown."""

    def __init__(self) -> None:
        self.held = 0
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)

    def pytest_runtest_logfinish(self) -> None:
        if _STATM.exists() and self._now() > self.held + GROWN:
            gc.collect()
            self.trim(0)
            self.held = self._now()

    def _now(self) -> int:
        return int(_STATM.read_text().split()[1]) * _PAGE


class Totals:
    """Counts what ran, here or in the workers of xdist."""

    def __init__(self) -> None:
        self.cases: set[str] = set()
        self.workers: list[tuple[float, float]] = []
        """Seconds of processors, of a worker and the processes that it started; GB that it held at most."""
        self.seconds = Counter[str]()
        """Of each function, on the clock, with its fixtures."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("[")[0]] += report.duration  # type: ignore[assignment]
        if report.when == "call":
            self.cases.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        used = sum(os.times()[:4]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["used"] = used
        elif not self.workers:
            self.workers.append(used)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if used := getattr(node, "workeroutput", {}).get("used"):
            self.workers.append(used)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        functions = {case.partition("[")[0] for case in self.cases}
        seconds, memory = zip(*self.workers, strict=True) if self.workers else ((0.0,), (0.0,))
        terminalreporter.write_line(
            f"{len(functions)} functions with {len(self.cases)} cases took {sum(seconds):.0f} s of processors; "
            f"a process held {max(memory):.2f} GB at most"
        )
        if len(self.cases) > 1000:
            for function, spent in self.seconds.most_common(SLOWEST):
                terminalreporter.write_line(f"{spent:7.0f} s {function}")
