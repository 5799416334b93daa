"""What changed between two results of `bench.run`: ``python -m bench.compare before.json after.json``.

Times are told relative to a peer measured in the same file (onnxruntime), so that a slower moment of the machine does
not look like a change; a change of the peer itself is told too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import Row, cases, text

FIGURES = {"load_s": "load", "first_s": "first run", "peak_rss_mib": "peak RSS"}


def timings(engines: Mapping[str, Row], judge: str) -> Iterator[tuple[str, str, float]]:
    """Engine, figure and value; latency in units of the judge's where it was measured."""
    unit = engines.get(judge)
    for peer, row in engines.items():
        if unit is not None and peer != judge:
            yield peer, f"time / {judge}", row["median_ms"] / unit["median_ms"]
        else:
            yield peer, "time, ms", row["median_ms"]
        for key, label in FIGURES.items():
            if row.get(key) is not None:
                yield peer, label, row[key]


def changes(before: Mapping[str, Any], after: Mapping[str, Any], least: float, judge: str) -> list[list[str]]:
    """Model, threads, engine, figure, both values and the factor, for figures that changed by more than ``least``."""
    old, new = cases(before["rows"]), cases(after["rows"])
    lines: list[tuple[float, list[str]]] = []
    for case in [c for c in new if c in old]:
        known = {(peer, label): value for peer, label, value in timings(old[case], judge)}
        for peer, label, value in timings(new[case], judge):
            was = known.get((peer, label))
            if not was or abs(value / was - 1) <= least:
                continue
            cells = [case[0], str(case[1]), peer, label, f"{was:.4g}", f"{value:.4g}", f"{value / was:.2f}"]
            lines.append((value / was, cells))
        for peer in new[case]:
            agreed = [c[case][peer].get("agrees") for c in (old, new) if peer in c[case]]
            if len(agreed) == 2 and agreed[0] != agreed[1]:
                lines.append((0.0, [case[0], str(case[1]), peer, "agrees", str(agreed[0]), str(agreed[1]), "-"]))
    return [cells for _, cells in sorted(lines, key=lambda line: line[0])]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--least", type=float, default=0.05, help="smallest change that is told")
    parser.add_argument("--judge", default="onnxruntime", help="engine whose time is the unit")
    args = parser.parse_args(argv)
    before, after = (json.loads(p.read_text(encoding="utf-8")) for p in (args.before, args.after))
    found = changes(before, after, args.least, args.judge)
    head = ["model", "threads", "engine", "figure", "before", "after", "after / before"]
    sys.stdout.write((text([head, *found]) if found else f"nothing changed by more than {args.least:.0%}") + "\n")


if __name__ == "__main__":
    main()
