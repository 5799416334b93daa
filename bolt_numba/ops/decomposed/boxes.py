"""What detectors end with, in terms of NonMaxSuppression."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64
from bolt_numba.ops.arrays.gather import Compress, Gather, GatherND, NonMaxSuppression
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import TopK
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Transpose, Unsqueeze
from bolt_numba.ops.decomposed.decompose import Terms, WholeError, decomposes
from bolt_numba.ops.dtypes import MIN_F32
from bolt_numba.ops.layers.detection.boxes import ROW, DetectionOutput
from bolt_numba.ops.pointwise import Add, Cast, Div, Equal, GreaterOrEqual, Min, Mod, Mul, Where


@decomposes(DetectionOutput)
def detection_output(op: DetectionOutput, b: Terms, boxes: Any, scores: Any) -> Any:
    """``Gather`` of what NonMaxSuppression chooses; of scores equal to the last one of ``nms_top_k`` all stay."""
    # Boxes of each class are an image of their own.
    dims = [d for d in scores.type.shape or () if isinstance(d, int)]
    if len(dims) != 3 or op.eta != 1 or (op.keep_top_k >= 0 and dims[0] != 1):
        raise WholeError("unknown sizes, thresholds that change, or a few boxes of each of several images")
    n, c, m = dims
    scores = _masked(op, b, scores, c, m)
    is_shared = len(boxes.type.shape or ()) == 3
    if not is_shared:
        boxes = b(Reshape(), b(Transpose((0, 2, 1, 3)), boxes), np.array([n * c, m, 4], I64))
        scores = b(Reshape(), scores, np.array([n * c, 1, m], I64))
    limits = np.array([m], I64), np.array([op.nms_threshold], F32), np.array([max(op.score_threshold, MIN_F32)], F32)
    found = b(NonMaxSuppression(), boxes, scores, *limits)
    best = b(GatherND(), scores, found)
    first, second, third = (b(Gather(1), found, np.array([i])) for i in range(3))
    picked = b(GatherND(), boxes, b(Concat(1), first, third))
    if not is_shared:
        first, second = b(Div(), first, c), b(Mod(), first, c)
    labels = [b(Cast(F32), v) for v in (first, second)]
    rows = b(Concat(1), *labels, b(Unsqueeze(), best, np.array([1])), picked)
    places = b(Reshape(), b(Add(), b(Mul(), first, m), third), np.array([-1]))
    if op.keep_top_k >= 0:
        rows, places = _best(b, op.keep_top_k, best, rows, places)
    return _filled(b, rows, places, n) if op.fill else (rows, places)


def _masked(op: Any, b: Terms, scores: Any, classes: int, count: int) -> Any:
    """Scores without those of the background, and below the best of each class."""
    nothing = b.const(np.array(-np.inf, F32))
    if 0 <= op.background < classes:
        is_background = (np.arange(classes) == op.background).reshape(-1, 1)
        scores = b(Where(), is_background, nothing, scores)
    if 0 <= op.nms_top_k < count:
        if op.nms_top_k == 0:
            raise WholeError("no box of a class may stay")
        best, _ = b(TopK(-1), scores, np.array([op.nms_top_k]))
        least = b(Gather(2), best, np.array([op.nms_top_k - 1]))
        scores = b(Where(), b(GreaterOrEqual(), scores, least), scores, nothing)
    return scores


def _best(b: Terms, keep: int, scores: Any, rows: Any, places: Any) -> Any:
    """The ``keep`` best in the order in which they are."""
    _, chosen = b(TopK(0), scores, b(Min(), b(Shape(), scores), np.array([keep])))
    order, _ = b(TopK(0, largest=False), chosen, b(Shape(), chosen))
    return b(Gather(0), rows, order), b(Gather(0), places, order)


def _filled(b: Terms, rows: Any, places: Any, images: int) -> Any:
    """A row of -1 for each image where there are no others."""
    count = b(Shape(), places)
    empty = b(Expand(), b(Equal(), count, np.array([0])), np.array([images]))
    stays = b(Cast(BOOL), b(ConstantOfShape(1, I64), count))
    chosen = b(Concat(0), stays, empty)
    blank = np.full((images, ROW), -1, F32)
    blank[:, 0] = np.arange(images)
    filled = b(Concat(0), rows, blank), b(Concat(0), places, np.full(images, -1))
    return tuple(b(Compress(0), v, chosen) for v in filled)
