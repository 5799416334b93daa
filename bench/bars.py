"""The project's bars, one command each: ``python -m bench.bars speed|sessions|kernels|overhead|start|memory|all``.

Everything is measured side by side with onnxruntime in one run; ratios are peer time / our time: above 1 we are faster.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnx.helper
import onnxruntime as ort  # type: ignore[import-untyped,unused-ignore]
import typer
from rich.console import Console
from rich.table import Table

import bolt_numba as bn
from bench.decoders import DECODERS, generate
from bench.measure import geometric_mean, interleave
from bench.models import MODELS, Feeds
from bench.peak import peak_gflops
from bench.shapes import SIZED, cost_of
from bench.starts import COLD, cold_start, entry_of, first_run, warm_start

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)
console = Console()
Threads = Annotated[list[int], typer.Option(help="thread counts")]


def ort_session(source: str | bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def difference(ours: list[Any], theirs: list[Any]) -> tuple[float, bool]:
    """Largest absolute difference, and whether all is within rtol 1e-3, atol 1e-4."""
    worst, close = 0.0, True
    for a, b in zip(ours, theirs, strict=True):
        if a.size:
            worst = max(worst, float(np.max(np.abs(a.astype("f8") - b.astype("f8")))))
        close &= a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-3, atol=1e-4))
    return worst, close


def compare(path: str | bytes, feeds: Feeds, threads: int, turns: int) -> dict[str, Any]:
    """Milliseconds of both engines, their ratios, and how far their results are apart."""
    mine, theirs = bn.compile(path, threads=threads), ort_session(path, threads)
    strict = bn.compile(path, threads=threads, numerics="strict")
    worst, close = difference(mine.run(None, feeds), theirs.run(None, feeds))
    engines = {"bolt": mine, "strict": strict, "ort": theirs}
    times = interleave({name: partial(e.run, None, feeds) for name, e in engines.items()}, turns=turns)
    return {
        "bolt_ms": times["bolt"].median * 1e3,
        "strict_ms": times["strict"].median * 1e3,
        "ort_ms": times["ort"].median * 1e3,
        "ratio": times["ort"].median / times["bolt"].median,
        "strict_ratio": times["ort"].median / times["strict"].median,
        "max_difference": worst,
        "close": close,
    }


@app.command()
def speed(
    threads: Threads = [1, 2],  # noqa: B006 - typer reads it once
    model: Annotated[list[str] | None, typer.Option(help="only these models")] = None,
    turns: int = 9,
    output: Annotated[Path | None, typer.Option(help="write JSON")] = None,
) -> None:
    """Latency of the model set against onnxruntime."""
    rows = []
    for name in model or list(MODELS):
        entry = MODELS[name]
        for count in threads:
            row = {"model": name, "threads": count, **compare(str(entry.path()), entry.feeds(), count, turns)}
            rows.append(row)
            console.print(
                f"{name:14} {count} thread(s)  bolt {row['bolt_ms']:9.3f} ms  ort {row['ort_ms']:9.3f} ms  "
                f"ratio {row['ratio']:5.2f}  strict {row['strict_ratio']:5.2f}  "
                f"max diff {row['max_difference']:.1e} {'' if row['close'] else 'NOT CLOSE'}"
            )
    for count in threads:
        counted = [r["ratio"] for r in rows if r["threads"] == count and MODELS[r["model"]].speed]
        console.print(f"geometric mean, {count} thread(s): {geometric_mean(counted):.3f} over {len(counted)} models")
    if output is not None:
        output.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1), encoding="utf-8")


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    import llvmlite
    import numba

    from bolt_numba.kernels.instructions.isa import target

    return {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "isa": target().name,
        "python": platform.python_version(), "numba": numba.__version__, "llvmlite": llvmlite.__version__,
        "onnxruntime": ort.__version__, "date": time.strftime("%Y-%m-%d"), "peak_gflops": peak_gflops(),
    }  # fmt: skip


def one_node(op: str, shape: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> bytes:
    """An ONNX model of one operator with a random constant weight."""
    w = np.random.default_rng(0).standard_normal(weight).astype("f4")
    node = onnx.helper.make_node(op, ["x", "w"], ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node], op, [onnx.helper.make_tensor_value_info("x", 1, shape)],
        [onnx.helper.make_tensor_value_info("y", 1, None)], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model: bytes = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return model


@app.command()
def kernels(turns: int = 15) -> None:
    """Matrix product 1024^3 and the 3x3 convolution 56x56x64 -> 64, as shares of the measured peak of one core.

    The convolution is timed with its layout changes, as a one-node model; its kernel alone is in the profile.
    """
    cases = {
        "gemm 1024^3": (one_node("MatMul", (1024, 1024), (1024, 1024)), (1024, 1024), 2 * 1024**3),
        "conv 3x3 56x56x64": (
            one_node("Conv", (1, 64, 56, 56), (64, 64, 3, 3), pads=[1, 1, 1, 1]),
            (1, 64, 56, 56),
            2 * 56 * 56 * 64 * 64 * 9,
        ),
    }  # fmt: skip
    for name, (model, shape, flop) in cases.items():
        x = {"x": np.random.default_rng(1).standard_normal(shape).astype("f4")}
        mine, theirs = bn.compile(model, threads=1), ort_session(model, 1)
        times = interleave({"bolt": lambda: mine.run(None, x), "ort": lambda: theirs.run(None, x)}, turns=turns)  # noqa: B023
        peak = peak_gflops()
        alone = max(mine.profile(x, runs=50).rows, key=lambda r: r.seconds)
        console.print(
            f"{name:18} peak {peak:6.1f} GFLOP/s; kernel {flop / alone.seconds / 1e9:6.1f} "
            f"({100 * flop / alone.seconds / 1e9 / peak:.0f} %, {alone.runner}); "
            f"model: bolt {flop / times['bolt'].best / 1e9:6.1f}, ort {flop / times['ort'].best / 1e9:6.1f}"
        )


@app.command()
def overhead() -> None:
    """A model of ten tiny steps, and silero-vad (its speech frames are short)."""
    nodes = [onnx.helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(10)]
    weights = [onnx.numpy_helper.from_array(np.eye(8, dtype="f4") * (i + 1), f"w{i}") for i in range(10)]
    graph = onnx.helper.make_graph(
        nodes, "tiny", [onnx.helper.make_tensor_value_info("v0", 1, (1, 8))],
        [onnx.helper.make_tensor_value_info("v10", 1, (1, 8))], weights,
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    x = {"v0": np.ones((1, 8), "f4")}
    for threads in (1, 2):
        row = compare(model.SerializeToString(), x, threads, turns=9)
        console.print(
            f"ten tiny steps, {threads} thread(s): bolt {row['bolt_ms'] * 1e3:6.2f} us, "
            f"ort {row['ort_ms'] * 1e3:6.2f} us"
        )
    entry = MODELS["silero_vad"]
    for threads in (1, 2):
        row = compare(str(entry.path()), entry.feeds(), threads, turns=9)
        console.print(
            f"silero-vad, {threads} thread(s): bolt {row['bolt_ms'] * 1e3:6.1f} us, ort {row['ort_ms'] * 1e3:6.1f} us, "
            f"ratio {row['ratio']:.2f}"
        )


@app.command()
def shapes(model: Annotated[list[str] | None, typer.Option(help="only these models")] = None, count: int = 100) -> None:
    """What sizes cost that a session has not seen, one thread: beside known ones, where tapes serve both."""
    for name in model or list(SIZED):
        cost, nodes = cost_of(SIZED[name], count)
        console.print(
            f"{name:10} {nodes} nodes: known {cost.known:.2f} ms, new {cost.new:.2f}, {cost.more:+.3f} ms each; "
            f"{cost.counted} sizes, {cost.planned} others planned"
        )


@app.command()
def growing(turns: int = 5) -> None:
    """Decoders whose past grows by one a step, against onnxruntime and against a past that stays, one thread."""
    for name, make in DECODERS.items():
        model = make()
        runs = {"bolt": bn.compile(model, threads=1, stand_ins=False).run, "ort": ort_session(model, 1).run}
        spent: dict[tuple[str, bool], list[float]] = {}
        for _ in range(turns):
            for engine, run in runs.items():
                for grows in (False, True):
                    steps = generate(run, name, grows)[5:]
                    spent.setdefault((engine, grows), []).append(float(np.median(steps)))
        ms = {row: 1e3 * float(np.median(times)) for row, times in spent.items()}
        console.print(
            f"{name:10} stays: bolt {ms['bolt', False]:.3f} ms, ort {ms['ort', False]:.3f}; "
            f"grows: bolt {ms['bolt', True]:.3f}, ort {ms['ort', True]:.3f}, "
            f"ratio {ms['ort', True] / ms['bolt', True]:.2f}"
        )


@app.command()
def planning() -> None:
    """Latency of a known shape while another thread of the session plans new ones without a pause."""
    for name, axis, step in (("minilm_128", 1, 2), ("ppocr_rec", 3, 8), ("ppocr_det", 3, 32)):
        entry = MODELS[name]
        session, feeds = bn.compile(str(entry.path()), threads=1), entry.feeds()
        session.run(None, feeds)
        shapes = [{k: _with(x.shape, axis, step * (3 + n)) for k, x in feeds.items()} for n in range(60)]
        planner = _Planner(session, shapes)
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(3):
            alone += _latencies(session, feeds)
            with planner:
                beside += _latencies(session, feeds)
        usual = float(np.median(alone))
        middle, worst = float(np.median(beside)) / usual, float(np.percentile(beside, 95)) / usual
        beside_it = f"beside {planner.plans} plans {middle:.2f} of that (95 of 100: {worst:.2f})"
        console.print(f"{name}: {1e3 * usual:.2f} ms alone; {beside_it}")


def _latencies(session: bn.Session, feeds: Feeds, runs: int = 60) -> list[float]:
    spent = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        spent.append(time.perf_counter() - start)
    return spent


class _Planner:
    """Plans shapes in a thread of its own, one after the other: more of them than are kept, so that each is new."""

    def __init__(self, session: bn.Session, shapes: list[dict[str, tuple[int, ...]]]) -> None:
        self.session, self.shapes, self.plans = session, shapes, 0

    def __enter__(self) -> None:
        self.begun, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()
        self.begun.wait()

    def __exit__(self, *exc: object) -> None:
        self.stop.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.stop.is_set():
            self.session.warmup(**self.shapes[self.plans % len(self.shapes)])
            self.plans += 1
            self.begun.set()


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


@app.command()
def sessions(
    model: Annotated[list[str], typer.Option()] = ["kws_dscnn", "squeezenet"],  # noqa: B006
    clients: Annotated[list[int], typer.Option(help="Python threads that run at once")] = [1, 2, 4, 8],  # noqa: B006
    turns: int = 5,
    seconds: Annotated[float, typer.Option(help="length of a turn")] = 0.5,
) -> None:
    """Throughput, latency and processor time of 1, 2 and 4 sessions of two threads that Python threads run at once."""
    table = Table("model", "sessions", "clients", "engine", "runs/s", "p50 ms", "p95 ms", "CPU ms a run")
    for name in model:
        path, feeds = str(entry_of(name).path()), entry_of(name).feeds()
        for count in (1, 2, 4):
            made = {
                "bolt": [bn.compile(path, threads=2) for _ in range(count)],
                "ort": [ort_session(path, 2) for _ in range(count)],
            }
            calls = {engine: [partial(each.run, None, feeds) for each in found] for engine, found in made.items()}
            for many in (n for n in clients if n >= count):
                for engine, figures in crowd(calls, many, turns, seconds).items():
                    table.add_row(name, str(count), str(many), engine, *(f"{x:.3f}" for x in figures))
    console.print(table)


def crowd(
    calls: dict[str, Sequence[Callable[[], Any]]], clients: int, turns: int, seconds: float
) -> dict[str, list[float]]:
    """Of each engine: runs a second (median of turns), latencies of 50 and 95 runs of 100, processor time of a run.

    calls: one for each session.  ``clients`` threads call them in turns of the engines.  Times in ms.
    """
    rates: dict[str, list[float]] = {engine: [] for engine in calls}
    spent: dict[str, list[float]] = {engine: [] for engine in calls}
    busy = dict.fromkeys(calls, 0.0)

    def client(call: Callable[[], Any], end: float, mine: list[float]) -> None:
        now = 0.0
        while now < end:
            start = time.perf_counter()
            call()
            now = time.perf_counter()
            mine.append(now - start)

    for each in calls.values():
        for call in each:
            call()
    for _ in range(turns):
        for engine, each in calls.items():
            time.sleep(0.05)  # the other engine's threads go to sleep
            mine, used, start = [[] for _ in range(clients)], time.process_time(), time.perf_counter()  # type: ignore[var-annotated]
            threads = [
                threading.Thread(target=client, args=(each[i % len(each)], start + seconds, mine[i]))
                for i in range(clients)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            done = sum(map(len, mine))
            rates[engine].append(done / (time.perf_counter() - start))
            busy[engine] += time.process_time() - used
            spent[engine] += [second for those in mine for second in those]
    return {
        engine: [
            float(np.median(rates[engine])), *(1e3 * float(np.percentile(spent[engine], at)) for at in (50, 95)),
            1e3 * busy[engine] / len(spent[engine]),
        ]
        for engine in calls
    }  # fmt: skip


@app.command()
def trees() -> None:
    """Tree ensembles of scikit-learn at batch 1 and 1,000."""
    import skl2onnx
    from sklearn import ensemble, tree

    x = np.random.default_rng(0).standard_normal((3000, 20), np.float32)
    labels = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(int)
    for estimator in (
        tree.DecisionTreeClassifier(max_depth=8),
        ensemble.RandomForestClassifier(100, max_depth=8),
        ensemble.GradientBoostingClassifier(n_estimators=100),
        ensemble.RandomForestRegressor(100, max_depth=8),
    ):
        estimator.fit(x, labels)
        options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
        model = skl2onnx.to_onnx(estimator, x[:1], options=options).SerializeToString()
        for threads in (1, 2):
            for batch in (1, 1000):
                row = compare(model, {"X": x[:batch]}, threads, turns=5)
                what = f"{type(estimator).__name__}, {threads} thread(s), batch {batch}"
                console.print(f"{what}: bolt {row['bolt_ms'] * 1e3:.1f} us, ratio {row['ratio']:.2f}")
    x = np.random.default_rng(1).standard_normal((4000, 30), np.float32)
    forest = ensemble.RandomForestClassifier(200, max_depth=12, n_jobs=-1).fit(x, x[:, 0] * x[:, 1] + x[:, 2] > 0)
    model = skl2onnx.to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString()
    loads = {"bolt": lambda: bn.compile(model, threads=1), "ort": lambda: ort_session(model, 1)}
    times = interleave(loads, turns=9)
    console.print(
        f"load of 200 trees, {sum(e.tree_.node_count for e in forest.estimators_)} nodes: "
        f"bolt {times['bolt'].median:.3f} s, ort {times['ort'].median:.3f} s"
    )


MORE = 80
"""MiB by which our peak may exceed onnxruntime's."""


@app.command()
def start(
    model: Annotated[list[str], typer.Option()] = ["resnet50", "mobilenet_v2", "mlp"],  # noqa: B006
    cold: Annotated[list[str], typer.Option()] = ["resnet50", "mobilenet_v2", "minilm_128", "yolo_n"],  # noqa: B006
    turns: int = 5,
    waits: Annotated[int, typer.Option(help="how many cold runs wait for their kernels")] = 1,
    wheel: Annotated[Path | None, typer.Option(help="Python of an environment that has a wheel with kernels")] = None,
) -> None:
    """Import time; cold caches; models from file to first result in a new process, best of several."""
    code = (
        "import time; t=time.perf_counter(); import bolt_numba, sys; "
        "print(time.perf_counter()-t, 'numba' in sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(7)]
    imports = sorted(float(r.stdout.split()[0]) for r in runs)
    console.print(f"import bolt_numba: {imports[3]:.3f} s (median of 7), numba imported: {runs[0].stdout.split()[1]}")
    table = Table(*COLD)
    for name in cold:
        table.add_row(*cold_start(name, turns, waits, wheel))
    console.print(table)
    table = Table("warm start, s (of onnxruntime's)", "onnxruntime", "kept plan", ".onnx", ".bolt", "packed .bolt")
    for name in model:
        table.add_row(*warm_start(name, turns))
    console.print(table)


@app.command()
def memory(
    model: Annotated[list[str], typer.Option()] = ["bert_base_128", "unet", "open_nsfw", "resnet50", "vgg19", "mlp"],  # noqa: B006
) -> None:
    """Peak RSS of a process that loads a model and runs it once, with warm caches."""
    # VmHWM, because ru_maxrss of a new process begins with what its parent had.
    table = Table("model", "bolt MiB", "ort MiB", "difference", f"at most {MORE} more")
    for name in model:
        first_run(name, "bolt")
        mine, theirs = first_run(name, "bolt")[1], first_run(name, "ort")[1]
        table.add_row(name, f"{mine:.0f}", f"{theirs:.0f}", f"{mine - theirs:+.0f}", str(mine <= theirs + MORE))
    console.print(table)


@app.command(name="all")
def everything() -> None:
    """All of the above."""
    kernels()
    overhead()
    start(model=["resnet50", "mobilenet_v2", "mlp"], cold=["resnet50", "mobilenet_v2"], turns=5, waits=1, wheel=None)
    memory(model=["bert_base_128", "unet", "open_nsfw", "resnet50", "vgg19", "mlp"])
    speed(threads=[1, 2], model=None, turns=9, output=None)


if __name__ == "__main__":
    app()
