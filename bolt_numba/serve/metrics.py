"""What a server counts, for Prometheus and for the statistics of the protocol; of all its processes together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Where several processes of a server put their numbers, as the client of Prometheus names it."""
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MODEL = ("model", "version")
NS = 1e9

REGISTRY = CollectorRegistry()
REQUESTS = Counter("bolt_requests", "Requests by how they ended.", (*MODEL, "outcome"), registry=REGISTRY)
LATENCY = Histogram(
    "bolt_request_seconds", "Time of requests that were answered.", MODEL, buckets=SECONDS, registry=REGISTRY
)
FAILED = Counter("bolt_request_failed_seconds", "Time of requests that failed, in all.", MODEL, registry=REGISTRY)
QUEUE = Histogram(
    "bolt_queue_seconds", "Time that requests waited for a run.", MODEL, buckets=SECONDS, registry=REGISTRY
)
RUN = Histogram("bolt_run_seconds", "Time of runs, each of a batch.", MODEL, buckets=SECONDS, registry=REGISTRY)
BATCH = Histogram("bolt_batch_size", "Requests that ran as one.", MODEL, buckets=BATCHES, registry=REGISTRY)
SIZES = Counter(
    "bolt_batch_run_seconds", "Time of runs by the size of their batch.", (*MODEL, "size"), registry=REGISTRY
)
RUNS = Counter("bolt_batch_runs", "Runs by the size of their batch.", (*MODEL, "size"), registry=REGISTRY)
LAST = Gauge(
    "bolt_last_request_timestamp_seconds", "When a request was last answered.", MODEL, registry=REGISTRY,
    multiprocess_mode="max",
)  # fmt: skip
WAITING = Gauge(
    "bolt_waiting_requests", "Requests taken and not answered.", MODEL, registry=REGISTRY, multiprocess_mode="livesum"
)
MEMORY = Gauge(
    "bolt_model_bytes", "Memory of a model by its use.", (*MODEL, "use"), registry=REGISTRY,
    multiprocess_mode="livesum",
)  # fmt: skip
PLANS = Gauge("bolt_model_plans", "Plans of a model.", MODEL, registry=REGISTRY, multiprocess_mode="livesum")


class ModelCounts:
    """The counters of one version of a model."""

    def __init__(self, name: str, version: str) -> None:
        self.labels = (name, version)
        self.latency, self.failed = LATENCY.labels(*self.labels), FAILED.labels(*self.labels)
        self.queue, self.run, self.batch = (metric.labels(*self.labels) for metric in (QUEUE, RUN, BATCH))
        self.last, self.waiting = LAST.labels(*self.labels), WAITING.labels(*self.labels)
        self.outcome = cache(lambda kind: REQUESTS.labels(*self.labels, kind))
        self.sizes = cache(lambda size: (SIZES.labels(*self.labels, str(size)), RUNS.labels(*self.labels, str(size))))

    def ended(self, seconds: float, outcome: str) -> None:
        """A request was answered, or not.  outcome: "ok", or a row of `errors.STATUS`."""
        self.outcome(outcome).inc()
        if outcome == "ok":
            self.latency.observe(seconds)
            self.last.set(time.time())
        else:
            self.failed.inc(seconds)

    def ran(self, waits: Sequence[float], seconds: float) -> None:
        """A run ended, of requests that had waited so long each."""
        for wait in waits:
            self.queue.observe(wait)
        self.run.observe(seconds)
        self.batch.observe(len(waits))
        spent, runs = self.sizes(len(waits))
        spent.inc(seconds)
        runs.inc()


def registry() -> CollectorRegistry:
    """What is counted by this process, or by all that share a folder."""
    if SHARED not in os.environ:
        return REGISTRY
    made = CollectorRegistry()
    MultiProcessCollector(made)  # type: ignore[no-untyped-call]
    return made


def exposition() -> bytes:
    """Prometheus' text form."""
    return generate_latest(registry())


def statistics(wanted: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The protocol's statistics of versions of models; times in nanoseconds."""
    rows: dict[tuple[str, str], dict[Any, float]] = {key: {} for key in wanted}
    for name, labels, value in _samples():
        row = rows.get((labels.get("model", ""), labels.get("version", "")))
        if row is not None:
            extra = labels.get("outcome") or labels.get("size")
            row[name if extra is None else (name, extra)] = value
    return [_statistic(*key, row) for key, row in rows.items()]


def _samples() -> Iterator[tuple[str, dict[str, str], float]]:
    for metric in registry().collect():
        for sample in metric.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                yield sample.name, sample.labels, sample.value


def _statistic(name: str, version: str, row: dict[Any, float]) -> dict[str, Any]:
    def spent(count: Any, seconds: Any) -> dict[str, int]:
        return {"count": int(row.get(count, 0)), "ns": int(row.get(seconds, 0) * NS)}

    ended = {key[1]: int(n) for key, n in row.items() if isinstance(key, tuple) and key[0] == "bolt_requests_total"}
    sizes = sorted(int(key[1]) for key in row if isinstance(key, tuple) and key[0] == "bolt_batch_runs_total")
    failed = {
        "count": sum(ended.values()) - ended.get("ok", 0),
        "ns": int(row.get("bolt_request_failed_seconds_total", 0) * NS),
    }
    return {
        "name": name, "version": version,
        "last_inference": int(row.get("bolt_last_request_timestamp_seconds", 0) * 1e3),
        "inference_count": ended.get("ok", 0), "execution_count": int(row.get("bolt_run_seconds_count", 0)),
        "inference_stats": {
            "success": spent("bolt_request_seconds_count", "bolt_request_seconds_sum"), "fail": failed,
            "queue": spent("bolt_queue_seconds_count", "bolt_queue_seconds_sum"),
            "compute_infer": spent("bolt_run_seconds_count", "bolt_run_seconds_sum"),
        },
        "batch_stats": [
            {"batch_size": size,
             "compute_infer": spent(("bolt_batch_runs_total", str(size)), ("bolt_batch_run_seconds_total", str(size)))}
            for size in sizes
        ],
    }  # fmt: skip
