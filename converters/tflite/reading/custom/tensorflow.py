"""Custom operators that TensorFlow's own tools write."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I64
from bolt_numba.converters.builder import ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import CUSTOM, TFLITE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather, NonMaxSuppression
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceSum, TopK
from bolt_numba.ops.arrays.shape import Concat, Reshape, Shape, Transpose
from bolt_numba.ops.pointwise import Add, Cast, Exp, Less, Mul, Sub, Where

NOTHING = float(np.finfo(F32).min)
"""The score of what fills up the rows that no detection takes."""


@TFLITE.reader("TFLite_Detection_PostProcess", domain=CUSTOM)
def detection_postprocess(
    b: TfliteBuilder,
    encodings: Value,
    scores: Value,
    anchors: Value,
    *,
    max_detections: int,
    max_classes_per_detection: int = 1,
    detections_per_class: int = 100,
    use_regular_nms: bool = False,
    nms_score_threshold: float,
    nms_iou_threshold: float,
    num_classes: int,
    y_scale: float,
    x_scale: float,
    h_scale: float,
    w_scale: float,
) -> tuple[Value, ...]:
    """encodings: [1, n, 4] y x h w, scores: [1, n, classes, a background first], anchors: [n, 4] y x h w.

    Results: boxes [1, m, 4] as ends y x y x, classes, scores [1, m], how many there are [1].  Where a box has one class
    suppression is among all boxes, else (regular) among those of a class.
    """
    b.unsupported_if(b.static_dim(encodings, 0) != 1, "detections of several images")
    per_box = 1 if use_regular_nms else max_classes_per_detection
    if min(max_detections, num_classes, per_box, detections_per_class) < 1 or per_box > num_classes:
        raise b.invalid("detections and classes", (max_detections, num_classes, per_box), "at least one of each")
    boxes = _boxes(b, b.squeezed(encodings, 0), anchors, (y_scale, x_scale, h_scale, w_scale))
    scores = b.squeezed(b.sliced(scores, 2, b.static_dim(scores, 2) - num_classes), 0)
    threshold = np.nextafter(np.float32(nms_score_threshold), np.float32(-np.inf))
    limits = np.array(nms_iou_threshold, F32), threshold.reshape(())
    choose = _of_classes if use_regular_nms else _of_boxes
    most = (max_detections, detections_per_class if use_regular_nms else per_box)
    rows, classes, found, count = choose(b, boxes, scores, most, limits)
    empty = b(Less(), found, np.array(NOTHING / 2, F32))
    zero = np.zeros((), F32)
    boxes = b(Gather(0), b(Concat(0), boxes, np.zeros((1, 4), F32)), rows)
    results = (boxes, b(Where(), empty, zero, b(Cast(F32), classes)), b(Where(), empty, zero, found))
    return (*(b.unsqueezed(x, 0) for x in results), b(Cast(F32), count))


def _boxes(b: TfliteBuilder, encodings: Value, anchors: Value, scales: tuple[float, ...]) -> Value:
    """Corners [n, 4] of boxes that are told by their anchors."""
    places = b(Mul(), encodings, np.array([1 / s for s in scales], F32))
    sizes = b.sliced(anchors, 1, 2)
    centres = b(Add(), b(Mul(), b.sliced(places, 1, 0, 2), sizes), b.sliced(anchors, 1, 0, 2))
    halves = b(Mul(), b(Mul(), b(Exp(), b.sliced(places, 1, 2)), sizes), np.array(0.5, F32))
    return b(Concat(1), b(Sub(), centres, halves), b(Add(), centres, halves))


def _chosen(b: TfliteBuilder, boxes: Value, scores: Value, most: int, limits: Any) -> tuple[Any, Any, Any]:
    """Classes and boxes that are left of scores [classes, n], best first in each class, and how many [1]."""
    limit = ints([most])
    found = b(NonMaxSuppression(), b.unsqueezed(boxes, 0), b.unsqueezed(scores, 0), limit, *limits)
    classes, places = (b(Gather(1), found, np.array(i)) for i in (1, 2))
    return classes, places, b(Shape(0, 1), found)


def _of_boxes(b: TfliteBuilder, boxes: Value, scores: Value, most: tuple[int, int], limits: Any) -> Any:
    """Each box counts with its best class; what is left has the best ``most[1]`` of its classes."""
    rows, classes = most
    best = b(ReduceMax(keepdims=False), scores, ints([1]))
    _, places, count = _chosen(b, boxes, b.unsqueezed(best, 0), rows, limits)
    nobody = b(Shape(0, 1), boxes)
    places = b.sliced(b(Concat(0), places, b(Mul(), nobody, np.ones(rows, np.int64))), 0, 0, rows)
    filled = b(Concat(0), scores, np.full((1, b.static_dim(scores, 1)), NOTHING, F32))
    found, of = b(TopK(), b(Gather(0), filled, places), ints([classes]))
    if classes > 1:
        places = b(Reshape(), b(Mul(), b.unsqueezed(places, 1), np.ones((1, classes), np.int64)), ints([-1]))
        found, of = (b(Reshape(), x, ints([-1])) for x in (found, of))
        count = b(Mul(), count, ints([classes]))
    else:
        found, of = b.squeezed(found, 1), b.squeezed(of, 1)
    return places, of, found, count


def _of_classes(b: TfliteBuilder, boxes: Value, scores: Value, most: tuple[int, int], limits: Any) -> Any:
    """The best rows of all that is left in any class."""
    rows, each = most
    by_class = b(Transpose((1, 0)), scores)
    classes, places, _ = _chosen(b, boxes, by_class, each, limits)
    count = b(Shape(0, 1), boxes)
    flat = b(Concat(0), b(Reshape(), by_class, ints([-1])), np.array([NOTHING], F32))
    at = b(Add(), b(Mul(), classes, count), places)
    nothing = b(Mul(), count, np.full(rows, b.static_dim(scores, 1), np.int64))
    found, order = b(TopK(), b(Gather(0), flat, b(Concat(0), at, nothing)), ints([rows]))
    classes, places = (
        b(Gather(0), b(Concat(0), x, b(Mul(), count, np.full(rows, fill, np.int64))), order)
        for x, fill in ((classes, 0), (places, 1))
    )
    real = b(Cast(I64), b(Less(), np.array(NOTHING / 2, F32), found))
    return places, classes, found, b(ReduceSum(keepdims=True), real, ints([0]))
