"""One engine, one model, one number of threads: an isolated process that `bench.run` drives through a pipe.

    python -m bench.workers '{"peer": "bolt", "model": PATH, "feeds": PATH.npz, "threads": 1, "cpus": [0]}'

It answers one line of JSON to each line of JSON: {"do": "load"}, {"do": "turn", "seconds": 0.2},
{"do": "save", "path": PATH.npz}, {"do": "stop"}.  An engine joins by a class in `bench.engines`.
Only the standard library and NumPy are imported besides the engine, so that start and memory are the engine's.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.engines import PEERS
from bench.peer import Peer


def peak_rss_mib() -> float:
    """VmHWM of proc(5): ``ru_maxrss`` of a new process would begin with its parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status: no VmHWM")


def load(peer: Peer) -> dict[str, Any]:
    """Import, load and run once; seconds of each, and the largest memory so far."""
    if peer.precision not in peer.precisions:
        raise NotImplementedError(f"has no {peer.precision}, only {', '.join(peer.precisions)}")
    times = [time.perf_counter()]
    for step in (peer.imports, peer.load, peer.run):
        step()
        times.append(time.perf_counter())
    seconds = [b - a for a, b in itertools.pairwise(times)]
    figures = dict(zip(("import_s", "load_s", "first_s"), seconds, strict=True))
    return {
        **figures,
        "peak_rss_mib": peak_rss_mib(),
        "version": peer.version(),
        "compiled": "numba" in sys.modules,
    }


def turn(peer: Peer, seconds: float) -> dict[str, Any]:
    """Seconds of every call in a turn; one call first brings caches and threads back and is not counted."""
    gc.collect()
    gc.disable()
    try:
        peer.run()
        spent: list[float] = []
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            peer.run()
            now = time.perf_counter()
            spent.append(now - start)
            if now >= end and len(spent) >= 2:
                return {"times": spent}
    finally:
        gc.enable()


def save(peer: Peer, path: str) -> dict[str, Any]:
    """Write the results of one run."""
    import numpy as np

    np.savez(path, *peer.arrays())
    return {}


def answer(peer: Peer, ask: Mapping[str, Any]) -> dict[str, Any]:
    match ask["do"]:
        case "load":
            return load(peer)
        case "turn":
            return turn(peer, ask["seconds"])
        case "save":
            return save(peer, ask["path"])
        case other:
            raise ValueError(f"worker: got {other!r}, wanted load, turn, save or stop")


def main(job: Mapping[str, Any]) -> None:
    """Answer requests until told to stop or the pipe ends."""
    os.sched_setaffinity(0, job["cpus"])
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what engines print must not get between the answers
    import numpy as np

    feeds = {}
    if job["feeds"] is not None:
        with np.load(job["feeds"]) as stored:
            feeds = {name: np.ascontiguousarray(stored[name]).reshape(stored[name].shape) for name in stored.files}
    converted = Path(job["converted"]) if job.get("converted") else None
    model, precision = Path(job["model"] or "."), job.get("precision", "f32")
    peer = PEERS[job["peer"]](model, converted, job["threads"], feeds, precision)
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "stop":
            return
        try:
            made = {"ok": True, **answer(peer, ask)}
        except Exception as error:  # whatever an engine raises is its answer
            words = f"{type(error).__name__}: {error}".replace(f"{model.parent}{os.sep}", "").splitlines()
            made = {"ok": False, "error": " ".join(words[:2])[:160]}
        pipe.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
