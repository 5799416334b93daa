"""What quantisation does to the results, and which layers to keep in float until that is little enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import BoltError, DTypeError, ShapeError
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.ir.graph import Graph
from bolt_numba.quantize.calibrate import Progress
from bolt_numba.quantize.data import Feed
from bolt_numba.quantize.insert import QuantPlan, with_pairs
from bolt_numba.quantize.layers import QuantLayer
from bolt_numba.sessions.session import Session

Results: TypeAlias = "list[dict[str, Array]]"
Metric: TypeAlias = Callable[[Any], float]
"""From the outputs by name of every feed, in order, to a figure of which more is better."""
FEEDS_ALONE = 8
"""Feeds that each layer alone is judged on."""
TIMED_RUNS = 5
LEAST_SAVING = 0.01
"""Of a layer's time in float, what quantising it saves at the least: timing is noisy, and order needs a number."""


def sqnr(wanted: Array, got: Array) -> float:
    """Signal to quantisation noise in dB: power of the wanted values over that of the error; inf without an error."""
    return ratio(*sqnr_parts(wanted, got))


def accuracy_by(labels: Any) -> Metric:
    """The share of samples whose greatest element of the first output is at the label's place."""
    try:
        wanted = np.asarray(labels)
    except ValueError as error:
        raise DTypeError(f"labels: got lists of different lengths, wanted whole numbers: {error}") from error
    if wanted.dtype.kind not in "iu":
        raise DTypeError(f"labels: got {wanted.dtype}, wanted whole numbers")

    def metric(results: Results) -> float:
        first: list[Any] = [next(iter(r.values())) for r in results]
        for y in first:
            if not isinstance(y, np.ndarray) or not y.ndim or not y.shape[-1]:
                raise ShapeError(f"labels: first output: got {np.shape(y)}, wanted a number for each class, last")
        found = np.concatenate([np.argmax(y, axis=-1).reshape(-1) for y in first])
        if wanted.size < found.size:
            raise ShapeError(f"labels: got {wanted.size}, wanted one for each of {found.size} results")
        return float(np.mean(found == wanted.reshape(-1)[: found.size]))

    return metric


@record(frozen=True)
class QualityBound:
    """What the user asks for: at most such a drop of the metric, or at least such an SQNR of the outputs."""

    max_drop: float | None = None
    min_sqnr: float | None = None

    def holds(self, before: Score, after: Score) -> bool:
        if self.max_drop is not None and before.metric is not None and after.metric is not None:
            return before.metric - after.metric <= self.max_drop + 1e-12
        return self.min_sqnr is None or after.sqnr >= self.min_sqnr


@record(frozen=True)
class Score:
    """How good a graph is: SQNR of its worst output against the float graph's, and the user's metric, if any."""

    sqnr: float
    metric: float | None = None
    remarks: tuple[str, ...] = ()
    """What the SQNR does not say of the outputs."""


class Referee:
    """Compares graphs with the float graph on the same data."""

    def __init__(self, graph: Graph, feeds: Sequence[Feed], metric: Metric | None, threads: int | None) -> None:
        self.graph, self.feeds, self.metric, self.threads = graph, feeds, metric, threads
        self.wanted = self.results(graph, feeds)
        self.before = Score(math.inf, self._metric(self.wanted))

    def results(self, graph: Graph, feeds: Sequence[Feed]) -> Results:
        """Outputs by name, of every feed."""
        with Session(graph, threads=self.threads, stand_ins=False) as session:
            return [dict(session(feed).items()) for feed in feeds]

    def score(self, graph: Graph) -> Score:
        found = self.results(graph, self.feeds)
        return Score(self.worst(found), self._metric(found), tuple(self._remarks(found)))

    def alone(self, graph: Graph) -> float:
        """SQNR of the worst output over a few feeds."""
        return self.worst(self.results(graph, self.feeds[:FEEDS_ALONE]))

    def worst(self, found: Results) -> float:
        """Of the float outputs of as many feeds, the least SQNR."""
        each = [[sqnr_parts(*pair) for pair in pairs] for pairs in self._pairs(found).values()]
        return min((ratio(sum(s for s, _ in parts), sum(e for _, e in parts)) for parts in each), default=math.inf)

    def _pairs(self, found: Results) -> dict[str, list[tuple[Array, Array]]]:
        """Each output of floats by name: the float graph's result and the other's, of as many feeds."""
        outputs: dict[str, Any] = self.wanted[0]
        names = [n for n, a in outputs.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        return {n: [(w[n], f[n]) for w, f in zip(self.wanted, found, strict=False)] for n in names}

    def _remarks(self, found: Results) -> Iterator[str]:
        for name, pairs in self._pairs(found).items():
            if not any(wanted.size for wanted, _ in pairs):
                yield f"warning: output {name!r} is empty for all of the data: nothing of it was compared"
            if others := sum(wanted.shape != got.shape for wanted, got in pairs):
                lost = f"{others} of {len(pairs)} inputs, which count as lost"
                yield f"output {name!r} has another shape than in float for {lost}"

    def _metric(self, found: Results) -> float | None:
        if self.metric is None:
            return None
        value: Any = self.metric(found)
        if not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
            raise BoltError(f"metric: got {value!r:.80}, wanted a finite number")
        return float(value)


def sqnr_parts(wanted: Array, got: Array) -> tuple[float, float]:
    """Power of the wanted values and of the error; results of other shapes have nothing in common."""
    a, b = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    signal = float(np.sum(a * a))
    return (signal, float(np.sum((a - b) ** 2))) if a.shape == b.shape else (signal, signal)


def ratio(signal: float, noise: float) -> float:
    """In dB."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


@record()
class Found:
    """What a search chose: the graph, its score, the layers kept in float, and what each layer alone does (dB)."""

    graph: Graph
    score: Score
    kept: list[QuantLayer]
    alone: dict[str, float]
    saved: dict[str, float]


def sensitivities(graph: Graph, plan: QuantPlan, referee: Referee, progress: Progress) -> dict[str, float]:
    """SQNR of the worst output with one layer quantised, for each layer by name."""
    found = {}
    for number, layer in enumerate(plan.layers):
        progress("measuring layers", number, len(plan.layers))
        found[layer.name] = referee.alone(with_pairs(graph, plan, {layer}))
    progress("measuring layers", len(plan.layers), len(plan.layers))
    return found


def savings(graph: Graph, whole: Graph, plan: QuantPlan, referee: Referee) -> dict[str, float]:
    """Seconds that quantising each layer saves in a run, as far as profiles of both graphs name it."""
    times = []
    for each in (graph, whole):
        with Session(each, threads=referee.threads, stand_ins=False) as session:
            rows = session.profile(referee.feeds[0], runs=TIMED_RUNS).rows
        spent: dict[str, float] = {}
        for row in rows:
            spent[row.node] = spent.get(row.node, 0.0) + row.seconds
        times.append(spent)
    before, after = times
    usual = sum(before.values()) / max(len(plan.layers), 1)
    made = {}
    for layer in plan.layers:
        slow = before.get(layer.name, usual)
        made[layer.name] = max(slow - after.get(layer.name, slow), LEAST_SAVING * slow)
    return made


def search(
    graph: Graph, plan: QuantPlan, referee: Referee, bound: QualityBound, progress: Progress, *, measure: bool = False
) -> Found:
    """Quantise all layers, or as many as the bound allows.

    Layers are kept in float in the order of the noise that they add for each second that they save.  How many have
    to be kept is found by bisection.  measure: look at each layer alone even where the bound holds at once.
    """
    whole = with_pairs(graph, plan)
    score = referee.score(whole)
    fits = bound.holds(referee.before, score)
    if fits and not measure:
        return Found(whole, score, [], {}, {})
    alone = sensitivities(graph, plan, referee, progress)
    saved = savings(graph, whole, plan, referee)
    best = Found(whole, score, [], alone, saved)
    if fits:
        return best
    order = sorted(plan.layers, key=lambda layer: -noise_per_second(layer, alone, saved))
    low, high = 1, len(order)
    while low <= high:
        progress("searching", low, len(order))
        middle = (low + high) // 2
        kept = order[:middle]
        made = with_pairs(graph, plan, set(order[middle:])) if middle < len(order) else referee.graph
        now = referee.score(made)
        if bound.holds(referee.before, now) or middle == len(order):
            best, high = Found(made, now, kept, alone, saved), middle - 1
        else:
            low = middle + 1
    progress("searching", len(order), len(order))
    return best


def noise_per_second(layer: QuantLayer, alone: Mapping[str, float], saved: Mapping[str, float]) -> float:
    """Power of the noise over that of the signal, for each second saved."""
    return 10 ** (-max(alone[layer.name], -300.0) / 10) / max(saved[layer.name], 1e-12)
