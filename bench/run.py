"""Time engines side by side on the model set.

    python -m bench.run --models resnet50,mobilenet_v2 --peers bolt,onnxruntime,openvino --threads 1 2 -o results.json
    python -m bench.run --models main --peers main --threads 1 2 --python PEERS/bin/python -o results.json
    python -m bench.run --show results.json --markdown

Ratios are peer / bolt: above 1, bolt is faster.  Results are compared with those of onnxruntime, or of the engine whose
format the model has; that one is always loaded.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.arithmetic import limits, work
from bench.binary import BINARY
from bench.contest import CORES, Options, Worker, play, start
from bench.convert import converted
from bench.engines import PEERS
from bench.estimators import ML
from bench.foreign import FOREIGN
from bench.others import OTHERS
from bench.page import fill
from bench.quantised import TWINS
from bench.report import as_markdown, as_text, parts
from bench.zoo import ZOO
from bolt_numba.types import Array

REFERENCE = "onnxruntime"
TOLERANCE = {"f32": 2e-3, "f16": 1e-2, "bf16": 5e-2}
"""Largest difference from the reference, relative to the reference's largest value, of a result that agrees."""
NARROW = {"int8": 0.15, "tflite_int8": 0.15, "dynamic": 0.15, "f16": 1e-2, "binary": 0.15}
"""The same for families in fewer bits: a value at a boundary of two levels may become either, layers multiply that."""
RIVALS = ("bolt", "bolt_strict", "onnxruntime", "openvino", "ncnn", "mnn", "litert")
"""``--peers main``: the engines that lead somewhere."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the set.  reference: the peer whose results are the right ones."""

    family: str
    path: Callable[[], Path]
    feeds: Callable[[], dict[str, Array]]
    reference: str = REFERENCE


MAIN = (
    "resnet50", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3_large", "squeezenet", "vgg19", "densenet121", "unet",
    "yolo_n", "bert_base_128", "minilm_32", "minilm_128", "vit_b16", "lstm", "gru", "gru_after", "silero_vad",
    "kws_dscnn", "mlp", "gemm1024",
)  # fmt: skip
"""The models of the main table, batch 1."""


def entries() -> dict[str, Entry]:
    """The zoo, `bench.others`, `bench.binary`, `bench.estimators`, files of `bench.models`, `packages`, `foreign`.

    Those have ``_file`` after a name that the zoo has too.

    Families of files: ``real`` (weights that were learnt), ``light`` (networks of the onnx wheel).
    """
    from bench.models import MODELS
    from bench.packages import PACKAGES, path_of

    rows = {name: Entry(m.family, m.path, m.feeds) for name, m in (ZOO | OTHERS | BINARY | TWINS | ML).items()}
    for name, model in MODELS.items():
        own = f"{name}_file" if name in ZOO else name
        rows[own] = Entry("recurrent" if name == "silero_vad" else model.family, model.path, model.feeds)
    rows |= {name: Entry(m.family, m.path, m.feeds, m.reference) for name, m in FOREIGN.items()}
    for name, held in PACKAGES.items():
        judge = "litert" if name.endswith(".tflite") else REFERENCE
        rows[re.split(r"[./]", name)[0]] = Entry("packages", path_of(name), held.feeds, judge)
    return rows


def difference(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Largest difference over largest value; infinite where shapes differ (what is channels-last is turned)."""
    worst = 0.0
    for ours, reference in zip(found, wanted, strict=False):
        a, b = ours.astype("f8"), reference.astype("f8")
        if a.ndim == b.ndim > 2 and a.shape != b.shape and a.shape == (b.shape[0], *b.shape[2:], b.shape[1]):
            a = np.moveaxis(a, -1, 1)
        if a.size != b.size:
            return float("inf")
        if b.size:
            gap = np.abs(a.reshape(b.shape) - b)
            gap = np.where(np.isnan(a.reshape(b.shape)) & np.isnan(b), 0, gap)
            worst = max(worst, float(gap.max()) / max(float(np.nanmax(np.abs(b))), 1e-30))
    return worst if np.isfinite(worst) else float("inf")


def results_of(worker: Worker, folder: Path) -> list[Array] | str:
    """What one run gives, or the error."""
    path = folder / f"{worker.peer}.npz"
    made = worker.ask(do="save", path=str(path))
    if not made["ok"]:
        return str(made["error"])
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]


def judge(rows: dict[str, dict[str, Any]], workers: dict[str, Worker], folder: Path, reference: str) -> None:
    """Add ``difference`` and ``agrees`` to the rows."""
    wanted = results_of(workers[reference], folder) if reference in workers else f"{reference}: does not run"
    for peer, worker in workers.items():
        found = wanted if peer == reference else results_of(worker, folder)
        if isinstance(found, str):
            rows[peer]["error"] = found
        elif isinstance(wanted, str):
            rows[peer]["agrees"] = None
        else:
            gap = difference(found, wanted)
            tolerance = TOLERANCE[rows[peer]["precision"]]
            tolerance = max(tolerance, NARROW.get(rows[peer]["family"], 0))
            rows[peer] |= {"difference": gap if np.isfinite(gap) else None, "agrees": gap <= tolerance}


@functools.cache
def _work(name: str) -> dict[str, float | None]:
    entry = entries()[name]
    return work(entry.path(), entry.feeds())


def measure(
    name: str, entry: Entry, peers: Sequence[str], threads: int, options: Options, say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """A row for each peer on one model."""
    path, feeds = entry.path(), entry.feeds()
    cost = _work(name)
    rows: dict[str, dict[str, Any]] = {}
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch) / "feeds.npz"
        np.savez(given, **feeds)  # type: ignore[arg-type]
        try:
            for peer in dict.fromkeys([*peers, entry.reference]):
                precision = "f32" if peer == entry.reference else options.precision
                worker, figures = start(peer, path, given, threads, options, precision)
                known = {
                    "model": name,
                    "family": entry.family,
                    "threads": threads,
                    "peer": peer,
                    "precision": precision,
                }
                rows[peer] = {**known, **cost, **figures}
                if worker is not None:
                    workers[peer] = worker
                else:
                    say(f"  {peer}: left out: {figures['error']}")
            judge(rows, workers, Path(scratch), entry.reference)
            for peer, timing in play(workers, threads, options).items():
                rows[peer] |= timing
        finally:
            for worker in workers.values():
                worker.close()
    return list(rows.values())


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    from bench.bars import machine as software

    names = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in names if line.startswith("model name")), "")
    load = os.getloadavg()[0]
    return {**software(), "processor": model, "usable_cores": len(CORES), **limits(), "load_at_start": load}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--models", default="resnet50,mobilenet_v2", help="names with commas, or families, or 'main', or 'all'"
    )
    parser.add_argument("--peers", default="bolt,onnxruntime,openvino", help=f"'main', 'all', or of {', '.join(PEERS)}")
    parser.add_argument("--precision", choices=sorted(TOLERANCE), default="f32", help="of every engine that has it")
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine that count")
    parser.add_argument("--turn-s", type=float, default=0.2)
    parser.add_argument("--patience-s", type=float, default=1.0, help="longest wait for a quiet moment")
    parser.add_argument("--python", nargs="*", default=[], metavar="[PEER=]PATH", help="interpreter of peers")
    parser.add_argument("--converted", type=Path, help="folder of bench.convert (default: its own)")
    parser.add_argument("-o", "--output", type=Path, help="write JSON")
    parser.add_argument("--show", type=Path, help="print a result file, measure nothing")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--page", type=Path, help="write the tables into the generated parts of this page")
    return parser.parse_args(argv)


def chosen(text: str) -> list[str]:
    """Names of models from a list of names and families."""
    known = entries()
    found: list[str] = []
    for word in text.split(","):
        family = list(MAIN) if word == "main" else [n for n, e in known.items() if word in ("all", e.family)]
        if word not in known and not family:
            raise SystemExit(f"--models: got {word!r}, wanted names or families of: {', '.join(known)}")
        found += [word] if word in known else family
    return list(dict.fromkeys(found))


def run(args: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    """Measure everything asked for; the output file is rewritten after every model."""
    named = {"main": RIVALS, "all": [p for p in PEERS if p != "canary"]}
    peers = [p for word in args.peers.split(",") for p in named.get(word, [word])]
    unknown = [p for p in peers if p not in PEERS]
    if unknown:
        raise SystemExit(f"--peers: got {', '.join(unknown)}, wanted some of {', '.join(PEERS)}")
    pythons = dict(p.split("=", 1) if "=" in p else ("*", p) for p in args.python)
    options = Options(
        turns=args.turns, turn_s=args.turn_s, patience_s=args.patience_s, pythons=pythons, precision=args.precision,
        converted=(args.converted or converted()).resolve(),
    )  # fmt: skip
    result: dict[str, Any] = {"machine": machine(), "rows": []}
    known = entries()
    for name in chosen(args.models):
        for threads in args.threads:
            say(f"{time.strftime('%H:%M:%S')} {name}, {threads} thread(s)")
            result["rows"] += measure(name, known[name], peers, threads, options, say)
            if args.output is not None:
                args.output.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    if args.show is not None:
        result = json.loads(args.show.read_text(encoding="utf-8"))
    else:
        result = run(args, lambda line: sys.stderr.write(line + "\n"))
    if args.page is not None:
        fill(args.page, parts(result))
    sys.stdout.write((as_markdown if args.markdown else as_text)(result) + "\n")


if __name__ == "__main__":
    main()
