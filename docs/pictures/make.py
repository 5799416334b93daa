"""The pictures of README and the site, as SVG: ``python docs/pictures/make.py [profile.json]``.

``what.svg``: how a model runs.  ``speed.svg``: from a result of `bench.run`.  ``profile.svg``: from what
``bolt-numba profile MODEL --json`` prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULT = FOLDER.parents[1] / "bench" / "results" / "2026-11-22-zen4-peers.json"
FAMILIES = ("cnn", "transformer", "recurrent")
INK, SOFT, PAPER, OURS, OTHER = "#1f2937", "#6b7280", "#ffffff", "#4051b5", "#f59e0b"
COLOURS = ("#4051b5", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#84cc16", "#9ca3af")
WIDEST = 3.0
"""Ratios beyond this one end at an arrow."""


def svg(width: int, height: int, parts: Iterable[str], said: str) -> str:
    """A picture on white paper.  said: for those who cannot see it."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">\n<title>{said}</title>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, said: object, **style: object) -> str:
    rest = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in style.items())
    return f'<text x="{x:g}" y="{y:g}"{rest}>{said}</text>'


def box(x: float, y: float, width: float, title: str, lines: Iterable[str], colour: str) -> list[str]:
    lines = list(lines)
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="116" rx="6" fill="{colour}" fill-opacity="0.09" '
        f'stroke="{colour}"/>',
        text(x + width / 2, y + 24, title, text_anchor="middle", font_weight="bold", font_size=14),
    ]
    return parts + [
        text(x + width / 2, y + 48 + 19 * i, line, text_anchor="middle", fill=SOFT) for i, line in enumerate(lines)
    ]


def what() -> str:
    """From files to arrays, in five boxes."""
    boxes = [
        ("model file", ("ONNX, TFLite,", "Caffe, Paddle,", ".bolt"), OTHER),
        ("typed graph", ("checked,", "simplified,", "fused"), OURS),
        ("plan", ("a kernel for each", "node, memory for", "each value"), OURS),
        ("kernels", ("written in Python,", "compiled by Numba,", "kept on disk"), OURS),
        ("arrays", ("NumPy in,", "NumPy out,", "from any thread"), OTHER),
    ]
    parts, width, gap = [], 140, 30
    for i, (title, lines, colour) in enumerate(boxes):
        x = 10 + i * (width + gap)
        parts += box(x, 12, width, title, lines, colour)
        if i:
            line = f"M{x - gap + 4} 70 h{gap - 14} m-7 -6 l7 6 l-7 6"
            parts.append(f'<path d="{line}" fill="none" stroke="{SOFT}" stroke-width="2"/>')
    return svg(840, 140, parts, "A model file becomes a typed graph, a plan, kernels; arrays come out")


def ratios(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(model, onnxruntime's time over ours, the best other engine's over ours), one thread."""
    times: dict[str, dict[str, float]] = {}
    for row in result["rows"]:
        agrees = (row.get("difference") or 0.0) < 0.002
        if row["threads"] == 1 and row["family"] in FAMILIES and "median_ms" in row and agrees:
            times.setdefault(row["model"], {})[row["peer"]] = row["median_ms"]
    found = []
    for model, ms in times.items():
        others = [v for k, v in ms.items() if not k.startswith("bolt")]
        found.append((model, ms["onnxruntime"] / ms["bolt"], min(others) / ms["bolt"]))
    return found


def speed(result: dict[str, Any]) -> str:
    """A row for each model: how much longer onnxruntime takes, and the quickest of all others."""
    rows, left, unit, high = ratios(result), 160, 200.0, 23
    bottom = 52 + high * len(rows)

    def at(ratio: float) -> float:
        return left + unit * (min(ratio, WIDEST) - 0.5)

    parts = [text(16, 26, "Time of other engines, ours = 1 (one thread, f32)", font_weight="bold", font_size=14)]
    for mark in (0.5, 1, 1.5, 2, 2.5, 3):
        stroke = INK if mark == 1 else "#e5e7eb"
        parts.append(f'<path d="M{at(mark):g} 40 V{bottom}" stroke="{stroke}"/>')
        parts.append(text(at(mark), bottom + 18, f"{mark:g}", text_anchor="middle", fill=SOFT, font_size=12))
    for i, (model, runtime, best) in enumerate(rows):
        y = 56 + high * i
        parts.append(text(left - 8, y + 4, model, text_anchor="end", font_size=12))
        line = f"M{at(1):g} {y} H{at(runtime):g}"
        parts.append(f'<path d="{line}" stroke="{OURS}" stroke-width="9" stroke-opacity="0.3"/>')
        parts.append(f'<circle cx="{at(runtime):g}" cy="{y}" r="5" fill="{OURS}"/>')
        parts.append(f'<circle cx="{at(best):g}" cy="{y}" r="5" fill="{OTHER}"/>')
        if runtime > WIDEST:
            parts.append(text(at(WIDEST) + 10, y + 4, f"more than {WIDEST:g}", font_size=12))
    y = bottom + 42
    parts += [f'<circle cx="{left}" cy="{y - 4}" r="5" fill="{OURS}"/>', text(left + 10, y, "onnxruntime")]
    parts += [f'<circle cx="{left + 130}" cy="{y - 4}" r="5" fill="{OTHER}"/>']
    parts += [text(left + 140, y, "the quickest of onnxruntime, OpenVINO, ncnn, MNN, LiteRT")]
    machine = result["machine"]
    parts.append(text(16, y + 26, f"{machine['processor']} (Zen 4), {machine['date']}; python -m bench.run", fill=SOFT))
    return svg(760, y + 40, parts, "Ratios of times of other engines to ours, for each model")


def profile(found: dict[str, Any], said: str) -> str:
    """One run as a band of its steps, and a row for each operator."""
    sums: dict[str, float] = {}
    for row in found["rows"]:
        sums[row["op"]] = sums.get(row["op"], 0.0) + row["seconds"]
    order = sorted(sums, key=lambda op: -sums[op])[: len(COLOURS) - 1]
    colour = {op: COLOURS[i] for i, op in enumerate(order)}
    whole, x = sum(sums.values()), 16.0
    title = f"{said}: {whole * 1e3:.1f} ms in {len(found['rows'])} steps"
    parts = [text(16, 26, title, font_weight="bold", font_size=14)]
    for row in found["rows"]:
        width = 688 * row["seconds"] / whole
        fill = colour.get(row["op"], COLOURS[-1])
        place = f'x="{x:.2f}" y="40" width="{width:.2f}" height="44"'
        parts.append(f'<rect {place} fill="{fill}" stroke="{PAPER}" stroke-width="0.4"/>')
        x += width
    for i, op in enumerate(order):
        y, share = 108 + 22 * i, sums[op] / whole
        parts.append(text(120, y + 4, op, text_anchor="end", font_size=12))
        parts.append(f'<rect x="130" y="{y - 7}" width="{max(480 * share, 1):.1f}" height="14" fill="{colour[op]}"/>')
        parts.append(text(138 + 480 * share, y + 4, f"{sums[op] * 1e6:,.0f} us, {share:.1%}", fill=SOFT, font_size=12))
    return svg(720, 116 + 22 * len(order), parts, "A run as a band of its steps, and the time of each operator")


def main() -> None:
    (FOLDER / "what.svg").write_text(what())
    (FOLDER / "speed.svg").write_text(speed(json.loads(RESULT.read_text())))
    for path in sys.argv[1:]:
        found = json.loads(Path(path).read_text())
        (FOLDER / "profile.svg").write_text(profile(found, "A line of text, 48 x 320, on one thread"))


if __name__ == "__main__":
    main()
