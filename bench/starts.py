"""From a command to the first result in a new process: with warm caches and with empty ones; see `bench.bars start`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.models import MODELS
from bench.zoo import ZOO
from bolt_numba.surgery import packed

_FIRST = """
import sys, time
t = time.perf_counter()
import numpy as np
feeds = dict(np.load(sys.argv[2]))
if sys.argv[3] == "bolt":
    import bolt_numba as bn
    session = bn.compile(sys.argv[1], threads=int(sys.argv[4]))
    session.run(None, feeds)
else:
    import onnxruntime as ort  # type: ignore[import-untyped,unused-ignore]
    o = ort.SessionOptions(); o.intra_op_num_threads = int(sys.argv[4]); o.log_severity_level = 3
    ort.InferenceSession(sys.argv[1], o, providers=["CPUExecutionProvider"]).run(None, feeds)
seconds, now = time.perf_counter() - t, time.time()
status = open("/proc/self/status").read()
print(seconds, int(status.split("VmHWM:")[1].split()[0]) / 1024, "numba" in sys.modules, now, flush=True)
while sys.argv[3] == "bolt" and any("stand-in" in row["runner"] for row in session.report()):
    session.run(None, feeds)  # processes that compile on would disturb what is measured next
"""
COLD = "first result with empty caches, s", "onnxruntime", "waiting for kernels", "standing in", "kernels in the wheel"
"""Heads of what `cold_start` gives."""


def entry_of(name: str) -> Any:
    """A model of `bench.models`, or of the zoo."""
    return MODELS.get(name) or ZOO[name]


def first_run(
    name: str, engine: str, threads: int = 1, path: Path | None = None, plans: bool = True
) -> tuple[float, float, bool]:
    """Seconds from the start of imports to the first result in a new process, peak RSS in MiB, numba imported.

    path: what to load instead of the model's own file.  plans: whether plans are kept.
    """
    entry = entry_of(name)
    with tempfile.TemporaryDirectory() as folder:
        feeds = Path(folder) / "feeds.npz"
        np.savez(feeds, **entry.feeds())
        env = dict(os.environ) | ({} if plans else {"BOLT_NUMBA_PLANS_MIB": "0"})
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their byte code, so a checkout may, too
        command = [sys.executable, "-c", _FIRST, str(path or entry.path()), str(feeds), engine, str(threads)]
        text = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    seconds, rss, numba, _ = text.split()
    return float(seconds), float(rss), numba == "True"


def warm_start(name: str, turns: int) -> list[str]:
    """A row of `start`: seconds of onnxruntime, then ours by a kept plan, .onnx, .bolt and packed .bolt; ratios."""
    with tempfile.TemporaryDirectory() as folder:
        graph = bn.load(entry_of(name).path())
        plain, fast = Path(folder) / "plain.bolt", Path(folder) / "packed.bolt"
        bn.save(graph, plain)
        bn.save(packed(graph, threads=[1]), fast)
        ways: dict[str, tuple[str, Path | None]] = {
            "ort": ("ort", None), "kept": ("bolt", None), "onnx": ("bolt", None), "bolt": ("bolt", plain),
            "packed": ("bolt", fast),
        }  # fmt: skip
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(turns + 1):  # the first one fills caches
            for way, (engine, path) in ways.items():
                best[way] = min(best[way], first_run(name, engine, path=path, plans=way == "kept")[0])
    ours = [f"{best[way]:.2f} ({best[way] / best['ort']:.2f})" for way in ("kept", "onnx", "bolt", "packed")]
    return [name, f"{best['ort']:.2f}", *ours]


def cold_start(name: str, turns: int, waits: int, wheel: Path | None) -> list[str]:
    """A row of `start`: seconds from the command to the first result, engines in turns, each with empty caches.

    waits: how many of the turns wait for kernels, which takes long.  wheel: a Python whose environment has a wheel with
    kernels.
    """
    own = [sys.executable]
    ways: dict[str, tuple[list[str], dict[str, str], int]] = {
        "ort": (own, {}, turns), "bolt waits": (own, {"BOLT_NUMBA_STAND_INS": "0"}, waits), "bolt": (own, {}, turns),
        "bolt wheel": ([str(wheel), "-I"], {}, turns if wheel else 0),  # -I: it imports nothing of this checkout
    }  # fmt: skip
    took: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns):
        for way, (python, env, count) in ways.items():
            if turn < count:
                took[way].append(_to_result(name, way.partition(" ")[0], python, env))
    rows = [sorted(seconds) for seconds in took.values()]
    return [name, *(f"{np.median(row):.2f} ({row[0]:.2f} to {row[-1]:.2f})" if row else "-" for row in rows)]


def _to_result(name: str, engine: str, python: list[str], env: dict[str, str]) -> float:
    """Seconds from the start of a process of two threads to its first result; raises RuntimeError if it has none."""
    entry = entry_of(name)
    with tempfile.TemporaryDirectory() as folder:
        feeds = Path(folder) / "feeds.npz"
        np.savez(feeds, **entry.feeds())
        env = os.environ | env | {"BOLT_NUMBA_CACHE_DIR": f"{folder}/cache", "BOLT_NUMBA_SYSTEM_CACHE": ""}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [*python, "-c", _FIRST, str(entry.path()), str(feeds), engine, "2"]
        start, pipe = time.time(), subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, process_group=0) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(process.stderr.read())
            os.killpg(process.pid, signal.SIGKILL)  # with those that it has compile
    return float(line.split()[3]) - start
