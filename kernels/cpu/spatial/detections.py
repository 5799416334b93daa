"""Detections: boxes of each class suppressed as in `suppression`, then the best of each image, as rows."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import I64 as INT64
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    any_lane,
    lanes_below,
    load_f32,
    load_i64,
    splat,
    store_f32,
    store_i64,
    vload_n,
    vmax,
    vmin,
)
from bolt_numba.kernels.cpu.reductions.sorting import COUNTERS, LAST_KEY, key_f32, sort_keys
from bolt_numba.kernels.cpu.spatial.suppression import candidates_of
from bolt_numba.kernels.data_sized import Empty, Sized, data_sized, sized
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import F32, F64, I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, In, Out, Scratch, Step, Types
from bolt_numba.ops.layers.detection.boxes import ROW, DetectionOutput
from bolt_numba.ops.layers.detection.suppression import MulticlassNMS


@inline
def area_of(box, more):
    """Of a box [4] f32; 0 where it ends before it begins."""
    wide, high = load_f32(box + 8) - load_f32(box), load_f32(box + 12) - load_f32(box + 4)
    if wide < 0 or high < 0:
        return np.float32(0)
    return (wide + more) * (high + more)


@inline
def overlaps_kept(kept, room, n, box, area, limit, more):
    """Whether a box shares more than ``limit`` of the union with any of the first n kept ones, rows [5, room]."""
    x1, y1, x2, y2 = (
        splat(load_f32(box)), splat(load_f32(box + 4)), splat(load_f32(box + 8)), splat(load_f32(box + 12))
    )  # fmt: skip
    own, most, zero, extra = splat(area), splat(limit), splat(np.float32(0)), splat(more)
    for i in range(0, n, LANES):
        at, left = kept + 4 * i, n - i
        a1, b1, a2, b2 = (
            vload_n(at, left), vload_n(at + 4 * room, left), vload_n(at + 8 * room, left),
            vload_n(at + 12 * room, left),
        )  # fmt: skip
        met = (x1 <= a2) & (x2 >= a1) & (y1 <= b2) & (y2 >= b1)
        shared = ((vmin(x2, a2) - vmax(x1, a1)) + extra) * ((vmin(y2, b2) - vmax(y1, b1)) + extra)
        union = (vload_n(at + 16 * room, left) + own) - shared
        if any_lane(met & (shared / union > most) & (union != zero) & lanes_below(left)):
            return True
    return False


@inline
def best_rows(y, index, items, first, count, keep):
    """Leave the ``keep`` rows of the best score among ``count`` from ``first`` on, in their order."""
    for i in range(count):
        score = y + 28 * (first + i) + 8
        store_i64(items + 8 * i, ((LAST_KEY - key_f32(score)) << 32) | i)
    order = sort_keys(items, items + 8 * count, items + 16 * count, count, 32)
    for i in range(count):  # the rows that stay are marked where their place would stand
        place = load_i64(order + 8 * i) & LAST_KEY
        at = index + 8 * (first + place)
        if i >= keep:
            store_i64(at, -1 - load_i64(at))
    n = first
    for i in range(first, first + count):
        place = load_i64(index + 8 * i)
        if place >= 0:
            store_i64(index + 8 * n, place)
            for k in range(7):
                store_f32(y + 28 * n + 4 * k, load_f32(y + 28 * i + 4 * k))
            n += 1
    return n


def _found(a: Numbers) -> dict[str, Reach]:
    rows = a.images * a.classes * a.most
    return {
        "boxes": 16 * a.images * a.sets * a.count,
        "scores": 4 * a.images * a.classes * a.count,
        "y": 28 * rows,
        "index": 8 * rows,
        "found": 8,
        "kept": 20 * a.most,
        "items": 16 * max(a.count, a.classes * a.most) + COUNTERS,
    }


@native(
    fastmath=set(), extents=_found, boxes=PTR, scores=PTR, y=PTR, index=PTR, found=PTR, kept=PTR, items=PTR,
    images=I64, classes=I64, sets=I64, count=I64, most=I64, keep=I64, background=I64, limit=F64, threshold=F32,
    eta=F64, more=F32,
)  # fmt: skip
def detect(p, tid, nthreads):
    """y: rows [7] f32, index: i64, found[0] of them.

    sets: boxes at a place, 1 or one for each class; kept: [5, most] f32; more: 1 where corners are pixels.
    """
    count, most, kept = p.count, p.most, p.kept
    rows = 0
    for image in range(p.images):
        first = rows
        for c in range(p.classes):
            if c == p.background:
                continue
            boxes = p.boxes + 16 * (p.sets * image * count + (c if p.sets > 1 else 0))
            scores = p.scores + 4 * (image * p.classes + c) * count
            m = candidates_of(scores, p.items, count, p.threshold, 1)
            items = sort_keys(p.items, p.items + 8 * count, p.items + 16 * count, m, 32)
            n = 0
            limit = p.limit
            for i in range(min(m, most)):
                place = load_i64(items + 8 * i) & LAST_KEY
                box = boxes + 16 * p.sets * place
                area = area_of(box, p.more)
                if overlaps_kept(kept, most, n, box, area, np.float32(limit), p.more):
                    continue
                store_f32(p.y + 28 * rows, np.float32(image))
                store_f32(p.y + 28 * rows + 4, np.float32(c))
                store_f32(p.y + 28 * rows + 8, load_f32(scores + 4 * place))
                for k in range(4):
                    store_f32(kept + 4 * (k * most + n), load_f32(box + 4 * k))
                    store_f32(p.y + 28 * rows + 12 + 4 * k, load_f32(box + 4 * k))
                store_f32(kept + 4 * (4 * most + n), area)
                store_i64(p.index + 8 * rows, image * count + place)
                n += 1
                rows += 1
                if limit > 0.5:
                    limit = limit * p.eta
        if p.keep >= 0 and rows - first > p.keep:
            rows = best_rows(p.y, p.index, p.items, first, rows - first, p.keep)
    store_i64(p.found, rows)


def _numbers(op: DetectionOutput | MulticlassNMS, boxes: Sequence[int], scores: Sequence[int]) -> dict[str, Any]:
    """Fields of a call that are no addresses, for operands of these shapes; ``more`` is the operator's."""
    images, classes, count = scores
    return {
        "images": images, "classes": classes, "sets": boxes[2] if len(boxes) == 4 else 1, "count": count,
        "most": count if op.nms_top_k < 0 else min(op.nms_top_k, count), "keep": op.keep_top_k,
        "background": op.background, "limit": op.nms_threshold, "threshold": op.score_threshold,
        "eta": min(op.eta, 1.0),
    }  # fmt: skip


def _detected(
    op: DetectionOutput | MulticlassNMS, operands: Sequence[Array], empty: Empty, fields: dict[str, Any]
) -> tuple[Array, Array]:
    """Rows [k, 7] and places [k] of an operator's boxes and scores."""
    boxes, scores = operands
    numbers = _numbers(op, boxes.shape, scores.shape)
    images, classes, count, most = (numbers[name] for name in ("images", "classes", "count", "most"))
    y, index = empty((images * classes * most, ROW), np.float32), empty(images * classes * most, INT64)
    if not y.size:
        return y, index
    number, kept = empty(1, INT64), empty(5 * most, np.float32)
    items = empty(2 * max(count, classes * most) + COUNTERS // 8, INT64)
    record = detect.record(
        boxes=boxes, scores=scores, y=y, index=index, found=number, kept=kept, items=items, **numbers, **fields
    )
    detect.call(record)
    found = int(number[0])
    return y[:found], index[:found]


@data_sized(DetectionOutput)
def detection_output(op: DetectionOutput, operands: Sequence[Any], empty: Empty) -> tuple[Array, ...]:
    """Image by image, class by class."""
    return op.filled(*_detected(op, operands, empty, {"more": 0.0}), len(operands[1]))


@data_sized(MulticlassNMS, accepts=lambda op, ins: ins[0] is not None and ins[0].dtype == np.float32)
def multiclass_nms(op: MulticlassNMS, operands: Sequence[Any], empty: Empty) -> tuple[Array, ...]:
    """Image by image, class by class."""
    rows, places = _detected(op, operands, empty, {"more": float(not op.normalised)})
    counts = np.bincount(rows[:, 0].astype(np.int64), minlength=len(operands[1]))
    return np.ascontiguousarray(rows[:, 1:]), places, counts.astype(np.int64)


@native(
    rows=PTR, index=PTR, found=PTR, y=PTR, places=PTR, counts=PTR, count=PTR, images=I64, room=I64, most=I64,
    first=I64, fill=I64,
    extents=lambda a: {
        "rows": 4 * ROW * a.room, "index": 8 * a.room, "found": 8, "y": 4 * (ROW - a.first) * a.most,
        "places": 8 * a.most, "counts": 8 * a.images, "count": 8,
    },
)  # fmt: skip
def give_detections(p, tid, nthreads):
    """Give y [count, 7 - first] f32, places [count] i64, counts [images] i64 of the found rows [7] f32, index i64.

    fill: where none was found, a row of -1 behind its number for each image.
    """
    found, first = load_i64(p.found), p.first
    for image in range(p.images):
        store_i64(p.counts + 8 * image, 0)
    for i in range(found):
        counter = p.counts + 8 * np.int64(load_f32(p.rows + 28 * i))
        store_i64(counter, load_i64(counter) + 1)
        store_i64(p.places + 8 * i, load_i64(p.index + 8 * i))
        for k in range(first, ROW):
            store_f32(p.y + 4 * (i * (ROW - first) + k - first), load_f32(p.rows + 28 * i + 4 * k))
    if found == 0 and p.fill:
        found = p.images
        for i in range(found):
            store_i64(p.places + 8 * i, -1)
            for k in range(first, ROW):
                store_f32(p.y + 4 * (i * (ROW - first) + k - first), np.float32(-1))
            if first == 0:
                store_f32(p.y + 28 * i, np.float32(i))
    store_i64(p.count, found)


def _sized(op: DetectionOutput | MulticlassNMS, ins: Types, first: int, fill: bool, more: float) -> Sized | None:
    """Steps that give the columns from ``first`` on of what is found."""
    boxes, scores = ins
    if boxes is None or scores is None or scores.dtype != np.float32:
        return None
    numbers = _numbers(op, boxes.dims, scores.dims)
    images, classes, count, most = (numbers[name] for name in ("images", "classes", "count", "most"))
    room = images * classes * most
    kept = images * min(classes * most, op.keep_top_k if op.keep_top_k >= 0 else classes * most)
    kept = max(kept, images) if fill else kept
    rows, index, found = Scratch(4 * ROW * room), Scratch(8 * room), Scratch(8)
    finding: dict[str, Argument] = {
        "boxes": In(0), "scores": In(1), "y": rows, "index": index, "found": found, "kept": Scratch(20 * most),
        "items": Scratch(16 * max(count, classes * most) + COUNTERS), "more": more, **numbers,
    }  # fmt: skip
    y = TensorType(scores.dtype, (kept, ROW - first))
    places, counts = TensorType(INT64, (kept,)), TensorType(INT64, (images,))
    results, axes = ((y, places), (0, 0)) if first == 0 else ((y, places, counts), (0, 0, None))
    giving: dict[str, Argument] = {
        "rows": rows, "index": index, "found": found, "y": Out(0), "places": Out(1),
        "counts": Scratch(8 * images) if first == 0 else Out(2), "count": Out(len(results)), "images": images,
        "room": room, "most": kept, "first": first, "fill": int(fill),
    }  # fmt: skip
    return Sized(results, axes, [Step(k, a, parallel=False) for k, a in ((detect, finding), (give_detections, giving))])


@sized(DetectionOutput)
def sized_detection_output(op: DetectionOutput, ins: Types) -> Sized | None:
    """The same as steps."""
    return _sized(op, ins, 0, op.fill, 0.0)


@sized(MulticlassNMS)
def sized_multiclass_nms(op: MulticlassNMS, ins: Types) -> Sized | None:
    """The same as steps."""
    return _sized(op, ins, 1, False, float(not op.normalised))
