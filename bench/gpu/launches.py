"""What launches cost the host: one by one, replayed as a graph, and those of whole models.

On the simulator the same is done once, and there are no times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.zoo import normal_feeds
from bolt_numba.devices import device as named
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.program import CudaRun
from bolt_numba.kernels.cuda.declare import cuda_kernel

LENGTHS = (1, 10, 100, 1000)
"""Launches of a graph."""
BURST = 20
"""Calls in a row, for which the GPU is asked and not waited for."""
BAR_S = 5e-6
"""Seconds of the host that a replayed graph may take."""


@cuda_kernel(threads=32, blocks=lambda a: 1)
def nothing():  # type: ignore[no-untyped-def]
    pass


def host_seconds(call: Callable[[], None], wait: Callable[[], None], runs: int) -> float:
    """Median seconds until a call returns; nobody waits for the GPU but between bursts."""
    times = []
    for _ in range(runs):
        wait()
        before = time.perf_counter()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter() - before) / BURST)
    wait()
    return float(np.median(times))


def time_launches(device: str, runs: int) -> list[dict[str, Any]]:
    """An empty kernel: launched, and as graphs of launches that are replayed."""
    gpu: Any = named(device)
    driver, stream = gpu.driver, gpu.driver.stream()
    call = driver.call(driver.function(nothing), (1, 1, 1), nothing.threads, 0, [], stream)
    hundred = [call] * 100
    ways = [("a launch", 1, lambda: driver.run([call])), ("100 launches in a row", 100, lambda: driver.run(hundred))]
    ways += [(f"a graph of {n}", n, driver.repeated([call] * n, stream)) for n in LENGTHS]
    return [_row(driver, stream, *way, runs) for way in ways]


def _row(driver: Any, stream: Any, name: str, count: int, call: Callable[[], None], runs: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "launches": count}
    if driver.number is None:
        call()
        return row | {"host_s": None, "device_s": None}
    host = host_seconds(call, lambda: driver.synchronise(stream), runs)
    there = [driver.timed([[call]], stream)[0] for _ in range(runs)]
    return row | {"host_s": host, "device_s": float(np.median(there))}


def time_replay(path: Path, device: str, runs: int) -> list[dict[str, Any]]:
    """The segments of a model's plan, each replayed as a whole; bar: seconds of the host that each may take."""
    feeds = normal_feeds(path)
    session = bn.compile(path, device=device, precision="f16")
    for _ in range(3):  # the second run makes graphs
        session(**feeds)
    rows = []
    for run in runs_of(session):
        if run._repeated is not None:
            found = _row(run.driver, run.arena.stream, path.stem, len(run._all), run._repeated, runs)
            rows.append(found | {"bar_s": BAR_S})
    if not rows:
        raise RuntimeError(f"{path.stem}: got no graph of launches, wanted one")
    return rows


def runs_of(session: Any) -> list[CudaRun]:
    """What a session has ready to run on a GPU."""
    contexts = [context for prepared in session._runner.prepared.values() for context in prepared.idle]
    made = [run.__self__ for context in contexts for run in context.runs]
    return [run for run in made if isinstance(run, CudaRun)]


def is_simulated(device: str) -> bool:
    """Whether times mean nothing."""
    found = named(device)
    return isinstance(found, Cuda) and found.driver.number is None
