"""Choosing kernels by measurement instead of by cost model, on request (``tune=True``).

Where several algorithms can run a node (a convolution: direct or Winograd of any tile size; any kernel: on one
thread or on all), each is timed on random operands of the node's types, interleaved, and the fastest is taken.
Choices are kept beside the compiled kernels, so a machine measures each kind of node once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bolt_numba.base.files.kept import folders, keep
from bolt_numba.base.files.trusted import read_trusted, write_private
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.jit import TUNED, cache_dir, version_name
from bolt_numba.kernels.registry import Entry, Given, QueryContext
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import HOST, Device, segments_of
from bolt_numba.runtime.memory import plan_memory
from bolt_numba.runtime.packs import NodeContext
from bolt_numba.runtime.plan import Plan
from bolt_numba.runtime.prepared import Prepared
from bolt_numba.runtime.runner import run_plan
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot

ROUNDS = 7
EVICTED = 8 << 20
"""Bytes written between runs: in a network, other layers' data passes through the second-level cache meanwhile."""
WORTH = 0.95
"""What a measured time must be of the cost model's choice to be preferred to it: less is noise."""

HOPELESS = 2.0
"""Times the fastest: what takes longer in its first round is not measured again."""

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel by its maker's name, and whether it shares its work among threads."""

    kernel: str
    parallel: bool


class Tuner:
    """Measured choices, from the file and new ones.

    path: a JSON file, None for the one beside the compiled kernels; what cannot be read there counts as empty.
    """

    def __init__(self, threads: int, path: Path | None = None) -> None:
        self.threads, self.path = threads, path or cache_dir() / TUNED
        self.measured = 0
        self._is_kept = path is None
        self._known = _read(path) if path is not None else _all_kept()
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock", threading.RLock)
        self._sweep = np.zeros(EVICTED, np.uint8)

    def choose(
        self, op: Op, ins: Given, outs: Sequence[TensorType], device: Device, entry: Entry, context: NodeContext
    ) -> tuple[Entry, NodeContext]:
        """The fastest kernel for a node and the context to make its steps in; as given where there is only one."""
        if device.memory is not HOST:  # its operands are elsewhere
            return entry, context
        found = device.candidates(op, ins, context)
        how = "" if context.precision == "f32" else f" {context.precision}"
        names = ",".join(e.name for e in found)  # they depend on the session's numerics
        key = f"{self.threads}{how} {op!r} {' '.join(map(_text, ins))} {names}"
        with self._lock:
            choice = self._known.get(key)
        if choice is None or all(e.name != choice.kernel for e in found):
            runs = self._runs(device, found, op, context.shown(ins), outs, context)
            if len(runs) < 2:
                return entry, context
            choice = self._fastest(runs)
            with self._lock:
                self._known[key] = choice
                self.measured += 1
        chosen = next(e for e in found if e.name == choice.kernel)
        return chosen, context if choice.parallel else context.alone()

    def save(self) -> None:
        """Write all choices, those that other processes wrote meanwhile too."""
        if not self.measured:
            return
        with self._lock:
            whole = {**_read(self.path), **self._known}
            rows = {key: [c.kernel, c.parallel] for key, c in whole.items()}
            data = json.dumps(rows, indent=0).encode()
            keep(f"{version_name()}/{TUNED}", data) if self._is_kept else write_private(self.path, data)
            self.measured = 0

    def _runs(
        self,
        device: Device,
        found: Sequence[Entry],
        op: Op,
        ins: Given,
        outs: Sequence[TensorType],
        session: NodeContext,
    ) -> dict[Choice, Run]:
        """Something to call for every way to run a node, the cost model's first."""
        runs: dict[Choice, Run] = {}
        seen: set[tuple[object, ...]] = set()
        if len(found) == 1 and self.threads == 1:
            return runs
        for entry in found:
            for threads in dict.fromkeys((self.threads, 1)):
                context = QueryContext(threads, session.precision, session.numerics)
                job = Job("tuned", op, device, [_operand(i, t) for i, t in enumerate(ins)], [])
                job.outs = [Slot(f"y{i}", t, TEMP, result=i) for i, t in enumerate(outs)]
                job.steps = made_steps(entry, op, ins, outs, context)
                choice = Choice(entry.name, threads > 1 and any(s.parallel for s in job.steps))
                alike = (choice.parallel, *(s.kernel for s in job.steps))  # two makers may give the same steps
                if alike not in seen:
                    seen.add(alike)
                    runs[choice] = _runnable(job, threads)
        return runs

    def _fastest(self, runs: dict[Choice, Run]) -> Choice:
        times: dict[Choice, list[float]] = {choice: [] for choice in runs}
        for run in runs.values():
            run()
        first, left = next(iter(runs)), dict(runs)
        for _ in range(ROUNDS):
            for choice, run in left.items():
                self._sweep[::64] += 1
                begin = time.perf_counter()
                run()
                times[choice].append(time.perf_counter() - begin)
            best = {choice: min(times[choice]) for choice in left}
            limit = HOPELESS * min(best.values())
            left = {choice: run for choice, run in left.items() if best[choice] < limit or choice == first}
        fastest = min(left, key=lambda c: min(times[c]))
        return fastest if min(times[fastest]) < WORTH * min(times[first]) else first


def _all_kept() -> dict[str, Choice]:
    """Choices of all folders; that of the folder asked first counts."""
    made: dict[str, Choice] = {}
    for folder in reversed(folders().read):
        made.update(_read(folder / version_name() / TUNED))
    return made


def _read(path: Path) -> dict[str, Choice]:
    try:
        rows = json.loads(read_trusted(path) or b"{}").items()
    except (ValueError, AttributeError, RecursionError):
        return {}
    made = {}
    for key, row in rows:
        match row:
            case [str(kernel), bool(parallel)]:
                made[key] = Choice(kernel, parallel)
    return made


def _text(t: TensorType | None) -> str:
    return "-" if t is None else f"{t}{'' if t.value is None else '!'}"


def _operand(index: int, t: TensorType | None) -> Slot | None:
    if t is None:
        return None
    return Slot(f"x{index}", t, INPUT if t.value is None else CONST, index, const=t.value)


def _runnable(job: Job, threads: int) -> Run:
    """Run one job over random operands."""
    memory = plan_memory([job], job.outs)
    prepared = Prepared(Plan([job], memory, job.outs, built=segments_of([job], threads)))
    feeds = [_random(s) for s in job.ins]
    targets = [np.zeros(s.type.dims, s.type.dtype) for s in job.outs]
    return lambda: run_plan(prepared, feeds, targets)


def _random(slot: Slot | None) -> Array:
    if slot is None or slot.kind == CONST:
        return np.zeros(0)
    rng = np.random.default_rng(0)
    if slot.type.dtype.kind == "f":
        return rng.standard_normal(slot.type.dims).astype(slot.type.dtype)
    return np.zeros(slot.type.dims, slot.type.dtype)
