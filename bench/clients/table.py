"""The page of the clients: one row a client, the geometric mean below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import geometric_mean
from bench.report import markdown

Entry = Mapping[str, Any]
HEADINGS = (
    "Package", "What it does", "Ratio, one thread", "ms, one thread", "Ratio, own threads", "Engine's share",
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
        one, own, share, start = (entry.get(key) for key in ("one", "own", "share", "start_s"))
        rows.append([
            entry["name"], entry["does"], f"{one['ratio']:.2f}" if one else "",
            f"{one['onnxruntime_ms']:.2f} → {one['here_ms']:.2f}" if one else "", f"{own['ratio']:.2f}" if own else "",
            f"{share['here']:.0%}" if share else "",
            f"{start['onnxruntime']:.1f} → {start['here']:.1f}" if start else "",
            *([f"{entry['cold_s']:.0f}" if "cold_s" in entry else ""] if cold else []),
        ])  # fmt: skip
    return rows


def means(entries: Sequence[Entry]) -> str:
    ran = [entry for entry in entries if "error" not in entry]
    said = [f"{len(ran)} of {len(entries)} scenarios ran and agreed."]
    for mode, words in (("one", "with one thread"), ("own", "with the threads that each package chooses")):
        ratios = [entry[mode]["ratio"] for entry in ran if mode in entry]
        if ratios:
            said.append(f"The geometric mean of {len(ratios)} ratios is {geometric_mean(ratios):.2f} {words}.")
    return " ".join(said)


def parts(entries: Sequence[Entry]) -> dict[str, str]:
    """The parts of docs/clients.md that are made from results."""
    return {"clients": markdown(table(entries)), "means": means(entries)}
