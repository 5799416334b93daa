"""The page of the clients: one row a client, the geometric mean below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import geometric_mean
from bench.report import markdown

Entry = Mapping[str, Any]
HEADINGS = (
    "Package", "What it does", "Ratio, one thread", "Ratio, own threads", "ms, own threads", "Engine's share",
    "Warm start, s",
)  # fmt: skip


def table(entries: Sequence[Entry]) -> list[list[str]]:
    """Ratios are onnxruntime's time over ours, of the whole scenario; the share is the engine's part with ours."""
    rows = [list(HEADINGS)]
    cold = any("cold_s" in entry for entry in entries)
    if cold:
        rows[0].append("Cold start, s")
    for entry in entries:
        if "error" in entry:
            rows.append([entry["name"], entry["does"], "fails", *[""] * (len(rows[0]) - 3)])
            continue
        own = entry["own"]
        rows.append([
            entry["name"], entry["does"], f"{entry['one']['ratio']:.2f}", f"{own['ratio']:.2f}",
            f"{own['onnxruntime_ms']:.2f} → {own['here_ms']:.2f}", f"{entry['share']['here']:.0%}",
            f"{entry['start_s']['onnxruntime']:.1f} → {entry['start_s']['here']:.1f}",
            *([f"{entry['cold_s']:.0f}" if "cold_s" in entry else ""] if cold else []),
        ])  # fmt: skip
    return rows


def means(entries: Sequence[Entry]) -> str:
    ran = [entry for entry in entries if "error" not in entry]
    one, own = (geometric_mean([entry[k]["ratio"] for entry in ran]) for k in ("one", "own"))
    return (
        f"{len(ran)} of {len(entries)} ran and agreed. The geometric mean of the ratios is {one:.2f} with one thread "
        f"and {own:.2f} with the threads that each client chooses."
    )


def parts(entries: Sequence[Entry]) -> dict[str, str]:
    """The parts of docs/clients.md that are made from results."""
    return {"clients": markdown(table(entries)), "means": means(entries)}
