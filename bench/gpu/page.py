"""Results of a run as tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.report import markdown as table


def markdown(results: dict[str, Any]) -> str:
    """One page with a table for each part."""
    described = results.get("describe") or {}
    lines = ["# Results on a GPU", ""]
    if described.get("simulated"):
        lines += ["A simulated GPU ran this, to see that it works: times are not those of any GPU.", ""]
    lines += [*(f"- {key}: {value}" for key, value in described.items()), f"- seconds: {results.get('took_s')}"]
    lines += [f"- left out for lack of time: {', '.join(results['left_out'])}"] if results.get("left_out") else []
    launches = results.get("launches") or {}
    if "empty" in launches:
        rows = [*launches["empty"], *launches["plans"]]
        lines += ["", "## launches", "", table([_LAUNCH_HEAD, *map(_launch_cells, rows)]), ""]
    checks = results.get("checks")
    if checks:
        lines.append(f"- kernels: {checks}")
    for family in ("product", "convolution", "attention", "memory"):
        rows = results.get(family)
        if isinstance(rows, list):
            lines += ["", f"## {family}", "", table([_HEAD, *map(_cells, rows)])]
    models = results.get("models")
    if isinstance(models, list):
        lines += ["", "## models", "", table([_MODEL_HEAD, *map(_model_cells, models)])]
    return "\n".join(lines) + "\n"


_HEAD = ["Case", "us", "TFLOP/s or GB/s", "Library, us", "Ratio", "Bar", "Of a copy", "Difference", "Runner"]
_MODEL_HEAD = [
    "Model", "us, host to host", "us, on the GPU", "us, steps", "torch eager", "compile", "graph", "Start, s",
    "Difference", "On the CPU",
]  # fmt: skip


_LAUNCH_HEAD = ["What", "Launches", "us of the host", "us of the GPU", "us of the host, a launch", "Bar"]


def _launch_cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"][:100], *[""] * 4]
    host, count = row["host_s"], row["launches"]
    each = host if host is None else host / max(count, 1)
    return [row["name"], str(count), _time(host), _time(row["device_s"]), _time(each), _number(row.get("bar_s"), 1e6)]


def _time(seconds: float | None) -> str:
    return "n/a on the simulator" if seconds is None else _number(seconds, 1e6, 2)


def _number(value: Any, scale: float = 1.0, digits: int = 1) -> str:
    return f"{value * scale:.{digits}f}" if isinstance(value, (int, float)) else ""


def _cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"][:100], *[""] * 7]
    rate = _number(row.get("rate"), 1e-12 if row["unit"] == "flop" else 1e-9)
    return [
        row["name"], _time(row.get("seconds")), rate, _number(row.get("peer_seconds"), 1e6),
        _number(row.get("ratio"), digits=2), _number(row["bar"], digits=2), _number(row.get("of_copy"), digits=2),
        f"{row['difference']:.1e}" if "difference" in row else "", row["runner"],
    ]  # fmt: skip


def _model_cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"][:100], *[""] * 8]
    torch = row.get("torch", {})
    ways = [_number(torch.get(way), 1e6) for way in ("eager", "compile", "graph")]
    numbers = [_time(row.get(key)) for key in ("seconds", "resident_s", "device_s")]
    start = _number(row.get("start_s"))
    return [row["name"], *numbers, *ways, start, f"{row['difference']:.1e}", str(len(row["on_cpu"]))]


def plots(results: dict[str, Any], folder: Path) -> None:
    """Bars of our speed over the library's, a picture a family; none where there is nothing to compare."""
    for family in ("product", "convolution", "attention", "memory"):
        rows = [r for r in results.get(family, []) if isinstance(r, dict) and "ratio" in r]
        if not rows:
            continue
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 0.4 * len(rows) + 1))
        axes = figure.subplots()
        axes.barh([r["name"] for r in rows], [r["ratio"] for r in rows], color="tab:blue")
        axes.plot([r["bar"] for r in rows], range(len(rows)), "k|", markersize=12, label="bar")
        axes.axvline(1.0, color="gray", linewidth=0.8)
        axes.set_xlabel("speed, library = 1")
        axes.invert_yaxis()
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"{family}.png", dpi=120)
