"""What quantisation did: a table and a picture of layers, accuracy, time and size before and after."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.notebook import html_table
from bolt_numba.base.records import record


@record(frozen=True)
class LayerReport:
    """One layer.  SQNR in dB, None where not measured.

    low, high: range of the integers of its input, whose share outside is ``saturated``; weight_sqnr, input_sqnr: of
    weight and input alone; output_sqnr: of the model's outputs with only this layer quantised; saved: seconds.
    """

    name: str
    op: str
    stored: str
    low: float
    high: float
    saturated: float
    weight_sqnr: float | None
    input_sqnr: float | None
    output_sqnr: float | None
    saved: float | None


@record()
class QuantizeReport:
    """All of it; ``before`` and ``after`` of metric, seconds of a run, and bytes of weights."""

    layers: list[LayerReport]
    sqnr: float
    metric_before: float | None
    metric_after: float | None
    seconds_before: float | None
    seconds_after: float | None
    bytes_before: int
    bytes_after: int
    bound_holds: bool
    notes: list[str]
    timed: str = ""
    """What was timed: shapes of inputs, and threads."""

    @property
    def drop(self) -> float | None:
        """Of the metric."""
        if self.metric_before is None or self.metric_after is None:
            return None
        return self.metric_before - self.metric_after

    def rows(self) -> list[tuple[str, ...]]:
        """The table of layers, as texts under `COLUMNS`."""
        return [
            (
                layer.name, layer.op, layer.stored, f"{layer.low:.4g} to {layer.high:.4g}",
                f"{100 * layer.saturated:.3g} %", _decibels(layer.weight_sqnr), _decibels(layer.input_sqnr),
                _decibels(layer.output_sqnr),
            )
            for layer in self.layers
        ]  # fmt: skip

    def summary(self) -> str:
        """The figures of the whole model, one a line."""
        kept = sum(layer.stored == FLOAT for layer in self.layers)
        count = f"{len(self.layers) - kept} of {len(self.layers)} layers quantised"
        unit = " dB" if math.isfinite(self.sqnr) else ""
        lines = [f"{count}, SQNR of the worst output {_decibels(self.sqnr)}{unit}"]
        if self.metric_before is not None and self.metric_after is not None:
            lines.append(f"metric, of which more is better: {self.metric_before:.5g} -> {self.metric_after:.5g}")
        if self.seconds_before is not None and self.seconds_after is not None:
            times = f"{1e3 * self.seconds_before:.3g} ms -> {1e3 * self.seconds_after:.3g} ms"
            lines.append(f"latency {times} ({self.timed})")
        lines.append(f"weights {self.bytes_before / 2**20:.3g} MiB -> {self.bytes_after / 2**20:.3g} MiB")
        if not self.bound_holds:
            lines.append("the bound does not hold, even with all layers in float that would help")
        if self.sqnr < LOW_DB:
            told = f"warning: {_decibels(self.sqnr)} dB is little: min_sqnr={LOW_DB:.0f} (--min-sqnr {LOW_DB:.0f})"
            lines.append(f"{told} keeps the layers in float that cost most")
        return "\n".join([*lines, *self.notes])

    def __str__(self) -> str:
        table = [COLUMNS, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([*lines, "", self.summary()])

    def _repr_html_(self) -> str:
        first, _, rest = self.summary().partition("\n")
        return html_table(first, COLUMNS, self.rows(), COLUMNS[-4:], rest)

    def to_json(self) -> dict[str, Any]:
        names = [n for n in self.__dataclass_fields__ if n != "layers"]
        layers = [{k: _plain(v) for k, v in vars(layer).items()} for layer in self.layers]
        return {**{n: _plain(getattr(self, n)) for n in names}, "layers": layers}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as ``.json``, ``.txt`` or, as a picture, ``.svg``; complete or not at all.

        Raises BoltError for another suffix.
        """
        makers = {
            ".json": lambda: json.dumps(self.to_json(), indent=2),
            ".txt": lambda: f"{self}\n",
            ".svg": self.picture,
        }
        suffix = Path(path).suffix.lower()
        if suffix not in makers:
            raise BoltError(f"{path}: report: got suffix {suffix!r}, wanted one of {', '.join(makers)}")
        with replaced(path) as file:
            file.write(makers[suffix]().encode())

    def picture(self) -> str:
        """SVG: for each layer bars of its SQNR, its range and how much is saturated."""
        return _picture(self.layers)


COLUMNS = ("layer", "operator", "stored", "range", "saturated", "weight dB", "input dB", "output dB")
LOW_DB = 20.0
"""Below this the noise of an output is more than a tenth of it."""
FLOAT = "float"
"""What a layer is stored as that was kept."""


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if math.isfinite(value) else "exact" if value > 0 else "none"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


HEAD, ROW, LEFT, WIDTH, MOST_DB = 38, 22, 260, 240, 80.0
"""Pixels of the headings, of a row, of the names, of a bar as long as ``MOST_DB`` dB."""
BARS = (
    ("weight_sqnr", "weight", "#4477aa"), ("input_sqnr", "input", "#3399bb"),
    ("output_sqnr", "model, this layer alone", "#228833"),
)  # fmt: skip
"""Fields, what a heading calls them, and their colours."""


def _picture(layers: Sequence[LayerReport]) -> str:
    widest = max((max(abs(layer.low), abs(layer.high)) for layer in layers), default=1.0) or 1.0
    legend = ", ".join(f'<tspan fill="{colour}">{what}</tspan>' for _, what, colour in BARS)
    parts = [_text(LEFT, 14, "SQNR in dB"), f'<text x="{LEFT}" y="30">{legend}</text>']
    parts += [_text(LEFT + WIDTH + 20, 14, "range of the input"), _text(LEFT + 2 * WIDTH + 40, 14, "saturated")]
    for i, layer in enumerate(layers):
        top = HEAD + ROW * i
        parts.append(_text(LEFT - 6, top + 14, layer.name[-38:], "end"))
        for j, (field, _, colour) in enumerate(BARS):
            value = getattr(layer, field)
            if value is not None and value > 0:
                parts.append(_bar(LEFT, top + 6 * j, WIDTH * min(value, MOST_DB) / MOST_DB, 5, colour))
        middle, half = LEFT + 1.5 * WIDTH + 20, WIDTH / 2 / widest
        parts.append(_bar(middle + half * layer.low, top + 4, half * (layer.high - layer.low), 10, "#ccbb44"))
        share = f"{100 * layer.saturated:.3g} %"
        parts.append(_text(LEFT + 2 * WIDTH + 40, top + 14, FLOAT if layer.stored == FLOAT else share))
    size = f'width="{LEFT + 2 * WIDTH + 140}" height="{HEAD + 6 + ROW * len(layers)}"'
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
    return f"<svg {style} {size}>\n" + "\n".join(parts) + "\n</svg>\n"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.0f}" fill="{colour}"/>'
