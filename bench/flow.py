"""Flow beside programs written by hand with `concurrent.futures`, on two processors.

    python -m bench.flow -o bench/results/date-flow.json --page docs/flow.md
    python -m bench.flow lines --rounds 3 --seconds 2

Pipelines: ``ocr``: pages of text, of which one network finds lines and another reads each (examples/ocr_flow.py).
``lines``: pictures of a line, of which one network says whether it is upside down and another reads it.

Contestants: ``onnxruntime``: a pool of two threads, each of which takes a task through all steps, with sessions of one
thread.  ``sessions``: the same program with sessions of bolt-numba.  ``flow``: a Flow with two workers.  Steps beside
the networks are the same functions, and all must read the same text.

Throughput: tasks a second while eight are under way, and processor time of each.  Latency: of tasks that come at random
(Poisson), at a share of what the first contestant can do, whoever is measured, counted from when a task should have
come.  Contestants take turns in random order; of each the median over the rounds is taken, and of each round's
percentiles.  Processor time is what others on the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import bolt_numba as bn
from bench.page import fill
from bolt_numba.flow import Flow
from bolt_numba.types import F32, Array

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.append(str(EXAMPLES))
import ocr  # noqa: E402
import ocr_flow  # noqa: E402

HAND, SESSIONS, FLOW = "onnxruntime", "sessions", "flow"
NAMES = {HAND: "onnxruntime by hand", SESSIONS: "bolt-numba by hand", FLOW: "Flow"}
BARS = {"throughput": 1.3, "p99": 1.0}
"""Least ratio of tasks a second, greatest ratio of the 99th percentile, of Flow to onnxruntime by hand."""
FIGURES = "per_s", "work_ms", "p50_ms", "p99_ms"
"""Tasks a second, processor time of each, percentiles of latency."""
WORKERS, WINDOW, LOAD = 2, 8, 0.7
SHORT_SIDE = 320
"""Pixels of a page's short side for the first network; the example takes more, for smaller letters."""
UPSIDE_DOWN = "ch_ppocr_mobile_v2.0_cls_infer.onnx", "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"
WORDS = ("the", "quick", "brown", "fox", "jumps", "lazy", "dog", "invoice", "total", "of", "2026", "1,234.50", "EUR")

Run = Callable[[Array], Array]
Submit = Callable[[Any], "Future[Any]"]


class Pipeline(NamedTuple):
    """Tasks; the whole of one by hand, given what runs each network; the flow; what is compared of its results."""

    models: Sequence[str]
    items: Sequence[Any]
    by_hand: Callable[[Sequence[Run], Any], Any]
    flow: Callable[[], Flow]
    result: Callable[[Mapping[str, Any]], Any]


# --- pipelines -------------------------------------------------------------------------------------------------------


def page(rng: np.random.Generator, lines: int) -> Image.Image:
    """A drawn page with some lines of text."""
    image = Image.new("RGB", (640, 60 * lines + 20), "white")
    draw = ImageDraw.Draw(image)
    for row in range(lines):
        words = " ".join(rng.choice(WORDS, rng.integers(2, 6)))
        draw.text((20, 60 * row + 20), words, "black", ImageFont.load_default(int(rng.integers(22, 32))))
    return image


def read_page(runs: Sequence[Run], image: Image.Image) -> list[str]:
    """One page, step by step."""
    boxes = ocr.lines_in(runs[0](ocr.page_tensor(image)), image)
    return [ocr.text_of(runs[1](ocr.line_tensor(image, box)), alphabet())[0] for box in boxes]


def pages() -> Pipeline:
    rng = np.random.default_rng(0)
    items = [page(rng, int(lines)) for lines in rng.integers(3, 7, 24)]
    files = [str(ocr.fetch(name)) for name in ocr.MODELS]

    def flow() -> Flow:
        return ocr_flow.reader(WORKERS, threads=1, stand_ins=False)

    return Pipeline(files, items, read_page, flow, lambda found: [text for text, _ in found["lines"]])


def small(line: Image.Image) -> Array:
    """What says whether a line is upside down."""
    return ocr.tensor(line.resize((192, 48)))


def turned(line: Image.Image, p: Array) -> Array:
    """A line as the reading network takes it, turned where it should be."""
    return ocr.tensor(line.transpose(Image.Transpose.ROTATE_180) if p[0, 1] > 0.9 else line)


def read_letters(letters: Array) -> str:
    return ocr.text_of(letters, alphabet())[0]


def read_line(runs: Sequence[Run], line: Image.Image) -> str:
    """One line, step by step."""
    return read_letters(runs[1](turned(line, runs[0](small(line)))))


def lines() -> Pipeline:
    rng = np.random.default_rng(1)
    drawn = [page(rng, 1).crop((10, 10, 410, 70)).resize((320, 48)) for _ in range(48)]
    items = [x.transpose(Image.Transpose.ROTATE_180) if i % 2 else x for i, x in enumerate(drawn)]
    package, (name, digest) = ocr.PACKAGE, UPSIDE_DOWN
    first = str(ocr.file_of(package, f"rapidocr_onnxruntime/models/{name}", digest))
    files = [first, str(ocr.fetch("rec"))]

    def flow() -> Flow:
        made = Flow("lines", inputs="line", outputs="text", workers=WORKERS)
        made.function(small, "line", "x")
        made.model(files[0], "x", "p", name="direction", threads=1, stand_ins=False)
        made.function(turned, ["line", "p"], "upright")
        made.model(files[1], "upright", "letters", name="read", max_batch=2, threads=1, stand_ins=False)
        return made.function(read_letters, "letters", "text")

    return Pipeline(files, items, read_line, flow, lambda found: found["text"])


PIPELINES: dict[str, Callable[[], Pipeline]] = {"ocr": pages, "lines": lines}
_alphabet: list[str] = []


def alphabet() -> list[str]:
    if not _alphabet:
        _alphabet.extend(ocr.alphabet_of(bn.load(ocr.fetch("rec"))))
    return _alphabet


# --- contestants -----------------------------------------------------------------------------------------------------


def with_onnxruntime(path: str) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = 1, 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0], F32)


def with_session(path: str) -> Run:
    session = bn.compile(path, threads=1, stand_ins=False, max_plans=256)  # lines have many widths
    return lambda x: session(x)[0]


@contextmanager
def contestants(pipeline: Pipeline) -> Iterator[dict[str, Submit]]:
    """What takes a task and gives a future of its result, by name."""
    made: dict[str, Submit] = {}
    with ThreadPoolExecutor(WORKERS) as pool, ThreadPoolExecutor(WORKERS) as other, pipeline.flow() as flow:
        for name, threads, engine in ((HAND, pool, with_onnxruntime), (SESSIONS, other, with_session)):
            runs = [engine(path) for path in pipeline.models]
            made[name] = lambda item, t=threads, r=runs: t.submit(pipeline.by_hand, r, item)  # type: ignore[misc]
        flow.capacity = 1 << 20  # tasks that come at random never wait outside
        made[FLOW] = lambda item: flow.submit({flow.inputs[0]: item})
        yield made


# --- measuring -------------------------------------------------------------------------------------------------------


def throughput(submit: Submit, items: Sequence[Any], seconds: float) -> tuple[float, float]:
    """Tasks a second while `WINDOW` of them are under way, and milliseconds of processor time for each.

    The first `WINDOW` tasks are not counted.
    """
    room, done, failed = threading.Semaphore(WINDOW), Counter[str](), list[BaseException]()

    def ended(future: Future[Any]) -> None:
        done["tasks"] += 1
        if (error := future.exception()) is not None:
            failed.append(error)
        room.release()

    number, start, worked, before = 0, 0.0, 0.0, 0
    while not start or time.perf_counter() < start + seconds:
        room.acquire()
        if not start and done["tasks"] >= WINDOW:
            start, worked, before = time.perf_counter(), time.process_time(), done["tasks"]
        submit(items[number % len(items)]).add_done_callback(ended)
        number += 1
    count = done["tasks"] - before
    rate, work = count / (time.perf_counter() - start), (time.process_time() - worked) / max(1, count) * 1e3
    for _ in range(WINDOW):
        room.acquire()
    if failed:
        raise failed[0]
    return rate, work


def latencies(submit: Submit, items: Sequence[Any], due: Sequence[float]) -> list[float]:
    """Seconds of each task from when it was due, in seconds from now."""
    taken: dict[int, float] = {}
    futures = []
    start = time.perf_counter()
    for number, when in enumerate(due):
        time.sleep(max(0.0, start + when - time.perf_counter()))
        future = submit(items[number % len(items)])
        future.add_done_callback(lambda _, n=number, w=when: taken.update({n: time.perf_counter() - start - w}))
        futures.append(future)
    for future in futures:
        future.result()
    while len(taken) < len(futures):  # who waits may be told before callbacks are
        time.sleep(1e-3)
    return [taken[n] for n in range(len(futures))]


def measured(pipeline: Pipeline, rounds: int, seconds: float, load: float) -> dict[str, Any]:
    """Rates and percentiles of all contestants, and the ratios of Flow to the others."""
    rng = np.random.default_rng(5)
    with contestants(pipeline) as submits:
        want = warm(pipeline, submits, min(1.0, seconds))
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in submits}
        for _ in range(rounds):
            for name in shuffled(submits):
                rates[name].append(throughput(submits[name], pipeline.items, seconds))
        rate = load * float(np.median(rates[HAND], axis=0)[0])
        tails: dict[str, list[list[float]]] = {name: [] for name in submits}
        for _ in range(rounds):
            due = np.cumsum(rng.exponential(1 / rate, max(20, int(rate * seconds)))).tolist()
            for name in shuffled(submits):
                spent = latencies(submits[name], pipeline.items, due)
                tails[name].append([float(np.quantile(spent, q)) * 1e3 for q in (0.5, 0.99)])
    found: dict[str, Any] = {"tasks": len(want), "load_per_s": rate, "engines": {}}
    for name in submits:
        figures = [*np.median(rates[name], axis=0), *np.median(tails[name], axis=0)]
        found["engines"][name] = dict(zip(FIGURES, map(float, figures), strict=True)) | {
            "rounds": [[*a, *b] for a, b in zip(rates[name], tails[name], strict=True)]
        }
    return found | {"ratios": {name: ratios(found["engines"], name) for name in (HAND, SESSIONS)}}


def warm(pipeline: Pipeline, submits: Mapping[str, Submit], seconds: float) -> list[Any]:
    """Results of all items, which must be the same of all; plans are made meanwhile."""
    found: dict[str, list[Any]] = {}
    for name, submit in submits.items():
        made = [future.result() for future in [submit(item) for item in pipeline.items]]
        found[name] = [pipeline.result(x) if name == FLOW else x for x in made]
        throughput(submit, pipeline.items, seconds)  # batches of other sizes
    for name, texts in found.items():
        different = sum(a != b for a, b in zip(texts, found[HAND], strict=True))
        if different:
            raise SystemExit(f"{name}: {different} of {len(texts)} results differ from those of {HAND}")
    return found[HAND]


def shuffled(names: Mapping[str, Any]) -> list[str]:
    return random.sample(list(names), len(names))


def ratios(engines: Mapping[str, Any], name: str) -> dict[str, float]:
    """Of Flow to another."""
    return {key: engines[FLOW][key] / engines[name][key] for key in FIGURES}


# --- reporting -------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> str:
    """Markdown: a row for each pipeline and contestant."""
    machine, load = found["machine"], found["load"]
    out = [
        f"Two processors of a machine with {machine['processor']}, whose load was {machine['load_at_start']:.1f} "
        f"at first; {found['rounds']} rounds of {found['seconds']:g} s. "
        f"Latency is at {100 * load:.0f} % of what onnxruntime by hand can do.", "",
        "| pipeline | program | tasks a second | processor ms a task | p50 ms | p99 ms |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for pipeline, case in found["pipelines"].items():
        for name, row in case["engines"].items():
            ratio = "" if name == FLOW else f" (Flow: {case['ratios'][name]['per_s']:.2f} times)"
            times = f"{row['work_ms']:.1f} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f}"
            out.append(f"| {pipeline} | {NAMES[name]} | {row['per_s']:.1f}{ratio} | {times} |")
    return "\n".join(out)


def met(found: Mapping[str, Any]) -> dict[str, bool]:
    """Which bars are met, by pipeline."""
    rows = {name: case["ratios"][HAND] for name, case in found["pipelines"].items()}
    fast = {f"{n}: throughput": r["per_s"] >= BARS["throughput"] for n, r in rows.items()}
    return fast | {f"{n}: p99": r["p99_ms"] <= BARS["p99"] for n, r in rows.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.flow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipelines", nargs="*", metavar="PIPELINE", help=f"of {', '.join(PIPELINES)}; none: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--load", type=float, default=LOAD, help="share of the capacity of onnxruntime by hand")
    parser.add_argument("-o", dest="output", type=Path, help="write JSON")
    parser.add_argument("--show", type=Path, help="print a result, measure nothing")
    parser.add_argument("--page", type=Path, help="write the table into the generated part of this page")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.pipelines if name not in PIPELINES]:
        parser.error(f"pipelines: got {unknown}, wanted some of {list(PIPELINES)}")
    found = json.loads(given.show.read_text()) if given.show else run(given)
    sys.stdout.write(table(found) + "\n" + json.dumps(met(found), indent=1) + "\n")
    if given.output:
        given.output.write_text(json.dumps(found, indent=1, default=lambda x: round(float(x), 3)) + "\n")
    if given.page:
        fill(given.page, {"flow": table(found)})
    return 0


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure what was asked for."""
    from bench.run import machine

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:WORKERS])
    ocr.SHORT_SIDE = SHORT_SIDE
    found: dict[str, Any] = {"machine": machine(), "rounds": given.rounds, "seconds": given.seconds, "load": given.load}
    names = given.pipelines or list(PIPELINES)
    cases = {name: measured(PIPELINES[name](), given.rounds, given.seconds, given.load) for name in names}
    return found | {"pipelines": cases}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
