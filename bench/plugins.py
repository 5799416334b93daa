"""A device beside our CPU: latency and accuracy of models, and the operators that it takes, as its page shows them.

    python -m bench.plugins --device openvino squeezenet my.onnx -o result.json
    python -m bench.plugins --device openvino --operators

A model is a file, or a name of `bench.models` and `bench.zoo`.  Runs are interleaved in one process; what counts is the
ratio.  The error is the greatest difference from our own CPU, as a share of the greatest number of that result.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bench.measure import interleave
from bench.models import MODELS
from bench.report import markdown
from bench.zoo import ZOO
from bolt_numba.ops.registry import OPS
from bolt_numba.passes.partition.marking import refusal
from bolt_numba.plugins import registry
from bolt_numba.plugins.interface import Accelerator
from bolt_numba.sessions.guesses import model_feeds
from bolt_numba.types import Array
from tests.attack.operands import drawn
from tests.cases import CASES
from tests.plugins.drivers import graph_of

DEFAULT = ("digits", "kws_dscnn", "mlp", "mobilenet_v2")
"""Models that are measured where none is named: small ones, whose operators all devices of some use have."""
DIGITS = Path(__file__).parent.parent / "examples" / "digits"


@dataclass
class Row:
    """A model on a device and on our CPU.

    nodes: of the model as it is when parts are cut out; inside: those of them that the device has, in so many parts.
    cpu_ms, device_ms: medians of turns.  error: see above.  fallbacks: why parts were computed by ourselves.
    """

    model: str
    nodes: int
    inside: int
    parts: int
    cpu_ms: float
    device_ms: float
    error: float
    fallbacks: list[str]


def source(name: str) -> tuple[Any, Mapping[str, Array] | None]:
    """A model, and its inputs where they are known."""
    if name == "digits":
        images = np.load(DIGITS / "digits.npz")["image"][:8]
        return DIGITS / "digits.onnx", {"image": (images / 16).astype(np.float32)}
    if name in MODELS:
        return MODELS[name].path(), MODELS[name].feeds()
    if name in ZOO:
        return ZOO[name].path(), ZOO[name].feeds()
    return name, None


def error_of(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """The greatest difference of an element, as a share of the greatest of its result."""
    worst = 0.0
    for name, want in wanted.items():
        if isinstance(want, np.ndarray) and want.size and want.dtype.kind in "fiub":
            most = float(np.abs(want.astype(np.float64)).max())
            worst = max(worst, float(np.abs(got[name].astype(np.float64) - want).max()) / (most or 1.0))
    return worst


def measured(name: str, device: str, properties: Mapping[str, str], threads: int, turns: int) -> Row:
    """Run a model on the device and on our CPU."""
    model, feeds = source(name)
    with bn.compile(model, threads=threads) as ours:
        given = dict(feeds or model_feeds(ours.graph, None))
        options = {"properties": {device: properties}} if properties else {}
        with bn.compile(model, threads=threads, device=[device, "cpu"], **options) as session:
            error = error_of(session(**given), ours(**given))
            times = interleave({"cpu": lambda: ours(**given), "device": lambda: session(**given)}, turns=turns)
            report = session.report()
            inside = [row["part"] for row in report.placed if row["device"] == device]
            failed = [reason for row in report for reason in row.get("fallbacks", ())]
            failed += [reason for row in report.devices for reason in row["failures"]]
            return Row(
                name, len(report.placed), len(inside), len(set(inside)), times["cpu"].median * 1e3,
                times["device"].median * 1e3, error, sorted(set(failed)),
            )  # fmt: skip


def table(rows: Sequence[Row], device: str) -> str:
    """Markdown for the page of the device."""
    head = ["model", f"nodes on {device}", "parts", "CPU, ms", f"{device}, ms", "CPU / device", "error"]
    lines = [
        [r.model, f"{r.inside} of {r.nodes}", str(r.parts), f"{r.cpu_ms:.2f}", f"{r.device_ms:.2f}",
         f"{r.cpu_ms / r.device_ms:.2f}", f"{r.error:.1e}"]
        for r in rows
    ]  # fmt: skip
    return markdown([head, *lines])


def operators(accelerator: Accelerator, names: Iterable[str]) -> str:
    """Markdown: the operators whose cases of tests a device takes, all or some, and why not the others.

    Those count, too, that the device's rules take apart into operators that it has.
    """
    lines = []
    for name in sorted(names):
        taken, whys = 0, Counter[str]()
        for case in drawn(OPS[name]) if OPS[name] in CASES else ():
            graph, _ = graph_of(case, lambda i: i > 0)
            why = refusal(graph.nodes[0], accelerator).partition("; taken apart: ")[0]
            taken += not why
            whys.update([why] if why else [])
        if taken:
            reasons = "; ".join(reason for reason, _ in whys.most_common(2))
            lines.append([f"`{name}`", "some" if whys else "all", reasons])
    return markdown([["operator", "cases", "why not the others"], *lines])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plugins", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"files or names; {', '.join(DEFAULT)} where there are none")
    parser.add_argument("--device", required=True)
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="of the device")
    parser.add_argument("--plugin", metavar="MODULE:CLASS", help="a driver that no installed package announces")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--operators", action="store_true", help="what the device takes, in the place of models")
    parser.add_argument("-o", dest="output", help="also write a JSON file")
    given = parser.parse_args(arguments)
    if given.plugin:
        module, _, name = given.plugin.partition(":")
        registry.register_driver(getattr(importlib.import_module(module), name))
    properties = dict(each.split("=", 1) for each in given.property)
    driver = registry.driver(given.device)
    if driver.missing():
        sys.stdout.write(f"{given.device} is not available: {driver.missing()}\n")
        return 1
    accelerator = registry.opened(driver, registry.settings_of(driver, properties))
    version = accelerator.version
    if given.operators:
        sys.stdout.write(operators(accelerator, OPS) + "\n")
        return 0
    accelerator.close()
    rows = []
    for name in given.models or DEFAULT:
        rows.append(measured(name, given.device, properties, given.threads, given.turns))
        for reason in rows[-1].fallbacks:
            sys.stdout.write(f"{name}: computed by ourselves: {reason}\n")
    sys.stdout.write(table(rows, given.device) + "\n")
    if given.output:
        facts = {"device": given.device, "version": version, "properties": properties, "threads": given.threads}
        facts |= {"processor": platform.processor() or platform.machine(), "rows": [asdict(row) for row in rows]}
        Path(given.output).write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
