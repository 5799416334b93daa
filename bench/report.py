"""Tables of a result of `bench.run`, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.measure import geometric_mean

OURS = "bolt"
NO_PEERS = (OURS, "bolt_strict", "bolt_before", "canary")
"""Not counted among those that we are compared with."""

Row = Mapping[str, Any]
Table = list[list[str]]


def cases(rows: Iterable[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    """Rows by model and threads, then by engine; without those that have no time."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        if "median_ms" in row:
            found.setdefault((row["model"], row["threads"]), {})[row["peer"]] = row
    return found


def best_peer(engines: Mapping[str, Row]) -> str | None:
    """The fastest engine besides ours whose result agrees."""
    able = [p for p, r in engines.items() if p not in NO_PEERS and r.get("agrees")]
    key = "best_ms" if any(engines[p]["noisy"] for p in able) else "median_ms"
    return min(able, key=lambda p: float(engines[p][key]), default=None)


def ratio(engines: Mapping[str, Row], peer: str | None) -> float | None:
    """The peer's time over ours; None where one is absent or a result is wrong.

    Medians of turns; where one of the two was disturbed in nearly all its turns, the best calls.
    """
    if peer is None or OURS not in engines or peer not in engines:
        return None
    if not (engines[OURS].get("agrees") and engines[peer].get("agrees")):
        return None
    key = "best_ms" if engines[peer]["noisy"] or engines[OURS]["noisy"] else "median_ms"
    return float(engines[peer][key] / engines[OURS][key])


def share(row: Row, machine: Row) -> float | None:
    """Part of the arithmetic peak that the model's operations, counted without tricks, come to; Winograd can pass 1."""
    if not row.get("gflop"):
        return None
    peak = machine["peak_bf16_gflops"] if row.get("precision") == "bf16" else machine["peak_gflops"]
    return float(row["gflop"] / row["median_ms"] * 1e3 / (peak * row["threads"]))


def bandwidth_share(row: Row, machine: Row) -> float:
    """Part of the copy bandwidth that touching every weight, input and result once comes to."""
    limit = machine["copy_gb_s"] if row["threads"] == 1 else machine["copy_gb_s_2"]
    return float(row["mb"] / row["median_ms"] / limit)


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def _time(row: Row | None) -> str:
    if row is None:
        return "-"
    mark = "" if row.get("agrees") else " differs"
    return f"{row['median_ms']:.4g}{'*' if row['noisy'] else ''}{mark}"


def latency(result: Mapping[str, Any]) -> Table:
    """Milliseconds, ratio to the best peer, shares of the limits."""
    rows, machine = result["rows"], result["machine"]
    peers = list(dict.fromkeys(r["peer"] for r in rows if r["peer"] != OURS))
    table = [["model", "threads", "bolt ms", *(f"{p} ms" for p in peers), "best peer", "best / bolt"]]
    table[0] += ["% of peak FLOP/s", "% of copy bandwidth"]
    for (model, threads), engines in cases(rows).items():
        ours, best = engines.get(OURS), best_peer(engines)
        line = [model, str(threads), _time(ours), *(_time(engines.get(p)) for p in peers)]
        line += [best or "-", _number(ratio(engines, best))]
        part = None if ours is None else share(ours, machine)
        line += [_number(None if part is None else 100 * part, ".0f")]
        line += ["-" if ours is None else f"{100 * bandwidth_share(ours, machine):.0f}"]
        table.append(line)
    return table


def means(result: Mapping[str, Any]) -> Table:
    """Geometric means of the ratios in each family, with the number of models; disturbed measurements do not count."""
    rows = [r for r in result["rows"] if r.get("noisy") is False]
    found = cases(rows)
    peers = list(dict.fromkeys(r["peer"] for r in rows if r["peer"] not in NO_PEERS))
    groups: dict[tuple[str, int], list[Mapping[str, Row]]] = {}
    for (_, threads), engines in found.items():
        groups.setdefault((next(iter(engines.values()))["family"], threads), []).append(engines)
    table = [["family", "threads", *(f"{p} / bolt" for p in peers), "best / bolt"]]
    for (family, threads), members in groups.items():
        line = [family, str(threads)]
        for peer in [*peers, None]:
            ratios = [ratio(e, best_peer(e) if peer is None else peer) for e in members]
            known = [r for r in ratios if r is not None]
            line.append(f"{geometric_mean(known):.2f} ({len(known)})" if known else "-")
        table.append(line)
    return table


def starts(result: Mapping[str, Any]) -> Table:
    """Import, load, first run, and peak memory of each engine's process."""
    table = [
        ["model", "threads", "engine", "import s", "load s", "first run s", "cold s", "peak RSS MiB", "difference"]
    ]
    for row in result["rows"]:
        if "load_s" not in row:
            continue
        seconds = [_number(row.get(k), ".3f") for k in ("import_s", "load_s", "first_s", "cold_s")]
        rss = _number(row.get("peak_rss_mib"), ".0f")
        gap = _number(row.get("difference"), ".0e")
        table.append([row["model"], str(row["threads"]), row["peer"], *seconds, rss, gap])
    return table


def starts_in_brief(result: Mapping[str, Any]) -> Table:
    """Seconds from nothing to the first result / MiB of memory, of each engine on its fewest threads."""
    found: dict[str, dict[str, Row]] = {}
    for row in result["rows"]:
        if "load_s" in row:
            found.setdefault(row["model"], {}).setdefault(row["peer"], row)
    peers = list(dict.fromkeys(peer for engines in found.values() for peer in engines))
    table = [["model", *peers]]
    for model, engines in found.items():
        table.append([model, *(_start(engines[peer]) if peer in engines else "-" for peer in peers)])
    return table


def _start(row: Row) -> str:
    seconds = sum(row.get(k) or 0.0 for k in ("import_s", "load_s", "first_s"))
    return f"{seconds:.2f} / {_number(row.get('peak_rss_mib'), '.0f')}"


def absent(result: Mapping[str, Any]) -> Table:
    """Engines that did not run a model, and what they said."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in result["rows"]:
        if row.get("error"):
            found.setdefault((row["peer"], row["error"]), set()).add(row["model"])
    return [["engine", "models", "error"], *([p, ", ".join(sorted(m)), e] for (p, e), m in sorted(found.items()))]


def heading(result: Mapping[str, Any]) -> str:
    m = result["machine"]
    versions = {r["peer"]: r["version"] for r in result["rows"] if "version" in r}
    engines = ", ".join(f"{p} {v}" for p, v in versions.items())
    return (
        f"{m['processor']}, {m['cores']} cores, {m['isa']}, {m['date']}: {m['peak_gflops']:.0f} GFLOP/s a core, "
        f"copy {m['copy_gb_s']:.0f} GB/s (two cores {m['copy_gb_s_2']:.0f}); load average at the start "
        f"{m['load_at_start']:.1f}. {engines}. Medians of turns; *: fewer than two turns were "
        "undisturbed; the ratio is then that of the best calls, and the means leave it out."
    )


def text(table: Table) -> str:
    """Columns padded: the first to the left, numbers to the right."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = []
    for line in table:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(table: Table) -> str:
    rule = "|---|" + "---:|" * (len(table[0]) - 1)
    return "\n".join([_bar(table[0]), rule, *map(_bar, table[1:])])


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "/") for c in cells) + " |"


TABLES = (latency, means, starts, absent)


def parts(result: Mapping[str, Any]) -> dict[str, str]:
    """What a page shows of a result, as Markdown."""
    made = {"latency": latency, "means": means, "starts": starts_in_brief, "absent": absent}
    return {"machine": heading(result)} | {name: markdown(make(result)) for name, make in made.items()}


def as_text(result: Mapping[str, Any]) -> str:
    return "\n\n".join([heading(result), *(text(t(result)) for t in TABLES)])


def as_markdown(result: Mapping[str, Any]) -> str:
    return "\n\n".join([heading(result), *(markdown(t(result)) for t in TABLES)])
