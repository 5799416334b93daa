"""Time per job, as each device measures its own; table and Chrome trace."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.budget import one_run
from bolt_numba.base.notebook import html_table
from bolt_numba.base.types import Array
from bolt_numba.ops.costs import products_of
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.memory import JOINED
from bolt_numba.runtime.prepared import Prepared, finish
from bolt_numba.runtime.runner import Runner
from bolt_numba.runtime.slots import Job
from bolt_numba.runtime.texts import Texts

Label: TypeAlias = "tuple[str, str, str, str, Mapping[str, int], float]"
REST = "outside of steps: the call, memory, results (below 0: a run is quicker than its steps timed one by one)"


@dataclass(frozen=True, slots=True)
class Row:
    """One job: its median time, and what ran it.

    counts: what its device did beside computing ("copies", "bytes"), if it says.  flops: of a convolution or product,
    whatever way it is computed; 0 of others, and of two in one step.
    """

    node: str
    op: str
    runner: str
    output: str
    seconds: float
    start: float
    counts: Mapping[str, int] = field(default_factory=dict)
    flops: float = 0.0

    @property
    def speed(self) -> str:
        """GFLOP/s, if it is a product."""
        return f"{self.flops / self.seconds / 1e9:.1f}" if self.flops and self.seconds else ""

    @property
    def where(self) -> str:
        """The node, and what the device counted there."""
        counts = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        return f"{self.node} ({counts})" if counts else self.node


@dataclass(slots=True)
class Profile:
    """Median seconds of each job over ``runs`` runs, in running order; ``total``: of as many not taken apart."""

    rows: list[Row]
    runs: int
    total: float
    threads: int

    @property
    def rest(self) -> float:
        """Seconds of a run that are no step's: the call, memory, results.

        Below 0 where steps are quicker together than measured one by one.
        """
        return self.total - sum(row.seconds for row in self.rows)

    def by_op(self) -> dict[str, float]:
        """Seconds per operator, largest first."""
        sums: dict[str, float] = {}
        for row in self.rows:
            sums[row.op] = sums.get(row.op, 0.0) + row.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def table(self, top: int | None = None) -> str:
        """Text: slowest first.  What is not shown has a line of its own, and so has what is no step's."""
        ordered = sorted(self.rows, key=lambda r: -r.seconds)
        rows, others = ordered[:top], ordered[top:] if top is not None else []
        whole = self.total or 1.0
        lines = [f"{'us':>10}  {'share':>6}  {'GFLOP/s':>7}  {'operator':<20} {'runner':<24} {'output':<26} node"]
        lines += [
            f"{r.seconds * 1e6:10.1f}  {100 * r.seconds / whole:5.1f}%  {r.speed:>7}  "
            f"{r.op:<20} {r.runner:<24} {r.output:<26} {r.where}"
            for r in rows
        ]
        hidden = sum(r.seconds for r in others)
        if others:
            lines.append(f"{hidden * 1e6:10.1f}  {100 * hidden / whole:5.1f}%  {len(others)} more steps")
        lines.append(f"{self.rest * 1e6:10.1f}  {100 * self.rest / whole:5.1f}%  {REST}")
        how = f"{len(self.rows)} steps, {self.threads} thread(s), median of {self.runs} run(s)"
        lines.append(f"{self.total * 1e6:10.1f}  total of a run, {how}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        columns, whole = ("us", "share", "GFLOP/s", "operator", "runner", "output", "node"), self.total or 1
        rows = [
            (f"{r.seconds * 1e6:.1f}", f"{100 * r.seconds / whole:.1f} %", r.speed, r.op, r.runner, r.output, r.where)
            for r in sorted(self.rows, key=lambda r: -r.seconds)
        ]
        note = f"{self.rest * 1e6:.1f} us {REST}"
        return html_table(f"{self.total * 1e6:.1f} us, {self.threads} thread(s)", columns, rows, columns[:3], note)

    def to_json(self) -> dict[str, Any]:
        return {
            "total_s": self.total,
            "rest_s": self.rest,
            "runs": self.runs,
            "threads": self.threads,
            "rows": [{f: getattr(r, f) for f in Row.__slots__} for r in self.rows],
        }

    def save(self, path: str | Path) -> None:
        """Chrome trace events (opens in Perfetto or chrome://tracing); times in microseconds."""
        events = [
            {
                "name": r.node, "cat": r.op, "ph": "X", "ts": r.start * 1e6, "dur": r.seconds * 1e6, "pid": 1, "tid": 1,
                "args": {"runner": r.runner, "output": r.output, **r.counts},
            }
            for r in self.rows
        ]  # fmt: skip
        write_trace(path, events)


def write_trace(path: str | Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Write Chrome trace events."""
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


LONGEST_S = 20.0
"""Seconds behind which no further run begins: a simulated GPU may take that long for a single one."""


def profile_runs(runner: Runner, arrays: Sequence[Array], runs: int, texts: Texts | None = None) -> Profile:
    """Run ``runs`` times, or fewer where that takes longer than `LONGEST_S`, and take the median of each job.

    texts: what runs before and behind the runner, if anything does.
    """
    with one_run():
        runner.prepare(arrays if texts is None else texts.prepared(arrays), waits=True)
        _whole(runner, arrays, texts)
    until = time.perf_counter() + LONGEST_S
    whole: list[float] = []
    samples: list[list[float]] = []
    labels: list[Label] = []
    for _ in range(runs):
        begin = time.perf_counter()
        with one_run():
            _whole(runner, arrays, texts)
        whole.append(time.perf_counter() - begin)
        with one_run():
            labels, seconds = _timed_run(runner, arrays) if texts is None else _timed_texts(runner, arrays, texts)
        samples.append(seconds)
        if time.perf_counter() > until:
            break
    length = len(samples[-1])
    medians = np.median(np.array([s for s in samples if len(s) == length]), axis=0) if length else np.zeros(0)
    starts = np.concatenate([[0.0], np.cumsum(medians)])
    timed = zip(labels, medians, starts, strict=False)
    rows = [Row(*label[:4], float(s), float(t), *label[4:]) for label, s, t in timed]
    return Profile(rows, len(samples), float(np.median(whole)), runner.threads)


def _whole(runner: Runner, arrays: Sequence[Array], texts: Texts | None) -> None:
    runner.run(arrays) if texts is None else texts.run(runner.run, arrays)


def _timed_texts(runner: Runner, arrays: Sequence[Array], texts: Texts) -> tuple[list[Label], list[float]]:
    """As `_timed_run`, with what runs before and behind."""
    labels, seconds = _timed_run(runner, texts.prepared(arrays))
    before, behind = texts.timed(runner.run, arrays)
    first, last = (
        [(row["node"], row["op"], row["runner"], row["output"], dict[str, int](), 0.0) for row in texts.rows(steps)]
        for steps in (texts.before, texts.behind)
    )
    return [*first, *labels, *last], [*before, *seconds, *behind]


def _timed_run(runner: Runner, arrays: Sequence[Array]) -> tuple[list[Label], list[float]]:
    """One run; (node, operator, runner, output, counts) and seconds of every job, through all cuts."""
    labels: list[Label] = []
    seconds: list[float] = []
    given = arrays
    while True:
        prepared = runner.prepare(given)
        prepared = runner.apart(given) if prepared.strays else prepared
        results, spent = _timed_plan(prepared, given)
        labels.extend(
            (
                job.name, job.op.name, _runner(job), ", ".join(str(s.type) for s in job.outs), job.device.counts(job),
                _flops(job),
            )
            for job in prepared.plan.jobs
        )  # fmt: skip
        seconds.extend(spent)
        cut = prepared.cut
        if cut is None:
            return labels, seconds
        reads = prepared.reads
        start = time.perf_counter()
        made = runner.run_cut(cut, results[:reads])
        seconds.append(time.perf_counter() - start)
        labels.append((cut.node.name, cut.node.op.name, runner.cut_label(cut), "by data", {}, 0.0))
        assert prepared.rest is not None
        runner, given = prepared.rest, [*results[reads:], *made]


def _runner(job: Job) -> str:
    """What ran a job, with the device that has a memory of its own."""
    return job.runner if job.device.memory is HOST else f"{job.runner} ({job.device.name})"


def _flops(job: Job) -> float:
    """Of a step of one node."""
    if JOINED in job.runner:
        return 0.0
    return 2 * products_of(job.op, [None if s is None else s.type for s in job.ins], [s.type for s in job.outs])


def _timed_plan(prepared: Prepared, arrays: Sequence[Array]) -> tuple[list[Array], list[float]]:
    """One run of one plan in fresh memory; seconds of every job."""
    plan = prepared.plan
    arenas = {memory: memory.allocate(nbytes) for memory, nbytes in plan.memory.arenas.items()}
    outputs: list[Any] = [None if e is None else np.empty(*e) for e in prepared.empties]
    seconds: list[float] = []
    for segment in plan.segments:
        seconds += segment.executable.bind(arenas).timed(arrays, outputs)
    return finish(prepared, arrays, outputs), seconds
