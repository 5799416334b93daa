"""What a session costs beyond the SDK that runs its graph: on a small graph, on whole models, and from the cache.

    python -m bench.overhead openvino mobilenet_v2 -o bench/results/date-openvino.json

small: seconds of a run of a few elements, and of the SDK's own call on the same compiled graph.  model: a session
against OpenVINO or onnxruntime reading the file by itself, or against the same function of JAX called by hand.  start:
from the file to the first result with all caches warm, each in processes of its own; JAX keeps nothing of a file.
Ratios are of the smallest of many interleaved turns, but for processor_time_ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.measure import interleave
from bench.plugins import source
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.pointwise import Relu, Tanh
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.plugins import registry
from bolt_numba.plugins.interface import CompileContext
from bolt_numba.plugins.preparing import prepared
from bolt_numba.sessions.guesses import model_feeds
from bolt_numba.types import F32, Array, TensorType, type_of

BARS = {"overhead_us": 20.0, "model_ratio": 1.03, "start_ratio": 1.1}
"""Greatest overhead of a step; greatest ratios of a whole model and of a start from the cache."""
OPENVINO = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
"""OpenVINO alone computes in f32, too: by itself it rounds operands of products with 8-bit weights to 8 bits."""


def small() -> Graph:
    """Two operators on eight numbers."""
    graph = Graph("small")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (1, 8)))
    graph.add_output(build(Relu(), build(Tanh(), x)), "y")
    return graph


def overhead(device: str) -> dict[str, float]:
    """Microseconds of a session's run, of the same by our CPU, of a request's run, and what the step adds to it."""
    graph, x = small(), np.ones((1, 8), F32)
    driver = registry.driver(device)
    accelerator = registry.opened(driver, registry.settings_of(driver, {}))
    request = accelerator.compile(graph, CompileContext()).request()
    y = np.empty((1, 8), F32)
    own = bn.compile(graph, threads=1)
    session = bn.compile(graph, threads=1, device=[device, "cpu"], fallback="forbid")
    runs: dict[str, Callable[[], object]] = {
        "session": lambda: session.run(None, {"x": x}),
        "cpu": lambda: own.run(None, {"x": x}),
        "request": lambda: request.run([x], [y]),
    }
    best = {name: t.best * 1e6 for name, t in interleave(runs, turns=15).items()}
    return best | {"step": best["session"] - best["cpu"] - best["request"], "session_over_request":
                   best["session"] - best["request"]}


def alone(device: str, path: Path, feeds: Mapping[str, Array], threads: int) -> Callable[[], object]:
    """The SDK reading the file by itself, with operands where they lie; JAX, which reads none, calls our function."""
    if device == "jax":
        return by_hand(path, feeds, threads)
    if device == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, dict(feeds))
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({name: list(array.shape) for name, array in feeds.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, **OPENVINO}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(np.array(array, order="C"), shared_memory=False))
    return lambda: request.infer({}, share_outputs=True)


def by_hand(path: Path, feeds: Mapping[str, Array], threads: int) -> Callable[[], object]:
    """The function that JAX compiles of a model, called with arrays of JAX."""
    driver = registry.driver("jax")
    accelerator: Any = registry.opened(driver, registry.settings_of(driver, {}))
    graph = run_pipeline(bn.load(path), until="quantise")
    types = [type_of(np.asarray(feeds[v.name])).with_value(None) for v in graph.inputs]
    compiled: Any = accelerator.compile(prepared(graph, types, accelerator), CompileContext(threads=threads))
    operands = [accelerator.on_device(np.array(feeds[v.name], order="C")) for v in graph.inputs] + compiled.weights
    return lambda: [np.asarray(made) for made in compiled.call(*operands)]


def whole(device: str, path: Path, feeds: Mapping[str, Array], threads: int, turns: int) -> dict[str, float]:
    """Milliseconds of a run of a model by a session, by the SDK alone, and their ratio."""
    session = bn.compile(path, threads=threads, device=[device, "cpu"], fallback="forbid")
    peer = alone(device, path, feeds, threads)
    times = interleave({"session": lambda: session.run(None, dict(feeds)), "alone": peer}, turns=turns)
    best = {name: t.best * 1e3 for name, t in times.items()}
    ratio = worked({"session": lambda: session.run(None, dict(feeds)), "alone": peer}, 4 * turns)
    return best | {"ratio": best["session"] / best["alone"], "processor_time_ratio": ratio}


def worked(runs: Mapping[str, Callable[[], object]], turns: int) -> float:
    """The ratio of the medians of two contestants' processor time, run by turns: what others do disturbs it less."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            start = time.process_time()
            run()
            spent[name].append(time.process_time() - start)
    first, second = (float(np.median(seconds)) for seconds in spent.values())
    return first / second


START = """
import json, sys, time
import numpy as np
kind, device, path, feeds, cache, options = sys.argv[1:]
feeds = dict(np.load(feeds))
begin, worked = time.perf_counter(), time.process_time()
if kind == "session":
    import bolt_numba as bn
    run = bn.compile(path, threads=1, device=[device, "cpu"], fallback="forbid")
    run.run(None, feeds)
elif device == "openvino":
    import openvino
    core = openvino.Core()
    core.set_property({"CACHE_DIR": cache})
    model = core.read_model(path)
    model.reshape({name: list(array.shape) for name, array in feeds.items()})
    options = {"INFERENCE_NUM_THREADS": 1} | json.loads(options)
    core.compile_model(model, "CPU", options).create_infer_request().infer(feeds)
else:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)
print(time.perf_counter() - begin, time.process_time() - worked)
"""


def start(device: str, path: Path, feeds: Mapping[str, Array], turns: int) -> dict[str, float]:
    """Milliseconds from the file to the first result, imports of packages included, with what is kept from before."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(stored := Path(folder, "feeds.npz"), **feeds)
        # Modules are compiled once, as those of installed packages are.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder, "pyc"))
        taken: dict[str, list[list[float]]] = {"session": [], "alone": []}
        for turn in range(turns + 1):
            for kind, times in taken.items():
                arguments = (kind, device, str(path), str(stored), folder, json.dumps(OPENVINO))
                command = [sys.executable, "-c", START, *arguments]
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                text = done.stdout.split()
                if turn:
                    times.append([float(seconds) * 1e3 for seconds in text])
    best = {kind: [min(column) for column in zip(*times, strict=True)] for kind, times in taken.items()}
    (wall, work), (wall_alone, work_alone) = best["session"], best["alone"]
    found = {"session": wall, "alone": wall_alone, "ratio": wall / wall_alone}
    return found | {"session_work": work, "alone_work": work_alone, "processor_time_ratio": work / work_alone}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", choices=("openvino", "onnxruntime", "jax"))
    parser.add_argument("models", nargs="*", default=["mobilenet_v2"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("-o", dest="output", help="also write a JSON file")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {"device": given.device, "processor": platform.machine(), "bars": BARS, "models": {}}
    found["small_us"] = overhead(given.device)
    for name in given.models:
        path, feeds = source(name)
        with bn.compile(path, threads=1) as session:
            operands = dict(feeds or model_feeds(session.graph, None))
        row = {"run_ms": whole(given.device, Path(path), operands, given.threads, given.turns)}
        if given.device != "jax":
            row["start_ms"] = start(given.device, Path(path), operands, max(3, given.turns // 3))
        found["models"][name] = row
    text = json.dumps(found, indent=1, default=lambda x: round(float(x), 3))
    sys.stdout.write(text + "\n")
    if given.output:
        Path(given.output).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
