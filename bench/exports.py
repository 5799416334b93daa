"""Which models leave Python, and what the exported library costs beside a Python session.

    python -m bench.exports resnet50 mobilenet_v2 minilm_128 -o bench/results/date-exports.json

Names are those of `bench.run`, or files; without any, all real models and the zoo.  Each is exported for this machine
as a static library and linked with a small program in C.  ``same``: whether its outputs have the bits of a session.
``ms``: the smallest time of a run of many, in turns with ``session_ms``.  ``start_ms``: from starting the process to
its first result, beside the same with onnxruntime in Python.  ``mib``: memory of the process at most, beside what a
Python process has with a session more than without (``session_mib``).  A model that cannot leave Python has ``why``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.models import MODELS
from bench.zoo import ZOO
from bolt_numba.errors import BoltError
from bolt_numba.export.exporting import with_fixed
from bolt_numba.ir.graph import Graph
from bolt_numba.sessions.guesses import model_feeds
from bolt_numba.types import Array

FIXED = {"silero_vad": {"sr": 16000}, "silero_vad_op18_ifless": {"sr": 16000}}
"""Inputs that decide branches, and what they are."""
TURNS, TURN_S = 7, 0.5
STARTS = 5
_TIMED = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "model.h"
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(int argc, char **argv) {
    bn_model *model = NULL;
    bn_session *session = NULL;
    bn_options options = {atoi(argv[1])};
    double seconds = atof(argv[2]), best = 1e9;
    if (model_open(&model) != BN_OK || bn_session_create(model, &options, &session) != BN_OK) return 1;
    for (int i = 0; i < bn_session_inputs(session); i++) {
        bn_info info;
        bn_session_input_info(session, i, &info);
        FILE *file = i + 3 < argc ? fopen(argv[i + 3], "rb") : NULL;
        if (file == NULL || fread(bn_session_input(session, i), 1, info.nbytes, file) != info.nbytes) return 2;
        fclose(file);
    }
    if (bn_session_run(session) != BN_OK) return 3;
    for (int i = 0; i < bn_session_outputs(session) && seconds == 0; i++) {
        bn_info info;
        char path[16];
        bn_session_output_info(session, i, &info);
        snprintf(path, sizeof path, "%d.out", i);
        FILE *file = fopen(path, "wb");
        if (file == NULL || fwrite(bn_session_output(session, i), 1, info.nbytes, file) != info.nbytes) return 4;
        fclose(file);
    }
    for (double end = now() + seconds; now() < end;) {
        double start = now();
        bn_session_run(session);
        double spent = now() - start;
        best = spent < best ? spent : best;
    }
    long most = 0; /* of this process alone, unlike getrusage's */
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL) sscanf(line, "VmHWM: %ld", &most);
    printf("%.9f %ld\\n", best, most);
    return 0;
}
"""
_ORT = """
import sys, numpy as np, onnxruntime as ort
o = ort.SessionOptions(); o.intra_op_num_threads = int(sys.argv[2]); o.log_severity_level = 4
s = ort.InferenceSession(sys.argv[1], o, providers=["CPUExecutionProvider"])
s.run(None, dict(np.load(sys.argv[3])))
"""
_SESSION = """
import sys, re, numpy as np, bolt_numba as bn
most = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = most()
feeds = dict(np.load(sys.argv[3]))
session = bn.compile(bn.load(sys.argv[1]), threads=int(sys.argv[2]))
for _ in range(3):
    session(feeds)
print(most() - before)
"""


class Program:
    """An exported model and the program in C that measures it."""

    def __init__(self, graph: Graph, feeds: Mapping[str, Array], folder: Path, threads: int) -> None:
        shapes = {name: array.shape for name, array in feeds.items()}
        self.made = bn.export_model(graph, folder, name="model", threads=threads, shapes=[shapes])
        self.folder, self.threads = folder, threads
        (folder / "timed.c").write_text(_TIMED)
        command = "cc -O2 -I. -Iruntime timed.c libmodel.a -lm -lpthread -o timed"
        subprocess.run(command.split(), cwd=folder, check=True)
        self.inputs = []
        for number, value in enumerate(graph.caller_inputs):
            (folder / f"{number}.in").write_bytes(np.ascontiguousarray(feeds[value.name]).tobytes())
            self.inputs.append(f"{number}.in")

    def run(self, seconds: float) -> tuple[float, float, float]:
        """Best time of a run, memory in MiB, and how long the process lived."""
        start = time.perf_counter()
        command = ["./timed", str(self.threads), str(seconds), *self.inputs]
        done = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        spent = time.perf_counter() - start
        best, kilobytes = done.stdout.split()
        return float(best), int(kilobytes) / 1024, spent

    def outputs(self, session: bn.Session) -> list[bytes]:
        self.run(0)
        return [(self.folder / f"{i}.out").read_bytes() for i in range(len(session.outputs))]


def measured(graph: Graph, path: Path, feeds: Mapping[str, Array], folder: Path, threads: int) -> dict[str, Any]:
    """A row of the table."""
    program = Program(graph, feeds, folder, threads)
    session = bn.compile(graph, threads=threads, stand_ins=False)
    wanted = [array.tobytes() for _, array in session(feeds).items()]
    row: dict[str, Any] = {
        "kernels": (folder / "model.c").read_text().count("(void *record"), "bytes": program.made.nbytes,
        "library_bytes": (folder / "libmodel.so").stat().st_size, "same": program.outputs(session) == wanted,
    }  # fmt: skip
    ours, theirs = [], []
    for _ in range(TURNS):
        ours.append(program.run(TURN_S)[0])
        theirs.append(_best(session, feeds))
    row |= {"ms": 1e3 * min(ours), "session_ms": 1e3 * min(theirs), "ratio": min(ours) / min(theirs)}
    arrays = folder / "feeds.npz"
    np.savez(arrays, **feeds, **{name: np.array(value) for name, value in FIXED.get(path.stem, {}).items()})
    starts, mib = zip(*((spent, mib) for _, mib, spent in (program.run(0) for _ in range(STARTS))), strict=True)
    row |= {"start_ms": 1e3 * min(starts), "mib": max(mib)}
    if path.suffix == ".onnx":
        row["onnxruntime_start_ms"] = 1e3 * min(_seconds(_ORT, path, threads, arrays)[0] for _ in range(STARTS))
        if not set(FIXED) & {path.stem}:
            row["session_mib"] = int(_seconds(_SESSION, path, threads, arrays)[1]) / 1024
    return row


def _best(session: bn.Session, feeds: Mapping[str, Array]) -> float:
    best, end = 1e9, time.perf_counter() + TURN_S
    while time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, feeds)
        best = min(best, time.perf_counter() - start)
    return best


def _seconds(code: str, path: Path, threads: int, arrays: Path) -> tuple[float, str]:
    """How long a process of Python lives, and what it prints."""
    start = time.perf_counter()
    command = [sys.executable, "-c", code, str(path), str(threads), str(arrays)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return (time.perf_counter() - start, done.stdout) if done.returncode == 0 else (float("inf"), "0")


def files(names: Sequence[str]) -> dict[str, Path]:
    """Models by name."""
    found = {}
    for name in names or [*MODELS, *ZOO]:
        known = MODELS[name].path() if name in MODELS else ZOO[name].path() if name in ZOO else Path(name)
        found[name] = known
    return found


def row_of(path: Path, threads: int) -> dict[str, Any]:
    graph = with_fixed(bn.load(path), FIXED.get(path.stem, {}))
    feeds = model_feeds(graph)
    folder = Path(tempfile.mkdtemp())
    try:
        return measured(graph, path, feeds, folder, threads)
    except BoltError as error:
        return {"why": str(error)}
    finally:
        shutil.rmtree(folder)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args(argv)
    rows: dict[str, dict[str, Any]] = {}
    for name, path in files(args.names).items():
        rows[name] = row_of(path, args.threads)
        sys.stdout.write(f"{name}: {json.dumps(rows[name])}\n")
        sys.stdout.flush()
        if args.output is not None:
            args.output.write_text(json.dumps({"threads": args.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
