"""Models over rows in two workers beside one process of two threads: rows a second, and memory.

    pip install -r bench/requirements-batch.txt
    python -m bench.batch [--engines processes,joblib,dask,ray,spark] [--turns 3] [--seconds 10]

Images are those of MobileNet v2, eight a run; texts have 128 tokens for MiniLM.  Rows are drawn in the workers by
their number, so no engine is measured by how it moves images.  Workers have started, and have seen a first task, before
the clock runs; but Ray begins its actors in each job, and that counts.  So a job has as many tasks as one process
does in the seconds.  Turns of one process and of the workers alternate; the median counts.
Memory is the proportional set size: what processes share counts once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bolt_numba import batch

WORKERS = 2
ROWS = {"images": 128, "texts": 64}
"""Of a task."""
CROWDS = (2, 4)
"""Workers whose memory is measured."""
RUN = 8
"""Rows that a model takes at once."""
TOKENS, VOCABULARY = 128, 30_000
MIB = 1 << 20


@cache
def rows_of(kind: str, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    if kind == "images":
        return {"input": rng.normal(size=(count, 3, 224, 224)).astype("f4")}
    ids = rng.integers(0, VOCABULARY, (count, TOKENS))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def task(kind: str, path: str, threads: int | None) -> int:
    """One task of a worker: rows that it has, through the model."""
    made = batch.predict(rows_of(kind, ROWS[kind]), path, threads=threads)
    return len(next(iter(made.values())))


def model(kind: str, folder: Path) -> str:
    from bench.zoo import bert, mobilenet_v2  # workers do without

    built = (mobilenet_v2 if kind == "images" else bert(11, 6, 384, 12, TOKENS))(RUN)
    source = folder / f"{kind}.onnx"
    source.write_bytes(built.SerializeToString())
    return batch.prepare(source, folder / f"{kind}.bolt")


def pss(pid: int) -> float:
    """MiB of a process, its share of what it has together with others."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]


Many = Callable[[str, str, int], None]
"""Does so many tasks of a kind with a model in the workers of an engine."""


@contextmanager
def processes() -> Iterator[Many]:
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        yield lambda kind, path, count: pool.starmap(task, [(kind, path, 1)] * count, chunksize=1) and None


@contextmanager
def joblib() -> Iterator[Many]:
    from joblib import Parallel, delayed

    with Parallel(n_jobs=WORKERS, batch_size=1) as many:
        yield lambda kind, path, count: many(delayed(task)(kind, path, None) for _ in range(count)) and None


@contextmanager
def dask() -> Iterator[Many]:
    from dask.distributed import Client, LocalCluster

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as at, Client(at) as client:

        def many(kind: str, path: str, count: int) -> None:
            client.gather([client.submit(task, kind, path, None, pure=False) for _ in range(count)])

        yield many


class InRay:
    def __init__(self, kind: str, path: str, threads: int) -> None:
        self.given = kind, path, threads

    def __call__(self, numbers: Any) -> Any:
        return {"rows": [task(*self.given) for _ in numbers["id"]]}


@contextmanager
def ray() -> Iterator[Many]:
    import ray as found

    found.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    found.data.DataContext.get_current().enable_progress_bars = False

    def many(kind: str, path: str, count: int) -> None:
        settings = batch.ray_settings(path, batch_size=1) | {"fn": InRay, "fn_constructor_args": (kind, path, 1)}
        settings["fn_constructor_kwargs"] = {}
        found.data.range(count, override_num_blocks=count).map_batches(**settings).materialize()

    yield many
    found.shutdown()


@contextmanager
def spark() -> Iterator[Many]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master(f"local[{WORKERS}]").config("spark.ui.enabled", "false").getOrCreate()

    def many(kind: str, path: str, count: int) -> None:
        session.sparkContext.parallelize(range(count), count).map(lambda _: task(kind, path, 1)).collect()

    yield many
    session.stop()


ENGINES = {f.__name__: f for f in (processes, joblib, dask, ray, spark)}


def rate(many: Many, kind: str, path: str, tasks: int) -> float:
    """Rows a second."""
    start = time.perf_counter()
    many(kind, path, tasks)
    return tasks * ROWS[kind] / (time.perf_counter() - start)


def alone(kind: str, path: str, count: int) -> None:
    """The same work in this process."""
    for _ in range(count):
        task(kind, path, WORKERS)


def compare(engine: str, kind: str, path: str, turns: int, seconds: float) -> str:
    """A row of the table.  seconds: of a job in one process."""
    with ENGINES[engine]() as many:
        alone(kind, path, 1)
        many(kind, path, WORKERS)
        tasks = max(WORKERS, round(seconds * rate(alone, kind, path, WORKERS) / ROWS[kind]))
        found = [(rate(many, kind, path, tasks), rate(alone, kind, path, tasks)) for _ in range(turns)]
    theirs, ours = (median(rates) for rates in zip(*found, strict=True))
    return f"| {engine} | {kind} | {theirs:.1f} | {ours:.1f} | {theirs / ours:.2f} |"


# --- memory ----------------------------------------------------------------------------------------------------------


def _resident(kind: str, path: str, begin: Any, ask: Any) -> None:
    """Make a predictor, run a task, and wait until the parent has measured."""
    if path:
        task(kind, path, 1)
        rows_of.cache_clear()
    begin.release()
    ask.acquire()


def memory(kind: str, path: str, count: int) -> float:
    """MiB of so many workers together; of Pythons with the package alone where there is no path."""
    at = multiprocessing.get_context("spawn")
    begin, ask = at.Semaphore(0), at.Semaphore(0)
    workers = [at.Process(target=_resident, args=(kind, path, begin, ask)) for _ in range(count)]
    for worker in workers:
        worker.start()
    for _ in workers:
        begin.acquire()
    found = sum(pss(worker.pid or 0) for worker in workers)
    for _ in workers:
        ask.release()
    for worker in workers:
        worker.join()
    return found


def resident(kind: str, path: str) -> str:
    """Rows of the table of memory."""
    bare, one = memory(kind, "", 2) - memory(kind, "", 1), memory(kind, path, 1)
    found = [(count, memory(kind, path, count)) for count in CROWDS]
    rows = [(n, all_of_them, all_of_them / (one + (n - 1) * bare)) for n, all_of_them in found]
    return "\n".join(f"| {kind} | {one:.0f} | {bare:.0f} | {n} | {mib:.0f} | {share:.2f} |" for n, mib, share in rows)


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.batch", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engines", default="processes", help=",".join(ENGINES))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args(given)
    say = sys.stdout.write
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: model(kind, Path(folder)) for kind in ROWS}
        say("| workers | rows | two workers | one process | share |\n|---|---|---:|---:|---:|\n")
        for engine in chosen.engines.split(","):
            for kind, path in paths.items():
                say(compare(engine, kind, path, chosen.turns, chosen.seconds) + "\n")
                sys.stdout.flush()
        say("\n| rows | one worker, MiB | a Python more | workers | MiB | share |\n|---|---:|---:|---:|---:|---:|\n")
        for kind, path in paths.items():
            say(resident(kind, path) + "\n")


if __name__ == "__main__":
    from bench.batch import main as begin  # workers find all by the name of the module

    begin()
