"""Our side: an operator or a model on a CUDA device, timed by the device's own clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.gpu.cases import BURST, Case
from bench.gpu.launches import is_simulated, runs_of
from bolt_numba.kernels import registry
from bolt_numba.ops.registry import result_tuple
from bolt_numba.types import Array


def difference(got: Array, wanted: Array) -> float:
    """Norm of the difference over the norm of what is wanted."""
    mine, theirs = got.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(mine - theirs) / max(float(np.linalg.norm(theirs)), 1e-30))


@contextlib.contextmanager
def only(case: Case) -> Iterator[None]:
    """Within, plans take the case's maker alone, if it names one; the host computes what that refuses."""
    registry.load("cuda")
    key = type(case.op), "cuda"
    rows = registry.KERNELS[key]
    registry.KERNELS[key] = [entry for entry in rows if case.maker in ("", entry.name)]
    try:
        yield
    finally:
        registry.KERNELS[key] = rows


def expected(case: Case, arrays: list[Array]) -> Array:
    """What the operator means, by NumPy: for small operands."""
    return result_tuple(case.op.reference(*arrays))[0]


def session_of(case: Case, arrays: list[Array], device: str) -> tuple[Any, dict[str, Array]]:
    """A session of one operator, and its inputs."""
    precision = {"float16": "f16", "bfloat16": "bf16"}.get(str(arrays[0].dtype), "f32")
    session = bn.compile(case.graph(arrays), device=device, precision=precision, numerics=case.numerics)
    return session, {f"x{i}": array for i, array in enumerate(arrays) if i not in case.weights}


def time_case(case: Case, arrays: list[Array], device: str, runs: int) -> dict[str, Any]:
    """Seconds of the operator on the device, the result, and what ran it."""
    session, feeds = session_of(case, arrays, device)
    with only(case):
        (result,) = session(**feeds).values()
    rows = [row for row in session.report() if row["op"] != "Copy"]
    found = runs_of(session)
    if len(found) != 1 or len({row["device"] for row in rows}) != 1:
        raise RuntimeError(f"got {[(row['op'], row['runner']) for row in rows]}, wanted all on the GPU")
    seconds = burst_seconds(found[0], 1 if is_simulated(device) else runs)
    return {"seconds": seconds, "result": result, "runner": ", ".join(row["runner"] for row in rows)}


def burst_seconds(run: Any, runs: int) -> float:
    """Median seconds of a segment by the GPU's clock: several in a row, so that it does not wait for the host."""
    times = [run.driver.timed([run._all * BURST], run.arena.stream)[0] for _ in range(runs)]
    return float(np.median(times)) / BURST


def time_model(path: Path, feeds: Mapping[str, Array], device: str, precision: str, runs: int) -> dict[str, Any]:
    """Seconds of a call from host to host, on the GPU (`resident`), and of the start; nodes on the CPU.

    difference: from the CPU's result in f32.
    """
    begin = time.perf_counter()
    session = bn.compile(path, device=device, precision=precision)
    result = next(iter(session(**feeds).values()))
    started = time.perf_counter() - begin
    times = []
    for _ in range(runs):
        before = time.perf_counter()
        session(**feeds)
        times.append(time.perf_counter() - before)
    profile = session.profile(**feeds, runs=max(runs // 4, 2))
    on_cpu = [row for row in session.report() if row["device"] in ("cpu", "host")]
    wanted = next(iter(bn.compile(path)(**feeds).values()))
    return {
        "seconds": float(np.median(times)), "start_s": started, "difference": difference(result, wanted),
        **resident(session, feeds, device, runs),
        "device_s": sum(r.seconds for r in profile.rows if r.op != "Copy"),
        "copies_s": sum(r.seconds for r in profile.rows if r.op == "Copy"),
        "on_cpu": [f"{r['node']} ({r['op']})" for r in on_cpu],
    }  # fmt: skip


def resident(session: Any, feeds: Mapping[str, Array], device: str, runs: int) -> dict[str, float]:
    """Seconds of a run whose inputs and results are on the GPU; it ends when the results are there."""
    there = {name: bn.device_array(array, device=device) for name, array in feeds.items()}
    places = {name: bn.device_array(y.shape, y.dtype, device=device) for name, y in session(**feeds).items()}
    times = []
    for _ in range(runs):
        before = time.perf_counter()
        session.run_into(there, places)
        times.append(time.perf_counter() - before)
    return {"resident_s": float(np.median(times))}
