"""Models cut between devices: all on each, and split at random, must give what our CPU gives.

    python -m bench.halves --devices openvino,onnxruntime --seeds 2 mobilenet_v2 bert
    make plugins

A model is a file, or a name of `bench.zoo` or `bench.models`; all of them where none is named, but for those whose
weights are all alike: there a softmax of numbers beyond 1e9 shows nothing but how they were rounded.  Splits are by the
nodes at the stage "partition": each goes to one of the devices or stays, by chance.  The error is that of
`bench.plugins`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import bolt_numba as bn
from bench.models import MODELS
from bench.plugins import error_of, source
from bench.zoo import ZOO
from bolt_numba.ir.graph import Graph
from bolt_numba.passes.partition.placement import line_of
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.sessions.guesses import model_feeds

TOLERANCE = 1e-3


def names() -> list[str]:
    """All models whose results mean something, once."""
    real = [name for name, model in MODELS.items() if model.family == "real" and name not in ZOO]
    return [*real, *(name for name in ZOO if not name.endswith("_b8"))]


def split(graph: Graph, devices: Sequence[str], seed: int) -> str:
    """Lines of a placement that send each node somewhere by chance.  graph: as it is before it is partitioned."""
    rng = random.Random(seed)
    targets = [*devices, "off"]
    return "\n".join(f"{line_of(node)} -> {rng.choice(targets)}" for node in graph.nodes)


def placements(model: Any, devices: Sequence[str], seeds: int) -> Iterator[tuple[str, list[str], str | None]]:
    """What to try: a name, the devices of the session, and where nodes go."""
    for device in devices:
        yield f"all on {device}", [device, "cpu"], None
    graph = run_pipeline(model, until="quantise")
    for seed in range(seeds):
        yield f"split {seed}", [*devices, "cpu"], split(graph, devices, seed)


Trial: TypeAlias = tuple[str, float, int, list[str]]


def compared(name: str, devices: Sequence[str], seeds: int, threads: int) -> Iterator[Trial]:
    """For each placement of a model: its name, the error, how many parts, and what was computed by ourselves, why."""
    path, feeds = (ZOO[name].path(), ZOO[name].feeds()) if name in ZOO else source(name)
    model = bn.load(path)
    with bn.compile(model, threads=threads) as ours:
        given = dict(feeds or model_feeds(ours.graph, None))
        wanted = ours(**given)
    for label, order, placement in placements(model, devices, seeds):
        with bn.compile(model, threads=threads, device=order, placement=placement) as session:
            error = error_of(session(**given), wanted)
            report = session.report()
            parts = {(row["device"], row["part"]) for row in report.placed if row["device"] in devices}
            failed = [reason for row in report for reason in row.get("fallbacks", ())]
            yield label, error, len(parts), sorted(set(failed))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.halves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="files or names; all that there are where none is named")
    parser.add_argument("--devices", default="openvino,onnxruntime")
    parser.add_argument("--seeds", type=int, default=2, help="how many random splits of each model")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    wrong = 0
    for name in given.models or names():
        start = time.perf_counter()
        try:
            for label, error, parts, failed in compared(name, given.devices.split(","), given.seeds, given.threads):
                bad = error > TOLERANCE or bool(failed)
                wrong += bad
                line = f"{name:24} {label:20} parts {parts:3}  error {error:.1e}{'  <--' if bad else ''}"
                sys.stdout.write("\n".join([line, *(f"    {reason}" for reason in failed)]) + "\n")
        except Exception as error:  # one model that is not there must not hide the others
            wrong += 1
            sys.stdout.write(f"{name:24} {type(error).__name__}: {error}\n")
        sys.stdout.write(f"{name:24} {time.perf_counter() - start:.1f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"{wrong} wrong\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
