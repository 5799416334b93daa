"""Writers of what detectors end with, in terms of ONNX's NonMaxSuppression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.converters.onnx.writing.registry import Named, NoSpellingError, writer
from bolt_numba.ops.arrays.gather import Compress, Gather, GatherND, NonMaxSuppression
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import TopK
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Transpose, Unsqueeze
from bolt_numba.ops.layers.boxes import ROW, DetectionOutput
from bolt_numba.ops.pointwise import Add, Cast, Div, Equal, GreaterOrEqual, Min, Mod, Mul, Where
from bolt_numba.types import BOOL, F32, I64

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter

LOWEST = np.float32(np.finfo(np.float32).min)


@writer(DetectionOutput)
def detection_output(w: GraphWriter, op: Any, boxes: Named, scores: Named) -> Any:
    """Boxes of each class are an image of their own.  Of scores equal to the last one of ``nms_top_k`` all stay."""
    dims = [d for d in scores.type.shape or () if isinstance(d, int)]
    if len(dims) != 3 or op.eta != 1 or (op.keep_top_k >= 0 and dims[0] != 1):
        raise NoSpellingError
    n, c, m = dims
    scores = _masked(w, op, scores, c, m)
    is_shared = len(boxes.type.shape or ()) == 3
    if not is_shared:
        boxes = w.write(Reshape(), w.write(Transpose((0, 2, 1, 3)), boxes), w.const(np.array([n * c, m, 4], I64)))
        scores = w.write(Reshape(), scores, w.const(np.array([n * c, 1, m], I64)))
    limits = (np.array([m], I64), np.array([op.nms_threshold], F32), np.array([max(op.score_threshold, LOWEST)], F32))
    found = w.write(NonMaxSuppression(), boxes, scores, *(w.const(v) for v in limits))
    best = w.write(GatherND(), scores, found)
    first, second, third = (_column(w, found, i) for i in range(3))
    picked = w.write(GatherND(), boxes, w.write(Concat(1), first, third))
    if not is_shared:
        count = w.const(np.array(c, I64))
        first, second = w.write(Div(), first, count), w.write(Mod(), first, count)
    labels = [w.write(Cast(F32), v) for v in (first, second)]
    rows = w.write(Concat(1), *labels, w.write(Unsqueeze(), best, w.const(np.array([1]))), picked)
    places = w.write(Add(), w.write(Mul(), first, w.const(np.array(m, I64))), third)
    places = w.write(Reshape(), places, w.const(np.array([-1])))
    if op.keep_top_k >= 0:
        rows, places = _best(w, op.keep_top_k, best, rows, places)
    return _filled(w, rows, places, n) if op.fill else (rows, places)


def _column(w: GraphWriter, found: Named, index: int) -> Any:
    return w.write(Gather(1), found, w.const(np.array([index])))


def _masked(w: GraphWriter, op: Any, scores: Named, classes: int, count: int) -> Any:
    """Scores without those of the background, and below the best of each class."""
    nothing = w.const(np.array(-np.inf, F32))
    if 0 <= op.background < classes:
        is_background = (np.arange(classes) == op.background).reshape(-1, 1)
        scores = w.write(Where(), w.const(is_background), nothing, scores)
    if 0 <= op.nms_top_k < count:
        if op.nms_top_k == 0:
            raise NoSpellingError
        best, _ = w.write(TopK(-1), scores, w.const(np.array([op.nms_top_k])))
        least = w.write(Gather(2), best, w.const(np.array([op.nms_top_k - 1])))
        scores = w.write(Where(), w.write(GreaterOrEqual(), scores, least), scores, nothing)
    return scores


def _best(w: GraphWriter, keep: int, scores: Named, rows: Named, places: Named) -> Any:
    """The ``keep`` best in the order in which they are."""
    count = w.write(Min(), w.write(Shape(), scores), w.const(np.array([keep])))
    _, chosen = w.write(TopK(0), scores, count)
    order, _ = w.write(TopK(0, largest=False), chosen, count)
    return w.write(Gather(0), rows, order), w.write(Gather(0), places, order)


def _filled(w: GraphWriter, rows: Named, places: Named, images: int) -> Any:
    """A row of -1 for each image where there are no others."""
    count = w.write(Shape(), places)
    empty = w.write(Expand(), w.write(Equal(), count, w.const(np.array([0]))), w.const(np.array([images])))
    stays = w.write(Cast(BOOL), w.write(ConstantOfShape(1, I64), count))
    chosen = w.write(Concat(0), stays, empty)
    blank = np.full((images, ROW), -1, F32)
    blank[:, 0] = np.arange(images)
    filled = w.write(Concat(0), rows, w.const(blank)), w.write(Concat(0), places, w.const(np.full(images, -1)))
    return tuple(w.write(Compress(0), v, chosen) for v in filled)
