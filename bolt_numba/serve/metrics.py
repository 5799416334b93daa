"""What a server counts, for Prometheus and for the statistics of the protocol; of all its processes together."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from bolt_numba.runtime.stand_ins import compiled_so_far

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Where several processes of a server put their numbers, as the client of Prometheus names it."""
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MODEL = ("model", "version")
NS = 1e9
OK = "ok"
"""The outcome of a request that was answered; others are rows of `errors.STATUS`."""

REGISTRY = CollectorRegistry()


def _times(name: str, what: str, *labels: str) -> Histogram:
    return Histogram(f"bolt_{name}_seconds", what, (*MODEL, *labels), buckets=SECONDS, registry=REGISTRY)


def _now(name: str, what: str, mode: Any, *labels: str) -> Gauge:
    return Gauge(f"bolt_{name}", what, (*MODEL, *labels), registry=REGISTRY, multiprocess_mode=mode)


REQUESTS = _times("request", "Time of requests by how they ended.", "outcome")
QUEUE = _times("queue", "Time that requests waited for a run.")
FIRST = _times("first_token", "Time from a request for a text to its first token.")
TOKEN = _times("token", "Time between tokens of a text, its mean.")
SEQUENCES = _now("sequences", "Texts that are being made, or wait for a place.", "livesum", "state")
TOKENS = Counter("bolt_tokens", "Tokens of prompts and of texts.", (*MODEL, "of"), registry=REGISTRY)
RUNS = _times("run", "Time of runs by the requests that ran as one.", "batch")
LAST = _now("last_request_timestamp_seconds", "When a request was last answered.", "max")
WAITING = _now("waiting_requests", "Requests taken and not answered.", "livesum")
MEMORY = _now("model_bytes", "Memory of a model by its use, in one process.", "livemax", "use")
PLANS = _now("model_plans", "Plans of a model, in one process.", "livemax")
FAILURES = Counter("bolt_failures", "Requests that were refused or failed, and why.", ("outcome",), registry=REGISTRY)
PROCESS = Gauge(
    "bolt_process", "What a process holds and did: its memory, and kernels that it compiled.", ("what",),
    registry=REGISTRY, multiprocess_mode="liveall",
)  # fmt: skip


def measure(models: Iterable[Any]) -> None:
    """Tell what this process and its models hold, and what it has compiled, by now."""
    for model in models:
        model.measure()
    pages = Path("/proc/self/statm")
    if pages.exists():
        PROCESS.labels("resident_bytes").set(int(pages.read_text().split()[1]) * resource.getpagesize())
    for what, value in zip(("compiled_kernels", "compile_seconds"), compiled_so_far(), strict=True):
        PROCESS.labels(what).set(value)


class ModelCounts:
    """The counters of one version of a model."""

    def __init__(self, name: str, version: str) -> None:
        labels = (name, version)
        self.outcome = cache(partial(REQUESTS.labels, *labels))
        self.batch = cache(partial(RUNS.labels, *labels))
        self.queue, self.last = QUEUE.labels(*labels), LAST.labels(*labels)
        self.tokens = cache(partial(TOKENS.labels, *labels))
        self.first, self.token = cache(partial(FIRST.labels, *labels)), cache(partial(TOKEN.labels, *labels))

    def ended(self, seconds: float, outcome: str) -> None:
        """A request was answered, or not.  outcome: `OK`, or a row of `errors.STATUS`."""
        self.outcome(outcome).observe(seconds)
        if outcome == OK:
            self.last.set(time.time())

    def ran(self, waits: Sequence[float], seconds: float) -> None:
        """A run ended, of requests that had waited so long each."""
        for wait in waits:
            self.queue.observe(wait)
        self.batch(len(waits)).observe(seconds)


def registry() -> CollectorRegistry:
    """What is counted by this process, or by all that share a folder."""
    if SHARED not in os.environ:
        return REGISTRY
    made = CollectorRegistry()
    MultiProcessCollector(made)  # type: ignore[no-untyped-call]
    return made


def exposition(models: Iterable[Any]) -> bytes:
    """Prometheus' text form, of models that serve here, too."""
    measure(models)
    return generate_latest(registry())


def statistics(wanted: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The protocol's statistics of versions of models; times in nanoseconds."""
    rows: dict[tuple[str, str], dict[tuple[str, str], float]] = {key: {} for key in wanted}
    for sample in (sample for metric in registry().collect() for sample in metric.samples):
        labels = sample.labels
        row = rows.get((labels.get("model", ""), labels.get("version", "")))
        if row is not None and "le" not in labels:
            row[sample.name, labels.get("outcome", labels.get("batch", ""))] = sample.value
    return [_statistic(*key, row) for key, row in rows.items()]


def _statistic(name: str, version: str, row: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    def spent(metric: str, labels: Sequence[str]) -> dict[str, int]:
        named = f"bolt_{metric}_seconds"
        count, seconds = (sum(row.get((f"{named}_{end}", x), 0) for x in labels) for end in ("count", "sum"))
        return {"count": int(count), "ns": int(seconds * NS)}

    failed = [label for metric, label in row if metric == "bolt_request_seconds_count" and label != OK]
    sizes = sorted((label for metric, label in row if metric == "bolt_run_seconds_count"), key=int)
    success, runs = spent("request", [OK]), spent("run", sizes)
    return {
        "name": name, "version": version, "inference_count": success["count"], "execution_count": runs["count"],
        "last_inference": int(row.get(("bolt_last_request_timestamp_seconds", ""), 0) * 1e3),
        "inference_stats": {
            "success": success, "fail": spent("request", failed), "queue": spent("queue", [""]), "compute_infer": runs,
        },
        "batch_stats": [{"batch_size": int(size), "compute_infer": spent("run", [size])} for size in sizes],
    }  # fmt: skip
