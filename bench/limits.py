"""What limits each model: ``python -m bench.limits --models main [--threads 1] [--precision bf16]``.

Steps by their profile in groups: products (bounded by the arithmetic peak), depthwise convolutions (nine to twenty-five
multiply-adds for each value read), steps that are both, the rest (bounded by the caches' or the memory's bandwidth).
Operations are counted without tricks, so Winograd passes 100 %.  Least: the longer of the arithmetic at the peak and,
where the weights do not fit the caches, reading them once at the copy bandwidth.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bolt_numba as bn
from bench.arithmetic import copy_bandwidth, work
from bench.measure import interleave
from bench.page import fill
from bench.peak import bf16_peak_gflops, peak_gflops
from bench.report import markdown, text
from bench.run import Entry, chosen, entries
from bolt_numba.runtime.reports.profile import Row

CACHE_MB = 32.0
"""Weights up to this size are taken to stay in the last cache between runs."""
PRODUCTS = ("Conv", "MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "RNN")


COUNTED = ("product", "depthwise", "both")
"""Groups whose operations are counted."""


def group(row: Row) -> str:
    """Product, depthwise, both in one step, or rest."""
    if "depthwise" in row.runner:
        return "both" if "+" in row.runner else "depthwise"
    return "product" if any(word in row.op for word in PRODUCTS) else "rest"


@dataclass(frozen=True, slots=True)
class Machine:
    """GFLOP/s of all used cores, GB/s of a copy."""

    gflops: float
    copy_gb_s: float


def quickest(profiles: Sequence[Sequence[Row]]) -> list[Row]:
    """The steps with the shortest time of each: other work on the machine only makes them longer."""
    return [min(same, key=lambda row: row.seconds) for same in zip(*profiles, strict=True)]


def shares(rows: Sequence[Row], whole: float) -> dict[str, float]:
    """Seconds of each group, and of what a run of ``whole`` seconds spends between steps."""
    found = dict.fromkeys((*COUNTED, "rest"), 0.0)
    for row in rows:
        found[group(row)] += row.seconds
    found["between"] = max(0.0, whole - sum(found.values()))
    return found


def largest(rows: Sequence[Row]) -> str:
    """The operators that cost most outside of products, with their share of the whole."""
    whole = sum(r.seconds for r in rows) or 1.0
    sums: dict[str, float] = {}
    for row in rows:
        if group(row) == "rest":
            sums[row.op] = sums.get(row.op, 0.0) + row.seconds
    top = sorted(sums.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{op} {100 * seconds / whole:.0f} %" for op, seconds in top if seconds > 0.005 * whole)


def line(name: str, entry: Entry, threads: int, precision: str, machine: Machine, runs: int) -> list[str]:
    """One model: time, shares, how near each group is to its limit, the least time."""
    path, feeds = entry.path(), entry.feeds()
    options = {} if precision == "f32" else {"precision": precision}
    session = bn.compile(path, threads=threads, **options)  # type: ignore[arg-type]
    profiles = [session.profile(feeds, runs=1) for _ in range(runs)]
    rows = quickest([p.rows for p in profiles])
    between = min(p.total - sum(row.seconds for row in p.rows) for p in profiles)
    plain = interleave({"": lambda: session.run(None, feeds)}, turns=3, turn_s=0.05)[""].best
    whole = min(plain, sum(row.seconds for row in rows) + max(0.0, between))
    spent = shares(rows, whole)
    cost = work(path, feeds)
    cells = [name, f"{whole * 1e3:.4g}", *(f"{100 * spent[kind] / whole:.0f}" for kind in COUNTED)]
    used = sum(spent[kind] for kind in COUNTED)
    cells.append(f"{100 * float(cost['gflop']) / used / machine.gflops:.0f}" if cost["gflop"] else "-")
    cells += [f"{100 * spent['rest'] / whole:.0f}", f"{100 * spent['between'] / whole:.0f}", largest(rows)]
    reading = float(cost["mb"] or 0.0)
    bounds = [reading / machine.copy_gb_s if reading > CACHE_MB else 0.0]
    bounds += [1e3 * float(cost["gflop"]) / machine.gflops] if cost["gflop"] else []
    return [*cells, f"{max(bounds):.3g}" if any(bounds) else "-"]


HEAD = ["model", "ms", "products %", "depthwise %", "both %", "of peak %", "rest %", "between %"]
HEAD += ["most of the rest", "least ms"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.limits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="main", help="as of bench.run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--page", type=Path, help="write the table into the part `limits` of this page")
    args = parser.parse_args(argv)
    peak = peak_gflops if args.precision == "f32" else bf16_peak_gflops
    machine = Machine(peak() * args.threads, copy_bandwidth(args.threads))
    known = entries()
    names = chosen(args.models)
    table = [HEAD, *(line(n, known[n], args.threads, args.precision, machine, args.runs) for n in names)]
    form = markdown if args.markdown else text
    head = f"{args.threads} thread(s): {machine.gflops:.0f} GFLOP/s, copy {machine.copy_gb_s:.0f} GB/s; load average "
    head += f"{os.getloadavg()[0]:.1f} at the end. Each step at its quickest."
    sys.stdout.write(f"{head}\n\n{form(table)}\n")
    if args.page is not None:
        fill(args.page, {"limits": f"{head}\n\n{markdown(table)}"})


if __name__ == "__main__":
    main()
