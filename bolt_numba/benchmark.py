"""Measure a model on several engines in one run, interleaved, because machines are noisy: ratios are what counts.

Loading, the first run and peak memory are measured in a fresh process for each engine:
``python -m bolt_numba.benchmark '{"model": ..., "engine": ..., "inputs": ...}'`` is such a process.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba import peers
from bolt_numba.base.errors import BoltError
from bolt_numba.base.notebook import html_table
from bolt_numba.base.options import options_of
from bolt_numba.base.types import STRING, TensorSpec, dtype_from_name, dtype_name
from bolt_numba.converters.formats import Content, format_of, load
from bolt_numba.peers import BoltEngine, Engine, Feeds
from bolt_numba.sessions.guesses import model_feeds, random_feeds

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords

OURS = "bolt-numba"
MOST_TEXTS = 64
"""Texts of an input that a process of its own is told; they repeat."""
BLOCK_SECONDS = 0.02
"""Seconds that one engine runs before the next one's turn."""


@dataclass(slots=True)
class Measured:
    """What one engine did.  latencies: seconds of each timed run; the others are None where not measured."""

    engine: str
    latencies: list[float] = field(default_factory=list)
    load_s: float | None = None
    first_run_s: float | None = None
    peak_rss_bytes: int | None = None
    error: str = ""

    @property
    def minimum(self) -> float:
        return min(self.latencies)

    @property
    def median(self) -> float:
        return statistics.median(self.latencies)

    @property
    def p90(self) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]

    def to_json(self) -> dict[str, Any]:
        times = {"min_s": self.minimum, "median_s": self.median, "p90_s": self.p90} if self.latencies else {}
        return {
            "engine": self.engine,
            **times,
            "runs": len(self.latencies),
            "load_s": self.load_s,
            "first_run_s": self.first_run_s,
            "peak_rss_bytes": self.peak_rss_bytes,
            "error": self.error,
        }


@dataclass(slots=True)
class BenchReport:
    """Every engine's figures, ours first."""

    model: str
    threads: int
    shapes: dict[str, tuple[int, ...]]
    engines: list[Measured]
    precision: str = "f32"
    numerics: str = "default"

    def ratios(self) -> dict[str, dict[str, float]]:
        """For each peer, its time over ours: above 1, bolt-numba is the faster one."""
        ours = self.engines[0]
        found = {}
        for other in self.engines[1:]:
            if ours.latencies and other.latencies:
                found[other.engine] = {"min": other.minimum / ours.minimum, "median": other.median / ours.median}
        return found

    def _repr_html_(self) -> str:
        columns = ("engine", "min ms", "median ms", "times ours", "")
        ratios = self.ratios()
        rows = [
            (e.engine, *([f"{t * 1e3:.3g}" for t in (e.minimum, e.median)] if e.latencies else ["-", "-"]),
             f"{ratios[e.engine]['median']:.2f}" if e.engine in ratios else "", e.error)
            for e in self.engines
        ]  # fmt: skip
        return html_table(f"{self.model}, {self.threads} thread(s)", columns, rows, columns[1:4])

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "threads": self.threads,
            "precision": self.precision,
            "numerics": self.numerics,
            "shapes": {k: list(v) for k, v in self.shapes.items()},
            "engines": [e.to_json() for e in self.engines],
            "ratios": self.ratios(),
        }


def shapes_of(arrays: Feeds) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def bench(
    model: peers.Model,
    *,
    vs: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    feeds: Feeds | None = None,
    seed: int = 0,
    seconds: float = 3.0,
    processes: bool = True,
    weights: str | os.PathLike[str] | None = None,
    signature: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **options: Unpack[OptionKeywords],
) -> BenchReport:
    """Measure ``model`` here and on the engines of ``vs`` (a peer that fails is reported with its error).

    shapes, feeds, seed: as `bolt_numba.sessions.guesses.model_feeds`.  seconds: of timed runs, all engines together.
    processes: also start a process per engine for load time, first run and peak memory (needs a path, and no stages).
    Peers get ONNX, or their own format.  weights, signature, options: as of `bolt_numba.compile`, but one thread where
    nothing is said; peers have the threads, and the precision where they know it.
    Raises BoltError for a peer that cannot have this model.
    """
    how = options_of("bench", {"threads": 1, "stand_ins": False, **options})  # kernels are what is measured
    given: dict[str, Any] = {"weights": None if weights is None else os.fspath(weights), "signature": signature}
    ours = BoltEngine(model, **(ours_how := vars(how) | given))
    threads, precision = how.thread_count, how.precision
    drawn = model_feeds(ours.session.graph, shapes, seed, feeds)
    arrays = {name: a.astype(STRING) if np.issubdtype(a.dtype, str) else a for name, a in drawn.items()}
    engines: dict[str, Engine] = {OURS: ours}
    measured = {name: Measured(name) for name in (OURS, *vs)}
    with tempfile.TemporaryDirectory() as folder:
        for name in vs:
            progress(f"loading into {name}")
            try:
                own, second = _for_peer(name, model, given, folder)
                engines[name] = peers.make(name, own, threads, precision, second)
            except BoltError as error:
                measured[name].error = str(error)
        progress("first runs")
        _run_each(engines, measured, arrays)
        progress("timing, interleaved")
        for name, latencies in interleaved({n: _caller(e, arrays) for n, e in engines.items()}, seconds).items():
            measured[name].latencies = latencies
        for name in engines if processes and how.stages is None and not isinstance(model, bytes) else ():
            progress(f"load time and memory of {name}, in its own process")
            own, second = (model, None) if name == OURS else _for_peer(name, model, given, folder)
            job = {"model": own, "weights": second, "threads": threads, "precision": precision, "ours": ours_how}
            _add_process_figures(measured[name], job, arrays)
    label = "model" if isinstance(model, bytes) else Path(os.fspath(model)).name
    return BenchReport(label, threads, shapes_of(arrays), list(measured.values()), precision, how.numerics)


def _for_peer(name: str, model: peers.Model, how: Mapping[str, Any], folder: str) -> tuple[peers.Model, str | None]:
    """What a peer loads, and the second file: an ONNX model, or one of its own format, as it is.

    Other formats are written as ONNX, once, into the folder.  Raises BoltError for a peer that reads neither.
    """
    format, own = format_of(Content(model, how["weights"])), peers.OWN_FORMATS.get(name)
    if own is not None:
        if format != own:
            raise BoltError(f"{name}: model: got a file of {format}, wanted one of {own}")
        if how["signature"] is not None:
            raise BoltError(f"{name}: signature: got {how['signature']!r}, wanted none: the first runs")
        return model, how["weights"]
    if format == "onnx":
        return model, None
    from bolt_numba.converters.onnx.writing.write import save_onnx  # onnx is no part of what is measured

    path = Path(folder, "model.onnx")
    if not path.exists():
        save_onnx(load(model, weights=how["weights"], signature=how["signature"]), path)
    return path, None


def _run_each(engines: dict[str, Engine], measured: Mapping[str, Measured], feeds: Feeds) -> None:
    """The first run of each engine; peers that fail are left out."""
    for name in list(engines):
        try:
            engines[name].run(feeds)
        except Exception as error:
            if name == OURS:
                raise
            measured[name].error = f"{type(error).__name__}: {error}"
            del engines[name]


def _caller(engine: Engine, feeds: Feeds) -> Callable[[], object]:
    return lambda: engine.run(feeds)


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Seconds of each call of each function, taken in turns of about `BLOCK_SECONDS` seconds, at least five turns each.

    Before a turn the processor rests for a moment and one call is not timed, so that neither the idle threads of the
    function before (which may spin) nor its cache contents are charged to this one.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        stop = time.perf_counter() + seconds
        turns = 0
        while turns < 5 or time.perf_counter() < stop:
            for name, call in calls.items():
                time.sleep(0.002)
                call()
                _turn(call, found[name])
            turns += 1
    finally:
        if collecting:
            gc.enable()
    return found


def _turn(call: Callable[[], object], latencies: list[float]) -> None:
    end = time.perf_counter() + BLOCK_SECONDS
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        latencies.append(now - start)
        if now >= end:
            return


def _add_process_figures(into: Measured, how: Mapping[str, Any], feeds: Feeds) -> None:
    """how: what `main` takes beside the engine and its inputs."""
    inputs = [(name, dtype_name(a.dtype), a.shape) for name, a in feeds.items()]
    texts = {name: a.reshape(-1)[:MOST_TEXTS].tolist() for name, a in feeds.items() if a.dtype == STRING}
    job = {**how, "engine": into.engine, "inputs": inputs, "texts": texts}
    command = [sys.executable, "-m", "bolt_numba.benchmark", json.dumps(job, default=os.fspath)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        into.error = (done.stderr.strip().splitlines() or ["its process died"])[-1]
        return
    figures = json.loads(done.stdout.splitlines()[-1])
    into.load_s, into.first_run_s = figures["load_s"], figures["first_run_s"]
    into.peak_rss_bytes = figures["peak_rss_bytes"]


def peak_rss() -> int | None:
    """Largest resident set of this process so far in bytes; None where the system does not tell.

    Source: VmHWM of proc(5), which, unlike ``ru_maxrss``, starts anew at exec.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    rows = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(rows[0][1]) * 1024 if rows else None


def main(job: Mapping[str, Any]) -> dict[str, Any]:
    """Load and run a model once in this process, and say what it took.

    The inputs are known before, as an application's would be; importing the engine counts as loading.
    """
    specs = [TensorSpec(name, dtype_from_name(dtype), tuple(shape)) for name, dtype, shape in job["inputs"]]
    model = job["model"]
    start = time.perf_counter()
    if job["engine"] == OURS:
        engine: Engine = BoltEngine(model, **job["ours"])
    else:
        engine = peers.make(job["engine"], model, job["threads"], job["precision"], job["weights"])
    load_s = time.perf_counter() - start
    texts = {name: np.array(found, STRING) for name, found in job["texts"].items()}
    shapes = {name: tuple(shape) for name, _, shape in job["inputs"]}
    feeds = random_feeds(specs, given={name: np.resize(found, shapes[name]) for name, found in texts.items()})
    start = time.perf_counter()
    engine.run(feeds)
    return {"load_s": load_s, "first_run_s": time.perf_counter() - start, "peak_rss_bytes": peak_rss()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
