"""Measured with MLPerf's load generator: ResNet-50 and BERT in three forms of asking, beside onnxruntime.

    pip install -r bench/requirements-loadgen.txt
    python -m bench.loadgen [resnet50 bert_base_128] [--seconds 10] [--threads 2]

SingleStream: one query after the other; what counts is the 90th percentile of latencies.  Offline: all samples at once;
samples a second.  Server: queries come at random (Poisson), at half of what the slower one gave in Offline form; the
90th percentile, as minutes have too few queries for the 99th.
These are no MLPerf results: those need the datasets, accuracies, durations and rules of MLPerf, and a review.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import bolt_numba as bn
from bench.zoo import ZOO, normal_feeds

SAMPLES = 16
"""Different inputs."""
SHARE = 0.5
"""Of the samples a second that the slower engine gave in Offline form, how many queries a second Server sends."""
TURNS = 3
"""Of each engine, one after the other: the median counts."""
SCENARIOS = ("SingleStream", "Offline", "Server")
WANTED = {
    "SingleStream": "90.00 percentile latency (ns)",
    "Offline": "Samples per second",
    "Server": "90.00 percentile latency (ns)",
}
NS_PER_MS = 1e6
Run = Callable[[int], Any]


def ours(path: Path, feeds: Sequence[dict[str, Any]], threads: int) -> Run:
    session = bn.compile(path, threads=threads, stand_ins=False)  # no query meets a kernel that is still being compiled
    return lambda index: session(feeds[index])


def onnxruntime(path: Path, feeds: Sequence[dict[str, Any]], threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options)
    return lambda index: session.run(None, feeds[index])


ENGINES = {"bolt-numba": ours, "onnxruntime": onnxruntime}


def measured(run: Run, scenario: str, seconds: float, rate: float) -> float:
    """Milliseconds, or samples a second.  rate: queries a second that are expected, and sent in Server form."""
    import mlperf_loadgen as lg  # type: ignore[import-not-found,unused-ignore]

    settings = lg.TestSettings()
    settings.scenario, settings.mode = getattr(lg.TestScenario, scenario), lg.TestMode.PerformanceOnly
    settings.min_duration_ms = int(1000 * seconds)
    settings.max_duration_ms = 2 * settings.min_duration_ms
    settings.min_query_count = 1
    settings.offline_expected_qps = settings.server_target_qps = rate
    settings.single_stream_expected_latency_ns = int(1e9 / rate)
    pool = ThreadPoolExecutor(1)  # queries of Server wait here, not in the generator

    def issue(queries: Any) -> None:
        for query in queries:
            pool.submit(answer, query)

    def answer(query: Any) -> None:
        run(query.index)
        lg.QuerySamplesComplete([lg.QuerySampleResponse(query.id, 0, 0)])

    with tempfile.TemporaryDirectory() as folder:
        log = lg.LogSettings()
        log.log_output.outdir = folder
        log.enable_trace = False
        system, library = lg.ConstructSUT(issue, lambda: None), lg.ConstructQSL(SAMPLES, SAMPLES, _nothing, _nothing)
        try:
            lg.StartTestWithLogSettings(system, library, settings, log)
        finally:
            pool.shutdown()
            lg.DestroyQSL(library)
            lg.DestroySUT(system)
        return figure((Path(folder) / "mlperf_log_summary.txt").read_text(), scenario)


def _nothing(_: Any) -> None:
    """All samples are in memory."""


def figure(summary: str, scenario: str) -> float:
    """What counts in a scenario, of the generator's summary; raises ValueError where it is not there."""
    for line in summary.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == WANTED[scenario]:
            return float(value) / (1.0 if scenario == "Offline" else NS_PER_MS)
    raise ValueError(f"summary of {scenario}: got no line {WANTED[scenario]!r}")


def compare(name: str, seconds: float, threads: int) -> list[str]:
    """A row of a table for each scenario; the queries of Server are as many for both engines."""
    path = ZOO[name].path()
    feeds = [normal_feeds(path, seed) for seed in range(SAMPLES)]
    runs = {engine: make(path, feeds, threads) for engine, make in ENGINES.items()}
    for run in runs.values():
        run(0)
    found: dict[str, dict[str, float]] = {}
    rate = 1.0
    for scenario in SCENARIOS:
        turns = [{engine: measured(run, scenario, seconds, rate) for engine, run in runs.items()} for _ in range(TURNS)]
        found[scenario] = {engine: median(turn[engine] for turn in turns) for engine in runs}
        values = found[scenario].values()
        rate = 1000 / min(values) if scenario == "SingleStream" else SHARE * min(values)
    sent = SHARE * min(found["Offline"].values())
    notes = {"SingleStream": "p90, ms", "Offline": "samples a second", "Server": f"p90 at {sent:.3g} a second, ms"}
    return [
        f"| {name} | {scenario}, {notes[scenario]} | " + " | ".join(f"{v:.1f}" for v in row.values()) + " |"
        for scenario, row in found.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet50", "bert_base_128"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    head = f"| model | measured with MLPerf's load generator, {options.threads} threads | " + " | ".join(ENGINES) + " |"
    sys.stdout.write(f"{head}\n|---|---|{'---:|' * len(ENGINES)}\n")
    for name in options.models:
        sys.stdout.write("\n".join([*compare(name, options.seconds, options.threads), ""]))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
