"""`bench.batch`: its rows of rates and of memory, with a small model in real workers."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from bench import batch as bench

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


def test_a_row_tells_the_rates_of_workers_and_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine does as many tasks as one process did in the seconds, twice as fast here."""
    done: list[tuple[str, int]] = []
    clock = [0.0]

    def alone(kind: str, path: str, count: int) -> None:
        done.append(("alone", count))
        clock[0] += count

    class Engine:
        def __enter__(self) -> Any:
            return self.many

        def __exit__(self, *given: object) -> None:
            done.append(("closed", 0))

        def many(self, kind: str, path: str, count: int) -> None:
            done.append(("many", count))
            clock[0] += count / 2

    monkeypatch.setattr(bench, "alone", alone)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: clock[0])
    monkeypatch.setitem(bench.ENGINES, "ours", Engine)
    row = bench.compare("ours", "images", "m.bolt", 2, 10.0)
    assert row == "| ours | images | 256.0 | 128.0 | 2.00 |"
    assert done[-5:] == [("many", 10), ("alone", 10)] * 2 + [("closed", 0)]


def test_memory_counts_what_workers_share_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {("", 1): 25.0, ("", 2): 45.0, ("m", 1): 100.0, ("m", 2): 132.0, ("m", 4): 200.0}
    monkeypatch.setattr(bench, "memory", lambda kind, path, count: sizes[path, count])
    assert bench.resident("texts", "m").splitlines() == [
        "| texts | 100 | 20 | 2 | 132 | 1.10 |", "| texts | 100 | 20 | 4 | 200 | 1.25 |",
    ]  # fmt: skip


def test_a_worker_is_measured() -> None:
    """One without a model begins, is measured while it waits, and ends."""
    assert 5 < bench.pss(os.getpid()) < 4000
    assert 5 < bench.memory("images", "", 1) < 400
