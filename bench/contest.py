"""Engines in turns: each in its own process, about 0.2 s at a time, in fresh random order.

A turn counts when nobody else used more than a part of its cores, and, with several threads, when a small product just
before it ran as fast on them as separate cores allow: virtual cores may be two threads of one real core for a while.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0))
FOREIGN = 0.15
"""Part of the used cores' time that others may take in a turn that counts."""
SLOW = 1.25
"""The canary may take this much longer than its best."""


@dataclass(frozen=True, slots=True)
class Options:
    """turns: wanted of each engine; turn_s: seconds of each; patience_s: longest wait for a quiet moment.

    tries: turns at most, as a multiple of ``turns``.  load_s: limit for loading and the first run.
    pythons: interpreter per engine; ``"*"`` for all others but ours (default: this one).
    converted: folder of models in engines' own formats.  precision: of every engine but the reference.
    """

    turns: int = 5
    turn_s: float = 0.2
    patience_s: float = 1.0
    settle_s: float = 0.03
    tries: int = 3
    load_s: float = 300.0
    pythons: Mapping[str, str] = field(default_factory=dict)
    converted: Path | None = None
    precision: str = "f32"

    def python(self, peer: str) -> str:
        """The interpreter that runs an engine."""
        ours = ("bolt", "bolt_strict", "bolt_before", "canary")
        others = sys.executable if peer in ours else self.pythons.get("*", sys.executable)
        return self.pythons.get(peer, others)


class Worker:
    """A process of `bench.workers`, or of another module that answers so."""

    def __init__(
        self, peer: str, model: Path | None, feeds: Path | None, threads: int, options: Options,
        precision: str = "f32", module: str = "bench.workers",
    ) -> None:  # fmt: skip
        self.peer, self.threads, self.limit = peer, threads, options.load_s
        job = {
            "peer": peer, "model": str(model or ""), "feeds": str(feeds) if feeds else None, "threads": threads,
            "cpus": CORES[:threads], "converted": str(options.converted or ""), "precision": precision,
        }  # fmt: skip
        pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        quiet = {"OPENBLAS_THREAD_TIMEOUT": "18"} if peer == "canary" else {}  # its threads would spin on for 0.1 s
        self.process = subprocess.Popen(
            [options.python(peer), "-m", module, json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **pools, **quiet}, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        self.events = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self.events.register(self.process.stdout, selectors.EVENT_READ)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The worker's answer; a crash and a time-out are answers too."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"ok": False, "error": f"the process ended with {self.process.wait()}"}
        if not self.events.select(self.limit):
            self.close()
            return {"ok": False, "error": f"no answer in {self.limit:.0f} s"}
        line = self.process.stdout.readline()
        if not line:
            return {"ok": False, "error": f"the process ended with {self.process.wait()}"}
        made: dict[str, Any] = json.loads(line)
        return made

    def pin(self, core: int) -> None:
        """Move all threads of the process to one core."""
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                os.sched_setaffinity(int(task), {core})
            except ProcessLookupError:
                continue  # a thread that has just ended

    def ticks(self) -> int:
        """Clock ticks of processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.events.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


@dataclass
class Turn:
    """Seconds of each call; clean: whether it counts."""

    times: list[float]
    clean: bool


class Canary:
    """The product that tells whether several cores are really there."""

    def __init__(self, threads: int, options: Options) -> None:
        alone = Worker("canary", None, None, 1, options)
        alone.ask(do="load")
        single = min(alone.ask(do="turn", seconds=0.2)["times"])
        alone.close()
        self.worker = Worker("canary", None, None, threads, options)
        self.worker.ask(do="load")
        self.best = 1.15 * single / threads

    def wait(self, patience_s: float) -> bool:
        """Whether the cores are there, asked again until they are or patience ends."""
        end = time.perf_counter() + patience_s
        while True:
            now = statistics.median(self.worker.ask(do="turn", seconds=0.015)["times"])
            self.best = min(self.best, now)
            if now <= SLOW * self.best:
                return True
            if time.perf_counter() > end:
                return False
            time.sleep(0.1)


def busy_ticks(core: int) -> int:
    """Clock ticks that anyone has spent on a core, the hypervisor's included."""
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            return sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7))
    return 0


def quietest_core() -> int:
    """The core that did least in the last moment."""
    before = {core: busy_ticks(core) for core in CORES}
    time.sleep(0.05)
    return min(CORES, key=lambda core: busy_ticks(core) - before[core])


def take_turn(worker: Worker, canary: Canary | None, options: Options) -> Turn | str:
    """One turn, or the error."""
    cores, apart = CORES[: worker.threads], True
    if worker.threads == 1:
        cores = [quietest_core()]
        worker.pin(cores[0])
    elif canary is not None:
        apart = canary.wait(options.patience_s)
    before, own, start = sum(map(busy_ticks, cores)), worker.ticks(), time.perf_counter()
    made = worker.ask(do="turn", seconds=options.turn_s)
    if not made["ok"]:
        return str(made["error"])
    spent = (time.perf_counter() - start) * os.sysconf("SC_CLK_TCK") * len(cores)
    foreign = (sum(map(busy_ticks, cores)) - before - worker.ticks() + own) / spent
    time.sleep(options.settle_s)
    return Turn(made["times"], apart and foreign <= FOREIGN)


def start(
    peer: str, model: Path, feeds: Path, threads: int, options: Options, precision: str
) -> tuple[Worker | None, dict[str, Any]]:
    """A loaded worker (None when it fails), and the figures of its start.

    A start that compiled kernels is taken as the cold one and repeated.
    """
    worker = Worker(peer, model, feeds, threads, options, precision)
    row = worker.ask(do="load")
    if row["ok"] and row["compiled"] and peer == "bolt":
        cold = row["import_s"] + row["load_s"] + row["first_s"]
        worker.close()
        worker = Worker(peer, model, feeds, threads, options, precision)
        row = {**worker.ask(do="load"), "cold_s": cold}
    if not row.pop("ok"):
        worker.close()
        return None, row
    return worker, row


def play(workers: dict[str, Worker], threads: int, options: Options) -> dict[str, dict[str, Any]]:
    """Let loaded workers take turns until each has enough that count, or has tried long enough."""
    canary = Canary(threads, options) if 1 < threads <= len(CORES) else None
    turns: dict[str, list[Turn]] = {peer: [] for peer in workers}
    errors: dict[str, str] = {}
    try:
        for _ in range(options.tries * options.turns):
            order = [p for p in workers if p not in errors and sum(t.clean for t in turns[p]) < options.turns]
            random.shuffle(order)
            for peer in order:
                made = take_turn(workers[peer], canary, options)
                if isinstance(made, str):
                    errors[peer] = made
                else:
                    turns[peer].append(made)
    finally:
        if canary is not None:
            canary.worker.close()
    return {p: {"error": errors[p]} if p in errors else summary(turns[p]) for p in workers}


def summary(turns: list[Turn]) -> dict[str, Any]:
    """Milliseconds over the turns that count (over all when fewer than two do, and then ``noisy``)."""
    clean = [t for t in turns if t.clean]
    used = clean if len(clean) >= 2 else turns
    medians = sorted(statistics.median(t.times) * 1e3 for t in used)
    return {
        "median_ms": statistics.median(medians),
        "best_ms": min(min(t.times) for t in used) * 1e3,
        "p90_ms": medians[round(0.9 * (len(medians) - 1))],
        "turns": len(turns),
        "clean_turns": len(clean),
        "noisy": used is not clean,
    }
