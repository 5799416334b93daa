"""Readers of suppression of boxes that overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, I32, I64, TensorType
from bolt_numba.converters.builder import ints, known_scalar
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather, NonMaxSuppression
from bolt_numba.ops.arrays.generate import ConstantOfShape, Range
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMax
from bolt_numba.ops.arrays.shape import Concat, Reshape, Shape
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.control import Loop


def _just_below(b: TfliteBuilder, limit: Value) -> Value:
    """The next smaller number: here a box goes when its overlap reaches the limit, in ONNX when it is beyond."""
    known = known_scalar(limit)
    if known is not None:
        return b.const(np.nextafter(np.float32(known), np.float32(-np.inf)))
    return b(p.Sub(), limit, b(p.Max(), b(p.Mul(), b(p.Abs(), limit), 6e-8), 1e-37))


def _filled(b: TfliteBuilder, x: Value, count: Value) -> Value:
    """``x`` [m] with zeros behind it, ``count`` [1] elements in all."""
    zeros = b(ConstantOfShape(0, x.type.dtype), count)
    return b(Reshape(), b(Slice(), b(Concat(0), x, zeros), ints([0]), count), count)


def _suppressed(
    b: TfliteBuilder, boxes: Value, scores: Value, most: Value, overlap: Value, threshold: Value
) -> tuple[Any, Any]:
    """Indices [m] i64 of the boxes that stay, best first, and their scores."""
    rows = b(
        NonMaxSuppression(), b.unsqueezed(boxes, 0), b.unsqueezed(scores, 0, 1), most, _just_below(b, overlap),
        threshold,
    )  # fmt: skip
    chosen = b.squeezed(b.sliced(rows, 1, 2), 1)
    return chosen, b(Gather(), scores, chosen)


def _results(b: TfliteBuilder, chosen: Value, most: Value, *others: Value) -> tuple[Value, ...]:
    """What is chosen with zeros behind it, and how many it is."""
    count = b(Reshape(), most, ints([1]))
    number = b(p.Cast(I32), b.squeezed(b(Shape(), chosen), 0))
    return (_filled(b, b(p.Cast(I32), chosen), count), *(_filled(b, v, count) for v in others), number)


@TFLITE.reader("NON_MAX_SUPPRESSION_V4")
def non_max_suppression_v4(
    b: TfliteBuilder, boxes: Value, scores: Value, most: Value, overlap: Value, threshold: Value
) -> tuple[Value, ...]:
    """boxes: [n, 4], scores: [n] -> indices [most] i32, and how many of them count."""
    most = b.as_scalar(as_i64(b, most))
    chosen, _ = _suppressed(b, boxes, scores, most, overlap, threshold)
    return _results(b, chosen, most)


@TFLITE.reader("NON_MAX_SUPPRESSION_V5")
def non_max_suppression_v5(
    b: TfliteBuilder, boxes: Value, scores: Value, most: Value, overlap: Value, threshold: Value, sigma: Value
) -> tuple[Value, ...]:
    """As the version before, with scores; where sigma is above 0 they fall by what overlaps with better boxes."""
    most = b.as_scalar(as_i64(b, most))
    if known_scalar(sigma) == 0:
        chosen, best = _suppressed(b, boxes, scores, most, overlap, threshold)
    else:
        chosen, best = _softly_suppressed(b, boxes, scores, most, overlap, threshold, sigma)
    return _results(b, chosen, most, best)


def _softly_suppressed(
    b: TfliteBuilder, boxes: Value, scores: Value, most: Value, overlap: Value, threshold: Value, sigma: Value
) -> tuple[Any, Any]:
    """`_suppressed` by a loop: the best box is taken, and the scores of the others fall."""
    corners = b.sliced(boxes, 1, 0, 2), b.sliced(boxes, 1, 2)
    low, high = b(p.Min(), *corners), b(p.Max(), *corners)
    is_soft, falls = b(p.Greater(), sigma, 0.0), b(p.Div(), b.const(np.float32(-0.5)), sigma)
    factor = b(p.Where(), is_soft, falls, b.const(np.float32(0)))
    captures = [low, high, b.as_scalar(overlap), b.as_scalar(threshold), b.as_scalar(factor)]
    graph = Graph("suppression")
    graph.add_input("iteration", TensorType(I64, ()))
    graph.add_input("goes_on", TensorType(BOOL, ()))
    left = graph.add_input("scores", scores.type.with_value(None))
    inner = [graph.add_input(f"capture{i}", v.type.with_value(None)) for i, v in enumerate(captures)]
    for value in _taken(Builder(graph), left, *inner):
        graph.add_output(value)
    goes_on = b(p.Greater(), b(ReduceMax(False), scores, ints([0])), captures[3])
    _, chosen, best = b(Loop(graph, 1), most, goes_on, scores, *captures)
    return chosen, best


def _taken(b: Builder, scores: Value, low: Value, high: Value, overlap: Value, threshold: Value, factor: Value) -> Any:
    """One step: whether there is another, the scores that are left, the best box and its score."""
    best = b(ArgMax(0, False), scores)
    top = b(Gather(), scores, best)
    first, last = b(p.Max(), low, b(Gather(), low, best)), b(p.Min(), high, b(Gather(), high, best))
    sides = b(p.Max(), b(p.Sub(), last, first), 0.0)

    def area(of: Value) -> Any:
        return b(p.Mul(), *(b(Gather(1), of, b.const(np.array(i))) for i in range(2)))

    shared, own = area(sides), area(b(p.Sub(), high, low))
    union = b(p.Sub(), b(p.Add(), own, b(Gather(), own, best)), shared)
    share = b(p.Where(), b(p.Greater(), union, 0.0), b(p.Div(), shared, union), b.const(np.float32(0)))
    weight = b(p.Exp(), b(p.Mul(), b(p.Mul(), share, share), factor))
    zero, one = b.const(np.array(0)), b.const(np.array(1))
    places = b(Range(), zero, b(Gather(), b(Shape(), scores), zero), one)
    gone = b(p.Or(), b(p.Equal(), places, best), b(p.LessOrEqual(), overlap, share))
    lowest = b.const(np.array(-np.inf, np.float32))
    fallen = b(p.Where(), gone, lowest, b(p.Mul(), scores, weight))
    goes_on = b(p.Greater(), b(ReduceMax(False), fallen, b.const(np.array([0]))), threshold)
    return goes_on, fallen, best, top
