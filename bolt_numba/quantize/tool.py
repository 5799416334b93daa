"""`quantize`: calibrates a float model, inserts integers, measures, and keeps layers in float where it has to."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.border import border, theirs
from bolt_numba.base.errors import BoltError, OptionError
from bolt_numba.base.options import flag_of
from bolt_numba.base.records import record
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import sized, with_open_sizes
from bolt_numba.passes.pipeline.portable import simplify
from bolt_numba.passes.rewrite import nested
from bolt_numba.quantize.calibrate import Progress, Ranges, Watched, calibrate, estimated, no_progress
from bolt_numba.quantize.data import Data, Feed, feeds_of
from bolt_numba.quantize.equalise import AUTO, equalised, smoothed
from bolt_numba.quantize.insert import Pair, QuantPlan, rounded_results
from bolt_numba.quantize.layers import QuantLayer, Scheme, layers_of, schemes_for, with_plain_weights
from bolt_numba.quantize.methods import Affine, TensorStats
from bolt_numba.quantize.report import FLOAT, LayerReport, QuantizeReport
from bolt_numba.quantize.sensitivity import Found, Metric, QualityBound, Referee, accuracy_by, ratio, search, sqnr
from bolt_numba.sessions.inputs import spec_of
from bolt_numba.sessions.loading import Source, load, save
from bolt_numba.sessions.session import Session

TIMED = 7
"""Runs of which the median is the latency."""


@record()
class Quantised:
    """A quantised model: its graph, the report, and how each tensor is stored."""

    graph: Graph
    report: QuantizeReport
    tensors: dict[str, Affine]
    layers: list[QuantLayer]

    def __repr__(self) -> str:
        return f"Quantised({self.graph.name!r}: {self.report.summary().splitlines()[0]})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as ONNX with QuantizeLinear and DequantizeLinear (``.onnx``) or as ``.bolt``.

        The file appears complete or not at all.
        Raises BoltError for another suffix, UnsupportedOpError for what ONNX cannot say.
        """
        write_model(self.graph, path)


def write_model(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph as ``.onnx`` or ``.bolt``, complete or not at all."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".onnx", ".bolt"):
        raise BoltError(f"{str(path)!r}: got suffix {suffix!r}, wanted .onnx or .bolt")
    save(graph, Path(path))


@border("quantize", OSError)
def quantize(  # budget: each option is explained
    model: Source,
    data: Data,
    *,
    activations: str = "u8",
    weights: str = "s8",
    method: str = "mse",
    per_channel: bool = True,
    symmetric: bool = False,
    results: bool = True,
    bias_correction: bool = True,
    equalise: bool = False,
    smooth: float | str | None = AUTO,
    attention: bool = False,
    keep: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    metric: Metric | None = None,
    labels: Any = None,
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    measure: bool = False,
    timed: bool = True,
    threads: int | None = None,
    signature: str | None = None,
    progress: Progress = no_progress,
) -> Quantised:
    """A model whose convolutions and products compute with integers, from a float one and a few of its inputs.

    Tables that rows are looked up in are stored as integers, too.  Bodies of control flow stay float.

    Parameters
    ----------
    model: as `bolt_numba.compile`.  data: see `data.feeds_of`; a hundred samples are usual.
    activations, weights, per_channel, symmetric, method, results: see `layers.Scheme`, for all layers.
    bias_correction: take the mean error that rounded weights make out of biases.
    equalise: make ranges of channels of consecutive convolutions alike (depthwise nets).
    smooth: ``"auto"`` hands the few great channels of a product's input to its weights where that is estimated to pay
        (transformers); a strength from 0 to 1 does as SmoothQuant does, to all products; None: neither.
    attention: also products of two activations.
    keep: patterns of names of layers, or operators, that stay float.  overrides: other schemes by such patterns.
    ranges: by tensor, instead of those of the data: what `read_scales` gives.
    metric: from the list of outputs by name, one for each run, to a figure of which more is better; labels: one for
        each sample: the metric is the share of samples whose greatest element of the first output is at that place.
    max_drop: what the metric may lose; min_sqnr: dB that the outputs must keep.  Layers stay float until that holds.
    measure: measure each layer alone for the report even where no bound asks for it.
    timed: whether the report has latencies.
    progress: called with what is done, how many steps of it are behind, and how many there are.
    Raises BoltError when there is nothing to quantise, DataError for NaN in data or activations.
    """
    progress = theirs("progress", progress)
    usual = Scheme(activations, weights, per_channel, symmetric, method, results)
    bound = _bound(max_drop, min_sqnr, metric is not None or labels is not None)
    loaded = load(model, signature=signature)
    feeds = feeds_of(data, [spec_of(v.name, with_open_sizes(loaded, v.type)) for v in loaded.inputs])
    loaded = sized(loaded, *({name: array.shape for name, array in feed.items()} for feed in feeds))
    source = with_plain_weights(simplify(loaded))
    within = sum(len(layers_of(body)) for body in nested(source) if body is not source)
    given = layers_of(source, attention=flag_of("attention", attention))
    if not given and any(node.op.name == "DequantizeLinear" for node in source.nodes):
        raise BoltError("layers: got a model that is quantised already, wanted convolutions or products of f32")
    schemes = schemes_for(given, usual, keep, overrides or {})
    graph, notes = equalised(source) if flag_of("equalise", equalise) else (source, [])
    graph, seen, count = _smoothed(graph, feeds, _strength(smooth), attention, threads, progress)
    notes += [f"smoothed {count} input{'s' if count > 1 else ''} of products"] if count else []
    notes += [f"layers in bodies of control flow, which stay float: {within}"] if within else []
    layers = layers_of(graph, attention=attention)
    seen.tensors.update(estimated(ranges or {}).tensors)
    plan = QuantPlan(layers, schemes, seen, flag_of("bias_correction", bias_correction))
    if metric is not None:
        metric = theirs("metric", metric)
    elif labels is not None:
        metric = accuracy_by(labels)
    referee = Referee(source, feeds, metric, threads)
    found = search(graph, plan, referee, bound, progress, measure=flag_of("measure", measure))
    times = _latencies((source, found.graph), referee) if flag_of("timed", timed) else (None, None, "")
    report = _report(source, found, layers, plan, referee, bound, notes, times)
    pairs = {p.tensor: p.affine for layer in plan.layers for i in layer.inputs for p in [plan.pair(layer, i)]}
    return Quantised(found.graph, report, pairs, layers)


def _bound(max_drop: float | None, min_sqnr: float | None, judged: bool) -> QualityBound:
    wishes: dict[str, Any] = {"max_drop": max_drop, "min_sqnr": min_sqnr}
    for what, value in wishes.items():
        if value is not None and not (isinstance(value, (int, float)) and value >= 0):
            raise OptionError(f"{what}: got {value!r}, wanted a number from 0")
    if max_drop is not None and not judged:
        raise OptionError("max_drop: got no metric and no labels, wanted one of them (min_sqnr needs none)")
    return QualityBound(max_drop, min_sqnr)


def _strength(smooth: Any) -> float | str | None:
    if smooth is not None and smooth != AUTO and not (isinstance(smooth, (int, float)) and 0 <= smooth <= 1):
        raise OptionError(f"smooth: got {smooth!r}, wanted {AUTO!r}, a strength from 0 to 1, or None")
    found: float | str | None = smooth
    return found


def _smoothed(
    graph: Graph, feeds: Sequence[Feed], strength: float | str | None, attention: bool, threads: int | None,
    progress: Progress,
) -> tuple[Graph, Ranges, int]:  # fmt: skip
    """The graph, smoothed as asked for, what calibration saw of it, and how many inputs that took.

    What is divided has other ranges, for which the data are run through once more.
    """
    layers = layers_of(graph, attention=attention)
    seen = calibrate(graph, feeds, _watched(graph, layers), threads=threads, progress=progress)
    if strength is None:
        return graph, seen, 0
    made, count = smoothed(graph, layers, seen, strength)
    if not count:
        return graph, seen, 0
    watched = _watched(made, layers_of(made, attention=attention))
    return made, calibrate(made, feeds, watched, threads=threads, progress=progress), count


def _watched(graph: Graph, layers: Sequence[QuantLayer]) -> list[Watched]:
    """Every activation of a layer once, and channels of those that meet a weight; what is rounded besides."""
    made: dict[str, Watched] = {}
    for layer in layers:
        for i in layer.inputs:
            name = layer.operand(i).name
            made.setdefault(name, Watched(name, None if layer.weight is None else layer.channel))
    for _, tensor in rounded_results(graph, {layer.node: layer for layer in layers}).values():
        made.setdefault(tensor, Watched(tensor))
    return list(made.values())


# --- the report ------------------------------------------------------------------------------------------------------


def _report(
    source: Graph, found: Found, layers: Sequence[QuantLayer], plan: QuantPlan, referee: Referee, bound: QualityBound,
    notes: list[str], times: tuple[float | None, float | None, str],
) -> QuantizeReport:  # fmt: skip
    kept = {layer.name for layer in found.kept}
    quantised = {layer.name for layer in plan.layers} - kept
    rows = [_row(layer, plan, found, layer.name in quantised) for layer in layers]
    return QuantizeReport(
        rows, found.score.sqnr, referee.before.metric, found.score.metric, *times[:2], _bytes(source),
        _bytes(found.graph), bound.holds(referee.before, found.score), [*notes, *found.score.remarks], times[2],
    )  # fmt: skip


def _row(layer: QuantLayer, plan: QuantPlan, found: Found, quantised: bool) -> LayerReport:
    alone, saved = found.alone.get(layer.name), found.saved.get(layer.name)
    stored = plan.weight(layer) if quantised else None
    if stored is not None and layer.weights is not None and not layer.inputs:
        reach, kind = float(np.max(np.abs(stored.real))), plan.scheme(layer).weights
        inside = sqnr(layer.weights, stored.real)
        return LayerReport(layer.name, layer.op, kind, -reach, reach, 0.0, inside, None, alone, saved)
    stats = plan.ranges.tensors.get(layer.operand(0).name)
    if not quantised or stats is None:
        low, high = (0.0, 0.0) if stats is None else (stats.low, stats.high)
        return LayerReport(layer.name, layer.op, FLOAT, low, high, 0.0, None, None, alone, saved)
    scheme, pair = plan.scheme(layer), plan.pair(layer, 0)
    weight = None if stored is None or layer.weights is None else sqnr(layer.weights, stored.real)
    kinds = scheme.activations if stored is None else f"{scheme.activations} x {scheme.weights}"
    inside, share = input_quality(stats, pair)
    return LayerReport(
        layer.name, layer.op, kinds, pair.affine.low, pair.affine.high, share, weight, inside, alone, saved
    )


def input_quality(stats: TensorStats, pair: Pair) -> tuple[float, float]:
    """SQNR of a tensor by its histogram, and the share of its values outside the range."""
    how, x, counts = pair.affine, stats.centres, stats.counts
    inside = np.clip(x, how.low, how.high)
    rounded = np.rint(inside / how.scale) * how.scale
    # within a bin values are spread evenly, which the centre does not show
    floor = min(stats.width, how.scale) ** 2 / 12
    exact = (stats.low >= 0) & (np.arange(x.size) == x.size // 2)
    noise = float(np.sum(counts * np.where(exact, 0.0, np.maximum((x - rounded) ** 2, floor))))
    beyond = (x < how.low - how.scale / 2) | (x > how.high + how.scale / 2)
    return ratio(float(np.sum(counts * x * x)), noise), float(np.sum(counts[beyond]) / max(counts.sum(), 1))


def _latencies(graphs: Sequence[Graph], referee: Referee) -> tuple[float, float, str]:
    """Median seconds of a run of each graph on the first feed, taking turns, and what was timed."""
    sessions = [Session(graph, threads=referee.threads, stand_ins=False) for graph in graphs]
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(TIMED + 1):  # the first turn plans
        for session, spent in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(None, referee.feeds[0])
            spent.append(time.perf_counter() - start)
    shapes = [f"{name} {list(array.shape)}" for name, array in referee.feeds[0].items()]
    for session in sessions:
        session.close()
    before, after = (statistics.median(spent[1:]) for spent in times)
    threads = sessions[0].threads
    return before, after, f"{', '.join(shapes)}, {threads} thread{'' if threads == 1 else 's'}"


def _bytes(graph: Graph) -> int:
    """Of all constants, once each; two int4 are a byte."""
    held = {id(a): a for a in graph.weights()}.values()
    return sum(a.nbytes if a.dtype.name not in ("int4", "uint4") else (a.size + 1) // 2 for a in held)
