"""Rows a second of MiniLM over texts of unequal lengths, beside other engines with their best padding.

    pip install 'bolt-numba[peers]'
    python -m bench.ragged [--rows 256] [--threads 1,2] [--mixes uniform,skewed,short] [--turns 5] [--cpu-time]

`Session.run_rows` gets the rows as they are.  The others get them sorted by length, in batches of 1, 8 or 32 that are
padded to their longest row; which size is best is tried on a part of the rows first.  All contestants alternate, and
medians count.  ``--cpu-time`` counts seconds of processors instead of those of the clock: for one thread on a machine
that does other work, too.  GFLOP/s are those of the tokens that were given, and not of padding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.peak import peak_gflops
from bolt_numba import peers
from tests.models import fetch

LAYERS, WIDTH, WORDS = 6, 384, 30522
BATCHES = (1, 8, 32)
TRIED = 32
"""Rows on which sizes of batches are tried."""
SHORTEST, LONGEST = 8, 512

Rows = list[dict[str, Any]]


def lengths_of(mix: str, count: int) -> Any:
    """uniform: 8 to 512 tokens.  skewed: half of them below 20, the mean 60.  short: 8 to 64, as questions are."""
    rng = np.random.default_rng(0)
    if mix == "skewed":
        return np.clip(SHORTEST * np.exp(rng.exponential(1.2, count)), SHORTEST, LONGEST).astype(int)
    return rng.integers(SHORTEST, 1 + {"uniform": LONGEST, "short": 64}[mix], count)


def rows_of(lengths: Any) -> Rows:
    rng = np.random.default_rng(1)
    kinds = ("input_ids", "attention_mask", "token_type_ids")
    of = (lambda n: rng.integers(0, WORDS, n), lambda n: np.ones(n, np.int64), lambda n: np.zeros(n, np.int64))
    return [{kind: make(n) for kind, make in zip(kinds, of, strict=True)} for n in lengths]


def batches_of(rows: Rows, size: int) -> Rows:
    """Padded to the longest of each."""
    order = sorted(rows, key=lambda row: len(row["input_ids"]))
    made = []
    for at in range(0, len(rows), size):
        part = order[at : at + size]
        longest = len(part[-1]["input_ids"])
        made.append({k: np.stack([np.pad(row[k], (0, longest - len(row[k]))) for row in part]) for k in part[0]})
    return made


def flops_of(lengths: Any) -> float:
    return float((24 * LAYERS * WIDTH**2 * lengths + 4 * LAYERS * WIDTH * lengths**2).sum())


def contestants(rows: Rows, threads: int, clock: Callable[[], float]) -> dict[str, Callable[[], object]]:
    path = str(fetch("minilm.onnx"))
    session = bn.compile(path, threads=threads, stand_ins=False)
    single = [{k: x[None] for k, x in row.items()} for row in rows]
    made: dict[str, Callable[[], object]] = {
        "run_rows": lambda: session.run_rows(rows), "one by one": partial(_each, lambda f: session.run(None, f), single)
    }  # fmt: skip
    for name in ("onnxruntime", "openvino"):
        run = peers.make(name, path, threads).run
        tried = {size: _seconds(partial(_each, run, batches_of(rows[:TRIED], size)), clock) for size in BATCHES}
        best = min(tried, key=lambda size: tried[size])
        made[f"{name}, {best}"] = partial(_each, run, batches_of(rows, best))
    return made


def _each(run: Callable[[Any], object], given: Rows) -> None:
    for feeds in given:
        run(feeds)


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    run()  # warm
    begin = clock()
    run()
    return clock() - begin


def measured(mix: str, count: int, threads: int, turns: int, clock: Callable[[], float]) -> list[str]:
    """Rows of the table."""
    lengths = lengths_of(mix, count)
    runs = contestants(rows_of(lengths), threads, clock)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            begin = clock()
            run()
            if turn:  # the first one warms
                seconds[name].append(clock() - begin)
    peak = threads * peak_gflops()
    made = []
    ours = median(seconds["run_rows"])
    for name, found in seconds.items():
        took = median(found)
        rate = flops_of(lengths) / took / 1e9
        row = (mix, lengths.mean(), threads, name, count / took, rate, 100 * rate / peak, took / ours)
        made.append("| {} | {:.0f} | {} | {} | {:.1f} | {:.0f} | {:.0f} % | {:.2f} |".format(*row))
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--mixes", default="uniform,skewed,short")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args(argv)
    clock = time.process_time if given.cpu_time else time.perf_counter
    head = "lengths | mean | threads | engine, rows of a batch | rows a second | GFLOP/s | of peak | run_rows is faster"
    out = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for mix in given.mixes.split(","):
        for threads in map(int, given.threads.split(",")):
            out += measured(mix, given.rows, threads, given.turns, clock)
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
