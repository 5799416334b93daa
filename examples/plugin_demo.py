"""A model on the CPU and on a device, side by side: results, time, and what ran where.

    python examples/plugin_demo.py MODEL --device openvino
    PYTHONPATH=examples/simnpu python examples/plugin_demo.py examples/digits/digits.onnx \
        --device simnpu --plugin simnpu_driver:SimDriver --property chip=sim100

Inputs are random, the same for both.  ``--plugin`` names a driver that no installed package announces.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba.sessions.guesses import model_feeds

BEST = 3
"""Numbers of a result that are shown, the greatest ones."""


def milliseconds(session: bn.Session, feeds: Mapping[str, Any], runs: int) -> float:
    """Median of some runs, behind one that does not count."""
    taken = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        session(**feeds)
        taken.append(time.perf_counter() - start)
    return median(taken[1:]) * 1e3


def greatest(result: Any) -> str:
    """The greatest numbers of a result and where they are."""
    flat = np.asarray(result, np.float64).reshape(-1)
    return "  ".join(f"[{i}] {flat[i]:.4g}" for i in np.argsort(-flat, kind="stable")[:BEST])


def show(device: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Results of both, one above the other, and how far they are apart."""
    for name, wanted in ours.items():
        if isinstance(wanted, np.ndarray) and wanted.size and wanted.dtype.kind in "fiub":
            apart = np.abs(wanted.astype(np.float64) - theirs[name].astype(np.float64)).max()
            print(f"{name} {list(wanted.shape)}: greatest difference {apart:.1e}")
            print(f"  {'CPU':8} {greatest(wanted)}\n  {device:8} {greatest(theirs[name])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", required=True)
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--plugin", metavar="MODULE:CLASS")
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    if given.plugin:
        module, _, name = given.plugin.partition(":")
        bn.plugins.register_driver(getattr(importlib.import_module(module), name))
    properties = {given.device: dict(each.split("=", 1) for each in given.property)}
    with (
        bn.compile(given.model) as cpu,
        bn.compile(given.model, device=[given.device, "cpu"], properties=properties) as both,
    ):
        feeds = model_feeds(cpu.graph)
        took = milliseconds(cpu, feeds, given.runs), milliseconds(both, feeds, given.runs)
        show(given.device, cpu(**feeds), both(**feeds))
        print(f"time of a run: CPU {took[0]:.2f} ms, {given.device} {took[1]:.2f} ms")
        report = both.report()
        for row in report:
            print(
                f"{row['device']:8} {', '.join(row.get('nodes', [row['op']]))}  {row.get('state', '')}".rstrip()
            )
        for row in report.devices:
            print(f"{row['device']}: {row['state']} {row['version']}", *row["failures"])


if __name__ == "__main__":
    main()
