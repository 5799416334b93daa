"""What a flow counts: tasks, times and batches of each node, and a trace of who worked when."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

SAMPLES = 2048
"""Latest times of a node that percentiles are made of."""
EVENTS = 100_000
"""Latest events of a trace."""
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Event(NamedTuple):
    """A run of a node, in seconds of `time.perf_counter`; tasks: the number of each piece's."""

    node: str
    crew: str
    worker: int
    begin: float
    end: float
    tasks: tuple[int, ...]


class NodeCounts:
    """What one node counted; for who holds the flow's lock."""

    def __init__(self) -> None:
        self.pieces = self.runs = self.failed = self.deepest = 0
        self.busy = 0.0
        self.waited: deque[float] = deque(maxlen=SAMPLES)
        self.served: deque[float] = deque(maxlen=SAMPLES)
        self.batches: Counter[int] = Counter()
        self.workers: dict[str, list[Any]] = {}

    def came(self, depth: int) -> None:
        """A piece came: so many wait now."""
        self.deepest = max(self.deepest, depth)

    def ran(self, waits: Sequence[float], seconds: float, who: str, device: Any) -> None:
        """A run of as many pieces as there are times of waiting.  who, device: the worker, and what it stands for."""
        own = self.workers.get(who)
        if own is None:
            own = self.workers[who] = [device, 0, 0, 0.0]
        own[1] += len(waits)
        own[2] += 1
        own[3] += seconds
        self.runs += 1
        self.pieces += len(waits)
        self.busy += seconds
        self.waited.extend(waits)
        self.served.append(seconds)
        self.batches[len(waits)] += 1


@dataclass(frozen=True)
class WorkerStatistics:
    """What one worker did for a node.  device: as `Workers` has it.  busy_s: seconds of its calls together."""

    device: str | tuple[str, ...] | None
    pieces: int
    runs: int
    busy_s: float


@dataclass(frozen=True)
class NodeStatistics:
    """Numbers of one node since the flow began; times in seconds.

    pieces: tasks, or items of their lists.  runs: calls, of which each served a batch.  failed: pieces that raised.
    busy_s: time of all calls together.  waiting_s, serving_s: percentiles of the latest times in queue and in calls.
    depth, deepest: pieces that wait now, and at most.  batches: how many runs had each size.  workers: by their names,
    as traces have them.
    """

    pieces: int
    runs: int
    failed: int
    busy_s: float
    waiting_s: dict[str, float]
    serving_s: dict[str, float]
    depth: int
    deepest: int
    batches: dict[int, int]
    workers: dict[str, WorkerStatistics]


@dataclass(frozen=True)
class FlowStatistics:
    """Tasks by how they ended, how long those with results took (percentiles of the latest, in seconds), and nodes."""

    tasks: int
    done: int
    failed: int
    cancelled: int
    latency_s: dict[str, float]
    nodes: dict[str, NodeStatistics]

    def table(self) -> str:
        """Text: a line for each node; below it one for each worker, where these have different devices."""
        lines = [f"{'node':<20} {'pieces':>8} {'runs':>8} {'failed':>7} {'busy s':>8} {'wait p50 ms':>12} {'p99':>9} "
                 f"{'run p50 ms':>11} {'p99':>9} {'deepest':>8}"]  # fmt: skip
        for name, n in self.nodes.items():
            times = [1e3 * t.get(p, 0.0) for t in (n.waiting_s, n.serving_s) for p in ("p50", "p99")]
            lines.append(
                f"{name:<20} {n.pieces:8d} {n.runs:8d} {n.failed:7d} {n.busy_s:8.2f} {times[0]:12.2f} {times[1]:9.2f} "
                f"{times[2]:11.2f} {times[3]:9.2f} {n.deepest:8d}"
            )
            if len({w.device for w in n.workers.values()}) > 1:
                for who, w in n.workers.items():
                    place = ", ".join(w.device) if isinstance(w.device, tuple) else w.device or "its own device"
                    lines.append(f"  {f'{who}: {place}':<18} {w.pieces:8d} {w.runs:8d} {'':7} {w.busy_s:8.2f}")
        took = ", ".join(f"{p} {1e3 * t:.2f} ms" for p, t in self.latency_s.items())
        ends = f"{self.tasks} tasks: {self.done} done, {self.failed} failed, {self.cancelled} cancelled"
        return "\n".join([*lines, ends + (f"; {took}" if took else "")])


def percentiles(samples: Sequence[float] | deque[float]) -> dict[str, float]:
    """By name; none where there is no sample."""
    if not samples:
        return {}
    found = np.quantile(np.fromiter(samples, float), list(SHARES.values()))
    return dict(zip(SHARES, map(float, found), strict=True))


def statistics_of(counts: NodeCounts, depth: int) -> NodeStatistics:
    """The numbers as they are now."""
    return NodeStatistics(
        counts.pieces, counts.runs, counts.failed, counts.busy, percentiles(counts.waited), percentiles(counts.served),
        depth, counts.deepest, dict(sorted(counts.batches.items())),
        {who: WorkerStatistics(*found) for who, found in sorted(counts.workers.items())},
    )  # fmt: skip


def chrome_events(events: Sequence[Event], start: float) -> list[dict[str, Any]]:
    """Events of a trace, microseconds from ``start``: a row for each worker, a box for each run of a node."""
    rows = {row: i + 1 for i, row in enumerate(sorted({(e.crew, e.worker) for e in events}))}
    named: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": f"{crew} {worker}"}}
        for (crew, worker), tid in rows.items()
    ]
    return named + [
        {
            "name": e.node, "cat": e.crew, "ph": "X", "ts": (e.begin - start) * 1e6, "dur": (e.end - e.begin) * 1e6,
            "pid": 1, "tid": rows[e.crew, e.worker], "args": {"tasks": list(e.tasks), "pieces": len(e.tasks)},
        }
        for e in events
    ]  # fmt: skip
