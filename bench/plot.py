"""Pictures of a result of `bench.run`: ``python -m bench.plot results.json --folder docs`` (needs matplotlib).

``bars.png``: for each model the best peer's time over ours, and every other peer's.  ``roofline.png``: what we and the
best peers reach, under the limits of the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import NO_PEERS, OURS, Row, best_peer, cases, ratio

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0", "#e377c2")
INK, FAINT = "#222222", "#cccccc"
Result = Mapping[str, Any]


def canvas(columns: int, width: float, height: float) -> tuple[Any, Any, Any]:
    """Pyplot, a figure and its axes in a row, without frames."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    matplotlib.rcParams.update({"font.size": 9, "text.color": INK, "axes.edgecolor": FAINT, "axes.labelcolor": INK})
    figure, axes = plt.subplots(1, columns, figsize=(width, height), sharey=True, squeeze=False, layout="constrained")
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return plt, figure, axes[0]


def peers_of(result: Result) -> list[str]:
    return list(dict.fromkeys(r["peer"] for r in result["rows"] if r["peer"] not in NO_PEERS and "median_ms" in r))


def bars(result: Result, target: Path) -> None:
    """A panel for each number of threads; a bar to the best peer, a dot for each peer."""
    found, low, high = cases(result["rows"]), 0.6, 2.6
    threads = sorted({count for _, count in found})
    models = list(dict.fromkeys(model for model, _ in found))
    colour = dict(zip(peers_of(result), COLOURS * 2, strict=False))
    plt, figure, axes = canvas(len(threads), 5.2 * len(threads), 1.2 + 0.27 * len(models))
    for ax, count in zip(axes, threads, strict=True):
        for y, model in enumerate(models):
            engines = found.get((model, count), {})
            best = best_peer(engines)
            factor = ratio(engines, best)
            if best is None or factor is None:
                continue
            ax.barh(y, max(factor, low) - 1, left=1, height=0.62, color=colour[best], alpha=0.35)
            ax.annotate(f"{factor:.2f}", (max(min(factor, 1), low) - 0.015, y), va="center", ha="right", size=7)
            for peer in engines:
                value = None if peer == OURS else ratio(engines, peer)
                if value is not None:
                    mark = "<" if value < low else ">" if value > high else "o"
                    ax.plot(min(max(value, low), high), y, mark, color=colour[peer], ms=4.5, clip_on=False)
        ax.axvline(1, color=INK, lw=0.8)
        ax.set(xlim=(low, high), title=f"{count} thread{'s' * (count > 1)}", xlabel="peer's time / bolt-numba's time")
        ax.set_yticks(range(len(models)), models)
        ax.tick_params(left=False)
        ax.grid(axis="x", color=FAINT, lw=0.4)
    axes[0].invert_yaxis()
    dots = [plt.Line2D([], [], marker="o", ls="", color=c, label=p) for p, c in colour.items()]
    figure.legend(handles=dots, loc="outside lower center", ncols=len(dots), frameon=False)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def point(row: Row) -> tuple[float, float] | None:
    """Operations per byte when every weight, input and result is touched once, and GFLOP/s reached."""
    if not row.get("gflop"):
        return None
    return 1e3 * row["gflop"] / row["mb"], 1e3 * row["gflop"] / row["median_ms"]


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Places in the order of ``values``, at least ``gap`` apart, each group of near ones around its middle."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    groups: list[list[int]] = []
    middles: list[float] = []
    for i in order:
        groups.append([i])
        middles.append(values[i])
        while len(groups) > 1 and middles[-1] - middles[-2] < gap * (len(groups[-1]) + len(groups[-2])) / 2:
            groups[-2:] = [groups[-2] + groups[-1]]
            middles[-2:] = [sum(values[j] for j in groups[-1]) / len(groups[-1])]
    places = list(values)
    for group, middle in zip(groups, middles, strict=True):
        for rank, i in enumerate(group):
            places[i] = middle + gap * (rank - (len(group) - 1) / 2)
    return places


def roofline(result: Result, target: Path) -> None:
    """A panel for each number of threads; a line from the best peer to us."""
    machine = result["machine"]
    found = cases(result["rows"])
    threads = sorted({count for _, count in found})
    plt, figure, axes = canvas(len(threads), 6.2 * len(threads), 6.0)
    for ax, count in zip(axes, threads, strict=True):
        peak, copy = machine["peak_gflops"] * count, machine["copy_gb_s" if count == 1 else "copy_gb_s_2"]
        xs = [0.3, peak / copy, 4000]
        ax.plot(xs, [min(peak, x * copy) for x in xs], color=INK, lw=1)
        ax.annotate(f"{peak:.0f} GFLOP/s", (0.32, peak), va="bottom", size=8)
        ax.annotate(f"copy, {copy:.0f} GB/s", (0.32, 0.34 * copy), va="bottom", size=8)
        named: list[tuple[str, tuple[float, float]]] = []
        for (model, own), engines in found.items():
            ours, best = engines.get(OURS), best_peer(engines)
            here = None if own != count or ours is None else point(ours)
            if here is None:
                continue
            if best is not None and (there := point(engines[best])) is not None:
                ax.plot([here[0], there[0]], [here[1], there[1]], color=FAINT, lw=1.2, zorder=1)
                ax.plot(*there, "o", color="#9498a0", ms=4, zorder=2)
            ax.plot(*here, "o", color=COLOURS[0], ms=5, zorder=3)
            named.append((model, here))
        for (model, here), place in zip(named, spread([math.log10(y) for _, (_, y) in named], 0.05), strict=True):
            leader = {"arrowstyle": "-", "color": FAINT, "lw": 0.5, "shrinkB": 3}
            ax.annotate(model, here, xytext=(5000, 10**place), size=7, va="center", arrowprops=leader, zorder=0)
        ax.axhline(peak, color=INK, lw=0.4, ls=":", xmax=0.4)
        ax.set(xscale="log", yscale="log", xlim=(0.25, 60000), title=f"{count} thread{'s' * (count > 1)}",
               xlabel="FLOP per byte, everything touched once", ylabel="GFLOP/s")  # fmt: skip
        ax.grid(color=FAINT, lw=0.3)
    dots = [("bolt-numba", COLOURS[0]), ("best peer", "#9498a0")]
    handles = [plt.Line2D([], [], marker="o", ls="", color=c, label=label) for label, c in dots]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    args = parser.parse_args(argv)
    result = json.loads(args.result.read_text(encoding="utf-8"))
    for draw in (bars, roofline):
        target = args.folder / f"{draw.__name__}.png"
        draw(result, target)
        sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
