"""Runs a float model over data once, and keeps a histogram of every tensor that may be quantised.

The statistics are nodes of the graph that runs, so a run gives a few kilobytes and no tensor.  A histogram spans the
least power of two that its values need.  Where a later run needs more, neighbouring bins are added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bolt_numba.base.errors import DataError, DTypeError
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.histogram import HALF, Histogram, exponent_of
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceMean, ReduceMin
from bolt_numba.ops.pointwise import Abs, Mul
from bolt_numba.quantize.data import Feed
from bolt_numba.quantize.methods import METHODS, TensorStats
from bolt_numba.sessions.session import Session

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told what is done, how many steps of it are behind, and of how many."""
KEPT_SHARE = 0.9
"""Of the moving average of limits, what stays of it at each run."""

__all__ = ["METHODS", "Progress", "Ranges", "calibrate"]


@record()
class Ranges:
    """What calibration found, by tensor.

    means, powers, reaches: average, average square and greatest magnitude of each channel.
    """

    tensors: dict[str, TensorStats]
    means: dict[str, Array]
    powers: dict[str, Array]
    reaches: dict[str, Array]


@record(frozen=True)
class Watched:
    """A tensor to look at.  channel: the axis whose means and greatest magnitudes are wanted, too; None: no such."""

    name: str
    channel: int | None = None


def no_progress(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def calibrate(
    graph: Graph,
    feeds: Sequence[Feed],
    watched: Sequence[Watched],
    *,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Ranges:
    """Statistics of the tensors over one run for each feed.  Raises DataError for a tensor with NaN or infinities."""
    made, parts = _with_statistics(graph, watched)
    found = Ranges({}, {}, {}, {})
    with Session(made, threads=threads, stand_ins=False) as session:
        for number, feed in enumerate(feeds):
            progress("calibrating", number, len(feeds))
            results = session.run(None, feed)
            for tensor, (kind, row) in zip(_names(parts), _rows(parts, results), strict=True):
                _note(found, tensor, kind, row, number)
    progress("calibrating", len(feeds), len(feeds))
    return found


Parts: TypeAlias = list[tuple[str, str, int]]
"""Tensor, kind of statistics, number of results."""


def _with_statistics(graph: Graph, watched: Sequence[Watched]) -> tuple[Graph, Parts]:
    """The graph with nothing but statistics as results."""
    made = graph.clone()
    made.set_outputs([], [])
    by_name: dict[str, Value] = {v.name: v for v in made.values()}
    b, parts = Builder(made), Parts()
    for each in watched:
        x = by_name[each.name]
        low, high = b(ReduceMin(keepdims=False), x), b(ReduceMax(keepdims=False), x)
        results = [low, high, b(Histogram(), x, low, high)]
        parts.append((each.name, "range", 3))
        rank = None if x.type.shape is None else len(x.type.shape)
        if each.channel is not None and rank is not None and rank > 1:
            axes = np.array([a for a in range(rank) if a != each.channel % rank], np.int64)
            mean = ReduceMean(keepdims=False)
            results += [b(mean, x, axes), b(mean, b(Mul(), x, x), axes)]
            results.append(b(ReduceMax(keepdims=False), b(Abs(), x), axes))
            parts.append((each.name, "channels", 3))
        for value in results:
            made.add_output(value, f"statistic {len(made.outputs)}")
    made.drop_dead()
    return made, parts


def _names(parts: Parts) -> list[str]:
    return [name for name, _, _ in parts]


def _rows(parts: Parts, results: Sequence[Array]) -> list[tuple[str, Sequence[Array]]]:
    rows, at = [], 0
    for _, kind, count in parts:
        rows.append((kind, results[at : at + count]))
        at += count
    return rows


def _note(found: Ranges, tensor: str, kind: str, row: Sequence[Array], number: int) -> None:
    """Add what one run says of a tensor."""
    if kind == "range":
        low, high = float(row[0]), float(row[1])
        if low > high:  # no elements
            return
        if not (math.isfinite(low) and math.isfinite(high)):
            raise DataError(f"calibration: sample {number}: tensor {tensor!r}: got NaN or infinity, wanted numbers")
        before = found.tensors.get(tensor)
        now = TensorStats(row[2].astype(np.int64), exponent_of(low, high), low, high, low, high)
        found.tensors[tensor] = now if before is None else merged(before, now)
        return
    if not np.all(np.isfinite(row[1])):
        return
    share = np.float32(1 / (number + 1))
    for averages, value in ((found.means, row[0]), (found.powers, row[1])):
        so_far = averages.get(tensor, value)
        averages[tensor] = so_far + (value - so_far) * share
    found.reaches[tensor] = np.maximum(found.reaches.get(tensor, row[2]), row[2])


def merged(a: TensorStats, b: TensorStats) -> TensorStats:
    """Statistics of both, of which ``b`` is the later."""
    exponent = max(a.exponent, b.exponent)
    return TensorStats(
        widened_to(a, exponent) + widened_to(b, exponent),
        exponent,
        min(a.low, b.low),
        max(a.high, b.high),
        KEPT_SHARE * a.average_low + (1 - KEPT_SHARE) * b.low,
        KEPT_SHARE * a.average_high + (1 - KEPT_SHARE) * b.high,
    )


def widened_to(stats: TensorStats, exponent: int) -> Array:
    """The counts in bins of a greater power of two."""
    times = exponent - stats.exponent
    if not times:
        return stats.counts
    share = 1 << min(times, 12)
    counts = np.zeros_like(stats.counts)
    place = HALF + (np.arange(2 * HALF) - HALF) // share
    np.add.at(counts, place, stats.counts)
    return counts


def estimated(ranges: Mapping[str, tuple[float, float]]) -> Ranges:
    """Ranges that are given, as if all values were spread evenly over them.

    Raises DTypeError and DataError for what is no range.
    """
    if not isinstance(ranges, Mapping):
        raise DTypeError(f"ranges: got {ranges!r:.80}, wanted pairs of numbers by tensor")
    made = Ranges({}, {}, {}, {})
    for name, pair in ranges.items():
        try:
            low, high = map(float, pair)
        except (TypeError, ValueError) as error:
            raise DTypeError(f"ranges: tensor {name!r}: got {pair!r:.80}, wanted two numbers") from error
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise DataError(f"ranges: tensor {name!r}: got {low} to {high}, wanted finite numbers, the lower one first")
        exponent = exponent_of(low, high)
        edges = (np.arange(2 * HALF) - HALF) * math.ldexp(1.0, exponent) / HALF
        counts = ((edges >= low) & (edges <= high)).astype(np.int64)
        made.tensors[name] = TensorStats(counts, exponent, low, high, low, high)
    return made
