"""One client with one engine in a process of its own; the engine is the ``onnxruntime`` that the path finds first.

Reads commands from standard input, one a line, and answers each with a line of JSON: a number of seconds repeats
the scenario that long and answers with the times of the calls (clock, processors); ``share`` answers with the part of
the time that passes inside the engine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import sys
import time
from pathlib import Path

from bench.clients.scenario import CLIENTS


def one_thread() -> None:
    """Make every session of the process use one thread, whatever its client says."""
    import onnxruntime

    class OneThread(onnxruntime.InferenceSession):
        def __init__(self, path_or_bytes, sess_options=None, *others, **named):
            sess_options = sess_options or onnxruntime.SessionOptions()
            sess_options.intra_op_num_threads = 1
            super().__init__(path_or_bytes, sess_options, *others, **named)

    onnxruntime.InferenceSession = OneThread


def repeat(use, seconds: float) -> list[tuple[float, float]]:
    """Seconds of each call: of the clock, and of the process's threads on processors."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        before, worked = time.perf_counter(), time.process_time()
        use()
        times.append((time.perf_counter() - before, time.process_time() - worked))
    return times


def share(use) -> float:
    """Part of the scenario's time inside `InferenceSession.run` and its companions, 0..1."""
    import onnxruntime

    inside, depth = 0.0, 0

    def watched(method):
        def call(*values, **named):
            nonlocal inside, depth
            before, depth = time.perf_counter(), depth + 1
            try:
                return method(*values, **named)
            finally:
                depth -= 1
                inside += 0.0 if depth else time.perf_counter() - before  # one may call another

        return call

    kind = onnxruntime.InferenceSession
    for name in ("run", "run_with_iobinding", "run_with_ort_values"):
        setattr(kind, name, watched(getattr(kind, name)))
    whole = sum(clock for clock, _ in repeat(use, 1.0))
    return inside / whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True, help="keeps what the scenario makes")
    parser.add_argument("--result", type=Path, required=True, help="the first call's result, pickled")
    parser.add_argument("--one-thread", action="store_true")
    wanted = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what clients print
    for module in ("images", "sounds", "texts", "tools"):
        importlib.import_module(f"bench.clients.{module}")
    begin = time.perf_counter()
    if wanted.one_thread:
        one_thread()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    use = CLIENTS[wanted.name].make(wanted.folder)
    made = time.perf_counter()
    result = use()
    first = time.perf_counter()
    wanted.result.write_bytes(pickle.dumps(result))
    import onnxruntime

    engine = {"version": onnxruntime.__version__, "file": onnxruntime.__file__}
    answers.write(json.dumps({"make_s": made - begin, "first_s": first - made, **engine}) + "\n")
    for line in sys.stdin:
        found = share(use) if line.strip() == "share" else repeat(use, float(line))
        answers.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
